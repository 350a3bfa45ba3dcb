//! The broker's own settings that Kafka's tools read or change. The defaults of topics, which can
//! be changed by AlterConfigs, are in [`super::SETTINGS`].

use cloverleaf_broker::BrokerOptions;
use cloverleaf_log::Durability;

use crate::options::KafkaOptions;

use super::kind::SettingType;
use super::table::{DefaultValue, or_minus_one};

/// One setting of the broker, or of a group.
pub(crate) struct BrokerSetting {
    pub(crate) name: &'static str,
    pub(crate) kind: SettingType,
    pub(crate) value: DefaultValue,
    pub(crate) doc: &'static str,
}

const NUMBER: SettingType = SettingType::Long(i64::MIN);
const THREADS: SettingType = SettingType::Int(1, i32::MAX);

fn advertised(kafka: &KafkaOptions, _: &BrokerOptions) -> String {
    let listener = |scheme: &str, address: &Option<(String, u16)>| {
        let (host, port) = address.as_ref()?;
        Some(if host.contains(':') {
            format!("{scheme}://[{host}]:{port}")
        } else {
            format!("{scheme}://{host}:{port}")
        })
    };
    let listeners = [
        listener("PLAINTEXT", &kafka.advertised),
        listener("SSL", &kafka.advertised_tls),
    ];
    let listeners: Vec<String> = listeners.into_iter().flatten().collect();
    listeners.join(",")
}

/// `log.retention.ms` in another unit. Rounded up, because 0 would mean that nothing is kept.
fn retention_in(kafka: &KafkaOptions, unit_ms: u64) -> String {
    or_minus_one(kafka.retention_ms.map(|ms| ms.div_ceil(unit_ms)))
}

macro_rules! settings {
    ($($(#[$about:meta])* $table:ident {
        $($name:literal, $kind:expr, $value:expr, $doc:literal;)+
    })+) => {
        $($(#[$about])*
        pub(crate) const $table: &[BrokerSetting] = &[
            $(BrokerSetting { name: $name, kind: $kind, value: $value, doc: $doc },)+
        ];)+
    };
}

settings! {
/// Read-only settings, which are changed only in the broker's configuration. Sorted by name.
BROKER_SETTINGS {
    "advertised.listeners", SettingType::Text, DefaultValue::Of(advertised),
        "Addresses that clients are told; empty: the one that each has connected to.";
    "auto.create.topics.enable", SettingType::Bool,
        DefaultValue::Of(|kafka, _| kafka.auto_create_topics.to_string()),
        "Whether asking for a topic or publishing to it makes it.";
    "broker.id", NUMBER, DefaultValue::Of(|kafka, _| kafka.node_id.to_string()),
        "The number of this broker.";
    "cloverleaf.durability", SettingType::Text,
        DefaultValue::Of(|_, broker| broker.durability.name().to_owned()),
        "The mode of the option durability, for topics of which flush.messages and flush.ms say \
         nothing else.";
    "cloverleaf.durability.acks.1", SettingType::Text,
        DefaultValue::Of(|_, broker| broker.durability.class_name(Durability::Kernel).to_owned()),
        "What an answer to acks=1 promises: kernel (written) or disk (synced).";
    "cloverleaf.durability.acks.all", SettingType::Text,
        DefaultValue::Of(|_, broker| broker.durability.class_name(Durability::Disk).to_owned()),
        "What an answer to acks=all promises: kernel (written) or disk (synced).";
    "cloverleaf.version", SettingType::Text, DefaultValue::Is(env!("CARGO_PKG_VERSION")),
        "The version of Cloverleaf, by which it is told from Apache Kafka.";
    "default.replication.factor", NUMBER, DefaultValue::Is("1"),
        "Replicas of topics that are made without a number: there is one broker.";
    "delete.topic.enable", SettingType::Bool, DefaultValue::Is("true"),
        "Whether topics can be deleted.";
    "fetch.max.bytes", NUMBER, DefaultValue::Of(|kafka, _| kafka.fetch_bytes_max.to_string()),
        "Most bytes of one Fetch answer.";
    "group.initial.rebalance.delay.ms", NUMBER,
        DefaultValue::Of(|kafka, _| kafka.initial_rebalance_delay_ms.to_string()),
        "How long the first members of an empty group wait for more.";
    "group.max.session.timeout.ms", NUMBER,
        DefaultValue::Of(|kafka, _| kafka.session_timeout_ms_max.to_string()),
        "Longest session timeout of a group member.";
    "group.max.size", NUMBER, DefaultValue::Of(|kafka, _| kafka.group_members_max.to_string()),
        "Most members of a group.";
    "group.min.session.timeout.ms", NUMBER,
        DefaultValue::Of(|kafka, _| kafka.session_timeout_ms_min.to_string()),
        "Shortest session timeout of a group member.";
    "log.dirs", SettingType::Text, DefaultValue::Of(|kafka, _| kafka.log_dir.clone()),
        "The folder of the log.";
    "log.retention.hours", NUMBER, DefaultValue::Of(|kafka, _| retention_in(kafka, 3_600_000)),
        "log.retention.ms in whole hours, rounded up; -1: no limit.";
    "log.retention.minutes", NUMBER, DefaultValue::Of(|kafka, _| retention_in(kafka, 60_000)),
        "log.retention.ms in whole minutes, rounded up; -1: no limit.";
    "max.incremental.fetch.session.cache.slots", NUMBER,
        DefaultValue::Of(|kafka, _| kafka.fetch_sessions_max.to_string()),
        "Most incremental fetch sessions.";
    "node.id", NUMBER, DefaultValue::Of(|kafka, _| kafka.node_id.to_string()),
        "The number of this broker.";
    "num.partitions", NUMBER, DefaultValue::Of(|kafka, _| kafka.partitions_default.to_string()),
        "Partitions of topics that are made without a number.";
    "offset.metadata.max.bytes", NUMBER,
        DefaultValue::Of(|kafka, _| kafka.offset_metadata_bytes_max.to_string()),
        "Longest note that a client may add to a committed offset.";
    "offsets.retention.minutes", NUMBER,
        DefaultValue::Of(|kafka, _| (kafka.offsets_retention_ms / 60_000).to_string()),
        "Committed offsets of a group without members go after this time.";
    "process.roles", SettingType::Text, DefaultValue::Is("broker,controller"),
        "There is one broker, and it is its own controller.";
    "socket.request.max.bytes", NUMBER,
        DefaultValue::Of(|kafka, _| kafka.request_bytes_max.to_string()),
        "Largest request.";
    "telemetry.max.bytes", NUMBER,
        DefaultValue::Of(|kafka, _| kafka.client_metrics_bytes_max.to_string()),
        "Largest set of metrics that a client may push.";
}

/// Settings that Kafka can change at run time, but that have no effect here: they are only stored
/// and shown. Sorted by name.
INERT_SETTINGS {
    "background.threads", THREADS, DefaultValue::Is("10"),
        "Threads for background work. Each kind of work has one here: it changes nothing.";
    "log.cleaner.threads", THREADS, DefaultValue::Is("1"),
        "Threads that compact. There is one here: it changes nothing.";
    "num.io.threads", THREADS, DefaultValue::Is("8"),
        "Threads that carry out requests. There is one for each core here: it changes nothing.";
    "num.network.threads", THREADS, DefaultValue::Is("3"),
        "Threads that read and write sockets. There is one for each core here: it changes nothing.";
    "num.recovery.threads.per.data.dir", THREADS, DefaultValue::Is("2"),
        "Threads that recover the log at a start. There is one here: it changes nothing.";
    "num.replica.fetchers", THREADS, DefaultValue::Is("1"),
        "Threads that copy from other brokers. There are none: it changes nothing.";
    "sasl.kerberos.min.time.before.relogin", SettingType::Long(0), DefaultValue::Is("60000"),
        "How often a Kerberos ticket may be renewed. There are none here: it changes nothing.";
}
}

#[cfg(test)]
mod tests {
    use cloverleaf_broker::DurabilityMode;

    use super::*;

    #[test]
    fn names_are_in_order() {
        for table in [
            BROKER_SETTINGS,
            INERT_SETTINGS,
            super::super::GROUP_SETTINGS,
        ] {
            assert!(table.is_sorted_by(|a, b| a.name < b.name));
        }
    }

    #[test]
    fn answers_are_as_durable_as_the_mode_says() {
        for (mode, expected) in [
            (DurabilityMode::Protocol, ["protocol", "kernel", "disk"]),
            (DurabilityMode::Kernel, ["kernel", "kernel", "kernel"]),
            (DurabilityMode::Disk, ["disk", "disk", "disk"]),
        ] {
            let broker = BrokerOptions {
                durability: mode,
                ..BrokerOptions::default()
            };
            let told = BROKER_SETTINGS.iter();
            let told = told.filter(|it| it.name.starts_with("cloverleaf.durability"));
            let told = told.map(|it| it.value.text(&KafkaOptions::default(), &broker));
            assert_eq!(told.collect::<Vec<_>>(), expected);
        }
    }
}
