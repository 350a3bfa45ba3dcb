//! A finding in about ten lines, with the most important facts. Two of them fit a terminal of 24
//! lines.

use super::{LABEL_COLUMNS, Page, bounded_gain, capitalized, clipped, sentences};
use super::{setting, setting_head};
use crate::advice::{Change, How};
use crate::client::printable;
use crate::finding::Finding;

/// Lines of a finding at 80 columns, if it is the only one, and if there are others. The cause, the
/// change and the gain take the lines that they need. The other parts share the rest, with at least
/// one line each.
const LINES_ALONE: usize = 12;
const LINES_OF_MANY: usize = 9;

/// Maximum lines of the costs, and of the numbers.
const REST_LINES_MAX: usize = 2;

/// Lines of code or text that explain the change.
const CODE_LINES: usize = 1;

impl Page {
    pub(super) fn short(&mut self, finding: &Finding, is_alone: bool) {
        let lines_max = if is_alone { LINES_ALONE } else { LINES_OF_MANY };
        let begin = self.text.len();
        let place = finding.place().map(|place| format!(", on {place}"));
        self.head(finding, &(finding.who() + &place.unwrap_or_default()));
        self.plain(&finding.cause);
        let gain = self.short_gain(finding);
        let gain_lines = self.lines(&gain).len();
        let change = finding.changes.first();
        match change {
            Some(change) => self.emphasized("change", &setting_head(change)),
            None => self.paragraph("change", "none is known for this client"),
        }
        let with = self.needed_too(finding, if is_alone { REST_LINES_MAX } else { 1 });
        let used = self.text[begin..].lines().count() + with.len() + gain_lines;
        let mut left = lines_max.saturating_sub(used);
        if let Some(change) = change
            && left >= REST_LINES_MAX + usize::from(change.value.is_some())
        {
            let code = self.code_or_words(change);
            left = left.saturating_sub(code.len());
            self.rows("", &code);
        }
        self.rows("with", &with);
        self.paragraph("gain", &gain);

        if let Some(change) = change {
            let costs_max = left.saturating_sub(REST_LINES_MAX).min(REST_LINES_MAX);
            let costs = sentences(&change.cost, self.beside_label(), costs_max);
            left = left.saturating_sub(costs.len());
            self.rows("costs", &costs);
        }
        let seen = self.telling(finding, left.clamp(1, REST_LINES_MAX));
        self.rows("seen", &seen);
    }

    /// Columns beside a label.
    fn beside_label(&self) -> usize {
        self.width - LABEL_COLUMNS - 2
    }

    /// The settings that the first change needs in addition.
    fn needed_too(&self, finding: &Finding, lines_max: usize) -> Vec<String> {
        let others = finding.changes.iter().skip(1);
        let needed = others.take_while(|change| change.how == How::With);
        let needed: Vec<String> = needed.map(setting).collect();
        if needed.is_empty() {
            Vec::new()
        } else {
            clipped(&needed.join("; "), self.beside_label(), lines_max)
        }
    }

    /// A line of code, if it fits; otherwise, for a change that is no setting, the words.
    fn code_or_words(&self, change: &Change) -> Vec<String> {
        let fits = |it: &&String| it.chars().count() <= self.beside_label() && !it.contains('\n');
        match change.code.first().filter(fits) {
            Some(code) => vec![printable(code, self.width)],
            None if change.value.is_none() => {
                sentences(&change.say, self.beside_label(), CODE_LINES)
            }
            None => Vec::new(),
        }
    }

    /// The expected gain and its arithmetic; only the arithmetic, which contains the gain, if that
    /// saves a line.
    fn short_gain(&self, finding: &Finding) -> String {
        let arithmetic = &finding.prediction.arithmetic;
        let whole = format!("{}: {arithmetic}.", bounded_gain(finding));
        let alone = capitalized(&format!("{arithmetic}."));
        if self.lines(&whole).len() > self.lines(&alone).len() {
            alone
        } else {
            whole
        }
    }

    /// The first numbers of the evidence: as many as fit, and at least one.
    fn telling(&self, finding: &Finding, lines_max: usize) -> Vec<String> {
        let mut text = String::new();
        for fact in &finding.evidence {
            let more = match text.as_str() {
                "" => fact.text.clone(),
                text => format!("{text}; {}", fact.text),
            };
            if !text.is_empty() && self.lines(&more).len() > lines_max {
                break;
            }
            text = more;
        }
        clipped(&(text + "."), self.beside_label(), lines_max)
    }
}
