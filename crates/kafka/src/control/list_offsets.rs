//! ListOffsets: the offsets at which a partition begins and ends, and offsets by timestamp.

use std::collections::HashSet;

use cloverleaf_access::Operation;
use cloverleaf_broker::Partition;
use cloverleaf_log::ReadError;
use kafka_protocol::messages::ListOffsetsResponse;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};

use crate::answer::{Answer, Body, body, later_on};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::{Malformed, Reader};

use super::names::topic_name;
use super::{ControlCall, LEADER_EPOCH, check_epoch, topics};

/// The newest version that the library `kafka-protocol` knows.
const LIBRARY_VERSION_MAX: i16 = 10;

/// The offset that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OffsetQuery {
    /// The high watermark.
    Latest,
    /// The log start offset. Without tiered storage it is also the earliest local offset.
    Earliest,
    /// The message with the largest timestamp.
    MaxTimestamp,
    /// The last message in tiered storage, or the first one that is not uploaded yet. There is no
    /// tiered storage, so there is no such message.
    Tiered,
    /// The first message with this timestamp or a later one, in milliseconds since 1970.
    Since(i64),
}

impl OffsetQuery {
    /// Decodes the field `timestamp`, whose negative values are other queries. `None`: not valid in
    /// this version.
    fn of(timestamp: i64, version: i16) -> Option<Self> {
        match timestamp {
            0.. => Some(Self::Since(timestamp)),
            -1 => Some(Self::Latest),
            -2 => Some(Self::Earliest),
            -3 if version >= 7 => Some(Self::MaxTimestamp),
            -4 if version >= 8 => Some(Self::Earliest),
            -5 if version >= 9 => Some(Self::Tiered),
            -6 if version >= 11 => Some(Self::Tiered),
            _ => None,
        }
    }

    /// Whether the query may have to read the disk.
    fn blocks(self) -> bool {
        matches!(self, Self::Since(_) | Self::MaxTimestamp)
    }
}

/// The query for one partition.
struct RequestedPartition {
    index: i32,
    epoch: i32,
    query: Option<OffsetQuery>,
}

type OffsetQueries = Vec<(String, Vec<RequestedPartition>)>;

fn read(reader: &mut Reader<'_>, version: i16) -> Result<OffsetQueries, Malformed> {
    let _replica_id = reader.i32()?;
    if version >= 2 {
        // The isolation level: without transactions, all readable records are committed.
        reader.i8()?;
    }
    let wanted = reader.array(|reader| {
        let name = reader.string()?.to_owned();
        let partitions = reader.array(|reader| {
            let index = reader.i32()?;
            let epoch = match version {
                4.. => reader.i32()?,
                _ => -1,
            };
            let query = OffsetQuery::of(reader.i64()?, version);
            reader.skip_tagged()?;
            Ok(RequestedPartition {
                index,
                epoch,
                query,
            })
        })?;
        reader.skip_tagged()?;
        Ok((name, partitions))
    })?;
    if version >= 10 {
        // The timeout for tiered storage.
        reader.i32()?;
    }
    reader.skip_tagged()?;
    Ok(wanted)
}

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let wanted = read(&mut call.body, version)?;
    let all = || wanted.iter().flat_map(|(_, partitions)| partitions);
    if !all().any(|wanted| wanted.query.is_some_and(OffsetQuery::blocks)) {
        return Ok(Answer::Ready(answer(call.context, wanted, version)));
    }
    let context = call.context.clone();
    Ok(later_on(&call.context.lookups, move || {
        answer(&context, wanted, version)
    }))
}

fn answer(context: &KafkaContext, wanted: OffsetQueries, version: i16) -> Body {
    let mut seen = HashSet::new();
    let mut duplicates = HashSet::new();
    for (name, partitions) in &wanted {
        for wanted in partitions {
            if !seen.insert((name.as_str(), wanted.index)) {
                duplicates.insert((name.as_str(), wanted.index));
            }
        }
    }
    let topic = |(name, partitions): &(String, Vec<RequestedPartition>)| {
        let partition = |wanted: &RequestedPartition| {
            let result = ListOffsetsPartitionResponse::default().with_partition_index(wanted.index);
            let found = if duplicates.contains(&(name.as_str(), wanted.index)) {
                Err(ErrorCode::InvalidRequest)
            } else {
                find(context, name, wanted)
            };
            match found {
                Ok(Some((offset, timestamp))) => {
                    let result = result.with_offset(offset).with_timestamp(timestamp);
                    match version {
                        4.. => result.with_leader_epoch(LEADER_EPOCH),
                        _ => result,
                    }
                }
                Ok(None) => result,
                Err(code) => result.with_error_code(code.code()),
            }
        };
        ListOffsetsTopicResponse::default()
            .with_name(topic_name(name))
            .with_partitions(partitions.iter().map(partition).collect())
    };
    let topics = wanted.iter().map(topic).collect();
    let response = ListOffsetsResponse::default().with_topics(topics);
    // Versions that the library does not know have new queries, but the same schema.
    body(&response, version.min(LIBRARY_VERSION_MAX))
}

/// Offset and timestamp; `None`: no message matches.
fn find(
    context: &KafkaContext,
    name: &str,
    wanted: &RequestedPartition,
) -> Result<Option<(i64, i64)>, ErrorCode> {
    let (_, log) = topics::partition(context, Operation::Describe, name, wanted.index)?;
    check_epoch(wanted.epoch)?;
    let query = wanted.query.ok_or(ErrorCode::UnsupportedVersion)?;
    let found = look_up(&log, query).map_err(|error| {
        tracing::warn!(topic = name, partition = wanted.index, %error, "cannot look up an offset");
        match error {
            ReadError::Failed(_) => ErrorCode::KafkaStorageError,
            ReadError::Closed => ErrorCode::NotLeaderOrFollower,
        }
    })?;
    let number = |offset| i64::try_from(offset).unwrap_or(i64::MAX);
    Ok(found.map(|(offset, timestamp)| (number(offset), timestamp)))
}

fn look_up(log: &Partition, query: OffsetQuery) -> Result<Option<(u64, i64)>, ReadError> {
    /// The timestamp of an answer that is not about a message.
    const NO_TIMESTAMP: i64 = -1;
    match query {
        OffsetQuery::Latest => Ok(Some((log.written_end(), NO_TIMESTAMP))),
        OffsetQuery::Earliest => Ok(Some((log.start_offset(), NO_TIMESTAMP))),
        OffsetQuery::Tiered => Ok(None),
        OffsetQuery::MaxTimestamp => log.max_timestamp(),
        OffsetQuery::Since(timestamp_ms) => log.offset_for_timestamp(timestamp_ms),
    }
}
