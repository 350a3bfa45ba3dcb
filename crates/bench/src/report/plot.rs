//! A picture with two axes and lines in it.

use super::scale::{Scale, spread};
use super::view::colour;
use cloverleaf_page::markup::{Attributes, Markup, Px};

/// Letters of this size; names are as wide as the style sheet's font lets them be at most.
const LETTER_HEIGHT: f64 = 13.0;
pub(super) const LETTER_WIDTH: f64 = 6.9;
/// Left of the axis.
const LEFT: f64 = 62.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;

/// A line with its name at its end.
pub(super) struct Line {
    pub(super) subject: usize,
    /// `None`: it has no name of its own.
    pub(super) label: Option<String>,
    pub(super) is_dashed: bool,
    /// Pieces between which nothing was measured.
    pub(super) pieces: Vec<Vec<(f64, f64)>>,
    /// Points that say what they are when they are pointed at.
    pub(super) marks: Vec<(f64, f64, String)>,
    /// Least and greatest values at a place.
    pub(super) spreads: Vec<(f64, f64, f64)>,
}

/// A value that has a name on an axis.
pub(super) type Tick = (f64, String);

/// The picture.
pub(super) struct Plot {
    /// For those who cannot see it.
    pub(super) title: String,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) x: Scale,
    pub(super) x_ticks: Vec<Tick>,
    pub(super) x_name: String,
    pub(super) y: Scale,
    pub(super) y_ticks: Vec<Tick>,
    pub(super) y_name: String,
    pub(super) lines: Vec<Line>,
}

/// The place of the axes in a picture of this size: of x from left to right, of y from below.
pub(super) fn ranges(width: f64, height: f64, label_letters: usize) -> [(f64, f64); 2] {
    let right = match label_letters {
        0 => 12.0,
        letters => letters as f64 * LETTER_WIDTH + 14.0,
    };
    [(LEFT, width - right), (height - BOTTOM, TOP)]
}

/// Begins a picture that grows with the page.
pub(super) fn begin(markup: &mut Markup, title: &str, width: f64, height: f64) {
    let view_box = format!("0 0 {width} {height}");
    markup.open(
        "svg",
        &[
            ("xmlns", &"http://www.w3.org/2000/svg"),
            ("viewBox", &view_box),
            ("role", &"img"),
            ("aria-label", &title),
        ],
    );
}

/// A text in a picture.
pub(super) fn text(markup: &mut Markup, (x, y): (f64, f64), class: &str, text: &str) {
    let attributes: Attributes<'_> = &[("class", &class), ("x", &Px(x)), ("y", &Px(y))];
    markup.element("text", attributes, text);
}

/// A straight line in a picture.
pub(super) fn line(markup: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    markup.leaf(
        "line",
        &[
            ("class", &class),
            ("x1", &Px(from.0)),
            ("y1", &Px(from.1)),
            ("x2", &Px(to.0)),
            ("y2", &Px(to.1)),
        ],
    );
}

/// The names of values at the left, with a line across for each, and what they are above them.
pub(super) fn y_axis(markup: &mut Markup, y: &Scale, ticks: &[Tick], name: &str, right: f64) {
    for (value, tick) in ticks {
        let at = y.at(*value);
        line(markup, "grid", (LEFT, at), (right, at));
        text(markup, (LEFT - 8.0, at + 4.0), "tick end", tick);
    }
    text(markup, (0.0, y.range().1 - 13.0), "name", name);
}

impl Plot {
    pub(super) fn draw(&self, markup: &mut Markup) {
        begin(markup, &self.title, self.width, self.height);
        let (left, right) = self.x.range();
        let (bottom, top) = self.y.range();
        y_axis(markup, &self.y, &self.y_ticks, &self.y_name, right);
        let mut free = f64::NEG_INFINITY;
        for (value, tick) in &self.x_ticks {
            let at = self.x.at(*value);
            line(markup, "mark", (at, bottom), (at, bottom + 4.0));
            let half = tick.chars().count() as f64 * LETTER_WIDTH / 2.0;
            if at - half > free {
                text(markup, (at, bottom + 17.0), "tick middle", tick);
                free = at + half + 4.0;
            }
        }
        line(markup, "axis", (left, bottom), (right, bottom));
        let middle = (left + right) / 2.0;
        text(markup, (middle, bottom + 35.0), "name middle", &self.x_name);
        // The first subject lies above the others.
        for line in self.lines.iter().rev() {
            self.draw_line(markup, line);
        }
        self.draw_labels(markup, (bottom, top), right);
        markup.close();
    }

    fn draw_line(&self, markup: &mut Markup, line: &Line) {
        let class = colour(line.subject);
        markup.open("g", &[("class", &class)]);
        for (x, least, greatest) in &line.spreads {
            let x = self.x.at(*x);
            let (from, to) = ((x, self.y.at(*least)), (x, self.y.at(*greatest)));
            self::line(markup, "whisker", from, to);
        }
        let mut path = String::new();
        for piece in &line.pieces {
            let mut letter = 'M';
            for (x, y) in piece {
                let (x, y) = (Px(self.x.at(*x)), Px(self.y.at(*y)));
                path.push_str(&format!("{letter}{x} {y}"));
                letter = 'L';
            }
        }
        if !path.is_empty() {
            let class = if line.is_dashed {
                "line dashed"
            } else {
                "line"
            };
            markup.leaf("path", &[("class", &class), ("d", &path)]);
        }
        for (x, y, what) in &line.marks {
            let class = if line.is_dashed {
                "point hollow"
            } else {
                "point"
            };
            markup.open(
                "circle",
                &[
                    ("class", &class),
                    ("cx", &Px(self.x.at(*x))),
                    ("cy", &Px(self.y.at(*y))),
                    ("r", &3),
                ],
            );
            markup.element("title", &[], what);
            markup.close();
        }
        markup.close();
    }

    /// Names at the ends of lines, moved apart, with a thread to the line where they were moved.
    fn draw_labels(&self, markup: &mut Markup, (bottom, top): (f64, f64), right: f64) {
        let named = self.lines.iter().filter_map(|line| {
            let (x, y) = line.end()?;
            let label = line.label.as_deref()?;
            Some((line.subject, label, self.x.at(x), self.y.at(y)))
        });
        let named: Vec<_> = named.collect();
        let places: Vec<f64> = named.iter().map(|(.., y)| *y).collect();
        let ends = (top, bottom + 4.0);
        for ((subject, label, x, y), place) in
            named.iter().zip(spread(&places, LETTER_HEIGHT, ends))
        {
            markup.open("g", &[("class", &colour(*subject))]);
            if (place - y).abs() > 3.0 || right - x > 6.0 {
                line(markup, "thread", (x + 4.0, *y), (right + 7.0, place));
            }
            text(markup, (right + 9.0, place + 4.0), "label", label);
            markup.close();
        }
    }
}

impl Line {
    /// The last point.
    fn end(&self) -> Option<(f64, f64)> {
        let mark = self.marks.last().map(|(x, y, _)| (*x, *y));
        let point = self.pieces.iter().flatten().last().copied();
        match (mark, point) {
            (Some(mark), Some(point)) if mark.0 >= point.0 => Some(mark),
            (mark, point) => point.or(mark),
        }
    }
}
