//! Tells the journal how far delivery has got, before a consumer hears of it
//! ([`crate::subscription::ledger::marks`]).
//!
//! All of it is written under the subscription's lock, so that the last entry is the true one.

use cloverleaf_log::{Offset, invariant};

use crate::journal::entries::Entry;
use crate::subscription::dispatch::partition_number;
use crate::subscription::run::Run;
use crate::subscription::{Subscription, SubscriptionState};

/// Delivery rests when there was none for so long.
const REST_MS: u64 = 5_000;

impl Subscription {
    /// Messages below `end` are about to be delivered for the first time.
    #[inline]
    pub(crate) fn mark(
        &self,
        state: &mut SubscriptionState,
        partition: u32,
        end: Offset,
        now_ms: u64,
    ) {
        if self.volatile {
            return;
        }
        let mark = state.ledger.marks_mut().get_mut(partition as usize);
        if let Some(promised) = mark.and_then(|mark| mark.reach(end, now_ms)) {
            self.write_marks(vec![self.delivered_entry(partition, promised)]);
            state.timers.look_at_marks_by(now_ms + REST_MS);
        }
    }

    /// Takes promises back where delivery rests. Called by the housekeeping.
    pub(crate) fn rest_marks(&self, state: &mut SubscriptionState, now_ms: u64) {
        if !state.timers.take_marks_due(now_ms) {
            return;
        }
        let marks = (0u32..).zip(state.ledger.marks_mut().iter_mut());
        let rested = marks.filter_map(|(partition, mark)| Some((partition, mark.rest()?)));
        let entry = |(partition, promised)| self.delivered_entry(partition, promised);
        self.write_marks(rested.map(entry).collect());
        if state.ledger.marks().iter().any(|mark| mark.is_ahead()) {
            state.timers.look_at_marks_by(now_ms + REST_MS);
        }
    }

    /// The broker ends: the journal is told the exact place.
    pub(crate) fn take_back_marks(&self) {
        if self.volatile {
            return;
        }
        let mut state = self.state.lock();
        let marks = (0u32..).zip(state.ledger.marks_mut().iter_mut());
        let rested = marks.filter_map(|(partition, mark)| Some((partition, mark.take_back()?)));
        let entry = |(partition, promised)| self.delivered_entry(partition, promised);
        self.write_marks(rested.map(entry).collect());
    }

    /// The entries that a snapshot of the journal needs for its delivery marks.
    pub(crate) fn delivered_entries(&self) -> Vec<Entry> {
        let state = self.state.lock();
        let marks = (0u32..).zip(state.ledger.marks().iter());
        let promised = marks.map(|(partition, mark)| (partition, mark.promised()));
        promised
            .filter(|(_, promised)| *promised > 0)
            .map(|(partition, promised)| self.delivered_entry(partition, promised))
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
        // A journal that takes nothing is replaced by a snapshot, which has what memory has.
        if let Err(error) = self.shared.write(&entries) {
            tracing::debug!(subscription = ?self, %error, "cannot write how far delivery has got");
        }
    }
}

impl SubscriptionState {
    /// Panics unless a run of new messages is what comes next, the kernel has it, and the journal
    /// was told that it is delivered, if it is to know.
    #[inline]
    pub(crate) fn check_new(&self, subscription: &Subscription, partition: usize, run: &Run) {
        invariant!(
            run.first == self.ledger.next(partition_number(partition)),
            "a new message is delivered that is not the next one"
        );
        invariant!(
            run.end() <= self.log.partition(partition).written_end(),
            "a message is delivered before it is written"
        );
        invariant!(
            run.end() <= self.ledger.marks()[partition].promised() || subscription.volatile,
            "a message is delivered before the journal is told"
        );
    }
}
