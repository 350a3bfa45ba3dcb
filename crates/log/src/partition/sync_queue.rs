//! The waiters for a sync of a partition, and which threads of the log know that a sync is due.

use std::sync::Arc;

use crate::batch::Offset;
use crate::partition::appended::Waiter;

/// The waiters for a sync.
#[derive(Default)]
pub(crate) struct SyncQueue {
    /// Each with the end offset of the records that are to be synced, in order of offset.
    waiters: Vec<(Offset, Arc<Waiter>)>,
    /// The partition is in the queue of "log-sync".
    is_queued: bool,
    /// The housekeeper was told that there are unsynced bytes.
    is_noted_dirty: bool,
}

impl SyncQueue {
    /// Adds a waiter for the batches that were written last, which end at offset `end`.
    pub(crate) fn wait_for_newest(&mut self, end: Offset, waiter: Arc<Waiter>) {
        let before = self.waiters.last();
        invariant!(
            before.is_none_or(|(before, _)| *before <= end),
            "the waiters for syncs are not in order of offset"
        );
        self.waiters.push((end, waiter));
    }

    /// Adds a waiter for written batches up to offset `end`.
    pub(crate) fn wait_for(&mut self, end: Offset, waiter: Arc<Waiter>) {
        let place = self.waiters.partition_point(|(other, _)| *other <= end);
        self.waiters.insert(place, (end, waiter));
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether the caller must push the partition to the queue of "log-sync". If so, marks it as
    /// queued.
    pub(crate) fn mark_queued_if_due(&mut self) -> bool {
        let is_due = self.is_waited_for() && !self.is_queued;
        self.is_queued |= is_due;
        is_due
    }

    /// Notes that the partition has left the queue of "log-sync".
    pub(crate) fn leave_queue(&mut self) {
        self.is_queued = false;
    }

    /// Removes and returns the waiters for a sync up to offset `end` or less.
    pub(crate) fn take_waiters(
        &mut self,
        end: Offset,
    ) -> impl ExactSizeIterator<Item = (Offset, Arc<Waiter>)> {
        let due = self.waiters.partition_point(|(waits, _)| *waits <= end);
        self.waiters.drain(..due)
    }

    /// Notes that there are unsynced bytes. Returns whether the caller must notify the housekeeper.
    pub(crate) fn note_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.is_noted_dirty, true)
    }

    /// The housekeeper begins to sync: it must be notified again of later writes.
    pub(crate) fn take_dirty(&mut self) {
        self.is_noted_dirty = false;
    }
}
