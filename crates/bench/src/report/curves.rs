//! How something grows with a setting: rate, latency and cost as lines over its values.

use super::plot::{self, Line, Plot};
use super::scale::Scale;
use super::view::{Section, View, shorten};
use crate::figures::{self, Summary};
use crate::outcome::Outcome;
use crate::words;
use cloverleaf_page::markup::Markup;

/// Values that are further apart stand on a logarithmic axis.
const LINEAR_MAX: f64 = 25.0;
const MIB: f64 = 1_048_576.0;
const LABEL_LETTERS: usize = 13;

/// One picture: a figure, how it is called, written, and whether its axis is logarithmic.
struct Curve {
    name: &'static str,
    figures: Vec<(Summary, &'static str)>,
    text: fn(f64) -> String,
    tick: fn(f64) -> String,
    is_log: bool,
}

/// Draws all that is known of a section, a picture each.
pub(super) fn draw(
    markup: &mut Markup,
    view: &View<'_>,
    section: &Section<'_>,
    (width, height): (f64, f64),
) {
    let curves = [
        Curve {
            name: "messages per second, achieved",
            figures: vec![(Summary::median(figures::rate), "rate")],
            text: words::rate,
            tick: words::tick,
            is_log: false,
        },
        Curve {
            name: "response time, p99 solid, p50 dashed",
            figures: vec![
                (Summary::Share(figures::response, 0.99), "p99"),
                (Summary::Share(figures::response, 0.5), "p50"),
            ],
            text: words::time,
            tick: words::time_tick,
            is_log: true,
        },
        Curve {
            name: "CPU time of the broker per message",
            figures: vec![(Summary::median(figures::broker_cpu_ns), "CPU time")],
            text: words::time,
            tick: words::time_tick,
            is_log: false,
        },
        Curve {
            name: "CPU time of the generator per message",
            figures: vec![(Summary::median(figures::client_cpu_ns), "CPU time")],
            text: words::time,
            tick: words::time_tick,
            is_log: false,
        },
        Curve {
            name: "memory of the broker, MiB",
            figures: vec![(Summary::median(mebibytes), "memory")],
            text: |mebibytes| words::memory(mebibytes * MIB),
            tick: words::tick,
            is_log: false,
        },
    ];
    let name = section.varies.first().copied().unwrap_or_default();
    for curve in curves {
        let Some(plot) = curve.plot(view, section, name, (width, height)) else {
            continue;
        };
        markup.open("figure", &[]);
        plot.draw(markup);
        markup.close();
    }
}

impl Curve {
    fn plot(
        &self,
        view: &View<'_>,
        section: &Section<'_>,
        x_name: &str,
        (width, height): (f64, f64),
    ) -> Option<Plot> {
        let mut lines = Vec::new();
        for subject in 0..view.subjects.len() {
            for (at, (figure, what)) in self.figures.iter().enumerate() {
                let label = (at == 0).then(|| view.label(subject, LABEL_LETTERS));
                lines.push(self.line(view, section, subject, figure, what, label));
            }
        }
        let points = || {
            lines
                .iter()
                .flat_map(|line: &Line| line.pieces.iter().flatten())
        };
        let spreads = || lines.iter().flat_map(|line| &line.spreads);
        points().next()?;
        let (x_least, x_most) = ends(points().map(|(x, _)| *x));
        let values = spreads().flat_map(|(_, least, most)| [*least, *most]);
        let (y_least, y_most) = ends(values.chain(points().map(|(_, y)| *y)));
        let [x_range, y_range] = plot::ranges(width, height, LABEL_LETTERS);
        let x = if x_least > 0.0 && x_most / x_least > LINEAR_MAX {
            Scale::log(x_least, x_most, x_range)
        } else {
            Scale::from_zero(x_most, 5, x_range)
        };
        let y = if self.is_log {
            Scale::log(y_least, y_most, y_range)
        } else {
            Scale::from_zero(y_most, 4, y_range)
        };
        Some(Plot {
            title: format!("{} by {x_name}", self.name),
            width,
            height,
            x_ticks: x
                .ticks
                .iter()
                .map(|value| (*value, words::tick(*value)))
                .collect(),
            x,
            x_name: shorten(x_name, (width / plot::LETTER_WIDTH) as usize / 2),
            y_ticks: y
                .ticks
                .iter()
                .map(|value| (*value, (self.tick)(*value)))
                .collect(),
            y,
            y_name: self.name.to_owned(),
            lines,
        })
    }

    fn line(
        &self,
        view: &View<'_>,
        section: &Section<'_>,
        subject: usize,
        figure: &Summary,
        what: &str,
        label: Option<String>,
    ) -> Line {
        let mut rows: Vec<_> = section
            .groups
            .iter()
            .flat_map(|group| {
                group
                    .rows
                    .iter()
                    .map(|(of, row)| (*of, group.variations, *row))
            })
            .filter(|(of, ..)| *of == subject)
            .filter_map(|(_, variations, row)| {
                let value = variations.first()?.value;
                let (of, spread) = (figure.of(row)?, figure.spread(row));
                Some((value, of, spread.unwrap_or((of, of))))
            })
            .collect();
        rows.sort_by(|(one, ..), (two, ..)| one.total_cmp(two));
        let name = view.label(subject, 60);
        let mark = |(x, y, _): &(f64, f64, _)| {
            let at = words::whole_or_number(*x);
            (
                *x,
                *y,
                format!("{name}, {what} at {at}: {}", (self.text)(*y)),
            )
        };
        let is_spread = |(least, most): &(f64, f64)| least < most;
        Line {
            subject,
            is_dashed: label.is_none(),
            label,
            pieces: vec![rows.iter().map(|(x, y, _)| (*x, *y)).collect()],
            marks: rows.iter().map(mark).collect(),
            spreads: rows
                .iter()
                .filter(|(.., spread)| is_spread(spread))
                .map(|(x, _, (least, most))| (*x, *least, *most))
                .collect(),
        }
    }
}

/// The broker's memory, so that its axis has round numbers.
fn mebibytes(outcome: &Outcome) -> Option<f64> {
    figures::memory_bytes(outcome).map(|bytes| bytes / MIB)
}

/// The least and the greatest.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    values.fold(start, |(least, most), value| {
        (least.min(value), most.max(value))
    })
}
