//! A rejected message is in its new queue before the client's next method is answered: no other
//! thread is involved.

use crate::host_common::to_queue;
use crate::session_common::{Peer, World, method_frame};
use cloverleaf_amqp::wire::{Method, Table, Value, method, table_bytes};
use cloverleaf_session::Session as _;

/// The queue `work` with `count` messages, which dead-letters into the queue `dead`.
fn with_work<'w>(
    world: &'w World,
    count: usize,
    more: &[(&'static str, Value<'static>)],
) -> Peer<'w> {
    let mut peer = world.channel();
    peer.declare("dead", &[]);
    peer.declare("work", &to_queue("dead", more));
    for number in 0..count {
        peer.publish("", "work", &number.to_string());
    }
    peer
}

/// A consumer of `work` with `count` unacknowledged messages.
fn consuming(world: &World, count: usize) -> Peer<'_> {
    let mut peer = with_work(world, count, &[]);
    peer.consume("work", "c", false);
    assert_eq!(peer.bodies().len(), count);
    peer
}

fn delete() -> Vec<u8> {
    let delete = method::QueueDelete {
        queue: "work",
        ..Default::default()
    };
    method_frame(1, &Method::QueueDelete(delete))
}

fn get() -> Vec<u8> {
    let get = method::BasicGet {
        queue: "dead",
        no_ack: true,
        ..Default::default()
    };
    method_frame(1, &Method::BasicGet(get))
}

fn nack(delivery_tag: u64, multiple: bool) -> Vec<u8> {
    let nack = method::BasicNack {
        delivery_tag,
        multiple,
        requeue: false,
    };
    method_frame(1, &Method::BasicNack(nack))
}

#[test]
fn a_dead_letter_is_there_when_the_next_command_is_answered() {
    let world = World::default();
    let mut peer = consuming(&world, 4);
    let reject = method::BasicReject {
        delivery_tag: 1,
        requeue: false,
    };
    let reject = method_frame(1, &Method::BasicReject(reject));
    peer.send(&[reject, get(), nack(3, true), get(), get(), get()].concat());
    let got = peer.receive();
    let bodies: Vec<&[u8]> = got.iter().map(|got| &got.body[..]).collect();
    assert_eq!(bodies, [&b"0"[..], b"1", b"2", b""]);
    assert_eq!(got[3].id(), method::BasicGetEmpty::ID);
    // In a transaction the message is dead-lettered with the commit.
    let select = Method::TxSelect(method::TxSelect {});
    peer.ask(1, select, method::TxSelectOk::ID);
    peer.send(&[nack(4, false), get()].concat());
    assert_eq!(peer.receive()[0].id(), method::BasicGetEmpty::ID);
    let commit = method_frame(1, &Method::TxCommit(method::TxCommit {}));
    peer.send(&commit);
    world.log.step();
    assert_eq!(peer.receive()[0].id(), method::TxCommitOk::ID);
    peer.send(&get());
    assert_eq!(peer.receive()[0].body, b"3");
}

#[test]
fn a_dead_letter_that_is_not_written_yet_is_waited_for() {
    let world = World::with_slow_disk();
    let mut peer = with_work(&world, 1, &[]);
    world.log.step();
    peer.consume("work", "c", false);
    assert_eq!(peer.bodies(), ["0"]);
    peer.send(&[nack(1, false), get()].concat());
    assert!(peer.receive().is_empty());
    world.log.step();
    assert_eq!(peer.receive()[0].body, b"0");
}

/// Thousands of rejections at once must not occupy the connection's core for long: the router
/// routes the rest, and the next method waits for it.
#[test]
fn many_dead_letters_are_left_to_the_router_and_the_next_method_waits() {
    const COUNT: usize = 3_000;
    let world = World::default();
    let mut peer = consuming(&world, COUNT);
    peer.send(&[nack(0, true), get()].concat());
    assert!(!peer.session.wants_input());
    assert!(
        peer.receive().is_empty(),
        "answered before the messages were routed"
    );
    let dead = world.host.queue(world.host.owner(), "dead").unwrap();
    let at_once = dead.counts().0 as usize;
    assert!((1..1_000).contains(&at_once), "{at_once} in one turn");
    world.host.router_tick();
    let got = peer.receive();
    assert_eq!(got[0].body, b"0");
    peer.consume("dead", "d", true);
    let bodies = peer.bodies();
    let expected: Vec<String> = (1..COUNT).map(|number| number.to_string()).collect();
    assert_eq!(bodies, expected);
}

#[test]
fn a_connection_that_ends_meanwhile_loses_no_dead_letter() {
    const COUNT: usize = 3_000;
    let world = World::default();
    let mut peer = consuming(&world, COUNT);
    peer.send(&nack(0, true));
    drop(peer);
    world.settle();
    let mut peer = world.channel();
    assert_eq!(peer.counts("dead").0 as usize, COUNT);
    assert_eq!(peer.counts("work").0, 0);
}

#[test]
fn a_queue_that_is_deleted_right_after_loses_no_dead_letter() {
    let world = World::default();
    let mut peer = consuming(&world, 3_000);
    peer.send(&[nack(0, true), delete()].concat());
    world.host.router_tick();
    // The copies are not synced yet: the router is asked whether all messages are routed.
    assert!(peer.receive().is_empty());
    world.host.router_tick();
    assert_eq!(peer.receive()[0].id(), method::QueueDeleteOk::ID);
    assert_eq!(peer.counts("dead").0, 3_000);
}

/// The messages have expired before; a RabbitMQ queue dead-letters them before it handles its
/// deletion.
#[test]
fn a_queue_that_another_connection_deletes_loses_no_dead_letter() {
    const COUNT: usize = 3_000;
    let world = World::default();
    with_work(&world, COUNT, &[("x-message-ttl", Value::I32(50))]);
    world.clock.advance(51);
    world.broker.tick();
    let mut other = world.channel();
    other.send(&delete());
    assert!(
        other.receive().is_empty(),
        "answered before the messages were routed"
    );
    world.host.router_tick();
    assert_eq!(other.receive()[0].id(), method::QueueDeleteOk::ID);
    assert_eq!(other.counts("dead").0 as usize, COUNT);
    assert!(world.host.queue(world.host.owner(), "work").is_err());
}

#[test]
fn a_dead_letter_that_cannot_be_routed_now_delays_no_deletion() {
    let world = World::default();
    let mut peer = consuming(&world, 1);
    world.faulty.set(|faults| faults.free_bytes = Some(0));
    peer.send(&nack(1, false));
    let mut other = world.channel();
    other.send(&delete());
    assert!(other.receive().is_empty());
    world.host.router_tick();
    assert_eq!(other.receive()[0].id(), method::QueueDeleteOk::ID);
}

#[test]
fn the_end_of_the_router_blocks_no_connection() {
    let world = World::default();
    let mut peer = consuming(&world, 3_000);
    peer.send(&[nack(0, true), get()].concat());
    assert!(peer.receive().is_empty());
    world.host.close();
    assert_eq!(peer.receive()[0].body, b"0");
    peer.publish("", "work", "next");
    let (tag, _, _) = peer.deliveries().remove(0);
    // A message that dies from now on stays in its queue until the next start.
    peer.nack(tag, false, false);
    assert!(peer.session.wants_input());
}

/// A connection with `count` unacknowledged messages of a queue that is deleted with it.
fn with_own_queue(world: &World, exclusive: bool, count: usize) -> Peer<'_> {
    let mut peer = world.channel();
    peer.declare("dead", &[]);
    let arguments = table_bytes(&to_queue("dead", &[]));
    let declare = method::QueueDeclare {
        queue: "work",
        exclusive,
        auto_delete: !exclusive,
        arguments: Table::check(&arguments).unwrap(),
        ..Default::default()
    };
    peer.ask(1, Method::QueueDeclare(declare), method::QueueDeclareOk::ID);
    for number in 0..count {
        peer.publish("", "work", &number.to_string());
    }
    peer.consume("work", "c", false);
    assert_eq!(peer.bodies().len(), count);
    peer
}

/// An exclusive queue, and an auto-delete queue, are deleted only after their messages are
/// dead-lettered.
#[test]
fn a_queue_deleted_with_its_connection_or_consumer_loses_no_dead_letter() {
    const COUNT: usize = 3_000;
    for exclusive in [true, false] {
        let world = World::default();
        let mut peer = with_own_queue(&world, exclusive, COUNT);
        peer.send(&nack(0, true));
        drop(peer);
        world.settle();
        world.advance(1_000);
        let mut peer = world.channel();
        assert_eq!(peer.counts("dead").0 as usize, COUNT);
        assert!(world.host.queue(world.host.owner(), "work").is_err());
    }
}

#[test]
fn a_deletion_does_not_wait_forever_for_dead_letters() {
    let world = World::default();
    let mut peer = with_own_queue(&world, true, 1);
    world.faulty.set(|faults| faults.free_bytes = Some(0));
    peer.send(&nack(1, false));
    drop(peer);
    world.advance(9_000);
    let is_there = || {
        let found = world.host.queue(world.host.owner(), "work");
        found.is_err_and(|error| error.to_string().contains("RESOURCE_LOCKED"))
    };
    assert!(is_there());
    world.advance(2_000);
    world.faulty.set(|faults| faults.free_bytes = None);
    world.clock.advance(1_000);
    world.host.router_tick();
    assert!(!is_there());
}
