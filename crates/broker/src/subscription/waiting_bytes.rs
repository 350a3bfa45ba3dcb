//! The bytes of the bodies that wait, where a subscription limits them.
//!
//! Those of messages that were never delivered are counted here: each publish before it is stored,
//! and each message again when it is looked at. Messages that came back are counted in the ledger.

use cloverleaf_log::{Offset, invariant};

use crate::subscription::Subscription;
use crate::subscription::ledger::Ledger;

/// Bodies of messages that were never delivered.
#[derive(Debug, Default)]
pub(crate) struct WaitingBytes {
    bytes: u64,
    /// Publishes that are counted and not in the log yet, and their bytes.
    under_way: (u32, u64),
    /// Per partition: messages below this were not counted, because those above fill the limit.
    uncounted_below: Vec<Offset>,
}

impl WaitingBytes {
    /// Messages from `first` on, with bodies of so many bytes, wait no longer, or are not new any
    /// more. Those that were not counted change nothing: they lie in other segments than those that
    /// were.
    #[inline]
    pub(crate) fn leave(&mut self, partition: usize, first: Offset, bytes: u64) {
        let below = self.uncounted_below.get(partition);
        if below.is_none_or(|below| first >= *below) {
            self.forget(bytes);
        }
    }

    /// Nothing waits any more: what is not in the log yet stays counted.
    pub(crate) fn clear(&mut self) {
        self.bytes = self.under_way.1;
        self.uncounted_below = Vec::new();
    }

    /// Never less than nothing: a message may have gone from the log without being seen.
    #[inline]
    fn forget(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Messages that are in the log wait, with bodies of so many bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// A publish of so many bytes is on its way, until [`Self::publish_ends`].
    pub(crate) fn publish_begins(&mut self, bytes: u64, has_passed_all: impl FnOnce() -> bool) {
        if self.under_way.0 == 0 && has_passed_all() {
            // Bodies that went from the log unseen were counted until now.
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.under_way.0 += 1;
        self.under_way.1 += bytes;
    }

    /// A publish of so many bytes happened, or did not after all.
    pub(crate) fn publish_ends(&mut self, of: &Subscription, bytes: u64, happened: bool) {
        let (count, under_way) = self.under_way;
        invariant!(
            count > 0 && under_way >= bytes,
            "{of:?}: a publish of {bytes} bytes ends of {count} with {under_way} bytes"
        );
        self.under_way = (count - 1, under_way - bytes);
        if !happened {
            self.forget(bytes);
        }
    }

    /// Messages of a partition below `offset` are not counted: those above fill the limit.
    pub(crate) fn leave_uncounted(&mut self, partition: usize, offset: Offset) {
        let below = &mut self.uncounted_below;
        below.resize(below.len().max(partition + 1), 0);
        below[partition] = offset;
    }

    /// Whether bodies of `more` bytes would be too many beside those that wait.
    pub(crate) fn exceeds(&self, bytes_max: u64, more: u64, ledger: &Ledger) -> bool {
        let waiting = self.bytes + ledger.ready_bytes();
        let below = (0u32..).zip(&self.uncounted_below);
        waiting.saturating_add(more) > bytes_max
            || below
                .into_iter()
                .any(|(partition, below)| ledger.next(partition) < *below)
    }
}
