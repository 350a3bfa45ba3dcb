#![allow(clippy::unwrap_used)]

use std::task::{Context, Waker};

use cloverleaf_log::{BatchBuilder, Durability, SimDisk};

use crate::test_broker::open;
use crate::{ConsumerOptions, MessageId, TopicOptions};

use super::*;

fn publish(topic: &Topic, messages: u32) {
    let mut builder = BatchBuilder::with_capacity(64, 0);
    (0..messages).for_each(|_| builder.push(None, Some(b"m"), &[]));
    drop(topic.publish(builder.finish(), Durability::Kernel).unwrap());
}

/// A publish on another thread, while the topic is being paused, may be delivered before the
/// subscription hears of the limit. Such a message belongs to the subscription: it is delivered
/// again, and emptying the topic does not acknowledge it while it is leased.
#[test]
fn a_message_delivered_before_the_pause_took_effect_is_not_held_back() {
    let disk = SimDisk::new();
    let (log, broker) = open(&disk);
    let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
    let options = SubscriptionOptions::default;
    let subscription = topic.subscription_or_create("s", options).unwrap();
    let consumer = subscription.attach(ConsumerOptions::default()).unwrap();
    consumer.set_window(u32::MAX);
    publish(&topic, 64);
    // The first half of `pause`, then a publish of a whole ledger word, then the second half.
    *topic.paused_at.lock() = Some(topic.written_ends());
    publish(&topic, 64);
    topic.pause().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut deliveries = Vec::new();
    let _ = consumer.poll_deliveries(&mut context, &mut deliveries);
    assert_eq!(consumer.in_flight(), 128);
    let overtook = MessageId {
        partition: 0,
        offset: 70,
    };
    consumer.nack(overtook, 0).unwrap();
    assert_eq!(consumer.in_flight(), 128, "it is delivered again");
    consumer.nack(overtook, 0).unwrap();
    broker.tick();
    disk.kill();
    drop((log, consumer, subscription, topic));

    let (_log, broker) = open(&disk);
    let topic = broker.topic("t").unwrap();
    let subscription = topic.subscription("s").unwrap();
    topic.discard_unoffered().unwrap();
    let consumer = subscription.attach(ConsumerOptions::default()).unwrap();
    consumer.set_window(u32::MAX);
    assert!(topic.is_paused());
    assert_eq!(
        consumer.in_flight(),
        71,
        "all up to the one that waits again"
    );
}

/// A consumer that is detached after the end of the broker reports its progress to nobody: the
/// schedule's consumer always is.
#[test]
fn a_closed_broker_is_freed_with_a_message_that_is_still_delayed() {
    let (log, broker) = open(&SimDisk::new());
    let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
    let mut builder = BatchBuilder::with_capacity(64, 0);
    builder.push(None, Some(b"m"), &[]);
    let published = topic.publish_delayed(&builder.finish(), 60_000, Durability::Kernel);
    drop(published.unwrap());
    for _ in 0..4 {
        log.step();
        broker.tick();
    }
    let shared = Arc::downgrade(&broker.shared);
    broker.close();
    log.close();
    drop((topic, broker, log));
    assert_eq!(shared.strong_count(), 0);
}
