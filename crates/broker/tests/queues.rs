//! Queue features of other protocols: priorities, expiry, filters, limits, ranks.

use crate::common::{World, ack_all, bodies, consumer, consumer_with, receive};
use cloverleaf_broker::{
    AttachError, ConsumerOptions, Overflow, PartitionOrder, PublishError, SubscriptionOptions,
    TopicOptions, headers,
};
use cloverleaf_log::Durability;

#[test]
fn priorities_are_partitions_and_the_highest_goes_first() {
    let world = World::new();
    let options = || TopicOptions {
        partitions: 3,
        ..TopicOptions::default()
    };
    let topic = world.broker.topic_or_create("q", options).unwrap();
    let subscription = world.subscription_with(
        "q",
        "s",
        SubscriptionOptions {
            order: PartitionOrder::HighestFirst,
            ..SubscriptionOptions::default()
        },
    );
    for (partition, body) in [(0, "low"), (2, "high"), (1, "middle"), (2, "high too")] {
        topic
            .publish_to(partition, world.batch(&[body]), Durability::Kernel)
            .unwrap();
    }
    let consumer = consumer(&subscription, 1);
    let mut order = Vec::new();
    while let Some(got) = receive(&consumer).unwrap().first().cloned() {
        order.push(got.body.clone());
        ack_all(&consumer, &[got]);
    }
    assert_eq!(order, ["high", "high too", "middle", "low"]);
}

#[test]
fn expired_messages_are_dead_lettered_at_the_head() {
    let world = World::new();
    let subscription = world.subscription_with(
        "q",
        "s",
        SubscriptionOptions {
            expires: true,
            dead_letter: Some("q.dead".to_owned()),
            ..SubscriptionOptions::default()
        },
    );
    let soon = (1_700_000_000_000u64 + 1_000).to_be_bytes();
    let later = (1_700_000_000_000u64 + 9_000).to_be_bytes();
    world.publish_with_header("q", "short", headers::EXPIRES, &soon);
    world.publish_with_header("q", "long", headers::EXPIRES, &later);
    world.advance(2_000);
    assert_eq!(bodies(&consumer(&subscription, 10)), ["long"]);
    world.settle();
    let dead = receive(&consumer(&world.subscription("q.dead", "s"), 10)).unwrap();
    assert_eq!(dead[0].body, "short");
    let reason = ("cloverleaf-dead-reason".to_owned(), "expired".to_owned());
    assert!(dead[0].headers.contains(&reason));
}

#[test]
fn subjects_filter_and_what_does_not_match_counts_as_acknowledged() {
    let world = World::new();
    let subscription = world.subscription_with(
        "s",
        "eu",
        SubscriptionOptions {
            subjects: vec!["orders.eu.*".to_owned()],
            ..SubscriptionOptions::default()
        },
    );
    for subject in ["orders.us.1", "orders.eu.2", "other", "orders.eu.3"] {
        let subject = subject.as_bytes();
        let body = std::str::from_utf8(subject).unwrap();
        world.publish_with_header("s", body, headers::NATS_SUBJECT, subject);
    }
    let consumer = consumer(&subscription, 10);
    let got = receive(&consumer).unwrap();
    let order: Vec<&str> = got.iter().map(|got| got.body.as_str()).collect();
    assert_eq!(order, ["orders.eu.2", "orders.eu.3"]);
    ack_all(&consumer, &got);
    assert_eq!(subscription.floor(0), Some(4));
}

#[test]
fn a_full_queue_drops_its_head_or_refuses() {
    let world = World::new();
    let dropping = world.subscription_with(
        "q",
        "drop",
        SubscriptionOptions {
            length_max: Some(2),
            dead_letter: Some("q.dead".to_owned()),
            ..SubscriptionOptions::default()
        },
    );
    world.publish("q", &["1", "2", "3", "4"]);
    assert_eq!(bodies(&consumer(&dropping, 10)), ["3", "4"]);
    world.settle();
    assert_eq!(
        bodies(&consumer(&world.subscription("q.dead", "s"), 10)),
        ["1", "2"]
    );

    let refusing = world.subscription_with(
        "r",
        "refuse",
        SubscriptionOptions {
            length_max: Some(2),
            overflow: Overflow::RejectPublish,
            ..SubscriptionOptions::default()
        },
    );
    world.publish("r", &["1", "2"]);
    let refused = world
        .topic("r")
        .publish(world.batch(&["3"]), Durability::Kernel)
        .map(|_| ());
    assert!(matches!(refused, Err(PublishError::QueueFull { .. })));
    assert_eq!(refusing.stats().depth, 2);
}

#[test]
fn single_active_exclusive_and_priority_consumers() {
    let world = World::new();
    let single = world.subscription_with(
        "t",
        "single",
        SubscriptionOptions {
            single_active: true,
            ..SubscriptionOptions::default()
        },
    );
    let (active, standby) = (consumer(&single, 1), consumer(&single, 10));
    world.publish("t", &["1", "2"]);
    assert_eq!(bodies(&active), ["1"]);
    assert_eq!(bodies(&standby), [""; 0]);
    drop(active);
    assert_eq!(bodies(&standby), ["1", "2"]);

    let exclusive = world.subscription("t", "exclusive");
    let wants_all = || ConsumerOptions {
        exclusive: true,
        ..ConsumerOptions::default()
    };
    let alone = exclusive.attach(wants_all()).unwrap();
    let refused = exclusive.attach(ConsumerOptions::default()).map(|_| ());
    assert_eq!(refused, Err(AttachError::Exclusive));
    drop(alone);
    let _other = exclusive.attach(ConsumerOptions::default()).unwrap();
    assert_eq!(
        exclusive.attach(wants_all()).map(|_| ()),
        Err(AttachError::Exclusive)
    );

    let ranked = world.subscription("t", "ranked");
    let low = consumer(&ranked, 10);
    let high = consumer_with(
        &ranked,
        2,
        ConsumerOptions {
            priority: 5,
            ..ConsumerOptions::default()
        },
    );
    world.publish("t", &["3", "4", "5"]);
    assert_eq!(bodies(&high), ["3", "4"]);
    assert_eq!(bodies(&low), ["5"]);
}

#[test]
fn a_purge_keeps_messages_in_flight_and_later_ones() {
    let world = World::new();
    let subscription = world.subscription_with(
        "t",
        "s",
        SubscriptionOptions {
            length_bytes_max: Some(10),
            overflow: Overflow::RejectPublish,
            ..SubscriptionOptions::default()
        },
    );
    world.publish("t", &["11", "22", "33", "44", "55"]);
    let consumer = consumer(&subscription, 2);
    let held = receive(&consumer).unwrap();
    consumer.set_window(0);
    consumer.nack(held[1].id, 0).unwrap();
    assert_eq!(subscription.purge(), 4);
    assert_eq!(subscription.purge(), 0);
    assert_eq!(subscription.counts().depth, 0);
    assert_eq!(subscription.counts().in_flight, 1);
    // The purge has freed bytes of the limit.
    world.publish("t", &["66", "77", "88"]);
    drop(consumer);
    assert_eq!(
        bodies(&crate::common::consumer(&subscription, 9)),
        ["11", "66", "77", "88"]
    );
}
