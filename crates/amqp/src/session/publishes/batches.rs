//! Messages that are collected until they are published: consecutive messages for one queue become
//! one batch and one append, whatever their channels.

use std::sync::Arc;

use cloverleaf_broker::{PublishError, Published};
use cloverleaf_log::{BatchBuilder, Durability};

use super::confirms::{ConfirmGroup, Flush, OwedAnswer};
use super::properties::StorageProperties;
use super::storage_alarm::StorageAlarm;
use crate::host::Queue;
use crate::message::Message;
use crate::session::connection::Connection;

/// A batch is published as soon as it has this many bytes of messages.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of open batches: once there are so many, all are published.
const BATCHES_MAX: usize = 64;
/// Upper bound of a record's size besides its strings, properties and body.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// The open batches, and the outcomes of those published since the last flush.
#[derive(Default)]
pub(super) struct Batches {
    open: Vec<OpenBatch>,
    bytes: usize,
    /// Batches published since the last flush, for which a confirm is owed.
    published: Vec<Published>,
    /// A message since the last flush was not stored, although a confirm is owed for it.
    has_failed: bool,
    groups: Vec<ConfirmGroup>,
    /// Bytes of the current read that are not parsed yet.
    input_bytes: usize,
}

/// Messages for one partition of a queue.
pub(super) struct OpenBatch {
    queue: Arc<Queue>,
    partition: u32,
    durability: Durability,
    builder: BatchBuilder,
    bytes: usize,
    /// A confirm is owed for one of its messages.
    wants_confirm: bool,
}

impl OpenBatch {
    fn new(queue: &Arc<Queue>, storage: &StorageProperties, builder: BatchBuilder) -> Self {
        Self {
            queue: Arc::clone(queue),
            partition: queue.partition(storage.priority),
            durability: storage.durability(queue.durable),
            builder,
            bytes: 0,
            wants_confirm: storage.wants_confirm,
        }
    }

    /// A batch with one message.
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
    /// Sets the number of unparsed bytes of the current read: a hint for the size of the next
    /// batch.
    pub(super) fn set_input_bytes(&mut self, input_bytes: usize) {
        self.input_bytes = input_bytes;
    }

    /// Whether nothing was published since the last flush.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty()
            && self.groups.is_empty()
            && self.published.is_empty()
            && !self.has_failed
            && self.bytes == 0
    }

    /// Adds a message for a queue. `true`: the caller has to call [`Batches::publish`].
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
        batch.wants_confirm |= storage.wants_confirm;
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
            let wants_confirm = batch.wants_confirm;
            let published = batch.publish(connection);
            self.record_outcome(connection, alarm, published, wants_confirm);
        }
        // Keeps the allocation.
        self.open = open;
    }

    /// Records the outcome of a publish for the next flush, if a confirm is owed for it.
    #[inline]
    pub(super) fn record_outcome(
        &mut self,
        connection: &mut Connection,
        alarm: &mut StorageAlarm,
        published: Result<Published, PublishError>,
        wants_confirm: bool,
    ) {
        match published {
            Ok(published) if wants_confirm => self.published.push(published),
            Ok(_) => {}
            // The queue was deleted meanwhile, and the message with it: it counts as stored.
            Err(PublishError::TopicDeleted { .. }) => {}
            Err(error) => {
                self.has_failed |= wants_confirm;
                alarm.not_stored(connection, &error);
            }
        }
    }

    /// Takes the confirms that are owed since the last flush.
    pub(super) fn take_groups(&mut self) -> Option<OwedAnswer> {
        let groups = std::mem::take(&mut self.groups);
        (!groups.is_empty()).then_some(OwedAnswer::Confirms(groups))
    }

    /// Ends a flush; `None`: no confirm or commit waits for it.
    #[inline]
    pub(super) fn end_flush(&mut self, owed: Option<OwedAnswer>) -> Option<Flush> {
        let published = std::mem::take(&mut self.published);
        let has_failed = std::mem::take(&mut self.has_failed);
        let bytes = std::mem::take(&mut self.bytes);
        owed.map(|owed| Flush {
            published,
            has_failed,
            bytes,
            owed,
        })
    }

    /// Adds a publish to be confirmed.
    #[inline]
    pub(super) fn add_group(&mut self, group: ConfirmGroup) {
        let mut groups = self.groups.iter_mut().rev();
        let same = |it: &&mut ConfirmGroup| {
            it.channel == group.channel && it.incarnation == group.incarnation
        };
        match groups.find(same) {
            Some(before) => before.last = group.last,
            None => self.groups.push(group),
        }
    }

    /// The open batch for a queue's partition; created if necessary. Persistent and transient
    /// messages share it to keep their order. That delays no confirm: the confirms of a read go out
    /// together.
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

/// An estimate, not too low, of the bytes that a message takes in a batch.
fn message_bytes(message: &Message<'_>) -> usize {
    let texts = message.exchange.len() + message.routing_key.len();
    // The user's headers are stored twice: in the properties, and as record headers.
    let properties = 2 * message.properties.len();
    message.body.len() + texts + properties + RECORD_OVERHEAD_BYTES
}
