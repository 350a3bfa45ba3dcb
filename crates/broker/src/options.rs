//! The options of the broker, a topic, a subscription, a consumer.
//!
//! Topic and subscription options are stored in definitions as JSON; unknown keys are kept out, and
//! each new key needs a serde default so that definitions written by older versions still load.

use std::collections::BTreeMap;
use std::sync::Arc;

use cloverleaf_log::{Codec, Durability};
use serde::{Deserialize, Serialize};

use crate::consumer::shared_window::SharedWindow;

/// The promise of an acknowledgement to a producer, whatever the producer asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityMode {
    /// The promise of the producer's protocol (design, section 5).
    #[default]
    Protocol,
    /// Everything is synced to disk before the answer.
    Disk,
    /// Everything is handed to the kernel before the answer, nothing waits for a sync.
    Kernel,
}

impl DurabilityMode {
    /// As the option `durability` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Disk => "disk",
            Self::Kernel => "kernel",
        }
    }

    /// The name that clients are told: that of the class in which a publish is stored for which the
    /// protocol asks `asked`.
    pub fn class_name(self, asked: Durability) -> &'static str {
        match self.class(asked) {
            Durability::None => "none",
            Durability::Kernel => "kernel",
            Durability::Disk => "disk",
        }
    }

    /// The class in which a publish is stored for which the protocol asks `asked`.
    pub fn class(self, asked: Durability) -> Durability {
        match self {
            Self::Protocol => asked,
            Self::Disk => Durability::Disk,
            Self::Kernel => Durability::Kernel,
        }
    }
}

/// Broker-wide settings.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    /// The promise of acknowledgements where a topic says nothing else.
    pub durability: DurabilityMode,
    /// Most bytes accepted from producers and not yet written; beyond, publishing waits.
    pub unwritten_bytes_max: u64,
    /// Most bytes that wait for one consumer's connection to take them.
    pub outbox_bytes_max: u32,
    /// Most bytes read from the log at once for one subscription.
    pub read_bytes_max: usize,
    /// How long acknowledgements may stay in memory alone.
    pub progress_interval_ms: u64,
    /// A log segment that has reached this size is sealed and the next one begun.
    pub segment_bytes: u64,
    /// Most messages that may wait for a delayed publish.
    pub scheduled_messages_max: u64,
    /// How often retention is looked after.
    pub retention_interval_ms: u64,
    /// The retention that a reader by offset adds to topics whose messages go once they are
    /// consumed: nothing younger than this goes.
    pub reader_retention_ms: u64,
    /// Largest compressed batch that is inflated for subscriptions and checks, in bytes when
    /// inflated; the messages of a larger one are skipped.
    pub inflated_batch_bytes_max: usize,
    /// Bytes of inflated batches that are remembered, all topics together.
    pub inflated_cache_bytes_max: usize,
    /// How often topics that are compacted are looked at.
    pub compaction_interval_ms: u64,
    /// Most partitions of all topics together; each costs memory, whether or not it is used.
    pub partitions_max: u32,
    /// Folders that nobody can name are taken in as topics of made-up names, where damage has taken
    /// their names; without this they are a reason not to open.
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
            // A reader that comes once a day still finds everything.
            reader_retention_ms: 24 * 3_600_000,
            // Sixty times the largest batch that Kafka takes by default.
            inflated_batch_bytes_max: 64 << 20,
            inflated_cache_bytes_max: 16 << 20,
            // Kafka's `log.cleaner.backoff.ms`.
            compaction_interval_ms: 15_000,
            partitions_max: 100_000,
            repair: false,
        }
    }
}

/// The retention of a topic: which messages go after they have been stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Messages older than this go.
    pub ms: Option<u64>,
    /// The oldest segments go when a partition is larger than this.
    pub bytes: Option<u64>,
    /// Segments go that every subscription and every committed group has passed. With neither, none
    /// goes.
    pub consumed: bool,
    /// `consumed` removes nothing younger than this. Set when a reader by offset appears, who would
    /// else find nothing that others have consumed.
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

/// How a topic is compacted: of the messages with one key the newest stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compaction {
    /// A message without a body (a tombstone) stays so long, for readers to see it
    /// (`delete.retention.ms`).
    pub delete_retention_ms: u64,
    /// Messages younger than this are left alone (`min.compaction.lag.ms`).
    pub min_lag_ms: u64,
    /// Messages older than this make compaction due, whatever the ratio
    /// (`max.compaction.lag.ms`).
    pub max_lag_ms: Option<u64>,
    /// Compaction is due when so much of a partition, in thousandths of its bytes, came since the
    /// last time (`min.cleanable.dirty.ratio`).
    pub dirty_ratio_permille: u32,
    /// Batches that are written anew become so (`compression.type`); `None`: they stay as they
    /// came.
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

/// How a topic is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicOptions {
    /// Number of partitions.
    pub partitions: u32,
    /// Lives in this process only: gone after a restart, deleted with its last subscription.
    pub ephemeral: bool,
    /// The promise of acknowledgements, if it differs from the broker's.
    pub durability: Option<DurabilityMode>,
    /// When stored messages go.
    pub retention: Retention,
    /// Not listed to users.
    pub hidden: bool,
    /// Of the messages with one key only the newest stays; each must have one.
    pub compaction: Option<Compaction>,
    /// A log segment that has reached this size is sealed, if it differs from the broker's.
    pub segment_bytes: Option<u64>,
    /// A log segment whose first message is older than this is sealed.
    pub segment_ms: Option<u64>,
    /// Messages carry the time at which they were stored, not the producer's.
    pub append_time: bool,
    /// Largest batch that producers may store, header included.
    pub batch_bytes_max: Option<u64>,
    /// A producer's timestamp may lie so far in the past.
    pub timestamp_before_max_ms: Option<u64>,
    /// A producer's timestamp may lie so far in the future.
    pub timestamp_after_max_ms: Option<u64>,
    /// A protocol's own settings as the user gave them. The broker keeps them and knows none.
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

/// Where a new subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartAt {
    /// The topic's first subscription takes the whole backlog, a later one starts at the end (NSQ).
    #[default]
    Delivery,
    /// The oldest message that is stored.
    Earliest,
    /// Messages published from now on.
    Latest,
}

/// The order among partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartitionOrder {
    /// In turn.
    #[default]
    RoundRobin,
    /// The highest partition first: each priority level of a queue is a partition.
    HighestFirst,
}

/// The reaction when a subscription holds as many messages that are not in flight as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The oldest message goes (to the dead-letter topic, if there is one).
    #[default]
    DropHead,
    /// New messages are refused.
    RejectPublish,
}

/// Which of the consumers with room gets the next message. Priority goes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dispatch {
    /// The one with the fewest messages in flight, in turn where that is a tie.
    #[default]
    LeastLoaded,
    /// The one that was served last until its window is used up, then the next one. For programs
    /// whose consumers share one pool of workers.
    FillFirst,
}

/// How a subscription delivers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubscriptionOptions {
    /// Where it begins.
    pub start: StartAt,
    /// Gone with its last consumer, and after a restart.
    pub ephemeral: bool,
    /// Deliveries after which a message is dead; 0: never.
    pub attempts_max: u16,
    /// The topic to which dead messages go; without one they are dropped.
    pub dead_letter: Option<String>,
    /// Most messages that wait; more is handled by `overflow`.
    pub length_max: Option<u64>,
    /// Most bytes of bodies that wait, keys and headers not counted; more is handled by `overflow`.
    /// Exact, but for a message that comes back: it counts as the average of those that it was
    /// delivered with.
    pub length_bytes_max: Option<u64>,
    /// The reaction beyond `length_max` and `length_bytes_max`.
    pub overflow: Overflow,
    /// Only the consumer that attached first gets messages; when it leaves, the next one by
    /// priority and then by arrival takes over.
    pub single_active: bool,
    /// With `single_active`: one of a higher priority takes over, too, once all that the active one
    /// holds is settled; until then it gets nothing more.
    pub active_yields: bool,
    /// Most consumers at once; 0: no limit.
    pub consumers_max: u32,
    /// The order among partitions.
    pub order: PartitionOrder,
    /// Which consumer gets the next message. As it was when the subscription was made:
    /// [`crate::Subscription::dispatch_policy`] says how it is now.
    pub dispatch: Dispatch,
    /// Messages carry an expiry header that is honoured.
    pub expires: bool,
    /// Messages expire so long after their timestamp, or when their expiry header says, whichever
    /// is sooner. One without a timestamp does not.
    pub message_ttl_ms: Option<u64>,
    /// Only messages whose `nats-subject` header matches one of these patterns (`*` one token, `>`
    /// the rest); empty: all.
    pub subjects: Vec<String>,
    /// Messages wait for the time in their schedule header. For the broker's own schedule topic.
    pub scheduled: bool,
}

/// How one consumer wants its messages.
#[derive(Debug, Clone, Default)]
pub struct ConsumerOptions {
    /// After this long without an answer a message is delivered again; `None`: never.
    pub ack_wait_ms: Option<u64>,
    /// [`crate::Consumer::extend`] cannot hold a message longer than this after its delivery.
    pub ack_wait_max_ms: Option<u64>,
    /// Consumers with a higher priority get messages first.
    pub priority: i32,
    /// The only consumer there may be.
    pub exclusive: bool,
    /// Messages in flight to this consumer count, together with those of others (of any
    /// subscription), against this window too. Those of one with `auto_ack` do not count, and come
    /// while there is room; one with `pull` is not concerned.
    pub shared_window: Option<Arc<SharedWindow>>,
    /// Messages are settled as soon as the consumer has taken them.
    pub auto_ack: bool,
    /// Gets nothing by itself, only with [`crate::Consumer::poll_take`], whatever its window is. It
    /// does not count as a consumer: no `exclusive`, `single_active` or `consumers_max` is in its
    /// way, nor is it in theirs.
    pub pull: bool,
    /// Shown in statistics.
    pub label: String,
    /// The number of its connection, as telemetry has it; 0: it has none.
    pub connection: u64,
}
