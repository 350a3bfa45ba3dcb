//! The structure of a report's page: which measurements share a picture.

use crate::figures;
use crate::outcome::{Kind, Report, Row, Subject, Variation};
use crate::words;

/// Number of colours in the style sheet. Further subjects reuse them.
const COLOURS: usize = 8;
/// Maximum of pictures of one sort in a section.
const DRAWN_MAX: usize = 4;

/// The whole report.
pub(super) struct ReportView<'r> {
    /// Subjects in the order of their first measurement.
    pub(super) subjects: Vec<&'r Subject>,
    pub(super) sections: Vec<ReportSection<'r>>,
}

/// Measurements of one kind that differ in the same settings.
pub(super) struct ReportSection<'r> {
    pub(super) kind: Kind,
    /// The settings that differ.
    pub(super) varies: Vec<&'r str>,
    pub(super) groups: Vec<SettingsGroup<'r>>,
}

/// Measurements with the same settings, one for each subject.
pub(super) struct SettingsGroup<'r> {
    /// The difference from other groups; empty: there is only one.
    pub(super) name: String,
    /// The values of the settings that make up the name.
    pub(super) variations: &'r [Variation],
    /// Each row with the index of its subject.
    pub(super) rows: Vec<(usize, &'r Row)>,
}

impl<'r> ReportView<'r> {
    pub(super) fn new(report: &'r Report) -> ReportView<'r> {
        let mut view = ReportView {
            subjects: Vec::new(),
            sections: Vec::new(),
        };
        for row in &report.rows {
            let Some(first) = row.runs.first() else {
                continue;
            };
            let subject = view.subject(&first.subject);
            let varies: Vec<&str> = row.variations.iter().map(|it| it.name.as_str()).collect();
            let section = view.section(first.kind, varies);
            let name = words::variations(row);
            let group = find_or_add(
                &mut section.groups,
                |group| group.name == name,
                || SettingsGroup {
                    name: name.clone(),
                    variations: &row.variations,
                    rows: Vec::new(),
                },
            );
            section.groups[group].rows.push((subject, row));
        }
        view
    }

    fn subject(&mut self, subject: &'r Subject) -> usize {
        find_or_add(
            &mut self.subjects,
            |it| it.label == subject.label,
            || subject,
        )
    }

    fn section(&mut self, kind: Kind, varies: Vec<&'r str>) -> &mut ReportSection<'r> {
        let is_it = |section: &ReportSection<'_>| section.kind == kind && section.varies == varies;
        let at = find_or_add(&mut self.sections, is_it, || ReportSection {
            kind,
            varies: varies.clone(),
            groups: Vec::new(),
        });
        &mut self.sections[at]
    }

    /// All rows, each with the index of its subject, in the order of the page.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &'r Row)> + '_ {
        self.sections.iter().flat_map(ReportSection::rows)
    }
}

impl<'r> ReportSection<'r> {
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &'r Row)> + '_ {
        self.groups
            .iter()
            .flat_map(|group| group.rows.iter().copied())
    }

    /// Whether the section has only one measurement.
    pub(super) fn is_single(&self) -> bool {
        self.rows().count() <= 1
    }

    /// Whether lines are drawn instead of bars: one setting varies, and has many values.
    pub(super) fn is_curve(&self) -> bool {
        self.varies.len() == 1 && self.groups.len() > DRAWN_MAX
    }

    /// The groups that have pictures of their own: all, or [`DRAWN_MAX`] at even distances.
    pub(super) fn drawn(&self) -> Vec<&SettingsGroup<'r>> {
        let has_rate = |(_, row): &(usize, &Row)| row.median(figures::rate).is_some();
        let has_any = |group: &&SettingsGroup<'_>| group.rows.iter().any(has_rate);
        let groups: Vec<_> = self.groups.iter().filter(has_any).collect();
        if groups.len() <= DRAWN_MAX {
            groups
        } else {
            (0..DRAWN_MAX)
                .map(|n| groups[n * (groups.len() - 1) / (DRAWN_MAX - 1)])
                .collect()
        }
    }

    /// The names of each group below an axis: the value of the last setting, and the other
    /// settings, which are drawn once for neighbouring groups that share them.
    pub(super) fn axis_names(&self) -> Vec<(String, Option<String>)> {
        let names = self.groups.iter().map(|group| match group.variations {
            [rest @ .., last] if !rest.is_empty() => {
                let rest: Vec<_> = rest.iter().map(words::variation).collect();
                (words::whole_or_number(last.value), Some(rest.join(", ")))
            }
            _ => (group.name.clone(), None),
        });
        names.collect()
    }

    /// Whether some of its measurements have a schedule that does not wait for the broker (open
    /// loop).
    pub(super) fn is_open(&self) -> bool {
        let mut runs = self.rows().flat_map(|(_, row)| &row.runs);
        runs.any(|run| run.plan.arrivals != crate::schedule::Arrivals::Closed)
    }

    /// The settings that all measurements share, in one line.
    pub(super) fn settings(&self) -> String {
        let runs = self.rows().flat_map(|(_, row)| &row.runs);
        let words = words::shared_settings(runs).into_iter();
        let words = words.map(|(name, value)| match name {
            "arrivals" => value,
            name => format!("{name} {value}"),
        });
        let mut words: Vec<_> = words.collect();
        let runs = self.rows().map(|(_, row)| row.runs.len()).max();
        if let Some(runs) = runs.filter(|runs| *runs > 1) {
            words.push(format!("{runs} runs"));
        }
        words.join(" · ")
    }

    pub(super) fn has_several_runs(&self) -> bool {
        self.rows().any(|(_, row)| row.runs.len() > 1)
    }
}

/// The index of an element in a list. If the list does not have it, it is appended.
fn find_or_add<T>(list: &mut Vec<T>, is_it: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    list.iter().position(is_it).unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    })
}

/// The label of a row's subject, of at most `letters_max` letters.
pub(super) fn label(row: &Row, letters_max: usize) -> String {
    let label = row.runs.first().map(|run| run.subject.label.as_str());
    shorten(label.unwrap_or_default(), letters_max)
}

/// The CSS class of a subject's colour.
pub(super) fn colour(subject: usize) -> String {
    format!("s{}", subject % COLOURS)
}

/// Shortens a text to `letters_max` letters by leaving out the middle, because names differ at
/// their ends.
pub(super) fn shorten(text: &str, letters_max: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= letters_max {
        return text.to_owned();
    }
    let head = (letters_max - 1) / 2;
    let tail = letters_max - 1 - head;
    let (head, tail) = (&letters[..head], &letters[letters.len() - tail..]);
    head.iter().chain(['…'].iter()).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_long_name_stay() {
        assert_eq!(shorten("short", 5), "short");
        assert_eq!(shorten("kafka://one.example:9092", 11), "kafka…:9092");
    }
}
