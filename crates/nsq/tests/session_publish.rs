//! PUB, MPUB and DPUB through a session: stored, batched, answered in order, refused with nsqd's
//! texts.

use crate::common::{Frame, World, publish, publish_many, response, sized};
use cloverleaf_nsq::SessionOptions;
use cloverleaf_session::{Input, Session as _};
use proptest::prelude::*;

#[test]
fn published_messages_are_delivered_with_time_id_and_attempts() {
    let world = World::new();
    world.publish("t", &["one", "two"]);
    let mut consumer = world.subscribe("t", "ch", 10);
    let messages = consumer.messages();
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0].body, "one");
    assert_eq!(messages[0].attempts, 1);
    assert_eq!(messages[0].id, "0000000000000000");
    assert_eq!(messages[1].id, "0000000000000001");
    assert_eq!(messages[0].timestamp_ns, world.now().unix_ms() * 1_000_000);
}

#[test]
fn publishes_of_one_read_are_one_batch_and_many_answers() {
    let world = World::new();
    let mut peer = world.connect();
    let input = [
        publish("t", "a"),
        publish("t", "b"),
        publish_many("t", &["c", "d"]),
        publish("u", "e"),
        publish("t", "f"),
    ];
    peer.send(&input.concat());
    peer.expect(&[(); 5].map(|()| response("OK")));
    let topic = world.broker.topic("t").unwrap();
    assert_eq!(topic.message_count(), 5);
    let mut consumer = world.subscribe("t", "ch", 10);
    assert_eq!(consumer.bodies(), ["a", "b", "c", "d", "f"]);
    assert_eq!(world.subscribe("u", "ch", 10).bodies(), ["e"]);
    let published: Vec<_> = world.clients.list()[0].publish_counts();
    assert_eq!(published, [("t".to_owned(), 5), ("u".to_owned(), 1)]);
}

#[test]
fn answers_keep_the_order_of_the_commands() {
    let world = World::new();
    let mut peer = world.subscribe("t", "ch", 1);
    let unknown = b"FIN 00000000000000ff\n";
    let input = [
        &publish("u", "a")[..],
        unknown,
        &publish("u", "b"),
        b"TOUCH 00000000000000ff\n",
        b"CLS\n",
        &publish("u", "c"),
    ];
    peer.send(&input.concat());
    let error = |name: &str| {
        let text = format!("E_{name}_FAILED {name} 00000000000000ff failed ID not in flight");
        Frame::Error(text)
    };
    let ok = || response("OK");
    peer.expect(&[
        ok(),
        error("FIN"),
        ok(),
        error("TOUCH"),
        response("CLOSE_WAIT"),
        ok(),
    ]);
}

#[test]
fn sizes_are_limited_as_in_nsqd() {
    let options = SessionOptions {
        msg_bytes_max: 100,
        body_bytes_max: 1000,
        ..SessionOptions::default()
    };
    let world = World::with(options);
    let full = "x".repeat(100);
    let most = [full.as_str(); 9];
    let mut peer = world.connect();
    peer.send(&publish("t", &full[5..]));
    peer.expect_ok();
    peer.send(&publish_many("t", &most));
    peer.expect_ok();
    let big = "x".repeat(105);
    for (input, expect) in [
        (
            publish("t", &big),
            "E_BAD_MESSAGE PUB message too big 105 > 100",
        ),
        (
            publish("t", ""),
            "E_BAD_MESSAGE PUB invalid message body size 0",
        ),
        (
            publish_many("t", &[full.as_str(); 11]),
            "E_BAD_BODY MPUB body too big 1148 > 1000",
        ),
        (
            publish_many("t", &["a", ""]),
            "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
        ),
        (
            publish_many("t", &[&big]),
            "E_BAD_MESSAGE MPUB message too big 105 > 100",
        ),
        (
            sized("DPUB t 1\n", b""),
            "E_BAD_MESSAGE DPUB invalid message body size 0",
        ),
        (
            sized("DPUB t 3600100\n", b"x"),
            "E_INVALID DPUB timeout 3600100 out of range 0-3600000",
        ),
    ] {
        let mut peer = world.connect();
        peer.send(&input);
        peer.expect_fatal(expect);
        assert!(peer.session.take_failure().is_some());
    }
    assert_eq!(world.broker.topic("t").unwrap().message_count(), 10);
}

#[test]
fn a_delayed_message_comes_when_its_time_has_come() {
    let world = World::new();
    let mut consumer = world.subscribe("t", "ch", 10);
    let mut peer = world.connect();
    peer.send(&sized("DPUB t 1500\n", b"late"));
    peer.expect_ok();
    peer.send(&sized("DPUB t 0\n", b"now"));
    peer.expect_ok();
    consumer.pump();
    assert_eq!(consumer.bodies(), ["now"]);
    world.advance(1400);
    consumer.pump();
    assert_eq!(consumer.bodies(), [""; 0]);
    world.advance(200);
    consumer.pump();
    assert_eq!(consumer.bodies(), ["late"]);
}

#[test]
fn a_deleted_topic_is_created_again() {
    let world = World::new();
    let mut peer = world.connect();
    peer.send(&publish("t", "a"));
    peer.expect_ok();
    world.broker.delete_topic("t").unwrap();
    peer.send(&publish("t", "b"));
    peer.expect_ok();
    assert_eq!(world.subscribe("t", "ch", 10).bodies(), ["b"]);
}

#[test]
fn a_command_may_come_in_any_pieces() {
    let world = World::new();
    let mut peer = world.connect_silent();
    let input = [
        b"  V2".to_vec(),
        publish("t", "first"),
        publish_many("t", &["second", "third"]),
        b"NOP\n".to_vec(),
    ];
    for byte in input.concat() {
        peer.send(&[byte]);
    }
    peer.expect(&[response("OK"), response("OK")]);
    assert_eq!(
        world.subscribe("t", "ch", 10).bodies(),
        ["first", "second", "third"]
    );
}

#[test]
fn a_peer_that_stops_within_a_command_is_told_where() {
    let world = World::new();
    let mut peer = world.connect();
    let whole = publish("t", "body");
    peer.send(&[&publish("t", "whole")[..], &whole[..whole.len() - 1]].concat());
    peer.expect_ok();
    peer.end_input();
    peer.expect_fatal("E_BAD_MESSAGE PUB failed to read message body");
    let mut peer = world.connect();
    peer.feed(&whole);
    peer.end_input();
    peer.expect_ok();
    assert!(peer.session.is_ended());
}

#[test]
fn a_failing_disk_is_an_answer() {
    let world = World::new();
    let mut peer = world.connect();
    peer.send(&publish("t", "a"));
    peer.expect_ok();
    world.log.close();
    peer.send(&publish("t", "b"));
    match &peer.frames()[..] {
        [Frame::Error(text)] => assert!(text.starts_with("E_PUB_FAILED PUB failed "), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(peer.session.is_ended());
}

#[test]
fn commands_and_names_are_checked() {
    let world = World::new();
    for (input, expect) in [
        ("ASDF\n", "E_INVALID invalid command ASDF"),
        ("\n\n", "E_INVALID invalid command "),
        ("PUB\n", "E_INVALID PUB insufficient number of parameters"),
        (
            "PUB a:b\n",
            "E_BAD_TOPIC PUB topic name \"a:b\" is not valid",
        ),
        (
            "SUB t c:\n",
            "E_BAD_CHANNEL SUB channel name \"c:\" is not valid",
        ),
        ("RDY 1\n", "E_INVALID cannot RDY in current state"),
        (
            "FIN 0000000000000000\n",
            "E_INVALID cannot FIN in current state",
        ),
        (
            "REQ 0000000000000000 0\n",
            "E_INVALID cannot REQ in current state",
        ),
        (
            "TOUCH 0000000000000000\n",
            "E_INVALID cannot TOUCH in current state",
        ),
        ("CLS\n", "E_INVALID cannot CLS in current state"),
        // The state is checked before the parameters.
        ("FIN\n", "E_INVALID cannot FIN in current state"),
        ("REQ x y\n", "E_INVALID cannot REQ in current state"),
        ("TOUCH x\r\n", "E_INVALID cannot TOUCH in current state"),
    ] {
        let mut peer = world.connect();
        peer.send(input.as_bytes());
        peer.expect_fatal(expect);
    }
    let mut peer = world.connect_silent();
    peer.send(b"GET / HTTP/1.1\r\n");
    peer.expect_fatal("E_BAD_PROTOCOL");
    let failure = peer.session.take_failure().unwrap().to_string();
    assert_eq!(failure, "E_INVALID bad protocol magic GET ");
}

#[test]
fn calls_of_the_broker_are_worth_more_than_their_bytes() {
    let world = World::new();
    let mut peer = world.subscribe("t", "ch", 1);
    let touch = b"TOUCH 0000000000000000\n";
    let input = touch.repeat(1000);
    let received = peer.session.receive(Input::Lent(&input), world.now());
    assert_eq!(
        received.consumed_bytes,
        256 * touch.len(),
        "others have a turn"
    );
    assert_eq!(received.needed_bytes, 0);
    assert_eq!(received.cost_bytes, received.consumed_bytes + 256 * 1024);
    let mut peer = world.connect();
    let input = publish("t", "x").repeat(3);
    let received = peer.session.receive(Input::Lent(&input), world.now());
    assert_eq!(
        received.cost_bytes,
        input.len() + 2 * 1024,
        "a look-up and an append"
    );
}

/// Valid and invalid commands in any order, and arbitrary bytes.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => body.clone().prop_map(|body| sized("PUB t\n", &body)),
        2 => "[a-z]{1,9}".prop_map(|body| publish_many("t", &[&body, "x"])),
        2 => body.clone().prop_map(|body| sized("MPUB t\n", &body)),
        1 => (0_u32..4_000_000).prop_map(|delay| sized(&format!("DPUB t {delay}\n"), b"x")),
        2 => "SUB (t|u|:) (c|d#ephemeral)\n".prop_map(String::into_bytes),
        2 => "(RDY [0-9]{0,4}|CLS|NOP)\n".prop_map(String::into_bytes),
        3 => "(FIN|TOUCH|REQ) 000000000000000[0-9a-g] [0-9]{0,5}\n".prop_map(String::into_bytes),
        1 => r#"\{("[a-z_]{1,20}":-?[0-9]{1,6})?\}"#
            .prop_map(|json| sized("IDENTIFY\n", json.as_bytes())),
        1 => body.clone().prop_map(|body| sized("AUTH\n", &body)),
        1 => body,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn answers_do_not_depend_on_how_the_input_is_split(
        commands in proptest::collection::vec(anything(), 0..30),
        pieces in proptest::collection::vec(1_usize..80, 1..60),
    ) {
        let input = commands.concat();
        let answers = |pieces: &[usize]| {
            let world = World::new();
            let mut peer = world.connect();
            let mut rest = &input[..];
            for piece in pieces.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*piece).min(rest.len()));
                peer.send(now);
                rest = later;
            }
            let frames = peer.frames();
            // Deliveries may come anywhere between the answers.
            let answers = frames.into_iter().filter(|it| !matches!(it, Frame::Message(_)));
            let answers: Vec<Frame> = answers.collect();
            let depth = world.broker.topic("t").map_or(0, |topic| topic.message_count());
            (answers, depth, peer.session.is_ended())
        };
        let split = answers(&pieces);
        // Whether a FIN, REQ or TOUCH succeeds depends on how the input is split: in one read it
        // comes before the delivery of its message.
        if !input.windows(3).any(|window| matches!(window, b"FIN" | b"REQ" | b"TOU")) {
            prop_assert_eq!(answers(&[usize::MAX]), split);
        }
    }
}

/// The driver shows a TLS record to the session when it is complete. Its first bytes may have
/// arrived long before.
#[test]
fn a_request_begins_with_bytes_that_only_the_driver_has_seen() {
    let world = World::new();
    let mut peer = world.connect();
    peer.session.read_ended_inside_frame(world.now());
    world.advance(40);
    peer.send(&publish("t", "m"));
    peer.expect_ok();
    let seen = peer.session.probe().snapshot(|_| None);
    assert_eq!(seen.histograms.request_receive_us.max(), 40_000);
}
