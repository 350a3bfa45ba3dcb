//! The state journal: small opaque entries (definitions, committed offsets, progress), in files of
//! their own beside the segments.
//!
//! Entries are appended to the current one of two files. Space for both is reserved at the first
//! start, so that acknowledgements can be persisted even if the disk is full. When the current file
//! fills up, the owner (the broker) writes a snapshot of its state to the other file, which then
//! becomes the current one. The start returns all entries to the owner; the log does not know what
//! they mean.

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
use format::{ENTRY_HEADER_BYTES, HEADER_BYTES, JournalNote, NextEntry};
use recovery::CrashRepair;
pub(crate) use recovery::{FoundJournal, PreviousRun};

/// The end of an appended entry, for [`Journal::wait_synced`]. Later appends have higher positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalPosition(u64);

/// The state journal of a data folder.
pub struct Journal {
    queues: Arc<Queues>,
    counters: Arc<Counters>,
    state: Mutex<JournalState>,
    /// Whether `JournalState::failure` is set. Each append of the class *disk* reads it, without
    /// the lock.
    broken: AtomicBool,
    /// Locked during a sync: the kernel reports a failed sync only once, so syncs must not overlap.
    sync_lock: Mutex<()>,
    /// Locked while a snapshot is written.
    snapshot_lock: Mutex<()>,
}

struct JournalState {
    current: JournalFile,
    other: JournalFile,
    mirror: SnapshotMirror,
    /// Bytes appended since the start of this process: the unit of [`JournalPosition`].
    appended: u64,
    synced: u64,
    /// The write or sync that has failed. The journal refuses entries until a snapshot is written
    /// to the other file.
    failure: Option<IoFailure>,
    waiters: Vec<(u64, Arc<Waiter>)>,
    /// The housekeeper was told that there are unsynced entries.
    dirty_noted: bool,
    /// Position in the current file at which the last snapshot ends.
    snapshot_end: u64,
    /// Number of entries lost to damage. The file stores this number until the next snapshot.
    lost: u32,
    /// The other file still has an earlier format, which cannot say that this file superseded it.
    /// If this file were lost, the next start would take the other one for complete, so a snapshot
    /// is due at once.
    is_upgraded: bool,
}

/// One of the two files.
struct JournalFile {
    file: Arc<dyn DiskFile>,
    path: &'static str,
    /// Identity and ordinal of the next entry.
    next_entry: NextEntry,
    position: u64,
    /// Bytes, from the start of the file, that are synced.
    synced: u64,
    /// Size of the file in bytes.
    reserved: u64,
    /// A failed snapshot may have left a header with a newer generation than the current file's in
    /// this file. The next start would then choose this file.
    may_be_chosen: bool,
}

/// Where appended entries go in addition to the current file while a snapshot is written.
enum SnapshotMirror {
    /// Nowhere: no snapshot is being written.
    Off,
    /// To this list, which is written after the snapshot's entries.
    Keep(Vec<Vec<u8>>),
    /// To the other file.
    Both,
}

impl JournalFile {
    /// Appends entries with one write. Returns their length in bytes.
    fn append(&mut self, entries: &[&[u8]]) -> Result<u64, AppendError> {
        let bytes = entries.iter().map(|entry| entry.len() + ENTRY_HEADER_BYTES);
        let mut bytes = Vec::with_capacity(bytes.sum::<usize>() + ENTRY_HEADER_BYTES);
        let mut next_entry = self.next_entry;
        for entry in entries.iter().filter(|entry| !entry.is_empty()) {
            next_entry.encode(entry, self.synced, &mut bytes);
        }
        self.write(bytes, next_entry)
    }

    fn append_note(&mut self, note: JournalNote) -> Result<(), AppendError> {
        let mut bytes = Vec::new();
        let mut next_entry = self.next_entry;
        next_entry.encode_note(note, self.synced, &mut bytes);
        self.write(bytes, next_entry).map(|_| ())
    }

    /// Writes encoded entries, after which the next entry is `next_entry`. Returns their length in
    /// bytes.
    fn write(&mut self, mut bytes: Vec<u8>, next_entry: NextEntry) -> Result<u64, AppendError> {
        let len = bytes.len();
        let end = self.position + len as u64;
        self.reserve(end)?;
        invariant!(
            end <= self.reserved,
            "{}: a write ends at {end}, after the {} reserved bytes",
            self.path,
            self.reserved
        );
        // Zeros mark the end. Without them, an entry that an older generation has left here could
        // be taken for a damaged entry of this generation.
        let zeros = self
            .reserved
            .saturating_sub(end)
            .min(ENTRY_HEADER_BYTES as u64);
        bytes.resize(len + zeros as usize, 0);
        let write = self
            .file
            .write_all_at(&[IoSlice::new(&bytes)], self.position);
        write.map_err(|error| IoFailure::new("write to", self.path, &error))?;
        self.position = end;
        self.next_entry = next_entry;
        Ok(len as u64)
    }

    /// Completes the writes that a crash has interrupted.
    fn repair(&mut self, repair: CrashRepair) -> Result<(), IoFailure> {
        let fail = |error| IoFailure::new("write to", self.path, &error);
        let write = |bytes: &[u8], at| self.file.write_all_at(&[IoSlice::new(bytes)], at);
        if repair.header {
            write(&encode_journal_header(self.next_entry.id), 0).map_err(fail)?;
        }
        if repair.wipe {
            let tail_len = self.reserved.saturating_sub(self.position);
            write(&vec![0; tail_len as usize], self.position).map_err(fail)?;
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
    /// Appends entries. They are written when this returns, and synced with the next group commit
    /// or within the sync interval. Empty entries are skipped. A power loss may take the unsynced
    /// entries from some entry on, but never one before an entry that survives.
    ///
    /// # Errors
    /// The file is full and cannot grow ([`AppendError::StorageFull`]), or this or an earlier write
    /// or sync has failed. In both cases the owner must write a snapshot, which goes to the other
    /// file.
    pub fn append(&self, entries: &[&[u8]]) -> Result<JournalPosition, AppendError> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        let written = match state.current.append(entries) {
            Ok(written) => written,
            Err(error) => return Err(self.note_failure(&mut state, error)),
        };
        if let SnapshotMirror::Keep(kept) = &mut state.mirror {
            kept.extend(entries.iter().map(|entry| entry.to_vec()));
        } else if matches!(state.mirror, SnapshotMirror::Both)
            && let Err(error) = state.other.append(entries)
        {
            // The append fails, because the next start may choose the other file, which lacks this
            // entry.
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

    /// Requests a group commit. The future is ready once all entries up to `position` are synced.
    pub fn wait_synced(&self, position: JournalPosition) -> Pending {
        let waiter = Arc::new(Waiter::default());
        let mut state = self.state.lock();
        invariant!(
            position.0 <= state.appended,
            "a waiter waits for byte {} of the state journal, which has {}",
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

    /// Whether the owner must write a snapshot: the file is half full and has grown enough since
    /// the last one, or there was a failure, damage or an upgrade.
    pub fn should_snapshot(&self) -> bool {
        let state = self.state.lock();
        state.failure.is_some()
            || state.lost > 0
            || state.is_upgraded
            || state.current.position > (state.current.reserved / 2).max(2 * state.snapshot_end)
    }

    /// Generation and ordinal of the journal's end, by which the next start checks that no entry is
    /// missing; `None` if the end is not synced.
    pub(crate) fn end(&self) -> Option<(u32, u32)> {
        let state = self.state.lock();
        let next_entry = state.current.next_entry;
        let is_sound = state.failure.is_none() && state.synced == state.appended;
        is_sound.then_some((next_entry.id.generation, next_entry.ordinal))
    }

    /// The failure because of which the journal refuses entries, if there is one.
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

    /// Syncs all entries and completes the waiters.
    pub(crate) fn sync(&self) -> Result<(), IoFailure> {
        let _one_at_a_time = self.sync_lock.lock();
        let mut state = self.state.lock();
        state.dirty_noted = false;
        if let Some(failure) = &state.failure {
            let failure = failure.clone();
            let mut completions = Completions::default();
            for (_, waiter) in state.waiters.drain(..) {
                completions.add(waiter, Err(failure.clone().into()));
            }
            drop(state);
            completions.complete_all();
            return Err(failure);
        }
        if state.synced == state.appended {
            return Ok(());
        }
        let target = state.appended;
        let both = matches!(state.mirror, SnapshotMirror::Both);
        let sides = [Some(&state.current), Some(&state.other).filter(|_| both)];
        let sides = sides.into_iter().flatten();
        let files: Vec<_> = sides
            .map(|side| {
                (
                    side.file.clone(),
                    side.path,
                    side.next_entry.id,
                    side.position,
                )
            })
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
            // A snapshot may have exchanged `current` and `other` meanwhile.
            let JournalState { current, other, .. } = &mut *state;
            let mut sides = [current, other].into_iter();
            if let Some(side) = sides.find(|side| side.next_entry.id == id) {
                side.synced = side.synced.max(position);
            }
        }
        if let Err(failure) = &outcome {
            count(&self.counters.sync_errors, 1);
            self.set_failure(&mut state, Some(failure.clone()));
        }
        let completions = state.take_completions(target, &outcome);
        drop(state);
        completions.complete_all();
        outcome
    }

    /// Fails all waiters with [`AppendError::Closed`].
    pub(crate) fn close_now(&self) {
        let mut completions = Completions::default();
        for (_, waiter) in self.state.lock().waiters.drain(..) {
            completions.add(waiter, Err(AppendError::Closed));
        }
        completions.complete_all();
    }
}

impl JournalState {
    /// Collects the waiters that a sync up to `target` completes or fails.
    fn take_completions(&mut self, target: u64, outcome: &Result<(), IoFailure>) -> Completions {
        invariant!(
            target <= self.appended,
            "the state journal was synced up to byte {target} of {}",
            self.appended
        );
        let mut completions = Completions::default();
        match outcome {
            Ok(()) => {
                self.synced = self.synced.max(target);
                let synced = self.synced;
                for (_, waiter) in self.waiters.extract_if(.., |(end, _)| *end <= synced) {
                    completions.add(waiter, Ok(()));
                }
            }
            Err(failure) => {
                for (_, waiter) in self.waiters.drain(..) {
                    completions.add(waiter, Err(failure.clone().into()));
                }
            }
        }
        completions
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        let (path, used) = (state.current.path, state.current.position);
        write!(formatter, "Journal({path}, {used} bytes used)")
    }
}
