//! How the journal changes files.
//!
//! 1. The snapshot goes to the other file, without the locks; appends go to the current file and
//!    are kept.
//! 2. The kept ones follow the snapshot; from here on appends go to both files, and a sync covers
//!    both. So both files hold everything that was promised.
//! 3. The body of the other file is synced, then its header, with a higher generation, is written
//!    and synced. Whichever file wins after a crash in between: nothing is missing.
//! 4. The other file is the current one, and the old one is told so: should the new one be lost,
//!    the start knows that the old one is not all there was.
//!
//! If step 3 fails in the middle, nobody knows which file would win, so the journal takes no more
//! entries. The next attempt makes the doubtful header invalid before it touches the body.

use std::io::IoSlice;

use super::format::{EntryPlace, JournalId, JournalNote, encode_journal_header};
use super::{HEADER_BYTES, Journal, JournalFile, Mirror};
use crate::error::{AppendError, IoFailure, LogError};
use crate::metrics::count;

/// Entries of a snapshot are collected to writes of about this many bytes.
const WRITE_BYTES: usize = 256 << 10;

impl Journal {
    /// Replaces the journal's content by `entries`: all that is still true.
    ///
    /// Entries that are appended while this runs are kept, and follow the snapshot's. So replaying
    /// must tolerate an entry whose effect the snapshot has already. Entries that were appended
    /// before this call must be reflected in `entries`. Blocks on the disk: not for a network
    /// thread.
    ///
    /// # Errors
    /// The other file could not be written. The current one stays in use.
    pub fn snapshot(&self, entries: &mut dyn Iterator<Item = Vec<u8>>) -> Result<(), LogError> {
        let _one_at_a_time = self.snapshot_lock.lock();
        let outcome = self.write_snapshot(entries);
        if outcome.is_err() {
            self.state.lock().mirror = Mirror::Off;
        }
        outcome
    }

    fn write_snapshot(&self, entries: &mut dyn Iterator<Item = Vec<u8>>) -> Result<(), LogError> {
        let (mut side, stands_for) = self.prepare_other()?;
        let mut group: Vec<Vec<u8>> = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            bytes += entry.len();
            group.push(entry);
            if bytes >= WRITE_BYTES {
                write_group(&mut side, &group)?;
                group.clear();
                bytes = 0;
            }
        }
        write_group(&mut side, &group)?;
        let snapshot_end = side.position;
        // Step 2.
        let mut state = self.state.lock();
        let marked = side.append_mark(JournalNote::Complete {
            generation: stands_for.id.generation,
            ordinal: stands_for.ordinal,
        });
        finish(&side, marked)?;
        if let Mirror::Keep(kept) = std::mem::replace(&mut state.mirror, Mirror::Off) {
            write_group(&mut side, &kept)?;
        }
        let covered = state.appended;
        let was_broken = state.failure.is_some();
        let file = side.file.clone();
        let (path, id, position) = (side.path, side.place.id, side.position);
        state.other = side;
        state.mirror = Mirror::Both;
        drop(state);
        // Step 3.
        let sync = || {
            count(&self.counters.syncs, 1);
            file.sync_data()
                .map_err(|error| IoFailure::new("sync", path, &error))
        };
        sync()?;
        {
            let other = &mut self.state.lock().other;
            other.may_win = true;
            other.synced = other.synced.max(position);
        }
        let header = encode_journal_header(id);
        let write = file.write_all_at(&[IoSlice::new(&header)], 0);
        let write = write.map_err(|error| IoFailure::new("write to", path, &error));
        let outcome = write.and_then(|()| sync());
        // Step 4.
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Err(failure) = outcome {
            self.set_failure(state, Some(failure.clone()));
            return Err(failure.into());
        }
        // A sync that failed since step 2 may have been one of the new file.
        let heals = was_broken || state.failure.is_none();
        std::mem::swap(&mut state.current, &mut state.other);
        state.current.may_win = false;
        state.mirror = Mirror::Off;
        state.snapshot_end = snapshot_end;
        state.lost = 0;
        state.is_upgraded = false;
        let superseded = state.other.append_mark(JournalNote::Superseded {
            generation: id.generation,
        });
        let before = state.other.file.clone();
        if heals {
            self.set_failure(state, None);
        }
        let told = state.settle(covered, &Ok(()));
        drop(guard);
        told.tell();
        // For the case of damage only, so that a failure changes nothing.
        if superseded.is_ok() {
            count(&self.counters.syncs, 1);
            let _ = before.sync_data();
        }
        Ok(())
    }

    /// A view of the other file, ready to be overwritten, and where the current one is: what comes
    /// before that is in the snapshot.
    fn prepare_other(&self) -> Result<(JournalFile, EntryPlace), LogError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let stands_for = state.current.place;
        let newest = stands_for
            .id
            .generation
            .max(state.other.place.id.generation);
        state.mirror = Mirror::Keep(Vec::new());
        let other = &mut state.other;
        other.place = EntryPlace {
            id: JournalId::new(newest + 1),
            ordinal: 0,
        };
        let side = JournalFile {
            file: other.file.clone(),
            path: other.path,
            place: other.place,
            position: HEADER_BYTES as u64,
            synced: 0,
            reserved: other.reserved,
            may_win: other.may_win,
        };
        drop(guard);
        if side.may_win {
            let zeros = [0; HEADER_BYTES];
            let write = side.file.write_all_at(&[IoSlice::new(&zeros)], 0);
            write.map_err(|error| IoFailure::new("write to", side.path, &error))?;
            side.sync()?;
            self.state.lock().other.may_win = false;
        }
        let side = JournalFile {
            may_win: false,
            ..side
        };
        Ok((side, stands_for))
    }
}

fn write_group(side: &mut JournalFile, group: &[Vec<u8>]) -> Result<(), LogError> {
    let entries: Vec<&[u8]> = group.iter().map(Vec::as_slice).collect();
    let written = side.append(&entries);
    finish(side, written.map(|_| ()))
}

/// A full disk is a failed snapshot like any other.
fn finish(side: &JournalFile, outcome: Result<(), AppendError>) -> Result<(), LogError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(AppendError::Failed(failure)) => Err(failure.into()),
        Err(error) => {
            let full = std::io::Error::new(std::io::ErrorKind::StorageFull, error);
            Err(IoFailure::new("write to", side.path, &full).into())
        }
    }
}
