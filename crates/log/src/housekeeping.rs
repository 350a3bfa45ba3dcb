//! Work that need not happen at once: syncing data without waiters, and sealing full segments.
//!
//! The thread "log-housekeeper" does this work, so that neither a network thread nor a group commit
//! waits for the sync of a whole segment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::error::IoFailure;
use crate::metrics::count;
use crate::partition::PartitionLog;
use crate::partition::group_commit::{sync_partitions, sync_segment};
use crate::producers::snapshot::SNAPSHOT_BYTES;
use crate::segment::{FinalIndexItem, Segment, SegmentStage};
use crate::shared::Shared;

/// Once this many bytes are unsynced, they are synced before the interval ends, so that a later
/// sync with waiters has little to do.
pub(crate) const UNSYNCED_BYTES_MAX: u64 = 64 << 20;

/// Work for the housekeeper.
pub(crate) enum Chore {
    /// Seal this segment, which takes no more appends.
    Seal(Arc<PartitionLog>, Arc<Segment>),
    /// Sync this partition when the interval ends.
    Dirty(Arc<PartitionLog>),
    /// Sync the state journal when the interval ends.
    JournalDirty,
    /// Sync now, because many bytes are unsynced.
    SyncNow,
    /// Write the changed description of this topic to its folder.
    Describe(Uuid),
}

/// The state of the thread "log-housekeeper": the partitions to sync, and when.
#[derive(Default)]
pub(crate) struct Housekeeper {
    dirty: Vec<Arc<PartitionLog>>,
    due: Option<Instant>,
}

impl Housekeeper {
    /// Time of the next sync; `None` while everything is synced.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Does the chores: seals at once, and syncs when the interval ends or, with `sync_now`, at
    /// once.
    pub(crate) fn work(&mut self, shared: &Shared, chores: Vec<Chore>, mut sync_now: bool) {
        let mut seals = Vec::new();
        let mut noted = false;
        let mut described = BTreeSet::new();
        for chore in chores {
            match chore {
                Chore::Seal(partition, segment) => seals.push((partition, segment)),
                Chore::Dirty(partition) => {
                    self.dirty.push(partition);
                    noted = true;
                }
                Chore::JournalDirty => noted = true,
                Chore::SyncNow => sync_now = true,
                Chore::Describe(topic) => drop(described.insert(topic)),
            }
        }
        for (partition, segment) in seals {
            if partition.is_deleted() {
                continue;
            }
            if let Err(failure) = seal(shared, &partition, &segment) {
                if partition.is_deleted() {
                    continue;
                }
                segment.poison(&failure);
                tracing::error!(
                    file = %segment.log_path(),
                    %failure,
                    "segment not sealed; it stays readable and the next start scans it"
                );
            }
        }
        if noted && self.due.is_none() {
            let interval = Duration::from_millis(shared.options.sync_interval_ms);
            self.due = Some(Instant::now() + interval);
        }
        if self
            .due
            .is_some_and(|due| sync_now || due <= Instant::now())
        {
            self.due = None;
            self.sync(shared);
        }
        if !described.is_empty() {
            shared.describe(&described);
        }
    }

    fn sync(&mut self, shared: &Shared) {
        let dirty = std::mem::take(&mut self.dirty);
        for partition in &dirty {
            partition.state.lock().syncs.take_dirty();
        }
        sync_partitions(shared, &dirty);
        for partition in dirty.iter().filter(|partition| !partition.is_deleted()) {
            partition.flush_active_index(shared, FinalIndexItem::None);
            partition.try_snapshot_producers(SNAPSHOT_BYTES);
        }
    }
}

/// Syncs a full segment, truncates the file to its batches, and writes the footer.
fn seal(
    shared: &Shared,
    partition: &Arc<PartitionLog>,
    segment: &Arc<Segment>,
) -> Result<(), IoFailure> {
    if segment.stage() == SegmentStage::Sealed {
        return Ok(());
    }
    let path = segment.log_path();
    let fail = |error| IoFailure::new("cut", &path, &error);
    sync_segment(shared, segment, segment.len())?;
    // The index must have an entry for the end before the file is truncated: recovery takes a file
    // without reserved space and without such an entry for a damaged one.
    segment.flush_index(shared, FinalIndexItem::End)?;
    segment.file(shared)?.set_len(segment.len()).map_err(fail)?;
    partition.try_snapshot_producers(1);
    // The segment's name must be durable before its footer is.
    sync_partitions(shared, std::slice::from_ref(partition));
    segment.flush_index(shared, FinalIndexItem::Footer)?;
    count(&shared.counters.syncs, 2);
    let sync = shared.disk.sync_dir(&partition.dir);
    sync.map_err(|error| IoFailure::new("sync", &partition.dir, &error))?;
    segment.set_stage(SegmentStage::Sealed);
    segment.admit_index(shared);
    Ok(())
}

impl PartitionLog {
    /// Writes the index entries of the active segment whose bytes are synced.
    pub(crate) fn flush_active_index(&self, shared: &Shared, final_item: FinalIndexItem) {
        let active = self.state.lock().active().cloned();
        if let Some(segment) = active
            && let Err(failure) = segment.flush_index(shared, final_item)
        {
            tracing::warn!(%failure, "index not written; the next start scans more of the log");
        }
    }
}
