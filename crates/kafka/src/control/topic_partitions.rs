//! DescribeTopicPartitions (KIP-966): topics with their partitions, in pages.
//!
//! Topics are in the order of their names. A page ends with a cursor, the first partition of the
//! next page, which the client sends with its next request.

use std::collections::BTreeSet;
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::Topic;
use kafka_protocol::messages::DescribeTopicPartitionsResponse;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};

use crate::answer::{Answer, body};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};

use super::metadata::TOPIC_OPERATIONS;
use super::names::topic_name;
use super::{ControlCall, LEADER_EPOCH, topics};

/// Maximum number of partitions in one answer, whatever the client asks for (Kafka's default of
/// `max.request.partition.size.limit`).
const PARTITIONS_MAX: i32 = 2_000;

struct DescribeRequest<'a> {
    /// Empty: all topics.
    topics: BTreeSet<&'a str>,
    partitions_max: i32,
    /// Where the page begins: a topic's name and a partition of it.
    cursor: Option<(&'a str, i32)>,
}

fn read<'a>(reader: &mut Reader<'a>) -> Result<DescribeRequest<'a>, Malformed> {
    let topics = reader.array(|reader| {
        let name = reader.string()?;
        reader.skip_tagged()?;
        Ok(name)
    })?;
    let partitions_max = reader.i32()?;
    let cursor = match reader.i8()? {
        // A nullable structure: negative means null.
        ..0 => None,
        _ => {
            let cursor = (reader.string()?, reader.i32()?);
            reader.skip_tagged()?;
            if cursor.1 < 0 {
                // The answer has no field for this error; Kafka closes the connection, too.
                return Err(Malformed {
                    what: "a cursor with a negative partition",
                });
            }
            Some(cursor)
        }
    };
    reader.skip_tagged()?;
    Ok(DescribeRequest {
        topics: topics.into_iter().collect(),
        partitions_max: partitions_max.clamp(1, PARTITIONS_MAX),
        cursor,
    })
}

pub(super) fn describe(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let request = read(&mut call.body)?;
    let response = if request.topics.is_empty() {
        let all = topics::all(call.context);
        let all = all.iter().map(|topic| (topic.name(), Ok(topic.clone())));
        page(call.context, &request, all)
    } else {
        let wanted = request.topics.iter().copied();
        let wanted =
            wanted.map(|name| (name, topics::find(call.context, Operation::Describe, name)));
        page(call.context, &request, wanted)
    };
    Ok(Answer::Ready(body(&response, call.version)))
}

/// A page of these topics, which are in the order of their names.
fn page<'n>(
    context: &KafkaContext,
    request: &DescribeRequest<'_>,
    wanted: impl Iterator<Item = (&'n str, Result<Arc<Topic>, ErrorCode>)>,
) -> DescribeTopicPartitionsResponse {
    let (first_name, first_partition) = request.cursor.unwrap_or_default();
    let mut response = DescribeTopicPartitionsResponse::default();
    let mut left = request.partitions_max;
    for (name, topic) in wanted.skip_while(|(name, _)| *name < first_name) {
        let cursor = |partition: i32| {
            Cursor::default()
                .with_topic_name(topic_name(name))
                .with_partition_index(partition)
        };
        if left == 0 {
            response.next_cursor = Some(cursor(0));
            break;
        }
        let result = DescribeTopicPartitionsResponseTopic::default()
            .with_name(Some(topic_name(name)))
            .with_topic_authorized_operations(TOPIC_OPERATIONS);
        let topic = match topic {
            Ok(topic) => topic,
            Err(error) => {
                response.topics.push(result.with_error_code(error.code()));
                continue;
            }
        };
        let total = i32::try_from(topic.partition_count()).unwrap_or(i32::MAX);
        let from = if name == first_name {
            first_partition.min(total)
        } else {
            0
        };
        let until = total.min(from.saturating_add(left));
        left -= until - from;
        let partitions = (from..until).map(|index| partition(context, index));
        response.topics.push(
            result
                .with_topic_id(topic.id())
                .with_partitions(partitions.collect()),
        );
        if until < total {
            response.next_cursor = Some(cursor(until));
            break;
        }
    }
    response
}

fn partition(context: &KafkaContext, index: i32) -> DescribeTopicPartitionsResponsePartition {
    let node = context.options.node_id.into();
    DescribeTopicPartitionsResponsePartition::default()
        .with_partition_index(index)
        .with_leader_id(node)
        .with_leader_epoch(LEADER_EPOCH)
        .with_replica_nodes(vec![node])
        .with_isr_nodes(vec![node])
        .with_eligible_leader_replicas(Some(Vec::new()))
        .with_last_known_elr(Some(Vec::new()))
}
