//! Charts over time: the figures of each second.

use super::plot::{self, Line, Plot};
use super::scale::Scale;
use super::view::{Group, View};
use crate::book::Tally;
use crate::figures;
use crate::outcome::Outcome;
use crate::plan::Amount;
use crate::words;
use cloverleaf_page::markup::Markup;

/// A second's messages, and their p99 in nanoseconds if there were any.
struct Point {
    second: u32,
    messages: f64,
    p99_ns: Option<f64>,
}

/// Draws the rate of each subject's typical run, and its p99 if that means anything. `false`: none
/// has two whole seconds.
pub(super) fn draw(
    markup: &mut Markup,
    view: &View<'_>,
    group: &Group<'_>,
    (width, height): (f64, f64),
    has_latency: bool,
) -> bool {
    let all: Vec<(usize, Vec<Point>)> = group
        .rows
        .iter()
        .filter_map(|(subject, row)| {
            let run = figures::typical(row)?;
            Some((*subject, points(run, figures::measured(run)?)))
        })
        .filter(|(_, points)| points.len() >= 2)
        .collect();
    let Some(end) = all
        .iter()
        .filter_map(|(_, points)| points.last())
        .map(|it| it.second)
        .max()
    else {
        return false;
    };
    let each = || all.iter().flat_map(|(_, points)| points);
    let letters = if width > 700.0 { 18 } else { 13 };
    let [x_range, y_range] = plot::ranges(width, height, letters);
    let x = Scale::whole(end + 1, x_range);
    let x_ticks = x.ticks.iter().map(|second| (*second, words::tick(*second)));
    let x_ticks: Vec<_> = x_ticks.collect();
    let most = each().map(|point| point.messages).fold(0.0, f64::max);
    let y = Scale::from_zero(most, 4, y_range);
    let rates = all.iter().map(|(subject, points)| {
        let values = points
            .iter()
            .map(|point| (point.second, Some(point.messages)));
        line(view, *subject, letters, values, words::rate)
    });
    Plot {
        title: format!("Rate in each second {}", group.name),
        width,
        height,
        x: x.clone(),
        x_ticks: x_ticks.clone(),
        x_name: "seconds".to_owned(),
        y_ticks: y
            .ticks
            .iter()
            .map(|rate| (*rate, words::tick(*rate)))
            .collect(),
        y,
        y_name: "messages per second".to_owned(),
        lines: rates.collect(),
    }
    .draw(markup);
    if !has_latency {
        return true;
    }
    let times = || each().filter_map(|point| point.p99_ns);
    let least = times().fold(f64::INFINITY, f64::min);
    let y = Scale::log(least, times().fold(0.0, f64::max), y_range);
    let p99s = all.iter().map(|(subject, points)| {
        let values = points.iter().map(|point| (point.second, point.p99_ns));
        line(view, *subject, letters, values, words::time)
    });
    Plot {
        title: format!("Response time p99 in each second {}", group.name),
        width,
        height,
        x,
        x_ticks,
        x_name: "seconds".to_owned(),
        y_ticks: y
            .ticks
            .iter()
            .map(|ns| (*ns, words::time_tick(*ns)))
            .collect(),
        y,
        y_name: "response time, p99 of each second".to_owned(),
        lines: p99s.collect(),
    }
    .draw(markup);
    true
}

/// The whole seconds of a run; in those of which nothing is known nothing happened.
fn points(run: &Outcome, tally: &Tally) -> Vec<Point> {
    let last = tally.seconds.keys().last().copied().unwrap_or(0);
    let end = match run.plan.amount {
        Amount::Seconds(seconds) => last.saturating_add(1).min(seconds as u32),
        Amount::Messages(_) => last,
    };
    // Where the clock ran far ahead of the messages, the last hour is enough for a picture.
    let begin = end.saturating_sub(3_600);
    let each = (begin..end).map(|second| {
        let found = tally.seconds.get(&second);
        let messages = found.map_or(0, |second| second.messages) as f64;
        let p99 = found.filter(|second| !second.response.is_empty());
        Point {
            second,
            messages,
            p99_ns: p99.map(|second| second.response.quantile_ns(0.99) as f64),
        }
    });
    each.collect()
}

fn line(
    view: &View<'_>,
    subject: usize,
    letters: usize,
    values: impl Iterator<Item = (u32, Option<f64>)>,
    figure: fn(f64) -> String,
) -> Line {
    let label = view.label(subject, letters);
    let mut pieces = vec![Vec::new()];
    let mut marks = Vec::new();
    for (second, value) in values {
        let x = f64::from(second) + 0.5;
        match (value, pieces.last_mut()) {
            (Some(y), Some(piece)) => {
                piece.push((x, y));
                let what = format!("{label}, second {}: {}", second + 1, figure(y));
                marks.push((x, y, what));
            }
            _ => pieces.push(Vec::new()),
        }
    }
    // So many points would be a line again.
    if marks.len() > 60 {
        marks.clear();
    }
    Line {
        subject,
        label: Some(label),
        is_dashed: false,
        pieces,
        marks,
        spreads: Vec::new(),
    }
}
