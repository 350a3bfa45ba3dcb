//! DeleteRecords: deletes all records before an offset.

use cloverleaf_access::Operation;
use kafka_protocol::messages::DeleteRecordsResponse;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};

use crate::answer::{Answer, body, later};
use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_catalog};
use crate::wire::{Malformed, Reader};

use super::names::topic_name;
use super::{ControlCall, settings, topics};

/// Stands for the high watermark: all records are deleted.
const END: i64 = -1;

/// A topic, its partitions, and for each the offset before which records are deleted.
type RecordsToDelete = (String, Vec<(i32, i64)>);

fn read(reader: &mut Reader<'_>) -> Result<Vec<RecordsToDelete>, Malformed> {
    let wanted = reader.array(|reader| {
        let name = reader.string()?.to_owned();
        let partitions = reader.array(|reader| {
            let partition = (reader.i32()?, reader.i64()?);
            reader.skip_tagged()?;
            Ok(partition)
        })?;
        reader.skip_tagged()?;
        Ok((name, partitions))
    })?;
    let _timeout_ms = reader.i32()?;
    reader.skip_tagged()?;
    Ok(wanted)
}

pub(super) fn handle(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let version = call.version;
    let wanted = read(&mut call.body)?;
    let context = call.context.clone();
    Ok(later(call.context, move || {
        let topic = |(name, partitions): RecordsToDelete| {
            let partition = |(index, before)| {
                let result = DeleteRecordsPartitionResult::default().with_partition_index(index);
                match delete(&context, &name, index, before) {
                    Ok(start) => result.with_low_watermark(start),
                    Err(code) => result.with_low_watermark(-1).with_error_code(code.code()),
                }
            };
            DeleteRecordsTopicResult::default()
                .with_name(topic_name(&name))
                .with_partitions(partitions.into_iter().map(partition).collect())
        };
        let results = wanted.into_iter().map(topic).collect();
        body(
            &DeleteRecordsResponse::default().with_topics(results),
            version,
        )
    }))
}

/// Deletes records; returns the new log start offset.
fn delete(context: &KafkaContext, name: &str, index: i32, before: i64) -> Result<i64, ErrorCode> {
    let (topic, log) = topics::partition(context, Operation::Declare, name, index)?;
    if !settings::policy_deletes(&topic.options()) {
        return Err(ErrorCode::PolicyViolation);
    }
    let before = match before {
        END => log.written_end(),
        _ => u64::try_from(before).map_err(|_| ErrorCode::OffsetOutOfRange)?,
    };
    let start = topic
        .delete_records(log.number(), before)
        .map_err(|error| of_catalog(&error))?;
    Ok(i64::try_from(start).unwrap_or(i64::MAX))
}
