//! Rate, latency and cost as lines over the values of a setting.

use cloverleaf_page::Axis;
use cloverleaf_page::picture::Size;
use maud::{Markup, html};

use super::plot::{self, LineChart, Series, ends};
use super::view::{ReportSection, label, shorten};
use crate::figures::{self, Summary};
use crate::outcome::Outcome;
use crate::words;

/// The x axis is logarithmic if its greatest value is more than this many times the least.
const LINEAR_MAX: f64 = 25.0;
const MIB: f64 = 1_048_576.0;
const LABEL_LETTERS: usize = 13;

/// One chart: its figures and their names, the form of its numbers, and whether its y axis is
/// logarithmic.
struct GrowthChart {
    name: &'static str,
    figures: Vec<(Summary, &'static str)>,
    text: fn(f64) -> String,
    tick: fn(f64) -> String,
    is_log: bool,
}

/// The charts of a section.
fn charts() -> [GrowthChart; 5] {
    let cpu = |name, figure: fn(&Outcome) -> Option<f64>| GrowthChart {
        name,
        figures: vec![(Summary::median(figure), "CPU time")],
        text: words::time,
        tick: words::time_tick,
        is_log: false,
    };
    [
        GrowthChart {
            name: "messages per second, achieved",
            figures: vec![(Summary::median(figures::rate), "rate")],
            text: words::rate,
            tick: words::tick,
            is_log: false,
        },
        GrowthChart {
            name: "response time, p99 solid, p50 dashed",
            figures: vec![
                (Summary::Share(figures::response, 0.99), "p99"),
                (Summary::Share(figures::response, 0.5), "p50"),
            ],
            text: words::time,
            tick: words::time_tick,
            is_log: true,
        },
        cpu("CPU time of the broker per message", figures::broker_cpu_ns),
        cpu(
            "CPU time of the generator per message",
            figures::client_cpu_ns,
        ),
        GrowthChart {
            name: "memory of the broker, MiB",
            figures: vec![(Summary::median(mebibytes), "memory")],
            text: |mebibytes| words::memory(mebibytes * MIB),
            tick: words::tick,
            is_log: false,
        },
    ]
}

/// Draws the charts that have data.
pub(super) fn draw(section: &ReportSection<'_>, size: Size) -> Markup {
    let charts = charts();
    let drawn = charts.iter().filter_map(|chart| chart.draw(section, size));
    html! { @for chart in drawn { figure { (chart) } } }
}

impl GrowthChart {
    fn draw(&self, section: &ReportSection<'_>, size: Size) -> Option<Markup> {
        let mut subjects: Vec<usize> = section.rows().map(|(subject, _)| subject).collect();
        subjects.sort_unstable();
        subjects.dedup();
        let figures = 0..self.figures.len();
        let of = |subject| figures.clone().map(move |figure| (subject, figure));
        let each = subjects.into_iter().flat_map(of);
        let series = each.filter_map(|(subject, figure)| self.series(section, subject, figure));
        let series: Vec<Series> = series.collect();
        let points = || series.iter().flat_map(|it| it.pieces.iter().flatten());
        let spreads = series.iter().flat_map(|it| &it.spreads);
        series.first()?;
        let (x_least, x_most) = ends(points().map(|(x, _)| *x));
        let values = spreads.flat_map(|(_, least, most)| [*least, *most]);
        let (y_least, y_most) = ends(values.chain(points().map(|(_, y)| *y)));
        let [x_range, y_range] = plot::ranges(size, LABEL_LETTERS);
        let x = if x_least > 0.0 && x_most / x_least > LINEAR_MAX {
            Axis::log(x_least, x_most, x_range, words::tick)
        } else {
            Axis::from_zero(x_most, 5, x_range, words::tick)
        };
        let y = if self.is_log {
            Axis::log(y_least, y_most, y_range, self.tick)
        } else {
            Axis::from_zero(y_most, 4, y_range, self.tick)
        };
        let x_name = section.varies.first().copied().unwrap_or_default();
        let chart = LineChart {
            title: format!("{} by {x_name}", self.name),
            size,
            x,
            x_name: shorten(x_name, (size.0 / plot::LETTER_WIDTH) as usize / 2),
            y,
            y_name: self.name.to_owned(),
            series,
        };
        Some(chart.draw())
    }

    /// A figure of a subject over the values of the setting. `None`: the figure is unknown.
    fn series(&self, section: &ReportSection<'_>, subject: usize, at: usize) -> Option<Series> {
        let (figure, what) = &self.figures[at];
        let groups = section.groups.iter();
        let rows = groups.flat_map(|group| group.rows.iter().map(|row| (group.variations, row)));
        let points = rows.filter_map(|(variations, (of, row))| {
            let value = variations.first().filter(|_| *of == subject)?.value;
            let median = figure.of(row)?;
            let (least, most) = figure.spread(row).unwrap_or((median, median));
            Some((value, median, least, most, *row))
        });
        let mut points: Vec<_> = points.collect();
        points.sort_by(|(one, ..), (two, ..)| one.total_cmp(two));
        let (.., row) = points.first()?;
        let name = label(row, 60);
        let marks = points.iter().map(|(x, y, ..)| {
            let (at, value) = (words::whole_or_number(*x), (self.text)(*y));
            (*x, *y, format!("{name}, {what} at {at}: {value}"))
        });
        let spreads = points
            .iter()
            .map(|(x, _, least, most, _)| (*x, *least, *most));
        Some(Series {
            subject,
            label: (at == 0).then(|| label(row, LABEL_LETTERS)),
            pieces: vec![points.iter().map(|(x, y, ..)| (*x, *y)).collect()],
            marks: marks.collect(),
            spreads: spreads.filter(|(_, least, most)| least < most).collect(),
        })
    }
}

/// The broker's memory in MiB, so that the axis has round numbers.
fn mebibytes(outcome: &Outcome) -> Option<f64> {
    figures::memory_bytes(outcome).map(|bytes| bytes / MIB)
}
