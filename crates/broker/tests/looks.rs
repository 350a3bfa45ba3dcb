//! A subscription as the doctor sees it: which consumers may get more messages, and which wait for
//! their turn.

use std::sync::Arc;

use crate::common::{World, bodies, consumer_with};
use cloverleaf_broker::{
    Consumer, ConsumerOptions, SharedWindow, Subscription, SubscriptionOptions,
};

/// Connection, credit, in flight.
fn looks(subscription: &Subscription) -> Vec<(u64, u32, u32)> {
    let look = subscription.load();
    let consumers = look.consumers.iter();
    consumers
        .map(|it| (it.connection, it.credit, it.in_flight))
        .collect()
}

fn attach(subscription: &Arc<Subscription>, window: u32, options: ConsumerOptions) -> Consumer {
    consumer_with(subscription, window, options)
}

fn of(connection: u64) -> ConsumerOptions {
    ConsumerOptions {
        connection,
        ..ConsumerOptions::default()
    }
}

#[test]
fn consumers_are_known_by_their_connections() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    let first = attach(
        &subscription,
        3,
        ConsumerOptions {
            ack_wait_ms: Some(5_000),
            ..of(7)
        },
    );
    world.publish("t", &["1", "2", "3", "4", "5"]);
    assert_eq!(bodies(&first).len(), 3);
    let _unlimited = attach(
        &subscription,
        u32::MAX,
        ConsumerOptions {
            pull: true,
            ..of(8)
        },
    );
    let look = subscription.load();
    assert_eq!(look.depth, 2);
    assert_eq!(look.consumers[0].ack_wait_ms, Some(5_000));
    assert_eq!(
        looks(&subscription),
        [(7, 3, 3)],
        "a pulling consumer does not count"
    );
    let second = attach(&subscription, u32::MAX, of(9));
    assert_eq!(bodies(&second).len(), 2);
    assert_eq!(looks(&subscription), [(7, 3, 3), (9, u32::MAX, 2)]);
    second.retire();
    assert_eq!(looks(&subscription), [(7, 3, 3)]);
}

#[test]
fn a_consumer_that_waits_for_its_turn_has_no_credit() {
    let world = World::new();
    let single = SubscriptionOptions {
        single_active: true,
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("t", "s", single);
    let active = attach(&subscription, 10, of(1));
    let _next = attach(&subscription, 10, of(2));
    world.publish("t", &["1"]);
    assert_eq!(bodies(&active).len(), 1);
    assert_eq!(looks(&subscription), [(1, 10, 1), (2, 0, 0)]);

    let subscription = world.subscription("u", "s");
    let ranked = |connection, priority| ConsumerOptions {
        priority,
        ..of(connection)
    };
    let _low = attach(&subscription, 10, ranked(3, 0));
    let high = attach(&subscription, 10, ranked(4, 1));
    assert_eq!(looks(&subscription), [(3, 0, 0), (4, 10, 0)]);
    drop(high);
    assert_eq!(looks(&subscription), [(3, 10, 0)]);
}

#[test]
fn a_window_that_others_have_used_up_is_no_credit() {
    let world = World::new();
    let shared = SharedWindow::new(2);
    let sharing = |connection| ConsumerOptions {
        shared_window: Some(shared.clone()),
        ..of(connection)
    };
    let subscription = world.subscription("t", "s");
    let first = attach(&subscription, u32::MAX, sharing(1));
    let second = attach(&subscription, u32::MAX, sharing(2));
    assert_eq!(looks(&subscription), [(1, 2, 0), (2, 2, 0)]);
    world.publish("t", &["1", "2", "3"]);
    let taken = (bodies(&first).len() as u32, bodies(&second).len() as u32);
    assert_eq!(taken.0 + taken.1, 2);
    assert_eq!(
        looks(&subscription),
        [(1, taken.0, taken.0), (2, taken.1, taken.1)]
    );
}
