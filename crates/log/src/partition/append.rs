//! Appending batches.
//!
//! The caller's thread assigns offsets to the batch under the partition's lock. If no other thread
//! writes to this partition and the disk is not slow, the same thread writes all pending batches to
//! the kernel with one vectored write, and then, for a few rounds, the batches that other threads
//! have added meanwhile. Otherwise the batch stays pending, and the thread that writes completes
//! the append. So appends of many threads are combined into few writes, and no thread waits for
//! another one. While the disk throttles writers, only the thread "log-writer" writes. The thread
//! "log-opener" creates a partition's first file, because creating folders and files takes far
//! longer than writing a batch.

use std::sync::Arc;
use std::time::Instant;

use crate::batch::{Batch, Offset};
use crate::error::AppendError;
use crate::housekeeping::Chore;
use crate::invariant::{begin_write, end_write};
use crate::metrics::{count, subtract};
use crate::options::Durability;
use crate::partition::appended::{Appended, Completions, Pending};
use crate::partition::group_commit::SyncRequest;
use crate::partition::prepared::Preparation;
use crate::partition::writer::WriteOutcome;
use crate::partition::{PartitionLog, PartitionState, WriteWaiter, tail_weight};
use crate::producers::{ProducerFields, SequenceVerdict};
use crate::shared::Shared;

/// Maximum rounds of writing in a row. After these a caller's thread leaves the rest to
/// "log-writer", and "log-writer" puts the partition at the end of its queue.
const ROUNDS_MAX: u32 = 4;

/// The batches of one round enter the tail cache in entries of about this many bytes, because the
/// cache evicts whole entries.
const TAIL_STEP_BYTES: u64 = 1 << 20;

impl PartitionLog {
    /// Appends a batch. Batches get their offsets in the order of the calls.
    ///
    /// The result is a future, ready when the batch is as durable as `class` asks: with
    /// [`Durability::None`] at once, with [`Durability::Kernel`] nearly always at once. The call
    /// blocks no longer than a write to the page cache takes.
    ///
    /// A duplicate batch of an idempotent producer is not appended again: the result has the
    /// offsets of the stored batch, and is ready when the stored batch is as durable as `class`
    /// asks.
    ///
    /// # Errors
    /// The batch is too large, the disk is full, the log is closed, an idempotent producer's
    /// sequence number is out of order, or the write on this thread has failed.
    pub fn append(
        self: &Arc<Self>,
        batch: Batch,
        class: Durability,
    ) -> Result<Appended, AppendError> {
        let bytes = batch.bytes().len() as u64;
        let now = Instant::now();
        if let Err(free_bytes) = self.shared.space.admit(&*self.shared.disk, now, bytes) {
            count(&self.shared.counters.storage_full, 1);
            self.shared.release_prepared();
            return Err(AppendError::StorageFull { free_bytes });
        }
        self.append_at(batch, class, now)
    }

    /// As [`PartitionLog::append`], but may use the reserved free space: for the broker's own
    /// messages (dead letters), which must be stored even while producers are refused.
    ///
    /// # Errors
    /// As [`PartitionLog::append`].
    pub fn append_internal(
        self: &Arc<Self>,
        batch: Batch,
        class: Durability,
    ) -> Result<Appended, AppendError> {
        self.append_at(batch, class, Instant::now())
    }

    fn append_at(
        self: &Arc<Self>,
        batch: Batch,
        class: Durability,
        now: Instant,
    ) -> Result<Appended, AppendError> {
        let shared = &self.shared;
        let bytes = batch.bytes().len() as u64;
        let bytes_max = shared.options.batch_bytes_max;
        if bytes > bytes_max {
            return Err(AppendError::TooLarge { bytes, bytes_max });
        }
        if class == Durability::Disk
            && let Some(failure) = shared.journal.failure()
        {
            // The journal has failed, so definitions that this batch may need are not durable. No
            // batch may be acknowledged as durable.
            return Err(AppendError::Failed(failure));
        }
        let fields = ProducerFields::of(&batch);
        let now_ms = fields.as_ref().map_or(0, |_| shared.options.clock.now_ms());
        let batch = batch.into_unassigned();
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(AppendError::Closed);
        }
        let base = state.offsets.next();
        invariant!(
            base >= self.written_end(),
            "the next offset is already assigned"
        );
        if let Some(fields) = &fields {
            match state.producers.check(fields, now_ms)? {
                SequenceVerdict::Duplicate(stored) => {
                    return self.answer_duplicate(state, stored, class);
                }
                SequenceVerdict::New => {
                    state
                        .producers
                        .add(fields, base, self.written_end(), now_ms)
                }
            }
        }
        let batch = batch.assign_offsets(base);
        let (end, timestamp_ms) = (batch.end_offset(), batch.max_timestamp_ms());
        state.offsets.assign_up_to(end);
        state.writes.push(batch);
        count(&shared.counters.batches, 1);
        count(&shared.counters.unwritten_bytes, bytes);
        let writes_here = !state.writes.is_writing() && state.may_write_inline(shared, now);
        let mut pending = Pending::ready();
        if class == Durability::Disk || (class == Durability::Kernel && !writes_here) {
            pending = Pending::waiting(state.writes.wait_for_newest(end, class));
        }
        if writes_here {
            let batches = state.writes.begin();
            drop(state);
            self.write_rounds(batches, Some(now))?;
        } else if state.writes.mark_queued_if_due() {
            drop(state);
            self.queue_write();
        }
        Ok(Appended {
            base,
            end,
            is_duplicate: false,
            timestamp_ms,
            pending,
        })
    }

    /// Puts the partition into the queue of "log-writer", or into that of "log-opener" if it has no
    /// file yet.
    pub(crate) fn queue_write(self: &Arc<Self>) {
        let queues = &self.shared.queues;
        let queue = match self.state.lock().segments.is_empty() {
            true => &queues.openings,
            false => &queues.writes,
        };
        if queue.push(self.clone()).is_err() {
            // The log was stopped meanwhile, so the pending batches will not be written: fail all
            // waiters.
            self.close_now();
        }
    }

    /// Called by "log-writer" and "log-opener": writes the pending batches, unless another thread
    /// does. After [`ROUNDS_MAX`] rounds, queues the partition again for the batches that came
    /// meanwhile.
    pub(crate) fn write_pending(self: &Arc<Self>) {
        let batches = self.state.lock().writes.begin_queued();
        if let Some(batches) = batches {
            // The rounds report errors to the waiters.
            let _ = self.write_rounds(batches, None);
        }
    }

    /// Writes `batches`, then the batches that were added meanwhile. Returns the outcome of the
    /// first round. `inline_since` is the time at which a caller's own thread began; `None` on
    /// "log-writer".
    fn write_rounds(
        self: &Arc<Self>,
        mut batches: Vec<Batch>,
        inline_since: Option<Instant>,
    ) -> Result<(), AppendError> {
        let mut rounds = 0;
        let mut first = None;
        let mut began = inline_since;
        loop {
            rounds += 1;
            // A panic here would leave `is_writing` set, and no thread could write to the partition
            // again. From here to `end_write` a panic therefore ends the process.
            begin_write();
            let mut writer = self.writer.lock();
            let written = writer.write(self, &batches);
            let slow = began.is_some_and(|began| self.shared.measure_write(began));
            let leaves_rest = slow || rounds == ROUNDS_MAX;
            let mut completions = Completions::default();
            let mut state = self.state.lock();
            let round = self.make_visible(&mut state, &mut batches, &written, &mut completions);
            if state.writes.take_seal_request() {
                drop(state);
                writer.roll(self);
                state = self.state.lock();
            }
            drop(writer);
            let goes_on = state.writes.next_round(&mut batches, !leaves_rest);
            let queue = !goes_on && state.writes.mark_queued_if_due();
            drop(state);
            if queue {
                self.queue_write();
            }
            self.after_round(&round, completions);
            end_write();
            first.get_or_insert(written.error.map_or(Ok(()), Err));
            if !goes_on {
                return first.unwrap_or(Ok(()));
            }
            began = inline_since.map(|_| Instant::now());
        }
    }

    /// Makes the written batches visible to readers. Collects the waiters that are done, and moves
    /// those of the class *disk* to the sync queue.
    fn make_visible(
        self: &Arc<Self>,
        state: &mut PartitionState,
        batches: &mut Vec<Batch>,
        written: &WriteOutcome,
        completions: &mut Completions,
    ) -> WriteRound {
        state.writes.end_round();
        let mut round = WriteRound {
            has_failed: written.error.is_some(),
            ..WriteRound::default()
        };
        let last = batches.last().map_or(0, Batch::end_offset);
        let all: u64 = batches.iter().map(|batch| batch.bytes().len() as u64).sum();
        let unwritten = subtract(&self.shared.counters.unwritten_bytes, all);
        invariant!(
            unwritten >= all,
            "more bytes were written than were pending"
        );
        for batch in batches.drain(..written.count) {
            round.end = batch.end_offset();
            round.bytes += batch.bytes().len() as u64;
            round.weight += tail_weight(&batch);
            if batch.producer_id() >= 0 {
                state.producers.note_written(batch.bytes().len() as u64);
            }
            if round.weight >= TAIL_STEP_BYTES {
                let weight = std::mem::take(&mut round.weight);
                round.steps.push((round.end, weight));
            }
            state.recent.push(batch);
        }
        if let Some(error) = &written.error {
            self.undo_failed_write(state, batches, error, completions);
        }
        batches.clear();
        if written.count > 0 {
            invariant!(
                round.end > self.written_end(),
                "a write moves the written end backward"
            );
            self.set_written_end(round.end);
            round.note_dirty = state.syncs.note_dirty();
        }
        for WriteWaiter { end, class, waiter } in state.writes.take_waiters(last) {
            match (&written.error, class) {
                (Some(error), _) if end > round.end => completions.add(waiter, Err(error.clone())),
                (_, Durability::Disk) => {
                    waiter.note_written();
                    state.syncs.wait_for_newest(end, waiter);
                }
                _ => completions.add(waiter, Ok(())),
            }
        }
        round.queue_sync = state.syncs.mark_queued_if_due();
        round.prepare = state.request_prepared(&self.shared, self.segment_bytes());
        round
    }

    /// The part of a round that runs after the locks are released.
    fn after_round(self: &Arc<Self>, round: &WriteRound, completions: Completions) {
        let shared = &self.shared;
        completions.complete_all();
        if round.bytes > 0 {
            if round.note_dirty {
                let _ = shared.queues.chores.push(Chore::Dirty(self.clone()));
            }
            for (end, weight) in &round.steps {
                shared.tail.admit(self, *end, *weight);
            }
            shared.tail.admit(self, round.end, round.weight);
        }
        if round.bytes > 0 || round.has_failed {
            self.notify_written();
        }
        if round.prepare {
            let work = Preparation::Update(self.clone());
            let _ = shared.queues.preparations.push(work);
        }
        if round.queue_sync
            && shared
                .queues
                .syncs
                .push(SyncRequest::Partition(self.clone()))
                .is_err()
        {
            self.close_now();
        }
    }

    /// Refuses appends from now on and fails all waiters with [`AppendError::Closed`].
    pub(crate) fn close_now(&self) {
        let mut completions = Completions::default();
        let mut state = self.state.lock();
        state.is_closed = true;
        for waiting in state.writes.take_waiters(Offset::MAX) {
            completions.add(waiting.waiter, Err(AppendError::Closed));
        }
        for (_, waiter) in state.syncs.take_waiters(Offset::MAX) {
            completions.add(waiter, Err(AppendError::Closed));
        }
        drop(state);
        completions.complete_all();
    }
}

/// The result of one round of writing.
#[derive(Default)]
struct WriteRound {
    /// Offset after the last batch that was written; 0 if there is none.
    end: u64,
    bytes: u64,
    /// Weight in the tail cache, in bytes, of the batches after the last of `steps`.
    weight: u64,
    /// End offset and weight of each part of a round that is larger than [`TAIL_STEP_BYTES`].
    steps: Vec<(u64, u64)>,
    has_failed: bool,
    note_dirty: bool,
    queue_sync: bool,
    prepare: bool,
}

impl PartitionState {
    /// Whether a caller's thread may write: the disk is fast, and the partition has a file.
    fn may_write_inline(&self, shared: &Shared, now: Instant) -> bool {
        let has_file = !self.segments.is_empty() || shared.options.manual;
        has_file && shared.writes_inline(now)
    }
}
