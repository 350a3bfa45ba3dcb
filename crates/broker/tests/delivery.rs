//! Delivery: which consumer gets which message, when, and how it ends.

use crate::common::{World, ack_all, bodies, consumer, consumer_with, poll, receive};
use cloverleaf_broker::{
    BrokerOptions, ConsumerOptions, MessageId, NotInFlight, PublishError, SubscriptionOptions,
    TopicOptions,
};
use cloverleaf_log::{Batch, BatchBuilder, Durability};

#[test]
fn a_message_goes_to_one_consumer_and_is_gone_when_acknowledged() {
    let world = World::new();
    let subscription = world.subscription("orders", "ch");
    let (first, second) = (consumer(&subscription, 10), consumer(&subscription, 10));
    world.publish("orders", &["a"]);
    let (one, two) = (receive(&first).unwrap(), receive(&second).unwrap());
    assert_eq!(one.len() + two.len(), 1);
    let (holder, other, got) = if one.len() == 1 {
        (first, second, one)
    } else {
        (second, first, two)
    };
    assert_eq!(got[0].attempts, 1);
    assert_eq!(other.ack(got[0].id), Err(NotInFlight));
    assert_eq!(holder.ack(got[0].id).unwrap().attempts, 1);
    assert_eq!(holder.ack(got[0].id), Err(NotInFlight));
    let stats = subscription.stats();
    assert_eq!(
        (stats.depth, stats.in_flight, stats.acknowledged),
        (0, 0, 1)
    );
}

#[test]
fn every_subscription_gets_every_message() {
    let world = World::new();
    let (a, b) = (world.subscription("t", "a"), world.subscription("t", "b"));
    world.publish("t", &["1", "2"]);
    assert_eq!(bodies(&consumer(&a, 10)), ["1", "2"]);
    assert_eq!(bodies(&consumer(&b, 10)), ["1", "2"]);
}

#[test]
fn the_first_subscription_takes_the_backlog_a_later_one_starts_at_the_end() {
    let world = World::new();
    world.publish("t", &["old"]);
    assert_eq!(world.topic("t").depth(), 1);
    let first = world.subscription("t", "first");
    assert_eq!(world.topic("t").depth(), 0);
    let later = world.subscription("t", "later");
    world.publish("t", &["new"]);
    assert_eq!(bodies(&consumer(&first, 10)), ["old", "new"]);
    assert_eq!(bodies(&consumer(&later, 10)), ["new"]);
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let world = World::new();
    let subscription = world.subscription("t", "ch");
    let consumer = consumer(&subscription, 2);
    world.publish("t", &["1", "2", "3", "4"]);
    let got = receive(&consumer).unwrap();
    assert_eq!(got.len(), 2);
    assert_eq!(bodies(&consumer), [""; 0]);
    consumer.ack(got[0].id).unwrap();
    assert_eq!(bodies(&consumer), ["3"]);
    consumer.set_window(0);
    consumer.ack(got[1].id).unwrap();
    assert_eq!(bodies(&consumer), [""; 0]);
    assert_eq!(consumer.in_flight(), 1);
}

#[test]
fn the_load_is_spread_by_fewest_in_flight() {
    let world = World::new();
    let subscription = world.subscription("t", "ch");
    let consumers: Vec<_> = (0..4).map(|_| consumer(&subscription, 100)).collect();
    world.publish("t", &["m"; 40]);
    let counts: Vec<usize> = consumers
        .iter()
        .map(|c| receive(c).unwrap().len())
        .collect();
    assert_eq!(counts, [10, 10, 10, 10]);
    // A consumer without messages in flight gets the next ones.
    let idle = consumer(&subscription, 100);
    world.publish("t", &["m"; 10]);
    assert_eq!(receive(&idle).unwrap().len(), 10);
    // Single messages are distributed in turn.
    for _ in 0..5 {
        world.publish("t", &["m"]);
    }
    let mut counts: Vec<usize> = consumers
        .iter()
        .map(|c| receive(c).unwrap().len())
        .collect();
    counts.push(receive(&idle).unwrap().len());
    assert_eq!(counts, [1, 1, 1, 1, 1]);
}

#[test]
fn a_requeued_message_keeps_its_position() {
    let world = World::new();
    let subscription = world.subscription("t", "ch");
    let consumer = consumer(&subscription, 3);
    world.publish("t", &["1", "2", "3", "4", "5"]);
    let got = receive(&consumer).unwrap();
    consumer.set_window(0);
    consumer.nack(got[2].id, 0).unwrap();
    consumer.nack(got[0].id, 0).unwrap();
    consumer.set_window(10);
    let again = receive(&consumer).unwrap();
    let order: Vec<(&str, u16)> = again
        .iter()
        .map(|g| (g.body.as_str(), g.attempts))
        .collect();
    assert_eq!(order, [("1", 2), ("3", 2), ("4", 1), ("5", 1)]);
    assert_eq!(subscription.stats().requeued, 2);
}

#[test]
fn a_consumer_that_leaves_gives_its_messages_back_in_order() {
    let world = World::new();
    let subscription = world.subscription("t", "ch");
    let first = consumer(&subscription, 300);
    let all: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    world.publish("t", &all);
    let got = receive(&first).unwrap();
    for got in got.iter().filter(|got| got.id.offset % 3 == 0) {
        first.ack(got.id).unwrap();
    }
    drop(first);
    let second = consumer(&subscription, 300);
    let expected: Vec<&str> = (0..200).filter(|n| n % 3 != 0).map(|n| all[n]).collect();
    assert_eq!(bodies(&second), expected);
}

#[test]
fn a_deadline_gives_the_message_to_another_and_an_extension_moves_it() {
    let world = World::new();
    let subscription = world.subscription("t", "ch");
    let options = || ConsumerOptions {
        ack_wait_ms: Some(1_000),
        ack_wait_max_ms: Some(2_500),
        ..ConsumerOptions::default()
    };
    let first = consumer_with(&subscription, 10, options());
    world.publish("t", &["a", "b"]);
    let got = receive(&first).unwrap();
    let second = consumer_with(&subscription, 10, options());
    world.advance(900);
    first.extend(got[0].id).unwrap();
    world.advance(200);
    let again = receive(&second).unwrap();
    assert_eq!((again[0].body.as_str(), again[0].attempts), ("b", 2));
    assert_eq!(first.ack(got[1].id), Err(NotInFlight));
    second.ack(again[0].id).unwrap();
    // The second extension is cut at the longest ack wait.
    world.advance(700);
    first.extend(got[0].id).unwrap();
    world.advance(600);
    assert_eq!(bodies(&second), [""; 0]);
    world.advance(200);
    let late = [receive(&first).unwrap(), receive(&second).unwrap()].concat();
    assert_eq!(late.len(), 1);
    assert_eq!(subscription.stats().timed_out, 2);
    let timed_out = [&first, &second].map(|it| it.holding().timed_out);
    assert_eq!(timed_out, [2, 0]);
}

#[test]
fn a_delayed_requeue_waits_and_survives_a_restart_with_its_attempts() {
    let mut world = World::new();
    let subscription = world.subscription("t", "ch");
    let first = consumer(&subscription, 10);
    world.publish("t", &["a"]);
    let got = receive(&first).unwrap();
    first.nack(got[0].id, 5_000).unwrap();
    assert_eq!(subscription.stats().delayed, 1);
    world.advance(20);
    world.kill_and_restart();
    let subscription = world.subscription("t", "ch");
    assert_eq!(subscription.stats().delayed, 1);
    let second = consumer(&subscription, 10);
    assert_eq!(bodies(&second), [""; 0]);
    world.advance(5_000);
    let got = receive(&second).unwrap();
    assert_eq!((got[0].body.as_str(), got[0].attempts), ("a", 2));
}

#[test]
fn acknowledgements_reach_the_kernel_within_ten_milliseconds() {
    let mut world = World::new();
    let subscription = world.subscription("t", "ch");
    let first = consumer(&subscription, 10);
    world.publish("t", &["a", "b", "c"]);
    let got = receive(&first).unwrap();
    first.ack(got[1].id).unwrap();
    world.advance(10);
    world.kill_and_restart();
    let subscription = world.subscription("t", "ch");
    assert_eq!(bodies(&consumer(&subscription, 10)), ["a", "c"]);
}

#[test]
fn dead_letters_after_so_many_attempts_carry_the_reason() {
    let world = World::new();
    let subscription = world.subscription_with(
        "t",
        "ch",
        SubscriptionOptions {
            attempts_max: 2,
            dead_letter: Some("t.dead".to_owned()),
            ..SubscriptionOptions::default()
        },
    );
    let consumer_of_t = consumer(&subscription, 1);
    world.publish("t", &["poison", "fine"]);
    for attempts in 1..=2 {
        let got = receive(&consumer_of_t).unwrap();
        assert_eq!(
            (got[0].body.as_str(), got[0].attempts),
            ("poison", attempts)
        );
        consumer_of_t.nack(got[0].id, 0).unwrap();
    }
    assert_eq!(bodies(&consumer_of_t), ["fine"]);
    world.settle();
    let dead = receive(&consumer(&world.subscription("t.dead", "ch"), 10)).unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].body, "poison");
    let header = |name: &str| {
        dead[0]
            .headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    };
    assert_eq!(header("cloverleaf-dead-reason"), Some("attempts"));
    assert_eq!(header("cloverleaf-dead-attempts"), Some("2"));
    assert_eq!(header("cloverleaf-dead-topic"), Some("t"));
    assert_eq!(header("cloverleaf-dead-subscription"), Some("ch"));
    assert_eq!(header("cloverleaf-dead-origin"), Some("0/0"));
    assert_eq!(subscription.stats().dead_lettered, 1);
    assert_eq!(subscription.floor(0), Some(1));
}

#[test]
fn a_rejected_message_without_a_dead_letter_topic_is_dropped() {
    let world = World::new();
    let subscription = world.subscription("t", "ch");
    let consumer = consumer(&subscription, 10);
    world.publish("t", &["a"]);
    let got = receive(&consumer).unwrap();
    consumer.reject(got[0].id).unwrap();
    world.settle();
    assert_eq!(subscription.floor(0), Some(1));
    assert_eq!(bodies(&consumer), [""; 0]);
}

#[test]
fn a_delayed_publish_appears_in_time_and_survives_a_restart() {
    let mut world = World::new();
    let subscription = world.subscription("t", "ch");
    let topic = world.topic("t");
    topic
        .publish_delayed(&world.batch(&["later"]), 5_000, Durability::Kernel)
        .unwrap();
    topic
        .publish_delayed(&world.batch(&["sooner"]), 1_000, Durability::Kernel)
        .unwrap();
    assert!(
        world
            .broker
            .topics()
            .iter()
            .all(|topic| topic.name() == "t")
    );
    world.advance(500);
    assert_eq!(subscription.stats().depth, 0);
    world.advance(600);
    assert_eq!(bodies(&consumer(&subscription, 10)), ["sooner"]);
    // The move is acknowledged in the schedule topic, and that is in the journal.
    world.advance(20);
    world.kill_and_restart();
    world.advance(4_000);
    world.settle();
    let subscription = world.subscription("t", "ch");
    assert_eq!(bodies(&consumer(&subscription, 10)), ["sooner", "later"]);
}

#[test]
fn delayed_messages_of_a_topic_are_counted_also_after_a_restart() {
    let mut world = World::new();
    let subscription = world.subscription("t", "ch");
    let late = |world: &World, topic: &str, delay_ms: u64| {
        let batch = world.batch(&["later"]);
        let published = world
            .topic(topic)
            .publish_delayed(&batch, delay_ms, Durability::Kernel);
        assert!(poll(published.unwrap()).unwrap().is_ok());
    };
    for delay_ms in [1_000, 5_000, 5_000] {
        late(&world, "t", delay_ms);
    }
    late(&world, "other", 5_000);
    let counts = |world: &World| {
        (
            world.topic("t").scheduled(),
            world.topic("other").scheduled(),
        )
    };
    world.settle();
    assert_eq!(counts(&world), (3, 1));
    assert_eq!(subscription.stats().delayed, 0);
    // It counts as published when the delayed publish is accepted, and not again when it is moved.
    assert_eq!(world.topic("t").message_count(), 3);
    world.advance(1_000);
    world.settle();
    assert_eq!(counts(&world), (2, 1));
    assert_eq!(world.topic("t").message_count(), 3);
    world.advance(20);
    // An orderly restart, so with a snapshot of the delayed messages. A message that is due in the
    // meantime counts as scheduled until it is moved.
    world.restart();
    world.settle();
    assert_eq!(counts(&world), (2, 1));
    late(&world, "t", 60_000);
    world.settle();
    world.clock.advance(10_000);
    world.kill_and_restart();
    world.settle();
    world.advance(20);
    world.settle();
    assert_eq!(counts(&world), (1, 0));
    let subscription = world.subscription("t", "ch");
    assert_eq!(bodies(&consumer(&subscription, 10)), ["later"; 3]);
}

#[test]
fn bytes_of_bodies_are_counted_without_keys_and_headers() {
    let world = World::new();
    let topic = world.topic("t");
    world.publish("t", &["four", "", "seven77"]);
    assert_eq!(topic.body_bytes_count(), 11);
    let mut builder = BatchBuilder::with_capacity(64, 0);
    builder.push(Some(b"key"), Some(b"body"), &[(b"name", Some(b"value"))]);
    builder.push(Some(b"key"), None, &[]);
    let bytes = builder.finish().bytes().clone();
    let client = Batch::parse(bytes.clone()).unwrap();
    topic.publish_to(0, client, Durability::Kernel).unwrap();
    assert_eq!(topic.body_bytes_count(), 15);
    topic
        .publish_delayed(&world.batch(&["late"]), 1_000, Durability::Kernel)
        .unwrap();
    assert_eq!(topic.body_bytes_count(), 19);
}

#[test]
fn pausing_a_subscription_stops_it_and_a_topic_holds_new_messages_back() {
    let mut world = World::new();
    let subscription = world.subscription("t", "ch");
    world.publish("t", &["1"]);
    subscription.pause().unwrap();
    let first = consumer(&subscription, 10);
    assert_eq!(bodies(&first), [""; 0]);
    drop(first);
    world.advance(20);
    world.kill_and_restart();
    let subscription = world.subscription("t", "ch");
    assert!(subscription.is_paused());
    subscription.unpause().unwrap();
    let first = consumer(&subscription, 10);
    assert_eq!(bodies(&first), ["1"]);

    world.topic("t").pause().unwrap();
    world.publish("t", &["2"]);
    assert_eq!(bodies(&first), [""; 0]);
    assert_eq!(world.topic("t").depth(), 1);
    world.topic("t").unpause().unwrap();
    assert_eq!(bodies(&first), ["2"]);
}

#[test]
fn emptying_a_subscription_forgets_what_waits_and_what_is_in_flight() {
    let mut world = World::new();
    let subscription = world.subscription("t", "ch");
    let first = consumer(&subscription, 1);
    world.publish("t", &["1", "2", "3"]);
    let got = receive(&first).unwrap();
    subscription.discard_all();
    assert_eq!(first.ack(got[0].id), Err(NotInFlight));
    let stats = subscription.stats();
    assert_eq!((stats.depth, stats.in_flight), (0, 0));
    world.publish("t", &["4"]);
    assert_eq!(bodies(&first), ["4"]);
    world.advance(20);
    world.kill_and_restart();
    assert_eq!(bodies(&consumer(&world.subscription("t", "ch"), 10)), ["4"]);
}

#[test]
fn emptying_a_topic_without_subscriptions_forgets_its_backlog() {
    let mut world = World::new();
    world.publish("t", &["1", "2"]);
    world.topic("t").discard_unoffered().unwrap();
    assert_eq!(world.topic("t").depth(), 0);
    world.kill_and_restart();
    assert_eq!(world.topic("t").depth(), 0);
    world.publish("t", &["3"]);
    let got = receive(&consumer(&world.subscription("t", "ch"), 10)).unwrap();
    assert_eq!((got[0].body.as_str(), got[0].id.offset), ("3", 2));
}

#[test]
fn deleting_closes_consumers_and_a_new_topic_gets_no_old_data() {
    let mut world = World::new();
    let subscription = world.subscription("t", "ch");
    let first = consumer(&subscription, 10);
    world.publish("t", &["old"]);
    assert!(world.topic("t").delete_subscription("ch").unwrap());
    assert_eq!(receive(&first), None);
    assert!(!world.topic("t").delete_subscription("ch").unwrap());
    let old = world.topic("t");
    assert!(world.broker.delete_topic("t").unwrap());
    let refused = old
        .publish(world.batch(&["x"]), Durability::Kernel)
        .map(|_| ());
    assert!(matches!(refused, Err(PublishError::TopicDeleted { .. })));
    let subscription = world.subscription("t", "ch");
    assert_eq!(bodies(&consumer(&subscription, 10)), [""; 0]);
    world.kill_and_restart();
    assert_eq!(
        bodies(&consumer(&world.subscription("t", "ch"), 10)),
        [""; 0]
    );
}

#[test]
fn a_new_first_subscription_does_not_get_what_the_last_one_was_offered() {
    let mut world = World::new();
    let first = world.subscription("t", "one");
    world.publish("t", &["1", "2"]);
    assert_eq!(first.stats().depth, 2);
    world.topic("t").delete_subscription("one").unwrap();
    assert_eq!(world.topic("t").depth(), 0);
    world.kill_and_restart();
    assert_eq!(world.topic("t").depth(), 0);
    world.publish("t", &["3"]);
    assert_eq!(
        bodies(&consumer(&world.subscription("t", "two"), 10)),
        ["3"]
    );
}

#[test]
fn ephemeral_topics_and_subscriptions_go_with_their_last_consumer() {
    let mut world = World::new();
    let options = || TopicOptions {
        ephemeral: true,
        ..TopicOptions::default()
    };
    let topic = world
        .broker
        .topic_or_create("e#ephemeral", options)
        .unwrap();
    let ephemeral = || SubscriptionOptions {
        ephemeral: true,
        length_max: Some(3),
        ..SubscriptionOptions::default()
    };
    let subscription = topic
        .subscription_or_create("ch#ephemeral", ephemeral)
        .unwrap();
    let only = consumer(&subscription, 1);
    topic
        .publish(world.batch(&["1", "2", "3", "4", "5"]), Durability::None)
        .unwrap();
    // One is in flight or dropped; at most three wait.
    assert!(subscription.stats().depth <= 3);
    drop(only);
    world.settle();
    assert!(topic.subscription("ch#ephemeral").is_none());
    assert!(world.broker.topic("e#ephemeral").is_none());
    world
        .broker
        .topic_or_create("e#ephemeral", options)
        .unwrap();
    world.kill_and_restart();
    assert!(world.broker.topic("e#ephemeral").is_none());
}

#[test]
fn a_consumer_that_does_not_take_its_messages_stops_only_itself() {
    let world = World::with(BrokerOptions {
        outbox_bytes_max: 1_000,
        ..BrokerOptions::default()
    });
    let subscription = world.subscription("t", "ch");
    let (asleep, awake) = (
        consumer(&subscription, 1_000),
        consumer(&subscription, 1_000),
    );
    let body = "x".repeat(300);
    let mut taken = 0;
    for _ in 0..50 {
        world.publish("t", &[&body]);
        let got = receive(&awake).unwrap();
        taken += got.len();
        ack_all(&awake, &got);
    }
    let held = asleep.in_flight();
    assert!(held <= 5, "{held} messages for a consumer that sleeps");
    assert_eq!(taken + held as usize, 50);
    assert_eq!(receive(&asleep).unwrap().len(), held as usize);
}

#[test]
fn the_disk_class_waits_for_the_sync() {
    let world = World::new();
    let topic = world.topic("t");
    let subscription = world.subscription("t", "ch");
    let consumer = consumer(&subscription, 10);
    let published = topic
        .publish(world.batch(&["a"]), Durability::Disk)
        .unwrap();
    assert!(!published.is_ready());
    // Delivery does not wait for the sync.
    assert_eq!(bodies(&consumer), ["a"]);
    world.log.step();
    assert!(matches!(poll(published), Some(Ok(()))));
}

#[test]
fn settling_a_message_that_was_never_delivered_is_refused() {
    let world = World::new();
    let subscription = world.subscription("t", "ch");
    let consumer = consumer(&subscription, 10);
    for id in [
        MessageId {
            partition: 0,
            offset: 7,
        },
        MessageId {
            partition: 9,
            offset: 0,
        },
        MessageId {
            partition: 0,
            offset: u64::MAX,
        },
    ] {
        assert_eq!(consumer.ack(id), Err(NotInFlight));
        assert_eq!(consumer.nack(id, 5), Err(NotInFlight));
        assert_eq!(consumer.extend(id), Err(NotInFlight));
        assert_eq!(consumer.reject(id), Err(NotInFlight));
    }
}
