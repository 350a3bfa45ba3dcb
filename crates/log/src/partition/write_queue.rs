//! The batches of a partition that have offsets and are to be written, the right to write them, and
//! the waiters for these writes.

use std::sync::Arc;

use crate::batch::{Batch, Offset};
use crate::options::Durability;
use crate::partition::appended::Waiter;

/// Batches that are to be written. One thread at a time owns the writer
/// ([`SegmentWriter`](super::writer::SegmentWriter)).
#[derive(Default)]
pub(crate) struct WriteQueue {
    /// Batches with offsets that were not handed to the kernel yet.
    pending: Vec<Batch>,
    /// An empty list to swap with `pending`, so that writing allocates nothing.
    spare: Vec<Batch>,
    /// End offset of the batches that are being written; 0 if there are none.
    writing_end: Offset,
    /// A thread owns the writer, to write pending batches or to begin or end a segment.
    is_writing: bool,
    /// The partition is in the queue of "log-writer".
    is_queued: bool,
    /// The thread that owns the writer must seal the active segment.
    is_seal_requested: bool,
    /// In order of offset.
    waiters: Vec<WriteWaiter>,
}

/// A waiter for the write of a batch and, in the class *disk*, for its sync after that.
pub(crate) struct WriteWaiter {
    pub(crate) end: Offset,
    pub(crate) class: Durability,
    pub(crate) waiter: Arc<Waiter>,
}

impl WriteQueue {
    pub(crate) fn push(&mut self, batch: Batch) {
        self.pending.push(batch);
    }

    /// Adds a waiter for the newest batch, which ends at `end`.
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

    /// Adds a waiter for a batch that is pending or being written and ends at `end`.
    pub(crate) fn wait_for(&mut self, end: Offset, class: Durability, waiter: Arc<Waiter>) {
        let place = self.waiters.partition_point(|other| other.end <= end);
        self.waiters
            .insert(place, WriteWaiter { end, class, waiter });
    }

    /// Whether a thread owns the writer.
    pub(crate) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Whether a batch below `end` is pending.
    pub(crate) fn is_pending_below(&self, end: Offset) -> bool {
        let first = self.pending.first();
        first.is_some_and(|batch| batch.base_offset() < end)
    }

    /// Offset after the last record that is pending or being written; 0 if there is none.
    pub(crate) fn accepted_end(&self) -> Offset {
        let last = self.pending.last();
        last.map_or(self.writing_end, Batch::end_offset)
    }

    /// Takes the writer and the pending batches. Precondition: no thread owns the writer.
    pub(crate) fn begin(&mut self) -> Vec<Batch> {
        self.take_writer();
        invariant!(
            self.writing_end == 0,
            "two threads write batches of one partition"
        );
        let spare = std::mem::take(&mut self.spare);
        let batches = std::mem::replace(&mut self.pending, spare);
        self.note_writing(&batches);
        batches
    }

    /// As [`WriteQueue::begin`], for "log-writer": `None` if another thread owns the writer or no
    /// batch is pending.
    pub(crate) fn begin_queued(&mut self) -> Option<Vec<Batch>> {
        self.is_queued = false;
        if self.is_writing || self.pending.is_empty() {
            return None;
        }
        Some(self.begin())
    }

    /// Takes the writer to begin or end a segment. Precondition: no thread owns it.
    pub(crate) fn take_writer(&mut self) {
        self.is_writing = true;
    }

    /// Whether the caller must push the partition to the queue of "log-writer". If so, marks it as
    /// queued.
    pub(crate) fn mark_queued_if_due(&mut self) -> bool {
        let is_due = !self.is_writing && !self.pending.is_empty() && !self.is_queued;
        self.is_queued |= is_due;
        is_due
    }

    /// Ends a round: its batches were written, or the write has failed.
    pub(crate) fn end_round(&mut self) {
        invariant!(
            self.is_writing,
            "a thread has written without owning the writer"
        );
        self.writing_end = 0;
    }

    /// Begins the next round: puts the batches that arrived meanwhile into `batches`, which the
    /// last round has drained. If none arrived, or `goes_on` is false, releases the writer and
    /// returns `false`.
    pub(crate) fn next_round(&mut self, batches: &mut Vec<Batch>, goes_on: bool) -> bool {
        if goes_on && !self.pending.is_empty() {
            std::mem::swap(&mut self.pending, batches);
            self.note_writing(batches);
            return true;
        }
        self.is_writing = false;
        self.spare = std::mem::take(batches);
        false
    }

    /// Releases a writer that has written no batches.
    pub(crate) fn release_writer(&mut self) {
        self.is_writing = false;
    }

    /// Asks the thread that owns the writer to seal the active segment; `false` if no thread owns
    /// it.
    pub(crate) fn request_seal(&mut self) -> bool {
        self.is_seal_requested |= self.is_writing;
        self.is_writing
    }

    /// Whether a seal was requested; clears the request.
    pub(crate) fn take_seal_request(&mut self) -> bool {
        std::mem::take(&mut self.is_seal_requested)
    }

    /// Removes and returns the waiters for batches up to offset `end`.
    pub(crate) fn take_waiters(&mut self, end: Offset) -> impl Iterator<Item = WriteWaiter> {
        let due = self.waiters.partition_point(|waiter| waiter.end <= end);
        self.waiters.drain(..due)
    }

    /// Removes and returns the pending batches of these producers, each with its waiters.
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

    fn note_writing(&mut self, batches: &[Batch]) {
        self.writing_end = batches.last().map_or(0, Batch::end_offset);
    }
}
