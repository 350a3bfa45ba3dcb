//! Subscriptions with a single active consumer.

use std::sync::Arc;

use crate::common::{World, ack_all, bodies, consumer_with, receive};
use cloverleaf_broker::{Consumer, ConsumerOptions, Subscription, SubscriptionOptions};

fn single(world: &World, active_yields: bool) -> Arc<Subscription> {
    let options = SubscriptionOptions {
        single_active: true,
        active_yields,
        ..SubscriptionOptions::default()
    };
    world.subscription_with("t", "s", options)
}

fn ranked(subscription: &Arc<Subscription>, priority: i32) -> Consumer {
    let options = ConsumerOptions {
        priority,
        ..ConsumerOptions::default()
    };
    consumer_with(subscription, 10, options)
}

#[test]
fn the_active_consumer_stays_whatever_priority_attaches() {
    let world = World::new();
    let subscription = single(&world, false);
    let (active, low) = (ranked(&subscription, 0), ranked(&subscription, 1));
    world.publish("t", &["1"]);
    let first = receive(&active).unwrap();
    let high = ranked(&subscription, 5);
    world.publish("t", &["2"]);
    assert_eq!(bodies(&active), ["2"]);
    ack_all(&active, &first);
    world.publish("t", &["3"]);
    assert_eq!(
        bodies(&active),
        ["3"],
        "it has been the active one all along"
    );
    // The next one is the one with the highest priority, not the one that came first.
    drop(active);
    assert_eq!(bodies(&high), ["2", "3"]);
    assert_eq!(bodies(&low), [""; 0]);
}

#[test]
fn an_active_consumer_yields_once_it_has_nothing_in_flight() {
    let world = World::new();
    let subscription = single(&world, true);
    let active = ranked(&subscription, 0);
    world.publish("t", &["1", "2"]);
    let held = receive(&active).unwrap();
    let high = ranked(&subscription, 5);
    world.publish("t", &["3"]);
    ack_all(&active, &held[..1]);
    assert_eq!(bodies(&active), [""; 0], "it gets nothing more");
    assert_eq!(bodies(&high), [""; 0], "and the other nothing yet");
    ack_all(&active, &held[1..]);
    assert_eq!(bodies(&high), ["3"]);
    world.publish("t", &["4"]);
    assert_eq!((bodies(&active), bodies(&high)), (vec![], vec!["4".into()]));

    // One of equal priority does not take over. One of a higher priority does, once nothing is in
    // flight.
    let equal = ranked(&subscription, 5);
    world.publish("t", &["5"]);
    assert_eq!(bodies(&high), ["5"]);
    high.nack_ranges(&[crate::common::range(2, 3)]);
    let again = receive(&high).unwrap();
    assert_eq!(again.len(), 3);
    let highest = ranked(&subscription, 6);
    // It leaves before it could take over, so the active one continues.
    world.publish("t", &["6"]);
    assert_eq!((bodies(&high), bodies(&highest)), (vec![], vec![]));
    drop(highest);
    assert_eq!(bodies(&high), ["6"]);
    // Messages in flight to a retired consumer do not block the others.
    high.retire();
    world.publish("t", &["7"]);
    assert_eq!(bodies(&equal), ["7"]);
    assert_eq!(bodies(&active), [""; 0]);
}
