//! The batches of a partition that have offsets and are to be written, the right to write them,
//! and who waits until they are.

use std::sync::Arc;

use crate::batch::{Batch, Offset};
use crate::options::Durability;
use crate::partition::appended::Waiter;

/// Batches on their way to the kernel. One thread at a time has the writer.
#[derive(Default)]
pub(crate) struct WriteQueue {
    /// Batches with offsets that were not handed to the kernel yet.
    pending: Vec<Batch>,
    /// An empty list to swap with `pending`, so that writing allocates nothing.
    spare: Vec<Batch>,
    /// Where the batches end that are being handed to the kernel; 0 if there are none.
    handed_end: Offset,
    /// Somebody has the writer, to write pending batches or to end a segment.
    is_writing: bool,
    /// The partition stands in the queue of "log-writer".
    is_queued: bool,
    /// The active segment is to be sealed by whoever writes.
    is_seal_requested: bool,
    /// In order of offset.
    waiters: Vec<WriteWaiter>,
}

/// Somebody who waits until a batch is written (and then, maybe, synced).
pub(crate) struct WriteWaiter {
    pub(crate) end: Offset,
    pub(crate) class: Durability,
    pub(crate) waiter: Arc<Waiter>,
}

impl WriteQueue {
    pub(crate) fn push(&mut self, batch: Batch) {
        self.pending.push(batch);
    }

    /// Waits for the newest batch, which ends at `end`.
    pub(crate) fn wait_for_newest(&mut self, end: Offset, class: Durability) -> Arc<Waiter> {
        let before = self.waiters.last();
        invariant!(
            before.is_none_or(|before| before.end < end),
            "the waiters for writes are not in order of offset"
        );
        let waiter = Arc::new(Waiter::default());
        self.waiters.push(WriteWaiter {
            end,
            class,
            waiter: waiter.clone(),
        });
        waiter
    }

    /// Waits for a batch that is pending or being written.
    pub(crate) fn wait_for(&mut self, end: Offset, class: Durability, waiter: Arc<Waiter>) {
        let place = self.waiters.partition_point(|other| other.end <= end);
        self.waiters
            .insert(place, WriteWaiter { end, class, waiter });
    }

    /// Whether somebody has the writer.
    pub(crate) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Whether a batch below `end` is pending.
    pub(crate) fn is_pending_below(&self, end: Offset) -> bool {
        let first = self.pending.first();
        first.is_some_and(|batch| batch.base_offset() < end)
    }

    /// Offset after the last record that is to be written, or is being; 0 if there is none.
    pub(crate) fn accepted_end(&self) -> Offset {
        let last = self.pending.last();
        last.map_or(self.handed_end, Batch::end_offset)
    }

    /// Takes the writer and the pending batches. Precondition: nobody has the writer.
    pub(crate) fn begin(&mut self) -> Vec<Batch> {
        self.take_writer();
        invariant!(
            self.handed_end == 0,
            "two are about to write batches of one partition"
        );
        let spare = std::mem::take(&mut self.spare);
        let batches = std::mem::replace(&mut self.pending, spare);
        self.note_handed(&batches);
        batches
    }

    /// As [`WriteQueue::begin`], for "log-writer": nothing if there is nothing for it to do.
    pub(crate) fn begin_queued(&mut self) -> Option<Vec<Batch>> {
        self.is_queued = false;
        if self.is_writing || self.pending.is_empty() {
            return None;
        }
        Some(self.begin())
    }

    /// Takes the writer to begin or end a segment. Precondition: nobody has it.
    pub(crate) fn take_writer(&mut self) {
        self.is_writing = true;
    }

    /// Whether the caller has to push the partition to the queue of "log-writer". If so, marks it
    /// as queued.
    pub(crate) fn ask(&mut self) -> bool {
        let is_due = !self.is_writing && !self.pending.is_empty() && !self.is_queued;
        self.is_queued |= is_due;
        is_due
    }

    /// A round is over: the kernel has its batches or has refused them.
    pub(crate) fn end_round(&mut self) {
        invariant!(
            self.is_writing,
            "somebody has written who does not have the writer"
        );
        self.handed_end = 0;
    }

    /// Begins the next round: swaps `batches`, drained by the last round, for those that arrived
    /// meanwhile. If none did, or `goes_on` is false, releases the writer and returns `false`.
    pub(crate) fn next_round(&mut self, batches: &mut Vec<Batch>, goes_on: bool) -> bool {
        if goes_on && !self.pending.is_empty() {
            std::mem::swap(&mut self.pending, batches);
            self.note_handed(batches);
            return true;
        }
        self.is_writing = false;
        self.spare = std::mem::take(batches);
        false
    }

    /// Gives back a writer that wrote no batches.
    pub(crate) fn release_writer(&mut self) {
        self.is_writing = false;
    }

    /// Asks whoever has the writer to seal the active segment; `false` if nobody has it.
    pub(crate) fn request_seal(&mut self) -> bool {
        self.is_seal_requested |= self.is_writing;
        self.is_writing
    }

    /// Whether a seal was requested since this was asked last.
    pub(crate) fn take_seal_request(&mut self) -> bool {
        std::mem::take(&mut self.is_seal_requested)
    }

    /// Takes those out who wait for batches up to offset `end`.
    pub(crate) fn take_waiters(&mut self, end: Offset) -> impl Iterator<Item = WriteWaiter> {
        let due = self.waiters.partition_point(|waiter| waiter.end <= end);
        self.waiters.drain(..due)
    }

    /// Takes pending batches of these producers out, and who waits for each.
    pub(crate) fn withdraw(&mut self, producers: &[i64]) -> Vec<(Batch, Vec<Arc<Waiter>>)> {
        let is_theirs = |batch: &mut Batch| producers.contains(&batch.producer_id());
        let batches: Vec<Batch> = self.pending.extract_if(.., is_theirs).collect();
        let with_waiters = |batch: Batch| {
            let end = batch.end_offset();
            let waiters = self.waiters.extract_if(.., |waiter| waiter.end == end);
            let waiters = waiters.map(|it| it.waiter).collect();
            (batch, waiters)
        };
        batches.into_iter().map(with_waiters).collect()
    }

    fn note_handed(&mut self, batches: &[Batch]) {
        self.handed_end = batches.last().map_or(0, Batch::end_offset);
    }
}
