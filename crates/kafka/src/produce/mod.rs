//! Produce: appends record batches from the read buffer to their partitions.
//!
//! ```text
//! request   transactional id (nullable), acks i16, timeout i32,
//!           array of { name | 13+: id, array of { partition i32, records (nullable bytes) } }
//! ```
//!
//! The request is parsed in place to validate it, because a malformed request must store nothing. A
//! single batch is then stored directly; several batches are stored by a second parse. Each batch
//! is copied once, out of the read buffer that the connections of a core share. A large request is
//! read into a buffer of its own; if it has a single batch, the batch stays in that buffer
//! ([`SingleBatch`]).
//!
//! Source: <https://kafka.apache.org/protocol#The_Messages_Produce>. Batches are refused by the
//! rules of Kafka's `ProduceRequest.validateRecords` and `UnifiedLog.analyzeAndValidateRecords`.

mod answer;
mod batch;
mod sample;
mod single_batch;

use std::borrow::Cow;
use std::sync::Arc;

use cloverleaf_access::Operation;
use cloverleaf_broker::{PublishError, Topic, TopicUnavailable};
use cloverleaf_log::Durability;
use cloverleaf_session::{Cached, Meter, Now};
use cloverleaf_telemetry::Probe;

pub(crate) use answer::ProduceAnswer;
pub(crate) use batch::ProducedRecords;
pub(crate) use sample::CompressionSampler;
pub(crate) use single_batch::SingleBatch;

use crate::context::KafkaContext;
use crate::error_code::{ErrorCode, of_publish};
use crate::topic_ref::{TopicKey, TopicRef};
use crate::wire::{Malformed, Reader};
use answer::{AppendedBatch, PartitionAnswer};
use single_batch::ProduceElements;

/// Cap on a batch's time span (from its first to its last record) in the telemetry, in
/// milliseconds: no library lingers longer, but a client may write any timestamps.
const SPAN_MS_MAX: u64 = 3_600_000;

/// Statistics of the batches of one socket read, for the telemetry.
#[derive(Clone, Copy, Debug, Default)]
struct BatchStatistics {
    count: u64,
    /// Sum over the batches of the time between the timestamps of the first and the last record, in
    /// milliseconds.
    spans_ms: u64,
    /// Timestamp of the first record of the first batch, in milliseconds since 1970.
    first_record_ms: Option<i64>,
}

/// The `acks` of a request: whether and when it is answered. The broker's durability mode may
/// change what an answer promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// `acks=0`: no answer.
    None,
    /// `acks=1`: an answer once the batches are written to the kernel.
    Leader,
    /// `acks=all`: an answer once the batches are synced to the disk.
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

/// The state of a connection for Produce requests.
#[derive(Default)]
pub(crate) struct ProduceState {
    /// The topic of the last request, so that consecutive requests to one topic need no lookup.
    last: Cached<Option<Arc<Topic>>>,
    /// An answer that was sent, kept to reuse its allocations.
    spare: ProduceAnswer,
    batches: BatchStatistics,
}

/// A request that was parsed to its end.
pub(crate) enum ParsedProduce {
    /// The request has a single batch, which is still to be stored.
    SingleBatch(SingleBatch),
    /// The request has no batch or several, which were stored or refused.
    Executed(ExecutedProduce),
}

/// A request that was executed.
pub(crate) struct ExecutedProduce {
    pub(crate) acks: Acks,
    pub(crate) answer: ProduceAnswer,
}

#[derive(Clone, Copy)]
struct ProduceHead {
    acks: i16,
    transactional: bool,
}

impl ExecutedProduce {
    fn new(head: ProduceHead, answer: ProduceAnswer) -> ExecutedProduce {
        ExecutedProduce {
            // An invalid `acks` is answered, with InvalidRequiredAcks.
            acks: Acks::of(head.acks).unwrap_or(Acks::Leader),
            answer,
        }
    }
}

/// An element of a request: a topic with the number of its partitions, or a partition with its
/// records.
enum ProduceElement<'a> {
    Topic(TopicKey<'a>, usize),
    Partition(i32, Option<&'a [u8]>),
}

impl ProduceState {
    /// Executes a request. If it has a single batch it is only parsed, and
    /// [`ProduceState::store_single_batch`] stores the batch. `body` is the part of `request` after
    /// the header.
    ///
    /// # Errors
    /// The body is malformed for this version; nothing was stored.
    pub(crate) fn execute(
        &mut self,
        context: &KafkaContext,
        meter: &mut Meter,
        version: i16,
        request: &[u8],
        body: Reader<'_>,
    ) -> Result<ParsedProduce, Malformed> {
        let mut elements = ProduceElements::default();
        let head = walk(body.clone(), version, |_, element| elements.add(element))?;
        if let Some((key, index, records)) = elements.only_partition() {
            let range = records.map(|records| {
                let start = records.as_ptr().addr() - request.as_ptr().addr();
                start..start + records.len()
            });
            return Ok(ParsedProduce::SingleBatch(SingleBatch {
                version,
                head,
                topic: self.find(context, meter, key),
                index,
                range,
            }));
        }
        let mut answer = std::mem::take(&mut self.spare);
        answer.begin(version);
        let mut topic = TopicRef::Id(uuid::Uuid::nil(), TopicUnavailable::Unknown);
        let head = walk(body, version, |head, element| match element {
            ProduceElement::Topic(key, partitions) => {
                topic = self.find(context, meter, key);
                answer.topic(topic.clone(), partitions);
            }
            ProduceElement::Partition(index, records) => {
                let batch_context = BatchContext {
                    context,
                    version,
                    head,
                    index,
                };
                let telemetry = (&mut *meter, &mut self.batches);
                let records = records.map_or(ProducedRecords::None, ProducedRecords::Lent);
                let outcome = batch_context.store(&topic, records, telemetry);
                answer.partition(PartitionAnswer { index, outcome });
            }
        })?;
        Ok(ParsedProduce::Executed(ExecutedProduce::new(head, answer)))
    }

    /// Takes back an answer that was sent, so that the next one allocates nothing.
    pub(crate) fn recycle(&mut self, mut answer: ProduceAnswer) {
        if answer.is_small() {
            answer.clear();
            self.spare = answer;
        }
    }

    /// Reports the batches of a socket read to the telemetry, after the read's requests were
    /// reported.
    pub(crate) fn report(&mut self, probe: &Probe, now: Now) {
        let batches = std::mem::take(&mut self.batches);
        probe.batches(batches.count, batches.spans_ms * 1000);
        if let Some(first_ms) = batches.first_record_ms {
            // Saturating, because a client may write any timestamp.
            let unix_us = i64::try_from(now.unix_us).unwrap_or(i64::MAX);
            probe.record_age(unix_us.saturating_sub(first_ms.saturating_mul(1000)));
        }
    }

    fn find(&mut self, context: &KafkaContext, meter: &mut Meter, key: TopicKey<'_>) -> TopicRef {
        let last = self.last.at(context.realm.generation());
        if let Some(topic) = last
            && match key {
                TopicKey::Name(name) => topic.name() == name,
                TopicKey::Id(id) => topic.id() == id,
            }
        {
            return TopicRef::Known(topic.clone());
        }
        meter.called(1);
        let found = key.find(Operation::Publish, &context.realm);
        *last = found.topic().cloned();
        found
    }
}

/// Parses a request to its end. Calls `each` for its topics and partitions, in order.
fn walk<'a>(
    mut body: Reader<'a>,
    version: i16,
    mut each: impl FnMut(&ProduceHead, ProduceElement<'a>),
) -> Result<ProduceHead, Malformed> {
    let transactional = body.nullable_string()?.is_some();
    let acks = body.i16()?;
    let _timeout_ms = body.i32()?;
    let head = ProduceHead {
        acks,
        transactional,
    };
    for _ in 0..count(&mut body)? {
        let key = TopicKey::read(&mut body, version)?;
        let partitions = count(&mut body)?;
        each(&head, ProduceElement::Topic(key, partitions));
        for _ in 0..partitions {
            let index = body.i32()?;
            let records = body.nullable_bytes()?;
            body.skip_tagged()?;
            each(&head, ProduceElement::Partition(index, records));
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

/// The partition of a batch, and the request in which it came.
struct BatchContext<'a> {
    context: &'a KafkaContext,
    version: i16,
    head: &'a ProduceHead,
    index: i32,
}

/// The reason why a batch was not stored.
pub(crate) struct BatchRefusal {
    pub(crate) error: ErrorCode,
    /// The error message, which the client logs.
    pub(crate) text: Option<Cow<'static, str>>,
    /// Indexes of the invalid records in the batch; empty if the batch as a whole is refused. A
    /// client may send the other records again (KIP-467).
    pub(crate) records: Vec<u32>,
}

impl BatchRefusal {
    fn new(error: ErrorCode, text: Option<Cow<'static, str>>) -> Self {
        Self {
            error,
            text,
            records: Vec::new(),
        }
    }
}

impl From<PublishError> for BatchRefusal {
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

impl BatchContext<'_> {
    fn store(
        &self,
        topic: &TopicRef,
        records: ProducedRecords<'_>,
        (meter, batches): (&mut Meter, &mut BatchStatistics),
    ) -> Result<AppendedBatch, BatchRefusal> {
        let acks = Acks::of(self.head.acks)
            .ok_or_else(|| BatchRefusal::new(ErrorCode::InvalidRequiredAcks, None))?;
        let Some(topic) = topic.topic() else {
            return Err(BatchRefusal::new(topic.error(self.version), None));
        };
        let unknown = || BatchRefusal::new(ErrorCode::UnknownTopicOrPartition, None);
        let Ok(partition) = u32::try_from(self.index) else {
            return Err(unknown());
        };
        let log = topic.partition(partition).ok_or_else(unknown)?;
        let batch = batch::check(self.context, self.version, records, topic)?;
        if self.head.transactional || batch.is_transactional() {
            let text = Cow::Borrowed("transactions are not supported");
            return Err(BatchRefusal::new(ErrorCode::InvalidTxnState, Some(text)));
        }
        let (messages, bytes) = (u64::from(batch.count()), batch.bytes().len() as u64);
        batches
            .first_record_ms
            .get_or_insert(batch.base_timestamp_ms());
        batches.count += 1;
        batches.spans_ms += batch.span_ms().min(SPAN_MS_MAX);
        meter.called(1);
        let published = topic
            .publish_to(partition, batch, acks.durability())
            .map_err(BatchRefusal::from)?;
        meter.published.messages += messages;
        meter.published.bytes += bytes;
        meter.published.topics.add(topic.number());
        Ok(AppendedBatch { log, published })
    }
}
