//! Applies settings to a topic's options, and reads settings from them.

use std::collections::BTreeMap;

use cloverleaf_broker::{Compaction, Compression, DurabilityMode, Retention, TopicOptions};

use crate::context::KafkaContext;

use super::SettingRefused;
use super::table::{OptionField, SETTINGS, SettingHandling, TopicSetting, find};

/// The interval at which the log is synced in any case, in milliseconds
/// (`LogOptions::sync_interval_ms`).
const SYNC_INTERVAL_MS: i64 = 1_000;

/// The change of one setting to a value, or (`None`) to its default.
#[derive(Debug, Clone)]
pub(crate) struct SettingChange {
    pub(crate) setting: &'static TopicSetting,
    pub(crate) value: Option<String>,
}

/// The value of `cleanup.policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CleanupPolicy {
    delete: bool,
    compact: bool,
}

impl CleanupPolicy {
    fn of(text: &str) -> Self {
        let has = |word| text.split(',').any(|given| given == word);
        Self {
            delete: has("delete"),
            compact: has("compact"),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self { compact: false, .. } => "delete",
            Self { delete: false, .. } => "compact",
            _ => "compact,delete",
        }
    }

    /// The current policy of a topic. If the setting is not set, it follows from the options.
    fn current(options: &TopicOptions) -> Self {
        if let Some(text) = options.settings.get("cleanup.policy") {
            return Self::of(text);
        }
        let Retention {
            ms,
            bytes,
            consumed,
            ..
        } = options.retention;
        let compact = options.compaction.is_some();
        Self {
            delete: !compact || ms.is_some() || bytes.is_some() || consumed,
            compact,
        }
    }
}

/// The options of a topic that is created through Kafka without settings.
pub(crate) fn defaults(context: &KafkaContext, partitions: u32) -> TopicOptions {
    let options = &context.options;
    let mut topic = TopicOptions {
        partitions,
        retention: Retention {
            ms: options.retention_ms,
            bytes: options.retention_bytes,
            ..Retention::default()
        },
        ..TopicOptions::default()
    };
    let fields = [
        OptionField::SegmentMs,
        OptionField::TimestampBeforeMaxMs,
        OptionField::TimestampAfterMaxMs,
    ];
    let mut changes = Vec::new();
    for setting in SETTINGS {
        let SettingHandling::Honoured(field) = setting.handling else {
            continue;
        };
        if setting.dynamic_text(context).is_some() {
            let value = None;
            changes.push(SettingChange { setting, value });
        } else if fields.contains(&field) {
            set(&mut topic, field, &setting.default_text(context), false);
        }
    }
    if !changes.is_empty()
        && let Err(error) = change(context, &mut topic, &changes)
    {
        tracing::error!(%error, "a default of topics that was changed is none any more");
    }
    topic
}

/// Validates a setting that a client sends; `None` stands for the default.
pub(crate) fn check(name: &str, value: Option<&str>) -> Result<SettingChange, SettingRefused> {
    let Some(setting) = find(name) else {
        let name = name.escape_debug();
        return Err(SettingRefused {
            reason: format!("Unknown topic config name: {name}"),
        });
    };
    let value = value.map(|value| setting.check(value)).transpose()?;
    Ok(SettingChange { setting, value })
}

/// Applies changes to a topic's options. Options that are not named stay, also those that another
/// protocol has set.
pub(crate) fn change(
    context: &KafkaContext,
    options: &mut TopicOptions,
    changes: &[SettingChange],
) -> Result<(), SettingRefused> {
    let before = CleanupPolicy::current(options);
    let changes: BTreeMap<&str, &SettingChange> = changes
        .iter()
        .map(|change| (change.setting.name, change))
        .collect();
    for (name, change) in &changes {
        match &change.value {
            Some(value) => options.settings.insert((*name).to_owned(), value.clone()),
            None => options.settings.remove(*name),
        };
        if let SettingHandling::Honoured(field) = change.setting.handling {
            let default = change.setting.default_text(context);
            let value = change.value.as_deref();
            let is_own = value.is_some() || change.setting.dynamic_text(context).is_some();
            set(options, field, value.unwrap_or(&default), is_own);
        }
    }
    let number = |name: &str| number(context, options, name);
    let lags = ["min.compaction.lag.ms", "max.compaction.lag.ms"].map(number);
    if let Some(reason) = lag_error(lags) {
        return Err(SettingRefused { reason });
    }
    if changes.keys().any(|name| name.starts_with("flush.")) {
        let wants_sync =
            number("flush.messages") < i64::MAX || number("flush.ms") < SYNC_INTERVAL_MS;
        options.durability = wants_sync.then_some(DurabilityMode::Disk);
    }
    let policy = match changes.get("cleanup.policy") {
        Some(SettingChange { setting, value }) => match value {
            Some(text) => CleanupPolicy::of(text),
            None => CleanupPolicy::of(&setting.default_text(context)),
        },
        None => before,
    };
    set_retention(context, options, before, policy, &changes);
    options.compaction = policy.compact.then(|| compaction(context, options));
    Ok(())
}

/// The error if the minimum compaction lag is larger than the maximum: a message would have to be
/// compacted before it may be.
pub(crate) fn lag_error([min_ms, max_ms]: [i64; 2]) -> Option<String> {
    (min_ms > max_ms).then(|| {
        format!("min.compaction.lag.ms ({min_ms}) is larger than max.compaction.lag.ms ({max_ms})")
    })
}

/// Sets the retention limits, which apply only with the policy `delete`.
fn set_retention(
    context: &KafkaContext,
    options: &mut TopicOptions,
    before: CleanupPolicy,
    policy: CleanupPolicy,
    changes: &BTreeMap<&str, &SettingChange>,
) {
    if !policy.delete {
        options.retention = Retention::default();
        return;
    }
    let limit = |name: &str, current: Option<u64>| {
        let is_current = before.delete && !changes.contains_key(name);
        if is_current {
            current
        } else {
            u64::try_from(number(context, options, name)).ok()
        }
    };
    let Retention { ms, bytes, .. } = options.retention;
    let (ms, bytes) = (limit("retention.ms", ms), limit("retention.bytes", bytes));
    // A client that sets a retention expects messages to stay that long, consumed or not.
    let is_asked = ["retention.ms", "retention.bytes"].iter().any(|name| {
        changes
            .get(name)
            .is_some_and(|change| change.value.is_some())
    });
    options.retention.ms = ms;
    options.retention.bytes = bytes;
    options.retention.consumed &= !is_asked && !policy.compact;
}

fn compaction(context: &KafkaContext, options: &TopicOptions) -> Compaction {
    let ms = |name| u64::try_from(number(context, options, name)).unwrap_or(0);
    let ratio = own_or_standard(context, options, "min.cleanable.dirty.ratio");
    let ratio: f64 = ratio.parse().unwrap_or(0.5);
    let max_lag_ms = number(context, options, "max.compaction.lag.ms");
    Compaction {
        delete_retention_ms: ms("delete.retention.ms"),
        min_lag_ms: ms("min.compaction.lag.ms"),
        max_lag_ms: limit_of(max_lag_ms),
        // The ratio lies between 0 and 1.
        dirty_ratio_permille: (ratio * 1000.0).round() as u32,
        compression: match own_or_standard(context, options, "compression.type").as_str() {
            "uncompressed" => Some(Compression::Uncompressed),
            "gzip" => Some(Compression::Gzip),
            "snappy" => Some(Compression::Snappy),
            "lz4" => Some(Compression::Lz4),
            "zstd" => Some(Compression::Zstd),
            _ => None,
        },
    }
}

fn own_or_standard(context: &KafkaContext, options: &TopicOptions, name: &str) -> String {
    let own = options.settings.get(name).cloned();
    own.or_else(|| find(name).map(|setting| setting.default_text(context)))
        .unwrap_or_default()
}

/// The value of a numeric setting, which was validated when it was set.
fn number(context: &KafkaContext, options: &TopicOptions, name: &str) -> i64 {
    own_or_standard(context, options, name)
        .parse()
        .unwrap_or(-1)
}

/// `i64::MAX` means no limit.
fn limit_of(value: i64) -> Option<u64> {
    match value {
        i64::MAX => None,
        _ => u64::try_from(value).ok(),
    }
}

/// Sets one field. Fields of retention, compaction and syncs depend on each other, and [`change`]
/// sets them.
fn set(options: &mut TopicOptions, field: OptionField, value: &str, is_own: bool) {
    let number: i64 = value.parse().unwrap_or(-1);
    let own = || is_own.then(|| u64::try_from(number).ok()).flatten();
    match field {
        OptionField::SegmentBytes => options.segment_bytes = own(),
        OptionField::BatchBytesMax => options.batch_bytes_max = own(),
        OptionField::SegmentMs => options.segment_ms = limit_of(number),
        OptionField::TimestampType => options.append_time = value == "LogAppendTime",
        OptionField::TimestampBeforeMaxMs => options.timestamp_before_max_ms = limit_of(number),
        OptionField::TimestampAfterMaxMs => options.timestamp_after_max_ms = limit_of(number),
        OptionField::CleanupPolicy
        | OptionField::FlushMessages
        | OptionField::FlushMs
        | OptionField::RetentionMs
        | OptionField::RetentionBytes
        | OptionField::DeleteRetentionMs
        | OptionField::MinLagMs
        | OptionField::MaxLagMs
        | OptionField::DirtyRatio => {}
    }
}

/// The value of a field in a topic's options; `None`: it does not apply to the topic, or the topic
/// uses the default.
pub(super) fn read(field: OptionField, options: &TopicOptions) -> Option<String> {
    let policy = CleanupPolicy::current(options);
    let limit = |limit: Option<u64>| match limit {
        Some(limit) => limit.to_string(),
        None => i64::MAX.to_string(),
    };
    let or_minus_one = |value: Option<u64>| match value {
        Some(value) => value.to_string(),
        None => "-1".to_owned(),
    };
    let compaction = options.compaction.as_ref();
    match field {
        OptionField::CleanupPolicy => match options.settings.get("cleanup.policy") {
            Some(_) => None,
            None => Some(policy.text().to_owned()),
        },
        OptionField::RetentionMs if !policy.delete => None,
        OptionField::RetentionMs => Some(or_minus_one(options.retention.ms)),
        OptionField::RetentionBytes if !policy.delete => None,
        OptionField::RetentionBytes => Some(or_minus_one(options.retention.bytes)),
        OptionField::SegmentBytes => options.segment_bytes.map(|bytes| bytes.to_string()),
        OptionField::BatchBytesMax => options.batch_bytes_max.map(|bytes| bytes.to_string()),
        OptionField::SegmentMs => Some(limit(options.segment_ms)),
        OptionField::TimestampType => Some(if options.append_time {
            "LogAppendTime".to_owned()
        } else {
            "CreateTime".to_owned()
        }),
        OptionField::TimestampBeforeMaxMs => Some(limit(options.timestamp_before_max_ms)),
        OptionField::TimestampAfterMaxMs => Some(limit(options.timestamp_after_max_ms)),
        OptionField::DeleteRetentionMs => compaction.map(|c| c.delete_retention_ms.to_string()),
        OptionField::MinLagMs => compaction.map(|c| c.min_lag_ms.to_string()),
        OptionField::MaxLagMs => compaction.map(|c| limit(c.max_lag_ms)),
        OptionField::DirtyRatio | OptionField::FlushMessages | OptionField::FlushMs => None,
    }
}

/// Whether two values of a field are equivalent.
pub(super) fn is_same(field: OptionField, a: &str, b: &str) -> bool {
    match field {
        OptionField::CleanupPolicy => CleanupPolicy::of(a) == CleanupPolicy::of(b),
        _ => a == b,
    }
}

/// Whether the cleanup policy includes `delete`.
pub(crate) fn policy_deletes(options: &TopicOptions) -> bool {
    CleanupPolicy::current(options).delete
}
