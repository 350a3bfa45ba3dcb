//! Requests with a single batch, as most are. They are parsed first and stored in a second step, so
//! that the session can take over the read buffer, instead of copying the batch, if nothing else is
//! in it.

use std::ops::Range;

use cloverleaf_session::Meter;

use super::answer::PartitionAnswer;
use super::batch::ProducedRecords;
use super::{BatchContext, ExecutedProduce, ProduceElement, ProduceHead, ProduceState};
use crate::context::KafkaContext;
use crate::topic_ref::{TopicKey, TopicRef};

/// A parsed request with one topic and one partition, whose batch is not stored yet.
pub(crate) struct SingleBatch {
    pub(super) version: i16,
    pub(super) head: ProduceHead,
    pub(super) topic: TopicRef,
    pub(super) index: i32,
    /// The byte range of the batch in the request; `None`: the records are null.
    pub(super) range: Option<Range<usize>>,
}

impl SingleBatch {
    /// The byte range of the batch in the request; `None`: the records are null.
    pub(crate) fn range(&self) -> Option<Range<usize>> {
        self.range.clone()
    }
}

/// Collects the topics and partitions of a request, to find out whether it has exactly one of each.
#[derive(Default)]
pub(super) struct ProduceElements<'a> {
    count: usize,
    topic: Option<TopicKey<'a>>,
    partition: Option<(i32, Option<&'a [u8]>)>,
}

impl<'a> ProduceElements<'a> {
    pub(super) fn add(&mut self, element: ProduceElement<'a>) {
        self.count += 1;
        match element {
            ProduceElement::Topic(topic, _) => self.topic = Some(topic),
            ProduceElement::Partition(index, records) => self.partition = Some((index, records)),
        }
    }

    /// The topic, the partition and its records, if the request has exactly one of each.
    pub(super) fn only_partition(self) -> Option<(TopicKey<'a>, i32, Option<&'a [u8]>)> {
        let (topic, (index, records)) = (self.topic?, self.partition?);
        (self.count == 2).then_some((topic, index, records))
    }
}

impl ProduceState {
    /// Executes a request with a single batch, which is `records`.
    pub(crate) fn store_single_batch(
        &mut self,
        context: &KafkaContext,
        meter: &mut Meter,
        single_batch: SingleBatch,
        records: ProducedRecords<'_>,
    ) -> ExecutedProduce {
        let SingleBatch {
            version,
            head,
            topic,
            index,
            ..
        } = single_batch;
        let batch_context = BatchContext {
            context,
            version,
            head: &head,
            index,
        };
        let outcome = batch_context.store(&topic, records, (meter, &mut self.batches));
        let mut answer = std::mem::take(&mut self.spare);
        answer.begin(version);
        answer.topic(topic, 1);
        answer.partition(PartitionAnswer { index, outcome });
        ExecutedProduce::new(head, answer)
    }
}
