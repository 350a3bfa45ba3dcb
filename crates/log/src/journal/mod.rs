//! The state journal: small opaque entries (definitions, cursors) beside the segments.
//!
//! Appends go to the current one of two files, both with space reserved from the start, so that
//! acknowledgements can be persisted on a full disk. When the file fills up, the owner writes a
//! snapshot of what is still true into the other file, which then becomes the current one. The log
//! gives the entries back at the start and does not know what they mean.

mod format;
mod format_1;
mod reading;
mod recovery;
mod snapshot;

use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub use format::{JournalId, decode_journal_header, encode_journal_header};
pub use reading::decode_journal_entries;

use crate::disk::DiskFile;
use crate::error::{AppendError, IoFailure};
use crate::housekeeping::Chore;
use crate::metrics::{Counters, count};
use crate::partition::appended::{Completions, Pending, Waiter};
use crate::partition::group_commit::SyncRequest;
use crate::shared::Queues;
use format::{ENTRY_HEADER_BYTES, EntryPlace, HEADER_BYTES, JournalNote};
use recovery::Repair;
pub(crate) use recovery::{FoundJournal, PreviousRun};

/// A place in the journal, to wait for its sync. Later appends have higher positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalPosition(u64);

/// The state journal of a data folder.
pub struct Journal {
    queues: Arc<Queues>,
    counters: Arc<Counters>,
    state: Mutex<JournalState>,
    /// Whether `JournalState::failure` is set, to be asked by every append that waits for the disk.
    broken: AtomicBool,
    /// One sync at a time: the kernel reports a failure only once.
    sync_lock: Mutex<()>,
    /// One snapshot at a time.
    snapshot_lock: Mutex<()>,
}

struct JournalState {
    current: JournalFile,
    other: JournalFile,
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
    /// Entries lost to damage; the file keeps this count until the next snapshot.
    lost: u32,
    /// The other file is of an earlier format: what it holds would pass for all there is.
    is_upgraded: bool,
}

/// One of the two files.
struct JournalFile {
    file: Arc<dyn DiskFile>,
    path: &'static str,
    /// Where the next entry goes.
    place: EntryPlace,
    position: u64,
    /// Everything before it is on the disk.
    synced: u64,
    /// Size of the file.
    reserved: u64,
    /// Its header may name a newer generation than the current file's, although that was given up.
    may_win: bool,
}

/// The destination of appends while a snapshot is written.
enum Mirror {
    /// No snapshot.
    Off,
    /// They are kept to follow the snapshot.
    Keep(Vec<Vec<u8>>),
    /// They go to both files.
    Both,
}

impl JournalFile {
    /// Appends entries with one write.
    fn append(&mut self, entries: &[&[u8]]) -> Result<u64, AppendError> {
        let bytes = entries.iter().map(|entry| entry.len() + ENTRY_HEADER_BYTES);
        let mut bytes = Vec::with_capacity(bytes.sum::<usize>() + ENTRY_HEADER_BYTES);
        let mut place = self.place;
        for entry in entries.iter().filter(|entry| !entry.is_empty()) {
            place.encode(entry, self.synced, &mut bytes);
        }
        self.write(bytes, place)
    }

    fn append_mark(&mut self, mark: JournalNote) -> Result<(), AppendError> {
        let mut bytes = Vec::new();
        let mut place = self.place;
        place.encode_mark(mark, self.synced, &mut bytes);
        self.write(bytes, place).map(|_| ())
    }

    /// Writes encoded entries; the next entry goes to `place`. Returns how many bytes they are.
    fn write(&mut self, mut bytes: Vec<u8>, place: EntryPlace) -> Result<u64, AppendError> {
        let len = bytes.len();
        let end = self.position + len as u64;
        self.reserve(end)?;
        invariant!(
            end <= self.reserved,
            "{}: a write ends at {end}, behind its room of {} bytes",
            self.path,
            self.reserved
        );
        // Zeros mark the end: else an entry that an older generation left here could be taken for a
        // damaged one of this generation.
        let room = self
            .reserved
            .saturating_sub(end)
            .min(ENTRY_HEADER_BYTES as u64);
        bytes.resize(len + room as usize, 0);
        let write = self
            .file
            .write_all_at(&[IoSlice::new(&bytes)], self.position);
        write.map_err(|error| IoFailure::new("write to", self.path, &error))?;
        self.position = end;
        self.place = place;
        Ok(len as u64)
    }

    /// Completes the writes that a crash has interrupted.
    fn repair(&mut self, repair: Repair) -> Result<(), IoFailure> {
        let fail = |error| IoFailure::new("write to", self.path, &error);
        let write = |bytes: &[u8], at| self.file.write_all_at(&[IoSlice::new(bytes)], at);
        if repair.header {
            write(&encode_journal_header(self.place.id), 0).map_err(fail)?;
        }
        if repair.wipe {
            let behind = self.reserved.saturating_sub(self.position);
            write(&vec![0; behind as usize], self.position).map_err(fail)?;
        }
        if repair.header || repair.wipe {
            self.sync()
        } else {
            Ok(())
        }
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
            // The next start may choose the other file, which lacks this entry: so the append
            // fails.
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

    fn note_failure(&self, state: &mut JournalState, error: AppendError) -> AppendError {
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
        invariant!(
            position.0 <= state.appended,
            "somebody waits for byte {} of the state journal, which has {}",
            position.0,
            state.appended
        );
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
            || state.lost > 0
            || state.is_upgraded
            || state.current.position > (state.current.reserved / 2).max(2 * state.snapshot_end)
    }

    /// Generation and ordinal of its end, with which the next start checks that nothing is missing;
    /// `None` if the end is not synced.
    pub(crate) fn end(&self) -> Option<(u32, u32)> {
        let state = self.state.lock();
        let place = state.current.place;
        let is_sound = state.failure.is_none() && state.synced == state.appended;
        is_sound.then_some((place.id.generation, place.ordinal))
    }

    /// Why the journal takes no entries, if it does not.
    pub fn failure(&self) -> Option<IoFailure> {
        if !self.broken.load(Ordering::Acquire) {
            return None;
        }
        self.state.lock().failure.clone()
    }

    fn set_failure(&self, state: &mut JournalState, failure: Option<IoFailure>) {
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
        let both = matches!(state.mirror, Mirror::Both);
        let sides = [Some(&state.current), Some(&state.other).filter(|_| both)];
        let sides = sides.into_iter().flatten();
        let files: Vec<_> = sides
            .map(|side| (side.file.clone(), side.path, side.place.id, side.position))
            .collect();
        drop(state);
        let mut outcome = Ok(());
        let mut synced = Vec::new();
        for (file, path, id, position) in files {
            count(&self.counters.syncs, 1);
            match file.sync_data() {
                Ok(()) => synced.push((id, position)),
                Err(error) => outcome = Err(IoFailure::new("sync", path, &error)),
            }
        }
        let mut state = self.state.lock();
        for (id, position) in synced {
            // They may have changed places.
            let JournalState { current, other, .. } = &mut *state;
            let mut sides = [current, other].into_iter();
            if let Some(side) = sides.find(|side| side.place.id == id) {
                side.synced = side.synced.max(position);
            }
        }
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

impl JournalState {
    /// Sorts out the waiters after a sync up to `target`.
    fn settle(&mut self, target: u64, outcome: &Result<(), IoFailure>) -> Completions {
        invariant!(
            target <= self.appended,
            "the state journal was synced up to byte {target} of {}",
            self.appended
        );
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
