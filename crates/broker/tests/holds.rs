//! Holds: which consumer had which messages in flight, and when, as the timeline shows it.

use std::sync::Arc;

use crate::common::{World, consumer_with, receive};
use cloverleaf_broker::{
    Consumer, ConsumerDeliveries, ConsumerOptions, DeliveryEnd, DeliverySpan, Subscription,
    SubscriptionOptions,
};
use cloverleaf_telemetry::LaneMemory;

const START_MS: u64 = 1_700_000_000_000;

fn connected(subscription: &Arc<Subscription>, window: u32, connection: u64) -> Consumer {
    let options = ConsumerOptions {
        connection,
        label: format!("c{connection}"),
        ..ConsumerOptions::default()
    };
    consumer_with(subscription, window, options)
}

/// First offset, count, published, delivered, ended (in ms since the start), attempts, end.
type HoldFacts = (u64, u32, u64, u64, u64, u16, DeliveryEnd);

fn seen(hold: &DeliverySpan) -> HoldFacts {
    let ms = |us: u64| us / 1000 - START_MS;
    let delivered = ms(hold.delivered_us);
    let published = delivered - u64::from(hold.waited_ms);
    let (first, count) = (hold.first, hold.count);
    let ended = ms(hold.ended_us);
    (
        first,
        count,
        published,
        delivered,
        ended,
        hold.attempts,
        hold.end,
    )
}

fn holds_of(all: &[ConsumerDeliveries], connection: u64) -> Vec<HoldFacts> {
    let mut of = all.iter().filter(|it| it.connection == connection);
    of.next().unwrap().holds.iter().map(seen).collect()
}

/// Seed 003: one consumer takes all jobs and does them one after the other, while another gets
/// none.
#[test]
fn a_hoarder_holds_its_messages_from_delivery_to_acknowledgement() {
    let world = World::new();
    let subscription = world.subscription("jobs", "workers");
    let hoarder = connected(&subscription, 50, 1);
    for job in 0..4 {
        world.publish("jobs", &[&format!("job {job}")]);
        world.settle();
        world.advance(10);
    }
    let late = connected(&subscription, 50, 2);
    let jobs = receive(&hoarder).unwrap();
    assert_eq!((jobs.len(), receive(&late).unwrap().len()), (4, 0));
    for job in &jobs[..3] {
        world.advance(20_000);
        hoarder.ack(job.id).unwrap();
    }
    let all = subscription.holds(0);
    use DeliveryEnd::{Acked, Held};
    let expected = [
        (0, 1, 0, 0, 20_040, 1, Acked),
        (1, 1, 10, 10, 40_040, 1, Acked),
        (2, 1, 20, 20, 60_040, 1, Acked),
        (3, 1, 30, 30, 60_040, 1, Held),
    ];
    assert_eq!(holds_of(&all, 1), expected);
    assert_eq!(holds_of(&all, 2), []);
    assert_eq!((all[0].label.as_str(), all[0].window), ("c1", 50));
    // Only deliveries that ended since then are returned, plus those in flight.
    let since = subscription.holds((START_MS + 50_000) * 1000);
    assert_eq!(holds_of(&since, 1).len(), 2);
}

#[test]
fn deliveries_continue_while_holds_are_reported() {
    let world = World::new();
    let subscription = world.subscription("jobs", "workers");
    let mut consumers: Vec<_> = (1..=3)
        .map(|number| Some(connected(&subscription, 1, number)))
        .collect();
    world.publish("jobs", &["a", "b", "c", "d"]);
    world.settle();
    let jobs: Vec<_> = consumers
        .iter()
        .map(|it| receive(it.as_ref().unwrap()).unwrap()[0].id)
        .collect();
    let mut told = Vec::new();
    subscription.each_hold(0, |seen| {
        // Each of these calls needs the subscription's lock.
        if told.is_empty() {
            world.advance(10);
            consumers[1].as_ref().unwrap().ack(jobs[1]).unwrap();
            // A consumer leaves before it is reported.
            drop(consumers[2].take());
        }
        told.push((seen.connection, seen.is_attached, seen.holds.len()));
    });
    // The second consumer has got the next message.
    assert_eq!(told, [(1, true, 1), (2, true, 2), (3, false, 1)]);
    assert_eq!(subscription.holds(0).len(), 3);
}

#[test]
fn holds_show_how_long_messages_waited() {
    let world = World::new();
    let subscription = world.subscription("jobs", "workers");
    let consumer = connected(&subscription, 1, 1);
    world.publish("jobs", &["a", "b"]);
    world.settle();
    for _ in 0..2 {
        let got = receive(&consumer).unwrap();
        world.advance(700);
        consumer.ack(got[0].id).unwrap();
    }
    let holds = holds_of(&subscription.holds(0), 1);
    let waits: Vec<_> = holds.iter().map(|it| (it.2, it.3, it.4)).collect();
    assert_eq!(waits, [(0, 0, 700), (0, 700, 1_400)]);
}

#[test]
fn every_end_of_a_hold_is_recorded() {
    let world = World::new();
    let subscription = world.subscription("jobs", "workers");
    let options = ConsumerOptions {
        connection: 1,
        ack_wait_ms: Some(5_000),
        ..ConsumerOptions::default()
    };
    let consumer = consumer_with(&subscription, 100, options);
    world.publish("jobs", &["nacked", "rejected", "late", "left"]);
    world.settle();
    let got = receive(&consumer).unwrap();
    world.advance(1_000);
    consumer.nack(got[0].id, 0).unwrap();
    consumer.reject(got[1].id).unwrap();
    consumer.set_window(0);
    world.advance(4_500);
    // The remaining messages time out, and so does the first one, which was delivered again.
    let other = connected(&subscription, 2, 2);
    let again = receive(&other).unwrap();
    assert_eq!(again.len(), 2);
    world.advance(10);
    drop(other);
    let all = subscription.holds(0);
    let ends: Vec<_> = holds_of(&all, 1)
        .iter()
        .map(|it| (it.0, it.1, it.5, it.6))
        .collect();
    let expected = [
        (0, 1, 1, DeliveryEnd::Nacked),
        (1, 1, 1, DeliveryEnd::Rejected),
        (2, 2, 1, DeliveryEnd::TimedOut),
    ];
    assert_eq!(ends[..3], expected, "{ends:?}");
    let gone = all.iter().find(|it| it.connection == 2).unwrap();
    assert!(!gone.is_attached && gone.window == 2);
    assert!(
        gone.holds
            .iter()
            .all(|hold| hold.end == DeliveryEnd::Left && hold.attempts == 2)
    );
    assert_eq!(gone.holds.iter().map(|hold| hold.count).sum::<u32>(), 2);
}

#[test]
fn the_remaining_messages_of_a_delivery_keep_their_offsets() {
    let world = World::new();
    let subscription = world.subscription("jobs", "workers");
    let options = ConsumerOptions {
        connection: 1,
        ack_wait_ms: Some(5_000),
        ..ConsumerOptions::default()
    };
    let consumer = consumer_with(&subscription, 100, options);
    world.publish("jobs", &["m"; 10]);
    world.settle();
    let got = receive(&consumer).unwrap();
    world.advance(1_000);
    for place in [0, 2, 3, 5, 7, 8] {
        consumer.ack(got[place].id).unwrap();
    }
    let places = |end| {
        let holds = holds_of(&subscription.holds(0), 1);
        let ended = holds.iter().filter(|it| it.6 == end);
        ended.map(|it| (it.0, it.1)).collect::<Vec<_>>()
    };
    let left = [(1, 1), (4, 1), (6, 1), (9, 1)];
    assert_eq!(places(DeliveryEnd::Held), left);
    consumer.set_window(0);
    world.advance(4_500);
    assert_eq!(places(DeliveryEnd::TimedOut), left);
    // The work was done too late for these; messages acknowledged in time are not reported as late.
    let ids: Vec<_> = [9, 1, 4, 2, 6].map(|place| got[place].id).into();
    let mut late = Vec::new();
    consumer.ack_many(&ids, |id, settled, late_us| {
        assert!(settled.is_err());
        late.extend(late_us.map(|us| (id.offset, us)));
    });
    let held_us = 5_500_000;
    let expected = [(9, held_us), (1, held_us), (4, held_us), (6, held_us)];
    assert_eq!(late, expected);
}

#[test]
fn messages_acknowledged_together_are_one_hold() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    let consumer = connected(&subscription, 1_000, 1);
    let bodies: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    world.publish("t", &bodies);
    world.settle();
    let got = receive(&consumer).unwrap();
    world.advance(3);
    let ids: Vec<_> = got.iter().map(|it| it.id).collect();
    consumer.ack_many(&ids, |_, settled, _| assert!(settled.is_ok()));
    let expected = [(0, 500, 0, 0, 3, 1, DeliveryEnd::Acked)];
    assert_eq!(holds_of(&subscription.holds(0), 1), expected);
}

#[test]
fn above_the_rate_limit_unrecorded_messages_are_counted() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    let consumer = connected(&subscription, 1_000, 1);
    let mut published = 0;
    for round in 0..200u64 {
        for _ in 0..round % 5 {
            world.publish("t", &["x", "y"]);
            world.settle();
            published += 2;
            // Acknowledged in reverse order, so that each message is a hold of its own.
            let got = receive(&consumer).unwrap();
            consumer.ack(got[1].id).unwrap();
            consumer.ack(got[0].id).unwrap();
        }
        world.advance(1);
    }
    let all = subscription.holds(0);
    let drawn: u64 = all[0].holds.iter().map(|hold| u64::from(hold.count)).sum();
    let left_out: u64 = all[0].holds.iter().map(|hold| hold.left_out).sum();
    assert_eq!(drawn + left_out + all[0].left_out, published);
    assert!(all[0].left_out > 0 && drawn <= 3 * 24, "{drawn}");
}

#[test]
fn all_consumers_together_stay_within_the_memory() {
    let world = World::new();
    let memory = LaneMemory::new(64 << 10);
    world.broker.record_holds_in(memory.clone());
    let mut consumers = Vec::new();
    for number in 0..40 {
        let topic = format!("t{number}");
        let subscription = world.subscription(&topic, "s");
        consumers.push((topic, connected(&subscription, 10, number + 1)));
    }
    for round in 0..300 {
        for (topic, consumer) in &consumers {
            world.publish(topic, &[&format!("{round}")]);
            world.settle();
            let got = receive(consumer).unwrap();
            consumer.ack(got[0].id).unwrap();
        }
        world.advance(100);
        assert!(memory.used_bytes() <= 64 << 10);
    }
    assert!(memory.used_bytes() > 48 << 10);
    let (_, last) = consumers.last().unwrap();
    let holds = last.subscription().holds(0);
    assert!(holds[0].has_forgotten || holds[0].holds.len() == 300);
    drop(consumers);
    world.broker.forget_holds((START_MS + 1_000_000) * 1000);
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
fn consumers_that_come_and_go_cost_a_bounded_memory() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    for connection in 1..500 {
        let consumer = connected(&subscription, 1, connection);
        world.publish("t", &["x"]);
        world.settle();
        let got = receive(&consumer).unwrap();
        consumer.ack(got[0].id).unwrap();
        world.advance(1);
    }
    let all = subscription.holds(0);
    let connections: Vec<_> = all.iter().map(|it| it.connection).collect();
    assert_eq!(connections, (468..500).collect::<Vec<_>>());
}

#[test]
fn a_consumer_without_a_connection_is_not_recorded() {
    let world = World::new();
    let options = SubscriptionOptions::default();
    let subscription = world.subscription_with("t", "s", options);
    let consumer = consumer_with(&subscription, 1, ConsumerOptions::default());
    world.publish("t", &["x"]);
    world.settle();
    consumer.ack(receive(&consumer).unwrap()[0].id).unwrap();
    assert_eq!(subscription.holds(0), []);
}
