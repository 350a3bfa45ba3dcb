//! The publishes of one round: messages for the same queue, partition and class share a batch.

use std::collections::HashMap;
use std::sync::Arc;

use cloverleaf_broker::PublishError;
use cloverleaf_log::{BatchBuilder, Durability};

use super::super::VirtualHost;
use super::super::queue::Queue;
use super::super::router_input::{DeathMark, builder_for, message_bytes};
use super::pending::PendingMessages;
use crate::message::Message;
use crate::queue_arguments::Overflow;

/// A batch is published at this size, far below the largest that the log accepts.
const BATCH_BYTES: usize = 256 << 10;
/// All batches are published when together they have this size: one message may go to thousands of
/// queues.
const BYTES_MAX: usize = 4 << 20;

/// A message as it is to be stored in its queues.
pub(super) struct MessageToStore<'a> {
    pub(super) message: Message<'a>,
    pub(super) durability: Durability,
    pub(super) priority: Option<u8>,
    pub(super) expires_at_ms: Option<u64>,
    pub(super) mark: DeathMark,
}

/// The open batches of a round.
pub(super) struct OutgoingBatches {
    batches: Vec<RouterBatch>,
    /// Index into `batches` by queue, partition and class. The queue's address is its key: the
    /// batch keeps the queue alive.
    places: HashMap<(usize, u32, bool), usize>,
    /// Approximate size of all batches, in bytes.
    bytes: usize,
    /// Messages routed, plus copies made.
    steps: usize,
    /// Maximum number of copies of one message.
    copies_max: usize,
    /// The last message has more copies, and was not routed.
    had_too_many_copies: bool,
    now_ms: u64,
}

struct RouterBatch {
    queue: Arc<Queue>,
    partition: u32,
    durability: Durability,
    builder: Option<BatchBuilder>,
    numbers: Vec<u64>,
}

impl OutgoingBatches {
    /// Messages with more than `copies_max` copies are left out.
    pub(super) fn new(now_ms: u64, copies_max: usize) -> Self {
        Self {
            batches: Vec::new(),
            places: HashMap::new(),
            bytes: 0,
            steps: 0,
            copies_max,
            had_too_many_copies: false,
            now_ms,
        }
    }

    /// The time of this round, in milliseconds since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The amount of work so far: messages routed, plus copies made.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// Counts a routed message, even one without queues.
    pub(super) fn count_message(&mut self) {
        self.steps += 1;
    }

    /// Whether a message with this many copies may be routed here.
    pub(super) fn allows_copies(&mut self, copies: usize) -> bool {
        self.had_too_many_copies = copies > self.copies_max;
        !self.had_too_many_copies
    }

    /// Whether the last message was left out.
    pub(super) fn take_had_too_many_copies(&mut self) -> bool {
        std::mem::take(&mut self.had_too_many_copies)
    }

    fn timestamp_ms(&self) -> i64 {
        i64::try_from(self.now_ms).unwrap_or(i64::MAX)
    }

    /// Adds a copy of a message for `queue`.
    pub(super) fn add(
        &mut self,
        pending: &mut PendingMessages,
        host: &VirtualHost,
        number: u64,
        queue: &Arc<Queue>,
        stored: &MessageToStore<'_>,
    ) {
        if pending.has_reached(number, queue.topic.id()) {
            return;
        }
        self.steps += 1;
        // A queue that ends with the process needs no sync.
        let durability = if queue.durable {
            stored.durability
        } else {
            Durability::Kernel
        };
        if refuses_when_full(queue) {
            return self.publish_alone(pending, host, number, queue, stored, durability);
        }
        let partition = queue.partition(stored.priority);
        let is_disk = durability == Durability::Disk;
        let place = (Arc::as_ptr(queue) as usize, partition, is_disk);
        let index = *self.places.entry(place).or_insert_with(|| {
            self.batches.push(RouterBatch {
                queue: queue.clone(),
                partition,
                durability,
                builder: None,
                numbers: Vec::new(),
            });
            self.batches.len() - 1
        });
        let timestamp_ms = self.timestamp_ms();
        let open = &mut self.batches[index];
        let batch = open
            .builder
            .get_or_insert_with(|| builder_for(&stored.message, timestamp_ms));
        let mark_headers = stored.mark.mark_headers();
        stored
            .message
            .push_with_headers(batch, stored.expires_at_ms, mark_headers);
        open.numbers.push(number);
        if batch.len() >= BATCH_BYTES {
            open.publish(pending, self.now_ms);
        }
        self.bytes += message_bytes(&stored.message);
        if self.bytes >= BYTES_MAX {
            self.flush(pending);
        }
    }

    /// Publishes all open batches.
    pub(super) fn flush(&mut self, pending: &mut PendingMessages) {
        for mut open in self.batches.drain(..) {
            open.publish(pending, self.now_ms);
        }
        self.places.clear();
        self.bytes = 0;
    }

    /// Publishes one message to a queue that may refuse it, so that a refusal concerns no other.
    fn publish_alone(
        &self,
        pending: &mut PendingMessages,
        host: &VirtualHost,
        number: u64,
        queue: &Arc<Queue>,
        stored: &MessageToStore<'_>,
        durability: Durability,
    ) {
        let mut batch = builder_for(&stored.message, self.timestamp_ms());
        let mark_headers = stored.mark.mark_headers();
        stored
            .message
            .push_with_headers(&mut batch, stored.expires_at_ms, mark_headers);
        let partition = queue.partition(stored.priority);
        let mut published = queue
            .topic
            .publish_in(partition, batch.finish(), durability);
        let is_full = matches!(published, Err(PublishError::QueueFull { .. }));
        if is_full && queue.arguments.overflow == Overflow::RejectPublishDeadLetter {
            // The refused message is dead-lettered by this queue, without having been stored in it.
            let dead = host.dead_letter_marked(
                queue,
                "maxlen",
                &stored.message,
                self.timestamp_ms(),
                durability,
                stored.mark,
            );
            published = match dead {
                Ok(Some(published)) => Ok(published),
                Ok(None) => return,
                Err(error) => Err(error),
            };
        }
        match published {
            Ok(published) => pending.push(published, vec![number], Some(queue.topic.id())),
            Err(error) => pending.refuse(&error, &[number], self.now_ms),
        }
    }
}

impl RouterBatch {
    fn publish(&mut self, pending: &mut PendingMessages, now_ms: u64) {
        let Some(builder) = self.builder.take() else {
            return;
        };
        let numbers = std::mem::take(&mut self.numbers);
        let batch = builder.finish();
        let published = self
            .queue
            .topic
            .publish_in(self.partition, batch, self.durability);
        match published {
            Ok(published) => pending.push(published, numbers, Some(self.queue.topic.id())),
            Err(error) => pending.refuse(&error, &numbers, now_ms),
        }
    }
}

fn refuses_when_full(queue: &Queue) -> bool {
    let arguments = &queue.arguments;
    let is_bounded = arguments.length_max.is_some() || arguments.length_bytes_max.is_some();
    is_bounded && arguments.overflow != Overflow::DropHead
}
