//! The lanes of a timeline as they are drawn, with their names, bars and figures.

use cloverleaf_page::words;
use cloverleaf_server::timeline_types::ExchangeKind::{Commit, Fetch, Publish};
use cloverleaf_server::timeline_types::{
    ExchangeLane, ExchangePiece, HoldLane, HoldOutcome, HoldPiece, LaneOwner, Timeline,
};

use super::rows::{TimelineBar, arrange};

/// Maximum messages of a lane, and of a piece, that are drawn one by one.
const SINGLE_BARS_MAX: u64 = 4_096;
const SINGLES_MAX: u32 = 16;

/// Lanes under one heading: consumers of a subscription, or producers or readers of a topic.
#[derive(Debug)]
pub(super) struct LaneGroup {
    /// The topic's name, in the first group of a topic.
    pub(super) topic: Option<String>,
    pub(super) heading: String,
    pub(super) lanes: Vec<DrawnLane>,
}

/// One lane: the record of a consumer or a connection, as it is drawn.
#[derive(Debug)]
pub(super) struct DrawnLane {
    /// The name of the consumer or connection.
    pub(super) name: String,
    /// Its description, below the name.
    pub(super) about: String,
    /// Its figures, below that.
    pub(super) figures: String,
    pub(super) bars: Vec<TimelineBar>,
    pub(super) rows: usize,
    /// Time spans between an answer and the next request.
    pub(super) gaps: Vec<(u64, u64)>,
    /// Marks at points in time, each with its description.
    pub(super) points: Vec<(u64, String)>,
    /// Before this time the record has gaps; `None`: it has none.
    pub(super) complete_since_us: Option<u64>,
}

/// All lanes of an answer, in groups.
pub(super) fn of(timeline: &Timeline) -> Vec<LaneGroup> {
    let mut groups = Vec::new();
    for topic in &timeline.topics {
        let mut name = Some(topic.topic.clone());
        let mut add = |heading: String, lanes: Vec<DrawnLane>| {
            let topic = name.take();
            groups.push(LaneGroup {
                topic,
                heading,
                lanes,
            });
        };
        let requests = |lanes: &[ExchangeLane]| {
            let lanes = lanes.iter().map(|lane| exchanges(lane, timeline));
            lanes.collect::<Vec<_>>()
        };
        if !topic.producers.is_empty() {
            add("Producers".to_owned(), requests(&topic.producers));
        }
        for subscription in &topic.subscriptions {
            let waiting = match subscription.depth {
                0 => String::new(),
                depth => format!(" · {} waiting now", words::count(depth)),
            };
            let heading = format!("Consumers · subscription {}{waiting}", subscription.name);
            let lanes = subscription.consumers.iter();
            add(heading, lanes.map(|lane| holds(lane, timeline)).collect());
        }
        if !topic.readers.is_empty() {
            add("Readers by offset".to_owned(), requests(&topic.readers));
        } else if topic.producers.is_empty() && topic.subscriptions.is_empty() {
            let heading = "Nobody has published to it or read from it in this time";
            add(heading.to_owned(), Vec::new());
        }
    }
    groups
}

/// The number of lanes and bars that were drawn, for one line of output.
pub(super) fn summary(groups: &[LaneGroup]) -> String {
    let lanes = || groups.iter().flat_map(|group| &group.lanes);
    let bars: usize = lanes().map(|lane| lane.bars.len()).sum();
    format!(
        "{} lanes, {} bars",
        lanes().count(),
        words::count(bars as u64)
    )
}

fn holds(lane: &HoldLane, timeline: &Timeline) -> DrawnLane {
    let owner = &lane.owner;
    let pieces = || {
        lane.holds
            .iter()
            .filter(|it| it.ended_us >= timeline.from_us)
    };
    let messages: u64 = pieces().map(|piece| u64::from(piece.count)).sum();
    // One bar for each message, as long as they can be told apart: messages may be in one piece
    // only because they happened to be acknowledged together.
    let is_single = messages <= SINGLE_BARS_MAX;
    let drawn = pieces().flat_map(|piece| {
        if is_single {
            singles(piece)
        } else {
            vec![*piece]
        }
    });
    let mut bars: Vec<TimelineBar> = drawn.map(|piece| hold(&piece, timeline)).collect();
    let ended = pieces().filter(|piece| piece.outcome != HoldOutcome::Held);
    let held = ended.map(|it| it.ended_us.saturating_sub(it.delivered_us));
    let mut figures = vec![plural(messages, "message")];
    if let Some(median) = median(held.collect()) {
        figures.push(format!("held {} (median)", time(median)));
    }
    let mut about = about(owner);
    match (lane.pulls, lane.window) {
        (true, _) => about.push("asks for each message".to_owned()),
        (false, 0) => {}
        (false, u32::MAX) => about.push("no limit in flight".to_owned()),
        (false, window) => about.push(format!("credit {}", words::count(window.into()))),
    }
    let has_label =
        owner.client_id.is_empty() && owner.protocol.is_some() && !lane.label.is_empty();
    let name = if has_label {
        lane.label.clone()
    } else {
        name(owner)
    };
    DrawnLane {
        name,
        about: about.join(" · "),
        figures: with_left_out(figures, owner),
        rows: arrange(&mut bars),
        bars,
        gaps: Vec::new(),
        points: Vec::new(),
        complete_since_us: owner.complete_since_us,
    }
}

/// The messages of a piece, each as a piece of its own, if they are few enough for a row each.
fn singles(piece: &HoldPiece) -> Vec<HoldPiece> {
    if !(2..=SINGLES_MAX).contains(&piece.count) {
        return vec![*piece];
    }
    let single = |at| HoldPiece {
        first: piece.first + u64::from(at),
        count: 1,
        ..*piece
    };
    (0..piece.count).map(single).collect()
}

fn hold(piece: &HoldPiece, timeline: &Timeline) -> TimelineBar {
    let (class, what) = match piece.outcome {
        HoldOutcome::Held => ("held", "in flight for"),
        HoldOutcome::Acked => ("acked", "acknowledged after"),
        HoldOutcome::Nacked => ("failed", "given back after"),
        HoldOutcome::Rejected => ("failed", "rejected after"),
        HoldOutcome::TimedOut => ("failed", "not answered in time, after"),
        HoldOutcome::Left => ("failed", "given back, because the consumer left, after"),
    };
    let (first, from_us) = (piece.first, piece.delivered_us);
    let places = match piece.count {
        0 | 1 => format!("message {first}"),
        count => {
            let last = first + u64::from(count - 1);
            format!("{} messages {first} to {last}", words::count(count.into()))
        }
    };
    let partition = match piece.partition {
        0 => String::new(),
        partition => format!(" of partition {partition}"),
    };
    let held = time(piece.ended_us.saturating_sub(from_us));
    let mut title = vec![format!("{places}{partition}"), format!("{what} {held}")];
    title.extend(piece.waiting_since_us.map(|since_us| {
        let waited = time(from_us.saturating_sub(since_us));
        format!("waited for {waited} before")
    }));
    let is_again = piece.attempts > 1;
    title.extend(is_again.then(|| format!("delivery number {}", piece.attempts)));
    title.push(format!("delivered at {}", clock(from_us)));
    TimelineBar {
        class,
        waits_from_us: piece.waiting_since_us.filter(|since| *since < from_us),
        from_us,
        solid_from_us: from_us,
        to_us: piece.ended_us.min(timeline.until_us),
        is_marked: is_again,
        is_open: piece.outcome == HoldOutcome::Held,
        title: title.join("\n"),
        messages: piece.count.into(),
        holds: true,
        row: 0,
    }
}

fn exchanges(lane: &ExchangeLane, timeline: &Timeline) -> DrawnLane {
    let owner = &lane.owner;
    let of_kind = |kind| {
        lane.exchanges
            .iter()
            .filter(move |piece| piece.kind == kind)
    };
    let publishes = of_kind(Publish).map(|piece| publish(piece, timeline));
    let mut bars: Vec<TimelineBar> = publishes.chain(of_kind(Fetch).map(fetch)).collect();
    let commits = of_kind(Commit).map(|piece| {
        let (partition, at_us) = (piece.partition, piece.requested_us);
        let what = format!("committed partition {partition} up to {}", piece.offset);
        (at_us, format!("{what}\nat {}", clock(at_us)))
    });
    let points: Vec<_> = commits.collect();
    let rows = arrange(&mut bars);
    let gaps = gaps(&bars);
    let gap = median(gaps.iter().map(|(from, to)| to - from).collect());
    let mut figures = Vec::new();
    let requests = of_kind(Publish)
        .map(|piece| u64::from(piece.requests))
        .sum();
    let messages = of_kind(Publish).map(|piece| piece.messages).sum::<u64>();
    if let Some(each) = messages.checked_div(requests) {
        let batch = match each {
            0 | 1 => String::new(),
            each => format!(" of {}", words::count(each)),
        };
        figures.push(format!("{}{batch}", plural(requests, "request")));
        let answers =
            of_kind(Publish).filter_map(|it| Some(it.answered_us?.saturating_sub(it.received_us)));
        figures.extend(median(answers.collect()).map(answered));
        figures.extend(gap.map(|gap| format!("gap {}", time(gap))));
    }
    let read: u64 = of_kind(Fetch).map(|piece| piece.messages).sum();
    if read > 0 {
        figures.push(format!("{} read", plural(read, "message")));
        figures.extend(gap.map(|gap| format!("asks again after {}", time(gap))));
    }
    if !points.is_empty() {
        figures.push(plural(points.len() as u64, "commit"));
    }
    let mut about = about(owner);
    about.extend(lane.group.as_ref().map(|group| format!("group {group}")));
    DrawnLane {
        name: name(owner),
        about: about.join(" · "),
        figures: with_left_out(figures, owner),
        bars,
        rows,
        gaps,
        points,
        complete_since_us: owner.complete_since_us,
    }
}

fn answered(after_us: u64) -> String {
    match after_us {
        0 => "answered at once".to_owned(),
        after_us => format!("answered after {}", time(after_us)),
    }
}

fn publish(piece: &ExchangePiece, timeline: &Timeline) -> TimelineBar {
    let messages = plural(piece.messages, "message");
    let what = match piece.requests {
        1 => messages,
        requests => format!(
            "{} together, {messages}",
            plural(requests.into(), "request")
        ),
    };
    let topics = match piece.topics {
        0 | 1 => String::new(),
        topics => format!(", to {topics} topics"),
    };
    let bytes = words::memory(piece.bytes as f64);
    let mut title = vec![format!("{what}, {bytes}{topics}")];
    let receiving_us = piece.received_us.saturating_sub(piece.requested_us);
    if receiving_us > 0 {
        title.push(format!("first to last byte: {}", time(receiving_us)));
    }
    let (to_us, answer) = match (piece.answered_us, piece.wants_answer) {
        (Some(us), _) => (us, answered(us.saturating_sub(piece.received_us))),
        (None, true) => (timeline.until_us, "not answered yet".to_owned()),
        (None, false) => (piece.received_us, "wants no answer".to_owned()),
    };
    title.extend([answer, format!("at {}", clock(piece.requested_us))]);
    TimelineBar {
        class: "asked",
        from_us: piece.requested_us,
        solid_from_us: piece.received_us,
        to_us,
        is_open: piece.answered_us.is_none() && piece.wants_answer,
        title: title.join("\n"),
        messages: piece.messages,
        ..TimelineBar::default()
    }
}

fn fetch(piece: &ExchangePiece) -> TimelineBar {
    let to_us = piece.answered_us.unwrap_or(piece.received_us);
    let asked = time(to_us.saturating_sub(piece.requested_us));
    let messages = plural(piece.messages, "message");
    let bytes = words::memory(piece.bytes as f64);
    let (partition, offset) = (piece.partition, piece.offset);
    TimelineBar {
        class: "fetched",
        from_us: piece.requested_us,
        // Only the waiting request is drawn, in a faint shade; its end is the answer.
        solid_from_us: to_us,
        to_us,
        title: format!(
            "{messages}, {bytes}, from offset {offset} of partition {partition} on\nasked for \
             {asked}, answered at {}",
            clock(to_us)
        ),
        messages: piece.messages,
        ..TimelineBar::default()
    }
}

/// Time spans between the first bar and the last in which no bar is drawn.
fn gaps(bars: &[TimelineBar]) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut end_us = None;
    for bar in bars {
        if let Some(end_us) = end_us.filter(|end_us| *end_us < bar.from_us) {
            gaps.push((end_us, bar.from_us));
        }
        end_us = end_us.max(Some(bar.to_us));
    }
    gaps
}

fn name(owner: &LaneOwner) -> String {
    match (&owner.client_id, &owner.library) {
        (id, _) if !id.is_empty() => id.clone(),
        (_, library) if !library.is_empty() => library.clone(),
        _ => format!("connection {}", owner.connection),
    }
}

fn about(owner: &LaneOwner) -> Vec<String> {
    let mut about = Vec::new();
    if !owner.library.is_empty() && name(owner) != owner.library {
        about.push(owner.library.clone());
    }
    if !owner.peer.is_empty() {
        about.push(owner.peer.clone());
    }
    if !owner.is_open {
        about.push("gone".to_owned());
    }
    about
}

fn with_left_out(mut figures: Vec<String>, owner: &LaneOwner) -> String {
    if owner.left_out > 0 {
        let messages = words::count(owner.left_out);
        figures.push(format!("and {messages} more that are not drawn"));
    }
    figures.join(" · ")
}

fn plural(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{} {what}s", words::count(count)),
    }
}

pub(super) fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// A duration for people.
pub(super) fn time(us: u64) -> String {
    match us {
        0 => "0 s".to_owned(),
        us => words::time(us as f64 * 1000.0),
    }
}

/// A time of day.
pub(super) fn clock(us: u64) -> String {
    let ms = us / 1000;
    let (second, minute, hour) = (ms / 1000 % 60, ms / 60_000 % 60, ms / 3_600_000 % 24);
    format!("{hour:02}:{minute:02}:{second:02}.{:03} UTC", ms % 1000)
}
