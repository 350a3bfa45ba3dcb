//! The publishes of one round: what goes to one queue in one class is one batch.

use std::collections::HashMap;
use std::sync::Arc;

use cloverleaf_broker::PublishError;
use cloverleaf_log::{BatchBuilder, Durability};

use super::super::VirtualHost;
use super::super::letters::{Past, builder, message_bytes};
use super::super::queue::Queue;
use super::under_way::UnderWay;
use crate::message::Message;
use crate::queue_arguments::Overflow;

/// A batch is published when it has so many bytes: far below the largest that the log takes.
const BATCH_BYTES: usize = 256 << 10;
/// All of them are published when they have so many together: one message may go to thousands of
/// queues.
const BYTES_MAX: usize = 4 << 20;

/// A message as it is stored in its queues.
pub(super) struct Stored<'a> {
    pub(super) message: Message<'a>,
    pub(super) durability: Durability,
    pub(super) priority: Option<u8>,
    pub(super) expires_at_ms: Option<u64>,
    pub(super) past: Past,
}

/// The batches of a round that are not published yet.
pub(super) struct Outgoing {
    batches: Vec<Open>,
    /// Where in `batches`, by queue (its address: it lives in the batch), partition and class.
    places: HashMap<(usize, u32, bool), usize>,
    /// The bytes that were added to them, about.
    bytes: usize,
    /// Letters, and copies of them.
    steps: usize,
    /// Most copies of one letter.
    copies_max: usize,
    /// A letter has more, and was left out.
    was_too_many: bool,
    now_ms: u64,
}

struct Open {
    queue: Arc<Queue>,
    partition: u32,
    durability: Durability,
    builder: Option<BatchBuilder>,
    letters: Vec<u64>,
}

impl Outgoing {
    /// No letter may have more copies than `copies_max`.
    pub(super) fn new(now_ms: u64, copies_max: usize) -> Self {
        Self {
            batches: Vec::new(),
            places: HashMap::new(),
            bytes: 0,
            steps: 0,
            copies_max,
            was_too_many: false,
            now_ms,
        }
    }

    /// The time of this round, milliseconds since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// How much work was done: letters, and copies of them.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// One more letter, wherever it goes.
    pub(super) fn count_letter(&mut self) {
        self.steps += 1;
    }

    /// Whether a letter with so many copies is routed here.
    pub(super) fn takes(&mut self, copies: usize) -> bool {
        self.was_too_many = copies > self.copies_max;
        !self.was_too_many
    }

    /// Whether the last letter was left out.
    pub(super) fn take_was_too_many(&mut self) -> bool {
        std::mem::take(&mut self.was_too_many)
    }

    fn timestamp_ms(&self) -> i64 {
        i64::try_from(self.now_ms).unwrap_or(i64::MAX)
    }

    /// A letter goes to `queue`.
    pub(super) fn add(
        &mut self,
        under_way: &mut UnderWay,
        host: &VirtualHost,
        letter: u64,
        queue: &Arc<Queue>,
        stored: &Stored<'_>,
    ) {
        if under_way.has_reached(letter, queue.topic.id()) {
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
            return self.publish_alone(under_way, host, letter, queue, stored, durability);
        }
        let partition = queue.partition(stored.priority);
        let is_disk = durability == Durability::Disk;
        let place = (Arc::as_ptr(queue) as usize, partition, is_disk);
        let index = *self.places.entry(place).or_insert_with(|| {
            self.batches.push(Open {
                queue: queue.clone(),
                partition,
                durability,
                builder: None,
                letters: Vec::new(),
            });
            self.batches.len() - 1
        });
        let timestamp_ms = self.timestamp_ms();
        let open = &mut self.batches[index];
        let batch = open
            .builder
            .get_or_insert_with(|| builder(&stored.message, timestamp_ms));
        let marks = stored.past.marks();
        stored.message.push_with(batch, stored.expires_at_ms, marks);
        open.letters.push(letter);
        if batch.len() >= BATCH_BYTES {
            open.publish(under_way, self.now_ms);
        }
        self.bytes += message_bytes(&stored.message);
        if self.bytes >= BYTES_MAX {
            self.flush(under_way);
        }
    }

    /// Publishes all that is left.
    pub(super) fn flush(&mut self, under_way: &mut UnderWay) {
        for mut open in self.batches.drain(..) {
            open.publish(under_way, self.now_ms);
        }
        self.places.clear();
        self.bytes = 0;
    }

    /// A queue that refuses what it has no room for is asked for each message.
    fn publish_alone(
        &self,
        under_way: &mut UnderWay,
        host: &VirtualHost,
        letter: u64,
        queue: &Arc<Queue>,
        stored: &Stored<'_>,
        durability: Durability,
    ) {
        let mut batch = builder(&stored.message, self.timestamp_ms());
        let marks = stored.past.marks();
        stored
            .message
            .push_with(&mut batch, stored.expires_at_ms, marks);
        let partition = queue.partition(stored.priority);
        let mut published = queue
            .topic
            .publish_in(partition, batch.finish(), durability);
        let is_full = matches!(published, Err(PublishError::QueueFull { .. }));
        if is_full && queue.arguments.overflow == Overflow::RejectPublishDeadLetter {
            // It dies here once more, before it came in.
            let dead = host.dead_letter_marked(
                queue,
                "maxlen",
                &stored.message,
                self.timestamp_ms(),
                durability,
                stored.past,
            );
            published = match dead {
                Ok(Some(published)) => Ok(published),
                Ok(None) => return,
                Err(error) => Err(error),
            };
        }
        match published {
            Ok(published) => under_way.push(published, vec![letter], Some(queue.topic.id())),
            Err(error) => under_way.refuse(&error, &[letter], self.now_ms),
        }
    }
}

impl Open {
    fn publish(&mut self, under_way: &mut UnderWay, now_ms: u64) {
        let Some(builder) = self.builder.take() else {
            return;
        };
        let letters = std::mem::take(&mut self.letters);
        let batch = builder.finish();
        let published = self
            .queue
            .topic
            .publish_in(self.partition, batch, self.durability);
        match published {
            Ok(published) => under_way.push(published, letters, Some(self.queue.topic.id())),
            Err(error) => under_way.refuse(&error, &letters, now_ms),
        }
    }
}

fn refuses_when_full(queue: &Queue) -> bool {
    let arguments = &queue.arguments;
    let is_bounded = arguments.length_max.is_some() || arguments.length_bytes_max.is_some();
    is_bounded && arguments.overflow != Overflow::DropHead
}
