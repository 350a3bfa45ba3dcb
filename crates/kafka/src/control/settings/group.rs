//! The group settings that Kafka's tools can change. They apply to groups whose assignments the
//! broker makes (KIP-848). Such groups are not supported, so the settings are only stored and
//! shown.

use super::broker::BrokerSetting;
use super::kind::SettingType;
use super::table::DefaultValue;

/// All group settings, sorted by name.
pub(crate) const GROUP_SETTINGS: &[BrokerSetting] = &[
    BrokerSetting {
        name: "consumer.heartbeat.interval.ms",
        kind: SettingType::Int(1, i32::MAX),
        value: DefaultValue::Is("5000"),
        doc: "How often members send heartbeats, in groups whose assignments the broker makes. \
              There are none: it changes nothing.",
    },
    BrokerSetting {
        name: "consumer.session.timeout.ms",
        kind: SettingType::Int(1, i32::MAX),
        value: DefaultValue::Is("45000"),
        doc: "After which silence a member is out, in groups whose assignments the broker makes. \
              There are none: it changes nothing.",
    },
];
