//! The table of Kafka 4's topic settings, and how each is handled here.
//!
//! The behaviour, the documentation in DescribeConfigs and `docs/kafka-settings.md` are derived
//! from it.
//!
//! Source: `LogConfig`, `TopicConfig` and `ServerTopicConfigSynonyms` of Apache Kafka.

use cloverleaf_broker::BrokerOptions;

use crate::options::KafkaOptions;

use super::kind::Kind;

/// One topic setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The default: the value for topics on which the setting is not set.
    pub(crate) standard: Standard,
    /// The broker setting that has the default.
    pub(crate) broker_name: Option<&'static str>,
    pub(crate) handling: Handling,
    /// Its meaning, in a sentence or two.
    pub(crate) doc: &'static str,
}

/// Where a default comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Standard {
    Is(&'static str),
    Of(fn(&KafkaOptions, &BrokerOptions) -> String),
}

impl Standard {
    /// The default as text.
    pub(crate) fn text(self, kafka: &KafkaOptions, broker: &BrokerOptions) -> String {
        match self {
            Self::Is(text) => text.to_owned(),
            Self::Of(text) => text(kafka, broker),
        }
    }
}

/// How the broker treats a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// It does what it does in Kafka.
    Honoured(Field),
    /// It is accepted and shown as given, without an effect; the sentence says why.
    Accepted(&'static str),
    /// It is about replicas, of which there is one: accepted, shown as given, and logged once.
    OneReplica(&'static str),
    /// Only this value is accepted; the sentence says why.
    Only(&'static str, &'static str),
}

/// The option that a setting changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    CleanupPolicy,
    RetentionMs,
    RetentionBytes,
    SegmentBytes,
    SegmentMs,
    BatchBytesMax,
    TimestampType,
    TimestampBeforeMaxMs,
    TimestampAfterMaxMs,
    DeleteRetentionMs,
    MinLagMs,
    MaxLagMs,
    DirtyRatio,
    FlushMessages,
    FlushMs,
}

const FOREVER: Standard = Standard::Is("9223372036854775807");
const WEEK_MS: Standard = Standard::Is("604800000");

const NO_TIERS: &str = "There is no tiered storage: all that is stored is local.";
const ONE_REPLICA: &str = "There is one replica, so there is nobody to copy to or to elect.";
const STORED_AS_SENT: &str = "Batches are stored and served as the producer compressed them, which \
    costs the broker nothing and gives the producer's network the same gain: set compression.type \
    in the producer. Where the policy is compact, batches that compaction writes anew become what \
    this says, in the background, unless they would grow beyond 1 MiB by it. A consumer that is \
    too old for zstd (Fetch below version 10) is refused where this is zstd, as in Kafka.";
const LEVEL: &str = "Compaction, which alone compresses anew, takes the default of the format's \
    library.";

pub(super) fn or_minus_one(value: Option<u64>) -> String {
    value.map_or_else(|| "-1".to_owned(), |value| value.to_string())
}

/// All settings, sorted by name.
pub(crate) static SETTINGS: &[Setting] = &[
    Setting {
        name: "cleanup.policy",
        kind: Kind::Words(&["compact", "delete"]),
        standard: Standard::Is("delete"),
        broker_name: Some("log.cleanup.policy"),
        handling: Handling::Honoured(Field::CleanupPolicy),
        doc: "delete: messages go by retention.ms and retention.bytes. compact: of the messages \
            with one key the newest stays. Both can be given.",
    },
    Setting {
        name: "compression.gzip.level",
        kind: Kind::Int(-1, 9),
        standard: Standard::Is("-1"),
        broker_name: Some("compression.gzip.level"),
        handling: Handling::Accepted(LEVEL),
        doc: "Level with which the broker compresses with gzip.",
    },
    Setting {
        name: "compression.lz4.level",
        kind: Kind::Int(1, 17),
        standard: Standard::Is("9"),
        broker_name: Some("compression.lz4.level"),
        handling: Handling::Accepted(LEVEL),
        doc: "Level with which the broker compresses with lz4.",
    },
    Setting {
        name: "compression.type",
        kind: Kind::Word(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        standard: Standard::Is("producer"),
        broker_name: Some("compression.type"),
        handling: Handling::Accepted(STORED_AS_SENT),
        doc: "How stored batches are compressed.",
    },
    Setting {
        name: "compression.zstd.level",
        kind: Kind::Int(-131_072, 22),
        standard: Standard::Is("3"),
        broker_name: Some("compression.zstd.level"),
        handling: Handling::Accepted(LEVEL),
        doc: "Level with which the broker compresses with zstd.",
    },
    Setting {
        name: "delete.retention.ms",
        kind: Kind::Long(0),
        standard: Standard::Is("86400000"),
        broker_name: Some("log.cleaner.delete.retention.ms"),
        handling: Handling::Honoured(Field::DeleteRetentionMs),
        doc: "How long a compacted topic keeps tombstones, in milliseconds.",
    },
    Setting {
        name: "file.delete.delay.ms",
        kind: Kind::Long(0),
        standard: Standard::Is("60000"),
        broker_name: Some("log.segment.delete.delay.ms"),
        handling: Handling::Accepted(
            "Files are deleted at once; a reader that has one open reads it to its end all the \
             same.",
        ),
        doc: "How long the file of a deleted segment stays, in milliseconds.",
    },
    Setting {
        name: "flush.messages",
        kind: Kind::Long(1),
        standard: FOREVER,
        broker_name: Some("log.flush.interval.messages"),
        handling: Handling::Honoured(Field::FlushMessages),
        doc: "Messages after which the log is synced to the disk. Any value but the default has \
            every message synced before it is answered; acks=all is answered after its sync in \
            any case.",
    },
    Setting {
        name: "flush.ms",
        kind: Kind::Long(0),
        standard: FOREVER,
        broker_name: Some("log.flush.interval.ms"),
        handling: Handling::Honoured(Field::FlushMs),
        doc: "Milliseconds after which the log is synced to the disk. Everything is synced once a \
            second anyway; a shorter time has every message synced before it is answered.",
    },
    Setting {
        name: "follower.replication.throttled.replicas",
        kind: Kind::Replicas,
        standard: Standard::Is(""),
        broker_name: None,
        handling: Handling::Accepted(ONE_REPLICA),
        doc: "Followers whose copying is throttled.",
    },
    Setting {
        name: "index.interval.bytes",
        kind: Kind::Int(0, i32::MAX),
        standard: Standard::Is("4096"),
        broker_name: Some("log.index.interval.bytes"),
        handling: Handling::Accepted(
            "The index has an entry for every 32 KiB of the log; no reader sees the difference.",
        ),
        doc: "Bytes between two entries of the offset index.",
    },
    Setting {
        name: "leader.replication.throttled.replicas",
        kind: Kind::Replicas,
        standard: Standard::Is(""),
        broker_name: None,
        handling: Handling::Accepted(ONE_REPLICA),
        doc: "Leaders whose copying is throttled.",
    },
    Setting {
        name: "local.retention.bytes",
        kind: Kind::Long(-2),
        standard: Standard::Is("-2"),
        broker_name: Some("log.local.retention.bytes"),
        handling: Handling::Accepted(NO_TIERS),
        doc: "Bytes that stay local when older ones lie in a remote tier.",
    },
    Setting {
        name: "local.retention.ms",
        kind: Kind::Long(-2),
        standard: Standard::Is("-2"),
        broker_name: Some("log.local.retention.ms"),
        handling: Handling::Accepted(NO_TIERS),
        doc: "Milliseconds for which messages stay local when older ones lie in a remote tier.",
    },
    Setting {
        name: "max.compaction.lag.ms",
        kind: Kind::Long(1),
        standard: FOREVER,
        broker_name: Some("log.cleaner.max.compaction.lag.ms"),
        handling: Handling::Honoured(Field::MaxLagMs),
        doc: "Longest time for which a message stays out of compaction, in milliseconds.",
    },
    Setting {
        name: "max.message.bytes",
        kind: Kind::Int(0, i32::MAX),
        standard: Standard::Of(|kafka, _| kafka.batch_bytes_max.to_string()),
        broker_name: Some("message.max.bytes"),
        handling: Handling::Honoured(Field::BatchBytesMax),
        doc: "Largest batch that a producer may store, in bytes as it is sent.",
    },
    Setting {
        name: "message.timestamp.after.max.ms",
        kind: Kind::Long(0),
        standard: Standard::Is("3600000"),
        broker_name: Some("log.message.timestamp.after.max.ms"),
        handling: Handling::Honoured(Field::TimestampAfterMaxMs),
        doc: "How far a producer's timestamp may lie in the future, in milliseconds.",
    },
    Setting {
        name: "message.timestamp.before.max.ms",
        kind: Kind::Long(0),
        standard: FOREVER,
        broker_name: Some("log.message.timestamp.before.max.ms"),
        handling: Handling::Honoured(Field::TimestampBeforeMaxMs),
        doc: "How far a producer's timestamp may lie in the past, in milliseconds.",
    },
    Setting {
        name: "message.timestamp.type",
        kind: Kind::Word(&["CreateTime", "LogAppendTime"]),
        standard: Standard::Is("CreateTime"),
        broker_name: Some("log.message.timestamp.type"),
        handling: Handling::Honoured(Field::TimestampType),
        doc: "Whether messages carry the producer's time or the time at which they were stored.",
    },
    Setting {
        name: "min.cleanable.dirty.ratio",
        kind: Kind::Ratio,
        standard: Standard::Is("0.5"),
        broker_name: Some("log.cleaner.min.cleanable.ratio"),
        handling: Handling::Honoured(Field::DirtyRatio),
        doc: "Compaction is due when this part of a partition was not compacted yet.",
    },
    Setting {
        name: "min.compaction.lag.ms",
        kind: Kind::Long(0),
        standard: Standard::Is("0"),
        broker_name: Some("log.cleaner.min.compaction.lag.ms"),
        handling: Handling::Honoured(Field::MinLagMs),
        doc: "Shortest time for which a message stays out of compaction, in milliseconds.",
    },
    Setting {
        name: "min.insync.replicas",
        kind: Kind::Int(1, i32::MAX),
        standard: Standard::Is("1"),
        broker_name: Some("min.insync.replicas"),
        handling: Handling::OneReplica(
            "There is one replica; acks=all is answered once it has synced to its disk.",
        ),
        doc: "Replicas that must have a message before acks=all is answered.",
    },
    Setting {
        name: "preallocate",
        kind: Kind::Bool,
        standard: Standard::Is("false"),
        broker_name: Some("log.preallocate"),
        handling: Handling::Accepted("Segments are always preallocated, in steps."),
        doc: "Whether a new segment reserves its whole size.",
    },
    Setting {
        name: "remote.log.copy.disable",
        kind: Kind::Bool,
        standard: Standard::Is("false"),
        broker_name: None,
        handling: Handling::Accepted(NO_TIERS),
        doc: "Whether nothing more is copied to a remote tier.",
    },
    Setting {
        name: "remote.log.delete.on.disable",
        kind: Kind::Bool,
        standard: Standard::Is("false"),
        broker_name: None,
        handling: Handling::Accepted(NO_TIERS),
        doc: "Whether the remote tier is emptied when it is switched off.",
    },
    Setting {
        name: "remote.storage.enable",
        kind: Kind::Bool,
        standard: Standard::Is("false"),
        broker_name: None,
        handling: Handling::Only("false", NO_TIERS),
        doc: "Whether older segments go to a remote tier.",
    },
    Setting {
        name: "retention.bytes",
        kind: Kind::Long(i64::MIN),
        standard: Standard::Of(|kafka, _| or_minus_one(kafka.retention_bytes)),
        broker_name: Some("log.retention.bytes"),
        handling: Handling::Honoured(Field::RetentionBytes),
        doc: "Size of a partition in bytes beyond which its oldest segments go; -1: no limit.",
    },
    Setting {
        name: "retention.ms",
        kind: Kind::Long(-1),
        standard: Standard::Of(|kafka, _| or_minus_one(kafka.retention_ms)),
        broker_name: Some("log.retention.ms"),
        handling: Handling::Honoured(Field::RetentionMs),
        doc: "Age in milliseconds beyond which segments go; -1: no limit.",
    },
    Setting {
        name: "segment.bytes",
        kind: Kind::Int(14, i32::MAX),
        standard: Standard::Of(|_, broker| broker.segment_bytes.to_string()),
        broker_name: Some("log.segment.bytes"),
        handling: Handling::Honoured(Field::SegmentBytes),
        doc: "Size in bytes at which a segment is sealed and the next one begun. Kafka 4 wants 1 \
            MiB at least; smaller ones are taken here as older versions do.",
    },
    Setting {
        name: "segment.index.bytes",
        kind: Kind::Int(4, i32::MAX),
        standard: Standard::Is("10485760"),
        broker_name: Some("log.index.size.max.bytes"),
        handling: Handling::Accepted("The index of a segment grows with it and has no limit."),
        doc: "Largest index of a segment in bytes.",
    },
    Setting {
        name: "segment.jitter.ms",
        kind: Kind::Long(0),
        standard: Standard::Is("0"),
        broker_name: Some("log.roll.jitter.ms"),
        handling: Handling::Accepted(
            "Sealing a segment delays nobody here, so there is no herd to spread.",
        ),
        doc: "Random time by which segment.ms is shortened, in milliseconds.",
    },
    Setting {
        name: "segment.ms",
        kind: Kind::Long(1),
        standard: WEEK_MS,
        broker_name: Some("log.roll.ms"),
        handling: Handling::Honoured(Field::SegmentMs),
        doc: "Age in milliseconds at which a segment is sealed and the next one begun.",
    },
    Setting {
        name: "unclean.leader.election.enable",
        kind: Kind::Bool,
        standard: Standard::Is("false"),
        broker_name: Some("unclean.leader.election.enable"),
        handling: Handling::Accepted(ONE_REPLICA),
        doc: "Whether a replica that is behind may become leader.",
    },
];

/// The setting of that name.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    let at = SETTINGS.binary_search_by(|setting| setting.name.cmp(name));
    at.ok().and_then(|at| SETTINGS.get(at))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_are_in_order_and_defaults_are_valid() {
        assert!(SETTINGS.is_sorted_by(|a, b| a.name < b.name));
        for setting in SETTINGS {
            assert!(std::ptr::eq(find(setting.name).unwrap(), setting));
            let text = setting
                .standard
                .text(&KafkaOptions::default(), &BrokerOptions::default());
            let kept = setting.kind.check(&text).unwrap();
            assert_eq!(kept, text, "{}", setting.name);
            if let Handling::Only(value, _) = setting.handling {
                assert_eq!(value, text);
            }
        }
        assert!(find("message.format.version").is_none());
    }
}
