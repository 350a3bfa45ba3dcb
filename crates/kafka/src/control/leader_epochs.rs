//! OffsetForLeaderEpoch: the end offset of a leader epoch. There is one epoch.

use cloverleaf_access::Operation;
use kafka_protocol::messages::OffsetForLeaderEpochResponse;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};

use crate::answer::{Answer, body};
use crate::context::KafkaContext;
use crate::error_code::ErrorCode;
use crate::wire::Malformed;

use super::names::topic_name;
use super::{ControlCall, LEADER_EPOCH, check_epoch, topics};

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let reader = &mut call.body;
    if version >= 3 {
        let _replica_id = reader.i32()?;
    }
    let context = call.context;
    let results = reader.array(|reader| {
        let name = reader.string()?;
        let partitions = reader.array(|reader| {
            let (index, current, epoch) = (reader.i32()?, reader.i32()?, reader.i32()?);
            reader.skip_tagged()?;
            let result = EpochEndOffset::default().with_partition(index);
            Ok(match end(context, name, index, current, epoch) {
                Ok(Some(end)) => result.with_leader_epoch(LEADER_EPOCH).with_end_offset(end),
                Ok(None) => result,
                Err(code) => result.with_error_code(code.code()),
            })
        })?;
        reader.skip_tagged()?;
        Ok(OffsetForLeaderTopicResult::default()
            .with_topic(topic_name(name))
            .with_partitions(partitions))
    })?;
    reader.skip_tagged()?;
    let response = OffsetForLeaderEpochResponse::default().with_topics(results);
    Ok(Answer::Ready(body(&response, version)))
}

/// The end offset of the epoch; `None`: there never was such an epoch.
fn end(
    context: &KafkaContext,
    name: &str,
    index: i32,
    current: i32,
    epoch: i32,
) -> Result<Option<i64>, ErrorCode> {
    let (_, log) = topics::partition(context, Operation::Describe, name, index)?;
    check_epoch(current)?;
    // The offset of the next message, not the high watermark. A consumer whose position is above
    // the high watermark has read messages that a power loss destroyed; it must not truncate, but
    // waits for the next message. The lost offsets are never assigned again.
    let end = i64::try_from(log.next_offset()).unwrap_or(i64::MAX);
    Ok((epoch == LEADER_EPOCH).then_some(end))
}
