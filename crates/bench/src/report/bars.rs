//! Throughput as bars, in groups, with the spread over the runs.

use super::plot;
use super::scale::Scale;
use super::view::{Section, View, colour, shorten};
use crate::figures;
use crate::words;
use cloverleaf_page::markup::{Markup, Px};

const BAR_WIDTH_MAX: f64 = 64.0;
/// A bar of this width has room for its value.
const VALUE_WIDTH: f64 = 46.0;
/// Above the highest bar there is room for its value.
const ROOM: f64 = 1.07;
/// Part of a group's room that is left free.
const FREE: f64 = 0.18;

/// Draws the rates of a section. `false`: there are none.
pub(super) fn draw(
    markup: &mut Markup,
    view: &View<'_>,
    section: &Section<'_>,
    (width, height): (f64, f64),
) -> bool {
    let spreads = section
        .rows()
        .filter_map(|(_, row)| row.spread(figures::rate));
    let most = spreads.map(|(_, most)| most).fold(0.0, f64::max);
    if most <= 0.0 {
        return false;
    }
    let [(left, right), y_range] = plot::ranges(width, height, 0);
    let y = Scale::from_zero(most * ROOM, 5, y_range);
    plot::begin(markup, "Throughput", width, height);
    let ticks: Vec<_> = y
        .ticks
        .iter()
        .map(|rate| (*rate, words::tick(*rate)))
        .collect();
    plot::y_axis(markup, &y, &ticks, "messages per second", right);
    let group_width = (right - left) / section.groups.len() as f64;
    let bars = section
        .groups
        .iter()
        .map(|group| group.rows.len())
        .max()
        .unwrap_or(1);
    let bar_width = (group_width * (1.0 - FREE) / bars as f64).min(BAR_WIDTH_MAX);
    for (at, group) in (0u32..).zip(&section.groups) {
        let middle = left + (f64::from(at) + 0.5) * group_width;
        let first = middle - group.rows.len() as f64 * bar_width / 2.0;
        for (at, (subject, row)) in (0u32..).zip(&group.rows) {
            let x = first + f64::from(at) * bar_width;
            let what = format!("{}, {}", view.label(*subject, 60), group.name);
            let bar = Bar {
                row,
                y: &y,
                x,
                width: bar_width,
                what,
            };
            markup.open("g", &[("class", &colour(*subject))]);
            bar.draw(markup);
            markup.close();
        }
    }
    plot::line(markup, "axis", (left, y.range().0), (right, y.range().0));
    draw_names(
        markup,
        &section.axis_names(),
        (left, group_width),
        y.range().0,
    );
    markup.close();
    true
}

/// Names of groups, and below them one for all neighbours that share it.
fn draw_names(
    markup: &mut Markup,
    names: &[(String, Option<String>)],
    (left, group_width): (f64, f64),
    bottom: f64,
) {
    let at = |groups: usize| left + groups as f64 * group_width;
    let mut name = |text: &str, (from, to): (usize, usize), y: f64| {
        let letters = ((at(to) - at(from)) / plot::LETTER_WIDTH) as usize;
        let middle = (at(from) + at(to)) / 2.0;
        let text = shorten(text, letters.max(3));
        plot::text(markup, (middle, bottom + y), "tick middle", &text);
    };
    for (at, (own, _)) in names.iter().enumerate() {
        name(own, (at, at + 1), 17.0);
    }
    let mut from = 0;
    for shared in names.chunk_by(|one, two| one.1 == two.1) {
        if let Some(text) = &shared[0].1 {
            name(text, (from, from + shared.len()), 34.0);
        }
        from += shared.len();
    }
}

struct Bar<'b> {
    row: &'b crate::outcome::Row,
    y: &'b Scale,
    x: f64,
    width: f64,
    what: String,
}

impl Bar<'_> {
    fn draw(&self, markup: &mut Markup) {
        let (bottom, _) = self.y.range();
        let middle = self.x + self.width / 2.0;
        let rates = self
            .row
            .median(figures::rate)
            .zip(self.row.spread(figures::rate));
        let Some((median, (least, most))) = rates else {
            let text = if self.width < VALUE_WIDTH {
                "✕"
            } else {
                "failed"
            };
            plot::text(markup, (middle, bottom - 6.0), "value middle", text);
            return;
        };
        let top = self.y.at(median);
        markup.open(
            "rect",
            &[
                ("class", &"bar"),
                ("x", &Px(self.x + 1.0)),
                ("y", &Px(top)),
                ("width", &Px((self.width - 2.0).max(1.0))),
                ("height", &Px(bottom - top)),
            ],
        );
        let (median_text, least_text, most_text) =
            (words::rate(median), words::rate(least), words::rate(most));
        let what = format!("{}: {median_text} ({least_text} to {most_text})", self.what);
        markup.element("title", &[], what);
        markup.close();
        let mut above = top;
        if self.row.runs.len() > 1 {
            let (from, to) = (self.y.at(least), self.y.at(most));
            plot::line(markup, "spread", (middle, from), (middle, to));
            for end in [from, to] {
                plot::line(markup, "spread", (middle - 4.0, end), (middle + 4.0, end));
            }
            above = to;
        }
        if self.width >= VALUE_WIDTH {
            let place = (middle, above - 6.0);
            plot::text(markup, place, "value middle", &words::short(median));
        }
    }
}
