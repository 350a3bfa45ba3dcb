//! CreatePartitions: adds partitions to existing topics.

use std::collections::HashMap;

use cloverleaf_access::Operation;
use cloverleaf_broker::CatalogError;
use kafka_protocol::messages::CreatePartitionsResponse;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;

use crate::answer::{Answer, body, later};
use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};
use crate::wire::{Malformed, Reader};

use super::names::{message, topic_name};
use super::{ControlCall, ErrorWithReason, topics};

/// A topic that gets more partitions.
struct NewPartitions {
    name: String,
    /// The new total number of partitions.
    count: i32,
    /// The replicas of each new partition, if the client assigns them.
    assignments: Option<Vec<Vec<i32>>>,
}

fn read(reader: &mut Reader<'_>) -> Result<(Vec<NewPartitions>, bool), Malformed> {
    let topics = reader.array(|reader| {
        let (name, count) = (reader.string()?.to_owned(), reader.i32()?);
        let assignments = reader.nullable_array(|reader| {
            let brokers = reader.array(Reader::i32)?;
            reader.skip_tagged()?;
            Ok(brokers)
        })?;
        reader.skip_tagged()?;
        Ok(NewPartitions {
            name,
            count,
            assignments,
        })
    })?;
    let _timeout_ms = reader.i32()?;
    let validate_only = reader.bool()?;
    reader.skip_tagged()?;
    Ok((topics, validate_only))
}

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let (wanted, validate_only) = read(&mut call.body)?;
    let context = call.context.clone();
    Ok(later(call.context, move || {
        let mut mentions: HashMap<&str, u32> = HashMap::new();
        for topic in &wanted {
            *mentions.entry(&topic.name).or_default() += 1;
        }
        // With `validate_only`: the partitions that the request would have added so far.
        let mut validated = 0;
        // A name that occurs several times gets one answer, in the place of its first occurrence.
        let results = wanted.iter().filter_map(|wanted| {
            let name = wanted.name.as_str();
            let added = match mentions.remove(name)? {
                1 => add(&context, wanted, validate_only, &mut validated),
                _ => Err((
                    ErrorCode::InvalidRequest,
                    "Duplicate topic name.".to_owned(),
                )),
            };
            let result = CreatePartitionsTopicResult::default().with_name(topic_name(name));
            Some(match added {
                Ok(()) => result.with_error_message(None),
                Err((code, reason)) => result
                    .with_error_code(code.code())
                    .with_error_message(message(&reason)),
            })
        });
        let response = CreatePartitionsResponse::default().with_results(results.collect());
        body(&response, version)
    }))
}

fn add(
    context: &KafkaContext,
    wanted: &NewPartitions,
    validate_only: bool,
    validated: &mut u32,
) -> Result<(), ErrorWithReason> {
    let topic = topics::find_or_say(context, Operation::Declare, &wanted.name)?;
    let current = topic.partition_count();
    let total = match u32::try_from(wanted.count) {
        Ok(total) if total > current => total,
        _ => {
            let reason = format!(
                "The topic {} currently has {current} partition(s); {} would not be an increase.",
                wanted.name, wanted.count
            );
            return Err((ErrorCode::InvalidPartitions, reason));
        }
    };
    if let Some(assignments) = &wanted.assignments {
        let added = (total - current) as usize;
        if assignments.len() != added || assignments.iter().any(Vec::is_empty) {
            let reason = format!(
                "{added} partition(s) are added, and the assignment names brokers for {}",
                assignments
                    .iter()
                    .filter(|brokers| !brokers.is_empty())
                    .count()
            );
            return Err((ErrorCode::InvalidReplicaAssignment, reason));
        }
    }
    let refused = |error: CatalogError| (of_catalog(&error), error.to_string());
    if validate_only && total <= cloverleaf_broker::PARTITIONS_MAX {
        let more = validated.saturating_add(total - current);
        context.realm.check_partitions(more).map_err(refused)?;
        *validated = more;
        return Ok(());
    }
    topic.add_partitions(total).map_err(refused)
}
