//! Messages that wait to be delivered again, at their original offsets.

use cloverleaf_log::Offset;

use super::cursor::{WORD, bits_between};
use super::leases::{LeaseGrant, LeaseState, LeaseTerms};
use super::{Ledger, ReadyRun, lower};
use crate::message::MessageId;

impl Ledger {
    /// The first requeued messages of a partition.
    pub(crate) fn first_ready(&self, partition: u32) -> Option<ReadyRun> {
        let word = *self.ready_words[partition as usize].first()?;
        let lease = self.leases.get(self.first_ready_lease(partition, word)?)?;
        let bit = lease.mask.trailing_zeros();
        Some(ReadyRun {
            first: word * WORD + u64::from(bit),
            count: (lease.mask >> bit).trailing_ones(),
            attempts: lease.terms.attempts,
        })
    }

    pub(super) fn first_ready_lease(&self, partition: u32, word: u64) -> Option<u32> {
        let mut index = self.cursors[partition as usize].word(word)?.leases;
        let mut best: Option<(u32, u32)> = None;
        while let Some(lease) = self.leases.get(index) {
            let bit = lease.mask.trailing_zeros();
            if lease.terms.state == LeaseState::Ready && best.is_none_or(|(least, _)| bit < least) {
                best = Some((bit, index));
            }
            index = lease.next_in_word;
        }
        best.map(|(_, index)| index)
    }

    /// Removes the first `count` messages of [`Self::first_ready`] from their lease.
    pub(super) fn take_first_ready(&mut self, partition: u32, count: u32) -> TakenReady {
        let Some(word) = self.ready_words[partition as usize].first().copied() else {
            return TakenReady::default();
        };
        let Some(index) = self.first_ready_lease(partition, word) else {
            return TakenReady::default();
        };
        let Some(lease) = self.leases.get(index) else {
            return TakenReady::default();
        };
        let (bit, attempts) = (lease.mask.trailing_zeros(), lease.terms.attempts);
        let mask = bits_between(0, u64::from(bit), u64::from(bit + count)) & lease.mask;
        let bytes = self.take_bits(index, mask);
        lower(&mut self.ready, u64::from(mask.count_ones()));
        self.ready_bytes = self.ready_bytes.saturating_sub(u64::from(bytes));
        if self.first_ready_lease(partition, word).is_none() {
            self.ready_words[partition as usize].remove(&word);
        }
        TakenReady {
            word,
            mask,
            attempts,
            bytes,
        }
    }

    /// Leases the first `count` requeued messages of a partition to a consumer.
    pub(crate) fn lease_ready(&mut self, partition: u32, count: u32, to: LeaseGrant) {
        let taken = self.take_first_ready(partition, count);
        if taken.mask == 0 {
            return;
        }
        let terms = LeaseTerms {
            state: LeaseState::InFlight(to.consumer),
            attempts: taken.attempts.saturating_add(1),
            due_ms: to.due_ms,
            delivered_us: to.now_us,
            bytes: taken.bytes,
            waited_ms: to.waited_ms,
        };
        self.link(partition, taken.word, taken.mask, terms);
        self.in_flight += u64::from(taken.mask.count_ones());
    }

    /// Acknowledges the first `count` requeued messages, because the log no longer has them or they
    /// are dropped.
    pub(crate) fn drop_ready(&mut self, partition: u32, count: u32) {
        let taken = self.take_first_ready(partition, count);
        if taken.mask != 0 {
            self.cursors[partition as usize].ack_bits(taken.word, taken.mask);
        }
    }

    /// Delays the first requeued message until `due_ms`.
    pub(crate) fn delay_ready(&mut self, partition: u32, due_ms: u64) {
        let taken = self.take_first_ready(partition, 1);
        if taken.mask != 0 {
            let terms = LeaseTerms::timed(LeaseState::Delayed, taken.attempts, due_ms, taken.bytes);
            self.link(partition, taken.word, taken.mask, terms);
            self.delayed += u64::from(taken.mask.count_ones());
        }
    }

    /// Records the size of the body of a waiting message. Returns whether the message was never
    /// delivered: the caller counts its bytes then.
    pub(crate) fn record_body_bytes(&mut self, partition: u32, offset: Offset, bytes: u32) -> bool {
        match self.find(MessageId { partition, offset }) {
            Some(index) => {
                if let Some(lease) = self.leases.get_mut(index) {
                    lease.terms.bytes = lease.terms.bytes.saturating_add(bytes);
                    if lease.terms.state == LeaseState::Ready {
                        self.ready_bytes += u64::from(bytes);
                    }
                }
                false
            }
            None => offset >= self.next(partition) && !self.covers(partition, offset, offset + 1),
        }
    }
}

/// Requeued messages of one word, taken from the first lease.
#[derive(Debug, Default)]
pub(super) struct TakenReady {
    pub(super) word: u64,
    pub(super) mask: u64,
    pub(super) attempts: u16,
    pub(super) bytes: u32,
}
