//! OffsetCommit, OffsetFetch, OffsetDelete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{Committed, Topic};
use cloverleaf_telemetry::Exchange;
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use uuid::Uuid;

use crate::answer::{Answer, body, promise};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::groups::OffsetCommits;
use crate::groups::reply::MemberIdentity;
use crate::wire::{Malformed, Reader};

use super::names::{text, topic_name};
use super::{ControlCall, topics};

/// One partition of an OffsetCommit.
struct CommitPartition<'a> {
    index: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: &'a str,
}

struct CommitTopic<'a> {
    name: &'a str,
    partitions: Vec<CommitPartition<'a>>,
}

struct CommitRequest<'a> {
    group: &'a str,
    generation: i32,
    who: MemberIdentity,
    topics: Vec<CommitTopic<'a>>,
}

fn read_commit<'a>(reader: &mut Reader<'a>, version: i16) -> Result<CommitRequest<'a>, Malformed> {
    let group = reader.string()?;
    let generation = reader.i32()?;
    let member_id = reader.string()?.to_owned();
    let instance = match version {
        7.. => reader.nullable_string()?.map(str::to_owned),
        _ => None,
    };
    if version <= 4 {
        // The retention time that the client asks for. It is ignored: the broker's option decides,
        // as in versions from 5 on.
        reader.i64()?;
    }
    let topics = reader.array(|reader| {
        let name = reader.string()?;
        let partitions = reader.array(|reader| {
            let partition = CommitPartition {
                index: reader.i32()?,
                offset: reader.i64()?,
                leader_epoch: if version >= 6 { reader.i32()? } else { -1 },
                metadata: reader.nullable_string()?.unwrap_or_default(),
            };
            reader.skip_tagged()?;
            Ok(partition)
        })?;
        reader.skip_tagged()?;
        Ok(CommitTopic { name, partitions })
    })?;
    reader.skip_tagged()?;
    let who = MemberIdentity {
        member_id,
        instance,
    };
    Ok(CommitRequest {
        group,
        generation,
        who,
        topics,
    })
}

/// Maximum number of partitions of a commit that are reported to the timeline.
const REPORTED_MAX: usize = 8;

pub(super) fn commit(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let commit = read_commit(&mut call.body, version)?;
    let context = call.context;
    let mut answers: Vec<(String, Vec<(i32, ErrorCode)>)> = Vec::new();
    let mut offsets: Vec<Committed> = Vec::new();
    let mut forgotten: Vec<(Uuid, u32)> = Vec::new();
    let committed_ms = context.realm.now_ms();
    let mut exchanges: Vec<Exchange> = Vec::new();
    for topic in &commit.topics {
        let found = topics::find_partitioned(context, Operation::Describe, topic.name);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for partition in &topic.partitions {
            let known = found.as_deref().map_err(|error| *error);
            let checked = check_partition(context, known, partition);
            let error = match checked {
                Err(error) => error,
                Ok((topic, index, None)) => {
                    forgotten.push((topic.id(), index));
                    ErrorCode::None
                }
                Ok((topic, index, Some(offset))) => {
                    if exchanges.len() < REPORTED_MAX {
                        exchanges.push(Exchange::commit(topic.number(), index, offset));
                    }
                    offsets.push(Committed {
                        group: commit.group.to_owned(),
                        topic: topic.id(),
                        partition: index,
                        offset,
                        leader_epoch: partition.leader_epoch,
                        metadata: partition.metadata.to_owned(),
                        committed_ms,
                    });
                    ErrorCode::None
                }
            };
            partitions.push((partition.index, error));
        }
        answers.push((topic.name.to_owned(), partitions));
    }
    if let Err(error) = context.check_group(Operation::Consume, commit.group) {
        refuse(&mut answers, error);
        return Ok(Answer::Ready(write_commit(answers, version)));
    }
    if commit.topics.is_empty() {
        return Ok(Answer::Ready(write_commit(answers, version)));
    }
    let groups = &context.groups;
    let at = groups.at(call.now);
    let what = OffsetCommits { offsets, forgotten };
    let committed = groups.commit(commit.group, &commit.who, commit.generation, what, at);
    let reply = match committed {
        Ok(reply) => reply,
        Err(error) => {
            let error = match error {
                // Clients before version 9 do not expect GROUP_ID_NOT_FOUND.
                ErrorCode::GroupIdNotFound if version < 9 => ErrorCode::IllegalGeneration,
                error => error,
            };
            refuse(&mut answers, error);
            return Ok(Answer::Ready(write_commit(answers, version)));
        }
    };
    for exchange in exchanges {
        call.probe.committed(commit.group, exchange, call.now.us);
    }
    Ok(Answer::Later(Box::pin(async move {
        let outcome = match reply.await.0 {
            Ok(None) => Ok(()),
            // As in Kafka when its storage fails: the client looks up the coordinator and retries.
            Ok(Some(synced)) => synced.await.map_err(|_| ErrorCode::NotCoordinator),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            refuse(&mut answers, error);
        }
        write_commit(answers, version)
    })))
}

/// Validates one partition of a commit; returns its topic, its number and the offset. An offset of
/// `None` deletes the committed offset: the client has sent a negative one, as kafkajs does to
/// reset offsets. Kafka stores it, and from then on answers as if there were none.
fn check_partition<'a>(
    context: &KafkaContext,
    topic: Result<&'a Topic, ErrorCode>,
    partition: &CommitPartition<'_>,
) -> Result<(&'a Topic, u32, Option<u64>), ErrorCode> {
    let topic = topic?;
    let index = u32::try_from(partition.index).ok();
    let Some(index) = index.filter(|index| *index < topic.partition_count()) else {
        return Err(ErrorCode::UnknownTopicOrPartition);
    };
    if partition.metadata.len() > context.options.offset_metadata_bytes_max {
        return Err(ErrorCode::OffsetMetadataTooLarge);
    }
    Ok((topic, index, u64::try_from(partition.offset).ok()))
}

/// Sets `error` for all partitions of a commit, except those whose topic is unknown or not
/// permitted.
fn refuse(answers: &mut [(String, Vec<(i32, ErrorCode)>)], error: ErrorCode) {
    for (_, partitions) in answers {
        for (_, outcome) in partitions {
            if !matches!(
                outcome,
                ErrorCode::UnknownTopicOrPartition | ErrorCode::TopicAuthorizationFailed
            ) {
                *outcome = error;
            }
        }
    }
}

fn write_commit(answers: Vec<(String, Vec<(i32, ErrorCode)>)>, version: i16) -> Vec<u8> {
    let topics = answers.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(index, error)| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(error.code())
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic_name(&name))
            .with_partitions(partitions.collect())
    });
    let response = OffsetCommitResponse::default().with_topics(topics.collect());
    body(&response, version)
}

/// The requested partitions of a group; `None`: all that have a committed offset.
type RequestedPartitions = Option<Vec<(String, Vec<i32>)>>;

/// The first version with several groups in one request.
const BATCHED_FROM: i16 = 8;

fn read_wanted(reader: &mut Reader<'_>) -> Result<RequestedPartitions, Malformed> {
    reader.nullable_array(|reader| {
        let name = reader.string()?.to_owned();
        let partitions = reader.array(|partition| partition.i32())?;
        reader.skip_tagged()?;
        Ok((name, partitions))
    })
}

fn read_fetch(
    reader: &mut Reader<'_>,
    version: i16,
) -> Result<Vec<(String, RequestedPartitions)>, Malformed> {
    let mut groups = if version < BATCHED_FROM {
        let group = reader.string()?.to_owned();
        let wanted = read_wanted(reader)?;
        if wanted.is_none() && version < 2 {
            return Err(Malformed {
                what: "an array is null",
            });
        }
        vec![(group, wanted)]
    } else {
        reader.array(|reader| {
            let group = reader.string()?.to_owned();
            if version >= 9 {
                // Member id and epoch of the group protocol of KIP-848, which is not supported.
                reader.nullable_string()?;
                reader.i32()?;
            }
            let wanted = read_wanted(reader)?;
            reader.skip_tagged()?;
            Ok((group, wanted))
        })?
    };
    if version >= 7 {
        // Whether to wait for offsets of open transactions: there are none.
        reader.bool()?;
    }
    reader.skip_tagged()?;
    // All offsets of a group are returned at most once: a short request must not cause a huge
    // answer.
    let mut seen = BTreeSet::new();
    groups.retain(|(group, wanted)| wanted.is_some() || seen.insert(group.clone()));
    Ok(groups)
}

pub(super) fn fetch(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let asked = read_fetch(&mut call.body, version)?;
    if call.context.groups.is_written() {
        return Ok(Answer::Ready(answer_fetch(call.context, asked, version)));
    }
    // A commit of this client may still be queued, and the answer has to include it.
    let (promise, reply) = promise();
    let context = Arc::clone(call.context);
    call.context
        .groups
        .after_writes(move || promise.keep(answer_fetch(&context, asked, version)));
    Ok(Answer::Later(Box::pin(reply)))
}

/// Topics with their partitions, and the committed offset of each.
type FetchedOffsets = Vec<(String, Vec<(i32, Option<Committed>)>)>;

fn answer_fetch(
    context: &KafkaContext,
    asked: Vec<(String, RequestedPartitions)>,
    version: i16,
) -> Vec<u8> {
    let mut response = OffsetFetchResponse::default();
    for (group, wanted) in asked {
        let may = context.check_group(Operation::Describe, &group);
        let error = may.err().unwrap_or(ErrorCode::None).code();
        let fetched = match wanted {
            // Before version 2 there is no top-level error: each partition has it.
            Some(wanted) if may.is_err() && version < 2 => {
                let none = |partitions: Vec<i32>| partitions.into_iter().map(|it| (it, None));
                let none = |(name, partitions)| (name, none(partitions).collect());
                wanted.into_iter().map(none).collect()
            }
            _ if may.is_err() => Vec::new(),
            Some(wanted) => fetch_some(context, &group, wanted),
            None => fetch_all(context, &group),
        };
        if version >= BATCHED_FROM {
            let topics = fetched.into_iter().map(batched_topic).collect();
            response.groups.push(
                OffsetFetchResponseGroup::default()
                    .with_group_id(GroupId(text(&group)))
                    .with_error_code(error)
                    .with_topics(topics),
            );
        } else {
            if version >= 2 {
                response.error_code = error;
            }
            response.topics = fetched.into_iter().map(|t| topic(t, version)).collect();
            let topics = response.topics.iter_mut().filter(|_| version < 2);
            for partition in topics.flat_map(|topic| &mut topic.partitions) {
                partition.error_code = error;
            }
        }
    }
    body(&response, version)
}

fn fetch_some(
    context: &KafkaContext,
    group: &str,
    wanted: Vec<(String, Vec<i32>)>,
) -> FetchedOffsets {
    let committed = |topic: Option<&Topic>, partition: i32| {
        let index = u32::try_from(partition).ok()?;
        context.realm.committed_offset(group, topic?.id(), index)
    };
    let fetch = |(name, partitions): (String, Vec<i32>)| {
        let found = topics::find(context, Operation::Describe, &name).ok();
        let one = |partition: i32| {
            let committed = committed(found.as_deref(), partition);
            (
                partition,
                committed.map(|it| out_of_hole(found.as_deref(), it)),
            )
        };
        let partitions = partitions.into_iter().map(one).collect();
        (name, partitions)
    };
    wanted.into_iter().map(fetch).collect()
}

fn fetch_all(context: &KafkaContext, group: &str) -> FetchedOffsets {
    let mut by_topic: BTreeMap<uuid::Uuid, Vec<(i32, Option<Committed>)>> = BTreeMap::new();
    for committed in context.realm.committed_offsets(group) {
        let Ok(index) = i32::try_from(committed.partition) else {
            continue;
        };
        let partitions = by_topic.entry(committed.topic).or_default();
        partitions.push((index, Some(committed)));
    }
    by_topic
        .into_iter()
        .filter_map(|(id, partitions)| {
            let topic = topics::find_by_id(context, Operation::Describe, id).ok()?;
            let out_of_gap = |(index, committed): (i32, Option<Committed>)| {
                (index, committed.map(|it| out_of_hole(Some(&*topic), it)))
            };
            let partitions = partitions.into_iter().map(out_of_gap).collect();
            Some((topic.name().to_owned(), partitions))
        })
        .collect()
}

/// Moves a committed offset out of a gap in the offsets, so that a tool that subtracts it from the
/// end offset gets the right lag. Such a gap exists after a power loss: a group may have read and
/// committed messages that were then lost, and the next message is stored at a far higher offset.
fn out_of_hole(topic: Option<&Topic>, mut committed: Committed) -> Committed {
    if let Some(log) = topic.and_then(|topic| topic.partition(committed.partition)) {
        committed.offset = log.skip_hole(committed.offset);
    }
    committed
}

/// Offset, leader epoch and metadata, for an answer.
fn offset_fields(committed: Option<Committed>) -> (i64, i32, String) {
    match committed {
        Some(committed) => (
            i64::try_from(committed.offset).unwrap_or(i64::MAX),
            committed.leader_epoch,
            committed.metadata,
        ),
        None => (-1, -1, String::new()),
    }
}

fn topic(
    (name, partitions): (String, Vec<(i32, Option<Committed>)>),
    version: i16,
) -> OffsetFetchResponseTopic {
    let partitions = partitions.into_iter().map(|(index, committed)| {
        let (offset, leader_epoch, metadata) = offset_fields(committed);
        let mut one = OffsetFetchResponsePartition::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_metadata(Some(text(&metadata)));
        if version >= 5 {
            one.committed_leader_epoch = leader_epoch;
        }
        one
    });
    OffsetFetchResponseTopic::default()
        .with_name(topic_name(&name))
        .with_partitions(partitions.collect())
}

fn batched_topic(
    (name, partitions): (String, Vec<(i32, Option<Committed>)>),
) -> OffsetFetchResponseTopics {
    let partitions = partitions.into_iter().map(|(index, committed)| {
        let (offset, leader_epoch, metadata) = offset_fields(committed);
        OffsetFetchResponsePartitions::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(leader_epoch)
            .with_metadata(Some(text(&metadata)))
    });
    OffsetFetchResponseTopics::default()
        .with_name(topic_name(&name))
        .with_partitions(partitions.collect())
}

pub(super) fn delete(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    let group = reader.string()?.to_owned();
    let asked = reader.array(|reader| {
        let name = reader.string()?.to_owned();
        let partitions = reader.array(|partition| partition.i32())?;
        Ok((name, partitions))
    })?;
    let checked = if group.is_empty() {
        Err(ErrorCode::InvalidGroupId)
    } else {
        call.context.check_group(Operation::Declare, &group)
    };
    if let Err(error) = checked {
        let response = OffsetDeleteResponse::default().with_error_code(error.code());
        return Ok(Answer::Ready(body(&response, version)));
    }
    let (promise, reply) = promise();
    let context = Arc::clone(call.context);
    call.context.groups.after_writes(move || {
        let response = delete_offsets(&context, &group, &asked);
        promise.keep(body(&response, version));
    });
    Ok(Answer::Later(Box::pin(reply)))
}

fn delete_offsets(
    context: &KafkaContext,
    group: &str,
    asked: &[(String, Vec<i32>)],
) -> OffsetDeleteResponse {
    let exists = |name: &str, partition: i32| {
        let topic = topics::find(context, Operation::Describe, name).ok()?;
        let index = u32::try_from(partition).ok()?;
        (index < topic.partition_count()).then_some(index)
    };
    let known: Vec<(String, Vec<u32>)> = asked
        .iter()
        .map(|(name, partitions)| {
            let partitions = partitions.iter().filter_map(|p| exists(name, *p));
            (name.clone(), partitions.collect())
        })
        .collect();
    let outcomes = match context.groups.delete_offsets(group, &known) {
        Ok(outcomes) => outcomes,
        Err(error) => return OffsetDeleteResponse::default().with_error_code(error.code()),
    };
    let topics = asked
        .iter()
        .zip(outcomes)
        .map(|((name, partitions), outcome)| {
            let partitions = partitions.iter().map(|partition| {
                let error = match exists(name, *partition) {
                    Some(_) => outcome,
                    None => ErrorCode::UnknownTopicOrPartition,
                };
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(*partition)
                    .with_error_code(error.code())
            });
            OffsetDeleteResponseTopic::default()
                .with_name(topic_name(name))
                .with_partitions(partitions.collect())
        });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}
