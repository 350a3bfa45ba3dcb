//! The file of the next segment, created before it is needed.
//!
//! A sync of bytes in space that is reserved but unwritten must also update extents in the file
//! system's journal. A sync of bytes in blocks that were written before writes only the bytes
//! (`docs/decisions/007-segments-written-ahead.md`). So while a partition takes appends of the
//! class *disk* and its active segment is more than half full, the thread "log-preparer" fills the
//! file `next.prepared` with zeros and syncs it. When the writer begins the next segment it renames
//! this file, or creates an ordinary one if there is none.
//!
//! Only a file that this process has finished is used ([`PreparedState`]). Recovery removes the
//! file, unless it contains messages (`segment/files.rs`). To recovery, zeros after the last batch
//! mark the end of the segment, as unwritten space does. A failure here is harmless.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::disk::BLOCK_BYTES;
use crate::partition::{PartitionLog, PartitionState};
use crate::shared::Shared;

/// Name of the file in the partition's folder.
pub(crate) const PREPARED_NAME: &str = "next.prepared";
/// Maximum number of such files in all partitions together: 4 GiB with segments of 64 MiB.
const PREPARED_MAX: usize = 64;

/// The state of a partition's prepared file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PreparedState {
    /// No file, and none requested.
    #[default]
    None,
    /// "log-preparer" will create the file, or is creating it.
    Requested,
    /// The file is ready: this many zeros, synced.
    Ready(u64),
    /// The file could not be created, or was removed to free space. It is not requested again
    /// before the next segment.
    Declined,
}

/// Work for "log-preparer".
pub(crate) enum Preparation {
    /// Create the file if it was requested, or remove it if the segment size has changed.
    Update(Arc<PartitionLog>),
    /// The disk is nearly full: remove all prepared files.
    RemoveAll,
}

/// Counters for the prepared files of all partitions.
#[derive(Default)]
pub(crate) struct PreparedFiles {
    /// Number of files that are ready.
    count: AtomicUsize,
    /// [`Preparation::RemoveAll`] is queued.
    is_removal_queued: AtomicBool,
}

impl Shared {
    /// Does one piece of work, on "log-preparer".
    pub(crate) fn prepare(&self, work: Preparation) {
        match work {
            Preparation::Update(partition) => partition.update_prepared(),
            Preparation::RemoveAll => {
                self.prepared_files.is_removal_queued.store(false, Release);
                for partition in self.all_partitions() {
                    partition.discard_prepared();
                }
            }
        }
    }

    /// Frees the space of all prepared files, after an append was refused because the disk is full.
    pub(crate) fn release_prepared(&self) {
        let files = &self.prepared_files;
        if files.count.load(Acquire) > 0 && !files.is_removal_queued.swap(true, AcqRel) {
            let _ = self.queues.preparations.push(Preparation::RemoveAll);
        }
    }
}

impl PreparedFiles {
    /// Notes that a file that was ready was used or removed.
    fn note_gone(&self) {
        let before = self.count.fetch_sub(1, AcqRel);
        invariant!(
            before > 0,
            "a prepared file that was not counted is used or removed"
        );
    }
}

impl PartitionState {
    /// Whether the caller must queue a [`Preparation::Update`]. If so, marks the file as requested.
    pub(crate) fn request_prepared(&mut self, shared: &Shared, segment_bytes: u64) -> bool {
        let due = shared.options.prepare_segments
            && self.prepared == PreparedState::None
            && !self.is_closed
            && self.syncs.is_waited_for()
            && self
                .active()
                .is_some_and(|segment| segment.len() > segment_bytes / 2);
        if due {
            self.prepared = PreparedState::Requested;
        }
        due
    }
}

impl PartitionLog {
    fn prepared_path(&self) -> String {
        format!("{}/{PREPARED_NAME}", self.dir)
    }

    /// Size that the prepared file must have, in bytes.
    fn prepared_bytes(&self) -> u64 {
        let bytes = self.segment_bytes();
        bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(bytes)
    }

    /// Has a prepared file of the wrong size removed, after the options have changed.
    pub(crate) fn recheck_prepared(self: &Arc<Self>) {
        if matches!(self.state.lock().prepared, PreparedState::Ready(_)) {
            let work = Preparation::Update(self.clone());
            let _ = self.shared.queues.preparations.push(work);
        }
    }

    /// Creates the file if it was requested, removes it if it has the wrong size. Blocks on the
    /// disk.
    fn update_prepared(&self) {
        let _file = self.prepared_lock.lock();
        let bytes = self.prepared_bytes();
        let (prepared, closed) = {
            let state = self.state.lock();
            (state.prepared, state.is_closed)
        };
        match prepared {
            PreparedState::Requested if !closed => {}
            PreparedState::Ready(has) if has != bytes => {
                return self.discard_locked(PreparedState::None);
            }
            _ => return,
        }
        let made = self.create_prepared(bytes);
        let mut state = self.state.lock();
        if made {
            self.shared.prepared_files.count.fetch_add(1, AcqRel);
            state.prepared = PreparedState::Ready(bytes);
        } else {
            state.prepared = PreparedState::Declined;
        }
    }

    /// Creates the file; returns whether that succeeded.
    fn create_prepared(&self, bytes: u64) -> bool {
        let shared = &self.shared;
        let reserve = shared.options.disk_free_bytes_min.saturating_mul(2);
        let free = shared.disk.free_bytes().unwrap_or(0);
        if shared.prepared_files.count.load(Acquire) >= PREPARED_MAX
            || free < reserve.saturating_add(bytes)
        {
            return false;
        }
        let path = self.prepared_path();
        let goes_on = || {
            !shared.queues.preparations.is_stopped()
                && self.prepared_bytes() == bytes
                && !self.state.lock().is_closed
        };
        let made = shared.disk.create_zeroed(&path, bytes, &goes_on);
        if let Err(error) = &made {
            tracing::debug!(file = %path, %error, "no segment prepared");
            let _ = shared.disk.remove_file(&path);
        }
        made.is_ok()
    }

    /// Removes the file, if there is one, and creates none before the next segment. Waits for
    /// "log-preparer" if it is creating the file. Blocks on the disk.
    pub(crate) fn discard_prepared(&self) {
        let _file = self.prepared_lock.lock();
        self.discard_locked(PreparedState::Declined);
    }

    fn discard_locked(&self, then: PreparedState) {
        let mut state = self.state.lock();
        if !matches!(state.prepared, PreparedState::Ready(_)) {
            return;
        }
        state.prepared = then;
        drop(state);
        self.shared.prepared_files.note_gone();
        self.remove_prepared();
    }

    fn remove_prepared(&self) {
        let path = self.prepared_path();
        match self.shared.disk.remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::debug!(file = %path, %error, "prepared segment not removed");
            }
            _ => {}
        }
    }

    /// Truncates a prepared active segment to its last batch, when the log is stopped: so the next
    /// start need not read the zeros from the disk. Only saves time.
    pub(crate) fn truncate_reserved(&self) {
        let mut writer = self.writer.lock();
        let Some(segment) = writer.active.clone() else {
            return;
        };
        // An empty segment keeps its reserved space: without it, recovery would report the segment
        // as truncated.
        let has_reserved = writer.position > 0 && writer.reserved > writer.position;
        if writer.pads_blocks && has_reserved && !segment.is_poisoned() {
            let cut = segment
                .file(&self.shared)
                .map(|file| file.set_len(writer.position));
            if matches!(cut, Ok(Ok(()))) {
                writer.reserved = writer.position;
            }
        }
    }

    /// Renames the prepared file to a new segment's name; returns its bytes. The caller owns the
    /// writer, so no other file is requested meanwhile. As with a file that is created, the name is
    /// durable only after the folder's sync.
    pub(crate) fn use_prepared(&self, log_path: &str) -> Option<u64> {
        let wanted = self.segment_bytes();
        let mut state = self.state.lock();
        let has = match state.prepared {
            PreparedState::Ready(has) if has >= wanted => has,
            PreparedState::Declined => {
                state.prepared = PreparedState::None;
                return None;
            }
            _ => return None,
        };
        state.prepared = PreparedState::None;
        drop(state);
        self.shared.prepared_files.note_gone();
        let path = self.prepared_path();
        if let Err(error) = self.shared.disk.rename(&path, log_path) {
            tracing::debug!(file = %path, %error, "prepared segment not used");
            self.remove_prepared();
            return None;
        }
        Some(has)
    }
}
