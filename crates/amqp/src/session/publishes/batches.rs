//! Messages that are collected until they are published: consecutive ones for one queue are one
//! batch and one append, whatever their channels.

use std::sync::Arc;

use cloverleaf_broker::{PublishError, Published};
use cloverleaf_log::{BatchBuilder, Durability};

use super::confirms::{Flush, Group, Waiting};
use super::properties::StorageProperties;
use super::storage_alarm::StorageAlarm;
use crate::host::Queue;
use crate::message::Message;
use crate::session::connection::Connection;

/// A batch with so many bytes of messages is published at once.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most batches that are open at once; a message that goes to more queues has more of them.
const BATCHES_MAX: usize = 64;
/// Most bytes of a record beside its texts and its content.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// The batches that are open, and those that were published since the last flush.
#[derive(Default)]
pub(super) struct Batches {
    open: Vec<OpenBatch>,
    bytes: usize,
    /// Published since the last flush.
    published: Vec<Published>,
    /// Something since the last flush was not stored.
    failed: bool,
    groups: Vec<Group>,
    /// Bytes of this read that have not been looked at.
    input_bytes: usize,
}

/// Messages for one place.
pub(super) struct OpenBatch {
    queue: Arc<Queue>,
    partition: u32,
    durability: Durability,
    builder: BatchBuilder,
    bytes: usize,
    /// A client is owed a confirm for one of its messages.
    wants_promise: bool,
}

impl OpenBatch {
    fn new(queue: &Arc<Queue>, storage: &StorageProperties, builder: BatchBuilder) -> Self {
        Self {
            queue: Arc::clone(queue),
            partition: queue.partition(storage.priority),
            durability: storage.durability(queue.durable),
            builder,
            bytes: 0,
            wants_promise: storage.wants_promise,
        }
    }

    /// A batch of one message.
    pub(super) fn of_one(
        queue: &Arc<Queue>,
        message: &Message<'_>,
        storage: &StorageProperties,
        timestamp_ms: i64,
    ) -> Self {
        let mut builder = BatchBuilder::with_capacity(message_bytes(message), timestamp_ms);
        message.push(&mut builder, storage.expires_at_ms);
        Self::new(queue, storage, builder)
    }

    pub(super) fn publish(self, connection: &mut Connection) -> Result<Published, PublishError> {
        let topic = self.queue.topic.number();
        connection.meter.published.topics.add(topic);
        let batch = self.builder.finish();
        match self.queue.levels {
            1 => self.queue.topic.publish(batch, self.durability),
            _ => {
                let topic = &self.queue.topic;
                topic.publish_in(self.partition, batch, self.durability)
            }
        }
    }
}

impl Batches {
    /// So many bytes of this read have not been looked at: a batch may have about as many.
    pub(super) fn expect(&mut self, input_bytes: usize) {
        self.input_bytes = input_bytes;
    }

    /// Whether nothing was published since the last flush.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
            && self.groups.is_empty()
            && self.published.is_empty()
            && !self.failed
            && self.bytes == 0
    }

    /// Adds a message for a queue. `true`: [`Batches::publish`] is due.
    #[inline]
    pub(super) fn add(
        &mut self,
        queue: &Arc<Queue>,
        message: &Message<'_>,
        storage: &StorageProperties,
        timestamp_ms: i64,
    ) -> bool {
        let capacity = if self.open.is_empty() {
            self.input_bytes.min(BATCH_BYTES_MAX)
        } else {
            0
        };
        let bytes = message_bytes(message);
        let batch = self.batch(queue, storage, || {
            BatchBuilder::with_capacity(bytes.max(capacity), timestamp_ms)
        });
        message.push(&mut batch.builder, storage.expires_at_ms);
        batch.wants_promise |= storage.wants_promise;
        batch.bytes += bytes;
        let is_full = batch.bytes >= BATCH_BYTES_MAX;
        self.bytes += bytes;
        is_full || self.open.len() >= BATCHES_MAX
    }

    /// Publishes all open batches.
    pub(super) fn publish(&mut self, connection: &mut Connection, alarm: &mut StorageAlarm) {
        let mut open = std::mem::take(&mut self.open);
        connection.meter.called(open.len());
        for batch in open.drain(..) {
            let wants_promise = batch.wants_promise;
            let published = batch.publish(connection);
            self.keep(connection, alarm, published, wants_promise);
        }
        // Its memory is used again.
        self.open = open;
    }

    /// Remembers the outcome of a batch until the next flush, if a client is owed a confirm for it.
    #[inline]
    pub(super) fn keep(
        &mut self,
        connection: &mut Connection,
        alarm: &mut StorageAlarm,
        published: Result<Published, PublishError>,
        wants_promise: bool,
    ) {
        match published {
            Ok(published) if wants_promise => self.published.push(published),
            Ok(_) => {}
            // The queue was deleted meanwhile: no consumer can want the message any more.
            Err(PublishError::TopicDeleted { .. }) => {}
            Err(error) => {
                self.failed |= wants_promise;
                alarm.not_stored(connection, &error);
            }
        }
    }

    /// The confirms that are owed since the last flush.
    pub(super) fn take_groups(&mut self) -> Option<Waiting> {
        let groups = std::mem::take(&mut self.groups);
        (!groups.is_empty()).then_some(Waiting::Confirms(groups))
    }

    /// Ends a flush; `None`: nothing waits for it.
    #[inline]
    pub(super) fn end_flush(&mut self, waiting: Option<Waiting>) -> Option<Flush> {
        let published = std::mem::take(&mut self.published);
        let failed = std::mem::take(&mut self.failed);
        let bytes = std::mem::take(&mut self.bytes);
        waiting.map(|waiting| Flush {
            published,
            failed,
            bytes,
            waiting,
        })
    }

    /// Adds a publish for which a confirm is owed.
    #[inline]
    pub(super) fn add_group(&mut self, group: Group) {
        let mut groups = self.groups.iter_mut().rev();
        let same =
            |it: &&mut Group| it.channel == group.channel && it.incarnation == group.incarnation;
        match groups.find(same) {
            Some(before) => before.last = group.last,
            None => self.groups.push(group),
        }
    }

    /// The open batch for that place, made if there is none. Messages of both classes share it, so
    /// that they keep their order; the confirms of a read go out together anyway.
    #[inline]
    fn batch(
        &mut self,
        queue: &Arc<Queue>,
        storage: &StorageProperties,
        make: impl FnOnce() -> BatchBuilder,
    ) -> &mut OpenBatch {
        let partition = queue.partition(storage.priority);
        let durability = storage.durability(queue.durable);
        let is_it =
            |batch: &OpenBatch| Arc::ptr_eq(&batch.queue, queue) && batch.partition == partition;
        let place = match self.open.iter().position(is_it) {
            Some(place) => {
                if durability == Durability::Disk {
                    self.open[place].durability = durability;
                }
                place
            }
            None => {
                self.open.push(OpenBatch::new(queue, storage, make()));
                self.open.len() - 1
            }
        };
        &mut self.open[place]
    }
}

/// Bytes that a message takes in a batch, and not many more.
fn message_bytes(message: &Message<'_>) -> usize {
    let texts = message.exchange.len() + message.routing_key.len();
    // The user's headers are there twice.
    let properties = 2 * message.properties.len();
    message.body.len() + texts + properties + RECORD_OVERHEAD_BYTES
}
