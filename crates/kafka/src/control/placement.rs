//! ElectLeaders, AlterPartitionReassignments and AlterReplicaLogDirs. Leaders and replicas never
//! change here, because there is one broker with one folder. The answers are those of Kafka on one
//! node.

use cloverleaf_access::Operation;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsResponse,
};
use kafka_protocol::messages::elect_leaders_response::{
    ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};

use crate::answer::{Answer, body};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};

use super::names::{message, topic_name};
use super::{ControlCall, ErrorWithReason, topics};

/// A topic's name, and a value for each of its partitions.
type TopicPartitions<'a, T> = (&'a str, Vec<T>);

/// Reads an array of topics with a value for each partition; `None`: a null array, which means all
/// topics.
fn read_topics<'a, T>(
    reader: &mut Reader<'a>,
    mut partition: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<Vec<TopicPartitions<'a, T>>>, Malformed> {
    reader.nullable_array(|reader| {
        let topic = (reader.string()?, reader.array(&mut partition)?);
        reader.skip_tagged()?;
        Ok(topic)
    })
}

/// ElectLeaders: no election is needed, because each partition has its preferred leader.
pub(super) fn elect_leaders(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let (version, context) = (call.version, call.context);
    let reader = &mut call.body;
    // Before version 1 there was one election type: the preferred leader.
    let election = if version >= 1 { reader.i8()? } else { 0 };
    let wanted = read_topics(reader, Reader::i32)?;
    let _timeout_ms = reader.i32()?;
    reader.skip_tagged()?;
    let fault = (!matches!(election, 0 | 1)).then(|| {
        let reason = format!("there is no type of election {election}");
        (ErrorCode::InvalidRequest, reason)
    });
    let result = |(name, partitions): &TopicPartitions<'_, i32>| {
        let result = |index: &i32| {
            let (error, reason) = match &fault {
                Some(fault) => fault.clone(),
                None => election_fault(context, name, *index),
            };
            PartitionResult::default()
                .with_partition_id(*index)
                .with_error_code(error.code())
                .with_error_message(message(&reason))
        };
        ReplicaElectionResult::default()
            .with_topic(topic_name(name))
            .with_partition_result(partitions.iter().map(result).collect())
    };
    let results = match &wanted {
        Some(wanted) => wanted.iter().map(result).collect(),
        None if fault.is_some() => Vec::new(),
        // A request for all topics leaves out the partitions that need no election.
        None => topics::all(context)
            .iter()
            .map(|topic| ReplicaElectionResult::default().with_topic(topic_name(topic.name())))
            .collect(),
    };
    let error = fault.as_ref().map_or(ErrorCode::None, |(error, _)| *error);
    let response = ElectLeadersResponse::default()
        .with_error_code(error.code())
        .with_replica_election_results(results);
    Ok(Answer::Ready(body(&response, version)))
}

fn election_fault(context: &KafkaContext, name: &str, index: i32) -> ErrorWithReason {
    match topics::partition(context, Operation::Describe, name, index) {
        Ok(_) => (
            ErrorCode::ElectionNotNeeded,
            "Leader election not needed for topic partition.".to_owned(),
        ),
        Err(error) => (error, no_partition(name, index)),
    }
}

fn no_partition(name: &str, index: i32) -> String {
    format!("there is no partition {index} of '{}'", name.escape_debug())
}

/// AlterPartitionReassignments: the only valid replica is this broker, where the partition is
/// already.
pub(super) fn alter_reassignments(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let (version, context) = (call.version, call.context);
    let reader = &mut call.body;
    let _timeout_ms = reader.i32()?;
    // The answer repeats this field. With one broker the replication factor cannot change.
    let may_change_count = version < 1 || reader.bool()?;
    let wanted = read_topics(reader, |reader| {
        let index = reader.i32()?;
        let replicas = reader.nullable_array(Reader::i32)?;
        reader.skip_tagged()?;
        Ok((index, replicas))
    })?;
    reader.skip_tagged()?;
    let wanted = wanted.unwrap_or_default();
    let response = |(name, partitions): &TopicPartitions<'_, (i32, Option<Vec<i32>>)>| {
        let response = |(index, replicas): &(i32, Option<Vec<i32>>)| {
            let response = ReassignablePartitionResponse::default().with_partition_index(*index);
            match reassign(context, name, *index, replicas.as_deref()) {
                Ok(()) => response.with_error_message(None),
                Err((error, reason)) => response
                    .with_error_code(error.code())
                    .with_error_message(message(&reason)),
            }
        };
        ReassignableTopicResponse::default()
            .with_name(topic_name(name))
            .with_partitions(partitions.iter().map(response).collect())
    };
    let response = AlterPartitionReassignmentsResponse::default()
        .with_allow_replication_factor_change(may_change_count)
        .with_error_message(None)
        .with_responses(wanted.iter().map(response).collect());
    Ok(Answer::Ready(body(&response, version)))
}

/// Reassigns a partition to `replicas`; `None`: cancels a reassignment.
fn reassign(
    context: &KafkaContext,
    name: &str,
    index: i32,
    replicas: Option<&[i32]>,
) -> Result<(), ErrorWithReason> {
    let found = topics::partition(context, Operation::Describe, name, index);
    found.map_err(|error| (error, no_partition(name, index)))?;
    let node_id = context.options.node_id;
    let reason = match replicas {
        None => {
            let reason = "No partition reassignment is in progress.".to_owned();
            return Err((ErrorCode::NoReassignmentInProgress, reason));
        }
        Some([]) => "the list of replicas is empty".to_owned(),
        Some(replicas) => match replicas.iter().find(|id| **id != node_id) {
            Some(other) => format!("there is one broker, {node_id}, and not {other}"),
            None if replicas.len() > 1 => format!("broker {node_id} is named more than once"),
            None => return Ok(()),
        },
    };
    Err((ErrorCode::InvalidReplicaAssignment, reason))
}

/// AlterReplicaLogDirs: the only valid folder is the one in which all partitions are already.
pub(super) fn alter_log_dirs(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let (version, context) = (call.version, call.context);
    let reader = &mut call.body;
    let mut results = Vec::new();
    reader.array(|reader| {
        let is_ours = reader.string()? == context.options.log_dir;
        let topics = read_topics(reader, Reader::i32)?;
        reader.skip_tagged()?;
        for (name, partitions) in topics.unwrap_or_default() {
            let partitions = partitions.into_iter().map(|index| {
                let error = match topics::partition(context, Operation::Describe, name, index) {
                    _ if !is_ours => ErrorCode::LogDirNotFound,
                    Ok(_) => ErrorCode::None,
                    Err(error) => error,
                };
                AlterReplicaLogDirPartitionResult::default()
                    .with_partition_index(index)
                    .with_error_code(error.code())
            });
            let result = AlterReplicaLogDirTopicResult::default()
                .with_topic_name(topic_name(name))
                .with_partitions(partitions.collect());
            results.push(result);
        }
        Ok(())
    })?;
    reader.skip_tagged()?;
    let response = AlterReplicaLogDirsResponse::default().with_results(results);
    Ok(Answer::Ready(body(&response, version)))
}
