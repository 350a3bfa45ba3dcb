//! Group commit: one sync for all its waiters.
//!
//! There is no timer: the requests that arrive while a sync runs are the next group. A group syncs
//! the state journal first (definitions must be durable before messages that need them), then each
//! dirty file once, then the folders with new names. Only then does it complete the waiters. Many
//! dirty files are cheaper to sync with one `syncfs`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::batch::Offset;
use crate::error::{AppendError, IoFailure};
use crate::metrics::{count, subtract};
use crate::partition::PartitionLog;
use crate::partition::appended::Completions;
use crate::segment::{Segment, SegmentStage};
use crate::shared::Shared;

/// A group with more dirty files than this is synced with one `syncfs`, if the file system has few
/// other dirty bytes. Measured in `docs/decisions/002-inline-writes-and-group-commit.md`.
const FDATASYNC_FILES_MAX: usize = 2;
/// A `syncfs` also writes dirty bytes of files outside the group. This many bytes cost as much as
/// one more `fdatasync` (100 µs at 500 MB/s).
const SYNCFS_BYTES_PER_FILE: u64 = 50 << 10;

/// A request for a sync.
pub(crate) enum SyncRequest {
    /// Sync this partition.
    Partition(Arc<PartitionLog>),
    /// Sync the state journal.
    Journal,
}

/// The offsets, files and folders that a sync of a partition covers.
struct SyncPlan {
    partition: Arc<PartitionLog>,
    /// All records before this offset were written before the sync begins.
    target: Offset,
    segments: Vec<(Arc<Segment>, u64)>,
    dirs: Vec<(String, u64)>,
}

/// Runs one group commit for these requests.
pub(crate) fn commit_group(shared: &Shared, requests: Vec<SyncRequest>) {
    let mut partitions = Vec::new();
    for request in requests {
        if let SyncRequest::Partition(partition) = request {
            partition.state.lock().syncs.leave_queue();
            partitions.push(partition);
        }
    }
    let completed = sync_partitions(shared, &partitions);
    if completed > 0 {
        count(&shared.counters.groups, 1);
        let max = &shared.counters.group_waiters_max;
        max.fetch_max(completed, Relaxed);
    }
}

/// Syncs the journal and these partitions and completes the waiters. Returns the number of waiters.
pub(crate) fn sync_partitions(shared: &Shared, partitions: &[Arc<PartitionLog>]) -> u64 {
    try_sync_partitions(shared, partitions).0
}

/// As [`sync_partitions`], but returns the first failure, too: for callers that are not waiters.
pub(crate) fn try_sync_partitions(
    shared: &Shared,
    partitions: &[Arc<PartitionLog>],
) -> (u64, Result<(), IoFailure>) {
    let plans: Vec<SyncPlan> = partitions.iter().map(PartitionLog::begin_sync).collect();
    let mut outcome = shared.journal.sync();
    if outcome.is_ok() {
        outcome = sync_plans(shared, &plans);
    }
    let mut completed = 0;
    for plan in &plans {
        completed += plan.partition.finish_sync(plan, &outcome);
    }
    let mut segments = plans.iter().flat_map(|plan| &plan.segments);
    let doubt = segments.find_map(|(segment, _)| segment.failure());
    let outcome = outcome.and_then(|()| doubt.map_or(Ok(()), |failure| Err(failure.clone())));
    (completed, outcome)
}

/// Syncs the files and folders of all plans. A file whose sync fails is poisoned, and the others
/// are still synced. Only a failure that concerns all files is returned.
fn sync_plans(shared: &Shared, plans: &[SyncPlan]) -> Result<(), IoFailure> {
    let files: usize = plans.iter().map(|plan| plan.segments.len()).sum();
    let dirs: BTreeSet<&str> = plans
        .iter()
        .flat_map(|plan| &plan.dirs)
        .map(|(dir, _)| dir.as_str())
        .collect();
    if prefers_syncfs(shared, plans, files) {
        count(&shared.counters.syncs, 1);
        count(&shared.counters.fs_syncs, 1);
        let outcome = shared.disk.sync_fs();
        let outcome = outcome.map_err(|error| IoFailure::new("sync", "the file system", &error));
        for (segment, len) in plans.iter().flat_map(|plan| &plan.segments) {
            match &outcome {
                Ok(()) => {
                    subtract(&shared.counters.unsynced_bytes, segment.note_synced(*len));
                }
                Err(failure) => poison(shared, segment, failure),
            }
        }
        return outcome;
    }
    for (segment, len) in plans.iter().flat_map(|plan| &plan.segments) {
        // A failure poisons the segment, and `finish_sync` fails the waiters of a poisoned segment.
        let _ = sync_segment(shared, segment, *len);
    }
    for dir in dirs {
        count(&shared.counters.syncs, 1);
        // The folder of a topic that was deleted meanwhile does not exist any more.
        if let Err(error) = shared.sync_name(dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let failure = IoFailure::new("sync", dir, &error);
            for (segment, _) in plans.iter().flat_map(|plan| &plan.segments) {
                poison(shared, segment, &failure);
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// Whether one sync of everything is cheaper than one per file.
fn prefers_syncfs(shared: &Shared, plans: &[SyncPlan], files: usize) -> bool {
    if files <= FDATASYNC_FILES_MAX || !shared.disk.sync_fs_reports_errors() {
        return false;
    }
    let segments = plans.iter().flat_map(|plan| &plan.segments);
    let ours: u64 = segments
        .map(|(segment, len)| len.saturating_sub(segment.synced()))
        .sum();
    let all = shared.counters.unsynced_bytes.load(Relaxed);
    let dearer = all.saturating_sub(ours) / SYNCFS_BYTES_PER_FILE;
    files as u64 > FDATASYNC_FILES_MAX as u64 + dearer
}

/// Syncs one file, at least its first `len` bytes.
pub(crate) fn sync_segment(
    shared: &Shared,
    segment: &Arc<Segment>,
    len: u64,
) -> Result<(), IoFailure> {
    let _one_at_a_time = segment.sync_lock.lock();
    if let Some(failure) = segment.failure() {
        return Err(failure.clone());
    }
    if segment.synced() >= len {
        return Ok(());
    }
    count(&shared.counters.syncs, 1);
    let outcome = segment.file(shared).and_then(|file| {
        let outcome = file.sync_data();
        outcome.map_err(|error| IoFailure::new("sync", &segment.log_path(), &error))
    });
    match outcome {
        Ok(()) => {
            subtract(&shared.counters.unsynced_bytes, segment.note_synced(len));
            Ok(())
        }
        Err(failure) => {
            poison(shared, segment, &failure);
            Err(failure)
        }
    }
}

/// Poisons a segment whose sync has failed: which of its bytes are durable is unknown, and a second
/// sync would report success all the same. The segment takes no more appends, and its waiters fail.
fn poison(shared: &Shared, segment: &Segment, failure: &IoFailure) {
    if segment.is_poisoned() {
        return;
    }
    count(&shared.counters.sync_errors, 1);
    subtract(
        &shared.counters.unsynced_bytes,
        segment.len().saturating_sub(segment.synced()),
    );
    tracing::error!(file = %segment.log_path(), %failure, "sync of the log failed");
    segment.poison(failure);
}

impl PartitionLog {
    fn begin_sync(self: &Arc<Self>) -> SyncPlan {
        let state = self.state.lock();
        let mut segments = Vec::new();
        for segment in state.segments.iter().rev() {
            if segment.stage() == SegmentStage::Sealed {
                break;
            }
            if segment.is_dirty() {
                segments.push((segment.clone(), segment.len()));
            }
        }
        let target = self.written_end();
        SyncPlan {
            partition: self.clone(),
            target,
            segments,
            dirs: state.unsynced_folders.list(),
        }
    }

    /// Completes the waiters for this sync; returns their number.
    fn finish_sync(&self, plan: &SyncPlan, outcome: &Result<(), IoFailure>) -> u64 {
        let mut completions = Completions::default();
        let mut state = self.state.lock();
        if outcome.is_ok() {
            state.unsynced_folders.note_synced(&plan.dirs);
            self.set_synced_end(plan.target);
        }
        let waiters: Vec<_> = state.syncs.take_waiters(plan.target).collect();
        let due = waiters.len() as u64;
        for (end, waiter) in waiters {
            let doubt = || state.segment_ending_at(end)?.failure();
            let failure = outcome.as_ref().err().or_else(doubt);
            completions.add(
                waiter,
                failure.map_or(Ok(()), |it| Err(AppendError::Failed(it.clone()))),
            );
        }
        drop(state);
        // Counted before completion, so that a completed waiter is always in the count.
        count(&self.shared.counters.group_waiters, due);
        completions.complete_all();
        due
    }
}
