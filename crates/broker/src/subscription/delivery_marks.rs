//! Writes each partition's delivery mark to the journal before a message above the old mark reaches
//! a consumer ([`crate::subscription::ledger::marks`]).
//!
//! Marks are written under the subscription's lock, so the last entry in the journal is the newest
//! mark. The state that this file changes is the ledger's marks and the timer that checks them.

use cloverleaf_log::{Offset, invariant};

use crate::journal::entries::Entry;
use crate::subscription::dispatch::partition_number;
use crate::subscription::ledger::Ledger;
use crate::subscription::run::Run;
use crate::subscription::timers::Timers;
use crate::subscription::{Subscription, SubscriptionState};

/// A mark is lowered to the exact offset after this time without a delivery.
const IDLE_MS: u64 = 5_000;

impl Subscription {
    /// Call before messages below `end` are delivered for the first time: raises the journal's mark
    /// if it is below `end`.
    #[inline]
    pub(crate) fn raise_mark(
        &self,
        ledger: &mut Ledger,
        timers: &mut Timers,
        partition: u32,
        end: Offset,
        now_ms: u64,
    ) {
        if self.volatile {
            return;
        }
        let mark = ledger.marks_mut().get_mut(partition as usize);
        if let Some(journaled_end) = mark.and_then(|mark| mark.raise_to(end, now_ms)) {
            self.write_marks(vec![self.delivered_entry(partition, journaled_end)]);
            timers.check_marks_by(now_ms + IDLE_MS);
        }
    }

    /// Lowers the marks of partitions without recent deliveries to the exact offset. The
    /// housekeeping thread calls it.
    pub(crate) fn lower_idle_marks(&self, ledger: &mut Ledger, timers: &mut Timers, now_ms: u64) {
        if !timers.take_marks_due(now_ms) {
            return;
        }
        let marks = (0u32..).zip(ledger.marks_mut().iter_mut());
        let lowered =
            marks.filter_map(|(partition, mark)| Some((partition, mark.lower_if_idle()?)));
        let entry = |(partition, journaled_end)| self.delivered_entry(partition, journaled_end);
        self.write_marks(lowered.map(entry).collect());
        if ledger.marks().iter().any(|mark| mark.is_ahead()) {
            timers.check_marks_by(now_ms + IDLE_MS);
        }
    }

    /// At an orderly shutdown: lowers every mark in the journal to the exact offset.
    pub(crate) fn lower_all_marks(&self) {
        if self.volatile {
            return;
        }
        let mut state = self.state.lock();
        let marks = (0u32..).zip(state.ledger.marks_mut().iter_mut());
        let lowered =
            marks.filter_map(|(partition, mark)| Some((partition, mark.lower_to_exact()?)));
        let entry = |(partition, journaled_end)| self.delivered_entry(partition, journaled_end);
        self.write_marks(lowered.map(entry).collect());
    }

    /// The delivery marks as entries for a snapshot of the journal.
    pub(crate) fn delivered_entries(&self) -> Vec<Entry> {
        let state = self.state.lock();
        let marks = (0u32..).zip(state.ledger.marks().iter());
        let journaled_end = marks.map(|(partition, mark)| (partition, mark.journaled_end()));
        journaled_end
            .filter(|(_, journaled_end)| *journaled_end > 0)
            .map(|(partition, journaled_end)| self.delivered_entry(partition, journaled_end))
            .collect()
    }

    fn delivered_entry(&self, partition: u32, end: Offset) -> Entry {
        Entry::Delivered {
            subscription: self.id(),
            partition,
            end,
        }
    }

    fn write_marks(&self, entries: Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        // A failed write needs no retry: after it the journal is replaced by a snapshot of the
        // state in memory.
        if let Err(error) = self.shared.write_entries(&entries) {
            tracing::debug!(subscription = ?self, %error, "cannot write how far delivery has got");
        }
    }
}

impl SubscriptionState {
    /// Panics unless `run` starts at the next undelivered offset, the kernel has its messages, and
    /// the journal's delivery mark covers them (volatile subscriptions have no mark).
    #[inline]
    pub(crate) fn check_new(&self, subscription: &Subscription, partition: usize, run: &Run) {
        invariant!(
            run.first == self.ledger.next(partition_number(partition)),
            "a new message is delivered out of order"
        );
        invariant!(
            run.end() <= self.log.partition(partition).written_end(),
            "a message is delivered before it is written"
        );
        invariant!(
            run.end() <= self.ledger.marks()[partition].journaled_end() || subscription.volatile,
            "a message is delivered before the journal has its delivery mark"
        );
    }
}
