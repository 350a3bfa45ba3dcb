//! Findings as text: a few lines each or all details, as wide as the terminal.

mod short;

use crate::advice::{Change, How};
use crate::client::{harmless, printable};
use crate::finding::{Bound, Finding, Measure, Severity};
use crate::units::{counted, number, time, times};
use crate::{Confidence, Report, Rule};

/// Columns of the labels on the left.
const LABEL_COLUMNS: usize = 8;

/// Minimum columns of a line, however narrow the terminal is.
const WIDTH_MIN: usize = 40;

/// Maximum changes shown; the others are in the JSON only.
const CHANGES_SHOWN: usize = 4;

/// Maximum lines for the client's name, which the client chooses.
const WHO_LINES_MAX: usize = 2;

const BOLD: &str = "1";
const DIM: &str = "2";

/// How much of a finding to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Cause, first change, gain, cost and the most important numbers: about ten lines.
    Short {
        /// The command that prints all details.
        more: &'static str,
    },
    /// Everything except the sources.
    Full,
}

/// A finding in one line, for a log.
pub fn one_line(finding: &Finding) -> String {
    let mut line = format!("{}: {}: {}", finding.rule, finding.who(), finding.cause);
    if let Some(change) = finding.changes.first() {
        line.push_str(&format!(" Change {}", setting(change)));
        line.push_str(&format!(": {} to expect.", bounded_gain(finding)));
    } else {
        line.push_str(&format!(" {} to gain.", bounded_gain(finding)));
    }
    printable(&line, 1000)
}

/// All findings of a report, `width` columns wide; with colours or without.
pub fn findings_text(report: &Report, width: usize, with_colours: bool, detail: Detail) -> String {
    let mut page = Page {
        text: String::new(),
        width: width.max(WIDTH_MIN),
        with_colours,
    };
    let watched = time(report.watched_us as f64);
    let connections = counted(report.connections as f64, "connection", "connections");
    // Also shows how many were opened, because a program that has ended has closed its connections.
    let connections = match report.connections_opened {
        opened if opened > report.connections => {
            let opened = number(opened as f64);
            format!("{connections} now, {opened} since the start;")
        }
        _ => format!("{connections},"),
    };
    if report.findings.is_empty() {
        let text = format!("No findings: {connections} watched for {watched}.");
        page.plain(&text);
        return page.text;
    }
    for finding in &report.findings {
        match detail {
            Detail::Short { .. } => page.short(finding, report.findings.len() == 1),
            Detail::Full => page.finding(finding),
        }
        page.text.push('\n');
    }
    let count = report.findings.len() as u64 + report.more;
    let noun = if count == 1 { "finding" } else { "findings" };
    let more = match report.more {
        0 => String::new(),
        more => format!(", {more} of them not shown"),
    };
    let text = format!("{count} {noun}{more}; {connections} watched for {watched}.");
    page.plain(&text);
    if let Detail::Short { more } = detail {
        let first = report.findings.first().map(|finding| finding.rule);
        let is_one = |rule: Rule| report.findings.iter().all(|it| it.rule == rule);
        let rule = match first.filter(|rule| is_one(*rule)) {
            Some(rule) => rule.name(),
            None => "RULE",
        };
        page.plain(&format!("More: {more}; cloverleaf doctor explain {rule}"));
    }
    page.text
}

struct Page {
    text: String,
    width: usize,
    with_colours: bool,
}

impl Page {
    fn finding(&mut self, finding: &Finding) {
        self.head(finding, &finding.who());
        self.plain(&finding.cause);
        self.text.push('\n');
        if let Some(place) = finding.place() {
            self.paragraph("at", &place);
        }
        let mut label = "seen";
        for fact in &finding.evidence {
            self.paragraph(label, &format!("{},", fact.text));
            label = "";
        }
        let window = format!("within {}", time(finding.window_us as f64));
        let window = match finding.connections {
            1 => format!("{window}."),
            // Hoarding concerns all connections of the client together.
            count if finding.rule == Rule::Hoarding => {
                format!("{window}, {count} connections together.")
            }
            count => format!("{window}, on the worst of {count} connections."),
        };
        self.paragraph(label, &window);
        self.paragraph("gain", &format!("{}.", prediction(finding)));
        self.paragraph(
            "",
            &capitalized(&format!("{}.", finding.prediction.arithmetic)),
        );
        for (at, change) in finding.changes.iter().take(CHANGES_SHOWN).enumerate() {
            self.change(change, at == 0);
        }
        if finding.changes.is_empty() {
            self.paragraph(
                "change",
                "No advice for this client; see the page of the rule.",
            );
        }
        let mut label = "unseen";
        for unseen in &finding.unseen {
            self.paragraph(label, &capitalized(&format!("{unseen}.")));
            label = "";
        }
        let explain = format!("cloverleaf doctor explain {}", finding.rule);
        self.paragraph("more", &format!("{explain}   ({})", finding.id));
    }

    /// Rule, gain and client, on one line if they fit.
    fn head(&mut self, finding: &Finding, who: &str) {
        let title = self.title(finding);
        if title.chars().count() + 2 + who.chars().count() <= self.width {
            self.text.push_str(&format!("  {who}\n"));
            return;
        }
        self.text.push('\n');
        for line in clipped(who, self.width - 2, WHO_LINES_MAX) {
            self.text.push_str(&format!("  {line}\n"));
        }
    }

    /// Rule, gain, severity, confidence. Returns the text without colours.
    fn title(&mut self, finding: &Finding) -> String {
        let colour = match finding.severity {
            Severity::High => "1;31",
            Severity::Medium => "1;33",
            Severity::Low => "1;36",
        };
        let rule = finding.rule.name().to_uppercase();
        self.coloured(colour, &rule);
        let severity = finding.severity.name();
        let sure = match finding.confidence {
            Confidence::High => "",
            Confidence::Medium => ", likely",
        };
        let ended = if finding.is_active { "" } else { ", over" };
        let rest = format!("  {}, {severity} severity{sure}{ended}", times_of(finding));
        let rest = printable(&rest, self.width.saturating_sub(rule.len() + 1));
        self.text.push_str(&rest);
        rule + &rest
    }

    fn change(&mut self, change: &Change, is_first: bool) {
        let label = match change.how {
            _ if is_first => "change",
            How::Do => "then",
            How::With => "with",
            How::Or => "or",
        };
        self.emphasized(label, &setting_head(change));
        self.paragraph("", &change.say);
        for code in &change.code {
            self.code(code);
        }
        self.paragraph("", &format!("Costs: {}", change.cost));
    }

    /// Lines of code are not wrapped, because they are copied.
    fn code(&mut self, code: &str) {
        self.indent("");
        self.text.push_str("    ");
        self.text.push_str(&printable(code, 1000));
        self.text.push('\n');
    }

    /// Text without a label.
    fn plain(&mut self, text: &str) {
        for line in wrap(text, self.width - 2) {
            self.text.push_str("  ");
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }

    fn paragraph(&mut self, label: &str, text: &str) {
        self.labelled(label, text, None);
    }

    fn emphasized(&mut self, label: &str, text: &str) {
        self.labelled(label, text, Some(BOLD));
    }

    fn labelled(&mut self, label: &str, text: &str, colour: Option<&str>) {
        let mut label = label;
        for line in self.lines(text) {
            self.indent(label);
            label = "";
            match colour {
                Some(colour) => self.coloured(colour, &line),
                None => self.text.push_str(&line),
            }
            self.text.push('\n');
        }
    }

    /// Lines without wrapping.
    fn rows(&mut self, label: &str, lines: &[String]) {
        for (at, line) in lines.iter().enumerate() {
            self.indent(if at == 0 { label } else { "" });
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    /// A text, wrapped to the columns beside a label.
    fn lines(&self, text: &str) -> Vec<String> {
        wrap(text, self.width - LABEL_COLUMNS - 2)
    }

    fn indent(&mut self, label: &str) {
        let padding = LABEL_COLUMNS - label.len().min(LABEL_COLUMNS);
        self.text.push_str("  ");
        self.coloured(DIM, label);
        self.text.push_str(&" ".repeat(padding));
    }

    fn coloured(&mut self, colour: &str, text: &str) {
        if self.with_colours && !text.is_empty() {
            self.text
                .push_str(&format!("\u{1b}[{colour}m{text}\u{1b}[0m"));
        } else {
            self.text.push_str(text);
        }
    }
}

/// Wraps a text to this many columns. It may contain names that clients choose, so control
/// characters are replaced.
fn wrap(text: &str, columns_max: usize) -> Vec<String> {
    let text: String = text.chars().map(harmless).collect();
    cloverleaf_page::wrap(&text, columns_max)
}

/// The first lines of a text, with an ellipsis if more follow.
fn clipped(text: &str, columns_max: usize, lines_max: usize) -> Vec<String> {
    let mut lines = wrap(text, columns_max);
    if lines.len() > lines_max {
        lines.truncate(lines_max);
        if let Some(last) = lines.last_mut() {
            while last.chars().count() + 2 > columns_max {
                match last.rfind(' ') {
                    Some(space) => last.truncate(space),
                    None => *last = last.chars().take(columns_max.saturating_sub(2)).collect(),
                }
            }
            last.push_str(" …");
        }
    }
    lines
}

/// As many sentences of a text as fit the lines; of the first sentence at least one line.
fn sentences(text: &str, columns_max: usize, lines_max: usize) -> Vec<String> {
    let ends = text.match_indices([';', '.']).map(|(at, _)| at);
    let ends = ends.filter(|at| text[at + 1..].starts_with(' ') || at + 1 == text.len());
    let whole = ends.map(|at| format!("{}.", &text[..at]));
    let whole = whole.map(|part| wrap(&part, columns_max));
    let fitting = whole.take_while(|lines| lines.len() <= lines_max.max(1));
    fitting
        .last()
        .unwrap_or_else(|| clipped(text, columns_max, lines_max.max(1)))
}

/// A setting with its value, which replaces an ellipsis in the setting, if there is one.
fn setting(change: &Change) -> String {
    let unit = change.unit.as_deref().unwrap_or_default();
    match &change.value {
        Some(value) if change.setting.contains('…') => change.setting.replacen('…', value, 1),
        Some(value) => format!("{} = {value} {unit}", change.setting)
            .trim_end()
            .to_owned(),
        None => change.setting.clone(),
    }
}

/// The setting with its value, and its present or default value.
fn setting_head(change: &Change) -> String {
    let mut head = setting(change);
    if change.is_default {
        head.push_str("   (the default of this version: the program sets it otherwise)");
    } else if let Some(now) = &change.now {
        head.push_str(&format!("   (now {now})"));
    } else if let Some(default) = &change.default {
        head.push_str(&format!("   (default in this version: {default})"));
    }
    head
}

/// The gain as a factor, with its bound.
fn times_of(finding: &Finding) -> String {
    let prediction = &finding.prediction;
    format!("{}{}", prediction.bound.words(), times(prediction.gain))
}

fn gain(finding: &Finding) -> String {
    let (now, after) = (finding.prediction.now, finding.prediction.after);
    match finding.prediction.measure {
        Measure::LatencyUs => format!("{} instead of {}", time(after), time(now)),
        Measure::Cost => format!(
            "costs the broker {} instead of {}",
            number(after),
            number(now)
        ),
        _ => format!("{} messages/s instead of {}", number(after), number(now)),
    }
}

/// The gain as a sentence. If the gain is a minimum, a time that falls is a maximum.
fn bounded_gain(finding: &Finding) -> String {
    let is_time = matches!(
        finding.prediction.measure,
        Measure::LatencyUs | Measure::Cost
    );
    let words = match finding.prediction.bound {
        Bound::AtLeast if is_time => Bound::AtMost.words(),
        Bound::AtMost if is_time => Bound::AtLeast.words(),
        bound => bound.words(),
    };
    format!("{words}{}", gain(finding))
}

fn prediction(finding: &Finding) -> String {
    let of = match finding.prediction.measure {
        Measure::ConnectionMessagesPerSecond => " on this connection",
        Measure::SubscriptionMessagesPerSecond => " of the subscription while it has work",
        Measure::LatencyUs => "",
        Measure::Cost => " for each message, of which one of many in a request costs 1",
    };
    format!("{}: {}{of}", times_of(finding), gain(finding))
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}
