//! Delayed publishes: messages wait in a hidden topic and are moved to their destination when they
//! are due.
//!
//! The hidden topic has one subscription, which delays each message until the time in its header.
//! So a restart finds them like all delayed messages, and each costs a lease in memory, but no
//! body.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use cloverleaf_log::{Batch, BatchBuilder, Durability, Record, RecordCursor};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::broker::Shared;
use crate::consumer::{Consumer, Settlement};
use crate::housekeeping::moving::MovingPublishes;
use crate::message::{Delivery, MessageId, headers};
use crate::options::{ConsumerOptions, Retention, SubscriptionOptions, TopicOptions};
use crate::subscription::Subscription;
use crate::subscription::ledger::NotInFlight;
use crate::topic::Topic;
use crate::topic::published::{PublishError, Published};

/// No protocol accepts this as a topic name.
const TOPIC: &str = "$schedule";
const SUBSCRIPTION: &str = "$scheduler";

/// Upper limit of messages being moved at once.
const MOVING_MAX: u32 = 4096;

/// Milliseconds until a failed move is tried again.
const RETRY_MS: u64 = 1_000;

/// The number of delayed messages per destination topic. The schedule's subscription counts each
/// message when it first scans it, so a restart counts them again.
#[derive(Default)]
pub(crate) struct ScheduledCounts(Mutex<HashMap<Uuid, u64>>);

impl ScheduledCounts {
    pub(crate) fn count(&self, topic: Uuid) -> u64 {
        self.0.lock().get(&topic).copied().unwrap_or(0)
    }

    /// Counts the message at this position of the batch as delayed.
    pub(crate) fn begins(&self, batch: &Batch, position: u32) {
        if let Ok(Some((_, record))) = RecordCursor::at(batch, position).next_record()
            && let Some(topic) = target(&record)
        {
            *self.0.lock().entry(topic).or_default() += 1;
        }
    }

    /// A message is no longer delayed.
    fn ends(&self, topic: Option<Uuid>) {
        let mut counts = self.0.lock();
        if let Some(topic) = topic
            && let Some(count) = counts.get_mut(&topic)
        {
            *count -= 1;
            if *count == 0 {
                counts.remove(&topic);
            }
        }
    }
}

/// The destination topic of a message.
fn target(record: &Record<'_>) -> Option<Uuid> {
    let id = record.headers.value_of(headers::SCHEDULE_TOPIC)??;
    Uuid::from_slice(id).ok()
}

/// Stores a message that moves to `topic` after `delay_ms`.
pub(crate) fn publish(
    shared: &Arc<Shared>,
    topic: Uuid,
    message: &Batch,
    delay_ms: u64,
    asked: Durability,
) -> Result<Published, PublishError> {
    let (schedule, subscription) = open(shared)?;
    let stats = subscription.stats();
    let scheduled_messages_max = shared.options.scheduled_messages_max;
    if stats.delayed + stats.depth >= scheduled_messages_max {
        return Err(PublishError::ScheduleFull {
            scheduled_messages_max,
        });
    }
    let message = message
        .inflate(shared.inflater.batch_bytes_max())
        .map_err(|_| PublishError::NotOneMessage)?;
    let mut records = message.records();
    let Ok(Some((_, record))) = records.next_record() else {
        return Err(PublishError::NotOneMessage);
    };
    let due_ms = shared.clock.now_ms().saturating_add(delay_ms).to_be_bytes();
    let mut all: Vec<(&[u8], Option<&[u8]>)> = record.headers.clone().collect();
    all.push((headers::SCHEDULE_TOPIC, Some(topic.as_bytes())));
    all.push((headers::SCHEDULE_DUE, Some(&due_ms)));
    let mut builder = BatchBuilder::with_capacity(message.bytes().len() + 128, record.timestamp_ms);
    builder.push(record.key, record.value, &all);
    if !matches!(records.next_record(), Ok(None)) {
        return Err(PublishError::NotOneMessage);
    }
    schedule.publish(builder.finish(), asked)
}

/// The schedule topic and its subscription, created by the first delayed publish.
fn open(shared: &Arc<Shared>) -> Result<(Arc<Topic>, Arc<Subscription>), PublishError> {
    let options = || TopicOptions {
        hidden: true,
        retention: Retention {
            consumed: true,
            ..Retention::default()
        },
        ..TopicOptions::default()
    };
    let subscription_options = || SubscriptionOptions {
        scheduled: true,
        ..SubscriptionOptions::default()
    };
    let topic = shared.topic_or_create(TOPIC.into(), options);
    let opened = topic.and_then(|topic| {
        let subscription = topic.subscription_or_create(SUBSCRIPTION, subscription_options)?;
        Ok((topic, subscription))
    });
    let opened = opened.map_err(|error| PublishError::NoSchedule {
        reason: error.to_string(),
    })?;
    // Wakes the housekeeping thread, which attaches the consumer.
    if !opened.1.has_consumers() {
        shared.work.kick();
    }
    Ok(opened)
}

/// Moves messages that are due.
pub(crate) struct Schedule {
    consumer: Option<Consumer>,
    deliveries: Vec<Delivery>,
    moving: MovingPublishes<(MessageId, Option<Uuid>)>,
    waker: Waker,
}

/// Wakes the housekeeping thread.
pub(crate) struct HousekeepingWaker(pub(crate) Arc<Shared>);

impl Wake for HousekeepingWaker {
    fn wake(self: Arc<Self>) {
        self.0.work.kick();
    }
}

impl Schedule {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            consumer: None,
            deliveries: Vec::new(),
            moving: MovingPublishes::default(),
            waker: Waker::from(Arc::new(HousekeepingWaker(shared.clone()))),
        }
    }

    /// Moves messages that are due. Returns `true` if some are under way.
    pub(crate) fn advance(&mut self, shared: &Arc<Shared>) -> bool {
        if self.consumer.is_none() {
            self.consumer = attach(shared);
        }
        let Some(consumer) = &self.consumer else {
            return false;
        };
        let mut context = Context::from_waker(&self.waker);
        while let Poll::Ready(state) = consumer.poll_deliveries(&mut context, &mut self.deliveries)
        {
            if state.is_none() {
                self.consumer = None;
                return false;
            }
        }
        for delivery in std::mem::take(&mut self.deliveries) {
            let mut records = RecordCursor::at(&delivery.batch, delivery.position);
            for _ in 0..delivery.count {
                let Ok(Some((offset, record))) = records.next_record() else {
                    break;
                };
                let id = MessageId {
                    partition: delivery.partition,
                    offset,
                };
                let to = target(&record);
                match forward(shared, &record) {
                    Some(Ok(published)) => self.moving.push(published, (id, to)),
                    // The destination topic was deleted: drop the message.
                    None => {
                        shared.scheduled.ends(to);
                        settle(consumer.ack(id));
                    }
                    Some(Err(error)) => {
                        tracing::warn!(%error, "cannot publish a delayed message yet");
                        settle(consumer.nack(id, RETRY_MS));
                    }
                }
            }
        }
        self.take_moved(shared)
    }

    /// Settles the messages that have arrived by now. Returns `true` if some are still under way.
    pub(crate) fn take_moved(&mut self, shared: &Arc<Shared>) -> bool {
        let Some(consumer) = &self.consumer else {
            return false;
        };
        let mut moved = Vec::new();
        let is_moving = self.moving.advance(
            |(id, _)| moved.push(*id),
            |(id, to), result| match result {
                Ok(()) => {
                    shared.scheduled.ends(to);
                    settle(consumer.ack(id));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot publish a delayed message yet");
                    consumer.subscription().note_moved(&[id], false);
                    settle(consumer.nack(id, RETRY_MS));
                }
            },
        );
        if !moved.is_empty() {
            consumer.subscription().note_moved(&moved, true);
        }
        is_moving
    }
}

/// Ignores the result: a message that was purged meanwhile is not in flight any more.
fn settle(_result: Result<Settlement, NotInFlight>) {}

fn attach(shared: &Arc<Shared>) -> Option<Consumer> {
    let subscription = shared.topic(TOPIC.into())?.subscription(SUBSCRIPTION)?;
    let options = ConsumerOptions {
        label: SUBSCRIPTION.to_owned(),
        ..ConsumerOptions::default()
    };
    let consumer = subscription.attach(options).ok()?;
    consumer.set_window(MOVING_MAX);
    Some(consumer)
}

fn forward(shared: &Arc<Shared>, record: &Record<'_>) -> Option<Result<Published, PublishError>> {
    let reserved = |name: &[u8]| name == headers::SCHEDULE_TOPIC || name == headers::SCHEDULE_DUE;
    let topic = shared.topic_by_id(target(record)?)?;
    let kept: Vec<(&[u8], Option<&[u8]>)> = record
        .headers
        .clone()
        .filter(|(name, _)| !reserved(name))
        .collect();
    let mut builder = BatchBuilder::with_capacity(512, record.timestamp_ms);
    builder.push(record.key, record.value, &kept);
    Some(topic.publish_uncounted(builder.finish(), Durability::Disk))
}
