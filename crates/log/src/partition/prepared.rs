//! The next segment's file, made before it is needed.
//!
//! A sync of bytes that were appended to space that is only reserved has to convert that space in
//! the file system's journal as well; where the blocks were written before, it writes the bytes and
//! nothing else (`docs/decisions/007-segments-written-ahead.md`). So while a partition takes
//! appends of the disk class and its active segment is more than half full, the thread
//! "log-preparer" writes the file `next.prepared` full of zeros and syncs it. The writer renames it
//! when it begins the next segment, and creates an ordinary file if there is none.
//!
//! The name alone means nothing: only a file that this run has finished is used ([`Prepared`]), and
//! recovery removes what it finds, unless it holds messages (`segment/files.rs`). Zeros end a
//! segment for recovery as reserved space that was never written does. A failure here is harmless.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::disk::BLOCK_BYTES;
use crate::partition::{PartitionLog, PartitionState};
use crate::shared::Shared;

/// Name of the file in the partition's folder.
pub(crate) const PREPARED_NAME: &str = "next.prepared";
/// Most such files at a time, all partitions together: 4 GiB with segments of 64 MiB.
const PREPARED_MAX: usize = 64;

/// Where a partition's prepared file is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// None was asked for.
    #[default]
    No,
    /// The preparer will make one, or is at it.
    Asked,
    /// It has this many bytes, synced zeros, and nobody uses it.
    Ready(u64),
    /// It could not or may not be made; not to be asked for again before the next segment.
    Declined,
}

/// Work for "log-preparer".
pub(crate) enum Preparation {
    /// Make what was asked for; remove what has the wrong size by now.
    Tend(Arc<PartitionLog>),
    /// Space runs out: remove all prepared files.
    GiveBack,
}

/// The state that all partitions' prepared files share.
#[derive(Default)]
pub(crate) struct PreparedFiles {
    /// How many are ready.
    count: AtomicUsize,
    /// [`Preparation::GiveBack`] is queued.
    give_back: AtomicBool,
}

impl Shared {
    /// Lets the preparer do this.
    pub(crate) fn prepare(&self, work: Preparation) {
        match work {
            Preparation::Tend(partition) => partition.tend_prepared(),
            Preparation::GiveBack => {
                self.prepared_files.give_back.store(false, Release);
                for partition in self.all_partitions() {
                    partition.discard_prepared();
                }
            }
        }
    }

    /// An append was refused because space runs out: prepared files are space, too.
    pub(crate) fn give_back_prepared(&self) {
        let files = &self.prepared_files;
        if files.count.load(Acquire) > 0 && !files.give_back.swap(true, AcqRel) {
            let _ = self.queues.preparations.push(Preparation::GiveBack);
        }
    }
}

impl PreparedFiles {
    /// One that was ready is so no more.
    fn used_up(&self) {
        let before = self.count.fetch_sub(1, AcqRel);
        invariant!(
            before > 0,
            "a prepared file is used or removed that was not counted"
        );
    }
}

impl PartitionState {
    /// Whether it is time to ask for a prepared file. It counts as asked for then.
    pub(crate) fn ask_to_prepare(&mut self, shared: &Shared, segment_bytes: u64) -> bool {
        let due = shared.options.prepare_segments
            && self.prepared == Prepared::No
            && !self.is_closed
            && self.syncs.is_waited_for()
            && self
                .active()
                .is_some_and(|segment| segment.len() > segment_bytes / 2);
        if due {
            self.prepared = Prepared::Asked;
        }
        due
    }
}

impl PartitionLog {
    fn prepared_path(&self) -> String {
        format!("{}/{PREPARED_NAME}", self.dir)
    }

    /// Size of the file that the next segment wants, in bytes.
    fn prepared_bytes(&self) -> u64 {
        let bytes = self.segment_bytes();
        bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(bytes)
    }

    /// The options have changed.
    pub(crate) fn recheck_prepared(self: &Arc<Self>) {
        if matches!(self.state.lock().prepared, Prepared::Ready(_)) {
            let work = Preparation::Tend(self.clone());
            let _ = self.shared.queues.preparations.push(work);
        }
    }

    /// Makes the file if it was asked for, removes it if it has the wrong size. Blocks on the disk.
    fn tend_prepared(&self) {
        let _file = self.prepared_lock.lock();
        let bytes = self.prepared_bytes();
        let (prepared, closed) = {
            let state = self.state.lock();
            (state.prepared, state.is_closed)
        };
        match prepared {
            Prepared::Asked if !closed => {}
            Prepared::Ready(has) if has != bytes => return self.discard_locked(Prepared::No),
            _ => return,
        }
        let made = self.make_prepared(bytes);
        let mut state = self.state.lock();
        if made {
            self.shared.prepared_files.count.fetch_add(1, AcqRel);
            state.prepared = Prepared::Ready(bytes);
        } else {
            state.prepared = Prepared::Declined;
        }
    }

    /// Says whether the file is there now.
    fn make_prepared(&self, bytes: u64) -> bool {
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

    /// Removes the file, if there is one, and makes none before the next segment. Waits for the
    /// preparer if it is at it; blocks on the disk.
    pub(crate) fn discard_prepared(&self) {
        let _file = self.prepared_lock.lock();
        self.discard_locked(Prepared::Declined);
    }

    fn discard_locked(&self, then: Prepared) {
        let mut state = self.state.lock();
        if !matches!(state.prepared, Prepared::Ready(_)) {
            return;
        }
        state.prepared = then;
        drop(state);
        self.shared.prepared_files.used_up();
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

    /// Cuts the active segment to its length, for the end of the log: the next start would read the
    /// zeros, which are on the disk. Nothing depends on it.
    pub(crate) fn cut_room(&self) {
        let mut writer = self.writer.lock();
        let Some(segment) = writer.active.clone() else {
            return;
        };
        // A file without any reserved space looks as if it had lost what was in it.
        let has_room = writer.position > 0 && writer.reserved > writer.position;
        if writer.fills_blocks && has_room && !segment.is_poisoned() {
            let cut = segment
                .file(&self.shared)
                .map(|file| file.set_len(writer.position));
            if matches!(cut, Ok(Ok(()))) {
                writer.reserved = writer.position;
            }
        }
    }

    /// Gives the prepared file the name of a segment that begins; says how many bytes it has. For
    /// whoever has the writer: nobody asks for another one meanwhile. The new name is as durable as
    /// that of a created file: not before the folder's sync.
    pub(crate) fn use_prepared(&self, log_path: &str) -> Option<u64> {
        let wanted = self.segment_bytes();
        let mut state = self.state.lock();
        let has = match state.prepared {
            Prepared::Ready(has) if has >= wanted => has,
            Prepared::Declined => {
                state.prepared = Prepared::No;
                return None;
            }
            _ => return None,
        };
        state.prepared = Prepared::No;
        drop(state);
        self.shared.prepared_files.used_up();
        let path = self.prepared_path();
        if let Err(error) = self.shared.disk.rename(&path, log_path) {
            tracing::debug!(file = %path, %error, "prepared segment not used");
            self.remove_prepared();
            return None;
        }
        Some(has)
    }
}
