//! Stories: the experiments of the five texts with which this broker began, the seeds. Each is
//! repeated on this machine, and its tables have the seed's own figures beside the measured ones.
//!
//! A measurement takes a second or two, which is enough for the lesson. `--full` makes it as long
//! as the seed's.

mod channels;
mod demand;
mod nagle;
mod pipelines;
mod play;
mod producers;
mod seed;
mod sizes;

use cloverleaf_telemetry::Protocol;
use serde::Serialize;

pub(crate) use demand::Demand;
pub(crate) use play::{StoryOptions, StoryRun};

use crate::command::BenchError;

/// Which seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoryName {
    /// Producers over a distance: synchronous, in flight, connections, partitions.
    #[value(name = "000")]
    Producers,
    /// A producer that waits 40 ms for nothing: Nagle's algorithm and delayed acknowledgements.
    #[value(name = "001")]
    Nagle,
    /// Throughput and latency of four message sizes.
    #[value(name = "002")]
    Sizes,
    /// A pipeline whose processors are idle while messages wait.
    #[value(name = "003")]
    Pipelines,
    /// Publishers and subscribers at the same time, many on each channel.
    #[value(name = "004")]
    Channels,
}

impl StoryName {
    fn script(self) -> &'static StoryScript {
        match self {
            StoryName::Producers => &producers::SCRIPT,
            StoryName::Nagle => &nagle::SCRIPT,
            StoryName::Sizes => &sizes::SCRIPT,
            StoryName::Pipelines => &pipelines::SCRIPT,
            StoryName::Channels => &channels::SCRIPT,
        }
    }

    /// The seed's number.
    pub fn number(self) -> &'static str {
        self.script().seed
    }
}

/// A story before it is played.
struct StoryScript {
    /// The seed's number.
    seed: &'static str,
    title: &'static str,
    lesson: &'static str,
    /// The protocols through which it can be played.
    protocols: &'static [Protocol],
    /// Fills the tables.
    play: fn(&mut StoryRun<'_, '_>) -> Result<(), BenchError>,
}

/// The result of a story.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Story {
    /// The seed's number.
    pub seed: String,
    /// The heading, which names its subject.
    pub title: String,
    /// The measurements, beside the seed's figures.
    pub tables: Vec<StoryTable>,
    /// The lesson to be learned from it.
    pub lesson: String,
    /// Conditions of the measurements, and their faults.
    pub notes: Vec<String>,
    /// Nothing was lost, out of order or cut short.
    pub is_good: bool,
}

/// One table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoryTable {
    /// The measurement, with the settings.
    pub title: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Cells, as many in each row as there are columns.
    pub rows: Vec<Vec<String>>,
}

impl StoryTable {
    pub(crate) fn new(title: &str, columns: &[impl ToString]) -> StoryTable {
        StoryTable {
            title: title.to_owned(),
            columns: columns.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.columns.len(), "{}", self.title);
        self.rows.push(row);
    }
}

/// Characters of a line of prose.
const LINE: usize = 100;

impl Story {
    /// The story as it is printed.
    pub fn render(&self) -> String {
        let mut out = format!("Seed {}: {}\n", self.seed, self.title);
        for table in &self.tables {
            let mut drawn = comfy_table::Table::new();
            drawn.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
            drawn.set_header(&table.columns);
            for row in &table.rows {
                drawn.add_row(row);
            }
            for column in drawn.column_iter_mut().skip(1) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
            out.push_str(&format!("\n{}\n{drawn}\n", table.title));
        }
        out.push('\n');
        for paragraph in std::iter::once(&self.lesson).chain(&self.notes) {
            out.push_str(&cloverleaf_page::wrap(paragraph, LINE).join("\n"));
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_read_as_it_is_printed() {
        let mut table = StoryTable::new("How fast", &["in flight", "here", "the seed"]);
        table.add(vec!["1".into(), "99/s".into(), "30/s (line 46)".into()]);
        let story = Story {
            seed: "000".into(),
            title: "Producers".into(),
            tables: vec![table],
            lesson: "word ".repeat(60),
            ..Story::default()
        };
        let text = story.render();
        assert!(
            text.starts_with("Seed 000: Producers\n\nHow fast\n"),
            "{text}"
        );
        assert!(text.contains("30/s (line 46)"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= LINE),
            "{text}"
        );
        assert_eq!(text.matches("word").count(), 60);
    }

    #[test]
    fn numbers_are_those_of_the_seeds() {
        use clap::ValueEnum;
        for story in StoryName::value_variants() {
            let value = story.to_possible_value();
            assert_eq!(value.as_ref().map(|it| it.get_name()), Some(story.number()));
        }
    }
}
