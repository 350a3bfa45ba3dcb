//! The ledger: the whole delivery state of one subscription, as a pure state machine.
//!
//! It knows offsets, leases and times that it is told. It knows no log, no lock and no clock, so that a
//! property test can hold it against a plain model (`tests.rs`).
//!
//! Every offset below a cursor's `next` is either acknowledged or in exactly one [lease](leases).

pub(crate) mod cursor;
pub(crate) mod leases;
mod persist;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use cloverleaf_log::Offset;

use crate::message::{DeadReason, MessageId};
use cursor::{Cursor, WORD, bits_between};
use leases::{ConsumerSlot, LeaseState, Leases, NEVER_MS, NIL};
pub(crate) use persist::{LedgerDelta, PartitionDelta, RestoredRetries, Retry};

/// Messages at the head of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// This many consecutive offsets from `next` on were never delivered.
    Free(u64),
    /// The next so many offsets are acknowledged or leased already: step over them.
    Taken(u64),
}

/// A run of requeued messages of one word, in their old position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadyRun {
    pub(crate) first: Offset,
    pub(crate) count: u32,
    pub(crate) attempts: u16,
}

/// A lease that ended because its time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The consumer did not settle these messages in time.
    TimedOut { consumer: ConsumerSlot, count: u32 },
    /// A delay is over.
    Due { count: u32 },
}

/// Why messages cannot be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is not in flight for this consumer")]
pub struct NotInFlight;

/// What a settled message looked like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) delivered_us: u64,
    pub(crate) attempts: u16,
}

/// The delivery state of one subscription over all partitions of its topic.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    cursors: Vec<Cursor>,
    leases: Leases,
    /// Words with a ready lease, per partition.
    ready_words: Vec<BTreeSet<u64>>,
    ready: u64,
    delayed: u64,
    in_flight: u64,
    dead: u64,
    /// Deliveries after which a message is dead; 0: never.
    attempts_max: u16,
    /// Messages that died and wait for their dead letter to be written.
    died: Vec<(MessageId, DeadReason)>,
    retries_dirty: Vec<(u32, Retry)>,
}

impl Ledger {
    /// A ledger whose partitions start at `floors`.
    pub(crate) fn new(floors: &[Offset], attempts_max: u16) -> Self {
        Self {
            cursors: floors.iter().map(|floor| Cursor::starting_at(*floor)).collect(),
            ready_words: floors.iter().map(|_| BTreeSet::new()).collect(),
            attempts_max,
            ..Self::default()
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
        let Some(cursor) = self.cursors.get(partition as usize) else { return 0 };
        let leased = self
            .leases
            .iter()
            .filter(|lease| lease.partition == partition)
            .map(|lease| lease.word * WORD + (WORD - u64::from(lease.mask.leading_zeros())))
            .max();
        cursor.known_end().max(leased.unwrap_or(0))
    }

    /// Requeued messages that wait for a consumer.
    pub(crate) fn ready(&self) -> u64 {
        self.ready
    }

    /// Messages that wait for their delay to pass.
    pub(crate) fn delayed(&self) -> u64 {
        self.delayed
    }

    /// Messages that consumers hold.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Messages that wait for their dead letter to be written.
    #[cfg(test)]
    pub(crate) fn dead(&self) -> u64 {
        self.dead
    }

    /// The number of slab entries: what memory follows.
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
        let until = cursor.restored_end.min(end);
        let leased: u64 = cursor
            .words_between(cursor.next, until)
            .map(|word| {
                let within = bits_between(word, cursor.next, until);
                let taken = self.taken_bits(partition, word) & !cursor.acked_bits(word);
                u64::from((taken & within).count_ones())
            })
            .sum();
        count - cursor.acked_between(cursor.next, until) - leased
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
                    self.cursors[partition as usize].ack_range(start, start + count);
                    let cursor = &mut self.cursors[partition as usize];
                    cursor.next = cursor.next.max(start + count);
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
        }
    }

    /// Leases the next `count` offsets, which were [`Claim::Free`], to a consumer.
    pub(crate) fn take_new(
        &mut self,
        partition: u32,
        count: u64,
        consumer: ConsumerSlot,
        due_ms: u64,
        now_us: u64,
    ) {
        let start = self.next(partition);
        let end = start + count;
        self.lease_new(partition, start, end, LeaseState::InFlight(consumer), 1, due_ms, now_us);
        self.cursors[partition as usize].next = end;
        self.in_flight += count;
    }

    /// Holds back the next offset until `due_ms`.
    pub(crate) fn delay_new(&mut self, partition: u32, due_ms: u64) {
        let start = self.next(partition);
        self.lease_new(partition, start, start + 1, LeaseState::Delayed, 0, due_ms, 0);
        self.cursors[partition as usize].next = start + 1;
        self.delayed += 1;
    }

    #[allow(clippy::too_many_arguments)] // the fields of a lease
    fn lease_new(
        &mut self,
        partition: u32,
        start: Offset,
        end: Offset,
        state: LeaseState,
        attempts: u16,
        due_ms: u64,
        now_us: u64,
    ) {
        let mut word = start / WORD;
        while word * WORD < end {
            let mask = bits_between(word, start, end);
            self.link(partition, word, mask, state, attempts, due_ms, now_us);
            word += 1;
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of a lease
    fn link(
        &mut self,
        partition: u32,
        word: u64,
        mask: u64,
        state: LeaseState,
        attempts: u16,
        due_ms: u64,
        delivered_us: u64,
    ) -> u32 {
        let index =
            self.leases.insert(partition, word, mask, state, attempts, due_ms, delivered_us);
        let entry = self.cursors[partition as usize].word_mut(word);
        let next = std::mem::replace(&mut entry.leases, index);
        if let Some(lease) = self.leases.get_mut(index) {
            lease.next_in_word = next;
        }
        index
    }

    fn unlink(&mut self, index: u32) {
        let Some(lease) = self.leases.get(index) else { return };
        let (partition, word, next) = (lease.partition, lease.word, lease.next_in_word);
        let head = self.cursors[partition as usize].word(word).map_or(NIL, |entry| entry.leases);
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

    fn find_in_flight(&self, id: MessageId, consumer: ConsumerSlot) -> Result<u32, NotInFlight> {
        let index = self.find(id).ok_or(NotInFlight)?;
        let held = self.leases.get(index).map(|lease| lease.state);
        if held == Some(LeaseState::InFlight(consumer)) { Ok(index) } else { Err(NotInFlight) }
    }

    /// Takes one bit out of a lease; the lease goes when it was the last.
    fn take_bits(&mut self, index: u32, bits: u64) {
        let Some(lease) = self.leases.get_mut(index) else { return };
        debug_assert_eq!(lease.mask & bits, bits);
        lease.mask &= !bits;
        if lease.mask == 0 {
            self.unlink(index);
        }
    }

    /// Acknowledges a message that `consumer` holds.
    pub(crate) fn ack(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
    ) -> Result<Settled, NotInFlight> {
        let index = self.find_in_flight(id, consumer)?;
        let settled = self.settled(index);
        let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
        self.take_bits(index, bit);
        self.cursors[id.partition as usize].ack_bits(word, bit);
        self.in_flight -= 1;
        Ok(settled)
    }

    fn settled(&self, index: u32) -> Settled {
        self.leases.get(index).map_or(Settled { delivered_us: 0, attempts: 0 }, |lease| Settled {
            delivered_us: lease.delivered_us,
            attempts: lease.attempts,
        })
    }

    /// Gives a message back: ready at once in its old position, or when `due_ms` has come.
    pub(crate) fn nack(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
        due_ms: Option<u64>,
    ) -> Result<Settled, NotInFlight> {
        let index = self.find_in_flight(id, consumer)?;
        let settled = self.settled(index);
        let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
        self.take_bits(index, bit);
        self.in_flight -= 1;
        self.give_back(id.partition, word, bit, settled.attempts, due_ms);
        Ok(settled)
    }

    /// Declares a message dead that `consumer` holds.
    pub(crate) fn reject(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
    ) -> Result<Settled, NotInFlight> {
        let index = self.find_in_flight(id, consumer)?;
        let settled = self.settled(index);
        let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
        self.take_bits(index, bit);
        self.in_flight -= 1;
        self.bury(id.partition, word, bit, settled.attempts, DeadReason::Rejected);
        Ok(settled)
    }

    /// Moves the deadline of a message that `consumer` holds.
    pub(crate) fn extend(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
        due_ms: impl FnOnce(Settled) -> u64,
    ) -> Result<(), NotInFlight> {
        let index = self.find_in_flight(id, consumer)?;
        let settled = self.settled(index);
        let due_ms = due_ms(settled);
        let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
        if self.leases.get(index).is_some_and(|lease| lease.mask == bit) {
            self.leases.set_due(index, due_ms);
        } else {
            self.take_bits(index, bit);
            let state = LeaseState::InFlight(consumer);
            let (partition, at) = (id.partition, settled.delivered_us);
            self.link(partition, word, bit, state, settled.attempts, due_ms, at);
        }
        Ok(())
    }

    fn give_back(
        &mut self,
        partition: u32,
        word: u64,
        mask: u64,
        attempts: u16,
        due_ms: Option<u64>,
    ) {
        if self.attempts_max > 0 && attempts >= self.attempts_max {
            self.bury(partition, word, mask, attempts, DeadReason::Attempts);
            return;
        }
        let retry = Retry { word, mask, attempts, due_ms: due_ms.unwrap_or(0) };
        self.retries_dirty.push((partition, retry));
        match due_ms {
            Some(due_ms) => {
                self.link(partition, word, mask, LeaseState::Delayed, attempts, due_ms, 0);
                self.delayed += u64::from(mask.count_ones());
            }
            None => self.make_ready(partition, word, mask, attempts),
        }
    }

    fn make_ready(&mut self, partition: u32, word: u64, mask: u64, attempts: u16) {
        self.ready += u64::from(mask.count_ones());
        self.ready_words[partition as usize].insert(word);
        let mut index = self.cursors[partition as usize].word(word).map_or(NIL, |w| w.leases);
        while let Some(lease) = self.leases.get_mut(index) {
            if lease.state == LeaseState::Ready && lease.attempts == attempts {
                lease.mask |= mask;
                return;
            }
            index = lease.next_in_word;
        }
        self.link(partition, word, mask, LeaseState::Ready, attempts, NEVER_MS, 0);
    }

    /// Declares the next offset dead before it was ever delivered (it expired, or the queue is full).
    pub(crate) fn bury_new(&mut self, partition: u32, reason: DeadReason) {
        let start = self.next(partition);
        self.cursors[partition as usize].next = start + 1;
        self.bury(partition, start / WORD, 1 << (start % WORD), 0, reason);
    }

    /// Declares the foremost requeued message dead.
    pub(crate) fn bury_ready(&mut self, partition: u32, reason: DeadReason) {
        let (word, mask, attempts) = self.take_first_ready(partition, 1);
        if mask != 0 {
            self.bury(partition, word, mask, attempts, reason);
        }
    }

    fn bury(&mut self, partition: u32, word: u64, mask: u64, attempts: u16, reason: DeadReason) {
        self.link(partition, word, mask, LeaseState::Dead, attempts, NEVER_MS, 0);
        self.dead += u64::from(mask.count_ones());
        let mut bits = mask;
        while bits != 0 {
            let offset = word * WORD + u64::from(bits.trailing_zeros());
            self.died.push((MessageId { partition, offset }, reason));
            bits &= bits - 1;
        }
    }

    /// Messages that died since the last call, with their dead letters still to be written.
    pub(crate) fn take_died(&mut self) -> Vec<(MessageId, DeadReason)> {
        std::mem::take(&mut self.died)
    }

    /// Whether [`Self::take_died`] has something to say.
    pub(crate) fn has_died(&self) -> bool {
        !self.died.is_empty()
    }

    /// The deliveries that a dead message had.
    pub(crate) fn attempts_of(&self, id: MessageId) -> Option<u16> {
        self.find(id).and_then(|index| self.leases.get(index)).map(|lease| lease.attempts)
    }

    /// A dead message's letter is written (or there is nowhere to write it): it is done with.
    pub(crate) fn ack_dead(&mut self, id: MessageId) {
        let Some(index) = self.find(id) else { return };
        if self.leases.get(index).map(|lease| lease.state) == Some(LeaseState::Dead) {
            let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
            self.take_bits(index, bit);
            self.dead -= 1;
            self.cursors[id.partition as usize].ack_bits(word, bit);
        }
    }

    /// The foremost requeued messages of a partition.
    pub(crate) fn first_ready(&self, partition: u32) -> Option<ReadyRun> {
        let word = *self.ready_words[partition as usize].first()?;
        let lease = self.leases.get(self.first_ready_lease(partition, word)?)?;
        let bit = lease.mask.trailing_zeros();
        Some(ReadyRun {
            first: word * WORD + u64::from(bit),
            count: (lease.mask >> bit).trailing_ones(),
            attempts: lease.attempts,
        })
    }

    fn first_ready_lease(&self, partition: u32, word: u64) -> Option<u32> {
        let mut index = self.cursors[partition as usize].word(word)?.leases;
        let mut best: Option<(u32, u32)> = None;
        while let Some(lease) = self.leases.get(index) {
            let bit = lease.mask.trailing_zeros();
            if lease.state == LeaseState::Ready && best.is_none_or(|(least, _)| bit < least) {
                best = Some((bit, index));
            }
            index = lease.next_in_word;
        }
        best.map(|(_, index)| index)
    }

    /// Takes `count` messages from the front of [`Self::first_ready`] out of the ready ones.
    fn take_first_ready(&mut self, partition: u32, count: u32) -> (u64, u64, u16) {
        let Some(word) = self.ready_words[partition as usize].first().copied() else {
            return (0, 0, 0);
        };
        let Some(index) = self.first_ready_lease(partition, word) else { return (word, 0, 0) };
        let Some(lease) = self.leases.get(index) else { return (word, 0, 0) };
        let (bit, attempts) = (lease.mask.trailing_zeros(), lease.attempts);
        let mask = bits_between(0, u64::from(bit), u64::from(bit + count)) & lease.mask;
        self.take_bits(index, mask);
        self.ready -= u64::from(mask.count_ones());
        if self.first_ready_lease(partition, word).is_none() {
            self.ready_words[partition as usize].remove(&word);
        }
        (word, mask, attempts)
    }

    /// Leases the foremost `count` requeued messages of a partition to a consumer.
    pub(crate) fn take_ready(
        &mut self,
        partition: u32,
        count: u32,
        consumer: ConsumerSlot,
        due_ms: u64,
        now_us: u64,
    ) {
        let (word, mask, attempts) = self.take_first_ready(partition, count);
        if mask == 0 {
            return;
        }
        let state = LeaseState::InFlight(consumer);
        self.link(partition, word, mask, state, attempts.saturating_add(1), due_ms, now_us);
        self.in_flight += u64::from(mask.count_ones());
    }

    /// The foremost `count` requeued messages are gone from the log: they count as acknowledged.
    pub(crate) fn drop_ready(&mut self, partition: u32, count: u32) {
        let (word, mask, _) = self.take_first_ready(partition, count);
        self.cursors[partition as usize].ack_bits(word, mask);
    }

    /// When the next lease ends by itself.
    pub(crate) fn first_due_ms(&self) -> Option<u64> {
        self.leases.first_due_ms()
    }

    /// Ends one lease whose time has come by `now_ms`; `None` when there is none left.
    pub(crate) fn expire(&mut self, now_ms: u64) -> Option<Expired> {
        let index = self.leases.first_due_by(now_ms)?;
        let lease = self.leases.get(index)?.clone();
        let count = lease.mask.count_ones();
        self.unlink(index);
        match lease.state {
            LeaseState::InFlight(consumer) => {
                self.in_flight -= u64::from(count);
                self.give_back(lease.partition, lease.word, lease.mask, lease.attempts, None);
                Some(Expired::TimedOut { consumer, count })
            }
            LeaseState::Ready | LeaseState::Delayed | LeaseState::Dead => {
                debug_assert_eq!(lease.state, LeaseState::Delayed);
                self.delayed -= u64::from(count);
                self.make_ready(lease.partition, lease.word, lease.mask, lease.attempts);
                Some(Expired::Due { count })
            }
        }
    }

    /// A consumer left: what it held is ready again. Returns how many messages that were.
    pub(crate) fn release(&mut self, consumer: ConsumerSlot) -> u64 {
        let mut count = 0;
        while let Some(index) = self.leases.first_of_consumer(consumer) {
            let Some(lease) = self.leases.get(index).cloned() else { break };
            self.unlink(index);
            count += u64::from(lease.mask.count_ones());
            self.give_back(lease.partition, lease.word, lease.mask, lease.attempts, None);
        }
        self.in_flight -= count;
        count
    }

    /// Forgets every lease and acknowledges everything below `ends`, one per partition.
    pub(crate) fn purge(&mut self, ends: &[Offset]) {
        self.leases = Leases::default();
        (self.ready, self.delayed, self.in_flight, self.dead) = (0, 0, 0, 0);
        self.died.clear();
        self.retries_dirty.clear();
        for (partition, end) in ends.iter().enumerate() {
            let end = (*end).max(self.next(u32::try_from(partition).unwrap_or(u32::MAX)));
            self.ready_words[partition].clear();
            let cursor = &mut self.cursors[partition];
            cursor.forget_leases();
            cursor.ack_range(cursor.floor(), end);
            cursor.next = cursor.next.max(end);
            cursor.restored_end = 0;
        }
    }
}
