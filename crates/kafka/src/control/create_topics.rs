//! CreateTopics.

use std::collections::HashMap;
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{CatalogError, Topic, TopicOptions, TopicUnavailable};
use kafka_protocol::messages::CreateTopicsResponse;
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};

use crate::answer::{Answer, body, later};
use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};
use crate::wire::{Malformed, Reader};

use super::names::{message, text, topic_name, topic_name_fault};
use super::replicas::log_replicas_request;
use super::{ControlCall, ErrorWithReason, configs, settings};

/// A topic to be created.
struct NewTopic {
    name: String,
    /// Number of partitions; -1: the default, or the number of `assignments`.
    partitions: i32,
    /// Replication factor; -1: the default.
    replicas: i16,
    /// Each partition and its replicas, if the client assigns them.
    assignments: Vec<(i32, Vec<i32>)>,
    configs: Vec<(String, Option<String>)>,
}

fn read(reader: &mut Reader<'_>) -> Result<(Vec<NewTopic>, bool), Malformed> {
    let topics = reader.array(|reader| {
        let name = reader.string()?.to_owned();
        let (partitions, replicas) = (reader.i32()?, reader.i16()?);
        let assignments = reader.array(|reader| {
            let assignment = (reader.i32()?, reader.array(Reader::i32)?);
            reader.skip_tagged()?;
            Ok(assignment)
        })?;
        let configs = reader.array(|reader| {
            let name = reader.string()?.to_owned();
            let value = reader.nullable_string()?.map(str::to_owned);
            reader.skip_tagged()?;
            Ok((name, value))
        })?;
        reader.skip_tagged()?;
        Ok(NewTopic {
            name,
            partitions,
            replicas,
            assignments,
            configs,
        })
    })?;
    let _timeout_ms = reader.i32()?;
    let validate_only = reader.bool()?;
    reader.skip_tagged()?;
    Ok((topics, validate_only))
}

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let (mut wanted, validate_only) = read(&mut call.body)?;
    let context = call.context.clone();
    Ok(later(call.context, move || {
        let mut mentions: HashMap<String, u32> = HashMap::new();
        for topic in &wanted {
            *mentions.entry(topic.name.clone()).or_default() += 1;
        }
        // A name that occurs several times gets one answer, an error, as in Kafka.
        let mut is_first = {
            let mut seen = std::collections::HashSet::new();
            move |name: &str| seen.insert(name.to_owned())
        };
        wanted.retain(|topic| is_first(&topic.name));
        // With `validate_only`: the partitions that the request would have created so far.
        let mut validated = 0;
        let results = wanted.iter().map(|wanted| {
            let created = match mentions.get(&wanted.name) {
                Some(2..) => Err((
                    ErrorCode::InvalidRequest,
                    "Duplicate topic name.".to_owned(),
                )),
                _ => create(&context, wanted, validate_only, &mut validated),
            };
            answer(&context, wanted, created, version)
        });
        let response = CreateTopicsResponse::default().with_topics(results.collect());
        body(&response, version)
    }))
}

/// A created topic: its options, and the topic itself; `None` with `validate_only`.
struct CreatedTopic {
    options: TopicOptions,
    topic: Option<Arc<Topic>>,
}

fn create(
    context: &KafkaContext,
    wanted: &NewTopic,
    validate_only: bool,
    validated: &mut u32,
) -> Result<CreatedTopic, ErrorWithReason> {
    let name = wanted.name.as_str();
    if let Some(fault) = topic_name_fault(name) {
        let reason = format!("Topic name is invalid: {fault}");
        return Err((ErrorCode::InvalidTopicException, reason));
    }
    let exists = || {
        let reason = format!("Topic '{name}' already exists.");
        (ErrorCode::TopicAlreadyExists, reason)
    };
    match context.realm.topic(Operation::Declare, name) {
        Err(TopicUnavailable::Unknown) => {}
        Err(TopicUnavailable::Denied) => {
            let reason = format!("topic '{name}': not allowed");
            return Err((ErrorCode::TopicAuthorizationFailed, reason));
        }
        // A hidden topic counts, too: its name is in use.
        Ok(_) => return Err(exists()),
    }
    let partitions = partitions(context, wanted)?;
    check_replicas(wanted)?;
    let options = options(context, wanted, partitions)?;
    let refused = |error: CatalogError| (of_catalog(&error), error.to_string());
    if validate_only {
        let more = validated.saturating_add(partitions);
        context.realm.check_partitions(more).map_err(refused)?;
        *validated = more;
        return Ok(CreatedTopic {
            options,
            topic: None,
        });
    }
    let mut is_new = false;
    let topic = context
        .realm
        .topic_or_create(Operation::Declare, name, || {
            is_new = true;
            options.clone()
        })
        .map_err(refused)?;
    if is_new {
        Ok(CreatedTopic {
            options,
            topic: Some(topic),
        })
    } else {
        // Another request has created the topic meanwhile.
        Err(exists())
    }
}

fn options(
    context: &KafkaContext,
    wanted: &NewTopic,
    partitions: u32,
) -> Result<TopicOptions, ErrorWithReason> {
    let invalid = |refused: settings::SettingRefused| (ErrorCode::InvalidConfig, refused.reason);
    let mut changes = Vec::new();
    for (name, value) in &wanted.configs {
        let Some(value) = value else {
            let reason = format!("Null value not supported for topic config: {name}");
            return Err((ErrorCode::InvalidConfig, reason));
        };
        changes.push(settings::check(name, Some(value)).map_err(invalid)?);
    }
    let mut options = settings::defaults(context, partitions);
    settings::change(context, &mut options, &changes).map_err(invalid)?;
    log_replicas_request(wanted.replicas, &changes);
    Ok(options)
}

fn partitions(context: &KafkaContext, wanted: &NewTopic) -> Result<u32, ErrorWithReason> {
    let invalid = |partitions: u32| {
        let error = CatalogError::Partitions { partitions };
        (ErrorCode::InvalidPartitions, error.to_string())
    };
    let partitions = match wanted.partitions {
        _ if !wanted.assignments.is_empty() => u32::try_from(wanted.assignments.len()).ok(),
        -1 => Some(context.options.partitions_default),
        count => u32::try_from(count).ok(),
    };
    match partitions {
        Some(count) if (1..=cloverleaf_broker::PARTITIONS_MAX).contains(&count) => Ok(count),
        Some(count @ 1..) => Err(invalid(count)),
        _ => Err((
            ErrorCode::InvalidPartitions,
            "Number of partitions was set to an invalid non-positive value.".to_owned(),
        )),
    }
}

/// Checks the replication factor as Kafka does. A valid one is accepted, but there is always one
/// replica.
fn check_replicas(wanted: &NewTopic) -> Result<(), ErrorWithReason> {
    if wanted.assignments.is_empty() {
        return match wanted.replicas {
            -1 | 1.. => Ok(()),
            _ => Err((
                ErrorCode::InvalidReplicationFactor,
                "Replication factor was set to an invalid non-positive value.".to_owned(),
            )),
        };
    }
    if wanted.partitions != -1 || wanted.replicas != -1 {
        let reason = "A manual partition assignment was specified, but the number of partitions \
            or the replication factor was not set to -1.";
        return Err((ErrorCode::InvalidRequest, reason.to_owned()));
    }
    let invalid = |reason: &str| Err((ErrorCode::InvalidReplicaAssignment, reason.to_owned()));
    let mut indexes: Vec<i32> = wanted.assignments.iter().map(|(index, _)| *index).collect();
    indexes.sort_unstable();
    if !(0i32..)
        .zip(&indexes)
        .all(|(expected, index)| expected == *index)
    {
        return invalid("partitions should be a consecutive 0-based integer sequence");
    }
    if wanted
        .assignments
        .iter()
        .any(|(_, brokers)| brokers.is_empty())
    {
        return invalid("The manual partition assignment includes an empty replica list.");
    }
    Ok(())
}

fn answer(
    context: &KafkaContext,
    wanted: &NewTopic,
    created: Result<CreatedTopic, ErrorWithReason>,
    version: i16,
) -> CreatableTopicResult {
    let result = CreatableTopicResult::default().with_name(topic_name(&wanted.name));
    let created = match created {
        Ok(created) => created,
        Err((code, reason)) => {
            return result
                .with_error_code(code.code())
                .with_error_message(message(&reason));
        }
    };
    let mut result = result.with_error_message(None);
    if let Some(topic) = created.topic {
        result = result.with_topic_id(topic.id());
    }
    if version < 5 {
        return result;
    }
    let config = |setting: &settings::TopicSetting| {
        let shown = setting.shown(context, &created.options);
        CreatableTopicConfigs::default()
            .with_name(text(setting.name))
            .with_config_source(if shown.is_own {
                configs::SOURCE_TOPIC
            } else {
                configs::default_source(context, setting)
            })
            .with_value(Some(text(&shown.value)))
    };
    result
        .with_num_partitions(i32::try_from(created.options.partitions).unwrap_or(i32::MAX))
        .with_replication_factor(1)
        .with_configs(Some(settings::SETTINGS.iter().map(config).collect()))
}
