//! The slab of leases: which consumer has which messages, and until when.
//!
//! One lease stands for up to 64 messages of one [word](super::cursor), delivered together. A
//! consumer with an unlimited window therefore costs one entry per 64 messages, not one per
//! message.

use std::collections::BTreeSet;

use cloverleaf_log::invariant;

use super::{SettledDelivery, WordMask};

/// The index that means "no lease"; it ends every linked list.
pub(crate) const NIL: u32 = u32::MAX;

/// The deadline of a lease that never expires.
pub(crate) const NEVER_MS: u64 = u64::MAX;

/// A consumer's index in its subscription. It is reused after the consumer has left.
pub(crate) type ConsumerSlot = u32;

/// The state of the messages of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// Delivered to this consumer and not settled.
    InFlight(ConsumerSlot),
    /// Waiting to be delivered again, at its original offset.
    Ready,
    /// Becomes ready at its due time.
    Delayed,
    /// Waiting to be written to the dead-letter topic.
    Dead,
}

/// Data that all messages of a lease share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTerms {
    pub(crate) state: LeaseState,
    /// How often these messages were delivered so far.
    pub(crate) attempts: u16,
    /// When the state expires, in milliseconds since the epoch; [`NEVER_MS`] if it does not.
    pub(crate) due_ms: u64,
    /// When they were delivered, in microseconds since the epoch; 0 if they are not in flight.
    pub(crate) delivered_us: u64,
    /// Total bytes of their bodies; 0 where no limit in bytes needs them.
    pub(crate) bytes: u32,
    /// How long their batch had waited between publish and this delivery.
    pub(crate) waited_ms: u32,
}

/// The consumer that gets messages, and the terms of the delivery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseGrant {
    pub(crate) consumer: ConsumerSlot,
    /// When their ack wait ends, in milliseconds since the epoch; [`NEVER_MS`] without a limit.
    pub(crate) due_ms: u64,
    /// The time of the delivery, in microseconds since the epoch.
    pub(crate) now_us: u64,
    /// How long their batch has waited since it was published.
    pub(crate) waited_ms: u32,
}

impl LeaseTerms {
    /// The terms of messages that no consumer has, in a state that does not expire.
    pub(crate) fn untimed(state: LeaseState, attempts: u16, bytes: u32) -> Self {
        Self::timed(state, attempts, NEVER_MS, bytes)
    }

    /// The terms of messages that no consumer has, in a state that expires at `due_ms`.
    pub(crate) fn timed(state: LeaseState, attempts: u16, due_ms: u64, bytes: u32) -> Self {
        Self {
            state,
            attempts,
            due_ms,
            delivered_us: 0,
            bytes,
            waited_ms: 0,
        }
    }
}

/// Up to 64 messages of one word in one state.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) partition: u32,
    pub(crate) word: u64,
    /// Bit n stands for offset `word * 64 + n`.
    pub(crate) mask: u64,
    pub(crate) terms: LeaseTerms,
    /// The next lease of the same word.
    pub(crate) next_in_word: u32,
    previous_of_consumer: u32,
    next_of_consumer: u32,
}

impl Lease {
    /// The messages that the lease covers.
    pub(crate) fn messages(&self) -> WordMask {
        WordMask {
            partition: self.partition,
            word: self.word,
            mask: self.mask,
        }
    }
}

impl LeaseTerms {
    /// The delivery's data that the settling of a message reports.
    pub(crate) fn settled(&self) -> SettledDelivery {
        SettledDelivery {
            delivered_us: self.delivered_us,
            attempts: self.attempts,
            waited_ms: self.waited_ms,
        }
    }
}

/// All leases of one subscription.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    slots: Vec<Option<Lease>>,
    free: Vec<u32>,
    /// Due time and index of the leases that expire, soonest first.
    due: BTreeSet<(u64, u32)>,
    /// Index of the first lease in each consumer's linked list.
    heads: Vec<u32>,
}

impl Leases {
    pub(crate) fn get(&self, index: u32) -> Option<&Lease> {
        self.slots.get(index as usize).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Lease> {
        self.slots.get_mut(index as usize).and_then(Option::as_mut)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores a new lease and returns its index. The caller links it into its word.
    pub(crate) fn insert(
        &mut self,
        partition: u32,
        word: u64,
        mask: u64,
        terms: LeaseTerms,
    ) -> u32 {
        invariant!(mask != 0, "a lease has no messages");
        let lease = Lease {
            partition,
            word,
            mask,
            terms,
            next_in_word: NIL,
            previous_of_consumer: NIL,
            next_of_consumer: NIL,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(lease);
                index
            }
            None => {
                self.slots.push(Some(lease));
                u32::try_from(self.slots.len() - 1).unwrap_or(NIL)
            }
        };
        invariant!(index != NIL, "more than four billion leases");
        if terms.due_ms != NEVER_MS {
            self.due.insert((terms.due_ms, index));
        }
        if let LeaseState::InFlight(consumer) = terms.state {
            self.link_consumer(index, consumer);
        }
        index
    }

    /// Adds messages, with bodies of `bytes` in total, to a lease in the same state.
    pub(crate) fn add_bits(&mut self, index: u32, bits: u64, bytes: u32) {
        if let Some(lease) = self.get_mut(index) {
            invariant!(
                lease.mask & bits == 0,
                "a message is added to a lease that covers it already"
            );
            lease.mask |= bits;
            lease.terms.bytes = lease.terms.bytes.saturating_add(bytes);
        }
    }

    /// Frees a lease that the caller has unlinked from its word.
    pub(crate) fn remove(&mut self, index: u32) {
        self.set_due(index, NEVER_MS);
        self.unlink_consumer(index);
        self.slots[index as usize] = None;
        self.free.push(index);
        if self.free.len() == self.slots.len() && self.slots.len() > 1024 {
            self.slots = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Changes the time at which the lease's state expires.
    pub(crate) fn set_due(&mut self, index: u32, due_ms: u64) {
        let Some(lease) = self.slots.get_mut(index as usize).and_then(Option::as_mut) else {
            return;
        };
        if lease.terms.due_ms != NEVER_MS {
            self.due.remove(&(lease.terms.due_ms, index));
        }
        lease.terms.due_ms = due_ms;
        if due_ms != NEVER_MS {
            self.due.insert((due_ms, index));
        }
    }

    /// The soonest time at which a lease expires.
    pub(crate) fn first_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    /// The index of a lease that has expired by `now_ms`.
    pub(crate) fn first_due_by(&self, now_ms: u64) -> Option<u32> {
        self.due
            .first()
            .filter(|(due_ms, _)| *due_ms <= now_ms)
            .map(|(_, index)| *index)
    }

    /// The index of any lease of `consumer`.
    pub(crate) fn first_of_consumer(&self, consumer: ConsumerSlot) -> Option<u32> {
        self.heads
            .get(consumer as usize)
            .copied()
            .filter(|head| *head != NIL)
    }

    /// The leases of `consumer`, latest first.
    pub(crate) fn of_consumer(&self, consumer: ConsumerSlot) -> impl Iterator<Item = &Lease> {
        let first = self.first_of_consumer(consumer);
        let first = first.and_then(|index| self.get(index));
        std::iter::successors(first, |lease| self.get(lease.next_of_consumer))
    }

    /// Every lease, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.slots.iter().filter_map(Option::as_ref)
    }

    fn link_consumer(&mut self, index: u32, consumer: ConsumerSlot) {
        let slot = consumer as usize;
        if self.heads.len() <= slot {
            self.heads.resize(slot + 1, NIL);
        }
        let head = std::mem::replace(&mut self.heads[slot], index);
        if let Some(lease) = self.get_mut(index) {
            lease.previous_of_consumer = NIL;
            lease.next_of_consumer = head;
        }
        if let Some(lease) = self.get_mut(head) {
            lease.previous_of_consumer = index;
        }
    }

    fn unlink_consumer(&mut self, index: u32) {
        let Some(lease) = self.get_mut(index) else {
            return;
        };
        let LeaseState::InFlight(consumer) = lease.terms.state else {
            return;
        };
        let (previous, next) = (lease.previous_of_consumer, lease.next_of_consumer);
        (lease.previous_of_consumer, lease.next_of_consumer) = (NIL, NIL);
        match self.get_mut(previous) {
            Some(lease) => lease.next_of_consumer = next,
            None => self.heads[consumer as usize] = next,
        }
        if let Some(lease) = self.get_mut(next) {
            lease.previous_of_consumer = previous;
        }
    }
}
