//! A method that reveals a queue's content comes after the connection's earlier publishes, even if
//! another thread still has to write them.

use crate::session_common::{Got, Peer, World};
use cloverleaf_amqp::wire::{Method, method};

/// Sends a method for the queue "q" after a publish that is not written yet. Returns what was
/// received before the write, and after it.
fn before_and_after(peer: &mut Peer<'_>, method: Method<'_>) -> (Vec<Got>, Vec<Got>) {
    peer.publish("", "q", "one");
    peer.method(1, method);
    let before = peer.receive();
    peer.world.log.step();
    (before, peer.receive())
}

fn get() -> Method<'static> {
    Method::BasicGet(method::BasicGet {
        queue: "q",
        no_ack: true,
        ..Default::default()
    })
}

fn queue_on<'w>(world: &'w World) -> Peer<'w> {
    let mut peer = world.channel();
    peer.declare("q", &[]);
    peer
}

#[test]
fn get_finds_earlier_publishes() {
    let world = World::with_slow_disk();
    let mut peer = queue_on(&world);
    let (before, after) = before_and_after(&mut peer, get());
    assert!(before.is_empty(), "{before:?}");
    assert_eq!(after[0].id(), method::BasicGetOk::ID);
    assert_eq!(after[0].body, b"one");
    // With nothing pending the answer comes at once.
    peer.method(1, get());
    assert_eq!(peer.receive()[0].id(), method::BasicGetEmpty::ID);
}

#[test]
fn counts_include_earlier_publishes() {
    let world = World::with_slow_disk();
    let mut peer = queue_on(&world);
    let declare = method::QueueDeclare {
        queue: "q",
        passive: true,
        ..Default::default()
    };
    let (before, after) = before_and_after(&mut peer, Method::QueueDeclare(declare));
    assert!(before.is_empty(), "{before:?}");
    match after[0].method() {
        Method::QueueDeclareOk(ok) => assert_eq!(ok.message_count, 1),
        method => panic!("{method:?}"),
    }
    let purge = method::QueuePurge {
        queue: "q",
        ..Default::default()
    };
    let (before, after) = before_and_after(&mut peer, Method::QueuePurge(purge));
    assert!(before.is_empty(), "{before:?}");
    match after[0].method() {
        Method::QueuePurgeOk(ok) => assert_eq!(ok.message_count, 2),
        method => panic!("{method:?}"),
    }
    let delete = method::QueueDelete {
        queue: "q",
        if_empty: true,
        ..Default::default()
    };
    let (before, after) = before_and_after(&mut peer, Method::QueueDelete(delete));
    assert!(before.is_empty(), "{before:?}");
    let text = "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty";
    assert_eq!(after[0].close(), (406, text));
}

#[test]
fn publishes_of_others_do_not_delay_a_method_forever() {
    let world = World::with_slow_disk();
    let (mut peer, mut other) = (queue_on(&world), world.channel());
    peer.publish("", "q", "mine");
    peer.method(1, get());
    other.publish("", "q", "theirs");
    world.log.step();
    other.publish("", "q", "later");
    let got = peer.receive();
    assert_eq!(got[0].body, b"mine");
    // A publish to another queue is not waited for either.
    peer.method(1, get());
    world.log.step();
    assert_eq!(peer.receive()[0].body, b"theirs");
    peer.declare("r", &[]);
    other.publish("", "r", "elsewhere");
    peer.method(1, get());
    assert_eq!(peer.receive()[0].body, b"later");
}

#[test]
fn a_failed_write_ends_the_wait() {
    let world = World::with_slow_disk();
    let mut peer = queue_on(&world);
    peer.publish("", "q", "one");
    peer.method(1, get());
    assert!(peer.receive().is_empty());
    world.faulty.set(|faults| faults.free_bytes = Some(0));
    world.log.step();
    let got = peer.receive();
    let answer = got.iter().find(|got| got.channel == 1).expect("an answer");
    assert_eq!(answer.id(), method::BasicGetEmpty::ID);
}

#[test]
fn a_connection_that_ends_waits_for_nothing() {
    let world = World::with_slow_disk();
    let mut peer = queue_on(&world);
    peer.publish("", "q", "one");
    peer.method(1, get());
    drop(peer);
    world.log.step();
    let mut peer = world.channel();
    assert_eq!(peer.counts("q"), (1, 0));
}
