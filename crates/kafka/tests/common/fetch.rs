//! Fetch requests of a client, and the parts of an answer that tests compare.

#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::sync::Arc;

use cloverleaf_broker::Topic;
use cloverleaf_log::Durability;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::fetch_request::{
    FetchPartition, FetchRequest, FetchTopic, ForgottenTopic,
};
use kafka_protocol::messages::fetch_response::{FetchResponse, PartitionData};

use super::{Peer, batch, text, values};

/// A partition, and the offset from which it is read.
pub type From = (i32, i64);

pub struct FetchCall {
    pub version: i16,
    pub request: FetchRequest,
}

impl FetchCall {
    pub fn new(version: i16) -> FetchCall {
        let request = FetchRequest::default()
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(50 << 20);
        let request = if version >= 7 {
            request.with_session_epoch(-1)
        } else {
            request
        };
        FetchCall { version, request }
    }

    pub fn of(mut self, topic: &Topic, from: &[From]) -> FetchCall {
        let partition = |(index, offset): &From| {
            FetchPartition::default()
                .with_partition(*index)
                .with_fetch_offset(*offset)
                .with_partition_max_bytes(1 << 20)
        };
        let named = FetchTopic::default().with_partitions(from.iter().map(partition).collect());
        let named = if self.version >= 13 {
            named.with_topic_id(topic.id())
        } else {
            named.with_topic(TopicName(text(topic.name())))
        };
        self.request.topics.push(named);
        self
    }

    pub fn session(mut self, id: i32, epoch: i32) -> FetchCall {
        self.request.session_id = id;
        self.request.session_epoch = epoch;
        self
    }

    pub fn forget(mut self, topic: &Topic, partition: i32) -> FetchCall {
        let named = ForgottenTopic::default().with_partitions(vec![partition]);
        let named = if self.version >= 13 {
            named.with_topic_id(topic.id())
        } else {
            named.with_topic(TopicName(text(topic.name())))
        };
        self.request.forgotten_topics_data.push(named);
        self
    }

    pub fn limits(mut self, min_bytes: i32, max_bytes: i32, partition_max_bytes: i32) -> FetchCall {
        self.request.min_bytes = min_bytes;
        self.request.max_bytes = max_bytes;
        for partition in self
            .request
            .topics
            .iter_mut()
            .flat_map(|it| &mut it.partitions)
        {
            partition.partition_max_bytes = partition_max_bytes;
        }
        self
    }

    pub fn call(&self, peer: &mut Peer<'_>) -> FetchResponse {
        peer.call(self.version, &self.request)
    }

    pub fn send(&self, peer: &mut Peer<'_>) -> i32 {
        peer.send(self.version, &self.request)
    }

    /// Sends the request, and returns its answer, which comes only when the wait has timed out.
    pub fn empty(&self, peer: &mut Peer<'_>) -> FetchResponse {
        let id = self.send(peer);
        peer.pump();
        peer.expect_nothing();
        peer.advance(500);
        peer.expect::<FetchRequest>(self.version, id)
    }
}

pub fn publish(topic: &Arc<Topic>, partition: u32, of: &[&str]) {
    let published = topic.publish_to(partition, batch(of), Durability::Kernel);
    drop(published.unwrap());
}

pub fn parts(response: &FetchResponse) -> Vec<&PartitionData> {
    response
        .responses
        .iter()
        .flat_map(|topic| &topic.partitions)
        .collect()
}

/// Partition, error and values of each partition in an answer.
pub fn results(response: &FetchResponse) -> Vec<(i32, i16, Vec<String>)> {
    let one = |it: &&PartitionData| {
        let records = it.records.clone().unwrap();
        (it.partition_index, it.error_code, values(&records))
    };
    parts(response).iter().map(one).collect()
}

pub fn strings(of: &[&str]) -> Vec<String> {
    of.iter().map(|it| (*it).to_owned()).collect()
}
