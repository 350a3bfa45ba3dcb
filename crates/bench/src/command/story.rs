//! `cloverleaf bench story NNN`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::distance::LinkArgs;
use super::output::{print, write};
use super::{BenchError, Session, values};
use crate::plan::Amount;
use crate::proxy::Link;
use crate::stories::{Story, StoryName, StoryOptions, StoryRun};
use crate::url::Url;

/// The distance of seed 000 where no other is asked for: its line 26.
const RTT: std::time::Duration = std::time::Duration::from_millis(10);

/// Which story, and how.
#[derive(Debug, Clone, Args)]
pub struct StoryArgs {
    /// The seed whose experiment is played
    #[arg(value_enum, value_name = "SEED")]
    pub seed: StoryName,
    /// As long as the seed's: 000 takes an hour and a half, the others some minutes
    #[arg(long)]
    pub full: bool,
    /// Let each measurement take so long [default: a second or two]
    #[arg(long, value_name = "TIME", value_parser = values::seconds, conflicts_with = "full")]
    pub duration: Option<f64>,
    /// Let each measurement be so many messages
    #[arg(long, value_name = "N", value_parser = values::count)]
    #[arg(conflicts_with_all = ["full", "duration"])]
    pub count: Option<u64>,
    /// The brokers [default: embedded ones]. 000 and 002 want nsq:// or kafka://, 001 and 004
    /// nsq://, 003 amqp://
    #[arg(long = "url", value_name = "URL")]
    pub urls: Vec<Url>,
    /// The distance [default for 000: --rtt 10ms]
    #[command(flatten)]
    pub link: LinkArgs,
    /// Write the story as JSON into this file, or instead of the tables if none is named
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Show nothing while it is played
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

impl StoryArgs {
    /// Plays it and prints it. `false`: something was lost, out of order or cut short.
    ///
    /// # Errors
    /// It cannot be played, or its figures cannot be written.
    pub(super) fn run(&self, session: &mut Session<'_>) -> Result<bool, BenchError> {
        let story = self.play(session)?;
        let is_json_printed = self.json.as_deref() == Some(Path::new("-"));
        if let Some(path) = &self.json {
            // Strings and lists alone.
            let mut text = serde_json::to_string_pretty(&story).unwrap_or_default();
            text.push('\n');
            if is_json_printed {
                print(&text)?
            } else {
                write(path, text.as_bytes())?
            }
        }
        if !is_json_printed {
            print(&story.render())?;
        }
        Ok(story.is_good)
    }

    /// The distance.
    fn link(&self) -> Link {
        let link = self.link.link();
        if self.seed == StoryName::Producers && link.rtt.is_zero() {
            Link { rtt: RTT, ..link }
        } else {
            link
        }
    }

    /// Whether the kernel may have to make the distance.
    pub(super) fn may_be_kernel(&self) -> bool {
        self.link.may_be_kernel(&self.link(), &self.urls, false)
    }

    /// Plays it.
    ///
    /// # Errors
    /// It cannot be played.
    pub fn play(&self, session: &mut Session<'_>) -> Result<Story, BenchError> {
        // Of some the clients are no drivers, and connect by themselves.
        let passes_proxy = matches!(self.seed, StoryName::Nagle | StoryName::Pipelines);
        session.go_far(self.link(), self.link.rtt_by, &self.urls, passes_proxy)?;
        let link = *session.link();
        let how = StoryOptions {
            is_full: self.full,
            amount: match self.count {
                Some(count) => Some(Amount::Messages(count)),
                None => self.duration.map(Amount::Seconds),
            },
            is_quiet: self.quiet,
        };
        let mut story = StoryRun::new(session, self.seed, (self.urls.clone(), link), how).play()?;
        if session.stop().is_set() {
            story.is_good = false;
            let note = "CUT SHORT: the story was stopped before its end; what is missing in its \
                        tables was not measured.";
            story.notes.push(note.to_owned());
        }
        let report = session.report("");
        let here = &report.conditions;
        story.notes.push(format!(
            "Here: {}, {} cores, {}, bench {}.",
            here.processor, here.cores, here.kernel, here.version
        ));
        story.notes.extend(report.notes);
        Ok(story)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;
    use crate::command::{EmbedOptions, EmbeddedBroker};
    use crate::driver::Stop;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        story: StoryArgs,
    }

    fn no_broker(_: &EmbedOptions) -> Result<EmbeddedBroker, String> {
        Err("not here".to_owned())
    }

    #[test]
    fn a_story_that_is_stopped_says_so() {
        let stop = Stop::default();
        stop.set();
        let mut session = Session::new(&no_broker, stop, Vec::new());
        let line = Line::try_parse_from(["story", "001", "-q", "--url=nsq://127.0.0.1:1"]);
        let story = line.unwrap().story.play(&mut session).unwrap();
        assert!(!story.is_good, "the exit status is 1");
        assert!(story.notes[0].starts_with("CUT SHORT"), "{:?}", story.notes);
    }
}
