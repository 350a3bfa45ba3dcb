//! Who waits for a sync of a partition, and which thread of the log knows that one is due.

use std::sync::Arc;

use crate::batch::Offset;
use crate::partition::appended::Waiter;

/// The waiters for a sync.
#[derive(Default)]
pub(crate) struct SyncQueue {
    /// Each with the offset up to which everything is to be synced, in order of it.
    waiters: Vec<(Offset, Arc<Waiter>)>,
    /// The partition stands in the queue of "log-sync".
    is_queued: bool,
    /// The housekeeper knows that there is something to sync.
    is_noted_dirty: bool,
}

impl SyncQueue {
    /// Waits for what was written last, up to offset `end`.
    pub(crate) fn wait_for_newest(&mut self, end: Offset, waiter: Arc<Waiter>) {
        let before = self.waiters.last();
        invariant!(
            before.is_none_or(|(before, _)| *before <= end),
            "the waiters for syncs are not in order of offset"
        );
        self.waiters.push((end, waiter));
    }

    /// Waits for what is written, up to offset `end`.
    pub(crate) fn wait_for(&mut self, end: Offset, waiter: Arc<Waiter>) {
        let place = self.waiters.partition_point(|(other, _)| *other <= end);
        self.waiters.insert(place, (end, waiter));
    }

    /// Whether somebody waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether the partition has to be put into the queue of "log-sync", where it stands then.
    pub(crate) fn ask(&mut self) -> bool {
        let is_due = self.is_waited_for() && !self.is_queued;
        self.is_queued |= is_due;
        is_due
    }

    /// The partition has left the queue of "log-sync".
    pub(crate) fn leave_queue(&mut self) {
        self.is_queued = false;
    }

    /// Takes those out who wait for a sync up to offset `end`, or to one before it.
    pub(crate) fn take_waiters(
        &mut self,
        end: Offset,
    ) -> impl ExactSizeIterator<Item = (Offset, Arc<Waiter>)> {
        let due = self.waiters.partition_point(|(waits, _)| *waits <= end);
        self.waiters.drain(..due)
    }

    /// Notes that there is something to sync; whether the housekeeper has to be told.
    pub(crate) fn note_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.is_noted_dirty, true)
    }

    /// The housekeeper begins to sync: what is written from here on has to be noted anew.
    pub(crate) fn take_dirty(&mut self) {
        self.is_noted_dirty = false;
    }
}
