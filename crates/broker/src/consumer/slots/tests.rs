#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::task::{Context, Poll, Waker};

use cloverleaf_log::{BatchBuilder, Durability, SimDisk};

use crate::test_broker::open;
use crate::{Consumer, ConsumerOptions, SharedWindow, SubscriptionOptions, TopicOptions};

thread_local! {
    /// How often [`ConsumerState::own_free_slots`] was computed.
    pub(crate) static COMPARISONS: Cell<u64> = const { Cell::new(0) };
}

const MANY: usize = 10_000;

/// Attaches many consumers, publishes, has all messages acknowledged, detaches all, and checks the
/// cost.
fn check_cost_of_many(options: SubscriptionOptions, shared: impl Fn(usize) -> ConsumerOptions) {
    let (_log, broker) = open(&SimDisk::new());
    let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
    let subscription = topic.subscription_or_create("s", || options).unwrap();
    COMPARISONS.set(0);
    let attach = |number| {
        let consumer = subscription.attach(shared(number)).unwrap();
        consumer.set_window(1);
        consumer
    };
    let consumers: Vec<Consumer> = (0..MANY).map(attach).collect();
    let mut context = Context::from_waker(Waker::noop());
    let (mut deliveries, mut count) = (Vec::new(), 0);
    for _ in 0..4 {
        for _ in 0..MANY / 4 {
            let mut builder = BatchBuilder::with_capacity(64, 0);
            builder.push(None, Some(b"m"), &[]);
            drop(topic.publish(builder.finish(), Durability::Kernel).unwrap());
        }
        for consumer in &consumers {
            while let Poll::Ready(Some(())) =
                consumer.poll_deliveries(&mut context, &mut deliveries)
            {
                for delivery in deliveries.drain(..) {
                    count += u64::from(delivery.count);
                    consumer.ack_ranges(&[delivery.range()], |_, _| {});
                }
            }
        }
    }
    // Messages may be left from a round in which the shared window was full.
    while subscription.counts().depth + subscription.counts().in_flight > 0 {
        for consumer in &consumers {
            if let Poll::Ready(Some(())) = consumer.poll_deliveries(&mut context, &mut deliveries) {
                for delivery in deliveries.drain(..) {
                    count += u64::from(delivery.count);
                    consumer.ack_ranges(&[delivery.range()], |_, _| {});
                }
            }
        }
    }
    drop(consumers);
    assert_eq!(count, MANY as u64);
    // 10,000 consumers and messages: comparing all consumers for each message would be 10^8.
    let comparisons = COMPARISONS.get();
    assert!(comparisons < 100 * MANY as u64, "{comparisons} looks");
}

#[test]
fn ten_thousand_consumers_are_not_compared_for_each_message() {
    let plain = |_| ConsumerOptions::default();
    check_cost_of_many(SubscriptionOptions::default(), plain);
    let fill_first = SubscriptionOptions {
        dispatch: crate::Dispatch::FillFirst,
        ..SubscriptionOptions::default()
    };
    check_cost_of_many(fill_first, plain);
    let single = SubscriptionOptions {
        single_active: true,
        active_yields: true,
        ..SubscriptionOptions::default()
    };
    check_cost_of_many(single, |number| ConsumerOptions {
        priority: i32::try_from(number % 3).unwrap_or_default(),
        ..ConsumerOptions::default()
    });
}

#[test]
fn nor_when_they_share_a_full_window() {
    let one = SharedWindow::new(7);
    check_cost_of_many(SubscriptionOptions::default(), |_| ConsumerOptions {
        shared_window: Some(one.clone()),
        ..ConsumerOptions::default()
    });
    let each: Vec<_> = (0..MANY).map(|_| SharedWindow::new(1)).collect();
    check_cost_of_many(SubscriptionOptions::default(), |number| ConsumerOptions {
        shared_window: each.get(number).cloned(),
        ..ConsumerOptions::default()
    });
}
