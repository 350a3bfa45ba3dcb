//! The answer to a Produce: it waits until each batch of the request is as durable as `acks` asks.
//!
//! ```text
//! array of { name | 13+: id, array of { partition i32, error i16, base offset i64,
//!   append time i64, [5+: log start offset i64],
//!   [8+: array of { record i32, error string, [9+: tags] }, error message], [9+: tags] },
//!   [9+: tags] }, throttle time i32, [9+: tags]
//! ```

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use cloverleaf_broker::{Partition, Published};

use super::BatchRefusal;
use crate::error_code::ErrorCode;
use crate::topic_ref::TopicRef;
use crate::wire_out::Writer;

/// An answer with more capacity than this, in partitions, is freed; a smaller one keeps its
/// allocations.
const KEPT_PARTITIONS_MAX: usize = 64;

/// The answer to one request.
#[derive(Default)]
pub(crate) struct ProduceAnswer {
    version: i16,
    topics: Vec<TopicAnswer>,
    partitions: Vec<PartitionAnswer>,
    /// Index in `partitions`: the outcome of all partitions before it is final.
    decided: usize,
}

struct TopicAnswer {
    topic: TopicRef,
    partitions: usize,
}

/// The answer for one partition.
pub(crate) struct PartitionAnswer {
    pub(crate) index: i32,
    pub(crate) outcome: Result<AppendedBatch, BatchRefusal>,
}

/// A batch that the log has accepted. `published` resolves when it is durable.
pub(crate) struct AppendedBatch {
    pub(crate) log: Partition,
    pub(crate) published: Published,
}

impl ProduceAnswer {
    pub(super) fn begin(&mut self, version: i16) {
        self.version = version;
    }

    pub(super) fn topic(&mut self, topic: TopicRef, partitions: usize) {
        self.topics.push(TopicAnswer { topic, partitions });
    }

    pub(super) fn partition(&mut self, answer: PartitionAnswer) {
        self.partitions.push(answer);
    }

    pub(super) fn clear(&mut self) {
        self.topics.clear();
        self.partitions.clear();
        self.decided = 0;
    }

    pub(super) fn is_small(&self) -> bool {
        self.partitions.capacity() <= KEPT_PARTITIONS_MAX
            && self.topics.capacity() <= KEPT_PARTITIONS_MAX
    }

    /// Approximate memory of the queued answer, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let refusals = self
            .partitions
            .iter()
            .filter_map(|it| it.outcome.as_ref().err());
        let named: usize = refusals.map(|refusal| refusal.records.len()).sum();
        self.topics.len() * size_of::<TopicAnswer>()
            + self.partitions.len() * size_of::<PartitionAnswer>()
            + named * size_of::<u32>()
    }

    /// The first partition whose error is known already, with its topic.
    pub(crate) fn first_error(&self) -> Option<(&TopicRef, &BatchRefusal)> {
        let mut partitions = self.partitions.iter();
        self.topics.iter().find_map(|topic| {
            let mut its = partitions.by_ref().take(topic.partitions);
            let error = its.find_map(|partition| partition.outcome.as_ref().err());
            error.map(|error| (&topic.topic, error))
        })
    }

    /// Ready when each batch is as durable as `acks` asks, or has failed. Returns the number of
    /// failed ones.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        while let Some(partition) = self.partitions.get_mut(self.decided) {
            if let Ok(stored) = &mut partition.outcome
                && let Err(error) = ready!(Pin::new(&mut stored.published).poll(cx))
            {
                partition.outcome = Err(error.into());
            }
            self.decided += 1;
        }
        let failed = |partition: &&PartitionAnswer| partition.outcome.is_err();
        Poll::Ready(self.partitions.iter().filter(failed).count() as u64)
    }

    /// Appends the body.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let writer = &mut Writer::new(out, self.version >= 9);
        let mut partitions = self.partitions.iter();
        writer.len(self.topics.len());
        for topic in &self.topics {
            topic.topic.write(writer, self.version);
            writer.len(topic.partitions);
            for partition in partitions.by_ref().take(topic.partitions) {
                partition.write(writer, self.version);
            }
            writer.no_tags();
        }
        writer.i32(0);
        writer.no_tags();
    }
}

impl PartitionAnswer {
    fn write(&self, writer: &mut Writer<'_>, version: i16) {
        writer.i32(self.index);
        let (error, base_offset, append_time_ms) = match &self.outcome {
            Ok(AppendedBatch { published, .. }) => {
                let append_time_ms = published.append_time_ms().unwrap_or(-1);
                (
                    ErrorCode::None,
                    published.first_offset() as i64,
                    append_time_ms,
                )
            }
            Err(refusal) => (refusal.error, -1, -1),
        };
        writer.i16(error.code());
        writer.i64(base_offset);
        writer.i64(append_time_ms);
        if version >= 5 {
            let start = self.outcome.as_ref().map(|it| it.log.start_offset() as i64);
            writer.i64(start.unwrap_or(-1));
        }
        if version >= 8 {
            let refusal = self.outcome.as_ref().err();
            let records = refusal.map_or(&[][..], |refusal| &refusal.records);
            writer.len(records.len());
            for record in records {
                // Fits in i32: an index below the record count of a batch, which is an i32.
                writer.i32(record.cast_signed());
                writer.nullable_string(None);
                writer.no_tags();
            }
            writer.nullable_string(refusal.and_then(|refusal| refusal.text.as_deref()));
        }
        writer.no_tags();
    }
}
