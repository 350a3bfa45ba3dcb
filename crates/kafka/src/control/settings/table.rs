//! The table of Kafka 4's topic settings, and how each is handled here.
//!
//! The behaviour, the documentation in DescribeConfigs and `docs/kafka-settings.md` are derived
//! from it.
//!
//! Source: `LogConfig`, `TopicConfig` and `ServerTopicConfigSynonyms` of Apache Kafka.

use cloverleaf_broker::BrokerOptions;

use crate::options::KafkaOptions;

use super::kind::SettingType;

/// One topic setting.
#[derive(Debug)]
pub(crate) struct TopicSetting {
    pub(crate) name: &'static str,
    pub(crate) kind: SettingType,
    /// The default: the value for topics on which the setting is not set.
    pub(crate) default: DefaultValue,
    /// The broker setting that has the default.
    pub(crate) broker_name: Option<&'static str>,
    pub(crate) handling: SettingHandling,
    /// Its meaning, in a sentence or two.
    pub(crate) doc: &'static str,
}

/// Where a default comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DefaultValue {
    Is(&'static str),
    Of(fn(&KafkaOptions, &BrokerOptions) -> String),
}

impl DefaultValue {
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
pub(crate) enum SettingHandling {
    /// It does what it does in Kafka.
    Honoured(OptionField),
    /// It is accepted and shown as given, without an effect; the sentence says why.
    Accepted(&'static str),
    /// It is about replicas, of which there is one: accepted, shown as given, and logged once.
    OneReplica(&'static str),
    /// Only this value is accepted; the sentence says why.
    Only(&'static str, &'static str),
}

/// The option that a setting changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OptionField {
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

const FOREVER: DefaultValue = DefaultValue::Is("9223372036854775807");
const WEEK_MS: DefaultValue = DefaultValue::Is("604800000");

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
pub(crate) static SETTINGS: &[TopicSetting] = &[
    TopicSetting {
        name: "cleanup.policy",
        kind: SettingType::Words(&["compact", "delete"]),
        default: DefaultValue::Is("delete"),
        broker_name: Some("log.cleanup.policy"),
        handling: SettingHandling::Honoured(OptionField::CleanupPolicy),
        doc: "delete: messages go by retention.ms and retention.bytes. compact: of the messages \
            with one key the newest stays. Both can be given.",
    },
    TopicSetting {
        name: "compression.gzip.level",
        kind: SettingType::Int(-1, 9),
        default: DefaultValue::Is("-1"),
        broker_name: Some("compression.gzip.level"),
        handling: SettingHandling::Accepted(LEVEL),
        doc: "Level with which the broker compresses with gzip.",
    },
    TopicSetting {
        name: "compression.lz4.level",
        kind: SettingType::Int(1, 17),
        default: DefaultValue::Is("9"),
        broker_name: Some("compression.lz4.level"),
        handling: SettingHandling::Accepted(LEVEL),
        doc: "Level with which the broker compresses with lz4.",
    },
    TopicSetting {
        name: "compression.type",
        kind: SettingType::Word(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        default: DefaultValue::Is("producer"),
        broker_name: Some("compression.type"),
        handling: SettingHandling::Accepted(STORED_AS_SENT),
        doc: "How stored batches are compressed.",
    },
    TopicSetting {
        name: "compression.zstd.level",
        kind: SettingType::Int(-131_072, 22),
        default: DefaultValue::Is("3"),
        broker_name: Some("compression.zstd.level"),
        handling: SettingHandling::Accepted(LEVEL),
        doc: "Level with which the broker compresses with zstd.",
    },
    TopicSetting {
        name: "delete.retention.ms",
        kind: SettingType::Long(0),
        default: DefaultValue::Is("86400000"),
        broker_name: Some("log.cleaner.delete.retention.ms"),
        handling: SettingHandling::Honoured(OptionField::DeleteRetentionMs),
        doc: "How long a compacted topic keeps tombstones, in milliseconds.",
    },
    TopicSetting {
        name: "file.delete.delay.ms",
        kind: SettingType::Long(0),
        default: DefaultValue::Is("60000"),
        broker_name: Some("log.segment.delete.delay.ms"),
        handling: SettingHandling::Accepted(
            "Files are deleted at once; a reader that has one open reads it to its end all the \
             same.",
        ),
        doc: "How long the file of a deleted segment stays, in milliseconds.",
    },
    TopicSetting {
        name: "flush.messages",
        kind: SettingType::Long(1),
        default: FOREVER,
        broker_name: Some("log.flush.interval.messages"),
        handling: SettingHandling::Honoured(OptionField::FlushMessages),
        doc: "Messages after which the log is synced to the disk. Any value but the default has \
            every message synced before it is answered; acks=all is answered after its sync in \
            any case.",
    },
    TopicSetting {
        name: "flush.ms",
        kind: SettingType::Long(0),
        default: FOREVER,
        broker_name: Some("log.flush.interval.ms"),
        handling: SettingHandling::Honoured(OptionField::FlushMs),
        doc: "Milliseconds after which the log is synced to the disk. Everything is synced once a \
            second anyway; a shorter time has every message synced before it is answered.",
    },
    TopicSetting {
        name: "follower.replication.throttled.replicas",
        kind: SettingType::Replicas,
        default: DefaultValue::Is(""),
        broker_name: None,
        handling: SettingHandling::Accepted(ONE_REPLICA),
        doc: "Followers whose copying is throttled.",
    },
    TopicSetting {
        name: "index.interval.bytes",
        kind: SettingType::Int(0, i32::MAX),
        default: DefaultValue::Is("4096"),
        broker_name: Some("log.index.interval.bytes"),
        handling: SettingHandling::Accepted(
            "The index has an entry for every 32 KiB of the log; no reader sees the difference.",
        ),
        doc: "Bytes between two entries of the offset index.",
    },
    TopicSetting {
        name: "leader.replication.throttled.replicas",
        kind: SettingType::Replicas,
        default: DefaultValue::Is(""),
        broker_name: None,
        handling: SettingHandling::Accepted(ONE_REPLICA),
        doc: "Leaders whose copying is throttled.",
    },
    TopicSetting {
        name: "local.retention.bytes",
        kind: SettingType::Long(-2),
        default: DefaultValue::Is("-2"),
        broker_name: Some("log.local.retention.bytes"),
        handling: SettingHandling::Accepted(NO_TIERS),
        doc: "Bytes that stay local when older ones lie in a remote tier.",
    },
    TopicSetting {
        name: "local.retention.ms",
        kind: SettingType::Long(-2),
        default: DefaultValue::Is("-2"),
        broker_name: Some("log.local.retention.ms"),
        handling: SettingHandling::Accepted(NO_TIERS),
        doc: "Milliseconds for which messages stay local when older ones lie in a remote tier.",
    },
    TopicSetting {
        name: "max.compaction.lag.ms",
        kind: SettingType::Long(1),
        default: FOREVER,
        broker_name: Some("log.cleaner.max.compaction.lag.ms"),
        handling: SettingHandling::Honoured(OptionField::MaxLagMs),
        doc: "Longest time for which a message stays out of compaction, in milliseconds.",
    },
    TopicSetting {
        name: "max.message.bytes",
        kind: SettingType::Int(0, i32::MAX),
        default: DefaultValue::Of(|kafka, _| kafka.batch_bytes_max.to_string()),
        broker_name: Some("message.max.bytes"),
        handling: SettingHandling::Honoured(OptionField::BatchBytesMax),
        doc: "Largest batch that a producer may store, in bytes as it is sent.",
    },
    TopicSetting {
        name: "message.timestamp.after.max.ms",
        kind: SettingType::Long(0),
        default: DefaultValue::Is("3600000"),
        broker_name: Some("log.message.timestamp.after.max.ms"),
        handling: SettingHandling::Honoured(OptionField::TimestampAfterMaxMs),
        doc: "How far a producer's timestamp may lie in the future, in milliseconds.",
    },
    TopicSetting {
        name: "message.timestamp.before.max.ms",
        kind: SettingType::Long(0),
        default: FOREVER,
        broker_name: Some("log.message.timestamp.before.max.ms"),
        handling: SettingHandling::Honoured(OptionField::TimestampBeforeMaxMs),
        doc: "How far a producer's timestamp may lie in the past, in milliseconds.",
    },
    TopicSetting {
        name: "message.timestamp.type",
        kind: SettingType::Word(&["CreateTime", "LogAppendTime"]),
        default: DefaultValue::Is("CreateTime"),
        broker_name: Some("log.message.timestamp.type"),
        handling: SettingHandling::Honoured(OptionField::TimestampType),
        doc: "Whether messages carry the producer's time or the time at which they were stored.",
    },
    TopicSetting {
        name: "min.cleanable.dirty.ratio",
        kind: SettingType::Ratio,
        default: DefaultValue::Is("0.5"),
        broker_name: Some("log.cleaner.min.cleanable.ratio"),
        handling: SettingHandling::Honoured(OptionField::DirtyRatio),
        doc: "Compaction is due when this part of a partition was not compacted yet.",
    },
    TopicSetting {
        name: "min.compaction.lag.ms",
        kind: SettingType::Long(0),
        default: DefaultValue::Is("0"),
        broker_name: Some("log.cleaner.min.compaction.lag.ms"),
        handling: SettingHandling::Honoured(OptionField::MinLagMs),
        doc: "Shortest time for which a message stays out of compaction, in milliseconds.",
    },
    TopicSetting {
        name: "min.insync.replicas",
        kind: SettingType::Int(1, i32::MAX),
        default: DefaultValue::Is("1"),
        broker_name: Some("min.insync.replicas"),
        handling: SettingHandling::OneReplica(
            "There is one replica; acks=all is answered once it has synced to its disk.",
        ),
        doc: "Replicas that must have a message before acks=all is answered.",
    },
    TopicSetting {
        name: "preallocate",
        kind: SettingType::Bool,
        default: DefaultValue::Is("false"),
        broker_name: Some("log.preallocate"),
        handling: SettingHandling::Accepted("Segments are always preallocated, in steps."),
        doc: "Whether a new segment reserves its whole size.",
    },
    TopicSetting {
        name: "remote.log.copy.disable",
        kind: SettingType::Bool,
        default: DefaultValue::Is("false"),
        broker_name: None,
        handling: SettingHandling::Accepted(NO_TIERS),
        doc: "Whether nothing more is copied to a remote tier.",
    },
    TopicSetting {
        name: "remote.log.delete.on.disable",
        kind: SettingType::Bool,
        default: DefaultValue::Is("false"),
        broker_name: None,
        handling: SettingHandling::Accepted(NO_TIERS),
        doc: "Whether the remote tier is emptied when it is switched off.",
    },
    TopicSetting {
        name: "remote.storage.enable",
        kind: SettingType::Bool,
        default: DefaultValue::Is("false"),
        broker_name: None,
        handling: SettingHandling::Only("false", NO_TIERS),
        doc: "Whether older segments go to a remote tier.",
    },
    TopicSetting {
        name: "retention.bytes",
        kind: SettingType::Long(i64::MIN),
        default: DefaultValue::Of(|kafka, _| or_minus_one(kafka.retention_bytes)),
        broker_name: Some("log.retention.bytes"),
        handling: SettingHandling::Honoured(OptionField::RetentionBytes),
        doc: "Size of a partition in bytes beyond which its oldest segments go; -1: no limit.",
    },
    TopicSetting {
        name: "retention.ms",
        kind: SettingType::Long(-1),
        default: DefaultValue::Of(|kafka, _| or_minus_one(kafka.retention_ms)),
        broker_name: Some("log.retention.ms"),
        handling: SettingHandling::Honoured(OptionField::RetentionMs),
        doc: "Age in milliseconds beyond which segments go; -1: no limit.",
    },
    TopicSetting {
        name: "segment.bytes",
        kind: SettingType::Int(14, i32::MAX),
        default: DefaultValue::Of(|_, broker| broker.segment_bytes.to_string()),
        broker_name: Some("log.segment.bytes"),
        handling: SettingHandling::Honoured(OptionField::SegmentBytes),
        doc: "Size in bytes at which a segment is sealed and the next one begun. Kafka 4 wants 1 \
            MiB at least; smaller ones are taken here as older versions do.",
    },
    TopicSetting {
        name: "segment.index.bytes",
        kind: SettingType::Int(4, i32::MAX),
        default: DefaultValue::Is("10485760"),
        broker_name: Some("log.index.size.max.bytes"),
        handling: SettingHandling::Accepted(
            "The index of a segment grows with it and has no limit.",
        ),
        doc: "Largest index of a segment in bytes.",
    },
    TopicSetting {
        name: "segment.jitter.ms",
        kind: SettingType::Long(0),
        default: DefaultValue::Is("0"),
        broker_name: Some("log.roll.jitter.ms"),
        handling: SettingHandling::Accepted(
            "Sealing a segment delays nobody here, so there is no herd to spread.",
        ),
        doc: "Random time by which segment.ms is shortened, in milliseconds.",
    },
    TopicSetting {
        name: "segment.ms",
        kind: SettingType::Long(1),
        default: WEEK_MS,
        broker_name: Some("log.roll.ms"),
        handling: SettingHandling::Honoured(OptionField::SegmentMs),
        doc: "Age in milliseconds at which a segment is sealed and the next one begun.",
    },
    TopicSetting {
        name: "unclean.leader.election.enable",
        kind: SettingType::Bool,
        default: DefaultValue::Is("false"),
        broker_name: Some("unclean.leader.election.enable"),
        handling: SettingHandling::Accepted(ONE_REPLICA),
        doc: "Whether a replica that is behind may become leader.",
    },
];

/// The setting of that name.
pub(crate) fn find(name: &str) -> Option<&'static TopicSetting> {
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
                .default
                .text(&KafkaOptions::default(), &BrokerOptions::default());
            let kept = setting.kind.check(&text).unwrap();
            assert_eq!(kept, text, "{}", setting.name);
            if let SettingHandling::Only(value, _) = setting.handling {
                assert_eq!(value, text);
            }
        }
        assert!(find("message.format.version").is_none());
    }
}
