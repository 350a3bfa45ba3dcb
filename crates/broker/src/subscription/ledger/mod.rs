//! The ledger: the whole delivery state of one subscription, as a pure state machine.
//!
//! It knows offsets, leases and times that it is told. It knows no log, no lock and no clock, so
//! that a property test can hold it against a plain model (`tests.rs`).
//!
//! Every offset below a cursor's `next` is either acknowledged or in exactly one [lease](leases).

pub(crate) mod cursor;
pub(crate) mod leases;
pub(crate) mod marks;
mod moved;
mod outcome;
mod persist;
mod ranges;
mod requeued;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use cloverleaf_log::{Offset, invariant};

use crate::message::{DeadReason, MessageId};
use cursor::{Cursor, WORD, bits_between};
use leases::{ConsumerSlot, Grant, LeaseState, Leases, NIL, Terms};
use marks::Mark;
pub(crate) use moved::Moved;
pub(crate) use persist::{LedgerDelta, PartitionDelta, RestoredRetries, Retry, retries_end};

/// Messages at the head of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// This many consecutive offsets from `next` on were never delivered.
    Free(u64),
    /// The next so many offsets are acknowledged or leased already: step over them.
    Taken(u64),
}

/// Consecutive requeued messages within one word (64 offsets, the bits of a `u64`), at their
/// original offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadyRun {
    pub(crate) first: Offset,
    pub(crate) count: u32,
    pub(crate) attempts: u16,
}

/// Messages of one word (64 offsets) of a partition, with holes where others were settled before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordMask {
    pub(crate) partition: u32,
    pub(crate) word: u64,
    /// Bit n stands for offset `word * 64 + n`.
    pub(crate) mask: u64,
}

impl WordMask {
    /// How many they are.
    pub(crate) fn count(self) -> u32 {
        self.mask.count_ones()
    }

    /// Their runs: the first of each, and how many follow each other without a hole.
    pub(crate) fn runs(self) -> impl Iterator<Item = (MessageId, u32)> {
        let mut rest = self.mask;
        std::iter::from_fn(move || {
            let bit = rest.trailing_zeros();
            let count = rest.checked_shr(bit)?.trailing_ones();
            let start = self.word * WORD + u64::from(bit);
            rest &= !bits_between(self.word, start, start + u64::from(count));
            let id = MessageId {
                partition: self.partition,
                offset: start,
            };
            Some((id, count))
        })
    }
}

/// A lease that ended because its time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The consumer did not settle these messages in time.
    TimedOut {
        consumer: ConsumerSlot,
        messages: WordMask,
        settled: Settled,
    },
    /// A delay is over.
    Due { count: u32 },
}

/// Why messages cannot be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is not in flight for this consumer")]
pub struct NotInFlight;

/// The delivery of a message that was settled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) delivered_us: u64,
    pub(crate) attempts: u16,
    /// How long its batch had waited for that delivery since it was published.
    pub(crate) waited_ms: u32,
}

/// The delivery state of one subscription over all partitions of its topic.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    cursors: Vec<Cursor>,
    leases: Leases,
    /// Words with a ready lease, per partition.
    ready_words: Vec<BTreeSet<u64>>,
    ready: u64,
    /// Bytes of the bodies of the ready messages, where somebody counts them.
    ready_bytes: u64,
    delayed: u64,
    in_flight: u64,
    dead: u64,
    /// How far delivery has got, per partition.
    marks: Vec<Mark>,
    /// Deliveries after which a message is dead; 0: never.
    attempts_max: u16,
    /// Messages that died and wait for their dead letter to be written.
    died: Vec<(MessageId, DeadReason)>,
    retries_dirty: Vec<(u32, Retry)>,
    /// Messages whose copies are written where they go, but that are not acknowledged here yet.
    moved: Moved,
    /// Nothing of it survives a restart: changes are not collected.
    volatile: bool,
}

impl Ledger {
    /// A ledger whose partitions start at `floors`.
    pub(crate) fn new(floors: &[Offset], attempts_max: u16) -> Self {
        Self {
            cursors: floors
                .iter()
                .map(|floor| Cursor::starting_at(*floor))
                .collect(),
            ready_words: floors.iter().map(|_| BTreeSet::new()).collect(),
            marks: floors.iter().map(|_| Mark::default()).collect(),
            attempts_max,
            ..Self::default()
        }
    }

    /// Stops collecting changes: the subscription is ephemeral.
    pub(crate) fn make_volatile(&mut self) {
        self.volatile = true;
        self.cursors.iter_mut().for_each(Cursor::make_volatile);
    }

    /// Adds partitions, from their first offset on, until there are `partitions`.
    pub(crate) fn grow(&mut self, partitions: usize) {
        while self.cursors.len() < partitions {
            let mut cursor = Cursor::starting_at(0);
            if self.volatile {
                cursor.make_volatile();
            }
            self.cursors.push(cursor);
            self.ready_words.push(BTreeSet::new());
            self.marks.push(Mark::default());
        }
    }

    pub(crate) fn partitions(&self) -> u32 {
        u32::try_from(self.cursors.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn next(&self, partition: u32) -> Offset {
        self.cursors[partition as usize].next
    }

    pub(crate) fn floor(&self, partition: u32) -> Offset {
        self.cursors[partition as usize].floor()
    }

    pub(crate) fn covers(&self, partition: u32, start: Offset, end: Offset) -> bool {
        self.cursors[partition as usize].covers(start, end)
    }

    /// One above every offset that the ledger names in a partition.
    pub(crate) fn known_end(&self, partition: u32) -> Offset {
        let Some(cursor) = self.cursors.get(partition as usize) else {
            return 0;
        };
        cursor.known_end().max(self.leased_end(partition))
    }

    /// One above every offset of a partition that is leased; 0: none is.
    fn leased_end(&self, partition: u32) -> Offset {
        let leases = self.leases.iter();
        let leases = leases.filter(|lease| lease.partition == partition);
        let ends =
            leases.map(|lease| lease.word * WORD + (WORD - u64::from(lease.mask.leading_zeros())));
        ends.max().unwrap_or(0)
    }

    /// One above the highest offset of a partition that was delivered, as far as it is known: after
    /// a restart, a first delivery that was in flight is not.
    pub(crate) fn delivered_end(&self, partition: u32) -> Offset {
        self.next(partition).max(self.leased_end(partition))
    }

    /// Requeued messages that wait for a consumer.
    pub(crate) fn ready(&self) -> u64 {
        self.ready
    }

    /// Bytes of their bodies, where somebody counts them.
    pub(crate) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// Messages that wait for their delay to pass.
    pub(crate) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// How far delivery has got, per partition.
    #[inline]
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    #[inline]
    pub(crate) fn marks_mut(&mut self) -> &mut [Mark] {
        &mut self.marks
    }

    /// Where a run from `first` must end: at `end`, or earlier at the mark below which messages may
    /// have been delivered before the restart, because one delivery has one `redelivered` flag.
    #[inline]
    pub(crate) fn delivered_together(
        &self,
        partition: usize,
        first: Offset,
        end: Offset,
    ) -> Offset {
        let earlier = self.marks[partition].earlier();
        if first < earlier {
            end.min(earlier)
        } else {
            end
        }
    }

    /// Messages that consumers hold.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Messages that wait for their dead letter to be written.
    pub(crate) fn dead(&self) -> u64 {
        self.dead
    }

    /// The number of lease entries, with which memory grows.
    pub(crate) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// Messages not delivered yet up to `end`, without the requeued ones.
    pub(crate) fn undelivered(&self, partition: u32, end: Offset) -> u64 {
        let cursor = &self.cursors[partition as usize];
        let count = end.saturating_sub(cursor.next);
        if count == 0 || cursor.next >= cursor.restored_end {
            return count;
        }
        if cursor.restored_end <= end {
            return end - cursor.restored_end + cursor.restored_free;
        }
        if cursor.covers(end, cursor.restored_end) {
            return cursor.restored_free;
        }
        // `end` lies within what was restored, because delivery is limited there: rare, so count
        // from scratch.
        self.free_between(partition, cursor.next, end)
    }

    /// How many offsets in `[start, end)`, all at or above `next`, are neither acknowledged nor
    /// leased.
    fn free_between(&self, partition: u32, start: Offset, end: Offset) -> u64 {
        let cursor = &self.cursors[partition as usize];
        let leased: u64 = cursor
            .words_between(start, end)
            .map(|word| {
                let within = bits_between(word, start, end);
                let taken = self.taken_bits(partition, word) & !cursor.acked_bits(word);
                u64::from((taken & within).count_ones())
            })
            .sum();
        end.saturating_sub(start) - cursor.acked_between(start, end) - leased
    }

    /// Counts once what is free below `restored_end`; from then on [`Self::advance`] keeps it.
    fn count_free(&mut self, partition: u32) {
        let cursor = &self.cursors[partition as usize];
        let free = self.free_between(partition, cursor.next, cursor.restored_end);
        self.cursors[partition as usize].restored_free = free;
    }

    /// Moves `next` over offsets that were free.
    fn advance(&mut self, partition: u32, count: u64) {
        let cursor = &mut self.cursors[partition as usize];
        invariant!(
            cursor.floor() <= cursor.next,
            "the floor of acknowledged messages lies above the next one to be delivered"
        );
        let restored = cursor.restored_end.saturating_sub(cursor.next).min(count);
        cursor.restored_free = cursor.restored_free.saturating_sub(restored);
        cursor.next += count;
    }

    /// Whether the next `count_max` offsets may be delivered.
    pub(crate) fn claim(&self, partition: u32, count_max: u64) -> Claim {
        let cursor = &self.cursors[partition as usize];
        if cursor.next >= cursor.restored_end {
            return Claim::Free(count_max);
        }
        if let Some(end) = cursor.full_until(cursor.next) {
            return Claim::Taken(end - cursor.next);
        }
        let word = cursor.next / WORD;
        let shift = cursor.next % WORD;
        let bits = self.taken_bits(partition, word) >> shift;
        let rest = WORD - shift;
        if bits & 1 == 1 {
            Claim::Taken(u64::from(bits.trailing_ones()).min(rest))
        } else {
            let free = match bits {
                0 => cursor.untouched_until(word + 1) - cursor.next,
                _ => u64::from(bits.trailing_zeros()).min(rest),
            };
            Claim::Free(free.min(count_max))
        }
    }

    fn taken_bits(&self, partition: u32, word: u64) -> u64 {
        let cursor = &self.cursors[partition as usize];
        let mut bits = cursor.acked_bits(word);
        let mut index = cursor.word(word).map_or(NIL, |state| state.leases);
        while let Some(lease) = self.leases.get(index) {
            bits |= lease.mask;
            index = lease.next_in_word;
        }
        bits
    }

    /// Steps over offsets that are [`Claim::Taken`].
    pub(crate) fn step_over(&mut self, partition: u32, count: u64) {
        self.cursors[partition as usize].next += count;
    }

    /// Offsets from `next` up to `to` hold no message, or none that this subscription wants.
    pub(crate) fn skip_to(&mut self, partition: u32, to: Offset) {
        while self.next(partition) < to {
            let start = self.next(partition);
            match self.claim(partition, to - start) {
                Claim::Taken(count) => self.step_over(partition, count),
                Claim::Free(count) => {
                    // First, because `ack_range` raises the floor, which must not pass `next`.
                    self.advance(partition, count);
                    self.cursors[partition as usize].ack_range(start, start + count);
                }
            }
        }
    }

    /// Acknowledges offsets that hold no message, or none that is wanted; no lease may lie in them.
    pub(crate) fn forget_range(&mut self, partition: u32, start: Offset, end: Offset) {
        if self.next(partition) >= start {
            return self.skip_to(partition, end);
        }
        let cursor = &mut self.cursors[partition as usize];
        if start < end {
            cursor.ack_range(start, end);
            cursor.restored_end = cursor.restored_end.max(end);
            self.count_free(partition);
        }
    }

    /// Leases the next `count` offsets, which were [`Claim::Free`], to a consumer. Their bodies
    /// have `bytes` bytes, if somebody counts them.
    #[inline]
    pub(crate) fn take_new(&mut self, partition: u32, count: u64, to: Grant, bytes: u32) {
        let start = self.next(partition);
        let end = start + count;
        let (mut word, mut left, mut left_bytes) = (start / WORD, count, u64::from(bytes));
        while word * WORD < end {
            let mask = bits_between(word, start, end);
            let part = u64::from(mask.count_ones());
            // Shared out evenly: the parts add up to the whole.
            let part_bytes = left_bytes * part / left;
            (left, left_bytes) = (left - part, left_bytes - part_bytes);
            let terms = Terms {
                state: LeaseState::InFlight(to.consumer),
                attempts: 1,
                due_ms: to.due_ms,
                delivered_us: to.now_us,
                bytes: u32::try_from(part_bytes).unwrap_or(u32::MAX),
                waited_ms: to.waited_ms,
            };
            self.link(partition, word, mask, terms);
            word += 1;
        }
        self.advance(partition, count);
        self.in_flight += count;
    }

    /// Holds back the next offset, with a body of so many bytes, until `due_ms`.
    pub(crate) fn delay_new(&mut self, partition: u32, due_ms: u64, bytes: u32) {
        let start = self.next(partition);
        let terms = Terms::until(LeaseState::Delayed, 0, due_ms, bytes);
        self.link(partition, start / WORD, 1 << (start % WORD), terms);
        self.advance(partition, 1);
        self.delayed += 1;
    }

    fn link(&mut self, partition: u32, word: u64, mask: u64, terms: Terms) -> u32 {
        let index = self.leases.insert(partition, word, mask, terms);
        let entry = self.cursors[partition as usize].word_mut(word);
        let next = std::mem::replace(&mut entry.leases, index);
        if let Some(lease) = self.leases.get_mut(index) {
            lease.next_in_word = next;
        }
        index
    }

    fn unlink(&mut self, index: u32) {
        let Some(lease) = self.leases.get(index) else {
            return;
        };
        let (partition, word, next) = (lease.partition, lease.word, lease.next_in_word);
        let head = self.cursors[partition as usize]
            .word(word)
            .map_or(NIL, |entry| entry.leases);
        if head == index {
            self.cursors[partition as usize].word_mut(word).leases = next;
        } else {
            let mut before = head;
            while let Some(lease) = self.leases.get_mut(before) {
                if lease.next_in_word == index {
                    lease.next_in_word = next;
                    break;
                }
                before = lease.next_in_word;
            }
        }
        self.leases.remove(index);
    }

    fn find(&self, id: MessageId) -> Option<u32> {
        let cursor = self.cursors.get(id.partition as usize)?;
        let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
        let mut index = cursor.word(word)?.leases;
        while let Some(lease) = self.leases.get(index) {
            if lease.mask & bit != 0 {
                return Some(index);
            }
            index = lease.next_in_word;
        }
        None
    }

    /// Takes messages out of a lease; the lease is removed with its last message. Returns the bytes
    /// that leave with them.
    fn take_bits(&mut self, index: u32, bits: u64) -> u32 {
        let Some(lease) = self.leases.get_mut(index) else {
            return 0;
        };
        invariant!(
            lease.mask & bits == bits,
            "messages leave a lease that does not hold them"
        );
        let bytes = match lease.terms.bytes {
            0 => 0,
            bytes => {
                let part = u64::from(bits.count_ones());
                let share = u64::from(bytes) * part / u64::from(lease.mask.count_ones());
                u32::try_from(share).unwrap_or(bytes)
            }
        };
        lease.terms.bytes -= bytes;
        lease.mask &= !bits;
        if lease.mask == 0 {
            self.unlink(index);
        }
        bytes
    }

    /// The messages that a consumer holds, in runs: the first one, how many, and how they were
    /// delivered.
    pub(crate) fn held_by(
        &self,
        consumer: ConsumerSlot,
    ) -> impl Iterator<Item = (MessageId, u32, Settled)> {
        self.leases.of_consumer(consumer).flat_map(|lease| {
            let settled = lease.terms.settled();
            let runs = lease.messages().runs();
            runs.map(move |(id, count)| (id, count, settled))
        })
    }

    /// Panics unless the counters can be the sums of the leases: each lease holds from one message
    /// to all of a word. For whoever is done with a change.
    #[inline]
    pub(crate) fn check(&self) {
        let messages = self.ready + self.delayed + self.in_flight + self.dead;
        let leases = self.leases.len() as u64;
        invariant!(
            leases <= messages && messages <= leases * WORD,
            "the counters of a ledger are not the sums of its leases"
        );
    }

    /// When the next lease ends by itself.
    pub(crate) fn first_due_ms(&self) -> Option<u64> {
        self.leases.first_due_ms()
    }
}

/// Lowers the counter of a state (ready, delayed, in flight, dead) that messages have left.
#[inline]
fn lower(counter: &mut u64, count: u64) {
    invariant!(
        *counter >= count,
        "more messages leave a state than leases hold in it"
    );
    *counter -= count;
}
