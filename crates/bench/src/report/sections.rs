//! The section of one kind of measurement: headline, settings, charts.

use cloverleaf_page::picture::Size;
use maud::{Markup, html};

use super::view::{ReportSection, ReportView, SettingsGroup, colour};
use super::{bars, costs, curves, latency, series};
use crate::figures::{self, Summary};
use crate::outcome::{Kind, Outcome, Row};
use crate::words;

const WIDE: Size = (1064.0, 340.0);
const HALF: Size = (514.0, 300.0);
/// Height of each of two pictures, one above the other.
const LOW: f64 = 210.0;

/// Draws the section.
pub(super) fn draw(view: &ReportView<'_>, section: &ReportSection<'_>) -> Markup {
    let names = section
        .varies
        .iter()
        .map(|name| name.split(", ").next().unwrap_or(name));
    let names = names.collect::<Vec<_>>().join(" and ");
    let row = section.rows().next().map(|(_, row)| row);
    let drawn = section.drawn();
    let (count, all) = (drawn.len(), section.groups.len());
    let left_out = match all - count {
        0 => String::new(),
        _ => format!(" {count} of {all} are drawn; the table has all."),
    };
    // The times of a topic that was filled before are ages, not latencies.
    let has_latency = section.kind != Kind::Consume;
    html! {
        section {
            h2 { (words::kind(section.kind)) @if !names.is_empty() { " by " (names) } }
            p.lead { (section.settings()) }
            @if view.subjects.len() > 1 { (legend(view, section)) }
            @match row.filter(|_| section.is_single()) {
                Some(row) => (tiles(row)),
                None if section.is_curve() => (growth(section)),
                None => (throughput(section)),
            }
            @if has_latency {
                @let text = latency_text(section, &left_out);
                (each("Latency by percentile", &text, &drawn, latency::draw))
            }
            @let text = format!("Of the run with the median rate; whole seconds only.{left_out}");
            (each("Second by second", &text, &drawn, |group, (width, _)| {
                series::draw(group, (width, LOW), has_latency)
            }))
            @if !section.is_single() && !section.is_curve() {
                div.pair {
                    @let cpu = "Strong: the broker. Faint: the generator with its client library.";
                    (figure("CPU time per message", &format!("{cpu}{left_out}"),
                        costs::draw_cpu(&drawn, HALF.0)))
                    @let memory = "The most that was resident while it was measured.";
                    (figure("Memory of the broker", &format!("{memory}{left_out}"),
                        costs::draw_memory(&drawn, HALF.0)))
                }
            }
        }
    }
}

fn throughput(section: &ReportSection<'_>) -> Markup {
    let text = if section.has_several_runs() {
        "Median of the runs; the stroke goes from the slowest run to the fastest. Higher is better."
    } else {
        "One run each: how much it varies is not known. Higher is better."
    };
    let text = match section.varies.as_slice() {
        [rest @ .., last] if !rest.is_empty() => {
            let rest = rest.join(", ");
            format!("{text} Along the axis: {last}; below it: {rest}.")
        }
        _ => text.to_owned(),
    };
    figure("Throughput", &text, bars::draw(section, WIDE))
}

fn latency_text(section: &ReportSection<'_>, left_out: &str) -> String {
    let clock = if section.is_open() {
        "Solid: response time, from the moment at which a message was to be sent. Dashed, where it \
         differs: service time, from the moment at which it was."
    } else {
        "Closed loop: service time, from the moment of sending; what a pause delayed is not in it."
    };
    format!(
        "{clock} Each nine is as wide as the one before; all runs together. Lower is better.\
         {left_out}"
    )
}

fn legend(view: &ReportView<'_>, section: &ReportSection<'_>) -> Markup {
    let has = |subject| section.rows().any(|(of, _)| of == subject);
    html! {
        ul.legend {
            @for (at, subject) in view.subjects.iter().enumerate().filter(|(at, _)| has(*at)) {
                li class=(colour(at)) { b { (subject.label) } " (" (words::class(subject)) ")" }
            }
        }
    }
}

/// The figures of one measurement.
fn tiles(row: &Row) -> Markup {
    type Text = fn(f64) -> String;
    let median = |figure: fn(&Outcome) -> Option<f64>| row.median(figure);
    let has_latency = row
        .runs
        .first()
        .is_some_and(|run| run.kind != Kind::Consume);
    let latency = |share| {
        Summary::Share(figures::response, share)
            .of(row)
            .filter(|_| has_latency)
    };
    let tiles: [(&str, Option<f64>, Text); 8] = [
        ("messages per second", median(figures::rate), words::number),
        (
            "bytes per second",
            median(figures::byte_rate),
            words::byte_rate,
        ),
        ("latency, median", latency(0.5), words::time),
        ("latency, p99", latency(0.99), words::time),
        ("latency, p99.9", latency(0.999), words::time),
        (
            "broker's CPU per message",
            median(figures::broker_cpu_ns),
            words::time,
        ),
        (
            "generator's CPU per message",
            median(figures::client_cpu_ns),
            words::time,
        ),
        (
            "broker's memory",
            median(figures::memory_bytes),
            words::memory,
        ),
    ];
    html! {
        div.tiles {
            @for (name, figure, text) in tiles {
                @if let Some(figure) = figure { div { b { (text(figure)) } span { (name) } } }
            }
        }
    }
}

fn growth(section: &ReportSection<'_>) -> Markup {
    html! {
        h3 { "How it grows" }
        @if section.has_several_runs() {
            p.lead {
                "Medians of the runs, and times of all of them together; strokes go from the least "
                "run to the greatest."
            }
        }
        div.pair { (curves::draw(section, HALF)) }
    }
}

/// A picture, if there is one, with its name and an explanation.
fn figure(name: &str, text: &str, picture: Option<Markup>) -> Markup {
    html! {
        @if let Some(picture) = picture {
            figure { figcaption { b { (name) } " " span { (text) } } (picture) }
        }
    }
}

/// The same picture for several groups. A single one has the whole width, several are side by side.
fn each(
    name: &str,
    text: &str,
    groups: &[&SettingsGroup<'_>],
    draw: impl Fn(&SettingsGroup<'_>, Size) -> Option<Markup>,
) -> Markup {
    let (size, class) = if groups.len() == 1 {
        (WIDE, "one")
    } else {
        (HALF, "pair")
    };
    let drawn = groups
        .iter()
        .filter_map(|group| Some((&group.name, draw(group, size)?)));
    let drawn: Vec<_> = drawn.collect();
    html! {
        @if !drawn.is_empty() {
            h3 { (name) }
            p.lead { (text) }
            div class=(class) {
                @for (name, picture) in &drawn {
                    figure { @if !name.is_empty() { figcaption { (name) } } (picture) }
                }
            }
        }
    }
}
