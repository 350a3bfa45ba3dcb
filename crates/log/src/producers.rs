//! What a partition remembers of idempotent producers, so that a batch that is sent again is not
//! stored again. Pure: no clock, no file.
//!
//! Per producer id the newest batches are kept with their sequence numbers and offsets: the last
//! [`REMEMBERED`] that were written (Kafka's producers have at most as many requests in flight),
//! and those that are still to be written, so that a failed write can be taken back. The rules are
//! those of Kafka's `ProducerAppendInfo`.
//!
//! There is one case that Kafka does not have: after a power loss a batch may be missing although
//! a later one, in the next segment, is there. (Neither was answered as synced.) What was lost is
//! taken when it comes again, so that nothing is lost and nothing is there twice.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset, field};
use crate::error::AppendError;

/// Written batches of a producer that are recognized when they come again.
pub(crate) const REMEMBERED: usize = 5;
/// When the table is full, this part of it is forgotten at once: one in eight.
const EVICTED_SHARE: usize = 8;

/// What is known of an idempotent producer of a partition.
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

/// What a batch says of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
    pub(crate) first_sequence: i32,
    pub(crate) records: u32,
    pub(crate) timestamp_ms: i64,
}

impl Claim {
    /// `None` for a batch without a producer id, and for the end of a transaction, which has no
    /// sequence number.
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

/// The table of a partition.
pub(crate) struct Producers {
    /// Most producers; beyond that the least recently used are forgotten.
    producers_max: usize,
    /// A producer that was silent for this long is unknown.
    expiry_ms: i64,
    map: HashMap<i64, Producer, IdHash>,
    /// When a producer was last forgotten for want of room, in milliseconds since 1970.
    pub(crate) evicted_ms: Option<i64>,
    /// Counts uses.
    clock: u64,
}

pub(crate) struct Producer {
    /// In order of epoch and sequence, never empty. Without a power loss they leave no hole.
    pub(crate) batches: VecDeque<ProducerBatch>,
    /// These are all batches that the log has of the producer: so recovery has found it.
    is_complete: bool,
    /// When it was heard of, in milliseconds since 1970.
    pub(crate) seen_ms: i64,
    used: u64,
}

impl Producers {
    pub(crate) fn new(producers_max: usize, expiry_ms: u64) -> Producers {
        Producers {
            producers_max: producers_max.max(1),
            expiry_ms: i64::try_from(expiry_ms).unwrap_or(i64::MAX),
            map: HashMap::with_hasher(IdHash::new()),
            evicted_ms: None,
            clock: 0,
        }
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
        // Only a producer with more batches than are remembered has forgotten ones.
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
        if self.map.len() >= self.producers_max && !self.map.contains_key(&claim.producer_id) {
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
        producer.seen_ms = now_ms;
        producer.used = clock;
    }

    /// Notes a batch that was found in the log, which holds it although its numbers may not fit:
    /// what was stored counts.
    pub(crate) fn recover(&mut self, claim: &Claim, base: Offset, now_ms: i64) {
        if claim.epoch >= 0 && claim.first_sequence >= 0 {
            // One that was forgotten before may have batches that nobody knows of any more: what
            // comes again of those was not lost, and must not be stored twice. A day later nobody
            // sends it any more, and Kafka would not know it either.
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
        }
    }

    /// Forgets those that were silent for too long.
    pub(crate) fn expire(&mut self, now_ms: i64) {
        let expiry_ms = self.expiry_ms;
        self.map
            .retain(|_, producer| now_ms.saturating_sub(producer.seen_ms) < expiry_ms);
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
    pub(crate) fn insert(&mut self, id: i64, batches: VecDeque<ProducerBatch>, seen_ms: i64) {
        self.clock += 1;
        let producer = Producer {
            batches,
            is_complete: false,
            seen_ms,
            used: self.clock,
        };
        self.map.insert(id, producer);
    }

    /// What there is to tell of each, in no particular order.
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

impl Producer {
    /// Where a batch belongs: at the end, but for one that was lost.
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
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn claim(epoch: i16, first_sequence: i32, records: u32) -> Claim {
        Claim {
            producer_id: 7,
            epoch,
            first_sequence,
            records,
            timestamp_ms: 1,
        }
    }

    /// What [`Producers::check`] says of these, one after the other, each stored if it is new.
    fn check(claims: &[(i16, i32, u32)], expected: &str) {
        let mut producers = Producers::new(10, 1_000);
        let mut next = 100;
        let mut said = Vec::new();
        for (epoch, sequence, records) in claims {
            let claim = claim(*epoch, *sequence, *records);
            said.push(match producers.check(&claim, 0) {
                Ok(Verdict::New) => {
                    producers.add(&claim, next, next, 0);
                    next += u64::from(*records);
                    "new".to_owned()
                }
                Ok(Verdict::Duplicate(same)) => format!("at {}", same.base),
                Err(AppendError::OutOfOrderSequence { expected, .. }) => format!("not {expected}"),
                Err(AppendError::ProducerFenced { current_epoch, .. }) => {
                    format!("fenced by {current_epoch}")
                }
                Err(AppendError::DuplicateSequence { .. }) => "long ago".to_owned(),
                Err(error) => panic!("{error}"),
            });
        }
        assert_eq!(said.join(", "), expected);
    }

    #[test]
    fn sequences_must_continue() {
        check(&[(0, 0, 3), (0, 3, 1), (0, 5, 1)], "new, new, not 4");
        check(&[(0, 40, 3), (0, 43, 1)], "new, new");
        check(&[(0, 0, 3), (0, 1, 2), (0, 0, 4)], "new, not 3, not 3");
        check(&[(0, -1, 1), (-1, 0, 1)], "not 0, fenced by 0");
    }

    #[test]
    fn sequences_go_round() {
        let max = i32::MAX;
        check(&[(0, max - 1, 2), (0, 0, 1)], "new, new");
        check(&[(0, max, 3), (0, 2, 1), (0, max, 3)], "new, new, at 100");
        check(&[(0, max, 1), (0, max, 1), (0, 1, 1)], "new, at 100, not 0");
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_fences_the_old_one() {
        check(&[(0, 5, 1), (1, 6, 1), (1, 0, 1)], "new, not 0, new");
        check(&[(3, 0, 1), (4, 0, 1), (3, 1, 1)], "new, new, fenced by 4");
        check(&[(0, 0, 1), (1, 0, 1), (1, 0, 1)], "new, new, at 101");
    }

    #[test]
    fn five_batches_are_remembered() {
        let mut claims: Vec<_> = (0..8).map(|number| (0, number * 2, 2)).collect();
        claims.extend([(0, 14, 2), (0, 6, 2), (0, 0, 2), (0, 15, 1), (0, 18, 1)]);
        let news = "new, new, new, new, new, new, new, new";
        check(
            &claims,
            &format!("{news}, at 114, at 106, long ago, not 16, not 16"),
        );
        // While fewer are remembered, nothing was forgotten.
        check(&[(0, 10, 1), (0, 3, 1)], "new, not 11");
    }

    #[test]
    fn what_was_not_written_can_be_taken_back() {
        let mut producers = Producers::new(10, 1_000);
        for number in 0..5 {
            producers.add(&claim(0, number, 1), number as u64, number as u64, 0);
        }
        // Ten more in a new epoch, none of them written.
        for number in 0..10 {
            producers.add(&claim(1, number, 1), 5 + number as u64, 5, 0);
        }
        producers.take_back(7, 5);
        let again = producers.check(&claim(0, 0, 1), 0).unwrap();
        assert!(matches!(again, Verdict::Duplicate(batch) if batch.base == 0));
        assert_eq!(producers.check(&claim(0, 5, 1), 0).unwrap(), Verdict::New);
        producers.take_back(7, 0);
        assert!(producers.is_empty());
    }

    #[test]
    fn what_a_power_loss_took_is_taken_again() {
        let mut producers = Producers::new(10, 1_000);
        producers.recover(&claim(0, 2, 1), 100, 0);
        producers.recover(&claim(0, 6, 1), 103, 0);
        for (sequence, records) in [(1, 2), (2, 2), (3, 4), (5, 2), (8, 1)] {
            let overlapping = claim(0, sequence, records);
            assert!(producers.check(&overlapping, 0).is_err(), "{sequence}");
        }
        for (sequence, base) in [(0, 104), (4, 105), (3, 106), (5, 107), (1, 108)] {
            let lost = claim(0, sequence, 1);
            assert_eq!(
                producers.check(&lost, 0).unwrap(),
                Verdict::New,
                "{sequence}"
            );
            producers.add(&lost, base, 0, 0);
            let again = producers.check(&lost, 0).unwrap();
            assert!(matches!(again, Verdict::Duplicate(batch) if batch.base == base));
        }
        assert_eq!(producers.check(&claim(0, 7, 1), 0).unwrap(), Verdict::New);
        let sequences = producers.map[&7]
            .batches
            .iter()
            .map(|batch| batch.first_sequence);
        assert!(sequences.eq(0..7));
    }

    #[test]
    fn silent_producers_and_the_least_recently_used_are_forgotten() {
        let mut producers = Producers::new(16, 1_000);
        producers.add(&claim(5, 9, 1), 0, 0, 100);
        assert!(producers.check(&claim(5, 11, 1), 1_099).is_err());
        assert_eq!(
            producers.check(&claim(4, 11, 1), 1_100).unwrap(),
            Verdict::New
        );
        producers.add(&claim(4, 11, 1), 1, 1, 1_100);
        assert_eq!(producers.infos(1_100)[0].epoch, 4);
        for producer_id in 100..150 {
            let claim = Claim {
                producer_id,
                ..claim(0, 0, 1)
            };
            producers.add(&claim, 2, 2, 1_200);
            assert!(producers.map.len() <= 16);
        }
        assert!(!producers.map.contains_key(&7) && producers.map.contains_key(&140));
        producers.expire(2_200);
        assert!(producers.is_empty());
    }
}
