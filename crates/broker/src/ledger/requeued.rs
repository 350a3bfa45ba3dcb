//! Messages that wait to be delivered again, in their old position.

use super::cursor::{WORD, bits_between};
use super::leases::{ConsumerSlot, LeaseState};
use super::{Ledger, ReadyRun};

impl Ledger {
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

    pub(super) fn first_ready_lease(&self, partition: u32, word: u64) -> Option<u32> {
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
    pub(super) fn take_first_ready(&mut self, partition: u32, count: u32) -> (u64, u64, u16) {
        let Some(word) = self.ready_words[partition as usize].first().copied() else {
            return (0, 0, 0);
        };
        let Some(index) = self.first_ready_lease(partition, word) else {
            return (word, 0, 0);
        };
        let Some(lease) = self.leases.get(index) else {
            return (word, 0, 0);
        };
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
        self.link(
            partition,
            word,
            mask,
            state,
            attempts.saturating_add(1),
            due_ms,
            now_us,
        );
        self.in_flight += u64::from(mask.count_ones());
    }

    /// The foremost `count` requeued messages are gone from the log: they count as acknowledged.
    pub(crate) fn drop_ready(&mut self, partition: u32, count: u32) {
        let (word, mask, _) = self.take_first_ready(partition, count);
        self.cursors[partition as usize].ack_bits(word, mask);
    }

    /// Holds the foremost requeued message back until `due_ms`.
    pub(crate) fn delay_ready(&mut self, partition: u32, due_ms: u64) {
        let (word, mask, attempts) = self.take_first_ready(partition, 1);
        if mask != 0 {
            self.link(
                partition,
                word,
                mask,
                LeaseState::Delayed,
                attempts,
                due_ms,
                0,
            );
            self.delayed += u64::from(mask.count_ones());
        }
    }
}
