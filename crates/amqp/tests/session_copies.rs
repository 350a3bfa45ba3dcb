//! A message for very many queues: its copies are made in turns, and later input waits.

use crate::session_common::{Peer, World, method_frame, publish_frames};
use cloverleaf_amqp::wire::{Method, Properties, Table, Value, method, table_bytes};
use cloverleaf_log::{BatchBuilder, Durability};
use cloverleaf_session::Session as _;

const QUEUES: usize = 1_000;
/// Maximum number of copies that a session makes before it lets others have a turn.
const TURN_MAX: usize = 256;

fn name(number: usize) -> String {
    format!("q-{number:04}")
}

/// A connection, and many queues bound to `amq.fanout`.
fn fan_out(world: &World) -> Peer<'_> {
    let mut peer = world.channel();
    for number in 0..QUEUES {
        let queue = &name(number);
        peer.declare(queue, &[]);
        let bind = method::QueueBind {
            queue,
            exchange: "amq.fanout",
            ..Default::default()
        };
        peer.ask(1, Method::QueueBind(bind), method::QueueBindOk::ID);
    }
    peer
}

/// The number of messages in all queues together.
fn copies(world: &World) -> usize {
    let owner = world.host.owner();
    let queues = (0..QUEUES).map(|number| world.host.queue(owner, &name(number)).unwrap());
    queues.map(|queue| queue.counts().0 as usize).sum()
}

fn publish(exchange: &str, key: &str, body: &str) -> Vec<u8> {
    let persistent = Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    };
    publish_frames(1, exchange, key, &persistent, body.as_bytes(), false)
}

/// Polls the session until it wants no more turns. Returns their number.
fn turns(peer: &mut Peer<'_>, mut made: usize) -> usize {
    let mut turns = 0;
    while peer.session.wants_turn() {
        assert!(!peer.session.wants_input());
        peer.poll_once();
        turns += 1;
        let now = copies(peer.world);
        assert!(now - made <= TURN_MAX, "{} copies in one turn", now - made);
        made = now;
    }
    turns
}

#[test]
fn a_fan_out_is_made_in_turns_and_confirmed_at_its_end() {
    let world = World::default();
    let mut peer = fan_out(&world);
    peer.confirms();
    peer.show(&publish("amq.fanout", "", "one"));
    let first = copies(&world);
    assert!((1..=TURN_MAX).contains(&first), "{first} copies at first");
    world.log.step();
    assert!(!peer.poll_once(), "confirmed before all copies were made");
    assert!(peer.session.wants_turn());
    let turns = turns(&mut peer, copies(&world));
    assert!(turns >= QUEUES / TURN_MAX - 2, "{turns} turns");
    assert_eq!(copies(&world), QUEUES);
    world.log.step();
    let got = peer.receive();
    assert_eq!(got[0].id(), method::BasicAck::ID);
    // Each queue has the messages in their order.
    peer.send(
        &[
            publish("amq.fanout", "", "two"),
            publish("", &name(999), "three"),
        ]
        .concat(),
    );
    peer.consume(&name(999), "c", true);
    world.log.step();
    let got = peer.receive();
    let bodies = got
        .iter()
        .filter(|got| got.id() == method::BasicDeliver::ID);
    let bodies: Vec<&[u8]> = bodies.map(|got| &got.body[..]).collect();
    assert_eq!(bodies, [&b"one"[..], b"two", b"three"]);
}

#[test]
fn a_commit_is_copied_in_turns_and_answered_at_its_end() {
    let world = World::default();
    let mut peer = fan_out(&world);
    let select = Method::TxSelect(method::TxSelect {});
    peer.ask(1, select, method::TxSelectOk::ID);
    for body in ["one", "two"] {
        peer.send(&publish("amq.fanout", "", body));
    }
    assert_eq!(copies(&world), 0);
    peer.show(&method_frame(1, &Method::TxCommit(method::TxCommit {})));
    let turns = turns(&mut peer, 0);
    assert!(turns >= 2 * QUEUES / TURN_MAX - 2, "{turns} turns");
    assert_eq!(copies(&world), 2 * QUEUES);
    world.log.step();
    assert_eq!(peer.receive()[0].id(), method::TxCommitOk::ID);
}

#[test]
fn a_connection_that_ends_meanwhile_completes_its_copies() {
    let world = World::default();
    let mut peer = fan_out(&world);
    peer.show(&publish("amq.fanout", "", "one"));
    assert!(copies(&world) < QUEUES);
    drop(peer);
    assert_eq!(copies(&world), QUEUES);
}

#[test]
fn a_dead_letter_for_very_many_queues_is_left_to_the_router() {
    let world = World::default();
    let mut peer = fan_out(&world);
    let exchange = Value::String(b"amq.fanout");
    let arguments = table_bytes(&[("x-dead-letter-exchange", exchange)]);
    let declare = method::QueueDeclare {
        queue: "work",
        durable: true,
        arguments: Table::check(&arguments).unwrap(),
        ..Default::default()
    };
    peer.ask(1, Method::QueueDeclare(declare), method::QueueDeclareOk::ID);
    peer.publish("", "work", "one");
    peer.consume("work", "c", false);
    assert_eq!(peer.bodies(), ["one"]);
    peer.nack(1, false, false);
    assert_eq!(copies(&world), 0);
    assert!(!peer.session.wants_input());
    world.host.router_tick();
    assert_eq!(copies(&world), QUEUES);
    peer.turn();
    assert!(peer.session.wants_input());
}

/// A commit without publishes waits for the disk, too, but not forever: it has nothing to copy.
#[test]
fn a_commit_without_publishes_waits_for_room() {
    let world = World::with_slow_disk();
    let mut peer = world.channel();
    peer.declare("work", &[]);
    peer.declare("full", &[]);
    peer.publish("", "work", "body");
    world.log.step();
    peer.ask(
        1,
        Method::TxSelect(method::TxSelect {}),
        method::TxSelectOk::ID,
    );
    peer.consume("work", "c", false);
    assert_eq!(peer.bodies(), ["body"]);
    peer.ack(1, false);
    let queue = world.host.queue(world.host.owner(), "full").unwrap();
    while world.broker.write_budget().is_free() {
        let mut builder = BatchBuilder::with_capacity(1 << 20, 0);
        builder.push(None, Some(&[0; 1 << 20]), &[]);
        drop(
            queue
                .topic
                .publish(builder.finish(), Durability::Kernel)
                .unwrap(),
        );
    }
    peer.method(1, Method::TxCommit(method::TxCommit {}));
    world.log.step();
    assert!(world.broker.write_budget().is_free());
    assert_eq!(peer.receive()[0].id(), method::TxCommitOk::ID);
    let work = world.host.queue(world.host.owner(), "work").unwrap();
    assert_eq!(work.subscription.stats().in_flight, 0);
}
