//! Topic settings: from the names and texts that Kafka's clients know to [`TopicOptions`] and back.

mod broker;
mod change;
mod document;
mod group;
mod kind;
mod table;

use cloverleaf_broker::TopicOptions;

use crate::context::KafkaContext;

pub(crate) use broker::{BROKER_SETTINGS, BrokerSetting, IDLE_SETTINGS};
pub(crate) use change::{Change, change, check, defaults, deletes, lags_fault};
pub(crate) use document::markdown;
pub(crate) use group::GROUP_SETTINGS;
pub(crate) use kind::Kind;
pub(crate) use table::{Field, Handling, SETTINGS, Setting, Standard, find};

/// Why a setting is refused, in a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    pub(crate) reason: String,
}

/// Checks a value by its kind; gives it as it is kept.
pub(crate) fn check_kind(name: &str, kind: Kind, value: &str) -> Result<String, Refused> {
    kind.check(value).map_err(|fault| Refused {
        reason: format!(
            "Invalid value '{}' for configuration {name}: {fault}",
            value.escape_debug()
        ),
    })
}

/// Whether a topic says of itself that it is compressed with zstd.
pub(crate) fn says_zstd(options: &TopicOptions) -> bool {
    let kind = options.settings.get("compression.type");
    kind.is_some_and(|kind| kind == "zstd")
}

/// A setting's value, and whether somebody has set it for this topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) value: String,
    pub(crate) is_own: bool,
}

impl Setting {
    /// The value of topics about which nothing was said.
    pub(crate) fn standard_text(&self, context: &KafkaContext) -> String {
        self.changed_text(context)
            .unwrap_or_else(|| self.configured_text(context))
    }

    /// That value, if it was changed through the protocol.
    pub(crate) fn changed_text(&self, context: &KafkaContext) -> Option<String> {
        let mut changed = context.changed.of_broker(self.broker_name?).into_iter();
        changed.next().map(|(_, value)| value)
    }

    /// That value as the configuration has it.
    fn configured_text(&self, context: &KafkaContext) -> String {
        self.standard
            .text(&context.options, context.realm.options())
    }

    /// Checks a value for this setting; gives it as it is kept.
    pub(crate) fn check(&self, value: &str) -> Result<String, Refused> {
        let name = self.name;
        let kept = check_kind(name, self.kind, value)?;
        match self.handling {
            Handling::Only(only, why) if only != kept => Err(Refused {
                reason: format!("{name}={kept} is not possible, only {only}. {why}"),
            }),
            _ => Ok(kept),
        }
    }

    /// The value for a topic, and whether it is the topic's own.
    pub(crate) fn shown(&self, context: &KafkaContext, options: &TopicOptions) -> Shown {
        let standard = self.standard_text(context);
        let own = options.settings.get(self.name);
        match self.handling {
            Handling::Honoured(field) => {
                let value = change::read(field, options)
                    .or_else(|| own.cloned())
                    .unwrap_or_else(|| match field {
                        // A value that was changed would stand in the topic.
                        Field::SegmentBytes | Field::BatchBytesMax => self.configured_text(context),
                        _ => standard.clone(),
                    });
                Shown {
                    is_own: own.is_some() || !change::is_same(field, &value, &standard),
                    value,
                }
            }
            Handling::Accepted(_) | Handling::OneReplica(_) | Handling::Only(..) => Shown {
                is_own: own.is_some(),
                value: own.cloned().unwrap_or(standard),
            },
        }
    }

    /// The text about it that DescribeConfigs shows.
    pub(crate) fn documentation(&self) -> String {
        match self.handling {
            Handling::Honoured(_) => self.doc.to_owned(),
            Handling::Accepted(why) | Handling::OneReplica(why) | Handling::Only(_, why) => {
                format!("{} {why}", self.doc)
            }
        }
    }
}
