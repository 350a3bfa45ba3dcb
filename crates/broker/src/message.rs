//! Deliveries: messages on their way to a consumer, as references into the log's batches.

use cloverleaf_log::{Batch, Offset};

/// Identifies one message of a topic by its position, which never changes and is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// The partition of the topic.
    pub partition: u32,
    /// The offset in that partition.
    pub offset: Offset,
}

/// Consecutive messages of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageRange {
    /// The partition of the topic.
    pub partition: u32,
    /// The offset of the first message.
    pub first: Offset,
    /// The number of messages.
    pub count: u32,
}

impl MessageRange {
    /// The offset after the last message.
    pub(crate) fn end(&self) -> Offset {
        self.first.saturating_add(u64::from(self.count))
    }
}

/// Consecutive messages of one batch, delivered to one consumer.
///
/// Read them with [`cloverleaf_log::RecordCursor::at`]: `count` records from `position` on.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The batch that contains them; its memory is shared with the log.
    pub batch: Batch,
    /// Byte position of the first record in the batch.
    pub position: u32,
    /// Their partition.
    pub partition: u32,
    /// Offset of the first message.
    pub first: Offset,
    /// The number of messages.
    pub count: u32,
    /// How often they have been delivered, including this delivery.
    pub attempts: u16,
    /// They were delivered before, or may have been before the broker was restarted.
    pub redelivered: bool,
    /// The bytes of their records, for accounting.
    pub bytes: u32,
    /// When they were put into the consumer's outbox, in microseconds since the Unix epoch.
    pub delivered_us: u64,
}

impl Delivery {
    /// The offsets of the messages.
    pub fn range(&self) -> MessageRange {
        MessageRange {
            partition: self.partition,
            first: self.first,
            count: self.count,
        }
    }
}

/// Why a message is not delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadReason {
    /// It was delivered as often as its subscription allows.
    Attempts,
    /// A consumer rejected it.
    Rejected,
    /// Its time to live passed.
    Expired,
    /// It was the oldest message in a queue that exceeded its limit.
    Length,
}

impl DeadReason {
    /// The word in the dead letter's header. Never change it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Length => "length",
        }
    }
}

/// Reserved record headers, which the broker or one protocol uses.
///
/// The names are stored in users' logs: never change one.
pub mod headers {
    /// In the schedule topic: UUID (16 bytes) of the topic to which the message goes.
    pub const SCHEDULE_TOPIC: &[u8] = b"cloverleaf-schedule-topic";
    /// In the schedule topic: when the message is due there, milliseconds since the epoch, 8 bytes
    /// big endian.
    pub const SCHEDULE_DUE: &[u8] = b"cloverleaf-schedule-due";
    /// In a dead letter: the topic in which the message died.
    pub const DEAD_TOPIC: &[u8] = b"cloverleaf-dead-topic";
    /// In a dead letter: the subscription in which it died.
    pub const DEAD_SUBSCRIPTION: &[u8] = b"cloverleaf-dead-subscription";
    /// In a dead letter: why, in words (`attempts`, `rejected`, `expired`, `length`).
    pub const DEAD_REASON: &[u8] = b"cloverleaf-dead-reason";
    /// In a dead letter: how often it had been delivered, in decimal digits.
    pub const DEAD_ATTEMPTS: &[u8] = b"cloverleaf-dead-attempts";
    /// In a dead letter: `partition/offset` of the original.
    pub const DEAD_ORIGIN: &[u8] = b"cloverleaf-dead-origin";
    /// When a message expires, milliseconds since the epoch, 8 bytes big endian.
    pub const EXPIRES: &[u8] = b"cloverleaf-expires";
    /// The subject with which a NATS client published.
    pub const NATS_SUBJECT: &[u8] = b"nats-subject";
}
