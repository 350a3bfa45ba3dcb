//! DescribeProducers: the idempotent producers that a partition remembers.

use std::collections::{BTreeMap, BTreeSet};

use cloverleaf_access::Operation;
use kafka_protocol::messages::DescribeProducersResponse;
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};

use crate::answer::{Answer, body};
use crate::context::KafkaContext;
use crate::wire::{Malformed, Reader};

use super::names::topic_name;
use super::{ControlCall, topics};

/// The coordinator epoch of a producer without transactions.
const NONE: i32 = -1;

pub(super) fn describe(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    // Each partition once: a short request must not cause a huge answer.
    let mut wanted: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
    reader.array(|reader| {
        let name = reader.string()?;
        let partitions = reader.array(Reader::i32)?;
        reader.skip_tagged()?;
        wanted.entry(name).or_default().extend(partitions);
        Ok(())
    })?;
    reader.skip_tagged()?;

    let context = call.context;
    let topic = |(name, partitions): (&str, BTreeSet<i32>)| {
        let partitions = partitions.into_iter();
        TopicResponse::default()
            .with_name(topic_name(name))
            .with_partitions(
                partitions
                    .map(|index| partition(context, name, index))
                    .collect(),
            )
    };
    let response =
        DescribeProducersResponse::default().with_topics(wanted.into_iter().map(topic).collect());
    Ok(Answer::Ready(body(&response, call.version)))
}

fn partition(context: &KafkaContext, name: &str, index: i32) -> PartitionResponse {
    let result = PartitionResponse::default()
        .with_partition_index(index)
        .with_error_message(None);
    match topics::partition(context, Operation::Describe, name, index) {
        Err(code) => result.with_error_code(code.code()),
        Ok((_, log)) => {
            let producers = log.producers().into_iter().map(|producer| {
                ProducerState::default()
                    .with_producer_id(producer.producer_id.into())
                    .with_producer_epoch(i32::from(producer.epoch))
                    .with_last_sequence(producer.last_sequence)
                    .with_last_timestamp(producer.last_timestamp_ms)
                    .with_coordinator_epoch(NONE)
            });
            result.with_active_producers(producers.collect())
        }
    }
}
