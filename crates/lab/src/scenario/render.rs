//! A scenario as it is printed.

use cloverleaf_bench::words;
use cloverleaf_doctor::{Bound, Detail, Finding, Report, findings_text};

use super::runner::ScenarioReport;
use crate::command::OutputPage;

impl ScenarioReport {
    /// In words, with the finding as the doctor prints it.
    pub(crate) fn render(&self, page: &OutputPage) -> String {
        let mut out = format!(
            "{}: {}\nThe broker is {}\n\n",
            self.story, self.title, self.distance
        );
        if let Some(finding) = &self.finding {
            out.push_str(&finding_text(finding, page));
        }
        if let Some(watched_s) = self.watched_s {
            let what = if self.problems.is_empty() {
                "No findings, as it should be"
            } else {
                "What was found in health is below"
            };
            out.push_str(&format!("{what}: watched for {watched_s:.0} s.\n"));
        }
        if let Some(found_s) = self.found_s {
            out.push_str(&format!("Found after {found_s:.1} s.\n"));
        }
        if let Some(change) = &self.change {
            out.push_str(&format!("Changed: {change}\n"));
        }
        if self.after > 0.0 {
            let shown = |value: f64| {
                if self.unit.starts_with("ms") {
                    words::number(value / 1e3)
                } else {
                    words::number(value)
                }
            };
            out.push_str(&format!(
                "  before {}, predicted {}{}, after {} {}: {:.2} of the prediction\n",
                shown(self.before),
                match self.bound {
                    Bound::Exact => "",
                    Bound::AtLeast => "no worse than ",
                    Bound::AtMost => "no better than ",
                },
                shown(self.predicted),
                shown(self.after),
                self.unit,
                self.factor(),
            ));
        }
        if !self.afterwards.is_empty() {
            let rules = self.afterwards.join(", ");
            out.push_str(&format!("What the doctor finds next: {rules}\n"));
        }
        for problem in &self.problems {
            out.push_str(&format!("NOT as it should be: {problem}\n"));
        }
        out
    }
}

/// The text of a finding without the last line of a report.
fn finding_text(finding: &Finding, page: &OutputPage) -> String {
    let report = Report {
        unix_us: finding.last_seen_unix_us,
        watched_us: 0,
        connections: 1,
        connections_opened: 1,
        findings: vec![finding.clone()],
        more: 0,
    };
    let text = findings_text(&report, page.width, page.with_colours, Detail::Full);
    match text.trim_end().rsplit_once('\n') {
        Some((finding, _)) => format!("{}\n\n", finding.trim_end()),
        None => text,
    }
}
