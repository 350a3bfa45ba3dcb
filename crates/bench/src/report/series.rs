//! Charts over time: the figures of each second.

use cloverleaf_page::Axis;
use cloverleaf_page::picture::Size;
use maud::{Markup, html};

use super::plot::{self, LineChart, Series, ends};
use super::view::{SettingsGroup, label};
use crate::figures;
use crate::outcome::Outcome;
use crate::plan::Amount;
use crate::recorder::ClientStats;
use crate::words;

/// A line with more points than this has no marks, because they would merge into a line.
const MARKS_MAX: usize = 60;

/// A second's messages, and their p99 in nanoseconds if there were any.
struct SecondFigures {
    second: u32,
    messages: f64,
    p99_ns: Option<f64>,
}

/// Draws the rate of each subject's typical run, and its p99 if `has_latency`. `None`: no run has
/// two whole seconds.
pub(super) fn draw(group: &SettingsGroup<'_>, size: Size, has_latency: bool) -> Option<Markup> {
    let letters = plot::label_letters(size.0);
    let all = group.rows.iter().filter_map(|(subject, row)| {
        let run = figures::typical(row)?;
        let seconds = seconds(run, figures::measured(run)?);
        (seconds.len() >= 2).then(|| (*subject, label(row, letters), seconds))
    });
    let all: Vec<_> = all.collect();
    let each = || all.iter().flat_map(|(.., seconds)| seconds);
    let end = each().map(|it| it.second + 1).max()?;
    let [x_range, y_range] = plot::ranges(size, letters);
    let mut x = Axis::from_zero(f64::from(end), 6, x_range, words::tick);
    x.ticks
        .retain(|(tick, _)| tick.fract() == 0.0 && *tick <= f64::from(end));
    let x = Axis::between((0.0, f64::from(end)), x_range, x.ticks);
    let chart = |what: &str, y_name: &str, y: Axis, figure: Figure, text: fn(f64) -> String| {
        let series = all.iter().map(|(subject, label, seconds)| {
            let values = seconds.iter().map(|it| (it.second, figure(it)));
            series(*subject, label, values, text)
        });
        let chart = LineChart {
            title: format!("{what} in each second {}", group.name),
            size,
            x: x.clone(),
            x_name: "seconds".to_owned(),
            y,
            y_name: y_name.to_owned(),
            series: series.collect(),
        };
        chart.draw()
    };
    let most = each().map(|it| it.messages).fold(0.0, f64::max);
    let rate = Axis::from_zero(most, 4, y_range, words::tick);
    let times = || each().filter_map(|it| it.p99_ns);
    let (least, most) = ends(times());
    let p99 = Axis::log(least, most, y_range, words::time_tick);
    let p99_name = "response time, p99 of each second";
    Some(html! {
        (chart("Rate", "messages per second", rate, |it| Some(it.messages), words::rate))
        @if has_latency {
            (chart("Response time p99", p99_name, p99, |it| it.p99_ns, words::time))
        }
    })
}

type Figure = fn(&SecondFigures) -> Option<f64>;

/// The whole seconds of a run. A second without figures had no messages.
fn seconds(run: &Outcome, stats: &ClientStats) -> Vec<SecondFigures> {
    let last = stats.seconds.keys().last().copied().unwrap_or(0);
    let end = match run.plan.amount {
        Amount::Seconds(seconds) => last.saturating_add(1).min(seconds as u32),
        Amount::Messages(_) => last,
    };
    // Only the last hour is drawn: it is enough even if the clock ran far ahead of the messages.
    let begin = end.saturating_sub(3_600);
    let each = (begin..end).map(|second| {
        let found = stats.seconds.get(&second);
        let p99 = found.filter(|second| !second.response.is_empty());
        SecondFigures {
            second,
            messages: found.map_or(0, |second| second.messages) as f64,
            p99_ns: p99.map(|second| second.response.quantile_ns(0.99) as f64),
        }
    });
    each.collect()
}

fn series(
    subject: usize,
    label: &str,
    values: impl Iterator<Item = (u32, Option<f64>)>,
    text: fn(f64) -> String,
) -> Series {
    let mut pieces = vec![Vec::new()];
    let mut marks = Vec::new();
    for (second, value) in values {
        let x = f64::from(second) + 0.5;
        match (value, pieces.last_mut()) {
            (Some(y), Some(piece)) => {
                piece.push((x, y));
                marks.push((x, y, format!("{label}, second {}: {}", second + 1, text(y))));
            }
            _ => pieces.push(Vec::new()),
        }
    }
    if marks.len() > MARKS_MAX {
        marks.clear();
    }
    Series {
        subject,
        label: Some(label.to_owned()),
        pieces,
        marks,
        spreads: Vec::new(),
    }
}
