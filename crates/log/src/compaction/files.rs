//! The files of compaction: writes a cleaned segment, replaces others with it, and stores the
//! checkpoint.
//!
//! A run of sealed segments becomes one segment, with the name of the first. Each step is durable
//! before the next one. A crash after any step loses no record that is to be kept:
//!
//! | step | recovery finds | and |
//! |---|---|---|
//! | write and sync the log and the index as `*.clean` | two unfinished files | removes them |
//! | remove the old index, sync the folder | the old segment, without a footer | scans it |
//! | rename the log, sync the folder | the new segment, without a footer | scans it |
//! | rename the index, sync the folder | the new segment, others within it | removes the others |
//! | remove the other segments | the new segment | |
//!
//! The checkpoint is in the file `compaction`, little-endian. If it is lost, compaction starts
//! again from the beginning.
//!
//! ```text
//!  byte  0            8            16           24
//!       +------------+------------+------------+---------+
//!       | magic      | clean end  | horizon    | crc32c  |
//!       | "clvcomp1" | offset u64 | i64 ms     | u32     |
//!       +------------+------------+------------+---------+
//! ```
//!
//! Before `clean end` no key has two records. `horizon` is the earliest delete horizon of a
//! tombstone before it (`i64::MAX`: there is none).

use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;

use crate::batch::{Batch, Offset, field};
use crate::disk::{Disk, DiskFile, OpenMode, read_full, replace_file};
use crate::error::IoFailure;
use crate::metrics::count;
use crate::partition::PartitionLog;
use crate::segment::index::{INDEX_INTERVAL_BYTES, IndexEntry, IndexItem, encode_index_item};
use crate::segment::{Segment, SegmentStage, SegmentState};
use crate::shared::Shared;

/// Suffix of the names of unfinished files.
pub(crate) const CLEAN_SUFFIX: &str = ".clean";
const STATE_NAME: &str = "compaction";
const STATE_MAGIC: &[u8; 8] = b"clvcomp1";
const STATE_BYTES: usize = 28;
/// Bytes that are buffered for one write.
const WRITE_BYTES: usize = 1 << 20;

/// How far compaction has come, kept across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactionCheckpoint {
    pub(crate) clean_end: Offset,
    pub(crate) horizon_ms: Option<i64>,
}

impl CompactionCheckpoint {
    fn encode(self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        bytes[..8].copy_from_slice(STATE_MAGIC);
        bytes[8..16].copy_from_slice(&self.clean_end.to_le_bytes());
        let horizon_ms = self.horizon_ms.unwrap_or(i64::MAX);
        bytes[16..24].copy_from_slice(&horizon_ms.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..24]);
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<CompactionCheckpoint> {
        let is_ours = bytes.len() == STATE_BYTES
            && bytes.starts_with(STATE_MAGIC)
            && u32::from_le_bytes(field(bytes, 24)) == crc32c::crc32c(&bytes[..24]);
        is_ours.then(|| CompactionCheckpoint {
            clean_end: u64::from_le_bytes(field(bytes, 8)),
            horizon_ms: Some(i64::from_le_bytes(field(bytes, 16))).filter(|it| *it != i64::MAX),
        })
    }

    pub(crate) fn path(dir: &str) -> String {
        format!("{dir}/{STATE_NAME}")
    }

    /// The stored checkpoint; the beginning of the partition if there is none or it cannot be read.
    pub(crate) fn load(disk: &dyn Disk, dir: &str) -> CompactionCheckpoint {
        let path = CompactionCheckpoint::path(dir);
        let mut bytes = [0; STATE_BYTES + 1];
        let read = disk.open(&path, OpenMode::Existing);
        let count = read.and_then(|file| read_full(&*file, &mut bytes, 0));
        let checkpoint = count
            .ok()
            .and_then(|count| CompactionCheckpoint::decode(&bytes[..count]));
        checkpoint.unwrap_or_default()
    }

    /// Stores the checkpoint durably.
    pub(crate) fn save(self, shared: &Shared, dir: &str) -> Result<(), IoFailure> {
        let path = CompactionCheckpoint::path(dir);
        count(&shared.counters.syncs, 1);
        let written = replace_file(&*shared.disk, dir, &path, &self.encode(), 0);
        written.map_err(|error| IoFailure::new("write", &path, &error))
    }
}

fn sync_dir(shared: &Shared, dir: &str) -> Result<(), IoFailure> {
    count(&shared.counters.syncs, 1);
    let sync = shared.disk.sync_dir(dir);
    sync.map_err(|error| IoFailure::new("sync", dir, &error))
}

/// The steps that are left once the cleaned segment has its final name.
pub(crate) struct SegmentReplacement {
    /// Path of the new segment's index, which may still have its temporary name.
    index_path: String,
    /// Files of the replaced segments, except those of the first, whose names the new segment has.
    leftovers: Vec<String>,
}

/// Writes the file of a cleaned segment.
pub(crate) struct CleanWriter {
    base: Offset,
    path: String,
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    /// Bytes of batches so far, including buffered ones.
    pub(crate) len: u64,
    entries: Vec<IndexEntry>,
    last_entry: u64,
    max_timestamp_ms: i64,
    has_producers: bool,
}

impl CleanWriter {
    pub(crate) fn create(shared: &Shared, first: &Segment) -> Result<CleanWriter, IoFailure> {
        let path = first.log_path() + CLEAN_SUFFIX;
        let fail = |error| IoFailure::new("create", &path, &error);
        let file = shared
            .disk
            .open(&path, OpenMode::OpenOrCreate)
            .map_err(fail)?;
        file.set_len(0).map_err(fail)?;
        Ok(CleanWriter {
            base: first.base,
            file,
            buffer: Vec::new(),
            len: 0,
            entries: Vec::new(),
            last_entry: 0,
            max_timestamp_ms: i64::MIN,
            has_producers: false,
            path,
        })
    }

    pub(crate) fn push(&mut self, batch: &Batch) -> Result<(), IoFailure> {
        if self.len - self.last_entry >= INDEX_INTERVAL_BYTES {
            self.last_entry = self.len;
            self.entries.push(IndexEntry {
                offset: batch.base_offset(),
                position: self.len,
                max_timestamp_ms: self.max_timestamp_ms,
            });
        }
        self.buffer.extend_from_slice(batch.bytes());
        self.len += batch.bytes().len() as u64;
        self.max_timestamp_ms = self.max_timestamp_ms.max(batch.max_timestamp_ms());
        self.has_producers |= batch.producer_id() >= 0;
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), IoFailure> {
        let position = self.len - self.buffer.len() as u64;
        let written = self
            .file
            .write_all_at(&[IoSlice::new(&self.buffer)], position);
        self.buffer.clear();
        written.map_err(|error| IoFailure::new("write to", &self.path, &error))
    }

    /// Makes the segment and its index durable under their temporary names.
    fn finish(&mut self, shared: &Shared, index_path: &str, end: Offset) -> Result<(), IoFailure> {
        self.flush()?;
        count(&shared.counters.syncs, 2);
        let sync = self.file.sync_data();
        sync.map_err(|error| IoFailure::new("sync", &self.path, &error))?;
        let footer = IndexEntry {
            offset: end,
            position: self.len,
            max_timestamp_ms: self.max_timestamp_ms,
        };
        let entries = self.entries.iter().map(|entry| IndexItem::Entry(*entry));
        let mut bytes = Vec::new();
        for item in entries.chain([IndexItem::Footer(footer)]) {
            bytes.extend_from_slice(&encode_index_item(self.base, item, self.has_producers));
        }
        let path = format!("{index_path}{CLEAN_SUFFIX}");
        let fail = |error| IoFailure::new("write", &path, &error);
        let index = shared
            .disk
            .open(&path, OpenMode::OpenOrCreate)
            .map_err(fail)?;
        index.set_len(bytes.len() as u64).map_err(fail)?;
        index
            .write_all_at(&[IoSlice::new(&bytes)], 0)
            .map_err(fail)?;
        index.sync_data().map_err(fail)
    }

    /// Removes the temporary file. If that fails, the next start removes it.
    pub(crate) fn discard(&self, shared: &Shared) {
        let _ = shared.disk.remove_file(&self.path);
    }

    fn into_segment(self, dir: &Arc<str>, end: Offset) -> Arc<Segment> {
        let entries = self.entries.len();
        let state = SegmentState {
            end,
            len: self.len,
            synced: self.len,
            max_timestamp_ms: self.max_timestamp_ms,
            first_timestamp_ms: i64::MAX,
            begun_ms: i64::MIN,
            stage: SegmentStage::Sealed,
            has_producers: self.has_producers,
            entries: Some((self.entries, entries)),
        };
        Segment::new(self.base, dir.clone(), state)
    }
}

impl PartitionLog {
    /// Replaces a run of sealed segments with a cleaned one. Returns `false`, and changes nothing,
    /// if the run was dropped or changed meanwhile.
    pub(crate) fn replace_segments(
        &self,
        old: &[Arc<Segment>],
        mut writer: CleanWriter,
    ) -> Result<bool, IoFailure> {
        let shared = &self.shared;
        let (Some(first), Some(last)) = (old.first(), old.last()) else {
            return Ok(false);
        };
        let (end, index_path) = (last.end(), first.index_path());
        if let Err(failure) = writer.finish(shared, &index_path, end) {
            writer.discard(shared);
            return Err(failure);
        }
        // The lock keeps retention from dropping segments meanwhile.
        let mut files = self.unfinished_replacement.lock();
        if !self.still_has_run(old) {
            let _ = shared
                .disk
                .remove_file(&format!("{index_path}{CLEAN_SUFFIX}"));
            writer.discard(shared);
            return Ok(false);
        }
        // Readers of the old segments need the open files, because their names will belong to other
        // files.
        for segment in old {
            segment.pin(shared)?;
        }
        let log_path = first.log_path();
        let fail = |path: &str, error: &std::io::Error| IoFailure::new("replace", path, error);
        match shared.disk.remove_file(&index_path) {
            // An earlier attempt has done this step.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(|error| fail(&index_path, &error))?,
        }
        // From here on a failure leaves the old segment without its index.
        sync_dir(shared, &self.dir)?;
        let renamed = shared.disk.rename(&writer.path, &log_path);
        renamed.map_err(|error| fail(&log_path, &error))?;
        // The name now belongs to the new file, whether or not that is durable.
        self.swap_segments(old, writer.into_segment(&self.dir, end));
        // Each index is removed before its log file: recovery reports an index without a log file
        // as lost messages.
        let paths = |segment: &Arc<Segment>| [segment.index_path(), segment.log_path()];
        *files = Some(SegmentReplacement {
            index_path,
            leftovers: old[1..].iter().flat_map(paths).collect(),
        });
        self.finish_replacement(&mut files)?;
        Ok(true)
    }

    /// Does the steps that are left once the cleaned segment has its final name. After a failure
    /// the replaced files stay, because the new name may not be durable. The next compaction or the
    /// next drop of segments tries again; otherwise the next start finishes it.
    pub(crate) fn finish_replacement(
        &self,
        files: &mut Option<SegmentReplacement>,
    ) -> Result<(), IoFailure> {
        let shared = &self.shared;
        let Some(replacement) = files.as_ref() else {
            return Ok(());
        };
        let index_path = &replacement.index_path;
        sync_dir(shared, &self.dir)?;
        match shared
            .disk
            .rename(&format!("{index_path}{CLEAN_SUFFIX}"), index_path)
        {
            // An earlier attempt has done this step.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            renamed => renamed.map_err(|error| IoFailure::new("replace", index_path, &error))?,
        }
        sync_dir(shared, &self.dir)?;
        for path in &replacement.leftovers {
            match shared.disk.remove_file(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.map_err(|error| IoFailure::new("remove", path, &error))?,
            }
        }
        *files = None;
        Ok(())
    }

    /// Whether the partition still has these segments, one after the other.
    fn still_has_run(&self, run: &[Arc<Segment>]) -> bool {
        let state = self.state.lock();
        let Some(first) = run.first().filter(|_| !state.is_closed) else {
            return false;
        };
        let mut segments = state.segments.iter();
        let has_first = segments.by_ref().any(|segment| Arc::ptr_eq(segment, first));
        has_first
            && run[1..].iter().all(|segment| {
                segments
                    .next()
                    .is_some_and(|other| Arc::ptr_eq(segment, other))
            })
    }

    fn swap_segments(&self, old: &[Arc<Segment>], fresh: Arc<Segment>) {
        let mut state = self.state.lock();
        let is_old = |segment: &Arc<Segment>| old.iter().any(|other| Arc::ptr_eq(segment, other));
        if let Some(at) = state.segments.iter().position(is_old) {
            state.segments.splice(at..at + old.len(), [fresh.clone()]);
        }
        drop(state);
        fresh.admit_index(&self.shared);
        // Evicts all batches up to the segment's end, not only those of the replaced segments: if
        // older batches stayed in the tail cache, a read from there would pass over the records
        // that compaction has kept.
        self.evict_tail(fresh.end());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn the_checkpoint_survives_the_round_trip() {
        for horizon_ms in [None, Some(7), Some(-1)] {
            let checkpoint = CompactionCheckpoint {
                clean_end: 1 << 40,
                horizon_ms,
            };
            let mut bytes = checkpoint.encode();
            assert_eq!(CompactionCheckpoint::decode(&bytes), Some(checkpoint));
            bytes[9] ^= 1;
            assert_eq!(CompactionCheckpoint::decode(&bytes), None);
            assert_eq!(CompactionCheckpoint::decode(&bytes[..20]), None);
        }
    }
}
