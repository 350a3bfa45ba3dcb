//! The router and crashes: at whatever write the process dies, no confirmed persistent message is
//! lost between its death, or its delay, and its new queue.

use std::collections::BTreeSet;

use crate::host_common::{World, persistent, receive, to_queue};
use cloverleaf_amqp::wire::Value;

const MESSAGES: usize = 12;

/// Publishes messages: half of them will be rejected, half are delayed.
fn world() -> (World, BTreeSet<String>) {
    let world = World::new();
    world.exchange_with(
        "later",
        "x-delayed-message",
        &[("x-delayed-type", Value::String(b"fanout"))],
    );
    let work = world.queue_with("work", &to_queue("dead", &[]));
    world.queue("dead");
    world.bind("dead", "later", "");
    let mut bodies = BTreeSet::new();
    for number in 0..MESSAGES {
        let body = number.to_string();
        let delay = [("x-delay", Value::I32(1_000))];
        match number % 2 {
            0 => world.publish_with("", "work", &body, &persistent(), &[]),
            _ => world.publish_with("later", "", &body, &persistent(), &delay),
        }
        bodies.insert(body);
    }
    world.settle();
    let consumer = world.consumer(&work, u32::MAX);
    for got in receive(&consumer, "work") {
        consumer.reject(got.id).unwrap();
    }
    drop(consumer);
    (world, bodies)
}

/// The bodies in both queues once the router is done.
fn arrived(world: &World) -> BTreeSet<String> {
    let mut bodies = BTreeSet::new();
    for _ in 0..4 {
        world.advance(2_000);
        for queue in ["work", "dead"] {
            let queue = world.host.queue(world.owner, queue).unwrap();
            bodies.extend(world.bodies(&queue));
        }
    }
    bodies
}

/// Continues until the disk dies, or is done.
fn go_on(world: &World, changes: u64) {
    world.disk.crash_after(changes);
    for _ in 0..6 {
        world.clock.advance(400);
        for _ in 0..3 {
            world.log.step();
            world.broker.tick();
            world.host.router_tick();
        }
    }
}

#[test]
fn without_a_crash_each_arrives_once() {
    let (world, bodies) = world();
    go_on(&world, u64::MAX);
    let dead = world.host.queue(world.owner, "dead").unwrap();
    let mut got = world.bodies(&dead);
    got.sort();
    assert_eq!(got, bodies.into_iter().collect::<Vec<String>>());
}

#[test]
fn a_kill_in_each_change_of_the_disk_loses_nothing() {
    for changes in 0..80 {
        let (mut world, bodies) = world();
        go_on(&world, changes);
        world.kill_and_restart();
        assert_eq!(arrived(&world), bodies, "killed after {changes} changes");
    }
}

/// The sync that they wait for may take any time.
#[test]
fn a_kill_routes_no_moved_message_twice() {
    let (mut world, bodies) = world();
    for _ in 0..6 {
        world.clock.advance(400);
        for _ in 0..3 {
            world.broker.tick();
            world.host.router_tick();
        }
    }
    let dead = world.host.queue(world.owner, "dead").unwrap();
    let got: BTreeSet<String> = world.bodies(&dead).into_iter().collect();
    assert_eq!(got, bodies);
    world.clock.advance(10);
    world.broker.tick();
    world.kill_and_restart();
    assert_eq!(arrived(&world), BTreeSet::new());
}

#[test]
fn a_power_loss_in_each_change_of_the_disk_loses_nothing() {
    for changes in 0..80 {
        for seed in 0..3 {
            let (mut world, bodies) = world();
            go_on(&world, changes);
            world.lose_power_and_restart(seed);
            let what = format!("power lost after {changes} changes, seed {seed}");
            assert_eq!(arrived(&world), bodies, "{what}");
        }
    }
}
