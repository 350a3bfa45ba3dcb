//! Brokers side by side for the terminal: a table for each load, with ratios to the first one.

use comfy_table::Table;

use super::view::{Group, Section, View};
use crate::figures::{self, Figure};
use crate::outcome::{Kind, Report, Row};
use crate::words::{self, NOTHING};
use crate::{notes, table};

/// A line of a table.
struct Line {
    name: &'static str,
    figure: Figure,
    text: fn(f64) -> String,
}

/// The whole comparison, at most so many columns wide.
pub fn side_by_side(report: &Report, width: u16) -> String {
    let view = View::new(report);
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

fn heading(section: &Section<'_>, group: &Group<'_>) -> String {
    let kind = words::kind(section.kind);
    match group.name.is_empty() {
        true => format!("{kind} · {}", section.settings()),
        false => format!("{kind} · {} · {}", group.name, section.settings()),
    }
}

/// The table, and whether runs of two brokers overlap.
fn group_table(
    view: &View<'_>,
    section: &Section<'_>,
    group: &Group<'_>,
    width: u16,
) -> (Table, bool) {
    let labels = group.rows.iter().map(|(subject, _)| {
        let subject = view.subjects[*subject];
        format!("{}\n{}", subject.label, words::class(subject))
    });
    let headings = std::iter::once("\ndurability".to_owned()).chain(labels);
    let mut table = table::new_table(headings.collect(), 1, width);
    let mut overlaps = false;
    for line in lines(section.kind) {
        let has_any = |(_, row): &(usize, &Row)| row.median(&line.figure).is_some();
        if !group.rows.iter().any(has_any) {
            continue;
        }
        let mut cells = vec![line.name.to_owned()];
        for (_, row) in &group.rows {
            let (text, overlap) = cell(&line, group.rows[0].1, row);
            cells.push(text);
            overlaps |= overlap;
        }
        table.add_row(cells);
    }
    let checks = group.rows.iter().map(|(_, row)| found(row));
    table.add_row(std::iter::once("lost · twice · out of order".to_owned()).chain(checks));
    (table, overlaps)
}

fn lines(kind: Kind) -> Vec<Line> {
    let micros = |ns: f64| words::number(ns / 1e3);
    let megabytes = |rate: f64| words::number(rate / 1e6);
    let line = |name, figure: Figure, text| Line { name, figure, text };
    let mut lines = vec![
        line("messages/s", Box::new(figures::rate), words::number),
        line("MB/s", Box::new(figures::byte_rate), megabytes),
    ];
    // A topic that was filled before has ages, not latencies.
    if kind != Kind::Consume {
        let shares = [
            (0.5, "latency p50"),
            (0.99, "p99"),
            (0.999, "p99.9"),
            (1.0, "max"),
        ];
        let times = shares
            .map(|(share, name)| line(name, Box::new(figures::response_ns(share)), words::time));
        lines.extend(times);
    }
    lines.push(line(
        "broker CPU, µs/message",
        Box::new(figures::broker_cpu_ns),
        micros,
    ));
    lines.push(line(
        "generator CPU, µs/message",
        Box::new(figures::client_cpu_ns),
        micros,
    ));
    lines.push(line(
        "broker memory",
        Box::new(figures::memory_bytes),
        words::memory,
    ));
    lines
}

/// The median with its ratio to the first broker's, below it the spread; and whether the spreads
/// of both overlap.
fn cell(line: &Line, first: &Row, row: &Row) -> (String, bool) {
    let Some(median) = row.median(&line.figure) else {
        let is_failed = row.median(figures::rate).is_none();
        return (if is_failed { "failed" } else { NOTHING }.to_owned(), false);
    };
    let mut text = (line.text)(median);
    let spread = |row: &Row| {
        let several = row.runs.iter().filter_map(&line.figure).count() > 1;
        row.spread(&line.figure).filter(|_| several)
    };
    let mut overlaps = false;
    let base = first.median(&line.figure).filter(|base| *base > 0.0);
    if let Some(base) = base.filter(|_| !std::ptr::eq(first, row)) {
        overlaps = spread(first)
            .zip(spread(row))
            .is_some_and(|(one, two)| one.0 <= two.1 && two.0 <= one.1);
        let about = if overlaps { "≈ " } else { "" };
        text = format!("{about}×{}  {text}", words::number(median / base));
    }
    if let Some((least, most)) = spread(row) {
        text.push_str(&format!("\n{} – {}", (line.text)(least), (line.text)(most)));
    }
    (text, overlaps)
}

/// Lost, twice, out of order, over all runs.
fn found(row: &Row) -> String {
    let all = || row.runs.iter().filter_map(|run| run.findings);
    if all().next().is_none() {
        return "not checked".to_owned();
    }
    let (lost, twice) = (all().map(|it| it.lost), all().map(|it| it.duplicates));
    let unordered = all().map(|it| it.out_of_order);
    let sums = [lost.sum(), twice.sum(), unordered.sum()];
    sums.map(words::count).join(" · ")
}
