//! The state journal: small opaque entries (definitions, cursors) beside the segments.
//!
//! Appends go to the current one of two files, both with room reserved from the start, so that
//! acknowledgements can be persisted on a full disk. When the file fills up, the owner writes a
//! snapshot of what is still true into the other file, which then becomes the current one. The log
//! gives the entries back at the start and does not know what they mean.

mod format;
mod recovery;
mod snapshot;

use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use uuid::Uuid;

pub use format::{decode_journal_entries, decode_journal_header, encode_journal_header};

use crate::appended::{Completions, Pending, Waiter};
use crate::disk::DiskFile;
use crate::error::{AppendError, IoFailure};
use crate::group_commit::SyncRequest;
use crate::housekeeping::Chore;
use crate::metrics::{Counters, count};
use crate::shared::Queues;
use format::{Chain, HEADER_BYTES};

/// A place in the journal, to wait for its sync. Later appends have higher positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalPosition(u64);

/// The state journal of a data folder.
pub struct Journal {
    queues: Arc<Queues>,
    counters: Arc<Counters>,
    state: Mutex<State>,
    /// Whether `State::failure` is set, to be asked by every append that waits for the disk.
    broken: AtomicBool,
    /// One sync at a time: the kernel reports a failure only once.
    sync_lock: Mutex<()>,
    /// One snapshot at a time.
    snapshot_lock: Mutex<()>,
}

struct State {
    current: Side,
    other: Side,
    mirror: Mirror,
    /// Bytes appended since the start; positions count in it.
    appended: u64,
    synced: u64,
    /// A write or sync has failed: only a snapshot into the other file helps.
    failure: Option<IoFailure>,
    waiters: Vec<(u64, Arc<Waiter>)>,
    /// The housekeeper knows that there is something to sync.
    dirty_noted: bool,
    /// Where the entries of the last snapshot ended.
    snapshot_end: u64,
}

/// One of the two files.
struct Side {
    file: Arc<dyn DiskFile>,
    path: &'static str,
    generation: u64,
    /// Where the next entry goes.
    position: u64,
    chain: Chain,
    /// Size of the file.
    reserved: u64,
    /// Its header may name a newer generation than the current file's, although that was given up.
    may_win: bool,
}

/// What happens to appends while a snapshot is written.
enum Mirror {
    /// No snapshot.
    Off,
    /// They are kept to follow the snapshot.
    Keep(Vec<Vec<u8>>),
    /// They go to both files.
    Both,
}

impl Side {
    /// Appends entries with one write.
    fn append(&mut self, entries: &[&[u8]]) -> Result<u64, AppendError> {
        let mut bytes = Vec::with_capacity(entries.iter().map(|entry| entry.len() + 8).sum());
        let mut chain = self.chain;
        for entry in entries.iter().filter(|entry| !entry.is_empty()) {
            chain.encode(entry, &mut bytes);
        }
        self.write(&bytes, chain)?;
        Ok(bytes.len() as u64)
    }

    /// Writes a mark, so that nothing that was written here earlier fits behind what comes now.
    fn mark(&mut self) -> Result<(), AppendError> {
        let mut bytes = Vec::new();
        let mut chain = self.chain;
        chain.encode_mark(*Uuid::new_v4().as_bytes(), &mut bytes);
        self.write(&bytes, chain)
    }

    fn write(&mut self, bytes: &[u8], chain: Chain) -> Result<(), AppendError> {
        let end = self.position + bytes.len() as u64;
        self.reserve(end)?;
        let write = self
            .file
            .write_all_at(&[IoSlice::new(bytes)], self.position);
        write.map_err(|error| IoFailure::new("write to", self.path, &error))?;
        self.position = end;
        self.chain = chain;
        Ok(())
    }

    fn reserve(&mut self, end: u64) -> Result<(), AppendError> {
        if end <= self.reserved {
            return Ok(());
        }
        for size in [(self.reserved * 2).max(end), end] {
            match self.file.allocate(size) {
                Ok(()) => {
                    self.reserved = size;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::StorageFull => {}
                Err(error) => {
                    return Err(IoFailure::new("reserve room in", self.path, &error).into());
                }
            }
        }
        Err(AppendError::StorageFull { free_bytes: 0 })
    }

    fn sync(&self) -> Result<(), IoFailure> {
        self.file
            .sync_data()
            .map_err(|error| IoFailure::new("sync", self.path, &error))
    }
}

impl Journal {
    /// Appends entries: handed to the kernel when this returns, and synced with the next group
    /// commit or within the sync interval. Empty entries are left out. After a power loss any
    /// number of the newest unsynced entries may be missing, never one from the middle.
    ///
    /// # Errors
    /// The file is full and cannot grow ([`AppendError::StorageFull`]: write a snapshot), or an
    /// earlier write or sync has failed (write a snapshot, which goes to the other file).
    pub fn append(&self, entries: &[&[u8]]) -> Result<JournalPosition, AppendError> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        let written = match state.current.append(entries) {
            Ok(written) => written,
            Err(error) => return Err(self.note_failure(&mut state, error)),
        };
        if let Mirror::Keep(kept) = &mut state.mirror {
            kept.extend(entries.iter().map(|entry| entry.to_vec()));
        } else if matches!(state.mirror, Mirror::Both)
            && let Err(error) = state.other.append(entries)
        {
            // The other file may win already, and lacks this entry.
            let error = match error {
                AppendError::StorageFull { .. } => {
                    let full = ErrorKind::StorageFull.into();
                    IoFailure::new("reserve room in", state.other.path, &full).into()
                }
                error => error,
            };
            return Err(self.note_failure(&mut state, error));
        }
        state.appended += written;
        let position = JournalPosition(state.appended);
        let note = !std::mem::replace(&mut state.dirty_noted, true);
        drop(state);
        if note {
            let _ = self.queues.chores.push(Chore::JournalDirty);
        }
        Ok(position)
    }

    fn note_failure(&self, state: &mut State, error: AppendError) -> AppendError {
        if let AppendError::Failed(failure) = &error {
            count(&self.counters.write_errors, 1);
            self.set_failure(state, Some(failure.clone()));
        }
        error
    }

    /// A future that is ready once everything up to `position` is synced, with one group commit.
    pub fn wait_synced(&self, position: JournalPosition) -> Pending {
        let waiter = Arc::new(Waiter::default());
        let mut state = self.state.lock();
        if position.0 <= state.synced {
            return Pending::ready();
        }
        if let Some(failure) = &state.failure {
            waiter.complete(Err(failure.clone().into()));
            return Pending::waiting(waiter);
        }
        state.waiters.push((position.0, waiter.clone()));
        drop(state);
        if self.queues.syncs.push(SyncRequest::Journal).is_err() {
            waiter.complete(Err(AppendError::Closed));
        }
        Pending::waiting(waiter)
    }

    /// Whether so much of the file is used that a snapshot is due.
    pub fn should_snapshot(&self) -> bool {
        let state = self.state.lock();
        state.failure.is_some()
            || state.current.position > (state.current.reserved / 2).max(2 * state.snapshot_end)
    }

    /// Why the journal takes no entries, if it does not.
    pub fn failure(&self) -> Option<IoFailure> {
        if !self.broken.load(Ordering::Acquire) {
            return None;
        }
        self.state.lock().failure.clone()
    }

    fn set_failure(&self, state: &mut State, failure: Option<IoFailure>) {
        if let Some(failure) = &failure {
            tracing::error!(%failure, "state journal failed; a snapshot is needed");
        }
        self.broken.store(failure.is_some(), Ordering::Release);
        state.failure = failure;
    }

    /// Syncs what is not synced yet and tells who waited.
    pub(crate) fn sync(&self) -> Result<(), IoFailure> {
        let _one_at_a_time = self.sync_lock.lock();
        let mut state = self.state.lock();
        state.dirty_noted = false;
        if let Some(failure) = &state.failure {
            let failure = failure.clone();
            let mut told = Completions::default();
            for (_, waiter) in state.waiters.drain(..) {
                told.add(waiter, Err(failure.clone().into()));
            }
            drop(state);
            told.tell();
            return Err(failure);
        }
        if state.synced == state.appended {
            return Ok(());
        }
        let target = state.appended;
        let mut files = vec![(state.current.file.clone(), state.current.path)];
        if matches!(state.mirror, Mirror::Both) {
            files.push((state.other.file.clone(), state.other.path));
        }
        drop(state);
        let mut outcome = Ok(());
        for (file, path) in files {
            count(&self.counters.syncs, 1);
            if let Err(error) = file.sync_data() {
                outcome = Err(IoFailure::new("sync", path, &error));
            }
        }
        let mut state = self.state.lock();
        if let Err(failure) = &outcome {
            count(&self.counters.sync_errors, 1);
            self.set_failure(&mut state, Some(failure.clone()));
        }
        let told = state.settle(target, &outcome);
        drop(state);
        told.tell();
        outcome
    }

    /// Tells everyone who waits that the log is closed.
    pub(crate) fn close_now(&self) {
        let mut told = Completions::default();
        for (_, waiter) in self.state.lock().waiters.drain(..) {
            told.add(waiter, Err(AppendError::Closed));
        }
        told.tell();
    }
}

impl State {
    /// Sorts out the waiters after a sync up to `target`.
    fn settle(&mut self, target: u64, outcome: &Result<(), IoFailure>) -> Completions {
        let mut told = Completions::default();
        match outcome {
            Ok(()) => {
                self.synced = self.synced.max(target);
                let synced = self.synced;
                for (_, waiter) in self.waiters.extract_if(.., |(end, _)| *end <= synced) {
                    told.add(waiter, Ok(()));
                }
            }
            Err(failure) => {
                for (_, waiter) in self.waiters.drain(..) {
                    told.add(waiter, Err(failure.clone().into()));
                }
            }
        }
        told
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        let (path, used) = (state.current.path, state.current.position);
        write!(formatter, "Journal({path}, {used} bytes used)")
    }
}
