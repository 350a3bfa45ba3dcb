//! The table of settings as a page for users.

use std::fmt::Write as _;

use cloverleaf_broker::BrokerOptions;

use crate::options::KafkaOptions;

use super::table::{SETTINGS, SettingHandling};

/// `docs/kafka-settings.md`, with the defaults of a broker without configuration.
pub(crate) fn markdown() -> String {
    let (kafka, broker) = (KafkaOptions::default(), BrokerOptions::default());
    let mut out = String::from(
        "# Kafka's topic settings\n\
         \n\
         What `kafka-topics --config`, `kafka-configs` and the admin clients can set for a topic,\n\
         and what becomes of it. This page is written from the table that the broker works by\n\
         (`crates/kafka/src/control/settings/table.rs`); a test compares them. Other names are\n\
         refused with INVALID_CONFIG, as Kafka does.\n\
         \n\
         *honoured*: it does what it does in Kafka. *accepted*: it is kept and shown, and nothing\n\
         else is to be done, for the reason given. *only*: any other value is refused.\n\
         \n\
         | setting | default | | what it means here |\n\
         |---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let default = setting.default.text(&kafka, &broker);
        let default = match default.as_str() {
            "" => String::new(),
            text => format!("`{text}`"),
        };
        let handling = match setting.handling {
            SettingHandling::Honoured(_) => "honoured".to_owned(),
            SettingHandling::Accepted(_) => "accepted".to_owned(),
            SettingHandling::OneReplica(_) => "accepted".to_owned(),
            SettingHandling::Only(value, _) => format!("only `{value}`"),
        };
        let doc = setting.documentation();
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "| `{}` | {default} | {handling} | {doc} |",
            setting.name
        );
    }
    out
}
