//! The ledger: the whole delivery state of one subscription, as a pure state machine.
//!
//! It works on offsets, leases and the times that its caller passes in. It uses no log, no lock and
//! no clock, so that a property test can compare it with a plain model (`tests.rs`).
//!
//! Every offset below a cursor's `next` is either acknowledged or in exactly one [lease](leases),
//! which says whether it is in flight, requeued, delayed or dead.

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
use leases::{ConsumerSlot, LeaseGrant, LeaseState, LeaseTerms, Leases, NIL};
use marks::DeliveryMark;
pub(crate) use moved::MovedMessages;
pub(crate) use persist::{LedgerDelta, PartitionDelta, RestoredRetries, Retry, retries_end};
pub(crate) use ranges::SettleAction;

/// The span of offsets that starts at `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextSpan {
    /// This many consecutive offsets from `next` on were never delivered.
    Free(u64),
    /// This many offsets from `next` on are acknowledged or leased already: step over them.
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

/// Messages of one word (64 offsets) of a partition. They need not be consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordMask {
    pub(crate) partition: u32,
    pub(crate) word: u64,
    /// Bit n stands for offset `word * 64 + n`.
    pub(crate) mask: u64,
}

impl WordMask {
    /// The number of messages.
    pub(crate) fn count(self) -> u32 {
        self.mask.count_ones()
    }

    /// The messages as runs of consecutive offsets: the first message and the length of each.
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

/// A lease that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The consumer did not settle these messages in time.
    TimedOut {
        consumer: ConsumerSlot,
        messages: WordMask,
        settled: SettledDelivery,
    },
    /// The delay of `count` messages has passed.
    Due { count: u32 },
}

/// The caller does not have this message in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is not in flight for this consumer")]
pub struct NotInFlight;

/// The delivery of a message that was settled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SettledDelivery {
    pub(crate) delivered_us: u64,
    pub(crate) attempts: u16,
    /// How long its batch had waited between publish and that delivery.
    pub(crate) waited_ms: u32,
}

/// The delivery state of one subscription over all partitions of its topic.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    cursors: Vec<Cursor>,
    leases: Leases,
    /// The numbers of words with a ready lease, per partition.
    ready_words: Vec<BTreeSet<u64>>,
    ready: u64,
    /// Bytes of the bodies of the ready messages; 0 where no limit in bytes needs them.
    ready_bytes: u64,
    delayed: u64,
    in_flight: u64,
    dead: u64,
    /// The delivery mark of each partition.
    marks: Vec<DeliveryMark>,
    /// Deliveries after which a message is dead; 0: never.
    attempts_max: u16,
    /// Messages that died and that [`Ledger::take_dead`] has not returned yet.
    died: Vec<(MessageId, DeadReason)>,
    retries_dirty: Vec<(u32, Retry)>,
    /// Messages whose copies are written to their destination but that are not acknowledged here
    /// yet.
    moved: MovedMessages,
    /// The ledger does not survive a restart: changes are not collected for the journal.
    volatile: bool,
}

impl Ledger {
    /// A ledger whose partitions start at the offsets `floors`.
    pub(crate) fn new(floors: &[Offset], attempts_max: u16) -> Self {
        Self {
            cursors: floors
                .iter()
                .map(|floor| Cursor::starting_at(*floor))
                .collect(),
            ready_words: floors.iter().map(|_| BTreeSet::new()).collect(),
            marks: floors.iter().map(|_| DeliveryMark::default()).collect(),
            attempts_max,
            ..Self::default()
        }
    }

    /// Stops collecting changes for the journal: the subscription is ephemeral.
    pub(crate) fn make_volatile(&mut self) {
        self.volatile = true;
        self.cursors.iter_mut().for_each(Cursor::make_volatile);
    }

    /// Adds partitions, each from its first offset on, until there are `partitions`.
    pub(crate) fn grow(&mut self, partitions: usize) {
        while self.cursors.len() < partitions {
            let mut cursor = Cursor::starting_at(0);
            if self.volatile {
                cursor.make_volatile();
            }
            self.cursors.push(cursor);
            self.ready_words.push(BTreeSet::new());
            self.marks.push(DeliveryMark::default());
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

    /// One above the highest offset of a partition that is acknowledged or leased.
    pub(crate) fn known_end(&self, partition: u32) -> Offset {
        let Some(cursor) = self.cursors.get(partition as usize) else {
            return 0;
        };
        cursor.known_end().max(self.leased_end(partition))
    }

    /// One above the highest leased offset of a partition; 0 if none is leased.
    fn leased_end(&self, partition: u32) -> Offset {
        let leases = self.leases.iter();
        let leases = leases.filter(|lease| lease.partition == partition);
        let ends =
            leases.map(|lease| lease.word * WORD + (WORD - u64::from(lease.mask.leading_zeros())));
        ends.max().unwrap_or(0)
    }

    /// One above the highest offset of a partition that is known to have been delivered. First
    /// deliveries that were in flight before a restart are not known, because the journal does not
    /// record them one by one.
    pub(crate) fn delivered_end(&self, partition: u32) -> Offset {
        self.next(partition).max(self.leased_end(partition))
    }

    /// The number of requeued messages that wait for a consumer.
    pub(crate) fn ready(&self) -> u64 {
        self.ready
    }

    /// Bytes of the bodies of the ready messages; 0 where no limit in bytes needs them.
    pub(crate) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// The number of messages whose delay has not passed.
    pub(crate) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// The delivery mark of each partition.
    #[inline]
    pub(crate) fn marks(&self) -> &[DeliveryMark] {
        &self.marks
    }

    #[inline]
    pub(crate) fn marks_mut(&mut self) -> &mut [DeliveryMark] {
        &mut self.marks
    }

    /// Where a delivery that starts at `first` must end, at `end` at the latest. All messages of
    /// one delivery share the `redelivered` flag, so it must not cross the delivery mark that an
    /// earlier process left.
    #[inline]
    pub(crate) fn same_redelivered_until(
        &self,
        partition: usize,
        first: Offset,
        end: Offset,
    ) -> Offset {
        let earlier = self.marks[partition].redelivered_below();
        if first < earlier {
            end.min(earlier)
        } else {
            end
        }
    }

    /// The number of messages that consumers have in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The number of messages whose dead letters are not written yet.
    pub(crate) fn dead(&self) -> u64 {
        self.dead
    }

    /// The number of leases; memory is proportional to it.
    pub(crate) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// The number of messages below `end` that were never delivered; requeued ones do not count.
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
        // `end` lies below `restored_end` only while delivery is limited there (a paused topic):
        // rare, so count from scratch.
        self.free_between(partition, cursor.next, end)
    }

    /// The number of offsets in `[start, end)` that are neither acknowledged nor leased. `start`
    /// must not be below `next`.
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

    /// Counts the free offsets below `restored_end` once; [`Self::advance`] keeps the count up to
    /// date.
    fn count_free(&mut self, partition: u32) {
        let cursor = &self.cursors[partition as usize];
        let free = self.free_between(partition, cursor.next, cursor.restored_end);
        self.cursors[partition as usize].restored_free = free;
    }

    /// Moves `next` past offsets that were free.
    fn advance(&mut self, partition: u32, count: u64) {
        let cursor = &mut self.cursors[partition as usize];
        invariant!(
            cursor.floor() <= cursor.next,
            "the floor of acknowledged messages is above the next offset to deliver"
        );
        let restored = cursor.restored_end.saturating_sub(cursor.next).min(count);
        cursor.restored_free = cursor.restored_free.saturating_sub(restored);
        cursor.next += count;
    }

    /// Which of the `count_max` offsets from `next` on may be delivered. Changes nothing.
    pub(crate) fn next_span(&self, partition: u32, count_max: u64) -> NextSpan {
        let cursor = &self.cursors[partition as usize];
        if cursor.next >= cursor.restored_end {
            return NextSpan::Free(count_max);
        }
        if let Some(end) = cursor.full_until(cursor.next) {
            return NextSpan::Taken(end - cursor.next);
        }
        let word = cursor.next / WORD;
        let shift = cursor.next % WORD;
        let bits = self.taken_bits(partition, word) >> shift;
        let rest = WORD - shift;
        if bits & 1 == 1 {
            NextSpan::Taken(u64::from(bits.trailing_ones()).min(rest))
        } else {
            let free = match bits {
                0 => cursor.untouched_until(word + 1) - cursor.next,
                _ => u64::from(bits.trailing_zeros()).min(rest),
            };
            NextSpan::Free(free.min(count_max))
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

    /// Moves `next` past offsets that are [`NextSpan::Taken`].
    pub(crate) fn step_over(&mut self, partition: u32, count: u64) {
        self.cursors[partition as usize].next += count;
    }

    /// Acknowledges the offsets from `next` up to `to`: they have no message, or none that this
    /// subscription wants.
    pub(crate) fn skip_to(&mut self, partition: u32, to: Offset) {
        while self.next(partition) < to {
            let start = self.next(partition);
            match self.next_span(partition, to - start) {
                NextSpan::Taken(count) => self.step_over(partition, count),
                NextSpan::Free(count) => {
                    // `advance` goes first: `ack_range` raises the floor, which must not pass
                    // `next`.
                    self.advance(partition, count);
                    self.cursors[partition as usize].ack_range(start, start + count);
                }
            }
        }
    }

    /// Acknowledges offsets that have no message, or none that is wanted. No lease may cover any of
    /// them.
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

    /// Leases the next `count` offsets, which were [`NextSpan::Free`], to a consumer. `bytes` is
    /// the total size of their bodies, 0 where no limit in bytes needs it.
    #[inline]
    pub(crate) fn lease_next(&mut self, partition: u32, count: u64, to: LeaseGrant, bytes: u32) {
        let start = self.next(partition);
        let end = start + count;
        let (mut word, mut left, mut left_bytes) = (start / WORD, count, u64::from(bytes));
        while word * WORD < end {
            let mask = bits_between(word, start, end);
            let part = u64::from(mask.count_ones());
            // Split in proportion; the parts add up to the whole.
            let part_bytes = left_bytes * part / left;
            (left, left_bytes) = (left - part, left_bytes - part_bytes);
            let terms = LeaseTerms {
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

    /// Delays the next offset, with a body of `bytes`, until `due_ms`.
    pub(crate) fn delay_new(&mut self, partition: u32, due_ms: u64, bytes: u32) {
        let start = self.next(partition);
        let terms = LeaseTerms::timed(LeaseState::Delayed, 0, due_ms, bytes);
        self.link(partition, start / WORD, 1 << (start % WORD), terms);
        self.advance(partition, 1);
        self.delayed += 1;
    }

    fn link(&mut self, partition: u32, word: u64, mask: u64, terms: LeaseTerms) -> u32 {
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

    /// Removes messages from a lease; the lease is freed with its last message. Returns the bytes
    /// of their bodies.
    fn take_bits(&mut self, index: u32, bits: u64) -> u32 {
        let Some(lease) = self.leases.get_mut(index) else {
            return 0;
        };
        invariant!(
            lease.mask & bits == bits,
            "messages leave a lease that does not cover them"
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

    /// The messages that a consumer has in flight, as runs: the first message, the length, and the
    /// delivery.
    pub(crate) fn held_by(
        &self,
        consumer: ConsumerSlot,
    ) -> impl Iterator<Item = (MessageId, u32, SettledDelivery)> {
        self.leases.of_consumer(consumer).flat_map(|lease| {
            let settled = lease.terms.settled();
            let runs = lease.messages().runs();
            runs.map(move |(id, count)| (id, count, settled))
        })
    }

    /// Panics if the counters cannot be the sums of the leases: each lease covers 1 to 64 messages,
    /// so together they count at least one and at most 64 per lease. Call it at the end of each
    /// change.
    #[inline]
    pub(crate) fn check(&self) {
        let messages = self.ready + self.delayed + self.in_flight + self.dead;
        let leases = self.leases.len() as u64;
        invariant!(
            leases <= messages && messages <= leases * WORD,
            "the counters of a ledger are not the sums of its leases"
        );
    }

    /// When the next lease expires.
    pub(crate) fn first_due_ms(&self) -> Option<u64> {
        self.leases.first_due_ms()
    }
}

/// Lowers the counter of a state (ready, delayed, in flight, dead) by messages that leave the
/// state.
#[inline]
fn lower(counter: &mut u64, count: u64) {
    invariant!(
        *counter >= count,
        "more messages leave a state than its leases cover"
    );
    *counter -= count;
}
