//! The picture: an SVG that stands alone, or stands in a page.

use cloverleaf_page::markup::{Attributes, Markup, Px};
use cloverleaf_page::words;
use cloverleaf_server::timeline_types::Timeline;

use super::lanes::{Group, Lane, clock, time};
use super::rows::Bar;

/// Colours for light and dark; a page takes them too.
pub(super) const STYLE: &str = include_str!("style.css");

const WIDTH: f64 = 1280.0;
/// Where the lanes begin; their names stand left of it.
const LEFT: f64 = 330.0;
const RIGHT: f64 = WIDTH - 16.0;
/// The width left of the lanes, in sizes of the letters there: names are bold, of 12 pixels, and
/// the text below them is of 11, and narrower by a tenth.
const NAMES_WIDTH: f64 = LEFT - 16.0 - 10.0;
const NAME_SIZES: f64 = NAMES_WIDTH / 12.0;
const ABOUT_SIZES: f64 = NAMES_WIDTH / 11.0 / 0.9;
/// A lane has room for its name and two lines below it.
const LANE_HEIGHT_MIN: f64 = 46.0;
/// A lane with many rows is not higher than this, if its rows can be seen.
const LANE_HEIGHT: f64 = 220.0;
const ROW_HEIGHT_MIN: f64 = 3.0;
const ROW_HEIGHT_MAX: f64 = 14.0;
/// A bar that is narrower could not be seen.
const BAR_WIDTH_MIN: f64 = 0.8;
/// Between bars of which one begins when the other ends, if they are wide enough.
const SEAM: f64 = 0.8;
const SEAM_FROM: f64 = 4.0;
/// Bars so narrow, and so near to each other, are drawn as one.
const CROWD_WIDTH_MAX: f64 = 1.6;
const CROWD_GAP_MAX: f64 = 0.8;
/// A bar that is large enough says how many messages it has, if it is not one.
const COUNT_WIDTH_MIN: f64 = 40.0;
const COUNT_HEIGHT_MIN: f64 = 8.0;
/// The part of a row that shows how long a message waited.
const WAIT_SHARE: f64 = 0.3;

/// A picture that stands alone.
pub(super) fn svg(timeline: &Timeline, groups: &[Group]) -> String {
    let mut markup = Markup::default();
    draw(&mut markup, timeline, groups, true);
    markup.finish() + "\n"
}

/// Where things are, from left to right.
#[derive(Clone, Copy)]
struct Axis {
    from_us: u64,
    until_us: u64,
}

impl Axis {
    fn at(&self, us: u64) -> f64 {
        let us = us.clamp(self.from_us, self.until_us);
        let length = (self.until_us - self.from_us).max(1) as f64;
        LEFT + (us - self.from_us) as f64 / length * (RIGHT - LEFT)
    }

    /// Times before the end that have a name, in microseconds.
    fn ticks(&self) -> Vec<u64> {
        const STEPS: [u64; 3] = [1, 2, 5];
        let length_us = (self.until_us - self.from_us).max(1);
        // Minutes are counted in halves and thirds.
        let minutes = [10_000_000, 15_000_000, 30_000_000, 60_000_000, 120_000_000];
        let powers = (0..8).map(|power| 10u64.pow(power));
        let decimal = powers.flat_map(|power| STEPS.map(|step| step * power));
        let mut steps: Vec<u64> = decimal.filter(|step| *step < 10_000_000).collect();
        steps.extend(minutes);
        let fits = |step: &&u64| length_us / **step <= 10;
        let step = steps.iter().find(fits).copied().unwrap_or(300_000_000);
        (0..)
            .map(|n| n * step)
            .take_while(|us| *us <= length_us)
            .collect()
    }
}

/// Adds the picture to a document.
pub(super) fn draw(markup: &mut Markup, timeline: &Timeline, groups: &[Group], stands_alone: bool) {
    let axis = Axis {
        from_us: timeline.from_us,
        until_us: timeline.until_us,
    };
    let top = if stands_alone { 76.0 } else { 40.0 };
    let mut body = Markup::default();
    let mut y = top;
    for group in groups {
        y = draw_group(&mut body, axis, group, y);
    }
    let legend_at = y + 40.0;
    let notes = if stands_alone {
        timeline.notes.len()
    } else {
        0
    };
    let height = legend_at + 58.0 + notes as f64 * 17.0;
    let title = heading(timeline);
    let view_box = format!("0 0 {WIDTH} {height}");
    let attributes: Attributes<'_> = &[
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("class", &"timeline"),
        ("viewBox", &view_box),
        ("role", &"img"),
        ("aria-label", &title),
    ];
    markup.open("svg", attributes);
    if stands_alone {
        markup.open("style", &[]);
        markup.verbatim(STYLE);
        markup.close();
        rect(markup, "paper", (0.0, 0.0), (WIDTH, height));
        text(markup, "head", (16.0, 34.0), &title);
    }
    draw_axis(markup, axis, (top, y));
    markup.piece(body);
    draw_legend(markup, timeline, legend_at);
    if stands_alone {
        for (at, note) in timeline.notes.iter().enumerate() {
            let y = legend_at + 54.0 + at as f64 * 17.0;
            text(markup, "small", (16.0, y), note);
        }
    }
    markup.close();
}

/// The picture's heading: topics, length and end.
pub(super) fn heading(timeline: &Timeline) -> String {
    let names: Vec<&str> = timeline.topics.iter().map(|it| it.topic.as_str()).collect();
    let length = time(timeline.until_us - timeline.from_us);
    format!(
        "{} · {length} until {}",
        names.join(", "),
        clock(timeline.until_us)
    )
}

fn draw_axis(markup: &mut Markup, axis: Axis, (top, bottom): (f64, f64)) {
    for ago_us in axis.ticks() {
        let x = axis.at(axis.until_us - ago_us);
        line(markup, "grid", (x, top - 6.0), (x, bottom));
        let label = match ago_us {
            0 => "now".to_owned(),
            us => format!("−{}", words::time_tick(us as f64 * 1000.0)),
        };
        let class = if x > RIGHT - 30.0 { "end" } else { "middle" };
        text(markup, class, (x, top - 12.0), &label);
        text(markup, class, (x, bottom + 16.0), &label);
    }
}

fn draw_group(markup: &mut Markup, axis: Axis, group: &Group, mut y: f64) -> f64 {
    if group.is_first {
        line(markup, "rule", (16.0, y + 4.0), (RIGHT, y + 4.0));
        text(markup, "topic", (16.0, y + 24.0), &group.topic);
        y += 30.0;
    }
    text(markup, "group", (16.0, y + 16.0), &group.heading);
    y += 24.0;
    for (at, lane) in group.lanes.iter().enumerate() {
        let rows = lane.rows as f64;
        let row_height = (LANE_HEIGHT / rows).clamp(ROW_HEIGHT_MIN, ROW_HEIGHT_MAX);
        let height = (rows * row_height).max(LANE_HEIGHT_MIN);
        if at % 2 == 0 {
            rect(markup, "band", (0.0, y), (WIDTH, height + 6.0));
        }
        draw_names(markup, lane, y);
        let top = y + 3.0 + ((height - rows * row_height) / 2.0).clamp(0.0, 10.0);
        draw_lane(
            markup,
            axis,
            lane,
            (top, y + 3.0 + height / 2.0),
            row_height,
        );
        y += height + 6.0;
    }
    y + 8.0
}

fn draw_names(markup: &mut Markup, lane: &Lane, y: f64) {
    let lines = [
        ("name", &lane.name, NAME_SIZES, 15.0),
        ("small", &lane.about, ABOUT_SIZES, 30.0),
        ("small", &lane.figures, ABOUT_SIZES, 44.0),
    ];
    for (class, words, sizes, down) in lines {
        let shown = cut(words, sizes);
        markup.open("g", &[]);
        text(markup, class, (16.0, y + down), &shown);
        if shown != *words {
            markup.element("title", &[], words);
        }
        markup.close();
    }
}

/// As much of a text as fits into so many sizes of its letters.
fn cut(text: &str, width: f64) -> String {
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

/// How wide a bold letter is at most, in sizes, in the widest of the fonts that are usual: whoever
/// draws the picture takes the one that there is.
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

fn draw_lane(markup: &mut Markup, axis: Axis, lane: &Lane, (top, middle): (f64, f64), row: f64) {
    if let Some(since_us) = lane.complete_since_us.filter(|us| *us > axis.from_us) {
        markup.open("g", &[("class", &"b")]);
        rect(
            markup,
            "unknown",
            (LEFT, top),
            (axis.at(since_us) - LEFT, row * lane.rows as f64),
        );
        let text = "not known any more: newer messages took the place";
        markup.element("title", &[], text);
        markup.close();
    }
    let center = top + row / 2.0;
    let seen = |us: u64| us > axis.from_us;
    for (from_us, to_us) in lane.gaps.iter().filter(|(_, to_us)| seen(*to_us)) {
        let (from, to) = (axis.at(*from_us), axis.at(*to_us));
        if to - from > 0.4 {
            line(markup, "gap", (from, center), (to, center));
        }
    }
    let has_waits = draw_waits(markup, axis, lane, top, row);
    let gap = if row >= 6.0 { 1.0 } else { 0.5 };
    let height = if has_waits {
        row * (1.0 - WAIT_SHARE) - gap
    } else {
        row - gap
    };
    for row_of in 0..lane.rows {
        let bars = lane
            .bars
            .iter()
            .filter(|bar| bar.row == row_of && seen(bar.to_us));
        let y = top + row_of as f64 * row;
        draw_row(markup, axis, bars, (y, height));
    }
    for (at_us, title) in lane.points.iter().filter(|(at_us, _)| seen(*at_us)) {
        markup.open("g", &[("class", &"b")]);
        let at = (axis.at(*at_us) - 0.75, middle + 8.0);
        rect(markup, "point", at, (1.5, 10.0));
        markup.element("title", &[], title);
        markup.close();
    }
}

/// How long messages waited, each in the row of its bar, those of a row together. Whether there is
/// anything to be seen of it.
fn draw_waits(markup: &mut Markup, axis: Axis, lane: &Lane, top: f64, row: f64) -> bool {
    let mut waits: Vec<(usize, u64, u64)> = lane
        .bars
        .iter()
        .filter_map(|bar| Some((bar.row, bar.waits_from_us?, bar.from_us)))
        .filter(|(_, _, to_us)| *to_us > axis.from_us)
        .collect();
    waits.sort_unstable();
    let (mut merged, mut left) = (Vec::<(usize, u64, u64)>::new(), waits.into_iter());
    if let Some(mut open) = left.next() {
        for wait in left {
            if wait.0 == open.0 && wait.1 <= open.2 {
                open.2 = open.2.max(wait.2);
            } else {
                merged.push(open);
                open = wait;
            }
        }
        merged.push(open);
    }
    let height = (row * WAIT_SHARE).max(1.0);
    let mut is_seen = false;
    for (row_of, from_us, to_us) in merged {
        let (from, to) = (axis.at(from_us), axis.at(to_us));
        let y = top + (row_of as f64 + 1.0) * row - height;
        if to - from > 0.4 {
            rect(markup, "wait", (from, y), (to - from, height));
            is_seen = true;
        }
    }
    is_seen
}

/// The bars of one row, those that are too many to be told apart as one.
fn draw_row<'b>(
    markup: &mut Markup,
    axis: Axis,
    bars: impl Iterator<Item = &'b Bar>,
    (y, height): (f64, f64),
) {
    let mut crowd: Vec<&Bar> = Vec::new();
    for bar in bars {
        let is_narrow = axis.at(bar.to_us) - axis.at(bar.from_us) <= CROWD_WIDTH_MAX;
        let joins = crowd.last().is_some_and(|last| {
            let gap = axis.at(bar.from_us) - axis.at(last.to_us);
            let alike = last.class == bar.class && last.is_marked == bar.is_marked;
            is_narrow && alike && gap <= CROWD_GAP_MAX
        });
        if !joins {
            draw_crowd(markup, axis, &crowd, (y, height));
            crowd.clear();
        }
        crowd.push(bar);
        if !is_narrow {
            draw_crowd(markup, axis, &crowd, (y, height));
            crowd.clear();
        }
    }
    draw_crowd(markup, axis, &crowd, (y, height));
}

fn draw_crowd(markup: &mut Markup, axis: Axis, crowd: &[&Bar], (y, height): (f64, f64)) {
    let (Some(first), Some(last)) = (crowd.first(), crowd.last()) else {
        return;
    };
    let (from, to) = (axis.at(first.from_us), axis.at(last.to_us));
    let width = (to - from).max(BAR_WIDTH_MIN);
    markup.open("g", &[("class", &"b")]);
    if crowd.len() > 1 {
        rect(markup, first.class, (from, y), (width, height));
        markup.element("title", &[], crowd_title(crowd));
    } else {
        let solid = axis.at(first.solid_from_us);
        if solid - from > BAR_WIDTH_MIN {
            let faint = format!("{} faint", first.class);
            rect(markup, &faint, (from, y), (solid - from, height));
        }
        let from = solid.min(from + width - BAR_WIDTH_MIN).max(from);
        let seam = if to - from > SEAM_FROM { SEAM } else { 0.0 };
        let width = (to - from - seam).max(BAR_WIDTH_MIN);
        rect(markup, first.class, (from, y), (width, height));
        if first.is_open && width > 4.0 {
            // It goes on.
            let tip = (to - 3.0, y + height / 2.0);
            line(markup, "grid", (tip.0, y), (tip.0, y + height));
        }
        if first.holds && first.messages > 1 && width > COUNT_WIDTH_MIN && height > COUNT_HEIGHT_MIN
        {
            let count = format!("×{}", words::count(first.messages));
            text(
                markup,
                "count",
                (from + 4.0, y + height / 2.0 + 3.2),
                &count,
            );
        }
        markup.element("title", &[], &first.title);
    }
    if first.is_marked {
        let half = (height / 2.0).clamp(2.0, 4.5);
        let middle = y + height / 2.0;
        let path = format!(
            "M{} {}L{} {}L{} {}Z",
            Px(from - 1.0),
            Px(middle - half),
            Px(from + half * 1.6),
            Px(middle),
            Px(from - 1.0),
            Px(middle + half)
        );
        markup.leaf("path", &[("class", &"again"), ("d", &path)]);
    }
    markup.close();
}

fn crowd_title(crowd: &[&Bar]) -> String {
    let messages: u64 = crowd.iter().map(|bar| bar.messages).sum();
    let mut lengths: Vec<u64> = crowd.iter().map(|bar| bar.to_us - bar.from_us).collect();
    lengths.sort_unstable();
    let median = lengths.get(lengths.len() / 2).copied().unwrap_or_default();
    let (count, messages) = (words::count(crowd.len() as u64), words::count(messages));
    let from_us = crowd.first().map_or(0, |bar| bar.from_us);
    format!(
        "{count} bars, too narrow to be told apart, with {messages} messages\n{} each (median)\n\
         from {}",
        time(median),
        clock(from_us)
    )
}

fn draw_legend(markup: &mut Markup, timeline: &Timeline, y: f64) {
    let subjects = timeline.topics.iter();
    let has_holds = subjects
        .clone()
        .any(|topic| !topic.subscriptions.is_empty());
    let has_producers = subjects.clone().any(|topic| !topic.producers.is_empty());
    let has_readers = subjects.clone().any(|topic| !topic.readers.is_empty());
    let mut entries: Vec<(&str, &str)> = Vec::new();
    if has_holds {
        entries.push(("wait", "waits in the queue"));
        entries.push(("acked", "delivered, until acknowledged"));
        entries.push(("held", "in flight now"));
        entries.push(("failed", "given back, rejected, timed out"));
        entries.push(("again", "delivered again"));
    }
    if has_producers {
        entries.push((
            "asked",
            "request, until answered (pale: it is still coming)",
        ));
    }
    if has_readers {
        entries.push(("fetched faint", "asks for messages, until it gets some"));
        entries.push(("point", "commits an offset"));
    }
    markup.open("g", &[("class", &"legend")]);
    let (mut x, mut line_y) = (16.0, y);
    for (class, words) in entries {
        let width = words.chars().count() as f64 * 6.4 + 34.0;
        if x + width > WIDTH {
            (x, line_y) = (16.0, line_y + 18.0);
        }
        match class {
            "again" => {
                let path = format!(
                    "M{x} {}L{} {}L{x} {}Z",
                    line_y - 9.0,
                    x + 8.0,
                    line_y - 4.5,
                    line_y
                );
                markup.leaf("path", &[("class", &class), ("d", &path)]);
            }
            "wait" => rect(markup, class, (x, line_y - 5.0), (12.0, 3.0)),
            "point" => rect(markup, class, (x + 5.0, line_y - 10.0), (1.5, 10.0)),
            _ => rect(markup, class, (x, line_y - 10.0), (12.0, 10.0)),
        }
        text(markup, "", (x + 18.0, line_y), words);
        x += width;
    }
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
    text(markup, "small", (16.0, line_y + 20.0), &remarks);
    markup.close();
}

fn rect(markup: &mut Markup, class: &str, at: (f64, f64), size: (f64, f64)) {
    let attributes: Attributes<'_> = &[
        ("class", &class),
        ("x", &Px(at.0)),
        ("y", &Px(at.1)),
        ("width", &Px(size.0.max(0.1))),
        ("height", &Px(size.1.max(0.1))),
    ];
    markup.leaf("rect", attributes);
}

fn line(markup: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    let attributes: Attributes<'_> = &[
        ("class", &class),
        ("x1", &Px(from.0)),
        ("y1", &Px(from.1)),
        ("x2", &Px(to.0)),
        ("y2", &Px(to.1)),
    ];
    markup.leaf("line", attributes);
}

fn text(markup: &mut Markup, class: &str, at: (f64, f64), words: &str) {
    let attributes: Attributes<'_> = &[("class", &class), ("x", &Px(at.0)), ("y", &Px(at.1))];
    markup.element("text", attributes, words);
}
