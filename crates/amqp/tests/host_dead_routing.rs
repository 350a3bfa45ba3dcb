//! When dead messages have reached their queues, and when their own queue may release them.

use std::sync::mpsc::channel;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use crate::host_common::{World, persistent, receive, to_queue};
use cloverleaf_amqp::wire::Value;

/// Only a fault takes this long.
const HANG: Duration = Duration::from_secs(120);

/// A persistent message.
fn publish(world: &World, queue: &str, body: &str) {
    world.publish_with("", queue, body, &persistent(), &[]);
}

/// No other thread is involved: the router takes dead messages directly from their queue.
#[test]
fn expired_and_surplus_messages_are_routed_in_one_step() {
    let world = World::new();
    let dead = world.queue("dead");
    let fields = |more| to_queue("dead", &[more]);
    world.queue_with("short", &fields(("x-max-length", Value::I32(1))));
    world.queue_with("brief", &fields(("x-message-ttl", Value::I32(50))));
    for body in ["1", "2"] {
        publish(&world, "short", body);
    }
    world.host.router_tick();
    assert_eq!(world.bodies(&dead), ["1"]);
    publish(&world, "brief", "3");
    world.clock.advance(51);
    world.broker.tick();
    world.host.router_tick();
    assert_eq!(world.bodies(&dead), ["3"]);
}

/// A copy is delivered before it is synced; until then the queue keeps the dead message.
#[test]
fn a_queue_keeps_dead_messages_until_their_copies_are_synced() {
    let mut world = World::new();
    let dead = world.queue("dead");
    let work = world.queue_with("work", &to_queue("dead", &[]));
    publish(&world, "work", "body");
    let consumer = world.consumer(&work, 1);
    let got = receive(&consumer, "work");
    consumer.reject(got[0].id).unwrap();
    world.host.router_tick();
    assert_eq!(dead.counts().0, 1);
    assert_eq!(work.subscription.floor(0), Some(0), "nothing is synced yet");
    drop(consumer);
    world.lose_power_and_restart(1);
    world.settle();
    let count = |name| world.host.queue(world.owner, name).unwrap().counts().0;
    assert!(count("dead") + count("work") > 0);
}

#[test]
fn a_message_that_cannot_be_routed_now_is_routed_later_and_once() {
    let world = World::new();
    let (one, two) = (world.queue("one"), world.queue("two"));
    world.exchange("dlx", "fanout");
    world.bind("one", "dlx", "");
    world.bind("two", "dlx", "");
    let work = world.queue_with("work", &[("x-dead-letter-exchange", Value::String(b"dlx"))]);
    publish(&world, "work", "body");
    let consumer = world.consumer(&work, 1);
    let got = receive(&consumer, "work");
    world.faults.set(|faults| faults.free_bytes = Some(0));
    consumer.reject(got[0].id).unwrap();
    world.settle();
    assert_eq!((one.counts().0, two.counts().0), (0, 0));
    world.faults.set(|faults| faults.free_bytes = None);
    world.settle();
    assert_eq!(
        (one.counts().0, two.counts().0),
        (0, 0),
        "waiting for the retry"
    );
    world.advance(1_001);
    assert_eq!(
        (world.bodies(&one), world.bodies(&two)),
        (vec!["body".to_owned()], vec!["body".to_owned()])
    );
    assert_eq!(work.subscription.floor(0), Some(1));
}

/// Even if more messages have to be retried than the router takes in one round.
#[test]
fn messages_to_be_retried_delay_no_other() {
    const FAILED: usize = 1_100;
    let world = World::new();
    let dead = world.queue("dead");
    let fields = to_queue("dead", &[]);
    let work = world.queue_with("work", &fields);
    for _ in 0..FAILED {
        publish(&world, "work", "failed");
    }
    publish(&world, "work", "body");
    let consumer = world.consumer(&work, u32::MAX);
    let got = receive(&consumer, "work");
    assert_eq!(got.len(), FAILED + 1);
    world.faults.set(|faults| faults.free_bytes = Some(0));
    for got in &got[..FAILED] {
        consumer.reject(got.id).unwrap();
    }
    world.settle();
    world.faults.set(|faults| faults.free_bytes = None);
    consumer.reject(got[FAILED].id).unwrap();
    world.host.router_tick();
    assert_eq!(world.bodies(&dead), ["body"]);
    world.advance(1_001);
    assert_eq!(dead.counts().0 as usize, FAILED);
}

/// A disk read that hangs for one message does not delay messages of other queues.
#[test]
fn a_dead_message_whose_read_hangs_delays_no_other() {
    let mut world = World::new();
    world.queue("dead");
    for name in ["hung", "fine"] {
        world.queue_with(name, &to_queue("dead", &[]));
        publish(&world, name, name);
    }
    world.settle();
    world.kill_and_restart();
    let queue = |name| world.host.queue(world.owner, name).unwrap();
    let (dead, hung, fine) = (queue("dead"), queue("hung"), queue("fine"));
    let consumers = [world.consumer(&hung, 1), world.consumer(&fine, 1)];
    let got = [
        receive(&consumers[0], "hung"),
        receive(&consumers[1], "fine"),
    ];
    let topic = hung.subscription.topic().unwrap().id().to_string();
    world.faults.set(|faults| {
        faults.uncached = true;
        faults.only = topic.clone();
        faults.hanging_reads = Some(topic);
    });
    for (consumer, got) in consumers.iter().zip(&got) {
        consumer.reject(got[0].id).unwrap();
    }
    let (done, is_done) = channel();
    let host = world.host.clone();
    thread::spawn(move || {
        host.router_tick();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(HANG).expect("it waits for the disk");
    assert_eq!(world.bodies(&dead), ["fine"]);
    world.faults.set(|faults| faults.hanging_reads = None);
    world.settle();
    assert_eq!(world.bodies(&dead), ["hung"]);
}

/// The router has begun to read them before it gets the request of the deletion.
#[test]
fn a_deletion_waits_for_dead_messages_read_from_the_disk() {
    let mut world = World::new();
    world.queue("dead");
    world.queue_with("work", &to_queue("dead", &[]));
    publish(&world, "work", "body");
    world.settle();
    world.kill_and_restart();
    let queue = |name| world.host.queue(world.owner, name).unwrap();
    let (dead, work) = (queue("dead"), queue("work"));
    let consumer = world.consumer(&work, 1);
    let got = receive(&consumer, "work");
    world.faults.set(|faults| faults.uncached = true);
    consumer.reject(got[0].id).unwrap();
    world.host.router_tick();
    let routing = world.host.route_all_dead(&work).expect("one dead message");
    world.host.router_tick();
    let context = Context::from_waker(Waker::noop());
    assert!(
        routing.poll(&context).is_pending(),
        "not read from the disk yet"
    );
    world.settle();
    assert!(routing.poll(&context).is_ready());
    assert_eq!(world.bodies(&dead), ["body"]);
}

/// A queue's messages are dead-lettered in order, whether from memory or from the disk.
#[test]
fn a_cached_dead_message_overtakes_no_older_one_of_its_queue() {
    let mut world = World::new();
    world.queue("dead");
    world.queue_with("work", &to_queue("dead", &[]));
    publish(&world, "work", "1");
    world.settle();
    world.kill_and_restart();
    publish(&world, "work", "2");
    let queue = |name| world.host.queue(world.owner, name).unwrap();
    let (dead, work) = (queue("dead"), queue("work"));
    let consumer = world.consumer(&work, 2);
    let mut ids = Vec::new();
    while ids.len() < 2 {
        ids.extend(receive(&consumer, "work").iter().map(|got| got.id));
    }
    world.faults.set(|faults| faults.uncached = true);
    for id in ids {
        consumer.reject(id).unwrap();
    }
    world.host.router_tick();
    assert_eq!(world.bodies(&dead), [""; 0]);
    world.settle();
    assert_eq!(world.bodies(&dead), ["1", "2"]);
}
