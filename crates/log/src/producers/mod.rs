//! The memory of a partition's idempotent producers, so that a batch that is sent again is not
//! stored again. Pure: no clock, no file.
//!
//! Per producer id the newest batches are kept with their sequence numbers and offsets: the last
//! [`REMEMBERED`] that were written (Kafka's producers have at most as many requests in flight),
//! and those that are still to be written, so that a failed write can be taken back. The rules are
//! those of Kafka's `ProducerAppendInfo`.
//!
//! There is one case that Kafka does not have: after a power loss a batch may be missing although a
//! later one, in the next segment, is there. (Neither was answered as synced.) A retry of the lost
//! batch is accepted out of sequence, so that nothing is lost and nothing is stored twice.

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

/// Written batches of a producer that are recognized when they come again.
pub(crate) const REMEMBERED: usize = 5;
/// A full table evicts this share of its producers at once: one in eight.
const EVICTED_SHARE: usize = 8;

/// The state of an idempotent producer of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerInfo {
    /// Its id.
    pub producer_id: i64,
    /// The newest epoch that was seen.
    pub epoch: i16,
    /// Sequence number of its last record.
    pub last_sequence: i32,
    /// Highest timestamp of its last batch, in milliseconds since 1970.
    pub last_timestamp_ms: i64,
}

/// A batch that a producer has sent, with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// Offset of its first record.
    pub base: Offset,
    /// Number of its records, as the producer counted them; at least 1.
    pub records: u32,
    /// Sequence number of its first record.
    pub first_sequence: i32,
    /// The producer's epoch.
    pub epoch: i16,
    /// Highest timestamp of its records, in milliseconds since 1970.
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

/// The sequence number that comes `count` after another one: 0 follows `i32::MAX`.
fn sequence_after(sequence: i32, count: u32) -> i32 {
    let sum = i64::from(sequence) + i64::from(count);
    (sum & i64::from(i32::MAX)) as i32
}

/// Hashes producer ids with one multiplication, which is a tenth of what the standard hasher costs
/// per batch. Clients choose ids, so the secret is random.
#[derive(Clone)]
struct IdHash(u64);

impl IdHash {
    fn new() -> IdHash {
        IdHash(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHash;

    fn build_hasher(&self) -> IdHash {
        self.clone()
    }
}

impl Hasher for IdHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        // 2^64 divided by the golden ratio: odd, and its bits are mixed.
        let wide = u128::from(value ^ self.0) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }
}

/// The claims of a batch about its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
    pub(crate) first_sequence: i32,
    pub(crate) records: u32,
    pub(crate) timestamp_ms: i64,
}

impl Claim {
    /// `None` for a batch without a producer id, and for a control batch (the marker that ends a
    /// transaction), which has no sequence number.
    #[inline]
    pub(crate) fn of(batch: &Batch) -> Option<Claim> {
        if batch.producer_id() < 0 {
            return None;
        }
        Claim::peek(batch.bytes())
    }

    /// As [`Claim::of`], from a batch header that may be corrupt.
    pub(crate) fn peek(header: &[u8]) -> Option<Claim> {
        let header = header.get(..BATCH_HEADER_BYTES)?;
        let producer_id = i64::from_be_bytes(field(header, 43));
        let last_offset_delta = i32::from_be_bytes(field(header, 23));
        let is_control = header[22] & 0x20 != 0;
        if producer_id < 0 || last_offset_delta < 0 || is_control {
            return None;
        }
        Some(Claim {
            producer_id,
            epoch: i16::from_be_bytes(field(header, 51)),
            first_sequence: i32::from_be_bytes(field(header, 53)),
            records: last_offset_delta as u32 + 1,
            timestamp_ms: i64::from_be_bytes(field(header, 35)),
        })
    }

    fn at(&self, base: Offset) -> ProducerBatch {
        ProducerBatch {
            base,
            records: self.records,
            first_sequence: self.first_sequence,
            epoch: self.epoch,
            timestamp_ms: self.timestamp_ms,
        }
    }
}

/// Whether a batch is to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It comes next.
    New,
    /// It has these offsets already.
    Duplicate(ProducerBatch),
}

/// Counts the producers of all partitions.
#[derive(Debug)]
pub(crate) struct ProducersTotal {
    count: AtomicUsize,
    /// Once `count` reaches it, a partition with at least [`PRODUCERS_KEPT`] producers evicts some
    /// of its own for each new one.
    max: usize,
}

/// A partition evicts nobody for the total limit while it has fewer producers than this. Else its
/// active producers would evict each other in turn, and their retries would be stored twice.
const PRODUCERS_KEPT: usize = 64;

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

/// The table of a partition.
pub(crate) struct Producers {
    total: Arc<ProducersTotal>,
    /// The part of `total` that is this table's.
    counted: usize,
    /// Most producers; beyond that the least recently used are forgotten.
    producers_max: usize,
    /// A producer that was silent for this long is unknown.
    expiry_ms: i64,
    map: HashMap<i64, Producer, IdHash>,
    /// When a producer was last forgotten for want of room, in milliseconds since 1970.
    pub(crate) evicted_ms: Option<i64>,
    /// Logical time: one tick for each batch, by which the least recently used is known.
    clock: u64,
    /// Bytes of written batches that the last snapshot does not cover, roughly.
    unsnapped_bytes: u64,
}

pub(crate) struct Producer {
    /// In order of epoch and sequence, never empty. Without a power loss they leave no hole.
    pub(crate) batches: VecDeque<ProducerBatch>,
    /// The batches before them were lost: either these are all batches that the log has of the
    /// producer, or damage has taken those that a snapshot names before them.
    pub(crate) is_complete: bool,
    /// When it was heard of, in milliseconds since 1970.
    pub(crate) seen_ms: i64,
    used: u64,
}

impl Producers {
    pub(crate) fn new(
        producers_max: usize,
        expiry_ms: u64,
        total: Arc<ProducersTotal>,
    ) -> Producers {
        Producers {
            total,
            counted: 0,
            producers_max: producers_max.max(1),
            expiry_ms: i64::try_from(expiry_ms).unwrap_or(i64::MAX),
            map: HashMap::with_hasher(IdHash::new()),
            evicted_ms: None,
            clock: 0,
            unsnapped_bytes: 0,
        }
    }

    /// Bytes of written batches that the last snapshot does not cover, roughly.
    pub(crate) fn unsnapped_bytes(&self) -> u64 {
        self.unsnapped_bytes
    }

    /// Counts bytes of idempotent batches that the last snapshot does not cover.
    pub(crate) fn note_written(&mut self, bytes: u64) {
        self.unsnapped_bytes += bytes;
    }

    /// A snapshot that is being written covers everything.
    pub(crate) fn note_snapshot(&mut self) {
        self.unsnapped_bytes = 0;
    }

    /// Judges a batch at `now_ms` (milliseconds since 1970).
    pub(crate) fn check(&self, claim: &Claim, now_ms: i64) -> Result<Verdict, AppendError> {
        let producer_id = claim.producer_id;
        let fenced = |current_epoch| AppendError::ProducerFenced {
            producer_id,
            epoch: claim.epoch,
            current_epoch,
        };
        let out_of_order = |expected| AppendError::OutOfOrderSequence {
            producer_id,
            expected,
            found: claim.first_sequence,
        };
        if claim.epoch < 0 {
            return Err(fenced(0));
        }
        if claim.first_sequence < 0 {
            return Err(out_of_order(0));
        }
        let known = self.map.get(&producer_id);
        let known = known.filter(|known| !self.is_expired(known, now_ms));
        let Some((known, last)) = known.and_then(|it| Some((it, *it.batches.back()?))) else {
            return Ok(Verdict::New);
        };
        if claim.epoch < last.epoch {
            return Err(fenced(last.epoch));
        }
        if claim.epoch > last.epoch {
            return match claim.first_sequence {
                0 => Ok(Verdict::New),
                _ => Err(out_of_order(0)),
            };
        }
        let expected = sequence_after(last.last_sequence(), 1);
        if claim.first_sequence == expected {
            return Ok(Verdict::New);
        }
        let of_epoch = || {
            known
                .batches
                .iter()
                .rev()
                .filter(|it| it.epoch == last.epoch)
        };
        let is_same = |it: &&ProducerBatch| {
            it.first_sequence == claim.first_sequence && it.records == claim.records
        };
        if let Some(same) = of_epoch().find(is_same) {
            return Ok(Verdict::Duplicate(*same));
        }
        if known.has_lost(claim, last.epoch) {
            return Ok(Verdict::New);
        }
        // Only with [`REMEMBERED`] batches of this epoch can older ones have been forgotten.
        let has_forgotten = of_epoch().nth(REMEMBERED - 1).is_some();
        let mut of_epoch_in_order = known.batches.iter().filter(|it| it.epoch == last.epoch);
        let oldest = of_epoch_in_order.next().filter(|_| has_forgotten);
        if oldest.is_some_and(|oldest| claim.lies_before(oldest.first_sequence)) {
            return Err(AppendError::DuplicateSequence {
                producer_id,
                sequence: claim.first_sequence,
            });
        }
        Err(out_of_order(expected))
    }

    /// Notes a batch that gets this base offset. Everything before `written_end` was written.
    pub(crate) fn add(&mut self, claim: &Claim, base: Offset, written_end: Offset, now_ms: i64) {
        self.insert_batch(claim, base, written_end, now_ms, false);
    }

    fn insert_batch(
        &mut self,
        claim: &Claim,
        base: Offset,
        written_end: Offset,
        now_ms: i64,
        is_complete: bool,
    ) {
        self.clock += 1;
        let (clock, expiry_ms) = (self.clock, self.expiry_ms);
        let known = self.map.len();
        if (known >= self.producers_max || (known >= PRODUCERS_KEPT && self.total.is_full()))
            && !self.map.contains_key(&claim.producer_id)
        {
            self.evict(now_ms);
        }
        let producer = self
            .map
            .entry(claim.producer_id)
            .or_insert_with(|| Producer {
                batches: VecDeque::new(),
                is_complete,
                seen_ms: now_ms,
                used: clock,
            });
        if now_ms.saturating_sub(producer.seen_ms) >= expiry_ms {
            producer.batches.clear();
            producer.is_complete = false;
        }
        while producer
            .batches
            .get(REMEMBERED)
            .is_some_and(|it| it.end() <= written_end)
        {
            producer.batches.pop_front();
            producer.is_complete = false;
        }
        let place = producer.place_of(claim);
        producer.batches.insert(place, claim.at(base));
        // Never earlier than before: a clock that was set back may be set right again.
        producer.seen_ms = producer.seen_ms.max(now_ms);
        producer.used = clock;
        self.recount();
    }

    /// Tells the total what has changed here.
    #[inline]
    fn recount(&mut self) {
        let (now, before) = (self.map.len(), self.counted);
        self.counted = now;
        match now.cmp(&before) {
            Ordering::Equal => {}
            Ordering::Greater => {
                self.total.count.fetch_add(now - before, Relaxed);
            }
            Ordering::Less => {
                let gone = before - now;
                let all = self.total.count.fetch_sub(gone, Relaxed);
                invariant!(
                    all >= gone,
                    "{gone} producers are forgotten, and all partitions together knew {all}"
                );
            }
        }
    }

    /// Notes a batch that was found in the log. It is not checked: its sequence number may be out
    /// of order, but it is stored.
    pub(crate) fn recover(&mut self, claim: &Claim, base: Offset, now_ms: i64) {
        if claim.epoch >= 0 && claim.first_sequence >= 0 {
            // If the table has evicted producers lately, this may be one of them, with batches in
            // the log that the table no longer knows: their retries are duplicates and must not be
            // taken for lost. After the expiry time nobody retries them, and Kafka would not know
            // them either.
            let evicted_ms = self.evicted_ms.unwrap_or(i64::MIN);
            let is_complete = now_ms.saturating_sub(evicted_ms) >= self.expiry_ms;
            self.insert_batch(claim, base, Offset::MAX, now_ms, is_complete);
        }
    }

    /// Forgets the batches of a producer from an offset on, which were not written.
    pub(crate) fn take_back(&mut self, producer_id: i64, from: Offset) {
        let Some(producer) = self.map.get_mut(&producer_id) else {
            return;
        };
        producer.batches.retain(|batch| batch.base < from);
        if producer.batches.is_empty() {
            self.map.remove(&producer_id);
            self.recount();
        }
    }

    /// Forgets those that were silent for too long.
    pub(crate) fn expire(&mut self, now_ms: i64) {
        let expiry_ms = self.expiry_ms;
        self.map
            .retain(|_, producer| now_ms.saturating_sub(producer.seen_ms) < expiry_ms);
        self.recount();
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.map.clear();
        self.recount();
    }

    fn is_expired(&self, producer: &Producer, now_ms: i64) -> bool {
        now_ms.saturating_sub(producer.seen_ms) >= self.expiry_ms
    }

    /// Forgets the least recently used part of the table.
    fn evict(&mut self, now_ms: i64) {
        self.evicted_ms = Some(now_ms);
        let mut uses: Vec<u64> = self.map.values().map(|producer| producer.used).collect();
        let last = (uses.len() / EVICTED_SHARE).max(1) - 1;
        let (_, newest_to_go, _) = uses.select_nth_unstable(last);
        let newest_to_go = *newest_to_go;
        self.map.retain(|_, producer| producer.used > newest_to_go);
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All that are known, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.map.iter().map(|(id, producer)| (*id, producer))
    }

    /// Takes over a producer of a snapshot; its batches are in order and not empty.
    pub(crate) fn insert(&mut self, known: SnapshotProducer) {
        self.clock += 1;
        let id = known.id;
        let producer = Producer {
            batches: known.batches.into(),
            is_complete: known.is_complete,
            seen_ms: known.seen_ms,
            used: self.clock,
        };
        self.map.insert(id, producer);
        self.recount();
    }

    /// The reported state of each, in no particular order.
    pub(crate) fn infos(&self, now_ms: i64) -> Vec<ProducerInfo> {
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
    /// Where a batch belongs by its sequence number: at the end, unless it fills a hole.
    fn place_of(&self, claim: &Claim) -> usize {
        let later = |it: &&ProducerBatch| {
            it.epoch > claim.epoch
                || (it.epoch == claim.epoch && claim.lies_before(it.first_sequence))
        };
        self.batches.len() - self.batches.iter().rev().take_while(later).count()
    }

    /// Whether a batch of the newest epoch lies in a hole that a power loss has left.
    fn has_lost(&self, claim: &Claim, epoch: i16) -> bool {
        let place = self.place_of(claim);
        if place == self.batches.len() {
            return false;
        }
        let before = place.checked_sub(1).map(|before| &self.batches[before]);
        match before.filter(|before| before.epoch == epoch) {
            Some(before) => {
                let expected = sequence_after(before.last_sequence(), 1);
                let from = claim.first_sequence.wrapping_sub(expected) & i32::MAX;
                from < i32::MAX / 2
            }
            None => self.is_complete,
        }
    }
}

impl Claim {
    /// Whether all its sequence numbers lie before `sequence`, by less than half of the circle.
    fn lies_before(&self, sequence: i32) -> bool {
        let distance = sequence.wrapping_sub(self.first_sequence) & i32::MAX;
        distance < i32::MAX / 2 && i64::from(distance) >= i64::from(self.records)
    }
}

#[cfg(test)]
mod tests;
