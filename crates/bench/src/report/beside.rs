//! Brokers side by side for the terminal: a table for each load, with ratios to the first broker.

use comfy_table::Table;

use super::view::{ReportSection, ReportView, SettingsGroup};
use crate::figures::{self, Summary, Times};
use crate::outcome::{Kind, Report, Row};
use crate::schedule::Arrivals;
use crate::words::{self, NOTHING};
use crate::{notes, table};

/// A line of the table: one figure of all brokers.
struct ComparedFigure {
    name: String,
    figure: Summary,
    text: fn(f64) -> String,
}

/// The whole comparison, at most `width` characters wide.
pub fn side_by_side(report: &Report, width: u16) -> String {
    let view = ReportView::new(report);
    let mut out = format!("{}\n{}\n", table::title(report), table::conditions(report));
    let mut overlaps = false;
    for section in &view.sections {
        for group in &section.groups {
            out.push('\n');
            out.push_str(&heading(section, group));
            let (table, has_overlap) = group_table(&view, section, group, width);
            out.push_str(&format!("\n{table}\n"));
            overlaps |= has_overlap;
        }
    }
    out.push_str("\n× is the ratio to the first.");
    if overlaps {
        out.push_str(" ≈: their runs overlap, so that the difference may be chance.");
    }
    if report.rows.iter().all(|row| row.runs.len() < 2) {
        out.push_str(" One run each: how much a figure varies is not known; try --runs 5.");
    }
    out.push('\n');
    for note in notes::of(report) {
        out.push_str(&note);
        out.push('\n');
    }
    out
}

fn heading(section: &ReportSection<'_>, group: &SettingsGroup<'_>) -> String {
    let kind = words::kind(section.kind);
    if group.name.is_empty() {
        format!("{kind} · {}", section.settings())
    } else {
        format!("{kind} · {} · {}", group.name, section.settings())
    }
}

/// The table, and whether runs of two brokers overlap.
fn group_table(
    view: &ReportView<'_>,
    section: &ReportSection<'_>,
    group: &SettingsGroup<'_>,
    width: u16,
) -> (Table, bool) {
    let labels = group.rows.iter().map(|(subject, _)| {
        let subject = view.subjects[*subject];
        format!("{}\n{}", subject.label, words::class(subject))
    });
    let headings = std::iter::once("\ndurability".to_owned()).chain(labels);
    let mut table = table::new_table(headings.collect(), 1, width);
    let mut overlaps = false;
    for line in lines(section.kind, is_open(group)) {
        let has_any = |(_, row): &(usize, &Row)| line.figure.of(row).is_some();
        if !group.rows.iter().any(has_any) {
            continue;
        }
        let mut cells = vec![line.name.clone()];
        for (_, row) in &group.rows {
            let (text, overlap) = cell(&line, group.rows[0].1, row);
            cells.push(text);
            overlaps |= overlap;
        }
        table.add_row(cells);
    }
    let checks = group.rows.iter().map(|(_, row)| match table::found(row) {
        Some(found) => found.join(" · "),
        None => "not checked".to_owned(),
    });
    table.add_row(std::iter::once("lost · twice · out of order".to_owned()).chain(checks));
    (table, overlaps)
}

/// Whether messages were sent on a schedule (open loop).
fn is_open(group: &SettingsGroup<'_>) -> bool {
    let mut runs = group.rows.iter().flat_map(|(_, row)| &row.runs);
    runs.any(|run| run.plan.arrivals != Arrivals::Closed)
}

fn lines(kind: Kind, is_open: bool) -> Vec<ComparedFigure> {
    let micros = |ns: f64| words::number(ns / 1e3);
    let megabytes = |rate: f64| words::number(rate / 1e6);
    let line = |name: &str, figure, text| ComparedFigure {
        name: name.to_owned(),
        figure,
        text,
    };
    let mut lines = vec![
        line("messages/s", Summary::median(figures::rate), words::number),
        line("MB/s", Summary::median(figures::byte_rate), megabytes),
    ];
    let clocks: [(&str, Times); 2] = [
        ("response", figures::response),
        ("service", figures::service),
    ];
    let clocks = match (kind, is_open) {
        // The times of a topic that was filled before are ages, not latencies.
        (Kind::Consume, _) => &clocks[..0],
        // In a closed loop, response time and service time are the same.
        (Kind::Produce | Kind::EndToEnd, false) => &clocks[1..],
        (Kind::Produce | Kind::EndToEnd, true) => &clocks[..],
    };
    for (clock, times) in clocks {
        for (name, share) in table::QUANTILES.into_iter().chain([("max", 1.0)]) {
            let figure = Summary::Share(*times, share);
            lines.push(line(&format!("{clock} {name}"), figure, words::time));
        }
    }
    let broker = Summary::median(figures::broker_cpu_ns);
    lines.push(line("broker CPU, µs/message", broker, micros));
    let client = Summary::median(figures::client_cpu_ns);
    lines.push(line("generator CPU, µs/message", client, micros));
    let memory = Summary::median(figures::memory_bytes);
    lines.push(line("broker memory", memory, words::memory));
    lines
}

/// The figure with its ratio to the first broker's, and the spread below it. Returns also whether
/// the spreads of the two brokers overlap.
fn cell(line: &ComparedFigure, first: &Row, row: &Row) -> (String, bool) {
    let Some(value) = line.figure.of(row) else {
        let is_failed = row.median(figures::rate).is_none();
        return (if is_failed { "failed" } else { NOTHING }.to_owned(), false);
    };
    let mut text = (line.text)(value);
    let spread = |row: &Row| line.figure.spread(row);
    let mut overlaps = false;
    let base = line.figure.of(first).filter(|base| *base > 0.0);
    if let Some(base) = base.filter(|_| !std::ptr::eq(first, row)) {
        overlaps = spread(first)
            .zip(spread(row))
            .is_some_and(|(one, two)| one.0 <= two.1 && two.0 <= one.1);
        let about = if overlaps { "≈ " } else { "" };
        text = format!("{about}×{}  {text}", words::number(value / base));
    }
    if let Some((least, most)) = spread(row) {
        text.push_str(&format!("\n{} – {}", (line.text)(least), (line.text)(most)));
    }
    (text, overlaps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{outcome, report};

    fn shown(is_open: bool) -> String {
        let rows = ["one", "two"].map(|label| {
            let runs = [100, 300, 200].map(|slowest_ms| {
                let mut run = outcome(label, slowest_ms);
                if !is_open {
                    run.plan.arrivals = Arrivals::Closed;
                }
                run
            });
            Row {
                variations: Vec::new(),
                runs: runs.to_vec(),
            }
        });
        side_by_side(&report(rows.to_vec()), 160).replace('\u{a0}', " ")
    }

    #[test]
    fn both_latencies_are_named_with_all_percentiles() {
        let table = shown(true);
        for line in [
            "response p50",
            "response p75",
            "response p95",
            "response p99",
            "response max",
            "service p50",
            "service max",
        ] {
            let of = |text: &&str| text.trim_start().starts_with(&format!("{line} "));
            assert_eq!(table.lines().filter(of).count(), 1, "{line} in\n{table}");
        }
        // The maximum of all runs, and below it the range of the runs' maxima.
        let mut lines = table
            .lines()
            .skip_while(|line| !line.contains("response max"));
        assert!(
            lines.next().is_some_and(|line| line.contains("300 ms")),
            "{table}"
        );
        let spread = "100 ms – 300 ms";
        assert!(
            lines.next().is_some_and(|line| line.contains(spread)),
            "{table}"
        );
        assert!(
            !table.contains("p99.9"),
            "there are 3,000 messages:\n{table}"
        );
        let table = shown(false);
        assert!(
            table.contains("service p50") && !table.contains("response p"),
            "{table}"
        );
    }
}
