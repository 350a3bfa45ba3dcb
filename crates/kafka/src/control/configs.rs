//! DescribeConfigs: the settings of topics, of the broker and of groups, with the source of each
//! value.

use std::collections::HashSet;

use cloverleaf_access::Operation;
use cloverleaf_broker::BrokerOptions;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
    DescribeConfigsSynonym,
};

use crate::answer::{Answer, body};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::options::KafkaOptions;
use crate::wire::Malformed;

use super::dynamic_settings::SettingOwner;
use super::names::{message, text};
use super::settings::{
    BROKER_SETTINGS, BrokerSetting, DefaultValue, GROUP_SETTINGS, INERT_SETTINGS, SETTINGS,
    SettingType, TopicSetting,
};
use super::{ControlCall, ErrorWithReason, topics};

/// Resource types (`ConfigResource.Type`).
pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const BROKER_LOGGER: i8 = 8;
pub(super) const CLIENT_METRICS: i8 = 16;
pub(super) const GROUP: i8 = 32;

/// The source of a value (`ConfigEntry.ConfigSource`).
pub(super) const SOURCE_TOPIC: i8 = 1;
const SOURCE_BROKER: i8 = 2;
const SOURCE_BROKERS: i8 = 3;
const SOURCE_CONFIGURED: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;
const SOURCE_GROUP: i8 = 8;

/// One setting with its value.
struct ConfigEntry {
    name: &'static str,
    kind: SettingType,
    value: String,
    source: i8,
    /// Name, value and source, in order of precedence.
    synonyms: Vec<(&'static str, String, i8)>,
    documentation: String,
    is_read_only: bool,
}

/// The details of each setting that a request wants.
#[derive(Clone, Copy)]
struct RequestedDetails {
    synonyms: bool,
    documentation: bool,
}

pub(super) fn describe(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    let resources = reader.array(|reader| {
        let (kind, name) = (reader.i8()?, reader.string()?);
        // An empty list means all settings, like null: clients up to Kafka 3 send it.
        let keys = reader.nullable_array(|reader| reader.string())?;
        reader.skip_tagged()?;
        Ok((kind, name, keys))
    })?;
    let detail = RequestedDetails {
        synonyms: reader.bool()?,
        documentation: version >= 3 && reader.bool()?,
    };
    reader.skip_tagged()?;

    let context = call.context;
    // Each resource once, as in Kafka: a short request must not cause a huge answer.
    let mut seen = HashSet::new();
    let results = resources
        .into_iter()
        .filter(|(kind, name, _)| seen.insert((*kind, *name)))
        .map(|(kind, name, keys)| {
            let keys = keys.map(|keys| keys.into_iter().collect::<HashSet<&str>>());
            let result = DescribeConfigsResult::default()
                .with_error_message(None)
                .with_resource_type(kind)
                .with_resource_name(text(name));
            match entries(context, kind, name) {
                Ok(mut entries) => {
                    if let Some(keys) = keys.filter(|keys| !keys.is_empty()) {
                        entries.retain(|entry| keys.contains(entry.name));
                    }
                    let shown = entries.into_iter().map(|entry| answer(entry, detail));
                    result.with_configs(shown.collect())
                }
                Err((code, reason)) => result
                    .with_error_code(code.code())
                    .with_error_message(message(&reason)),
            }
        });
    let response = DescribeConfigsResponse::default().with_results(results.collect());
    Ok(Answer::Ready(body(&response, version)))
}

fn answer(entry: ConfigEntry, detail: RequestedDetails) -> DescribeConfigsResourceResult {
    let mut result = DescribeConfigsResourceResult::default()
        .with_name(text(entry.name))
        .with_value(Some(text(&entry.value)))
        .with_read_only(entry.is_read_only)
        .with_config_source(entry.source)
        .with_config_type(entry.kind.code())
        .with_documentation(None);
    if detail.documentation {
        result = result.with_documentation(Some(text(&entry.documentation)));
    }
    if detail.synonyms {
        let synonym = |(name, value, source): &(&'static str, String, i8)| {
            DescribeConfigsSynonym::default()
                .with_name(text(name))
                .with_value(Some(text(value)))
                .with_source(*source)
        };
        result = result.with_synonyms(entry.synonyms.iter().map(synonym).collect());
    }
    result
}

fn entries(
    context: &KafkaContext,
    kind: i8,
    name: &str,
) -> Result<Vec<ConfigEntry>, ErrorWithReason> {
    match kind {
        TOPIC => {
            let topic = topics::find_or_say(context, Operation::Describe, name)?;
            Ok(topic_entries(context, &topic.options()))
        }
        BROKER => check_broker(context, name).map(|owner| match owner {
            SettingOwner::Brokers => {
                // Only the dynamic cluster-wide defaults.
                let mut entries = broker_entries(context);
                let of_all = context.dynamic_settings.of(&owner);
                entries.retain(|entry| of_all.contains_key(entry.name));
                for entry in &mut entries {
                    entry
                        .synonyms
                        .retain(|(_, _, source)| *source == SOURCE_BROKERS);
                    entry.value.clone_from(&of_all[entry.name]);
                    entry.source = SOURCE_BROKERS;
                }
                entries
            }
            _ => broker_entries(context),
        }),
        GROUP if !name.is_empty() => match context.check_group(Operation::Describe, name) {
            Ok(()) => Ok(group_entries(context, name)),
            Err(error) => Err((error, "not allowed".to_owned())),
        },
        GROUP => Err((
            ErrorCode::InvalidRequest,
            "Group name must not be empty".to_owned(),
        )),
        _ => Err((
            ErrorCode::InvalidRequest,
            format!(
                "resources of type {kind} have no settings here: topics, groups and brokers have"
            ),
        )),
    }
}

/// Checks the name of a broker resource: the node id, or empty for the cluster-wide default.
pub(super) fn check_broker(
    context: &KafkaContext,
    name: &str,
) -> Result<SettingOwner, ErrorWithReason> {
    let node_id = context.options.node_id;
    match name.parse::<i32>() {
        _ if name.is_empty() => Ok(SettingOwner::Brokers),
        Ok(id) if id == node_id => Ok(SettingOwner::Broker),
        _ => Err((
            ErrorCode::InvalidRequest,
            format!(
                "there is one broker, {node_id}, and not '{}'",
                name.escape_debug()
            ),
        )),
    }
}

fn topic_entries(
    context: &KafkaContext,
    options: &cloverleaf_broker::TopicOptions,
) -> Vec<ConfigEntry> {
    let entry = |setting: &'static super::settings::TopicSetting| {
        let shown = setting.shown(context, options);
        let mut synonyms = Vec::new();
        if shown.is_own {
            synonyms.push((setting.name, shown.value.clone(), SOURCE_TOPIC));
        }
        let default_name = setting.broker_name.unwrap_or(setting.name);
        synonyms.extend(broker_synonyms(context, default_name, setting.default));
        ConfigEntry {
            name: setting.name,
            kind: setting.kind,
            value: shown.value,
            source: synonyms[0].2,
            synonyms,
            documentation: setting.documentation(),
            is_read_only: false,
        }
    };
    SETTINGS.iter().map(entry).collect()
}

fn broker_entries(context: &KafkaContext) -> Vec<ConfigEntry> {
    let of_topics = SETTINGS.iter().filter_map(|setting| {
        let synonyms = broker_synonyms(context, setting.broker_name?, setting.default);
        Some(entry_of(
            synonyms,
            setting.kind,
            setting.documentation(),
            false,
        ))
    });
    let own = |settings: &'static [BrokerSetting], is_read_only| {
        settings.iter().map(move |setting| {
            let synonyms = broker_synonyms(context, setting.name, setting.value);
            entry_of(synonyms, setting.kind, setting.doc.to_owned(), is_read_only)
        })
    };
    let mut entries: Vec<ConfigEntry> = of_topics
        .chain(own(BROKER_SETTINGS, true))
        .chain(own(INERT_SETTINGS, false))
        .collect();
    entries.sort_by_key(|entry| entry.name);
    entries
}

fn group_entries(context: &KafkaContext, group: &str) -> Vec<ConfigEntry> {
    let own = context
        .dynamic_settings
        .of(&SettingOwner::Group(group.to_owned()));
    let entry = |setting: &'static BrokerSetting| {
        let mut synonyms = broker_synonyms(context, setting.name, setting.value);
        if let Some(value) = own.get(setting.name) {
            synonyms.insert(0, (setting.name, value.clone(), SOURCE_GROUP));
        }
        entry_of(synonyms, setting.kind, setting.doc.to_owned(), false)
    };
    GROUP_SETTINGS.iter().map(entry).collect()
}

/// An entry whose value is its first synonym, which has precedence.
fn entry_of(
    synonyms: Vec<(&'static str, String, i8)>,
    kind: SettingType,
    documentation: String,
    is_read_only: bool,
) -> ConfigEntry {
    let (name, value, source) = synonyms[0].clone();
    ConfigEntry {
        name,
        kind,
        value,
        source,
        synonyms,
        documentation,
        is_read_only,
    }
}

/// The values of a broker setting with their sources, in order of precedence: the dynamic values,
/// then the configured value or the default.
fn broker_synonyms(
    context: &KafkaContext,
    name: &'static str,
    default: DefaultValue,
) -> Vec<(&'static str, String, i8)> {
    let changed = context.dynamic_settings.of_broker(name).into_iter();
    let changed = changed.map(|(owner, value)| match owner {
        SettingOwner::Broker => (name, value, SOURCE_BROKER),
        _ => (name, value, SOURCE_BROKERS),
    });
    let value = default.text(&context.options, context.realm.options());
    let unconfigured = default.text(&KafkaOptions::default(), &BrokerOptions::default());
    let source = if value == unconfigured {
        SOURCE_DEFAULT
    } else {
        SOURCE_CONFIGURED
    };
    changed.chain([(name, value, source)]).collect()
}

/// The source of a topic setting's default.
pub(super) fn default_source(context: &KafkaContext, setting: &TopicSetting) -> i8 {
    let name = setting.broker_name.unwrap_or(setting.name);
    broker_synonyms(context, name, setting.default)[0].2
}
