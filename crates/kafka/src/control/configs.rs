//! DescribeConfigs: the settings of topics and of the broker, and where each comes from.

use std::collections::HashSet;

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

use super::names::{message, text};
use super::settings::{BROKER_SETTINGS, Kind, SETTINGS, Standard};
use super::{Call, topics};

/// Resource types (`ConfigResource.Type`).
pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const BROKER_LOGGER: i8 = 8;
pub(super) const CLIENT_METRICS: i8 = 16;
pub(super) const GROUP: i8 = 32;

/// Where a value comes from (`ConfigEntry.ConfigSource`).
pub(super) const SOURCE_TOPIC: i8 = 1;
const SOURCE_CONFIGURED: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;

/// One setting with its value.
struct Entry {
    name: &'static str,
    kind: Kind,
    value: String,
    source: i8,
    /// Name, value and source, the one that counts first.
    synonyms: Vec<(&'static str, String, i8)>,
    documentation: String,
    is_read_only: bool,
}

/// What a request wants to know of each setting.
#[derive(Clone, Copy)]
struct Detail {
    synonyms: bool,
    documentation: bool,
}

pub(super) fn describe(mut call: Call<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    let resources = reader.array(|reader| {
        let (kind, name) = (reader.i8()?, reader.string()?);
        // No name means every name, as clients up to version 3 of Kafka's have it.
        let keys = reader.nullable_array(|reader| reader.string())?;
        reader.skip_tagged()?;
        Ok((kind, name, keys))
    })?;
    let detail = Detail {
        synonyms: reader.bool()?,
        documentation: version >= 3 && reader.bool()?,
    };
    reader.skip_tagged()?;

    let context = call.context;
    // Once each, as in Kafka: a short request must not ask for a huge answer.
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

fn answer(entry: Entry, detail: Detail) -> DescribeConfigsResourceResult {
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

type Refused = (ErrorCode, String);

fn entries(context: &KafkaContext, kind: i8, name: &str) -> Result<Vec<Entry>, Refused> {
    match kind {
        TOPIC => {
            let Some(topic) = topics::find(context, name) else {
                let reason = format!("there is no topic '{}'", name.escape_debug());
                return Err((topics::missing(name), reason));
            };
            Ok(topic_entries(context, &topic.options()))
        }
        BROKER => check_broker(context, name).map(|is_all| match is_all {
            // What was set for all brokers at once through the protocol: nothing can be.
            true => Vec::new(),
            false => broker_entries(context),
        }),
        // Nothing can be set for one, and nothing has a default: what Kafka's settings are about
        // (groups whose assignments the broker makes) there is not.
        GROUP if !name.is_empty() => Ok(Vec::new()),
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

/// Checks the name of a broker; `true`: it stands for all of them.
pub(super) fn check_broker(context: &KafkaContext, name: &str) -> Result<bool, Refused> {
    let node_id = context.options.node_id;
    match name.parse::<i32>() {
        _ if name.is_empty() => Ok(true),
        Ok(id) if id == node_id => Ok(false),
        _ => Err((
            ErrorCode::InvalidRequest,
            format!(
                "there is one broker, {node_id}, and not '{}'",
                name.escape_debug()
            ),
        )),
    }
}

fn topic_entries(context: &KafkaContext, options: &cloverleaf_broker::TopicOptions) -> Vec<Entry> {
    let entry = |setting: &'static super::settings::Setting| {
        let shown = setting.shown(context, options);
        let (standard, standard_source) = standard(context, setting.standard);
        let mut synonyms = Vec::new();
        if shown.is_own {
            synonyms.push((setting.name, shown.value.clone(), SOURCE_TOPIC));
        }
        let standard_name = setting.broker_name.unwrap_or(setting.name);
        synonyms.push((standard_name, standard, standard_source));
        Entry {
            name: setting.name,
            kind: setting.kind,
            value: shown.value,
            source: match shown.is_own {
                true => SOURCE_TOPIC,
                false => standard_source,
            },
            synonyms,
            documentation: setting.documentation(),
            is_read_only: false,
        }
    };
    SETTINGS.iter().map(entry).collect()
}

fn broker_entries(context: &KafkaContext) -> Vec<Entry> {
    let entry = |name, kind, value: Standard, documentation| {
        let (value, source) = standard(context, value);
        Entry {
            name,
            kind,
            synonyms: vec![(name, value.clone(), source)],
            value,
            source,
            documentation,
            is_read_only: true,
        }
    };
    let of_topics = SETTINGS.iter().filter_map(|setting| {
        let name = setting.broker_name?;
        Some(entry(
            name,
            setting.kind,
            setting.standard,
            setting.documentation(),
        ))
    });
    let own = BROKER_SETTINGS.iter().map(|setting| {
        entry(
            setting.name,
            setting.kind,
            setting.value,
            setting.doc.to_owned(),
        )
    });
    let mut entries: Vec<Entry> = of_topics.chain(own).collect();
    entries.sort_by_key(|entry| entry.name);
    entries
}

/// A default, and whether the broker's configuration changes it.
pub(super) fn standard(context: &KafkaContext, standard: Standard) -> (String, i8) {
    let value = standard.text(&context.options, context.broker.options());
    let unconfigured = standard.text(&KafkaOptions::default(), &BrokerOptions::default());
    let source = match value == unconfigured {
        true => SOURCE_DEFAULT,
        false => SOURCE_CONFIGURED,
    };
    (value, source)
}
