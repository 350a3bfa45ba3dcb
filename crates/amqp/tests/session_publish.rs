//! Publishing: contents in any number of pieces, confirms, returns, transactions.

use crate::session_common::{Got, World, publish_frames};
use cloverleaf_amqp::wire::{Method, Properties, Table, Value, method, table_bytes};
use cloverleaf_amqp::{ContentMemory, SessionOptions};
use cloverleaf_session::Session as _;

/// The confirms among these methods: delivery tag, `multiple`, and whether it is an ack.
fn confirms(all: &[Got]) -> Vec<(u64, bool, bool)> {
    let confirm = |got: &Got| match got.method() {
        Method::BasicAck(ack) => Some((ack.delivery_tag, ack.multiple, true)),
        Method::BasicNack(nack) => Some((nack.delivery_tag, nack.multiple, false)),
        _ => None,
    };
    all.iter().filter_map(confirm).collect()
}

#[test]
fn a_persistent_message_is_confirmed_by_the_disk_and_a_transient_one_at_once() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.confirms();
    let transient = Properties::default();
    peer.publish_with("", "q", &transient, "1", false);
    assert_eq!(confirms(&peer.receive()), [(1, false, true)]);
    peer.publish("", "q", "2");
    assert!(peer.receive().is_empty(), "not synced");
    world.settle();
    assert_eq!(confirms(&peer.receive()), [(2, false, true)]);
    // One read gets one confirm for all its publishes.
    let persistent = Properties {
        delivery_mode: Some(2),
        ..Default::default()
    };
    let many: Vec<u8> = (0..5)
        .flat_map(|_| publish_frames(1, "", "q", &persistent, b"m", false))
        .collect();
    peer.send(&many);
    world.settle();
    assert_eq!(confirms(&peer.receive()), [(7, true, true)]);
    assert_eq!(peer.counts("q"), (7, 0));
}

#[test]
fn persistent_and_transient_messages_keep_their_order() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.confirms();
    let frames: Vec<u8> = (0..9u8)
        .flat_map(|n| {
            let properties = Properties {
                delivery_mode: Some(1 + n % 2),
                ..Default::default()
            };
            publish_frames(1, "", "q", &properties, &[b'0' + n], false)
        })
        .collect();
    peer.send(&frames);
    world.settle();
    assert_eq!(confirms(&peer.receive()), [(9, true, true)]);
    peer.consume("q", "c", true);
    assert_eq!(peer.bodies().concat(), "012345678");
}

#[test]
fn contents_arrive_however_they_are_cut_and_mixed() {
    let world = World::default();
    let mut peer = world.channel();
    peer.open_channel(2);
    peer.declare("q", &[]);
    let bodies = ["", "short", &"x".repeat(10_000)];
    let properties = Properties::default();
    for body in bodies {
        let frames = publish_frames(1, "", "q", &properties, body.as_bytes(), false);
        for step in [1, 7, 4096, frames.len()] {
            for part in frames.chunks(step) {
                peer.send(part);
            }
        }
    }
    // Frames of two contents and heartbeats alternate.
    let cut = |channel| {
        let body = [b'0' + channel as u8; 9000];
        let frames = publish_frames(channel, "", "q", &properties, &body, false);
        crate::session_common::frames_of(&frames)
    };
    for (one, two) in cut(1).into_iter().zip(cut(2)) {
        peer.send(&one);
        peer.send(&[8, 0, 0, 0, 0, 0, 0, 206]);
        peer.send(&two);
    }
    peer.consume("q", "c", true);
    let mut found = peer.bodies();
    let mixed = found.split_off(12);
    for (n, body) in found.iter().enumerate() {
        assert_eq!(body, bodies[n / 4], "content {n}");
    }
    assert_eq!(mixed, ["1".repeat(9000), "2".repeat(9000)]);
}

#[test]
fn contents_received_in_pieces_share_one_memory_budget() {
    let options = SessionOptions {
        contents: ContentMemory::new(10_000),
        ..SessionOptions::default()
    };
    let memory = options.contents.clone();
    let world = World::with(options);
    let mut peer = world.channel();
    peer.open_channel(2);
    let body = [7; 9000];
    let frames = |channel| {
        let frames = publish_frames(channel, "", "q", &Properties::default(), &body, false);
        crate::session_common::frames_of(&frames)
    };
    let (one, two) = (frames(1), frames(2));
    peer.send(&one[0]);
    peer.send(&two[0]);
    for frame in &one[1..4] {
        peer.send(frame);
    }
    assert!(peer.receive().is_empty() && memory.bytes() > 8000);
    for frame in &two[1..3] {
        peer.send(frame);
    }
    assert_eq!(peer.closed().0, 506);
    assert_eq!(memory.bytes(), 0, "memory not released");
}

#[test]
fn an_unroutable_mandatory_message_is_returned_before_its_confirm() {
    let world = World::default();
    let mut peer = world.channel();
    peer.confirms();
    let properties = Properties {
        correlation_id: Some("17"),
        ..Default::default()
    };
    peer.publish_with("", "nowhere", &properties, "body", true);
    let got = peer.receive();
    let Method::BasicReturn(returned) = got[0].method() else {
        panic!("{:?}", got[0].method());
    };
    assert_eq!(
        (returned.reply_code, returned.reply_text),
        (312, "NO_ROUTE")
    );
    assert_eq!((returned.exchange, returned.routing_key), ("", "nowhere"));
    assert_eq!(got[0].body, b"body");
    assert_eq!(got[0].properties(), properties);
    assert_eq!(confirms(&got[1..]), [(1, false, true)]);
    peer.publish("", "nowhere", "not mandatory");
    assert_eq!(confirms(&peer.receive()), [(2, false, true)]);
}

#[test]
fn a_full_queue_refuses_one_message_and_not_its_neighbours() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare(
        "q",
        &[
            ("x-max-length", Value::I32(2)),
            ("x-overflow", Value::String(b"reject-publish")),
        ],
    );
    peer.declare("other", &[]);
    peer.confirms();
    let keys = ["q", "q", "other", "q", "other"];
    let frames: Vec<u8> = keys
        .iter()
        .flat_map(|key| publish_frames(1, "", key, &Properties::default(), b"m", false))
        .collect();
    peer.send(&frames);
    world.settle();
    let found = confirms(&peer.receive());
    let last = found.last().unwrap();
    assert_eq!((last.0, last.2), (5, true));
    let refused: Vec<_> = found.iter().filter(|(_, _, holds)| !holds).collect();
    assert_eq!(refused, [&(4, false, false)]);
    assert_eq!(peer.counts("q"), (2, 0));
    assert_eq!(peer.counts("other"), (2, 0));
}

#[test]
fn faults_of_a_publish_end_its_channel() {
    let world = World::default();
    let headers = table_bytes(&[]);
    let with = |properties: Properties<'static>| Properties {
        headers: Some(Table::check(b"").unwrap()),
        ..properties
    };
    assert!(headers.is_empty());
    let user = with(Properties {
        user_id: Some("somebody"),
        ..Default::default()
    });
    let expiration = with(Properties {
        expiration: Some("soon"),
        ..Default::default()
    });
    let reply = with(Properties {
        reply_to: Some("amq.rabbitmq.reply-to"),
        ..Default::default()
    });
    let none = Properties::default();
    let cases = [
        (
            "logs",
            none,
            404,
            "NOT_FOUND - no exchange 'logs' in vhost '/'",
        ),
        (
            "",
            user,
            406,
            "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was \
             'guest'",
        ),
        (
            "",
            expiration,
            406,
            "PRECONDITION_FAILED - invalid expiration 'soon': no_integer",
        ),
        (
            "",
            reply,
            406,
            "PRECONDITION_FAILED - fast reply consumer does not exist",
        ),
    ];
    for (exchange, properties, code, text) in cases {
        let mut peer = world.channel();
        peer.publish_with(exchange, "q", &properties, "m", false);
        assert_eq!(peer.closed(), (code, text.to_owned()));
    }
    let options = SessionOptions {
        message_bytes_max: 100,
        ..SessionOptions::default()
    };
    let world = World::with(options);
    let mut peer = world.channel();
    peer.publish("", "q", &"x".repeat(101));
    let text = "PRECONDITION_FAILED - message size 101 is larger than configured max size 100";
    assert_eq!(peer.closed(), (406, text.to_owned()));
    peer.method(1, Method::ChannelCloseOk(method::ChannelCloseOk {}));
    peer.open_channel(1);
    let immediate = method::BasicPublish {
        immediate: true,
        ..Default::default()
    };
    peer.method(1, Method::BasicPublish(immediate));
    let text = "NOT_IMPLEMENTED - immediate=true";
    assert_eq!(peer.closed(), (540, text.to_owned()));
}

#[test]
fn a_transaction_takes_effect_as_a_whole() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("in", &[]);
    peer.declare("out", &[]);
    peer.publish("", "in", "job");
    let select = Method::TxSelect(method::TxSelect {});
    peer.ask(1, select, method::TxSelectOk::ID);
    peer.consume("in", "c", false);
    assert_eq!(peer.bodies(), ["job"]);
    peer.publish("", "out", "result");
    peer.ack(1, false);
    let rollback = Method::TxRollback(method::TxRollback {});
    peer.ask(1, rollback, method::TxRollbackOk::ID);
    world.settle();
    assert_eq!(peer.counts("out"), (0, 0));
    // After the rollback the delivery is unacknowledged again.
    peer.publish("", "out", "result");
    peer.ack(1, false);
    peer.method(1, Method::TxCommit(method::TxCommit {}));
    assert!(peer.receive().is_empty(), "not synced");
    world.settle();
    assert_eq!(peer.receive()[0].id(), method::TxCommitOk::ID);
    assert_eq!(peer.counts("out"), (1, 0));
    drop(peer);
    let mut peer = world.channel();
    assert_eq!(peer.counts("in"), (0, 0), "it was acknowledged");
    peer.confirms();
    peer.method(1, Method::TxSelect(method::TxSelect {}));
    let text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode";
    assert_eq!(peer.closed(), (406, text.to_owned()));
    let mut peer = world.channel();
    peer.method(1, Method::TxCommit(method::TxCommit {}));
    let text = "PRECONDITION_FAILED - channel is not transactional";
    assert_eq!(peer.closed(), (406, text.to_owned()));
}

#[test]
fn confirmed_messages_survive_a_kill() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.confirms();
    peer.publish("", "q", "kept");
    world.settle();
    assert_eq!(confirms(&peer.receive()), [(1, false, true)]);
    drop(peer);
    let world = world.restart();
    let mut peer = world.channel();
    peer.consume("q", "c", false);
    world.settle();
    assert_eq!(peer.bodies(), ["kept"]);
}

/// The driver shows a TLS record when it is complete; its first bytes may have come long before.
#[test]
fn a_request_begins_with_bytes_that_only_the_driver_has_seen() {
    let world = World::default();
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer.confirms();
    peer.session.read_ended_inside_frame(world.now());
    world.advance(40);
    peer.publish("", "q", "m");
    let seen = peer.session.probe().snapshot(|_| None);
    assert_eq!(seen.histograms.request_receive_us.max(), 40_000);
}
