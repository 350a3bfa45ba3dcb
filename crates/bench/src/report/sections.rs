//! One kind of measurement: its headline, its settings, its charts.

use super::view::{Group, Section, View, colour};
use super::{bars, costs, curves, latency, series};
use crate::figures::{self, Summary};
use crate::outcome::{Kind, Row};
use crate::words;
use cloverleaf_page::markup::Markup;

const WIDE: (f64, f64) = (1064.0, 340.0);
const HALF: (f64, f64) = (514.0, 300.0);
/// Of two pictures that stand one above the other.
const LOW: f64 = 210.0;

/// Draws all of it.
pub(super) fn draw(page: &mut Markup, view: &View<'_>, section: &Section<'_>) {
    page.open("section", &[]);
    let mut heading = words::kind(section.kind).to_owned();
    if !section.varies.is_empty() {
        let names = section
            .varies
            .iter()
            .map(|name| name.split(", ").next().unwrap_or(name));
        heading.push_str(&format!(" by {}", names.collect::<Vec<_>>().join(" and ")));
    }
    page.element("h2", &[], heading);
    page.element("p", &[("class", &"lead")], section.settings());
    if view.subjects.len() > 1 {
        legend(page, view, section);
    }
    let row = section.rows().next().map(|(_, row)| row);
    match row.filter(|_| section.is_single()) {
        Some(row) => tiles(page, row),
        None if section.is_curve() => growth(page, view, section),
        None => {
            let text = if section.has_several_runs() {
                "Median of the runs; the stroke goes from the slowest run to the fastest. \
                     Higher is better."
            } else {
                "One run each: how much it varies is not known. Higher is better."
            };
            let text = match section.varies.as_slice() {
                [rest @ .., last] if !rest.is_empty() => {
                    format!(
                        "{text} Along the axis: {last}; below it: {}.",
                        rest.join(", ")
                    )
                }
                _ => text.to_owned(),
            };
            figure(page, "Throughput", &text, |page| {
                bars::draw(page, view, section, WIDE)
            });
        }
    }
    let drawn = section.drawn();
    let left_out = section.groups.len() - drawn.len();
    let left_out = match left_out {
        0 => String::new(),
        _ => format!(
            " {} of {} are drawn; the table has all.",
            drawn.len(),
            section.groups.len()
        ),
    };
    // A topic that was filled before has ages, not latencies.
    if section.kind != Kind::Consume {
        let text = if section.is_open() {
            "Solid: response time, from the moment at which a message was to be sent. Dashed, \
                 where it differs: service time, from the moment at which it was. Each nine is as \
                 wide as the one before; all runs together. Lower is better."
        } else {
            "Closed loop: service time, from the moment of sending; what a pause delayed \
                 is not in it. Each nine is as wide as the one before; all runs together. Lower is \
                 better."
        };
        let text = format!("{text}{left_out}");
        each(
            page,
            "Latency by percentile",
            &text,
            &drawn,
            |page, group, size| latency::draw(page, view, group, size),
        );
    }
    let text = format!("Of the run with the median rate; whole seconds only.{left_out}");
    each(
        page,
        "Second by second",
        &text,
        &drawn,
        |page, group, (width, _)| {
            series::draw(
                page,
                view,
                group,
                (width, LOW),
                section.kind != Kind::Consume,
            )
        },
    );
    if !section.is_single() && !section.is_curve() {
        page.open("div", &[("class", &"pair")]);
        let text = "Strong: the broker. Faint: the generator with its client library.";
        let text = format!("{text}{left_out}");
        figure(page, "CPU time per message", &text, |page| {
            costs::draw_cpu(page, view, &drawn, HALF.0)
        });
        let text = format!("The most that was resident while it was measured.{left_out}");
        figure(page, "Memory of the broker", &text, |page| {
            costs::draw_memory(page, view, &drawn, HALF.0)
        });
        page.close();
    }
    page.close();
}

fn legend(page: &mut Markup, view: &View<'_>, section: &Section<'_>) {
    page.open("ul", &[("class", &"legend")]);
    for (at, subject) in view.subjects.iter().enumerate() {
        if section.rows().any(|(of, _)| of == at) {
            page.open("li", &[("class", &colour(at))]);
            page.element("b", &[], &subject.label);
            page.text(format!(" ({})", words::class(subject)));
            page.close();
        }
    }
    page.close();
}

/// The figures of one measurement.
fn tiles(page: &mut Markup, row: &Row) {
    let time = |ns: f64| words::time(ns);
    let kind = row.runs.first().map(|run| run.kind);
    let mut tiles = vec![
        (
            "messages per second",
            row.median(figures::rate).map(words::number),
        ),
        (
            "bytes per second",
            row.median(figures::byte_rate).map(words::byte_rate),
        ),
    ];
    if kind != Some(Kind::Consume) {
        tiles.extend([
            (
                "latency, median",
                Summary::Share(figures::response, 0.5).of(row).map(time),
            ),
            (
                "latency, p99",
                Summary::Share(figures::response, 0.99).of(row).map(time),
            ),
            (
                "latency, p99.9",
                Summary::Share(figures::response, 0.999).of(row).map(time),
            ),
        ]);
    }
    tiles.extend([
        (
            "broker's CPU per message",
            row.median(figures::broker_cpu_ns).map(time),
        ),
        (
            "generator's CPU per message",
            row.median(figures::client_cpu_ns).map(time),
        ),
        (
            "broker's memory",
            row.median(figures::memory_bytes).map(words::memory),
        ),
    ]);
    page.open("div", &[("class", &"tiles")]);
    for (name, figure) in tiles {
        if let Some(figure) = figure {
            page.open("div", &[]);
            page.element("b", &[], figure);
            page.element("span", &[], name);
            page.close();
        }
    }
    page.close();
}

fn growth(page: &mut Markup, view: &View<'_>, section: &Section<'_>) {
    page.element("h3", &[], "How it grows");
    if section.has_several_runs() {
        let text = "Medians of the runs, and times of all of them together; strokes go from the \
                    least run to the greatest.";
        page.element("p", &[("class", &"lead")], text);
    }
    page.open("div", &[("class", &"pair")]);
    curves::draw(page, view, section, HALF);
    page.close();
}

/// A picture with its name and what has to be known to read it.
fn figure(page: &mut Markup, name: &str, text: &str, draw: impl FnOnce(&mut Markup) -> bool) {
    let mut picture = Markup::default();
    if !draw(&mut picture) {
        return;
    }
    page.open("figure", &[]);
    page.open("figcaption", &[]);
    page.element("b", &[], name);
    page.text(" ");
    page.element("span", &[], text);
    page.close();
    page.piece(picture);
    page.close();
}

/// The same picture for several groups: one over the whole width, or side by side.
fn each(
    page: &mut Markup,
    name: &str,
    text: &str,
    groups: &[&Group<'_>],
    draw: impl Fn(&mut Markup, &Group<'_>, (f64, f64)) -> bool,
) {
    let is_one = groups.len() == 1;
    let size = if is_one { WIDE } else { HALF };
    let mut pieces = Markup::default();
    let mut has_any = false;
    for group in groups {
        let mut picture = Markup::default();
        if draw(&mut picture, group, size) {
            has_any = true;
            pieces.open("figure", &[]);
            if !group.name.is_empty() {
                pieces.element("figcaption", &[], &group.name);
            }
            pieces.piece(picture);
            pieces.close();
        }
    }
    if has_any {
        page.element("h3", &[], name);
        page.element("p", &[("class", &"lead")], text);
        page.open("div", &[("class", &if is_one { "one" } else { "pair" })]);
        page.piece(pieces);
        page.close();
    }
}
