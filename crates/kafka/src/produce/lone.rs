//! A request with one large batch and little else, in a buffer of its own: the batch stays there.

use std::ops::Range;

use bytes::Bytes;
use cloverleaf_session::Meter;

use super::answer::PartitionAnswer;
use super::batch::Records;
use super::{Carried, Head, Piece, Producing, Sent, walk};
use crate::context::KafkaContext;
use crate::topic_ref::TopicRef;
use crate::wire::Reader;

/// A smaller batch is copied: that costs less than to find it, and keeps less memory.
const LONE_BYTES_MIN: usize = 64 * 1024;

/// Most bytes beside the batch: its buffer stays in memory as long as the batch does, and whoever
/// counts memory counts the batch.
const BESIDE_BYTES_MAX: usize = 4 * 1024;

/// All that such a request says, but for the batch.
pub(crate) struct Lone {
    version: i16,
    head: Head,
    topic: TopicRef,
    index: i32,
    range: Range<usize>,
}

impl Lone {
    /// Where the batch lies in the request.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Producing {
    /// Sees whether a request is whole and carries one large batch. `body` is the rest of
    /// `request` behind the header.
    pub(crate) fn find_lone(
        &mut self,
        context: &KafkaContext,
        meter: &mut Meter,
        version: i16,
        request: &[u8],
        body: Reader<'_>,
    ) -> Option<Lone> {
        let (mut key, mut batch, mut batches) = (None, None, 0);
        let head = walk(body, version, |_, piece| match piece {
            Piece::Topic(topic, _) => key = Some(topic),
            Piece::Partition(index, records) => {
                batch = records.map(|records| (key, index, records));
                batches += 1;
            }
        })
        .ok()?;
        let (Some((Some(key), index, records)), 1) = (batch, batches) else {
            return None;
        };
        if records.len() < LONE_BYTES_MIN || request.len() - records.len() > BESIDE_BYTES_MAX {
            return None;
        }
        let start = records.as_ptr().addr() - request.as_ptr().addr();
        Some(Lone {
            version,
            head,
            topic: self.find(context, meter, key),
            index,
            range: start..start + records.len(),
        })
    }

    /// Carries such a request out. `records` lie where the request came, and nobody else has them.
    pub(crate) fn execute_lone(
        &mut self,
        context: &KafkaContext,
        meter: &mut Meter,
        lone: Lone,
        records: Bytes,
    ) -> Carried {
        let Lone {
            version,
            head,
            topic,
            index,
            ..
        } = lone;
        let mut answer = std::mem::take(&mut self.spare);
        answer.begin(version);
        answer.topic(topic.clone(), 1);
        let sent = Sent {
            context,
            version,
            head: &head,
            index,
        };
        let told = (meter, &mut self.batches);
        let outcome = sent.store(&topic, Records::Own(records), told);
        answer.partition(PartitionAnswer { index, outcome });
        Carried::new(head, answer)
    }
}
