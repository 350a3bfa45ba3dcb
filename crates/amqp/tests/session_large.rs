//! The memory that large messages and unfinished messages take.

use std::task::{Context, Waker};

use crate::session_common::{Peer, World, frames_of, publish_frames};
use cloverleaf_amqp::wire::{Method, Properties, method};
use cloverleaf_amqp::{ContentMemory, SessionOptions};
use cloverleaf_session::{Output, Session as _};

/// The output of one poll.
fn polled(peer: &mut Peer<'_>) -> Output {
    let mut out = Output::default();
    let mut cx = Context::from_waker(Waker::noop());
    peer.session.poll(&mut cx, peer.world.now(), &mut out);
    out
}

#[test]
fn a_large_body_is_sent_from_the_log_and_a_small_one_is_copied() {
    for (length, is_shared) in [(300_000, true), (1000, false)] {
        let world = World::default();
        let mut peer = world.channel();
        peer.declare("q", &[]);
        let body = "x".repeat(length);
        peer.publish("", "q", &body);
        world.settle();
        let get = method::BasicGet {
            queue: "q",
            ..Default::default()
        };
        let get = crate::session_common::method_frame(1, &Method::BasicGet(get));
        peer.show(&get);
        let got = polled(&mut peer);
        assert!(got.len() > length, "the body is in the output");
        assert_eq!(got.bytes.len() < length, is_shared, "of {length} bytes");
        peer.method(
            1,
            Method::BasicRecover(method::BasicRecover { requeue: true }),
        );
        peer.written();
        peer.show(&crate::session_common::method_frame(
            1,
            &Method::BasicConsume(method::BasicConsume {
                queue: "q",
                no_wait: true,
                ..Default::default()
            }),
        ));
        let delivered = polled(&mut peer);
        assert!(delivered.len() > length);
        assert_eq!(
            delivered.bytes.len() < length,
            is_shared,
            "of {length} bytes"
        );
        assert_eq!(delivered.is_plain(), !is_shared);
    }
}

#[test]
fn a_body_of_many_frames_is_stored_as_it_was_sent() {
    let world = World::default();
    let mut peer = world.channel();
    peer.open_channel(2);
    peer.declare("q", &[]);
    let properties = Properties::default();
    let body: String = (0..200_000u32)
        .map(|n| char::from(b'a' + (n % 23) as u8))
        .collect();
    let whole = publish_frames(1, "", "q", &properties, body.as_bytes(), false);
    peer.send(&whole);
    // The same body, with frames of another channel in between, and routed to two queues.
    let other = publish_frames(2, "", "q", &properties, b"small", false);
    let (one, two) = (frames_of(&whole), frames_of(&other));
    for (n, frame) in one.iter().enumerate() {
        peer.send(frame);
        if let Some(other) = two.get(n) {
            peer.send(other);
        }
    }
    peer.consume("q", "c", true);
    let bodies = peer.bodies();
    assert_eq!(bodies.len(), 3);
    assert!(bodies[0] == body && bodies[1] == "small" && bodies[2] == body);
    // A returned message has its whole body.
    peer.send(&publish_frames(
        1,
        "",
        "nowhere",
        &properties,
        body.as_bytes(),
        true,
    ));
    assert!(peer.receive()[0].body == body.as_bytes());
}

fn small_memory() -> SessionOptions {
    SessionOptions {
        contents: ContentMemory::new(40_000),
        message_bytes_max: 9000,
        transaction_bytes_max: 9000,
        ..SessionOptions::default()
    }
}

/// Begins contents on channels 1 to `count`, and sends 4000 bytes of each.
fn begin_contents(peer: &mut Peer<'_>, count: u16) {
    for number in 1..=count {
        if number > 1 {
            peer.open_channel(number);
        }
        let whole = publish_frames(number, "", "q", &Properties::default(), &[7; 9000], false);
        let frames = frames_of(&whole);
        peer.send(&frames[0]);
        // A heartbeat between method and header, so that the session keeps the content itself.
        peer.send(&crate::session_common::frame(8, 0, &[]));
        peer.send(&frames[1]);
        peer.send(&frames[2]);
    }
}

#[test]
fn one_connection_cannot_hold_all_of_the_memory() {
    let options = small_memory();
    let memory = options.contents.clone();
    let world = World::with(options);
    let mut peer = world.channel();
    begin_contents(&mut peer, 4);
    assert!(peer.receive().is_empty());
    peer.open_channel(5);
    let whole = publish_frames(5, "", "q", &Properties::default(), &[7; 9000], false);
    let frames = frames_of(&whole);
    peer.send(&frames[0]);
    peer.send(&crate::session_common::frame(8, 0, &[]));
    peer.send(&frames[1]);
    peer.send(&frames[2]);
    assert_eq!(peer.closed().0, 506, "over half of the budget");
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn an_old_unfinished_content_ends_its_connection_once_memory_is_tight() {
    let options = small_memory();
    let memory = options.contents.clone();
    let world = World::with(options);
    let mut first = world.channel();
    begin_contents(&mut first, 2);
    world.advance(60_000);
    assert!(first.receive().is_empty(), "the budget is not tight");
    let held = memory.bytes();
    let mut others: Vec<Peer<'_>> = (0..2).map(|_| world.channel()).collect();
    others.iter_mut().for_each(|other| begin_contents(other, 2));
    assert!(memory.bytes() > 20_000);
    world.advance(5000);
    assert!(first.session.next_due_us() <= world.now().us);
    assert_eq!(first.closed().0, 506);
    assert_eq!(memory.bytes(), 2 * held);
    // The others have not held memory for long, and by then it is no longer tight.
    world.advance(60_000);
    assert!(others[0].receive().iter().all(|got| got.channel == 0));
    assert!(others[1].receive().iter().all(|got| got.channel == 0));
    assert_eq!(memory.bytes(), 2 * held);
}

#[test]
fn an_old_transaction_ends_its_connection_once_memory_is_tight() {
    let options = small_memory();
    let memory = options.contents.clone();
    let world = World::with(options);
    let mut peers: Vec<Peer<'_>> = (0..3).map(|_| world.channel()).collect();
    for peer in &mut peers {
        let select = Method::TxSelect(method::TxSelect {});
        peer.ask(1, select, method::TxSelectOk::ID);
        peer.publish("", "q", &"x".repeat(8000));
    }
    assert!(memory.bytes() > 24_000);
    world.advance(31_000);
    assert_eq!(peers[0].closed().0, 506);
    assert!(memory.bytes() < 20_000, "memory released");
    assert!(peers[1].receive().is_empty());
    assert!(peers[2].receive().is_empty());
}
