//! The options of a broker, a topic, a subscription and a consumer.
//!
//! Topic and subscription options are stored in definitions as JSON. Unknown keys are refused, and
//! each new key needs a serde default so that definitions of older versions still load.

use std::collections::BTreeMap;
use std::sync::Arc;

use cloverleaf_log::{Codec, Durability};
use serde::{Deserialize, Serialize};

use crate::consumer::shared_window::SharedWindow;

/// When a producer's publish is acknowledged, whatever the producer asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityMode {
    /// As the producer's protocol asks (design, section 5).
    #[default]
    Protocol,
    /// After the messages are synced to disk.
    Disk,
    /// After the messages are handed to the kernel; no acknowledgement waits for a sync.
    Kernel,
}

impl DurabilityMode {
    /// The value of the option `durability`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Disk => "disk",
            Self::Kernel => "kernel",
        }
    }

    /// The name, as clients see it, of the durability of a publish for which the protocol asks
    /// `asked`.
    pub fn class_name(self, asked: Durability) -> &'static str {
        match self.class(asked) {
            Durability::None => "none",
            Durability::Kernel => "kernel",
            Durability::Disk => "disk",
        }
    }

    /// The durability of a publish for which the protocol asks `asked`.
    pub fn class(self, asked: Durability) -> Durability {
        match self {
            Self::Protocol => asked,
            Self::Disk => Durability::Disk,
            Self::Kernel => Durability::Kernel,
        }
    }
}

/// Broker-wide options.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    /// When publishes are acknowledged, unless a topic says otherwise.
    pub durability: DurabilityMode,
    /// Upper limit of bytes accepted from producers but not yet written; beyond it, publishing
    /// waits.
    pub unwritten_bytes_max: u64,
    /// Upper limit of bytes in one consumer's outbox.
    pub outbox_bytes_max: u32,
    /// Upper limit of bytes per read from the log for one subscription.
    pub read_bytes_max: usize,
    /// How long acknowledgements may stay in memory only, in milliseconds.
    pub progress_interval_ms: u64,
    /// A log segment of this size is sealed and a new one begun.
    pub segment_bytes: u64,
    /// Upper limit of delayed messages.
    pub scheduled_messages_max: u64,
    /// How often retention runs, in milliseconds.
    pub retention_interval_ms: u64,
    /// Milliseconds for which consumed messages are kept once a topic has had a reader by offset.
    pub reader_retention_ms: u64,
    /// Largest compressed batch that is inflated for subscriptions and checks, in inflated bytes.
    /// The messages of a larger one are skipped.
    pub inflated_batch_bytes_max: usize,
    /// Upper limit of bytes of cached inflated batches, all topics together.
    pub inflated_cache_bytes_max: usize,
    /// How often compacted topics are checked, in milliseconds.
    pub compaction_interval_ms: u64,
    /// Upper limit of partitions of all topics together; each costs memory, used or not.
    pub partitions_max: u32,
    /// Keeps topic folders whose names damage has destroyed, as topics with new names. If false,
    /// the broker refuses to start with such folders.
    pub repair: bool,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            durability: DurabilityMode::Protocol,
            unwritten_bytes_max: 32 << 20,
            outbox_bytes_max: 256 << 10,
            read_bytes_max: 256 << 10,
            // Design, section 6: progress reaches the kernel within 10 ms.
            progress_interval_ms: 10,
            segment_bytes: 64 << 20,
            scheduled_messages_max: 1_000_000,
            retention_interval_ms: 1_000,
            // A reader that comes once a day still finds every message.
            reader_retention_ms: 24 * 3_600_000,
            // Sixty times the largest batch that Kafka accepts by default.
            inflated_batch_bytes_max: 64 << 20,
            inflated_cache_bytes_max: 16 << 20,
            // Kafka's `log.cleaner.backoff.ms`.
            compaction_interval_ms: 15_000,
            partitions_max: 100_000,
            repair: false,
        }
    }
}

/// The retention of a topic: which stored messages are deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Messages older than this are deleted.
    pub ms: Option<u64>,
    /// The oldest segments are deleted while a partition is larger than this.
    pub bytes: Option<u64>,
    /// Segments that every subscription and every committed group has passed are deleted. Without
    /// subscriptions and groups none is.
    pub consumed: bool,
    /// `consumed` deletes nothing younger than this. Set when a reader by offset appears, because
    /// it would otherwise not find messages that subscriptions have consumed.
    pub min_ms: Option<u64>,
}

/// How the batches of a topic are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "they are names")]
pub enum Compression {
    Uncompressed,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl From<Compression> for Codec {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::Uncompressed => Self::None,
            Compression::Gzip => Self::Gzip,
            Compression::Snappy => Self::Snappy,
            Compression::Lz4 => Self::Lz4,
            Compression::Zstd => Self::Zstd,
        }
    }
}

/// Compaction of a topic: of the messages with the same key the newest is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compaction {
    /// Milliseconds for which a message without a body (a tombstone) is kept, so that readers see
    /// it (`delete.retention.ms`).
    pub delete_retention_ms: u64,
    /// Messages younger than this are not compacted (`min.compaction.lag.ms`).
    pub min_lag_ms: u64,
    /// Messages older than this make compaction due, regardless of the ratio
    /// (`max.compaction.lag.ms`).
    pub max_lag_ms: Option<u64>,
    /// Compaction is due when this share of a partition's bytes, in thousandths, is new since the
    /// last compaction (`min.cleanable.dirty.ratio`).
    pub dirty_ratio_permille: u32,
    /// The compression of rewritten batches (`compression.type`); `None`: they keep their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

impl Default for Compaction {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            delete_retention_ms: 24 * 3_600_000,
            min_lag_ms: 0,
            max_lag_ms: None,
            dirty_ratio_permille: 500,
            compression: None,
        }
    }
}

/// The options of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicOptions {
    /// Number of partitions.
    pub partitions: u32,
    /// Ends with the process, and is deleted with its last subscription.
    pub ephemeral: bool,
    /// When publishes are acknowledged, if different from the broker's setting.
    pub durability: Option<DurabilityMode>,
    /// When stored messages are deleted.
    pub retention: Retention,
    /// Not listed to users.
    pub hidden: bool,
    /// Only the newest message of each key is kept; each message must have a key.
    pub compaction: Option<Compaction>,
    /// The size at which a log segment is sealed, if different from the broker's.
    pub segment_bytes: Option<u64>,
    /// The age of its first message, in milliseconds, at which a log segment is sealed.
    pub segment_ms: Option<u64>,
    /// Messages get the time at which they were stored, instead of the producer's.
    pub append_time: bool,
    /// Upper limit of bytes of a producer's batch, including its header.
    pub batch_bytes_max: Option<u64>,
    /// How far a producer's timestamp may lie in the past, in milliseconds.
    pub timestamp_before_max_ms: Option<u64>,
    /// How far a producer's timestamp may lie in the future, in milliseconds.
    pub timestamp_after_max_ms: Option<u64>,
    /// A protocol's own settings as the user gave them. The broker stores them and does not
    /// interpret them.
    pub settings: BTreeMap<String, String>,
}

impl Default for TopicOptions {
    fn default() -> Self {
        Self {
            partitions: 1,
            ephemeral: false,
            durability: None,
            retention: Retention {
                consumed: true,
                ..Retention::default()
            },
            hidden: false,
            compaction: None,
            segment_bytes: None,
            segment_ms: None,
            append_time: false,
            batch_bytes_max: None,
            timestamp_before_max_ms: None,
            timestamp_after_max_ms: None,
            settings: BTreeMap::new(),
        }
    }
}

/// Where a new subscription starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartAt {
    /// The topic's first subscription gets the whole backlog, a later one starts at the end (NSQ).
    #[default]
    Delivery,
    /// At the oldest stored message.
    Earliest,
    /// At the end: only messages published from now on.
    Latest,
}

/// The order in which partitions are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionOrder {
    /// In turn.
    #[default]
    RoundRobin,
    /// The highest partition first: each priority level of a queue is a partition.
    HighestFirst,
}

/// The reaction when more messages wait in a subscription than its limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The oldest message is dropped (dead-lettered, if there is a dead-letter topic).
    #[default]
    DropHead,
    /// New publishes are refused.
    RejectPublish,
}

/// Which consumer with free slots in its window gets the next message. A higher priority always
/// goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// The one with the fewest messages in flight; round-robin among equals.
    #[default]
    LeastLoaded,
    /// The one that was served last, until its window is full, then the next one. For programs
    /// whose consumers share one pool of workers.
    FillFirst,
}

/// The options of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubscriptionOptions {
    /// Where it starts.
    pub start: StartAt,
    /// Deleted with its last consumer, and ends with the process.
    pub ephemeral: bool,
    /// How often a message is delivered before it is dead; 0: no limit.
    pub attempts_max: u16,
    /// The topic to which dead messages are copied; without one they are dropped.
    pub dead_letter: Option<String>,
    /// Upper limit of waiting messages; `overflow` says what happens beyond it.
    pub length_max: Option<u64>,
    /// Upper limit of bytes of waiting bodies, without keys and headers; `overflow` says what
    /// happens beyond it. Exact, except that a requeued message counts with the average size of the
    /// messages that it was delivered with.
    pub length_bytes_max: Option<u64>,
    /// The reaction beyond `length_max` and `length_bytes_max`.
    pub overflow: Overflow,
    /// Only one consumer gets messages: the first that attached. When it leaves, the next one by
    /// priority and then by arrival takes over.
    pub single_active: bool,
    /// With `single_active`: a consumer of a higher priority takes over once the active one has
    /// settled its messages in flight. Until then the active one gets no more messages.
    pub active_yields: bool,
    /// Upper limit of consumers; 0: no limit.
    pub consumers_max: u32,
    /// The order in which partitions are served.
    pub order: PartitionOrder,
    /// The policy that selects the consumer of the next message, as it was when the subscription
    /// was created. [`crate::Subscription::dispatch_policy`] returns the present one.
    pub dispatch: Dispatch,
    /// Expiry headers of messages are honoured.
    pub expires: bool,
    /// Messages expire this long after their timestamp, or at the time in their expiry header,
    /// whichever is sooner. A message without a timestamp has no such limit.
    pub message_ttl_ms: Option<u64>,
    /// Delivers only messages whose `nats-subject` header matches one of these patterns (`*` one
    /// token, `>` the rest); empty: all.
    pub subjects: Vec<String>,
    /// Delays messages until the time in their schedule header. For the broker's own schedule
    /// topic.
    pub scheduled: bool,
}

/// The options of a consumer.
#[derive(Debug, Clone, Default)]
pub struct ConsumerOptions {
    /// Milliseconds after which an unsettled message is requeued; `None`: never.
    pub ack_wait_ms: Option<u64>,
    /// Milliseconds after its delivery beyond which [`crate::Consumer::extend`] cannot extend a
    /// message.
    pub ack_wait_max_ms: Option<u64>,
    /// Consumers of a higher priority get messages first.
    pub priority: i32,
    /// Allows no other consumer of the subscription.
    pub exclusive: bool,
    /// Messages in flight to this consumer also count against this window, together with those of
    /// other consumers (of any subscription). Those of a consumer with `auto_ack` do not count; it
    /// gets messages while the window has free slots. A consumer with `pull` ignores the window.
    pub shared_window: Option<Arc<SharedWindow>>,
    /// Messages are acknowledged as soon as the consumer has taken them from its outbox.
    pub auto_ack: bool,
    /// It gets messages only by [`crate::Consumer::poll_take`], regardless of its window. It does
    /// not count as a consumer: `exclusive`, `single_active` and `consumers_max` neither limit it
    /// nor include it.
    pub pull: bool,
    /// Its name in statistics.
    pub label: String,
    /// The number of its connection in telemetry; 0 without a connection.
    pub connection: u64,
}
