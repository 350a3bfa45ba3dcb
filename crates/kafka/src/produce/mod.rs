//! Produce: batches from the read buffer into their topics.
//!
//! ```text
//! request   transactional id (nullable), acks i16, timeout i32,
//!           array of { name | 13+: id, array of { partition i32, records (nullable bytes) } }
//! ```
//!
//! The request is walked twice where it lies: once to see that it is whole, because what is
//! malformed must store nothing, then to store. Each batch is copied once, out of the buffer that
//! the connections of a core share; a large one that came alone has a buffer of its own and stays
//! there ([`Lone`]).
//!
//! Source: <https://kafka.apache.org/protocol#The_Messages_Produce>; what is refused and how:
//! `ProduceRequest.validateRecords`, `UnifiedLog.analyzeAndValidateRecords` of Kafka.

mod answer;
mod batch;
mod lone;
mod sample;

use std::borrow::Cow;
use std::sync::Arc;

use cloverleaf_broker::{PublishError, Topic};
use cloverleaf_log::Durability;
use cloverleaf_telemetry::Topics;

pub(crate) use answer::Produced;
pub(crate) use lone::Lone;
pub(crate) use sample::Sampler;

use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_publish};
use crate::topic_ref::{IDS_FROM, TopicKey, TopicRef};
use crate::wire::{Malformed, Reader};
use answer::{PartitionAnswer, Stored};
use batch::Records;

/// No library collects for longer; clients may write what they like.
const SPAN_MS_MAX: u64 = 3_600_000;

/// What came of a request beside its answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// The time that the first record of the first batch bears.
    pub(crate) first_record_ms: Option<i64>,
    pub(crate) batches: u64,
    /// From the time of each batch's first record to that of its last, all together.
    pub(crate) spans_ms: u64,
    /// Look-ups and appends, for the cost.
    pub(crate) calls: usize,
    /// Where the messages went.
    pub(crate) topics: Topics,
}

impl Totals {
    /// Adds those of the next request.
    pub(crate) fn merge(&mut self, next: &Totals) {
        self.messages += next.messages;
        self.bytes += next.bytes;
        self.batches += next.batches;
        self.spans_ms += next.spans_ms;
        self.topics.merge(&next.topics);
        self.first_record_ms = self.first_record_ms.or(next.first_record_ms);
    }
}

/// What the producer wants to hear, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// No answer.
    None,
    /// An answer when the batches are with the kernel.
    Leader,
    /// An answer when they are on the disk.
    All,
}

impl Acks {
    fn of(code: i16) -> Option<Acks> {
        match code {
            0 => Some(Acks::None),
            1 => Some(Acks::Leader),
            -1 => Some(Acks::All),
            _ => None,
        }
    }

    fn durability(self) -> Durability {
        match self {
            Acks::None => Durability::None,
            Acks::Leader => Durability::Kernel,
            Acks::All => Durability::Disk,
        }
    }
}

/// The producing half of a connection.
#[derive(Default)]
pub(crate) struct Producing {
    /// The last topic, so that a stream of requests looks nothing up.
    last: Option<LastTopic>,
    /// An answer that was given, for its allocations.
    spare: Produced,
}

struct LastTopic {
    topic: Arc<Topic>,
    /// The broker's generation at the look-up: with another one the topic may be deleted.
    generation: u64,
}

/// A request that was carried out.
pub(crate) struct Carried {
    pub(crate) acks: Acks,
    pub(crate) answer: Produced,
    pub(crate) totals: Totals,
}

#[derive(Clone, Copy)]
struct Head {
    acks: i16,
    transactional: bool,
}

impl Carried {
    fn new(head: Head, answer: Produced, totals: Totals) -> Carried {
        Carried {
            // An unknown number wants an answer, which says that it is unknown.
            acks: Acks::of(head.acks).unwrap_or(Acks::Leader),
            answer,
            totals,
        }
    }
}

/// The pieces of a request, as they come.
enum Piece<'a> {
    Topic(TopicKey<'a>, usize),
    Partition(i32, Option<&'a [u8]>),
}

impl Producing {
    /// Carries a request out.
    ///
    /// # Errors
    /// The body is none of this version; nothing was stored.
    pub(crate) fn execute(
        &mut self,
        context: &KafkaContext,
        version: i16,
        body: Reader<'_>,
    ) -> Result<Carried, Malformed> {
        walk(body.clone(), version, |_, _| {})?;
        let mut answer = std::mem::take(&mut self.spare);
        answer.begin(version);
        let mut totals = Totals::default();
        let mut topic = TopicRef::Id(uuid::Uuid::nil());
        let head = walk(body, version, |head, piece| match piece {
            Piece::Topic(key, partitions) => {
                topic = self.find(context, key, &mut totals);
                answer.topic(topic.clone(), partitions);
            }
            Piece::Partition(index, records) => {
                let sent = Sent {
                    context,
                    version,
                    head,
                    index,
                };
                let records = records.map_or(Records::None, Records::Lent);
                let outcome = sent.store(&topic, records, &mut totals);
                answer.partition(PartitionAnswer { index, outcome });
            }
        })?;
        Ok(Carried::new(head, answer, totals))
    }

    /// Takes an answer that was given back, so that the next one allocates nothing.
    pub(crate) fn recycle(&mut self, mut answer: Produced) {
        if answer.is_small() {
            answer.clear();
            self.spare = answer;
        }
    }

    fn find(&mut self, context: &KafkaContext, key: TopicKey<'_>, totals: &mut Totals) -> TopicRef {
        let generation = context.broker.generation();
        if let Some(last) = &self.last
            && last.generation == generation
            && match key {
                TopicKey::Name(name) => last.topic.name() == name,
                TopicKey::Id(id) => last.topic.id() == id,
            }
        {
            return TopicRef::Known(last.topic.clone());
        }
        totals.calls += 1;
        let found = key.find(&context.broker);
        self.last = found.topic().map(|topic| LastTopic {
            topic: topic.clone(),
            generation,
        });
        found
    }
}

/// Reads a request from its first to its last byte.
fn walk<'a>(
    mut body: Reader<'a>,
    version: i16,
    mut each: impl FnMut(&Head, Piece<'a>),
) -> Result<Head, Malformed> {
    let transactional = body.nullable_string()?.is_some();
    let acks = body.i16()?;
    let _timeout_ms = body.i32()?;
    let head = Head {
        acks,
        transactional,
    };
    for _ in 0..count(&mut body)? {
        let key = TopicKey::read(&mut body, version)?;
        let partitions = count(&mut body)?;
        each(&head, Piece::Topic(key, partitions));
        for _ in 0..partitions {
            let index = body.i32()?;
            let records = body.nullable_bytes()?;
            body.skip_tagged()?;
            each(&head, Piece::Partition(index, records));
        }
        body.skip_tagged()?;
    }
    body.skip_tagged()?;
    Ok(head)
}

fn count(body: &mut Reader<'_>) -> Result<usize, Malformed> {
    body.array_count()?.ok_or(Malformed {
        what: "an array is null",
    })
}

/// What is said of the batch that one partition is sent.
struct Sent<'a> {
    context: &'a KafkaContext,
    version: i16,
    head: &'a Head,
    index: i32,
}

/// Why a batch was not stored.
pub(crate) struct Refusal {
    pub(crate) error: ErrorCode,
    /// Words for the client's log.
    pub(crate) text: Option<Cow<'static, str>>,
    /// The records at fault, counted from 0, if it is not the batch as a whole: a client may send
    /// the others again (KIP-467).
    pub(crate) records: Vec<u32>,
}

impl Refusal {
    fn new(error: ErrorCode, text: Option<Cow<'static, str>>) -> Self {
        Self {
            error,
            text,
            records: Vec::new(),
        }
    }
}

impl From<PublishError> for Refusal {
    fn from(error: PublishError) -> Self {
        let refusal = Self::new(of_publish(&error), Some(error.to_string().into()));
        match error {
            PublishError::NoKey { records } | PublishError::Timestamp { records, .. } => {
                Self { records, ..refusal }
            }
            _ => refusal,
        }
    }
}

impl Sent<'_> {
    fn store(
        &self,
        topic: &TopicRef,
        records: Records<'_>,
        totals: &mut Totals,
    ) -> Result<Stored, Refusal> {
        let acks = Acks::of(self.head.acks)
            .ok_or_else(|| Refusal::new(ErrorCode::InvalidRequiredAcks, None))?;
        let Some(topic) = topic.topic() else {
            let unknown = match self.version >= IDS_FROM {
                true => ErrorCode::UnknownTopicId,
                false => ErrorCode::UnknownTopicOrPartition,
            };
            return Err(Refusal::new(unknown, None));
        };
        let unknown = || Refusal::new(ErrorCode::UnknownTopicOrPartition, None);
        let Ok(partition) = u32::try_from(self.index) else {
            return Err(unknown());
        };
        let log = topic.partition(partition).ok_or_else(unknown)?;
        let batch = batch::check(self.context, self.version, records, topic)?;
        if self.head.transactional || batch.is_transactional() {
            let text = Cow::Borrowed("transactions are not supported");
            return Err(Refusal::new(ErrorCode::InvalidTxnState, Some(text)));
        }
        let (messages, bytes) = (u64::from(batch.count()), batch.bytes().len() as u64);
        totals
            .first_record_ms
            .get_or_insert(batch.base_timestamp_ms());
        totals.batches += 1;
        totals.spans_ms += batch.span_ms().min(SPAN_MS_MAX);
        totals.calls += 1;
        let published = topic
            .publish_to(partition, batch, acks.durability())
            .map_err(Refusal::from)?;
        totals.messages += messages;
        totals.bytes += bytes;
        totals.topics.add(topic.number());
        Ok(Stored { log, published })
    }
}
