//! How a delivery ends: settled by the consumer, timed out, released by a consumer that left, or
//! dead.

use cloverleaf_log::{Offset, invariant};

use super::cursor::WORD;
use super::leases::{ConsumerSlot, LeaseState, LeaseTerms, Leases};
use super::{Expired, Ledger, NotInFlight, Retry, SettledDelivery, lower};
use crate::message::{DeadReason, MessageId};

impl Ledger {
    pub(super) fn find_in_flight(
        &self,
        id: MessageId,
        consumer: ConsumerSlot,
    ) -> Result<u32, NotInFlight> {
        let index = self.find(id).ok_or(NotInFlight)?;
        let held = self.leases.get(index).map(|lease| lease.terms.state);
        if held == Some(LeaseState::InFlight(consumer)) {
            Ok(index)
        } else {
            Err(NotInFlight)
        }
    }

    /// Takes a message out of its lease, if `consumer` has it in flight.
    fn take_one(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
    ) -> Result<TakenMessage, NotInFlight> {
        let index = self.find_in_flight(id, consumer)?;
        let settled = self.settled(index);
        let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
        let bytes = self.take_bits(index, bit);
        lower(&mut self.in_flight, 1);
        Ok(TakenMessage {
            settled,
            word,
            bit,
            bytes,
        })
    }

    /// Acknowledges a message that `consumer` has in flight.
    pub(crate) fn ack(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
    ) -> Result<SettledDelivery, NotInFlight> {
        let taken = self.take_one(id, consumer)?;
        self.cursors[id.partition as usize].ack_bits(taken.word, taken.bit);
        Ok(taken.settled)
    }

    pub(super) fn settled(&self, index: u32) -> SettledDelivery {
        let lease = self.leases.get(index);
        lease.map_or(SettledDelivery::default(), |lease| lease.terms.settled())
    }

    /// Requeues a message at its original offset: ready at once, or at `due_ms`.
    pub(crate) fn nack(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
        due_ms: Option<u64>,
    ) -> Result<SettledDelivery, NotInFlight> {
        let taken = self.take_one(id, consumer)?;
        let attempts = taken.settled.attempts;
        self.requeue(
            id.partition,
            taken.word,
            taken.bit,
            attempts,
            taken.bytes,
            due_ms,
        );
        Ok(taken.settled)
    }

    /// Rejects a message that `consumer` has in flight: it is dead.
    pub(crate) fn reject(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
    ) -> Result<SettledDelivery, NotInFlight> {
        let taken = self.take_one(id, consumer)?;
        let attempts = taken.settled.attempts;
        let reason = DeadReason::Rejected;
        self.make_dead(id.partition, taken.word, taken.bit, attempts, reason);
        Ok(taken.settled)
    }

    /// Changes the ack deadline of a message that `consumer` has in flight.
    pub(crate) fn extend(
        &mut self,
        id: MessageId,
        consumer: ConsumerSlot,
        due_ms: impl FnOnce(SettledDelivery) -> u64,
    ) -> Result<(), NotInFlight> {
        let index = self.find_in_flight(id, consumer)?;
        let settled = self.settled(index);
        let due_ms = due_ms(settled);
        let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
        if self
            .leases
            .get(index)
            .is_some_and(|lease| lease.mask == bit)
        {
            self.leases.set_due(index, due_ms);
        } else {
            let terms = LeaseTerms {
                state: LeaseState::InFlight(consumer),
                attempts: settled.attempts,
                due_ms,
                delivered_us: settled.delivered_us,
                bytes: self.take_bits(index, bit),
                waited_ms: settled.waited_ms,
            };
            self.link(id.partition, word, bit, terms);
        }
        Ok(())
    }

    pub(super) fn requeue(
        &mut self,
        partition: u32,
        word: u64,
        mask: u64,
        attempts: u16,
        bytes: u32,
        due_ms: Option<u64>,
    ) {
        if self.attempts_max > 0 && attempts >= self.attempts_max {
            self.make_dead(partition, word, mask, attempts, DeadReason::Attempts);
            return;
        }
        if !self.volatile {
            let due_ms = due_ms.unwrap_or(0);
            let retry = Retry {
                word,
                mask,
                attempts,
                due_ms,
            };
            self.retries_dirty.push((partition, retry));
        }
        match due_ms {
            Some(due_ms) => {
                let terms = LeaseTerms::timed(LeaseState::Delayed, attempts, due_ms, bytes);
                self.link(partition, word, mask, terms);
                self.delayed += u64::from(mask.count_ones());
            }
            None => self.make_ready(partition, word, mask, attempts, bytes),
        }
    }

    pub(super) fn make_ready(
        &mut self,
        partition: u32,
        word: u64,
        mask: u64,
        attempts: u16,
        bytes: u32,
    ) {
        self.ready += u64::from(mask.count_ones());
        self.ready_bytes += u64::from(bytes);
        self.ready_words[partition as usize].insert(word);
        let alike =
            |terms: &LeaseTerms| terms.state == LeaseState::Ready && terms.attempts == attempts;
        match self.find_in_word(partition, word, alike) {
            Some(index) => self.leases.add_bits(index, mask, bytes),
            None => {
                let terms = LeaseTerms::untimed(LeaseState::Ready, attempts, bytes);
                self.link(partition, word, mask, terms);
            }
        }
    }

    /// The lease of a word whose messages have the same state, so that more can be added.
    fn find_in_word(
        &self,
        partition: u32,
        word: u64,
        alike: impl Fn(&LeaseTerms) -> bool,
    ) -> Option<u32> {
        let mut index = self.cursors[partition as usize].word(word)?.leases;
        while let Some(lease) = self.leases.get(index) {
            if alike(&lease.terms) {
                return Some(index);
            }
            index = lease.next_in_word;
        }
        None
    }

    /// Declares the next undelivered message dead (it expired, or the queue is full).
    pub(crate) fn make_next_dead(&mut self, partition: u32, reason: DeadReason) {
        let start = self.next(partition);
        self.advance(partition, 1);
        self.make_dead(partition, start / WORD, 1 << (start % WORD), 0, reason);
    }

    /// Declares the first requeued message of a partition dead.
    pub(crate) fn make_first_ready_dead(&mut self, partition: u32, reason: DeadReason) {
        let taken = self.take_first_ready(partition, 1);
        if taken.mask != 0 {
            self.make_dead(partition, taken.word, taken.mask, taken.attempts, reason);
        }
    }

    pub(super) fn make_dead(
        &mut self,
        partition: u32,
        word: u64,
        mask: u64,
        attempts: u16,
        reason: DeadReason,
    ) {
        let alike =
            |terms: &LeaseTerms| terms.state == LeaseState::Dead && terms.attempts == attempts;
        match self.find_in_word(partition, word, alike) {
            Some(index) => self.leases.add_bits(index, mask, 0),
            None => {
                let terms = LeaseTerms::untimed(LeaseState::Dead, attempts, 0);
                self.link(partition, word, mask, terms);
            }
        }
        self.dead += u64::from(mask.count_ones());
        let mut bits = mask;
        while bits != 0 {
            let offset = word * WORD + u64::from(bits.trailing_zeros());
            self.died.push((MessageId { partition, offset }, reason));
            bits &= bits - 1;
        }
    }

    /// Takes the messages that died since the last call; their dead letters are not written yet.
    pub(crate) fn take_dead(&mut self) -> Vec<(MessageId, DeadReason)> {
        std::mem::take(&mut self.died)
    }

    /// Whether [`Self::take_dead`] would return any.
    pub(crate) fn has_new_dead(&self) -> bool {
        !self.died.is_empty()
    }

    /// How often a dead message was delivered.
    pub(crate) fn attempts_of(&self, id: MessageId) -> Option<u16> {
        self.find(id)
            .and_then(|index| self.leases.get(index))
            .map(|lease| lease.terms.attempts)
    }

    /// Acknowledges a dead message: its dead letter is as durable as it will be, or it needs none.
    pub(crate) fn ack_dead(&mut self, id: MessageId) {
        let Some(index) = self.find(id) else { return };
        let state = self.leases.get(index).map(|lease| lease.terms.state);
        if state == Some(LeaseState::Dead) {
            let (word, bit) = (id.offset / WORD, 1u64 << (id.offset % WORD));
            self.take_bits(index, bit);
            lower(&mut self.dead, 1);
            self.cursors[id.partition as usize].ack_bits(word, bit);
        }
    }

    /// Ends one lease that has expired by `now_ms`; `None` when there is none.
    pub(crate) fn expire(&mut self, now_ms: u64) -> Option<Expired> {
        let index = self.leases.first_due_by(now_ms)?;
        let lease = self.leases.get(index)?.clone();
        let (count, terms) = (lease.mask.count_ones(), lease.terms);
        let (partition, word, mask) = (lease.partition, lease.word, lease.mask);
        self.unlink(index);
        match terms.state {
            LeaseState::InFlight(consumer) => {
                lower(&mut self.in_flight, count.into());
                self.requeue(partition, word, mask, terms.attempts, terms.bytes, None);
                Some(Expired::TimedOut {
                    consumer,
                    messages: lease.messages(),
                    settled: terms.settled(),
                })
            }
            LeaseState::Ready | LeaseState::Delayed | LeaseState::Dead => {
                invariant!(
                    terms.state == LeaseState::Delayed,
                    "{lease:?} expires in a state without a due time"
                );
                lower(&mut self.delayed, count.into());
                self.make_ready(partition, word, mask, terms.attempts, terms.bytes);
                Some(Expired::Due { count })
            }
        }
    }

    /// Requeues everything that a consumer has in flight, because it left. Returns the number of
    /// messages.
    pub(crate) fn release(&mut self, consumer: ConsumerSlot) -> u64 {
        let mut count = 0;
        while let Some(index) = self.leases.first_of_consumer(consumer) {
            let Some(lease) = self.leases.get(index).cloned() else {
                break;
            };
            self.unlink(index);
            count += u64::from(lease.mask.count_ones());
            let (attempts, bytes) = (lease.terms.attempts, lease.terms.bytes);
            self.requeue(
                lease.partition,
                lease.word,
                lease.mask,
                attempts,
                bytes,
                None,
            );
        }
        lower(&mut self.in_flight, count);
        count
    }

    /// Drops every lease and acknowledges everything below `ends`, one per partition.
    pub(crate) fn discard_all(&mut self, ends: &[Offset]) {
        self.leases = Leases::default();
        (self.ready, self.delayed, self.in_flight, self.dead) = (0, 0, 0, 0);
        self.ready_bytes = 0;
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

/// One message that was taken out of its lease.
struct TakenMessage {
    settled: SettledDelivery,
    word: u64,
    bit: u64,
    bytes: u32,
}
