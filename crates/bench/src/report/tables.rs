//! All figures as tables, and the conditions under which they were measured.

use super::view::{View, colour};
use crate::figures::{self, Summary, Times};
use crate::outcome::{Outcome, Report, Row};
use crate::table;
use crate::words::{self, NOTHING};
use cloverleaf_page::markup::Markup;

/// Most values of one setting that are listed.
const VALUES_MAX: usize = 12;

/// Rates, costs and what the checks have found: a line per row.
pub(super) fn throughput(page: &mut Markup, view: &View<'_>) {
    let has_asked = view.sections.iter().any(|section| {
        let mut runs = section.rows().flat_map(|(_, row)| &row.runs);
        runs.any(|run| words::asked(&run.plan.arrivals).is_some())
    });
    let mut headings = vec!["broker", "what", "durability", "runs"];
    if has_asked {
        headings.push("asked, messages/s");
    }
    headings.extend([
        "messages/s",
        "least – most",
        "MB/s",
        "broker CPU, µs/message",
        "generator CPU, µs/message",
        "broker memory",
        "errors",
        "lost",
        "twice",
        "out of order",
    ]);
    begin(page, &headings, 3);
    for (subject, row, what) in rows(view) {
        page.open("tr", &[("class", &colour(subject))]);
        names(page, row, &what);
        let Some(first) = row.runs.first() else {
            continue;
        };
        page.element("td", &[("class", &"l")], words::class(&first.subject));
        cell(page, row.runs.len());
        if has_asked {
            cell(
                page,
                or_nothing(words::asked(&first.plan.arrivals), words::number),
            );
        }
        cell(page, or_nothing(row.median(figures::rate), words::number));
        let spread = row.spread(figures::rate).filter(|_| row.runs.len() > 1);
        cell(
            page,
            or_nothing(spread, |(least, most)| {
                format!("{} – {}", words::number(least), words::number(most))
            }),
        );
        let megabytes = row.median(figures::byte_rate).map(|rate| rate / 1e6);
        cell(page, or_nothing(megabytes, words::number));
        for cpu in [
            row.median(figures::broker_cpu_ns),
            row.median(figures::client_cpu_ns),
        ] {
            cell(page, or_nothing(cpu.map(|ns| ns / 1e3), words::number));
        }
        cell(
            page,
            or_nothing(row.median(figures::memory_bytes), words::memory),
        );
        let sides = row
            .runs
            .iter()
            .flat_map(|run| [&run.produced, &run.consumed]);
        cell(
            page,
            words::count(sides.flatten().map(|tally| tally.errors).sum()),
        );
        for finding in found(row) {
            cell(page, finding);
        }
        page.close();
    }
    end(page);
}

/// Lost, twice, out of order.
fn found(row: &Row) -> [String; 3] {
    let all = || row.runs.iter().filter_map(|run| run.findings);
    if all().next().is_none() {
        return [NOTHING, NOTHING, NOTHING].map(str::to_owned);
    }
    let (lost, twice) = (all().map(|it| it.lost), all().map(|it| it.duplicates));
    let unordered = all().map(|it| it.out_of_order);
    [lost.sum(), twice.sum(), unordered.sum()].map(words::count)
}

/// Times by percentile: a line for each time that a row has.
pub(super) fn latency(page: &mut Markup, view: &View<'_>) {
    let mut headings = vec!["broker", "what", "latency"];
    headings.extend(table::QUANTILES.map(|(name, _)| name));
    headings.push("max");
    let has_any = rows(view).any(|(_, row, _)| {
        let first = row.runs.first();
        first.is_some_and(|first| !table::latencies(first).is_empty())
    });
    if !has_any {
        return;
    }
    let text = "All runs together; in small the least and the greatest of the single runs. A dash: \
                fewer than ten messages took longer.";
    page.element("p", &[("class", &"lead")], text);
    begin(page, &headings, 3);
    for (subject, row, what) in rows(view) {
        let Some(first) = row.runs.first() else {
            continue;
        };
        for (name, times) in table::latencies(first) {
            latency_line(page, (subject, row, &what), &name, times);
        }
        if row.counted().any(|run| figures::lag(run).is_some()) {
            let name = "the generator's own lag";
            latency_line(page, (subject, row, &what), name, figures::lag);
        }
    }
    end(page);
}

fn latency_line(
    page: &mut Markup,
    (subject, row, what): (usize, &Row, &str),
    name: &str,
    times: Times,
) {
    page.open("tr", &[("class", &colour(subject))]);
    names(page, row, what);
    page.element("td", &[("class", &"l")], name);
    let shares = table::QUANTILES.into_iter().map(|(_, share)| share);
    for share in shares.chain([1.0]) {
        let times = Summary::Share(times, share);
        page.open("td", &[]);
        page.text(or_nothing(times.of(row), words::time));
        if let Some((least, most)) = times.spread(row) {
            let text = format!("{} – {}", words::time(least), words::time(most));
            page.leaf("br", &[]);
            page.element("small", &[], text);
        }
        page.close();
    }
    page.close();
}

/// The machine, the versions, the command, and every setting.
pub(super) fn conditions(page: &mut Markup, report: &Report, view: &View<'_>) {
    let here = &report.conditions;
    page.open("dl", &[]);
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
    for subject in &view.subjects {
        for (name, version) in &subject.versions {
            let text = format!("{name} {version}");
            if !all.contains(&("version", text.clone())) {
                all.push(("version", text));
            }
        }
    }
    for (name, value) in &all {
        page.element("dt", &[], name);
        page.element("dd", &[], value);
    }
    page.element("dt", &[], "command");
    page.open("dd", &[]);
    page.element("code", &[], report.command.join(" "));
    page.close();
    page.close();
    for section in &view.sections {
        page.element(
            "h3",
            &[],
            format!("Settings, {}", words::kind(section.kind).to_lowercase()),
        );
        page.open("dl", &[]);
        for (name, values) in settings(section.rows().flat_map(|(_, row)| &row.runs)) {
            page.element("dt", &[], name);
            page.element("dd", &[], values);
        }
        page.close();
    }
}

/// The values of each setting, each once.
fn settings<'r>(runs: impl Iterator<Item = &'r Outcome>) -> Vec<(&'static str, String)> {
    let mut all: Vec<(&'static str, Vec<String>)> = Vec::new();
    for run in runs {
        for (name, value) in words::settings(&run.plan) {
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) if values.contains(&value) => (),
                Some((_, values)) => values.push(value),
                None => all.push((name, vec![value])),
            }
        }
    }
    let join = |mut values: Vec<String>| {
        let more = values.len().saturating_sub(VALUES_MAX);
        values.truncate(VALUES_MAX);
        if more > 0 {
            values.push(format!("{more} more"));
        }
        values.join(" · ")
    };
    all.into_iter()
        .map(|(name, values)| (name, join(values)))
        .collect()
}

/// All rows with what they are, in the order of the page.
fn rows<'v, 'r>(view: &'v View<'r>) -> impl Iterator<Item = (usize, &'r Row, String)> + 'v {
    view.sections.iter().flat_map(|section| {
        section.groups.iter().flat_map(move |group| {
            let kind = words::kind(section.kind).to_lowercase();
            let what = if group.name.is_empty() {
                kind
            } else {
                format!("{kind}, {}", group.name)
            };
            group
                .rows
                .iter()
                .map(move |(subject, row)| (*subject, *row, what.clone()))
        })
    })
}

fn begin(page: &mut Markup, headings: &[&str], left: usize) {
    page.open("div", &[("class", &"wide")]);
    page.open("table", &[]);
    page.open("thead", &[]);
    page.open("tr", &[]);
    for (at, heading) in headings.iter().enumerate() {
        page.element(
            "th",
            &[("class", &if at < left { "l" } else { "" })],
            heading,
        );
    }
    page.close();
    page.close();
    page.open("tbody", &[]);
}

fn end(page: &mut Markup) {
    for _ in ["tbody", "table", "div"] {
        page.close();
    }
}

fn names(page: &mut Markup, row: &Row, what: &str) {
    let label = row.runs.first().map_or(NOTHING, |run| &run.subject.label);
    page.element("td", &[("class", &"who")], label);
    page.element("td", &[("class", &"l")], what);
}

fn cell(page: &mut Markup, text: impl std::fmt::Display) {
    page.element("td", &[], text);
}

fn or_nothing<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), text)
}
