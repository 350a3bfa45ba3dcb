//! The state of a partition's idempotent producers, by which a duplicate batch is recognized and
//! not stored again. Uses no clock and no file.
//!
//! For each producer id the table has the newest batches with their sequence numbers and offsets:
//! the last [`REMEMBERED_BATCHES`] that were written (Kafka's producers have at most this many
//! requests in flight), and those that are not written yet, so that a failed write can be undone.
//! The rules are those of Kafka's `ProducerAppendInfo`.
//!
//! One case does not exist in Kafka: after a power loss a batch may be missing although a later
//! one, in the next segment, is there. (Neither was acknowledged as synced.) A retry of the lost
//! batch is accepted out of sequence, so that no batch is lost and none is stored twice.

pub(crate) mod idempotence;
pub(crate) mod recovery;
pub(crate) mod snapshot;

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset, field};
use crate::error::AppendError;
use crate::producers::snapshot::SnapshotProducer;

/// Number of written batches of a producer whose duplicates are recognized.
pub(crate) const REMEMBERED_BATCHES: usize = 5;
/// A full table evicts one in this many of its producers at once.
const EVICTED_ONE_IN: usize = 8;

/// The state of an idempotent producer in a partition, as reported to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerInfo {
    /// The producer's id.
    pub producer_id: i64,
    /// The newest epoch.
    pub epoch: i16,
    /// Sequence number of the last record.
    pub last_sequence: i32,
    /// Highest timestamp of the last batch, in milliseconds since 1970.
    pub last_timestamp_ms: i64,
}

/// A batch of an idempotent producer, with its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// Offset of the first record.
    pub base: Offset,
    /// Number of records that the producer has sent, at least 1; compaction may have removed some.
    pub records: u32,
    /// Sequence number of the first record.
    pub first_sequence: i32,
    /// The producer's epoch.
    pub epoch: i16,
    /// Highest timestamp of the records, in milliseconds since 1970.
    pub timestamp_ms: i64,
}

impl ProducerBatch {
    /// Offset after the last record.
    pub fn end(&self) -> Offset {
        self.base.saturating_add(u64::from(self.records))
    }

    /// Sequence number of the last record.
    pub fn last_sequence(&self) -> i32 {
        sequence_after(self.first_sequence, self.records - 1)
    }
}

/// The sequence number `count` after `sequence`; 0 follows `i32::MAX`.
fn sequence_after(sequence: i32, count: u32) -> i32 {
    let sum = i64::from(sequence) + i64::from(count);
    (sum & i64::from(i32::MAX)) as i32
}

/// Hashes producer ids with one multiplication, at a tenth of the standard hasher's cost per batch.
/// Clients choose the ids, so a random secret is mixed in.
#[derive(Clone)]
struct ProducerIdHasher(u64);

impl ProducerIdHasher {
    fn new() -> ProducerIdHasher {
        ProducerIdHasher(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for ProducerIdHasher {
    type Hasher = ProducerIdHasher;

    fn build_hasher(&self) -> ProducerIdHasher {
        self.clone()
    }
}

impl Hasher for ProducerIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        // 2^64 divided by the golden ratio, a usual multiplier for hashing.
        let wide = u128::from(value ^ self.0) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }
}

/// The fields of a batch header that concern its idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProducerFields {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
    pub(crate) first_sequence: i32,
    pub(crate) records: u32,
    pub(crate) timestamp_ms: i64,
}

impl ProducerFields {
    /// `None` for a batch without a producer id, and for a control batch (a transaction marker),
    /// which has no sequence number.
    #[inline]
    pub(crate) fn of(batch: &Batch) -> Option<ProducerFields> {
        if batch.producer_id() < 0 {
            return None;
        }
        ProducerFields::peek(batch.bytes())
    }

    /// As [`ProducerFields::of`], but from the bytes of a header, which may be corrupt.
    pub(crate) fn peek(header: &[u8]) -> Option<ProducerFields> {
        let header = header.get(..BATCH_HEADER_BYTES)?;
        let producer_id = i64::from_be_bytes(field(header, 43));
        let last_offset_delta = i32::from_be_bytes(field(header, 23));
        let is_control = header[22] & 0x20 != 0;
        if producer_id < 0 || last_offset_delta < 0 || is_control {
            return None;
        }
        Some(ProducerFields {
            producer_id,
            epoch: i16::from_be_bytes(field(header, 51)),
            first_sequence: i32::from_be_bytes(field(header, 53)),
            records: last_offset_delta as u32 + 1,
            timestamp_ms: i64::from_be_bytes(field(header, 35)),
        })
    }

    fn with_base(&self, base: Offset) -> ProducerBatch {
        ProducerBatch {
            base,
            records: self.records,
            first_sequence: self.first_sequence,
            epoch: self.epoch,
            timestamp_ms: self.timestamp_ms,
        }
    }
}

/// Whether to append a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceVerdict {
    /// Append it.
    New,
    /// Do not append it: it is stored, as this batch.
    Duplicate(ProducerBatch),
}

/// Counts the producers of all partitions.
#[derive(Debug)]
pub(crate) struct ProducersTotal {
    count: AtomicUsize,
    /// Once `count` reaches this number, a partition with at least [`PRODUCERS_KEPT_MIN`] producers
    /// evicts some of them before it adds one.
    max: usize,
}

/// A partition with fewer producers than this evicts none because of the total limit. Otherwise its
/// active producers would evict each other in turn, and their retries would be stored twice.
const PRODUCERS_KEPT_MIN: usize = 64;

impl ProducersTotal {
    pub(crate) fn new(max: usize) -> Arc<ProducersTotal> {
        Arc::new(ProducersTotal {
            count: AtomicUsize::new(0),
            max,
        })
    }

    fn is_full(&self) -> bool {
        self.count.load(Relaxed) >= self.max
    }
}

/// The table of a partition's idempotent producers.
pub(crate) struct Producers {
    total: Arc<ProducersTotal>,
    /// Number of this table's producers that are included in `total`, as of the last `recount`.
    counted_in_total: usize,
    /// Maximum number of producers; the least recently used ones are evicted for new ones.
    producers_max: usize,
    /// A producer without a batch for this many milliseconds has expired.
    expiry_ms: i64,
    map: HashMap<i64, Producer, ProducerIdHasher>,
    /// When a producer was last evicted, in milliseconds since 1970; `None`: never.
    pub(crate) evicted_ms: Option<i64>,
    /// Logical time, which counts batches: finds the least recently used producers.
    clock: u64,
    /// Estimated bytes of written batches that the last snapshot does not cover.
    bytes_since_snapshot: u64,
}

pub(crate) struct Producer {
    /// In order of epoch and sequence number, never empty. Sequence numbers are consecutive, except
    /// where a power loss has lost batches.
    pub(crate) batches: VecDeque<ProducerBatch>,
    /// Whether a batch before the first of `batches` counts as lost, so that a retry of it is
    /// accepted. True if recovery found no earlier batch of this producer in the log, or if damage
    /// has removed one that the snapshot names.
    pub(crate) earlier_were_lost: bool,
    /// When the producer's last batch came, in milliseconds since 1970.
    pub(crate) seen_ms: i64,
    last_used: u64,
}

impl Producers {
    pub(crate) fn new(
        producers_max: usize,
        expiry_ms: u64,
        total: Arc<ProducersTotal>,
    ) -> Producers {
        Producers {
            total,
            counted_in_total: 0,
            producers_max: producers_max.max(1),
            expiry_ms: i64::try_from(expiry_ms).unwrap_or(i64::MAX),
            map: HashMap::with_hasher(ProducerIdHasher::new()),
            evicted_ms: None,
            clock: 0,
            bytes_since_snapshot: 0,
        }
    }

    /// Estimated bytes of written batches that the last snapshot does not cover.
    pub(crate) fn bytes_since_snapshot(&self) -> u64 {
        self.bytes_since_snapshot
    }

    /// Adds bytes of idempotent batches that the last snapshot does not cover.
    pub(crate) fn note_written(&mut self, bytes: u64) {
        self.bytes_since_snapshot += bytes;
    }

    /// Notes that a snapshot is being written that covers all batches.
    pub(crate) fn note_snapshot(&mut self) {
        self.bytes_since_snapshot = 0;
    }

    /// Decides whether a batch is appended, at `now_ms` (milliseconds since 1970).
    pub(crate) fn check(
        &self,
        fields: &ProducerFields,
        now_ms: i64,
    ) -> Result<SequenceVerdict, AppendError> {
        let producer_id = fields.producer_id;
        let fenced = |current_epoch| AppendError::ProducerFenced {
            producer_id,
            epoch: fields.epoch,
            current_epoch,
        };
        let out_of_order = |expected| AppendError::OutOfOrderSequence {
            producer_id,
            expected,
            found: fields.first_sequence,
        };
        if fields.epoch < 0 {
            return Err(fenced(0));
        }
        if fields.first_sequence < 0 {
            return Err(out_of_order(0));
        }
        let known = self.map.get(&producer_id);
        let known = known.filter(|known| !self.is_expired(known, now_ms));
        let Some((known, last)) = known.and_then(|it| Some((it, *it.batches.back()?))) else {
            return Ok(SequenceVerdict::New);
        };
        if fields.epoch < last.epoch {
            return Err(fenced(last.epoch));
        }
        if fields.epoch > last.epoch {
            return match fields.first_sequence {
                0 => Ok(SequenceVerdict::New),
                _ => Err(out_of_order(0)),
            };
        }
        let expected = sequence_after(last.last_sequence(), 1);
        if fields.first_sequence == expected {
            return Ok(SequenceVerdict::New);
        }
        let of_epoch = || {
            known
                .batches
                .iter()
                .rev()
                .filter(|it| it.epoch == last.epoch)
        };
        let is_same = |it: &&ProducerBatch| {
            it.first_sequence == fields.first_sequence && it.records == fields.records
        };
        if let Some(same) = of_epoch().find(is_same) {
            return Ok(SequenceVerdict::Duplicate(*same));
        }
        if known.fills_hole(fields, last.epoch) {
            return Ok(SequenceVerdict::New);
        }
        // Older batches of this epoch were forgotten only if the table has [`REMEMBERED_BATCHES`]
        // of it.
        let has_forgotten = of_epoch().nth(REMEMBERED_BATCHES - 1).is_some();
        let mut of_epoch_in_order = known.batches.iter().filter(|it| it.epoch == last.epoch);
        let oldest = of_epoch_in_order.next().filter(|_| has_forgotten);
        if oldest.is_some_and(|oldest| fields.is_before(oldest.first_sequence)) {
            return Err(AppendError::DuplicateSequence {
                producer_id,
                sequence: fields.first_sequence,
            });
        }
        Err(out_of_order(expected))
    }

    /// Adds a batch with this base offset. All records before `written_end` are written.
    pub(crate) fn add(
        &mut self,
        fields: &ProducerFields,
        base: Offset,
        written_end: Offset,
        now_ms: i64,
    ) {
        self.insert_batch(fields, base, written_end, now_ms, false);
    }

    fn insert_batch(
        &mut self,
        fields: &ProducerFields,
        base: Offset,
        written_end: Offset,
        now_ms: i64,
        earlier_were_lost: bool,
    ) {
        self.clock += 1;
        let (clock, expiry_ms) = (self.clock, self.expiry_ms);
        let known = self.map.len();
        if (known >= self.producers_max || (known >= PRODUCERS_KEPT_MIN && self.total.is_full()))
            && !self.map.contains_key(&fields.producer_id)
        {
            self.evict(now_ms);
        }
        let producer = self
            .map
            .entry(fields.producer_id)
            .or_insert_with(|| Producer {
                batches: VecDeque::new(),
                earlier_were_lost,
                seen_ms: now_ms,
                last_used: clock,
            });
        if now_ms.saturating_sub(producer.seen_ms) >= expiry_ms {
            producer.batches.clear();
            producer.earlier_were_lost = false;
        }
        while producer
            .batches
            .get(REMEMBERED_BATCHES)
            .is_some_and(|it| it.end() <= written_end)
        {
            producer.batches.pop_front();
            producer.earlier_were_lost = false;
        }
        let place = producer.index_of(fields);
        producer.batches.insert(place, fields.with_base(base));
        // Never decreases: a clock that was set back may be corrected later.
        producer.seen_ms = producer.seen_ms.max(now_ms);
        producer.last_used = clock;
        self.recount();
    }

    /// Updates the total with this table's number of producers.
    #[inline]
    fn recount(&mut self) {
        let (now, before) = (self.map.len(), self.counted_in_total);
        self.counted_in_total = now;
        match now.cmp(&before) {
            Ordering::Equal => {}
            Ordering::Greater => {
                self.total.count.fetch_add(now - before, Relaxed);
            }
            Ordering::Less => {
                let removed = before - now;
                let all = self.total.count.fetch_sub(removed, Relaxed);
                invariant!(
                    all >= removed,
                    "{removed} producers are removed, and all partitions together had {all}"
                );
            }
        }
    }

    /// Adds a batch that recovery has found in the log. Its sequence number is not checked, because
    /// the batch is stored whether or not it is in order.
    pub(crate) fn recover(&mut self, fields: &ProducerFields, base: Offset, now_ms: i64) {
        if fields.epoch >= 0 && fields.first_sequence >= 0 {
            // If the table has evicted producers recently, this may be one of them. Then the log
            // has earlier batches of it that the table does not know; their retries are duplicates
            // and must not be taken for lost batches. After the expiry time no producer retries
            // them, and Kafka would have forgotten them, too.
            let evicted_ms = self.evicted_ms.unwrap_or(i64::MIN);
            let earlier_were_lost = now_ms.saturating_sub(evicted_ms) >= self.expiry_ms;
            self.insert_batch(fields, base, Offset::MAX, now_ms, earlier_were_lost);
        }
    }

    /// Removes the batches of a producer from an offset on, because their write has failed.
    pub(crate) fn undo_append(&mut self, producer_id: i64, from: Offset) {
        let Some(producer) = self.map.get_mut(&producer_id) else {
            return;
        };
        producer.batches.retain(|batch| batch.base < from);
        if producer.batches.is_empty() {
            self.map.remove(&producer_id);
            self.recount();
        }
    }

    /// Removes the producers that have expired.
    pub(crate) fn expire(&mut self, now_ms: i64) {
        let expiry_ms = self.expiry_ms;
        self.map
            .retain(|_, producer| now_ms.saturating_sub(producer.seen_ms) < expiry_ms);
        self.recount();
    }

    /// Removes all producers.
    pub(crate) fn clear(&mut self) {
        self.map.clear();
        self.recount();
    }

    fn is_expired(&self, producer: &Producer, now_ms: i64) -> bool {
        now_ms.saturating_sub(producer.seen_ms) >= self.expiry_ms
    }

    /// Removes the least recently used producers, one in [`EVICTED_ONE_IN`].
    fn evict(&mut self, now_ms: i64) {
        self.evicted_ms = Some(now_ms);
        let mut uses: Vec<u64> = self
            .map
            .values()
            .map(|producer| producer.last_used)
            .collect();
        let last = (uses.len() / EVICTED_ONE_IN).max(1) - 1;
        let (_, evicted_up_to, _) = uses.select_nth_unstable(last);
        let evicted_up_to = *evicted_up_to;
        self.map
            .retain(|_, producer| producer.last_used > evicted_up_to);
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All producers, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.map.iter().map(|(id, producer)| (*id, producer))
    }

    /// Adds a producer from a snapshot. Precondition: its batches are in order and not empty.
    pub(crate) fn insert(&mut self, known: SnapshotProducer) {
        self.clock += 1;
        let id = known.id;
        let producer = Producer {
            batches: known.batches.into(),
            earlier_were_lost: known.earlier_were_lost,
            seen_ms: known.seen_ms,
            last_used: self.clock,
        };
        self.map.insert(id, producer);
        self.recount();
    }

    /// The state of each producer that has not expired, in no particular order.
    pub(crate) fn producer_infos(&self, now_ms: i64) -> Vec<ProducerInfo> {
        let alive = self.iter().filter(|(_, it)| !self.is_expired(it, now_ms));
        alive
            .filter_map(|(producer_id, producer)| {
                let last = producer.batches.back()?;
                Some(ProducerInfo {
                    producer_id,
                    epoch: last.epoch,
                    last_sequence: last.last_sequence(),
                    last_timestamp_ms: last.timestamp_ms,
                })
            })
            .collect()
    }
}

impl Drop for Producers {
    fn drop(&mut self) {
        self.map.clear();
        self.recount();
    }
}

impl Producer {
    /// The index of a batch in `batches` by its sequence number: the end, unless it fills a hole.
    fn index_of(&self, fields: &ProducerFields) -> usize {
        let later = |it: &&ProducerBatch| {
            it.epoch > fields.epoch
                || (it.epoch == fields.epoch && fields.is_before(it.first_sequence))
        };
        self.batches.len() - self.batches.iter().rev().take_while(later).count()
    }

    /// Whether a batch of the newest epoch fits in a hole that a power loss has left.
    fn fills_hole(&self, fields: &ProducerFields, epoch: i16) -> bool {
        let place = self.index_of(fields);
        if place == self.batches.len() {
            return false;
        }
        let before = place.checked_sub(1).map(|before| &self.batches[before]);
        match before.filter(|before| before.epoch == epoch) {
            Some(before) => {
                let expected = sequence_after(before.last_sequence(), 1);
                let from = fields.first_sequence.wrapping_sub(expected) & i32::MAX;
                from < i32::MAX / 2
            }
            None => self.earlier_were_lost,
        }
    }
}

impl ProducerFields {
    /// Whether all sequence numbers of the batch are before `sequence`, by less than half of the
    /// number range, because the numbers wrap around.
    fn is_before(&self, sequence: i32) -> bool {
        let distance = sequence.wrapping_sub(self.first_sequence) & i32::MAX;
        distance < i32::MAX / 2 && i64::from(distance) >= i64::from(self.records)
    }
}

#[cfg(test)]
mod tests;
