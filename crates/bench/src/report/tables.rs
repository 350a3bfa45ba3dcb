//! All figures as tables, and the conditions under which they were measured.

use maud::{Markup, html};

use super::view::{ReportView, colour};
use crate::outcome::{Outcome, Report};
use crate::table::{self, FigureTable};
use crate::words;

/// Maximum of values that are listed for one setting.
const VALUES_MAX: usize = 12;

/// A table of rates, costs and results of the checks, and below it one of times by percentile.
pub(super) fn figures(view: &ReportView<'_>) -> Markup {
    let rows: Vec<_> = view.rows().map(|(_, row)| row).collect();
    let latency = table::latency(&rows, true);
    html! {
        (draw(view, &table::throughput(&rows, true)))
        @if !latency.lines.is_empty() {
            p.lead {
                "All runs together; in small the least and the greatest of the single runs. A "
                "dash: fewer than ten messages took longer."
            }
            (draw(view, &latency))
        }
    }
}

fn draw(view: &ReportView<'_>, table: &FigureTable) -> Markup {
    let subjects: Vec<_> = view.rows().map(|(subject, _)| subject).collect();
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        @for (at, heading) in table.headings.iter().enumerate() {
                            th.l[at < table.names] { (heading) }
                        }
                    }
                }
                tbody {
                    @for (row, cells) in &table.lines {
                        tr class=(colour(subjects[*row])) {
                            @for (at, cell) in cells.iter().enumerate() {
                                @let (figure, spread) = cell.split_once('\n').unwrap_or((cell, ""));
                                td.who[at == 0].l[at < table.names] {
                                    (figure)
                                    @if !spread.is_empty() { small { (spread) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The machine, the versions, the command, and every setting.
pub(super) fn conditions(report: &Report, view: &ReportView<'_>) -> Markup {
    let here = &report.conditions;
    let build = if here.is_release {
        "optimised"
    } else {
        "not optimised"
    };
    let mut all = vec![
        ("processor", here.processor.clone()),
        ("cores", here.cores.to_string()),
        ("memory", words::memory(here.memory_bytes as f64)),
        ("kernel", here.kernel.clone()),
        ("bench", format!("{}, {build}", here.version)),
    ];
    let versions = table::versions(view.subjects.iter().copied());
    all.extend(versions.into_iter().map(|version| ("version", version)));
    html! {
        dl {
            @for (name, value) in &all { dt { (name) } dd { (value) } }
            dt { "command" }
            dd { code { (report.command.join(" ")) } }
        }
        @for section in &view.sections {
            h3 { "Settings, " (words::kind(section.kind).to_lowercase()) }
            dl {
                @for (name, values) in settings(section.rows().flat_map(|(_, row)| &row.runs)) {
                    dt { (name) } dd { (values) }
                }
            }
        }
    }
}

/// The distinct values of each setting.
fn settings<'r>(runs: impl Iterator<Item = &'r Outcome>) -> Vec<(&'static str, String)> {
    let mut all: Vec<(&'static str, Vec<String>)> = Vec::new();
    for (name, value) in runs.flat_map(|run| words::settings(&run.plan)) {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) if values.contains(&value) => (),
            Some((_, values)) => values.push(value),
            None => all.push((name, vec![value])),
        }
    }
    let joined = all.into_iter().map(|(name, mut values)| {
        let more = values.len().saturating_sub(VALUES_MAX);
        values.truncate(VALUES_MAX);
        values.extend((more > 0).then(|| format!("{more} more")));
        (name, values.join(" · "))
    });
    joined.collect()
}
