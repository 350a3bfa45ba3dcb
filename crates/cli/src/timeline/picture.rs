//! The picture: an SVG, as a file of its own or within a page.

use cloverleaf_page::picture::{line, path, rect, svg, text, titled};
use cloverleaf_page::{Axis, plain_style, svg_file, words};
use cloverleaf_server::timeline_types::{Timeline, TopicTimeline};
use maud::{Markup, PreEscaped, html};

use super::lanes::{DrawnLane, LaneGroup, clock, median, time};
use super::rows::TimelineBar;

/// The style sheet, with variables for its colours.
pub(super) const STYLE: &str = include_str!("style.css");

const WIDTH: f64 = 1280.0;
/// The left edge of the lanes; their names are left of it.
const LEFT: f64 = 330.0;
const RIGHT: f64 = WIDTH - 16.0;
/// The width of the space for names, in multiples of the font size. Names are bold, of 12 pixels;
/// the text below them is of 11 pixels, and a tenth narrower.
const NAMES_WIDTH: f64 = LEFT - 16.0 - 10.0;
const NAME_SIZES: f64 = NAMES_WIDTH / 12.0;
const ABOUT_SIZES: f64 = NAMES_WIDTH / 11.0 / 0.9;
/// The minimum height of a lane: enough for its name and two lines below.
const LANE_HEIGHT_MIN: f64 = 46.0;
/// The maximum height of a lane with many rows, as long as its rows stay visible.
const LANE_HEIGHT: f64 = 220.0;
const ROW_HEIGHT_MIN: f64 = 3.0;
const ROW_HEIGHT_MAX: f64 = 14.0;
/// A narrower bar would be invisible.
const BAR_WIDTH_MIN: f64 = 0.8;
/// The space between bars that touch, if they are wide enough.
const SEAM: f64 = 0.8;
const SEAM_BAR_WIDTH_MIN: f64 = 4.0;
/// Bars that are this narrow, and this close to each other, are drawn as one.
const CROWD_WIDTH_MAX: f64 = 1.6;
const CROWD_GAP_MAX: f64 = 0.8;
/// A bar of at least this size shows the number of its messages, if it has several.
const COUNT_WIDTH_MIN: f64 = 40.0;
const COUNT_HEIGHT_MIN: f64 = 8.0;
/// A gap that is narrower than this is not drawn.
const GAP_WIDTH_MIN: f64 = 0.4;
/// The part of a row that shows how long messages waited.
const WAIT_SHARE: f64 = 0.3;

/// A file with only the picture.
pub(super) fn file(timeline: &Timeline, groups: &[LaneGroup]) -> String {
    svg_file(draw(timeline, groups, true))
}

/// Maps times to positions from left to right.
struct TimeAxis {
    from_us: u64,
    axis: Axis,
}

impl TimeAxis {
    fn new(timeline: &Timeline) -> TimeAxis {
        let (from_us, until_us) = (timeline.from_us, timeline.until_us);
        let length_us = (until_us - from_us).max(1);
        // Beyond seconds, ticks are at 10, 15 and 30 s, and at 1 and 2 minutes.
        let minutes = [10_000_000, 15_000_000, 30_000_000, 60_000_000, 120_000_000];
        let decimal = (0..7).flat_map(|power| [1, 2, 5].map(|step| step * 10u64.pow(power)));
        let step = decimal.chain(minutes).find(|step| length_us / step <= 10);
        let step = step.unwrap_or(300_000_000);
        let ticks = (0..=length_us / step).map(|n| n * step).map(|ago_us| {
            let name = match ago_us {
                0 => "now".to_owned(),
                us => format!("−{}", words::time_tick(us as f64 * 1000.0)),
            };
            (until_us.saturating_sub(ago_us) as f64, name)
        });
        let ends = (from_us as f64, until_us as f64);
        TimeAxis {
            from_us,
            axis: Axis::between(ends, (LEFT, RIGHT), ticks.collect()),
        }
    }

    fn at(&self, us: u64) -> f64 {
        self.axis.at(us as f64)
    }

    /// Whether anything that ends at this time is visible.
    fn shows(&self, us: u64) -> bool {
        us > self.from_us
    }
}

/// The picture; if it stands alone, with its own background, title, style sheet and notes.
pub(super) fn draw(timeline: &Timeline, groups: &[LaneGroup], stands_alone: bool) -> Markup {
    let axis = TimeAxis::new(timeline);
    let top = if stands_alone { 76.0 } else { 40.0 };
    let notes = if stands_alone {
        timeline.notes.as_slice()
    } else {
        &[]
    };
    let (mut lanes, mut y) = (Vec::new(), top);
    for group in groups {
        y = draw_group(&mut lanes, &axis, group, y);
    }
    let legend_at = y + 40.0;
    let height = legend_at + 58.0 + notes.len() as f64 * 17.0;
    let title = heading(timeline);
    let shapes = html! {
        @if stands_alone {
            style { (PreEscaped(plain_style(STYLE))) }
            (rect("paper", (0.0, 0.0), (WIDTH, height)))
            (text("head", (16.0, 34.0), &title))
        }
        @for (value, name) in &axis.axis.ticks {
            @let x = axis.axis.at(*value);
            @let class = if x > RIGHT - 30.0 { "end" } else { "middle" };
            (line("grid", (x, top - 6.0), (x, y)))
            (text(class, (x, top - 12.0), name))
            (text(class, (x, y + 16.0), name))
        }
        @for shape in &lanes { (shape) }
        (draw_legend(timeline, legend_at))
        @for (at, note) in notes.iter().enumerate() {
            (text("small", (16.0, legend_at + 54.0 + at as f64 * 17.0), note))
        }
    };
    svg("timeline", (WIDTH, height), &title, &shapes)
}

/// The picture's heading: topics, length and end.
pub(super) fn heading(timeline: &Timeline) -> String {
    let names: Vec<&str> = timeline.topics.iter().map(|it| it.topic.as_str()).collect();
    let length = time(timeline.until_us - timeline.from_us);
    let end = clock(timeline.until_us);
    format!("{} · {length} until {end}", names.join(", "))
}

/// Draws the lanes of a group from `y` on, and returns the position of their end.
fn draw_group(shapes: &mut Vec<Markup>, axis: &TimeAxis, group: &LaneGroup, mut y: f64) -> f64 {
    if let Some(topic) = &group.topic {
        shapes.push(line("rule", (16.0, y + 4.0), (RIGHT, y + 4.0)));
        shapes.push(text("topic", (16.0, y + 24.0), topic));
        y += 30.0;
    }
    shapes.push(text("group", (16.0, y + 16.0), &group.heading));
    y += 24.0;
    for (at, lane) in group.lanes.iter().enumerate() {
        let rows = lane.rows as f64;
        let row_height = (LANE_HEIGHT / rows).clamp(ROW_HEIGHT_MIN, ROW_HEIGHT_MAX);
        let height = (rows * row_height).max(LANE_HEIGHT_MIN);
        if at % 2 == 0 {
            shapes.push(rect("band", (0.0, y), (WIDTH, height + 6.0)));
        }
        shapes.push(draw_names(lane, y));
        let top = y + 3.0 + ((height - rows * row_height) / 2.0).clamp(0.0, 10.0);
        let middle = y + 3.0 + height / 2.0;
        shapes.push(draw_lane(axis, lane, (top, middle), row_height));
        y += height + 6.0;
    }
    y + 8.0
}

fn draw_names(lane: &DrawnLane, y: f64) -> Markup {
    let lines = [
        ("name", &lane.name, NAME_SIZES, 15.0),
        ("small", &lane.about, ABOUT_SIZES, 30.0),
        ("small", &lane.figures, ABOUT_SIZES, 44.0),
    ];
    html! {
        @for (class, words, sizes, down) in lines {
            @let shown = shortened(words, sizes);
            @let shape = text(class, (16.0, y + down), &shown);
            @if shown == *words { (shape) } @else { (titled(&shape, words)) }
        }
    }
}

/// The part of a text that fits into `width` multiples of its font size.
fn shortened(text: &str, width: f64) -> String {
    let mut at = 0.0;
    let mut ends = text.char_indices().map(|(start, letter)| {
        at += letter_width(letter);
        (start, at)
    });
    if ends.all(|(_, end)| end <= width) {
        return text.to_owned();
    }
    let mut room = width - letter_width('…');
    let fits = |letter: &char| {
        room -= letter_width(*letter);
        room >= 0.0
    };
    let kept: String = text.chars().take_while(fits).collect();
    kept + "…"
}

/// The maximum width of a bold letter, in multiples of the font size, in the widest of the usual
/// fonts: the viewer's program chooses the font.
fn letter_width(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' | '.' | ',' | ':' | '\'' | '|' | '·' | ' ' | '\u{a0}' => 0.38,
        '-' | '(' | ')' | 'f' | 'r' | 't' => 0.50,
        'm' | 'w' | 'M' | 'W' | '…' => 1.1,
        'A'..='Z' => 0.84,
        letter if letter.is_ascii() => 0.72,
        _ => 1.0,
    }
}

fn draw_lane(axis: &TimeAxis, lane: &DrawnLane, (top, middle): (f64, f64), row: f64) -> Markup {
    let unknown = lane
        .complete_since_us
        .filter(|us| axis.shows(*us))
        .map(|since_us| {
            let size = (axis.at(since_us) - LEFT, row * lane.rows as f64);
            let why = "not known any more: newer messages took the place";
            titled(&rect("unknown", (LEFT, top), size), why)
        });
    let center = top + row / 2.0;
    let gaps = lane
        .gaps
        .iter()
        .map(|(from, to)| (axis.at(*from), axis.at(*to)));
    let waits = draw_waits(axis, lane, top, row);
    let seam = if row >= 6.0 { 1.0 } else { 0.5 };
    let share = if waits.is_empty() {
        1.0
    } else {
        1.0 - WAIT_SHARE
    };
    let height = row * share - seam;
    let points = lane.points.iter().filter(|(at_us, _)| axis.shows(*at_us));
    html! {
        @if let Some(unknown) = unknown { (unknown) }
        @for (from, to) in gaps.filter(|(from, to)| to - from > GAP_WIDTH_MIN) {
            (line("gap", (from, center), (to, center)))
        }
        @for wait in &waits { (wait) }
        @for at in 0..lane.rows {
            @let bars = lane.bars.iter().filter(|bar| bar.row == at && axis.shows(bar.to_us));
            @let bars: Vec<&TimelineBar> = bars.collect();
            @for crowd in bars.chunk_by(|last, bar| is_crowd(axis, last, bar)) {
                (draw_crowd(axis, crowd, (top + at as f64 * row, height)))
            }
        }
        @for (at_us, title) in points {
            @let at = (axis.at(*at_us) - 0.75, middle + 8.0);
            (titled(&rect("point", at, (1.5, 10.0)), title))
        }
    }
}

/// The waits of messages, each in the row of its bar; overlapping ones of a row are merged. Empty
/// if none is long enough to be visible.
fn draw_waits(axis: &TimeAxis, lane: &DrawnLane, top: f64, row: f64) -> Vec<Markup> {
    let waits = lane.bars.iter();
    let waits = waits.filter_map(|bar| Some((bar.row, bar.waits_from_us?, bar.from_us)));
    let mut waits: Vec<_> = waits.filter(|(.., to_us)| axis.shows(*to_us)).collect();
    waits.sort_unstable();
    let mut merged: Vec<(usize, u64, u64)> = Vec::new();
    for wait in waits {
        match merged.last_mut() {
            Some(open) if wait.0 == open.0 && wait.1 <= open.2 => open.2 = open.2.max(wait.2),
            _ => merged.push(wait),
        }
    }
    let height = (row * WAIT_SHARE).max(1.0);
    let drawn = merged.into_iter().filter_map(|(at, from_us, to_us)| {
        let (from, to) = (axis.at(from_us), axis.at(to_us));
        let y = top + (at as f64 + 1.0) * row - height;
        (to - from > GAP_WIDTH_MIN).then(|| rect("wait", (from, y), (to - from, height)))
    });
    drawn.collect()
}

/// Whether two neighbours in a row are too narrow, and too close to each other, to be told apart.
fn is_crowd(axis: &TimeAxis, last: &TimelineBar, bar: &TimelineBar) -> bool {
    let is_narrow =
        |bar: &TimelineBar| axis.at(bar.to_us) - axis.at(bar.from_us) <= CROWD_WIDTH_MAX;
    let gap = axis.at(bar.from_us) - axis.at(last.to_us);
    let is_alike = last.class == bar.class && last.is_marked == bar.is_marked;
    is_narrow(last) && is_narrow(bar) && is_alike && gap <= CROWD_GAP_MAX
}

/// A bar, or several that are drawn as one.
fn draw_crowd(axis: &TimeAxis, crowd: &[&TimelineBar], (y, height): (f64, f64)) -> Markup {
    let ([first, ..], [.., last]) = (crowd, crowd) else {
        return Markup::default();
    };
    let (from, to) = (axis.at(first.from_us), axis.at(last.to_us));
    let middle = y + height / 2.0;
    let half = (height / 2.0).clamp(2.0, 4.5);
    let back = from - 1.0;
    let mark = [
        (back, middle - half),
        (from + half * 1.6, middle),
        (back, middle + half),
    ];
    let shapes = html! {
        @if crowd.len() > 1 {
            (rect(first.class, (from, y), ((to - from).max(BAR_WIDTH_MIN), height)))
        } @else {
            (draw_bar(axis, first, (y, height)))
        }
        @if first.is_marked { (path("again", [mark], true)) }
    };
    if crowd.len() > 1 {
        titled(&shapes, &crowd_title(crowd))
    } else {
        titled(&shapes, &first.title)
    }
}

fn draw_bar(axis: &TimeAxis, bar: &TimelineBar, (y, height): (f64, f64)) -> Markup {
    let (begin, end) = (axis.at(bar.from_us), axis.at(bar.to_us));
    let solid = axis.at(bar.solid_from_us);
    let has_faint = solid - begin > BAR_WIDTH_MIN;
    let from = solid.min(begin.max(end - BAR_WIDTH_MIN)).max(begin);
    let seam = if end - from > SEAM_BAR_WIDTH_MIN {
        SEAM
    } else {
        0.0
    };
    let width = (end - from - seam).max(BAR_WIDTH_MIN);
    let is_large = width > COUNT_WIDTH_MIN && height > COUNT_HEIGHT_MIN;
    let count = format!("×{}", words::count(bar.messages));
    html! {
        @if has_faint {
            (rect(&format!("{} faint", bar.class), (begin, y), (solid - begin, height)))
        }
        (rect(bar.class, (from, y), (width, height)))
        // The delivery or request has not ended: a line near the end of the bar shows it.
        @if bar.is_open && width > 4.0 { (line("grid", (end - 3.0, y), (end - 3.0, y + height))) }
        @if bar.holds && bar.messages > 1 && is_large {
            (text("count", (from + 4.0, y + height / 2.0 + 3.2), &count))
        }
    }
}

fn crowd_title(crowd: &[&TimelineBar]) -> String {
    let messages: u64 = crowd.iter().map(|bar| bar.messages).sum();
    let lengths = crowd.iter().map(|bar| bar.to_us - bar.from_us).collect();
    let (count, messages) = (words::count(crowd.len() as u64), words::count(messages));
    let from_us = crowd.first().map_or(0, |bar| bar.from_us);
    format!(
        "{count} bars, too narrow to be told apart, with {messages} messages\n{} each (median)\n\
         from {}",
        time(median(lengths).unwrap_or_default()),
        clock(from_us)
    )
}

fn draw_legend(timeline: &Timeline, y: f64) -> Markup {
    let has = |has: fn(&TopicTimeline) -> bool| timeline.topics.iter().any(has);
    let has_holds = has(|topic| !topic.subscriptions.is_empty());
    let has_producers = has(|topic| !topic.producers.is_empty());
    let has_readers = has(|topic| !topic.readers.is_empty());
    let asked = "request, until answered (pale: it is still coming)";
    let fetched = "asks for messages, until it gets some";
    let entries = [
        (has_holds, "wait", "waits in the queue"),
        (has_holds, "acked", "delivered, until acknowledged"),
        (has_holds, "held", "in flight now"),
        (has_holds, "failed", "given back, rejected, timed out"),
        (has_holds, "again", "delivered again"),
        (has_producers, "asked", asked),
        (has_readers, "fetched faint", fetched),
        (has_readers, "point", "commits an offset"),
    ];
    let (mut x, mut line_y) = (16.0, y);
    let places = entries
        .into_iter()
        .filter(|entry| entry.0)
        .map(|(_, class, words)| {
            let width = words.chars().count() as f64 * 6.4 + 34.0;
            if x + width > WIDTH {
                (x, line_y) = (16.0, line_y + 18.0);
            }
            x += width;
            (class, words, (x - width, line_y))
        });
    let places: Vec<_> = places.collect();
    let mut remarks = format!(
        "At most {:.0} bars a second are recorded of a lane; of what is above, a lane says how \
         much it is.",
        timeline.pieces_per_second_max
    );
    if has_readers {
        remarks.push_str(
            " A Kafka consumer acknowledges no messages: what it does between an answer and its \
             next question, the broker cannot see.",
        );
    }
    html! {
        g.legend {
            @for (class, words, (x, y)) in places {
                @match class {
                    "again" => (path(class, [[(x, y - 9.0), (x + 8.0, y - 4.5), (x, y)]], true)),
                    "wait" => (rect(class, (x, y - 5.0), (12.0, 3.0))),
                    "point" => (rect(class, (x + 5.0, y - 10.0), (1.5, 10.0))),
                    _ => (rect(class, (x, y - 10.0), (12.0, 10.0))),
                }
                (text("", (x + 18.0, y), words))
            }
            (text("small", (16.0, line_y + 20.0), &remarks))
        }
    }
}
