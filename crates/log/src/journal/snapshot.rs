//! Writes a snapshot of the journal, and switches to the other file.
//!
//! 1. The snapshot is written to the other file, without locks. Entries that are appended meanwhile
//!    go to the current file and are also kept in memory.
//! 2. The kept entries are written after the snapshot. From here on entries are appended to both
//!    files, and a sync covers both, so each file has all entries that were reported as durable.
//! 3. The body of the other file is synced. Then its header, with a higher generation, is written
//!    and synced. After a crash in between, no entry is missing from the file that the start
//!    chooses.
//! 4. The other file becomes the current one, and a `Superseded` note is appended to the old one.
//!    If the new file is lost, the start knows by this note that the old file is incomplete.
//!
//! If step 3 fails while the header is written, it is unknown which file the next start would
//! choose, so the journal refuses further entries. The next snapshot invalidates that header before
//! it overwrites the body.

use std::io::IoSlice;

use super::format::{JournalId, JournalNote, NextEntry, encode_journal_header};
use super::{HEADER_BYTES, Journal, JournalFile, SnapshotMirror};
use crate::error::{AppendError, IoFailure, LogError};
use crate::metrics::count;

/// Entries of a snapshot are buffered into writes of about this many bytes.
const WRITE_BYTES: usize = 256 << 10;

impl Journal {
    /// Replaces the journal's content with `entries`, the owner's whole state.
    ///
    /// `entries` must include the effect of all entries that were appended before this call.
    /// Entries that are appended while it runs are kept and follow the snapshot, so a replay must
    /// tolerate an entry whose effect is already in the snapshot. Blocks on the disk, so it must
    /// not run on a network thread.
    ///
    /// # Errors
    /// The other file could not be written. The current one stays in use.
    pub fn snapshot(&self, entries: &mut dyn Iterator<Item = Vec<u8>>) -> Result<(), LogError> {
        let _one_at_a_time = self.snapshot_lock.lock();
        let outcome = self.write_snapshot(entries);
        if outcome.is_err() {
            self.state.lock().mirror = SnapshotMirror::Off;
        }
        outcome
    }

    fn write_snapshot(&self, entries: &mut dyn Iterator<Item = Vec<u8>>) -> Result<(), LogError> {
        let (mut side, replaced) = self.prepare_other()?;
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
        let noted = side.append_note(JournalNote::Complete {
            generation: replaced.id.generation,
            ordinal: replaced.ordinal,
        });
        finish(&side, noted)?;
        if let SnapshotMirror::Keep(kept) =
            std::mem::replace(&mut state.mirror, SnapshotMirror::Off)
        {
            write_group(&mut side, &kept)?;
        }
        let covered = state.appended;
        let was_broken = state.failure.is_some();
        let file = side.file.clone();
        let (path, id, position) = (side.path, side.next_entry.id, side.position);
        state.other = side;
        state.mirror = SnapshotMirror::Both;
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
            other.may_be_chosen = true;
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
        // A sync that has failed since step 2 may have been one of the new file; then the failure
        // stays.
        let clears_failure = was_broken || state.failure.is_none();
        std::mem::swap(&mut state.current, &mut state.other);
        state.current.may_be_chosen = false;
        state.mirror = SnapshotMirror::Off;
        state.snapshot_end = snapshot_end;
        state.lost = 0;
        state.is_upgraded = false;
        let superseded = state.other.append_note(JournalNote::Superseded {
            generation: id.generation,
        });
        let before = state.other.file.clone();
        if clears_failure {
            self.set_failure(state, None);
        }
        let completions = state.take_completions(covered, &Ok(()));
        drop(guard);
        completions.complete_all();
        // The note matters only if the new file is damaged later, so a failure is ignored.
        if superseded.is_ok() {
            count(&self.counters.syncs, 1);
            let _ = before.sync_data();
        }
        Ok(())
    }

    /// The other file, ready to be overwritten, and the place of the current file's next entry: the
    /// snapshot replaces all entries before it.
    fn prepare_other(&self) -> Result<(JournalFile, NextEntry), LogError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let replaced = state.current.next_entry;
        let newest = replaced
            .id
            .generation
            .max(state.other.next_entry.id.generation);
        state.mirror = SnapshotMirror::Keep(Vec::new());
        let other = &mut state.other;
        other.next_entry = NextEntry {
            id: JournalId::new(newest + 1),
            ordinal: 0,
        };
        let side = JournalFile {
            file: other.file.clone(),
            path: other.path,
            next_entry: other.next_entry,
            position: HEADER_BYTES as u64,
            synced: 0,
            reserved: other.reserved,
            may_be_chosen: other.may_be_chosen,
        };
        drop(guard);
        if side.may_be_chosen {
            let zeros = [0; HEADER_BYTES];
            let write = side.file.write_all_at(&[IoSlice::new(&zeros)], 0);
            write.map_err(|error| IoFailure::new("write to", side.path, &error))?;
            side.sync()?;
            self.state.lock().other.may_be_chosen = false;
        }
        let side = JournalFile {
            may_be_chosen: false,
            ..side
        };
        Ok((side, replaced))
    }
}

fn write_group(side: &mut JournalFile, group: &[Vec<u8>]) -> Result<(), LogError> {
    let entries: Vec<&[u8]> = group.iter().map(Vec::as_slice).collect();
    let written = side.append(&entries);
    finish(side, written.map(|_| ()))
}

/// Converts an append error: a full disk fails a snapshot like any other I/O error.
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
