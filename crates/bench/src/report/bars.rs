//! Throughput as grouped bars, with the spread over the runs.

use cloverleaf_page::Axis;
use cloverleaf_page::picture::{Size, line, rect, svg, text, titled};
use maud::{Markup, html};

use super::plot;
use super::view::{ReportSection, colour, label, shorten};
use crate::figures;
use crate::outcome::Row;
use crate::words;

const BAR_WIDTH_MAX: f64 = 64.0;
/// A bar shows its value as text if it has at least this width.
const VALUE_WIDTH: f64 = 46.0;
/// The axis reaches this factor above the highest bar, so that its value fits.
const HEADROOM: f64 = 1.07;
/// Share of a group's width that stays empty.
const FREE: f64 = 0.18;

/// Draws the rates of a section. `None`: it has no rates.
pub(super) fn draw(section: &ReportSection<'_>, size: Size) -> Option<Markup> {
    let spreads = section
        .rows()
        .filter_map(|(_, row)| row.spread(figures::rate));
    let most = spreads.map(|(_, most)| most).fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let [(left, right), y_range] = plot::ranges(size, 0);
    let y = Axis::from_zero(most * HEADROOM, 5, y_range, words::tick);
    let bottom = y_range.0;
    let group_width = (right - left) / section.groups.len() as f64;
    let bars = section.groups.iter().map(|group| group.rows.len()).max();
    let bars_width = group_width * (1.0 - FREE);
    let width = (bars_width / bars.unwrap_or(1) as f64).min(BAR_WIDTH_MAX);
    let shapes = html! {
        (plot::y_axis(&y, "messages per second", right))
        @for (at, group) in section.groups.iter().enumerate() {
            @let middle = left + (at as f64 + 0.5) * group_width;
            @let first = middle - group.rows.len() as f64 * width / 2.0;
            @for (at, (subject, row)) in group.rows.iter().enumerate() {
                @let what = format!("{}, {}", label(row, 60), group.name);
                g class=(colour(*subject)) {
                    (draw_bar(row, &y, (first + at as f64 * width, width), &what))
                }
            }
        }
        (line("axis", (left, bottom), (right, bottom)))
        (draw_names(&section.axis_names(), (left, group_width), bottom))
    };
    Some(svg("", size, "Throughput", &shapes))
}

/// Draws the names of the groups, and below them the names that neighbouring groups share.
fn draw_names(
    names: &[(String, Option<String>)],
    (left, group_width): (f64, f64),
    bottom: f64,
) -> Markup {
    let at = |groups: usize| left + groups as f64 * group_width;
    let name = |words: &str, (from, to): (usize, usize), y: f64| {
        let letters = ((at(to) - at(from)) / plot::LETTER_WIDTH) as usize;
        let place = ((at(from) + at(to)) / 2.0, bottom + y);
        text("tick middle", place, &shorten(words, letters.max(3)))
    };
    let mut end = 0;
    let shared = names.chunk_by(|one, two| one.1 == two.1).map(|names| {
        end += names.len();
        (&names[0].1, (end - names.len(), end))
    });
    html! {
        @for (at, (own, _)) in names.iter().enumerate() { (name(own, (at, at + 1), 17.0)) }
        @for (words, groups) in shared {
            @if let Some(words) = words { (name(words, groups, 34.0)) }
        }
    }
}

/// The median of a row as a bar, with a stroke from its slowest run to its fastest.
fn draw_bar(row: &Row, y: &Axis, (x, width): (f64, f64), what: &str) -> Markup {
    let bottom = y.range.0;
    let middle = x + width / 2.0;
    let is_wide = width >= VALUE_WIDTH;
    let rates = row.median(figures::rate).zip(row.spread(figures::rate));
    let Some((median, (least, most))) = rates else {
        let words = if is_wide { "failed" } else { "✕" };
        return text("value middle", (middle, bottom - 6.0), words);
    };
    let top = y.at(median);
    let bar = rect(
        "bar",
        (x + 1.0, top),
        ((width - 2.0).max(1.0), bottom - top),
    );
    let [median_rate, least_rate, most_rate] = [median, least, most].map(words::rate);
    let what = format!("{what}: {median_rate} ({least_rate} to {most_rate})");
    let has_spread = row.runs.len() > 1;
    let (from, to) = (y.at(least), y.at(most));
    let above = if has_spread { to } else { top };
    html! {
        (titled(&bar, &what))
        @if has_spread {
            (line("spread", (middle, from), (middle, to)))
            @for end in [from, to] {
                (line("spread", (middle - 4.0, end), (middle + 4.0, end)))
            }
        }
        @if is_wide { (text("value middle", (middle, above - 6.0), &words::short(median))) }
    }
}
