//! The distribution of times, by percentiles of which each nine is as wide as the one before.

use super::plot::{self, Line, Plot};
use super::scale::{MARKS, Scale, nines_of};
use super::view::{Group, View};
use crate::figures::{self, Times};
use crate::histogram::Histogram;
use crate::outcome::Kind;
use crate::words;
use cloverleaf_page::markup::Markup;

/// Points of a line per nine.
const POINTS_PER_NINE: f64 = 40.0;
/// The greatest value stands so many nines behind the last percentile.
const MAX_BEHIND: f64 = 0.35;

/// Draws the times of all subjects of a group. `false`: there is nothing to be drawn.
pub(super) fn draw(
    markup: &mut Markup,
    view: &View<'_>,
    group: &Group<'_>,
    (width, height): (f64, f64),
) -> bool {
    let times: Vec<(usize, Histogram, Histogram)> = group
        .rows
        .iter()
        .map(|(subject, row)| {
            let response = figures::together(row, &(figures::response as Times));
            let service = figures::together(row, &(figures::service as Times));
            (*subject, response, service)
        })
        .filter(|(_, response, _)| !response.is_empty())
        .collect();
    let all = || {
        times
            .iter()
            .flat_map(|(_, response, service)| [response, service])
    };
    let Some(most) = all().map(Histogram::len).max() else {
        return false;
    };
    let nines = nines_of(MARKS[MARKS.len() - 1])
        .min((most as f64).log10())
        .max(2.0);
    let mut runs = group.rows.iter().flat_map(|(_, row)| &row.runs);
    let y_name = if runs.any(|run| run.kind == Kind::EndToEnd) {
        "until it was delivered"
    } else {
        "until it was acknowledged"
    };
    let letters = if width > 700.0 { 18 } else { 13 };
    let [x_range, y_range] = plot::ranges(width, height, letters);
    let x = Scale::percentiles(nines + MAX_BEHIND + 0.1, x_range);
    let least = all().map(Histogram::min_ns).min().unwrap_or(0).max(1_000);
    let greatest = all().map(Histogram::max_ns).max().unwrap_or(0);
    let y = Scale::log(least as f64, greatest as f64, y_range);
    let mut x_ticks = vec![(0.0, "min".to_owned())];
    x_ticks.extend(
        MARKS
            .iter()
            .filter(|share| nines_of(**share) <= nines + 1e-6)
            .map(|share| (nines_of(*share), percent(*share))),
    );
    x_ticks.push((nines + MAX_BEHIND, "max".to_owned()));
    let mut lines = Vec::new();
    for (subject, response, service) in &times {
        let label = view.label(*subject, letters);
        if !is_same(response, service) {
            let what = format!("{label}, service time");
            lines.push(line(*subject, service, nines, None, &what));
        }
        let what = format!("{label}, response time");
        lines.push(line(*subject, response, nines, Some(label), &what));
    }
    Plot {
        title: format!("Latency by percentile {}", group.name),
        width,
        height,
        x,
        x_ticks,
        x_name: "percentile".to_owned(),
        y_ticks: y
            .ticks
            .iter()
            .map(|ns| (*ns, words::time_tick(*ns)))
            .collect(),
        y,
        y_name: y_name.to_owned(),
        lines,
    }
    .draw(markup);
    true
}

/// Whether two distributions would lie over each other: in a closed loop they do.
pub(super) fn is_same(response: &Histogram, service: &Histogram) -> bool {
    MARKS.iter().all(|share| {
        let (one, two) = (response.quantile_ns(*share), service.quantile_ns(*share));
        one.abs_diff(two) <= one / 100 + 1_000
    })
}

fn line(subject: usize, times: &Histogram, nines: f64, label: Option<String>, what: &str) -> Line {
    // One of a thousand messages is the 99.9th percentile; beyond it there is only the greatest.
    let end = nines.min((times.len() as f64).log10()).max(0.0);
    let points = (end * POINTS_PER_NINE).ceil().max(1.0);
    let at = |nines: f64| (nines, times.quantile_ns(1.0 - 10f64.powf(-nines)) as f64);
    let piece = (0..=points as u32)
        .map(|n| at(end * f64::from(n) / points))
        .collect();
    let marked = MARKS.iter().filter(|share| nines_of(**share) <= end + 1e-6);
    let mut marks: Vec<_> = marked
        .map(|share| {
            let ns = times.quantile_ns(*share) as f64;
            let text = format!("{what}, {}: {}", percent(*share), words::time(ns));
            (nines_of(*share), ns, text)
        })
        .collect();
    let max_ns = times.max_ns() as f64;
    let text = format!("{what}, maximum: {}", words::time(max_ns));
    marks.push((nines + MAX_BEHIND, max_ns, text));
    Line {
        subject,
        is_dashed: label.is_none(),
        label,
        pieces: vec![piece],
        marks,
        spreads: Vec::new(),
    }
}

/// "99.9 %".
fn percent(share: f64) -> String {
    let percent = format!("{:.3}", share * 100.0);
    let short = percent.trim_end_matches('0').trim_end_matches('.');
    format!("{short}\u{a0}%")
}
