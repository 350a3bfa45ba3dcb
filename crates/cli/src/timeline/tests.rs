//! The positions in the picture, checked with an XML parser.

use cloverleaf_server::timeline_types::{
    ExchangeKind, ExchangeLane, ExchangePiece, HoldLane, HoldOutcome, HoldPiece, LaneOwner,
    Protocol, SubscriptionTimeline, Timeline, TopicTimeline,
};
use roxmltree::{Document, Node};

use super::{lanes, page, picture};

/// The picture shows 100 s: one second is about 9.3 pixels wide.
const FROM_US: u64 = 1_700_000_000_000_000;
const SECOND_US: u64 = 1_000_000;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 1264.0;

fn at(second: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * second / 100.0
}

fn us(second: f64) -> u64 {
    FROM_US + (second * SECOND_US as f64) as u64
}

fn owner(name: &str) -> LaneOwner {
    LaneOwner {
        connection: 1,
        protocol: Some(Protocol::Amqp),
        library: "Broadway 1.0".to_owned(),
        client_id: name.to_owned(),
        peer: "127.0.0.1:50000".to_owned(),
        is_open: true,
        left_out: 0,
        complete_since_us: None,
    }
}

fn hold(first: u64, waits_from: f64, from: f64, to: f64) -> HoldPiece {
    HoldPiece {
        partition: 0,
        first,
        count: 1,
        waiting_since_us: Some(us(waits_from)),
        delivered_us: us(from),
        ended_us: us(to),
        attempts: 1,
        outcome: HoldOutcome::Acked,
    }
}

fn consumer(name: &str, holds: Vec<HoldPiece>) -> HoldLane {
    HoldLane {
        owner: owner(name),
        label: "ctag".to_owned(),
        pulls: false,
        window: 50,
        holds,
    }
}

fn topic(name: &str, consumers: Vec<HoldLane>) -> TopicTimeline {
    TopicTimeline {
        topic: name.to_owned(),
        producers: Vec::new(),
        subscriptions: vec![SubscriptionTimeline {
            name: "queue".to_owned(),
            depth: 3,
            consumers,
        }],
        readers: Vec::new(),
    }
}

fn timeline(topics: Vec<TopicTimeline>) -> Timeline {
    Timeline {
        from_us: FROM_US,
        until_us: us(100.0),
        topics,
        pieces_per_second_max: 183.0,
        notes: vec!["a note <b>".to_owned()],
    }
}

/// In the second of two queues, one of 25 consumers has both jobs and does them one after the
/// other, while the others have none.
fn hoarding() -> Timeline {
    let external = consumer(
        "external",
        vec![hold(0, 10.0, 10.0, 40.0), hold(1, 10.0, 10.0, 40.0)],
    );
    let hoarder = consumer(
        "hoarder",
        vec![hold(0, 40.0, 40.0, 61.75), hold(1, 40.0, 40.0, 83.5)],
    );
    let mut late = hold(2, 41.0, 84.0, 90.0);
    late.attempts = 2;
    late.outcome = HoldOutcome::TimedOut;
    let idle = consumer("idle", vec![late]);
    timeline(vec![
        topic("external_jobs", vec![external]),
        topic("internal_jobs", vec![hoarder, idle]),
    ])
}

fn drawn(timeline: &Timeline) -> String {
    picture::file(timeline, &lanes::of(timeline))
}

/// Left and right end of each rectangle of a class, from top to bottom.
fn rects(document: &Document<'_>, class: &str) -> Vec<(f64, f64)> {
    let number = |node: &Node<'_, '_>, name| node.attribute(name).unwrap().parse::<f64>().unwrap();
    let nodes = document.descendants().filter(|node| {
        let is_rect = node.has_tag_name(("http://www.w3.org/2000/svg", "rect"));
        let is_legend = |node: Node<'_, '_>| node.attribute("class") == Some("legend");
        is_rect && node.attribute("class") == Some(class) && !node.ancestors().any(is_legend)
    });
    let mut found: Vec<_> = nodes
        .map(|node| {
            let x = number(&node, "x");
            (number(&node, "y"), x, x + number(&node, "width"))
        })
        .collect();
    found.sort_by(|a, b| a.partial_cmp(b).unwrap());
    found.into_iter().map(|(_, from, to)| (from, to)).collect()
}

fn assert_near(found: &[(f64, f64)], expected: &[(f64, f64)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, (from, to)) in found.iter().zip(expected) {
        // A bar ends a little early, to leave a visible seam before the next one.
        let is_near = (found.0 - at(*from)).abs() < 0.2 && (found.1 - at(*to)).abs() < 1.0;
        assert!(is_near, "{found:?}, not {:?}", (at(*from), at(*to)));
    }
}

#[test]
fn bars_are_where_messages_were_held() {
    let text = drawn(&hoarding());
    let document = Document::parse(&text).unwrap();
    let held = [(10.0, 40.0), (10.0, 40.0), (40.0, 61.75), (40.0, 83.5)];
    assert_near(&rects(&document, "acked"), &held);
    assert_near(&rects(&document, "failed"), &[(84.0, 90.0)]);
    assert_near(&rects(&document, "wait"), &[(41.0, 84.0)]);
    let titles: Vec<_> = document
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "title")))
        .filter_map(|node| node.text())
        .collect();
    let about = titles
        .iter()
        .find(|title| title.starts_with("message 2"))
        .unwrap();
    let about = about.replace('\u{a0}', " ");
    for part in [
        "not answered in time, after 6.00 s",
        "waited for 43.0 s",
        "delivery number 2",
    ] {
        assert!(about.contains(part), "{about}");
    }
    let marks = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("again"));
    // One in the picture, and one in the legend.
    assert_eq!(marks.count(), 2);
    for part in [
        "external_jobs",
        "internal_jobs",
        "hoarder",
        "Broadway 1.0",
        "credit 50",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.replace('\u{a0}', " ").contains("3 waiting now"));
}

#[test]
fn bars_that_began_earlier_are_cut_off() {
    let consumer = consumer(
        "c",
        vec![hold(0, -50.0, -20.0, 5.0), hold(1, -50.0, -20.0, -10.0)],
    );
    let text = drawn(&timeline(vec![topic("t", vec![consumer])]));
    let document = Document::parse(&text).unwrap();
    assert_near(&rects(&document, "acked"), &[(0.0, 5.0)]);
}

#[test]
fn indistinguishable_bars_are_drawn_as_one() {
    let holds = (0..2_000).map(|n| {
        let from = 20.0 + n as f64 * 0.01;
        hold(n, from, from, from + 0.008)
    });
    let text = drawn(&timeline(vec![topic(
        "t",
        vec![consumer("c", holds.collect())],
    )]));
    let document = Document::parse(&text).unwrap();
    assert_near(&rects(&document, "acked"), &[(20.0, 40.0)]);
    assert!(text.contains("2,000 bars"), "{text}");
}

fn publish(requested: f64, received: f64, answered: f64) -> ExchangePiece {
    ExchangePiece {
        kind: ExchangeKind::Publish,
        requests: 1,
        messages: 1,
        bytes: 100,
        topics: 1,
        partition: 0,
        offset: 0,
        requested_us: us(requested),
        received_us: us(received),
        answered_us: Some(us(answered)),
        wants_answer: true,
    }
}

#[test]
fn requests_answers_and_gaps_of_a_producer_follow_each_other() {
    let mut topic = topic("t", Vec::new());
    topic.producers.push(ExchangeLane {
        owner: LaneOwner {
            left_out: 17,
            complete_since_us: Some(us(5.0)),
            ..owner("shop")
        },
        group: None,
        exchanges: vec![publish(10.0, 15.0, 20.0), publish(30.0, 30.0, 40.0)],
    });
    let text = drawn(&timeline(vec![topic]));
    let document = Document::parse(&text).unwrap();
    assert_near(&rects(&document, "asked faint"), &[(10.0, 15.0)]);
    assert_near(&rects(&document, "asked"), &[(15.0, 20.0), (30.0, 40.0)]);
    assert_near(&rects(&document, "unknown"), &[(0.0, 5.0)]);
    let gap = document
        .descendants()
        .find(|node| node.attribute("class") == Some("gap"))
        .unwrap();
    let x = |name| gap.attribute(name).unwrap().parse::<f64>().unwrap();
    assert_near(&[(x("x1"), x("x2"))], &[(20.0, 30.0)]);
    let text = text.replace('\u{a0}', " ");
    for part in ["2 requests", "gap 10.0 s", "and 17 more"] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn names_are_escaped_and_pages_load_no_other_file() {
    let mut evil = hoarding();
    let name = "</text><script>alert(1)</script>\u{1b}[31m\u{202e}".to_owned();
    evil.topics[0].topic.clone_from(&name);
    let lane = &mut evil.topics[0].subscriptions[0].consumers[0];
    lane.owner.client_id.clone_from(&name);
    lane.owner.library = "x".repeat(100_000);
    lane.label.clone_from(&name);
    let groups = lanes::of(&evil);
    for text in [picture::file(&evil, &groups), page::html(&evil, &groups)] {
        assert!(!text.contains("<script>alert") && !text.contains('\u{1b}'));
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http") && !elsewhere.contains("src="));
    }
    let page = page::html(&evil, &groups);
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
    // In HTML, the text of a script is not markup; the rest is parsed.
    let (before, rest) = body.split_once("<script>").unwrap();
    let (_, after) = rest.split_once("</script>").unwrap();
    let document = [before, after].concat();
    let document = Document::parse(&document).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "html");
    assert!(page.contains("prefers-color-scheme: dark"));
    assert!(page.contains("a note &lt;b&gt;"));
}

#[test]
fn an_empty_topic_is_noted() {
    let mut empty = topic("quiet", Vec::new());
    empty.subscriptions.clear();
    let text = drawn(&timeline(vec![empty]));
    assert!(text.contains("quiet") && text.contains("Nobody has published to it"));
}

#[test]
fn messages_that_are_acknowledged_together_are_a_bar_each_or_say_how_many() {
    let piece = |first, count, from| HoldPiece {
        count,
        ..hold(first, from, from, from + 10.0)
    };
    let drawn_of = |holds| {
        let text = drawn(&timeline(vec![topic("t", vec![consumer("c", holds)])]));
        let document = Document::parse(&text).unwrap();
        (rects(&document, "acked"), text.clone())
    };
    // Three messages in one piece look the same as three pieces.
    let (bars, text) = drawn_of(vec![piece(0, 3, 10.0)]);
    assert_near(&bars, &[(10.0, 20.0); 3]);
    let single = drawn_of((0..3).map(|n| piece(n, 1, 10.0)).collect());
    assert_eq!((bars, text), single);
    let (bars, text) = drawn_of(vec![piece(0, 40, 10.0)]);
    assert_near(&bars, &[(10.0, 20.0)]);
    assert!(text.contains(">×40</text>"), "{text}");
}

#[test]
fn names_of_any_letters_end_before_the_lanes() {
    for name in [
        "amq.ctag-WMWMQGHBNDKUOPAWWMMXZQ".repeat(3),
        "m".repeat(60),
        "ö".repeat(60),
    ] {
        let text = drawn(&timeline(vec![topic(
            "t",
            vec![consumer(&name, Vec::new())],
        )]));
        let document = Document::parse(&text).unwrap();
        let shown = document
            .descendants()
            .find(|it| it.attribute("class") == Some("name"));
        let shown = shown.unwrap().text().unwrap().to_owned();
        assert!(
            shown.ends_with('…') && shown.chars().count() <= 34,
            "{shown}"
        );
        assert!(text.contains(&name), "the whole name is its title");
    }
    // The text below the name of a busy producer's lane.
    let mut about = topic("t", Vec::new());
    let exchanges = (0..48).map(|n| publish(n as f64, n as f64, n as f64 + 0.382));
    about.producers.push(ExchangeLane {
        owner: owner("shop"),
        group: None,
        exchanges: exchanges.collect(),
    });
    let text = drawn(&timeline(vec![about])).replace('\u{a0}', " ");
    let figures = "48 requests · answered after 382 ms · gap 618 ms";
    assert!(text.contains(&format!(">{figures}<")), "{text}");
    let short = "amq.ctag-K3y8uBmuWZ1Sxj5cMRTZFg";
    assert!(
        drawn(&timeline(vec![topic(
            "t",
            vec![consumer(short, Vec::new())]
        )]))
        .contains(short)
    );
}

#[test]
fn a_picture_that_stands_alone_has_plain_colours() {
    let text = drawn(&hoarding());
    assert!(!text.contains("var(") && text.contains(".timeline .acked { fill: #0b62a8; }"));
    assert!(text.contains("prefers-color-scheme: dark"));
}
