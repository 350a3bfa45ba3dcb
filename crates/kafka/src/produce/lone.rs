//! A request with a single batch, as most are: the first pass over it tells what is to be done, so
//! that the batch may stay in the buffer that the request came in, if nobody else needs it.

use std::ops::Range;

use cloverleaf_session::Meter;

use super::answer::PartitionAnswer;
use super::batch::Records;
use super::{Carried, Head, Piece, Producing, Sent};
use crate::context::KafkaContext;
use crate::topic_ref::{TopicKey, TopicRef};

/// All that such a request says, but for the batch.
pub(crate) struct Lone {
    pub(super) version: i16,
    pub(super) head: Head,
    pub(super) topic: TopicRef,
    pub(super) index: i32,
    /// Where the batch lies in the request; `None`: there is none.
    pub(super) range: Option<Range<usize>>,
}

impl Lone {
    /// Where the batch lies in the request, if there is one.
    pub(crate) fn range(&self) -> Option<Range<usize>> {
        self.range.clone()
    }
}

/// Counts topics and partitions of a request, to see whether it has exactly one of each.
#[derive(Default)]
pub(super) struct Pieces<'a> {
    count: usize,
    topic: Option<TopicKey<'a>>,
    partition: Option<(i32, Option<&'a [u8]>)>,
}

impl<'a> Pieces<'a> {
    pub(super) fn add(&mut self, piece: Piece<'a>) {
        self.count += 1;
        match piece {
            Piece::Topic(topic, _) => self.topic = Some(topic),
            Piece::Partition(index, records) => self.partition = Some((index, records)),
        }
    }

    /// The only topic, and its only partition.
    pub(super) fn lone(self) -> Option<(TopicKey<'a>, i32, Option<&'a [u8]>)> {
        let (topic, (index, records)) = (self.topic?, self.partition?);
        (self.count == 2).then_some((topic, index, records))
    }
}

impl Producing {
    /// Carries such a request out. `records` are its batch.
    pub(crate) fn execute_lone(
        &mut self,
        context: &KafkaContext,
        meter: &mut Meter,
        lone: Lone,
        records: Records<'_>,
    ) -> Carried {
        let Lone {
            version,
            head,
            topic,
            index,
            ..
        } = lone;
        let sent = Sent {
            context,
            version,
            head: &head,
            index,
        };
        let outcome = sent.store(&topic, records, (meter, &mut self.batches));
        let mut answer = std::mem::take(&mut self.spare);
        answer.begin(version);
        answer.topic(topic, 1);
        answer.partition(PartitionAnswer { index, outcome });
        Carried::new(head, answer)
    }
}
