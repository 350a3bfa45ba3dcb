//! The bytes of waiting bodies, where a subscription limits them.
//!
//! This file counts messages that were never delivered: a publish adds its bytes before it is
//! stored, and dispatch subtracts each message's bytes when it scans it. The ledger counts requeued
//! messages.

use cloverleaf_log::{Offset, invariant};

use crate::subscription::Subscription;
use crate::subscription::ledger::Ledger;

/// The bytes of bodies that were never delivered.
#[derive(Debug, Default)]
pub(crate) struct WaitingBytes {
    bytes: u64,
    /// Publishes that are counted but not in the log yet: their number and bytes.
    publishing: (u32, u64),
    /// Per partition: messages below this offset were not counted, because those above fill the
    /// limit.
    uncounted_below: Vec<Offset>,
}

impl WaitingBytes {
    /// Subtracts messages from `first` on, with bodies of `bytes` in total, which no longer wait as
    /// new ones. Messages that were not counted are ignored; a segment's messages are counted
    /// either all or none.
    #[inline]
    pub(crate) fn subtract(&mut self, partition: usize, first: Offset, bytes: u64) {
        let below = self.uncounted_below.get(partition);
        if below.is_none_or(|below| first >= *below) {
            self.subtract_bytes(bytes);
        }
    }

    /// Nothing waits any more, except publishes that are not in the log yet.
    pub(crate) fn clear(&mut self) {
        self.bytes = self.publishing.1;
        self.uncounted_below = Vec::new();
    }

    /// Saturates at 0: a message may have been dropped from the log without a scan.
    #[inline]
    fn subtract_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Adds messages in the log that wait, with bodies of `bytes` in total.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Counts a publish of `bytes` that is under way until [`Self::publish_ends`].
    pub(crate) fn publish_begins(&mut self, bytes: u64, is_drained: impl FnOnce() -> bool) {
        if self.publishing.0 == 0 && is_drained() {
            // `bytes` still counts bodies that were dropped from the log without a scan: reset it.
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.publishing.0 += 1;
        self.publishing.1 += bytes;
    }

    /// The publish of `bytes` was stored, or it failed.
    pub(crate) fn publish_ends(&mut self, of: &Subscription, bytes: u64, is_stored: bool) {
        let (count, publishing) = self.publishing;
        invariant!(
            count > 0 && publishing >= bytes,
            "{of:?}: a publish of {bytes} bytes ends, but {count} with {publishing} bytes are open"
        );
        self.publishing = (count - 1, publishing - bytes);
        if !is_stored {
            self.subtract_bytes(bytes);
        }
    }

    /// Messages of a partition below `offset` are not counted, because those above fill the limit.
    pub(crate) fn skip_uncounted(&mut self, partition: usize, offset: Offset) {
        let below = &mut self.uncounted_below;
        below.resize(below.len().max(partition + 1), 0);
        below[partition] = offset;
    }

    /// Whether bodies of `more` bytes would exceed the limit, in addition to those that wait.
    pub(crate) fn exceeds(&self, bytes_max: u64, more: u64, ledger: &Ledger) -> bool {
        let waiting = self.bytes + ledger.ready_bytes();
        let below = (0u32..).zip(&self.uncounted_below);
        waiting.saturating_add(more) > bytes_max
            || below
                .into_iter()
                .any(|(partition, below)| ledger.next(partition) < *below)
    }
}
