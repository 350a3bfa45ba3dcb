//! Idempotent producers in an append: answers a duplicate with the offsets of the stored batch, and
//! undoes the entries of a failed write in the table.

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::batch::Batch;
use crate::error::AppendError;
use crate::metrics::subtract;
use crate::options::Durability;
use crate::partition::appended::{Appended, Completions, Pending, Waiter};
use crate::partition::group_commit::SyncRequest;
use crate::partition::{PartitionLog, PartitionState};
use crate::producers::{ProducerBatch, ProducerInfo};

impl PartitionLog {
    /// The partition's idempotent producers, in order of their ids.
    pub fn producers(&self) -> Vec<ProducerInfo> {
        let now_ms = self.shared.options.clock.now_ms();
        let mut producer_infos = self.state.lock().producers.producer_infos(now_ms);
        producer_infos.sort_by_key(|info| info.producer_id);
        producer_infos
    }

    /// Answers a duplicate as soon as the stored batch is as durable as `class` asks.
    pub(crate) fn answer_duplicate(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, PartitionState>,
        stored: ProducerBatch,
        class: Durability,
    ) -> Result<Appended, AppendError> {
        let (base, end) = (stored.base, stored.end());
        let is_written = end <= self.written_end();
        if class == Durability::Disk && is_written {
            let segment = state.segment_ending_at(end);
            if let Some(failure) = segment.and_then(|segment| segment.failure()) {
                return Err(AppendError::Failed(failure.clone()));
            }
        }
        // Only a snapshot names a batch in these offsets. So the batch was synced, and its segment
        // was dropped later.
        let was_dropped = state.offsets.last_hole().contains(&base);
        let is_ready = match class {
            Durability::None => true,
            Durability::Kernel => is_written || was_dropped,
            Durability::Disk => end <= self.synced_end() || was_dropped,
        };
        let mut pending = Pending::ready();
        let mut asks_sync = false;
        if !is_ready {
            let waiter = Arc::new(Waiter::default());
            pending = Pending::waiting(waiter.clone());
            if is_written {
                state.syncs.wait_for(end, waiter);
                asks_sync = state.syncs.mark_queued_if_due();
            } else {
                // The thread that writes the batch completes its waiters.
                state.writes.wait_for(end, class, waiter);
            }
        }
        drop(state);
        if asks_sync {
            let request = SyncRequest::Partition(self.clone());
            if self.shared.queues.syncs.push(request).is_err() {
                self.close_now();
            }
        }
        Ok(Appended {
            base,
            end,
            is_duplicate: true,
            timestamp_ms: stored.timestamp_ms,
            pending,
        })
    }

    /// Removes the batches of a failed write from the table of producers. Fails the pending batches
    /// of the same producers, too: if they were stored without the failed ones, retries of the
    /// failed ones would be out of order.
    pub(crate) fn undo_failed_write(
        &self,
        state: &mut PartitionState,
        failed: &[Batch],
        error: &AppendError,
        completions: &mut Completions,
    ) {
        let producer = |batch: &Batch| batch.producer_id();
        let idempotent = failed.iter().filter(|batch| producer(batch) >= 0);
        let ids: Vec<i64> = idempotent.clone().map(producer).collect();
        if ids.is_empty() {
            return;
        }
        for batch in idempotent {
            state
                .producers
                .undo_append(batch.producer_id(), batch.base_offset());
        }
        for (batch, waiters) in state.writes.withdraw(&ids) {
            subtract(
                &self.shared.counters.unwritten_bytes,
                batch.bytes().len() as u64,
            );
            for waiter in waiters {
                completions.add(waiter, Err(error.clone()));
            }
        }
    }
}
