//! The lanes of a timeline as they are drawn, with their names, bars and figures.

use cloverleaf_page::words;
use cloverleaf_server::timeline_types::{
    ExchangeLane, ExchangePiece, HoldLane, HoldOutcome, HoldPiece, LaneOwner, Timeline,
};

use super::rows::{Bar, arrange};

/// Messages of a lane, and of a piece, that are drawn one by one at most.
const SINGLE_BARS_MAX: u64 = 4_096;
const SINGLES_MAX: u32 = 16;

/// Lanes under one heading: consumers of a subscription, or producers or readers of a topic.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) topic: String,
    /// It is the first of its topic.
    pub(super) is_first: bool,
    pub(super) heading: String,
    pub(super) lanes: Vec<Lane>,
}

/// One lane: the record of a consumer or a connection, as it is drawn.
#[derive(Debug)]
pub(super) struct Lane {
    /// The name of the consumer or connection.
    pub(super) name: String,
    /// Its description, below the name.
    pub(super) about: String,
    /// Its figures, below that.
    pub(super) figures: String,
    pub(super) bars: Vec<Bar>,
    pub(super) rows: usize,
    /// Times between an answer and the next request.
    pub(super) gaps: Vec<(u64, u64)>,
    /// Points in time, with what they are.
    pub(super) points: Vec<(u64, String)>,
    /// Before this it is not complete.
    pub(super) complete_since_us: Option<u64>,
}

/// All lanes of an answer.
pub(super) fn of(timeline: &Timeline) -> Vec<Group> {
    let mut groups = Vec::new();
    for topic in &timeline.topics {
        let before = groups.len();
        let mut add = |heading: String, lanes: Vec<Lane>| {
            groups.push(Group {
                topic: topic.topic.clone(),
                is_first: false,
                heading,
                lanes,
            });
        };
        if !topic.producers.is_empty() {
            let lanes = topic.producers.iter();
            let lanes = lanes.map(|lane| exchanges(lane, timeline)).collect();
            add("Producers".to_owned(), lanes);
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
            let lanes = topic.readers.iter();
            let lanes = lanes.map(|lane| exchanges(lane, timeline)).collect();
            add("Readers by offset".to_owned(), lanes);
        }
        if groups.len() == before {
            let heading = "Nobody has published to it or read from it in this time".to_owned();
            let (topic, lanes) = (topic.topic.clone(), Vec::new());
            groups.push(Group {
                topic,
                is_first: false,
                heading,
                lanes,
            });
        }
        if let Some(first) = groups.get_mut(before) {
            first.is_first = true;
        }
    }
    groups
}

/// The counts of what was drawn, in a line.
pub(super) fn summary(groups: &[Group]) -> String {
    let lanes = || groups.iter().flat_map(|group| &group.lanes);
    let bars: usize = lanes().map(|lane| lane.bars.len()).sum();
    format!(
        "{} lanes, {} bars",
        lanes().count(),
        words::count(bars as u64)
    )
}

fn holds(lane: &HoldLane, timeline: &Timeline) -> Lane {
    let owner = &lane.owner;
    let shown = |piece: &&HoldPiece| piece.ended_us >= timeline.from_us;
    let pieces = || lane.holds.iter().filter(shown);
    let messages: u64 = pieces().map(|piece| u64::from(piece.count)).sum();
    // A bar for each message, as long as that can be seen: pieces are of messages that were
    // acknowledged together by chance, too.
    let mut bars: Vec<Bar> = if messages <= SINGLE_BARS_MAX {
        pieces()
            .flat_map(singles)
            .map(|piece| hold(&piece, timeline))
            .collect()
    } else {
        pieces().map(|piece| hold(piece, timeline)).collect()
    };
    let ended = lane.holds.iter().filter(shown);
    let ended = ended.filter(|piece| piece.outcome != HoldOutcome::Held);
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
    let name = match owner.client_id.is_empty() && owner.protocol.is_some() {
        true if !lane.label.is_empty() => lane.label.clone(),
        _ => name(owner),
    };
    let rows = arrange(&mut bars);
    Lane {
        name,
        about: about.join(" · "),
        figures: with_left_out(figures, owner),
        bars,
        rows,
        gaps: Vec::new(),
        points: Vec::new(),
        complete_since_us: owner.complete_since_us,
    }
}

/// The messages of a piece, each as a piece of its own, if they are few enough to lie below each
/// other.
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

fn hold(piece: &HoldPiece, timeline: &Timeline) -> Bar {
    let held_us = piece.ended_us.saturating_sub(piece.delivered_us);
    let (class, what) = match piece.outcome {
        HoldOutcome::Held => ("held", "in flight for"),
        HoldOutcome::Acked => ("acked", "acknowledged after"),
        HoldOutcome::Nacked => ("failed", "given back after"),
        HoldOutcome::Rejected => ("failed", "rejected after"),
        HoldOutcome::TimedOut => ("failed", "not answered in time, after"),
        HoldOutcome::Left => ("failed", "given back, because the consumer left, after"),
    };
    let last = piece.first + u64::from(piece.count.saturating_sub(1));
    let places = match piece.count {
        0 | 1 => format!("message {}", piece.first),
        count => format!(
            "{} messages {} to {last}",
            words::count(count.into()),
            piece.first
        ),
    };
    let partition = match piece.partition {
        0 => String::new(),
        partition => format!(" of partition {partition}"),
    };
    let mut title = format!("{places}{partition}\n{what} {}", time(held_us));
    if let Some(since_us) = piece.waiting_since_us {
        let waited = time(piece.delivered_us.saturating_sub(since_us));
        title.push_str(&format!("\nwaited for {waited} before"));
    }
    if piece.attempts > 1 {
        title.push_str(&format!("\ndelivery number {}", piece.attempts));
    }
    title.push_str(&format!("\ndelivered at {}", clock(piece.delivered_us)));
    Bar {
        class,
        waits_from_us: piece
            .waiting_since_us
            .filter(|since| *since < piece.delivered_us),
        from_us: piece.delivered_us,
        solid_from_us: piece.delivered_us,
        to_us: piece.ended_us.min(timeline.until_us),
        is_marked: piece.attempts > 1,
        is_open: piece.outcome == HoldOutcome::Held,
        title,
        messages: piece.count.into(),
        holds: true,
        row: 0,
    }
}

fn exchanges(lane: &ExchangeLane, timeline: &Timeline) -> Lane {
    use cloverleaf_server::timeline_types::ExchangeKind::{Commit, Fetch, Publish};

    let owner = &lane.owner;
    let of_kind = |kind| {
        lane.exchanges
            .iter()
            .filter(move |piece| piece.kind == kind)
    };
    let (mut bars, mut points): (Vec<Bar>, Vec<_>) = (Vec::new(), Vec::new());
    bars.extend(of_kind(Publish).map(|piece| publish(piece, timeline)));
    bars.extend(of_kind(Fetch).map(fetch));
    points.extend(of_kind(Commit).map(|piece| {
        let (partition, at) = (piece.partition, clock(piece.requested_us));
        let text = format!(
            "committed partition {partition} up to {}\nat {at}",
            piece.offset
        );
        (piece.requested_us, text)
    }));
    let rows = arrange(&mut bars);
    let gaps = gaps(&bars);
    let mut figures = Vec::new();
    let requests: u64 = of_kind(Publish)
        .map(|piece| u64::from(piece.requests))
        .sum();
    let messages: u64 = of_kind(Publish).map(|piece| piece.messages).sum();
    if let Some(each) = messages.checked_div(requests) {
        let batch = match each {
            0 | 1 => String::new(),
            each => format!(" of {}", words::count(each)),
        };
        figures.push(format!("{}{batch}", plural(requests, "request")));
        let answers = of_kind(Publish).filter_map(|it| {
            let answered_us = it.answered_us?;
            Some(answered_us.saturating_sub(it.received_us))
        });
        if let Some(median) = median(answers.collect()) {
            figures.push(match median {
                0 => "answered at once".to_owned(),
                median => format!("answered after {}", time(median)),
            });
        }
        if let Some(median) = median(gaps.iter().map(|(from, to)| to - from).collect()) {
            figures.push(format!("gap {}", time(median)));
        }
    }
    let read: u64 = of_kind(Fetch).map(|piece| piece.messages).sum();
    if read > 0 {
        figures.push(format!("{} read", plural(read, "message")));
        if let Some(median) = median(gaps.iter().map(|(from, to)| to - from).collect()) {
            figures.push(format!("asks again after {}", time(median)));
        }
    }
    if !points.is_empty() {
        figures.push(plural(points.len() as u64, "commit"));
    }
    let mut about = about(owner);
    about.extend(lane.group.as_ref().map(|group| format!("group {group}")));
    Lane {
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

fn publish(piece: &ExchangePiece, timeline: &Timeline) -> Bar {
    let what = match piece.requests {
        1 => plural(piece.messages, "message"),
        requests => {
            let requests = plural(requests.into(), "request");
            format!("{requests} together, {}", plural(piece.messages, "message"))
        }
    };
    let topics = match piece.topics {
        0 | 1 => String::new(),
        topics => format!(", to {topics} topics"),
    };
    let mut title = format!("{what}, {}{topics}", words::memory(piece.bytes as f64));
    let receiving_us = piece.received_us.saturating_sub(piece.requested_us);
    if receiving_us > 0 {
        let text = format!("\nfirst to last byte: {}", time(receiving_us));
        title.push_str(&text);
    }
    let to_us = match (piece.answered_us, piece.wants_answer) {
        (Some(answered_us), _) => {
            let served_us = answered_us.saturating_sub(piece.received_us);
            title.push_str(&match served_us {
                0 => "\nanswered at once".to_owned(),
                served_us => format!("\nanswered after {}", time(served_us)),
            });
            answered_us
        }
        (None, true) => {
            title.push_str("\nnot answered yet");
            timeline.until_us
        }
        (None, false) => {
            title.push_str("\nwants no answer");
            piece.received_us
        }
    };
    title.push_str(&format!("\nat {}", clock(piece.requested_us)));
    Bar {
        class: "asked",
        waits_from_us: None,
        from_us: piece.requested_us,
        solid_from_us: piece.received_us,
        to_us,
        is_marked: false,
        is_open: piece.answered_us.is_none() && piece.wants_answer,
        title,
        messages: piece.messages,
        holds: false,
        row: 0,
    }
}

fn fetch(piece: &ExchangePiece) -> Bar {
    let to_us = piece.answered_us.unwrap_or(piece.received_us);
    let asked = time(to_us.saturating_sub(piece.requested_us));
    let messages = plural(piece.messages, "message");
    let bytes = words::memory(piece.bytes as f64);
    let (partition, offset) = (piece.partition, piece.offset);
    Bar {
        class: "fetched",
        waits_from_us: None,
        from_us: piece.requested_us,
        // It is the question that is drawn; the answer is its end.
        solid_from_us: to_us,
        to_us,
        is_marked: false,
        is_open: false,
        title: format!(
            "{messages}, {bytes}, from offset {offset} of partition {partition} on\nasked for \
             {asked}, answered at {}",
            clock(to_us)
        ),
        messages: piece.messages,
        holds: false,
        row: 0,
    }
}

/// Times in which nothing was under way, between the first bar and the last.
fn gaps(bars: &[Bar]) -> Vec<(u64, u64)> {
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

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// A length of time for people.
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
