//! Topic settings: converts between Kafka's names and values and [`TopicOptions`].

mod broker;
mod change;
mod document;
mod group;
mod kind;
mod table;

use cloverleaf_broker::TopicOptions;

use crate::context::KafkaContext;

pub(crate) use broker::{BROKER_SETTINGS, BrokerSetting, INERT_SETTINGS};
pub(crate) use change::{SettingChange, change, check, defaults, lag_error, policy_deletes};
pub(crate) use document::markdown;
pub(crate) use group::GROUP_SETTINGS;
pub(crate) use kind::SettingType;
pub(crate) use table::{DefaultValue, OptionField, SETTINGS, SettingHandling, TopicSetting, find};

/// The reason why a setting is refused, in a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SettingRefused {
    pub(crate) reason: String,
}

/// Validates a value by its type; returns it in the form in which it is stored.
pub(crate) fn check_kind(
    name: &str,
    kind: SettingType,
    value: &str,
) -> Result<String, SettingRefused> {
    kind.check(value).map_err(|fault| SettingRefused {
        reason: format!(
            "Invalid value '{}' for configuration {name}: {fault}",
            value.escape_debug()
        ),
    })
}

/// Whether the topic's own `compression.type` is zstd.
pub(crate) fn requires_zstd(options: &TopicOptions) -> bool {
    let kind = options.settings.get("compression.type");
    kind.is_some_and(|kind| kind == "zstd")
}

/// A setting's value, and whether it was set for this topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShownValue {
    pub(crate) value: String,
    pub(crate) is_own: bool,
}

impl TopicSetting {
    /// The default: the value for topics on which the setting is not set.
    pub(crate) fn default_text(&self, context: &KafkaContext) -> String {
        self.dynamic_text(context)
            .unwrap_or_else(|| self.configured_text(context))
    }

    /// The default that AlterConfigs has set, if there is one.
    pub(crate) fn dynamic_text(&self, context: &KafkaContext) -> Option<String> {
        let mut changed = context
            .dynamic_settings
            .of_broker(self.broker_name?)
            .into_iter();
        changed.next().map(|(_, value)| value)
    }

    /// The default from the configuration.
    fn configured_text(&self, context: &KafkaContext) -> String {
        self.default.text(&context.options, context.realm.options())
    }

    /// Validates a value for this setting; returns it in the form in which it is stored.
    pub(crate) fn check(&self, value: &str) -> Result<String, SettingRefused> {
        let name = self.name;
        let kept = check_kind(name, self.kind, value)?;
        match self.handling {
            SettingHandling::Only(only, why) if only != kept => Err(SettingRefused {
                reason: format!("{name}={kept} is not possible, only {only}. {why}"),
            }),
            _ => Ok(kept),
        }
    }

    /// The value for a topic, and whether it is the topic's own.
    pub(crate) fn shown(&self, context: &KafkaContext, options: &TopicOptions) -> ShownValue {
        let default = self.default_text(context);
        let own = options.settings.get(self.name);
        match self.handling {
            SettingHandling::Honoured(field) => {
                let value = change::read(field, options)
                    .or_else(|| own.cloned())
                    .unwrap_or_else(|| match field {
                        // The topic has no value, so it uses the configured default: a default that
                        // AlterConfigs has set is copied into the topic.
                        OptionField::SegmentBytes | OptionField::BatchBytesMax => {
                            self.configured_text(context)
                        }
                        _ => default.clone(),
                    });
                ShownValue {
                    is_own: own.is_some() || !change::is_same(field, &value, &default),
                    value,
                }
            }
            SettingHandling::Accepted(_)
            | SettingHandling::OneReplica(_)
            | SettingHandling::Only(..) => ShownValue {
                is_own: own.is_some(),
                value: own.cloned().unwrap_or(default),
            },
        }
    }

    /// The documentation in DescribeConfigs.
    pub(crate) fn documentation(&self) -> String {
        match self.handling {
            SettingHandling::Honoured(_) => self.doc.to_owned(),
            SettingHandling::Accepted(why)
            | SettingHandling::OneReplica(why)
            | SettingHandling::Only(_, why) => {
                format!("{} {why}", self.doc)
            }
        }
    }
}
