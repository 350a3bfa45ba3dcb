//! Length and age limits of queues: which messages are dropped, when, and where they go.

use std::sync::Arc;

use crate::common::{ReceivedMessage, World, bodies, consumer, consumer_with, receive};
use cloverleaf_broker::{
    ConsumerOptions, Overflow, PartitionOrder, PublishError, Subscription, SubscriptionOptions,
    TopicOptions, headers,
};
use cloverleaf_log::{BatchBuilder, Codec, Durability};

/// A queue whose messages expire after `ttl_ms`; dead letters go to `dead`.
fn aging(world: &World, ttl_ms: u64) -> Arc<Subscription> {
    let options = SubscriptionOptions {
        message_ttl_ms: Some(ttl_ms),
        expires: true,
        dead_letter: Some("dead".to_owned()),
        ..SubscriptionOptions::default()
    };
    world.subscription_with("q", "s", options)
}

fn letters(world: &World) -> Vec<ReceivedMessage> {
    world.settle();
    let automatic = ConsumerOptions {
        auto_ack: true,
        ..ConsumerOptions::default()
    };
    let subscription = world.subscription("dead", "s");
    receive(&consumer_with(&subscription, u32::MAX, automatic)).unwrap()
}

fn bodies_of(got: &[ReceivedMessage]) -> Vec<&str> {
    got.iter().map(|got| got.body.as_str()).collect()
}

fn expiring_at(world: &World, body: &str, in_ms: u64) {
    let at = (cloverleaf_broker::Clock::now_ms(&*world.clock) + in_ms).to_be_bytes();
    world.publish_with_header("q", body, headers::EXPIRES, &at);
}

#[test]
fn messages_expire_without_a_consumer_and_are_dead_lettered() {
    let world = World::new();
    let subscription = aging(&world, 1_000);
    world.publish("q", &["1", "2"]);
    world.advance(600);
    world.publish("q", &["3"]);
    assert_eq!(subscription.counts().depth, 3);
    world.advance(399);
    assert_eq!(subscription.counts().depth, 3);
    world.advance(1);
    assert_eq!(subscription.counts().depth, 1);
    let dead = letters(&world);
    assert_eq!(bodies_of(&dead), ["1", "2"]);
    let reason = ("cloverleaf-dead-reason".to_owned(), "expired".to_owned());
    assert!(dead[0].headers.contains(&reason));
    world.advance(600);
    assert_eq!(subscription.counts().depth, 0);
    // An empty queue sets the timer for the next message.
    world.publish("q", &["4"]);
    world.advance(1_000);
    assert_eq!(subscription.counts().depth, 0);
    assert_eq!(subscription.floor(0), Some(4));
}

#[test]
fn the_sooner_expiry_counts_and_only_the_head_expires() {
    let world = World::new();
    let subscription = aging(&world, 5_000);
    expiring_at(&world, "long", 60_000);
    expiring_at(&world, "short", 1_000);
    world.advance(1_500);
    // The second message has expired, but the first one, which has not, is ahead of it.
    assert_eq!(subscription.counts().depth, 2);
    world.advance(3_500);
    assert_eq!(subscription.counts().depth, 0);
    assert_eq!(bodies_of(&letters(&world)), ["long", "short"]);
    expiring_at(&world, "sooner", 200);
    world.advance(200);
    assert_eq!(subscription.counts().depth, 0);
}

#[test]
fn requeued_messages_expire_too_and_those_in_flight_do_not() {
    let world = World::new();
    let subscription = aging(&world, 1_000);
    let first = consumer(&subscription, 2);
    world.publish("q", &["1", "2", "3"]);
    let got = receive(&first).unwrap();
    world.advance(500);
    first.set_window(0);
    first.nack(got[1].id, 0).unwrap();
    assert_eq!(subscription.counts().depth, 2);
    world.advance(500);
    assert_eq!(
        (subscription.counts().depth, subscription.counts().in_flight),
        (0, 1)
    );
    assert_eq!(bodies_of(&letters(&world)), ["2", "3"]);
    // A message that is requeued after its expiry is dropped at once.
    first.nack(got[0].id, 0).unwrap();
    assert_eq!(subscription.counts().depth, 0);
    assert_eq!(bodies_of(&letters(&world)), ["1"]);
}

#[test]
fn messages_with_a_ttl_of_zero_reach_only_waiting_consumers() {
    let world = World::new();
    let subscription = aging(&world, 0);
    world.publish("q", &["nobody"]);
    assert_eq!(subscription.counts().depth, 0);
    let waiting = consumer(&subscription, 2);
    world.publish("q", &["one"]);
    world.publish("q", &["two"]);
    world.publish("q", &["three"]);
    assert_eq!(bodies(&waiting), ["one", "two"]);
    assert_eq!(subscription.counts().depth, 0);
    waiting.set_window(3);
    assert_eq!(bodies(&waiting), [""; 0]);
}

#[test]
fn expiry_goes_on_after_a_restart_and_after_cold_reads() {
    let mut world = World::new();
    aging(&world, 1_000);
    world.publish("q", &["1", "2", "3"]);
    world.settle();
    world.clock.advance(999);
    world.restart_uncached();
    world.settle();
    assert_eq!(world.subscription("q", "s").counts().depth, 3);
    world.advance(1);
    world.settle();
    assert_eq!(world.subscription("q", "s").counts().depth, 0);
    // The journal has that they are settled.
    world.advance(20);
    world.kill_and_restart();
    world.settle();
    assert_eq!(bodies_of(&letters(&world)), ["1", "2", "3"]);
}

#[test]
fn a_deleted_queue_leaves_no_timer() {
    let world = World::new();
    let subscription = aging(&world, 1_000);
    world.publish("q", &["1"]);
    let holding = consumer(&subscription, 0);
    world.settle();
    world.topic("q").delete_subscription("s").unwrap();
    world.advance(1_000);
    let now_ms = cloverleaf_broker::Clock::now_ms(&*world.clock);
    assert!(world.broker.tick() > now_ms, "the housekeeping has no rest");
    drop(holding);
}

#[test]
fn each_priority_has_a_head_that_expires() {
    let world = World::new();
    let options = || TopicOptions {
        partitions: 3,
        ..TopicOptions::default()
    };
    let topic = world.broker.topic_or_create("q", options).unwrap();
    let options = SubscriptionOptions {
        message_ttl_ms: Some(1_000),
        order: PartitionOrder::HighestFirst,
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("q", "s", options);
    for partition in [2, 0] {
        let batch = world.batch(&["m"]);
        drop(
            topic
                .publish_to(partition, batch, Durability::Kernel)
                .unwrap(),
        );
        world.advance(300);
    }
    assert_eq!(subscription.counts().depth, 2);
    world.advance(400);
    assert_eq!(subscription.counts().depth, 1);
    world.advance(300);
    assert_eq!(subscription.counts().depth, 0);
}

#[test]
fn many_expired_messages_do_not_block_the_broker_and_all_are_dropped() {
    let world = World::new();
    let subscription = aging(&world, 1_000);
    let body = "x".repeat(2_000);
    for _ in 0..100 {
        world.publish("q", &[body.as_str(); 100]);
    }
    world.clock.advance(1_000);
    // Each dispatch is limited, and so is the number of dead letters under way.
    for _ in 0..60 {
        world.advance(2);
    }
    assert_eq!(subscription.counts().depth, 0);
    assert_eq!(subscription.stats().dead_lettered, 10_000);
    assert_eq!(subscription.floor(0), Some(10_000));
    assert_eq!(letters(&world).len(), 10_000);
}

#[test]
fn the_highest_priority_goes_first_when_a_queue_is_too_long() {
    for (length_max, bytes_max) in [(Some(3), None), (None, Some(6)), (Some(3), Some(100))] {
        let world = World::new();
        let options = || TopicOptions {
            partitions: 3,
            ..TopicOptions::default()
        };
        let topic = world.broker.topic_or_create("q", options).unwrap();
        let options = SubscriptionOptions {
            length_max,
            length_bytes_max: bytes_max,
            order: PartitionOrder::HighestFirst,
            ..SubscriptionOptions::default()
        };
        let subscription = world.subscription_with("q", "s", options);
        for (body, partition) in [("l1", 0), ("h1", 2), ("m1", 1), ("l2", 0), ("l3", 0)] {
            let batch = world.batch(&[body]);
            drop(topic.publish_to(partition, batch, Durability::Kernel));
            world.settle();
        }
        let left = bodies(&consumer(&subscription, 10));
        assert_eq!(left, ["l1", "l2", "l3"]);
    }
}

fn limited(world: &World, bytes_max: u64, overflow: Overflow) -> Arc<Subscription> {
    let options = SubscriptionOptions {
        length_bytes_max: Some(bytes_max),
        overflow,
        dead_letter: Some("dead".to_owned()),
        ..SubscriptionOptions::default()
    };
    world.subscription_with("q", "s", options)
}

#[test]
fn a_queue_drops_its_head_when_its_bodies_are_too_large() {
    let world = World::new();
    let subscription = limited(&world, 10, Overflow::DropHead);
    world.publish_with_header("q", "aaaa", b"header", &[1; 100]);
    world.publish("q", &["bbbb", "cc"]);
    assert_eq!(subscription.counts().depth, 3);
    world.publish("q", &["d"]);
    assert_eq!(subscription.counts().depth, 3);
    assert_eq!(bodies_of(&letters(&world)), ["aaaa"]);
    world.publish("q", &["eeeeeeeeee"]);
    assert_eq!(subscription.counts().depth, 1);
    // Larger than the limit: no message stays.
    world.publish("q", &["ffffffffffff"]);
    assert_eq!(subscription.counts().depth, 0);
    assert_eq!(
        bodies_of(&letters(&world)),
        ["bbbb", "cc", "d", "eeeeeeeeee", "ffffffffffff"]
    );

    // Consumers with free slots get messages before the limit applies.
    let taking = consumer(&subscription, 3);
    world.publish("q", &["111111", "222222", "333333", "444444", "5555"]);
    let got = receive(&taking).unwrap();
    assert_eq!(bodies_of(&got), ["111111", "222222", "333333"]);
    assert_eq!(subscription.counts().depth, 2);
    // A requeued message counts, and is at the head.
    taking.set_window(0);
    taking.nack(got[1].id, 0).unwrap();
    assert_eq!(bodies_of(&letters(&world)), ["222222"]);
    assert_eq!(subscription.counts().depth, 2);
    subscription.discard_all();
    world.publish("q", &["1234567890"]);
    assert_eq!(subscription.counts().depth, 1);
}

#[test]
fn a_queue_refuses_when_its_bodies_are_too_large() {
    let world = World::new();
    let subscription = limited(&world, 10, Overflow::RejectPublish);
    let publish = |bodies: &[&str]| {
        let topic = world.topic("q");
        let batch = world.batch(bodies);
        topic.publish(batch, Durability::Kernel).map(drop)
    };
    publish(&["123456", "1234"]).unwrap();
    assert!(matches!(
        publish(&["1"]),
        Err(PublishError::QueueFull { .. })
    ));
    publish(&[""]).unwrap();
    let taking = consumer(&subscription, 1);
    assert_eq!(bodies(&taking), ["123456"]);
    publish(&["123456"]).unwrap();
    assert!(publish(&["1"]).is_err());
    // A failed publish is not counted: this batch is larger than the topic allows.
    let small = |options: &mut TopicOptions| options.batch_bytes_max = Some(100);
    world.topic("q").set_options(small).unwrap();
    drop(taking);
    subscription.discard_all();
    assert!(publish(&["1", &"2".repeat(9), "", "", "", "", "", "", "", ""]).is_err());
    publish(&["1234567890"]).unwrap();
    assert!(publish(&["1"]).is_err());
}

#[test]
fn a_queue_refuses_when_unwritten_messages_fill_it() {
    let mut world = World::new();
    world.log_options.inline_writes = false;
    world.restart();
    let options = SubscriptionOptions {
        length_max: Some(3),
        overflow: Overflow::RejectPublish,
        ..SubscriptionOptions::default()
    };
    world.subscription_with("q", "s", options);
    let topic = world.topic("q");
    let publish = || topic.publish(world.batch(&["a"]), Durability::Kernel);
    let refused = || matches!(publish(), Err(PublishError::QueueFull { .. }));
    let two = [publish().unwrap(), publish().unwrap()];
    world.log.step_commit();
    let third = publish().unwrap();
    assert!(refused());
    world.log.step_commit();
    assert!(refused());
    drop((two, third));
}

#[test]
fn the_bytes_of_a_backlog_are_counted_at_the_start() {
    let mut world = World::new();
    let options = || TopicOptions {
        segment_bytes: Some(4_096),
        ..TopicOptions::default()
    };
    let topic = world.broker.topic_or_create("q", options).unwrap();
    // Compressed messages count with their inflated size, whoever published them.
    let mut builder = BatchBuilder::with_capacity(100, 1_700_000_000_000);
    builder.push(None, Some(&[b'z'; 1_000]), &[]);
    let compressed = builder.finish().compress(Codec::Zstd).unwrap();
    for _ in 0..3 {
        let bodies = vec!["y".repeat(1_000); 3];
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        world.publish("q", &bodies);
        drop(
            topic
                .publish_to(0, compressed.clone(), Durability::Kernel)
                .unwrap(),
        );
    }
    drop(topic);
    // Twelve messages of a thousand bytes.
    let subscription = limited(&world, 12_000, Overflow::DropHead);
    assert_eq!(subscription.counts().depth, 12);
    let holding = consumer(&subscription, 2);
    let got = receive(&holding).unwrap();
    holding.ack(got[1].id).unwrap();
    holding.nack(got[0].id, 0).unwrap();
    drop(holding);
    world.publish("q", &[&"y".repeat(1_000)]);
    assert_eq!(subscription.counts().depth, 12);
    world.advance(20);
    world.kill_and_restart();
    let subscription = world.subscription("q", "s");
    assert_eq!(subscription.counts().depth, 12);
    world.publish("q", &["1"]);
    assert_eq!(subscription.counts().depth, 12);
    assert_eq!(letters(&world).len(), 1);
    world.topic("q").delete_subscription("s").unwrap();

    // A limit far below the backlog: older messages are dropped without being counted.
    let small = || TopicOptions {
        segment_bytes: Some(4_096),
        ..TopicOptions::default()
    };
    drop(world.broker.topic_or_create("r", small).unwrap());
    for _ in 0..30 {
        world.publish("r", &[&"y".repeat(1_000)]);
    }
    let options = SubscriptionOptions {
        length_bytes_max: Some(2_500),
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("r", "s", options);
    assert_eq!(subscription.counts().depth, 2);
}

#[test]
fn a_limit_in_messages_lets_consumers_come_first() {
    let world = World::new();
    let options = SubscriptionOptions {
        length_max: Some(2),
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("q", "s", options);
    let automatic = ConsumerOptions {
        auto_ack: true,
        ..ConsumerOptions::default()
    };
    let taking = consumer_with(&subscription, 3, automatic);
    world.publish("q", &["1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(bodies(&taking), ["1", "2", "3", "6", "7"]);
}
