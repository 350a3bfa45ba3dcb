//! A line chart with two axes, and the parts that all kinds of charts share.

use cloverleaf_page::picture::{Point, Size, dot, line, path, svg, text, titled};
use cloverleaf_page::{Axis, spread};
use maud::{Markup, html};

use super::view::colour;

/// Size of a letter in pixels. The width is an upper bound for the style sheet's font.
const LETTER_HEIGHT: f64 = 13.0;
pub(super) const LETTER_WIDTH: f64 = 6.9;
/// Margin at the left of the y axis.
const LEFT: f64 = 62.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;

/// The figures of a subject as a line, with the subject's name at the line's end.
pub(super) struct Series {
    pub(super) subject: usize,
    /// The name at the line's end. `None`: the line has no name, and is dashed.
    pub(super) label: Option<String>,
    /// Pieces of the line. Between two pieces there is no data.
    pub(super) pieces: Vec<Vec<Point>>,
    /// Points with a tooltip.
    pub(super) marks: Vec<(f64, f64, String)>,
    /// Value on the x axis, with the least and the greatest value there.
    pub(super) spreads: Vec<(f64, f64, f64)>,
}

/// A line chart.
pub(super) struct LineChart {
    /// The accessible name, for screen readers.
    pub(super) title: String,
    pub(super) size: Size,
    pub(super) x: Axis,
    pub(super) x_name: String,
    pub(super) y: Axis,
    pub(super) y_name: String,
    pub(super) series: Vec<Series>,
}

/// Maximum of letters of a name at the end of a line, in a chart of this width.
pub(super) fn label_letters(width: f64) -> usize {
    if width > 700.0 { 18 } else { 13 }
}

/// The least and the greatest of some values.
pub(super) fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    values.fold(start, |(least, most), value| {
        (least.min(value), most.max(value))
    })
}

/// The pixel ranges of both axes in a picture of this size: x from left to right, y from bottom to
/// top.
pub(super) fn ranges((width, height): Size, label_letters: usize) -> [(f64, f64); 2] {
    let right = match label_letters {
        0 => 12.0,
        letters => letters as f64 * LETTER_WIDTH + 14.0,
    };
    [(LEFT, width - right), (height - BOTTOM, TOP)]
}

/// Draws the ticks of the y axis with a grid line for each, and the axis's name above them.
pub(super) fn y_axis(y: &Axis, name: &str, right: f64) -> Markup {
    html! {
        @for (value, tick) in &y.ticks {
            @let at = y.at(*value);
            (line("grid", (LEFT, at), (right, at)))
            (text("tick end", (LEFT - 8.0, at + 4.0), tick))
        }
        (text("name", (0.0, y.range.1 - 13.0), name))
    }
}

impl LineChart {
    pub(super) fn draw(&self) -> Markup {
        let ((left, right), (bottom, _)) = (self.x.range, self.y.range);
        let middle = (left + right) / 2.0;
        let shapes = html! {
            (y_axis(&self.y, &self.y_name, right))
            (self.x_ticks())
            (line("axis", (left, bottom), (right, bottom)))
            (text("name middle", (middle, bottom + 35.0), &self.x_name))
            // The first subject lies above the others.
            @for series in self.series.iter().rev() {
                g class=(colour(series.subject)) { (self.draw_series(series)) }
            }
            (self.draw_labels())
        };
        svg("", self.size, &self.title, &shapes)
    }

    /// Draws the ticks of the x axis. Names that would overlap are left out.
    fn x_ticks(&self) -> Markup {
        let (bottom, _) = self.y.range;
        let mut free = f64::NEG_INFINITY;
        let ticks = self.x.ticks.iter().map(|(value, tick)| {
            let at = self.x.at(*value);
            let half = tick.chars().count() as f64 * LETTER_WIDTH / 2.0;
            let has_room = at - half > free;
            if has_room {
                free = at + half + 4.0;
            }
            (at, tick, has_room)
        });
        html! {
            @for (at, tick, has_room) in ticks {
                (line("mark", (at, bottom), (at, bottom + 4.0)))
                @if has_room { (text("tick middle", (at, bottom + 17.0), tick)) }
            }
        }
    }

    fn place(&self, point: Point) -> Point {
        (self.x.at(point.0), self.y.at(point.1))
    }

    fn draw_series(&self, series: &Series) -> Markup {
        let (path_class, point_class) = match series.label {
            Some(_) => ("line", "point"),
            None => ("line dashed", "point hollow"),
        };
        let pieces = series.pieces.iter();
        let pieces = pieces.map(|piece| piece.iter().map(|at| self.place(*at)));
        html! {
            @for (x, least, greatest) in &series.spreads {
                (line("whisker", self.place((*x, *least)), self.place((*x, *greatest))))
            }
            (path(path_class, pieces, false))
            @for (x, y, what) in &series.marks {
                (titled(&dot(point_class, self.place((*x, *y))), what))
            }
        }
    }

    /// Draws the names at the ends of lines. Names that would overlap are moved apart, with a thin
    /// line to the end of their line.
    fn draw_labels(&self) -> Markup {
        let (bottom, top) = self.y.range;
        let right = self.x.range.1;
        let named = self.series.iter().filter_map(|series| {
            let label = series.label.as_deref()?;
            Some((series.subject, label, self.place(series.end()?)))
        });
        let named: Vec<_> = named.collect();
        let places: Vec<f64> = named.iter().map(|(.., (_, y))| *y).collect();
        let places = spread(&places, LETTER_HEIGHT, (top, bottom + 4.0));
        html! {
            @for ((subject, label, (x, y)), place) in named.into_iter().zip(places) {
                g class=(colour(subject)) {
                    @if (place - y).abs() > 3.0 || right - x > 6.0 {
                        (line("thread", (x + 4.0, y), (right + 7.0, place)))
                    }
                    (text("label", (right + 9.0, place + 4.0), label))
                }
            }
        }
    }
}

impl Series {
    /// The last point of the line.
    fn end(&self) -> Option<Point> {
        let mark = self.marks.last().map(|(x, y, _)| (*x, *y));
        let point = self.pieces.iter().flatten().last().copied();
        match (mark, point) {
            (Some(mark), Some(point)) if mark.0 >= point.0 => Some(mark),
            (mark, point) => point.or(mark),
        }
    }
}
