//! The distribution of times by percentile, in HdrHistogram's form: each further nine has the same
//! width on the axis.

use cloverleaf_page::Axis;
use cloverleaf_page::picture::Size;
use maud::Markup;

use super::plot::{self, LineChart, Series};
use super::view::{SettingsGroup, label};
use crate::figures::{self, Times};
use crate::histogram::Histogram;
use crate::outcome::Kind;
use crate::words;

/// Percentiles that are marked, as shares.
const MARKS: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.999_99];
/// Points of a line per nine.
const POINTS_PER_NINE: f64 = 40.0;
/// The maximum is drawn this many nines to the right of the last percentile.
const MAX_BEHIND: f64 = 0.35;

/// Draws the times of all subjects of a group. `None`: the group has no times.
pub(super) fn draw(group: &SettingsGroup<'_>, size: Size) -> Option<Markup> {
    let letters = plot::label_letters(size.0);
    let times = group.rows.iter().map(|(subject, row)| {
        let response = figures::together(row, &(figures::response as Times));
        let service = figures::together(row, &(figures::service as Times));
        ((*subject, label(row, letters)), response, service)
    });
    let times: Vec<_> = times
        .filter(|(_, response, _)| !response.is_empty())
        .collect();
    let all = || {
        times
            .iter()
            .flat_map(|(_, response, service)| [response, service])
    };
    let most = all().map(Histogram::len).max()?;
    let nines = nines_of(MARKS[MARKS.len() - 1])
        .min((most as f64).log10())
        .max(2.0);
    let mut runs = group.rows.iter().flat_map(|(_, row)| &row.runs);
    let y_name = if runs.any(|run| run.kind == Kind::EndToEnd) {
        "until it was delivered"
    } else {
        "until it was acknowledged"
    };
    let [x_range, y_range] = plot::ranges(size, letters);
    let least = all().map(Histogram::min_ns).min().unwrap_or(0).max(1_000);
    let greatest = all().map(Histogram::max_ns).max().unwrap_or(0);
    let mut all_series = Vec::new();
    for ((subject, label), response, service) in &times {
        if !is_same(response, service) {
            let what = format!("{label}, service time");
            all_series.push(series(*subject, service, nines, None, &what));
        }
        let what = format!("{label}, response time");
        all_series.push(series(
            *subject,
            response,
            nines,
            Some(label.clone()),
            &what,
        ));
    }
    let chart = LineChart {
        title: format!("Latency by percentile {}", group.name),
        size,
        x: axis(nines, x_range),
        x_name: "percentile".to_owned(),
        y: Axis::log(least as f64, greatest as f64, y_range, words::time_tick),
        y_name: y_name.to_owned(),
        series: all_series,
    };
    Some(chart.draw())
}

/// The axis from the minimum to this many nines, and then the maximum.
fn axis(nines: f64, range: (f64, f64)) -> Axis {
    let ticks = marks(nines).map(|share| (nines_of(share), percent(share)));
    let (least, greatest) = (
        (0.0, "min".to_owned()),
        (nines + MAX_BEHIND, "max".to_owned()),
    );
    let ticks = std::iter::once(least).chain(ticks).chain([greatest]);
    Axis::between((0.0, nines + MAX_BEHIND + 0.1), range, ticks.collect())
}

/// The percentiles up to this many nines, as shares.
fn marks(nines: f64) -> impl Iterator<Item = f64> {
    let marks = MARKS.into_iter();
    marks.filter(move |share| nines_of(*share) <= nines + 1e-6)
}

/// The number of nines of a share: 1 for 90 %, 2 for 99 %.
fn nines_of(share: f64) -> f64 {
    -(1.0 - share).max(1e-12).log10()
}

/// Whether the lines of both distributions would coincide, as they do in a closed loop.
fn is_same(response: &Histogram, service: &Histogram) -> bool {
    MARKS.iter().all(|share| {
        let (one, two) = (response.quantile_ns(*share), service.quantile_ns(*share));
        one.abs_diff(two) <= one / 100 + 1_000
    })
}

fn series(
    subject: usize,
    times: &Histogram,
    nines: f64,
    label: Option<String>,
    what: &str,
) -> Series {
    // With a thousand messages, the last percentile is 99.9: beyond it there is only the maximum.
    let end = nines.min((times.len() as f64).log10()).max(0.0);
    let points = (end * POINTS_PER_NINE).ceil().max(1.0);
    let at = |nines: f64| (nines, times.quantile_ns(1.0 - 10f64.powf(-nines)) as f64);
    let piece = (0..=points as u32).map(|n| at(end * f64::from(n) / points));
    let marks = marks(end).map(|share| {
        let ns = times.quantile_ns(share) as f64;
        let text = format!("{what}, {}: {}", percent(share), words::time(ns));
        (nines_of(share), ns, text)
    });
    let max_ns = times.max_ns() as f64;
    let max = format!("{what}, maximum: {}", words::time(max_ns));
    Series {
        subject,
        label,
        pieces: vec![piece.collect()],
        marks: marks.chain([(nines + MAX_BEHIND, max_ns, max)]).collect(),
        spreads: Vec::new(),
    }
}

/// "99.9 %".
fn percent(share: f64) -> String {
    let percent = format!("{:.3}", share * 100.0);
    let short = percent.trim_end_matches('0').trim_end_matches('.');
    format!("{short}\u{a0}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_is_as_wide_as_the_one_before() {
        let axis = axis(3.0, (0.0, 345.0));
        let names: Vec<_> = axis
            .ticks
            .iter()
            .map(|(_, name)| name.replace('\u{a0}', " "))
            .collect();
        assert_eq!(names, ["min", "50 %", "90 %", "99 %", "99.9 %", "max"]);
        assert!((axis.at(nines_of(0.99)) - 200.0).abs() < 1e-6);
        assert!((axis.at(nines_of(0.999)) - 300.0).abs() < 1e-6);
    }
}
