//! Retention: drops segments.
//!
//! The log knows the ages and sizes of segments. The layer above knows which offsets were consumed,
//! and is asked about ranges of them. Any sealed segment may be dropped, not only the oldest, so
//! retention may leave holes in the offsets.
//!
//! Single records are removed by compaction (`compaction/mod.rs`).

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::Offset;
use crate::error::{IoFailure, LogError};
use crate::invariant::{begin_write, end_write};
use crate::metrics::count;
use crate::partition::PartitionLog;
use crate::segment::{Segment, create_index};

/// A fully consumed active segment with fewer bytes than this is not sealed: it is not worth a new
/// file.
const SEAL_BYTES_MIN: u64 = 1 << 20;

impl PartitionLog {
    /// Raises the log start offset to `offset`, or to the written end if that is lower, and drops
    /// the segments that are wholly before it. Returns the bytes freed. The log does not persist
    /// the offset: the caller does, and sets it again after a start.
    ///
    /// # Errors
    /// A file could not be removed. Blocks on the disk.
    pub fn truncate_before(self: &Arc<Self>, offset: Offset) -> Result<u64, LogError> {
        let mut state = self.state.lock();
        let offset = offset.min(self.written_end());
        state.offsets.raise_start(offset);
        let dropped: Vec<Offset> = state
            .segments
            .iter()
            .filter(|segment| segment.end() <= offset && segment.is_droppable())
            .map(|segment| segment.base)
            .collect();
        drop(state);
        self.drop_segments(&dropped)
    }

    /// Drops old segments: those whose records are all older than `older_than_ms` (milliseconds
    /// since 1970), and the oldest ones while all together have more than `bytes_max` bytes.
    /// Returns the bytes freed. Blocks on the disk. An active segment that is too old is sealed,
    /// and dropped by a later call.
    ///
    /// # Errors
    /// As [`PartitionLog::drop_segments`].
    pub fn retain(
        self: &Arc<Self>,
        older_than_ms: Option<i64>,
        bytes_max: Option<u64>,
    ) -> Result<u64, LogError> {
        let segments = self.segments();
        let mut total: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let mut dropped = Vec::new();
        for segment in segments.iter().take_while(|segment| segment.is_droppable) {
            let too_old = older_than_ms.is_some_and(|limit| segment.max_timestamp_ms < limit);
            let too_much = bytes_max.is_some_and(|limit| total > limit);
            if !too_old && !too_much {
                break;
            }
            total -= segment.bytes;
            dropped.push(segment.base);
        }
        if let (Some(limit), Some(active)) = (older_than_ms, segments.last())
            && active.is_active
            && active.max_timestamp_ms < limit
        {
            self.seal_active();
        }
        self.drop_segments(&dropped)
    }

    /// Drops each sealed segment for whose offsets `covers` returns `true` (they are not needed any
    /// more), except those with a record of `kept_since_ms` (milliseconds since 1970) or later.
    /// Returns the bytes freed. Blocks on the disk. If such a segment is active and not small, it
    /// is sealed, and dropped by a later call.
    ///
    /// `covers` is called only for segments that may be dropped, without a lock of the log.
    ///
    /// # Errors
    /// As [`PartitionLog::drop_segments`].
    pub fn drop_covered(
        self: &Arc<Self>,
        kept_since_ms: Option<i64>,
        mut covers: impl FnMut(Range<Offset>) -> bool,
    ) -> Result<u64, LogError> {
        let mut dropped = Vec::new();
        for segment in self.segments() {
            let may_drop =
                segment.is_droppable || (segment.is_active && segment.bytes >= SEAL_BYTES_MIN);
            let is_kept =
                kept_since_ms.is_some_and(|since_ms| segment.max_timestamp_ms >= since_ms);
            if !may_drop || is_kept || !covers(segment.base..segment.end) {
                continue;
            }
            if segment.is_droppable {
                dropped.push(segment.base)
            } else {
                self.seal_active()
            }
        }
        self.drop_segments(&dropped)
    }

    /// Drops the segments with these base offsets. Ignores unknown ones and those that are not
    /// sealed. Returns the bytes freed. Blocks on the disk, so it is for the housekeeping thread,
    /// not for a network thread.
    ///
    /// The newest segment's file name is its base offset, and proves after a restart that all lower
    /// offsets were assigned. So before the newest segment is dropped, a new active segment is
    /// begun and its name is made durable. If that fails (disk full), the newest segment stays and
    /// the others are dropped all the same. Segments with batches of idempotent producers stay
    /// while an earlier segment is poisoned by a failed sync, because the snapshot of the producers
    /// cannot cover them yet.
    ///
    /// # Errors
    /// A file could not be removed (the others are removed all the same), a folder could not be
    /// synced, or nothing was dropped because the new segment could not be created.
    pub fn drop_segments(self: &Arc<Self>, bases: &[Offset]) -> Result<u64, LogError> {
        if bases.is_empty() {
            return Ok(0);
        }
        let has_dropped_producers =
            |segment: &Arc<Segment>| bases.contains(&segment.base) && segment.has_producers();
        let mut covered = Offset::MAX;
        if self.state.lock().segments.iter().any(has_dropped_producers) {
            // The next start rebuilds the producers' state from the segments, so a snapshot must
            // contain it before they are dropped.
            covered = self.snapshot_before_drop(bases)?;
        }
        let successor = self.begin_successor(bases);
        self.sync_names()?;
        // Keeps compaction from replacing files meanwhile.
        let mut files = self.unfinished_replacement.lock();
        // Files that compaction has not removed yet contain records of these segments, and the next
        // start would find them.
        self.finish_replacement(&mut files)?;
        let mut state = self.state.lock();
        let newest_base = state.segments.last().map_or(0, |segment| segment.base);
        let is_to_drop = |segment: &Arc<Segment>| {
            let is_known = !segment.has_producers() || segment.end() <= covered;
            let is_named = bases.contains(&segment.base) && segment.base < newest_base;
            is_named && is_known && segment.is_droppable()
        };
        let dropped: Vec<Arc<Segment>> = state
            .segments
            .extract_if(.., |segment| is_to_drop(segment))
            .collect();
        // The tail cache's eviction queue still counts these batches until their turn comes
        // (`tail.rs`).
        state.recent.forget(&dropped);
        drop(state);
        if let Err(error) = successor {
            if dropped.is_empty() {
                return Err(error);
            }
            tracing::warn!(folder = %self.dir, %error, "the newest segment is not dropped yet");
        }
        let mut freed = 0;
        let mut outcome = Ok(());
        for segment in dropped {
            // No sync of the file may be running while it is removed.
            let _one_at_a_time = segment.sync_lock.lock();
            // The index is removed first: recovery reports an index without a log file as lost
            // messages.
            let removed = remove(self, &segment.index_path())
                .and_then(|()| remove(self, &segment.log_path()));
            match removed {
                Ok(()) => freed += segment.len(),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| freed)
    }

    /// Begins a new segment if the newest one is to be dropped, so that a file name still proves
    /// that all lower offsets were assigned.
    fn begin_successor(self: &Arc<Self>, bases: &[Offset]) -> Result<(), LogError> {
        let mut state = self.state.lock();
        let drops_newest = state
            .segments
            .last()
            .is_some_and(|segment| segment.is_droppable() && bases.contains(&segment.base));
        // A thread that writes now begins a new segment itself, because the newest one is sealed.
        if !drops_newest || state.writes.is_writing() {
            return Ok(());
        }
        state.writes.take_writer();
        drop(state);
        begin_write();
        // Pending batches are written to the new segment or to later ones. It begins at the written
        // end even if offsets were raised: so the written end is the same after the next start, and
        // readers at the end are still at the end.
        let next = self.written_end();
        let mut writer = self.writer.lock();
        let mut begun = None;
        if writer.active.is_none() {
            // Space is reserved because recovery reports a segment as truncated if it has an index
            // but no reserved space. On a full disk the segment gets neither space nor an index.
            match writer.begin(self, next) {
                Ok(segment) => {
                    if writer.reserve(self, &segment, 1).is_ok() {
                        create_index(&self.shared, &segment.index_path());
                    }
                }
                Err(failure) => begun = Some(failure),
            }
        }
        drop(writer);
        self.release_writer();
        if let Some(failure) = begun {
            return Err(failure.into());
        }
        Ok(())
    }

    /// Makes the names of the remaining segments durable before others are removed.
    fn sync_names(&self) -> Result<(), LogError> {
        let dirs = self.state.lock().unsynced_folders.list();
        for (dir, _) in &dirs {
            count(&self.shared.counters.syncs, 1);
            let sync = self.shared.sync_name(dir);
            sync.map_err(|error| IoFailure::new("sync", dir, &error))?;
        }
        self.state.lock().unsynced_folders.note_synced(&dirs);
        Ok(())
    }

    /// Ends the active segment if it is older than [`crate::PartitionOptions::segment_ms`] at
    /// `now_ms` (milliseconds since 1970): for partitions without appends. The age counts from the
    /// timestamp of the first batch, or from the creation of the segment if that is later.
    pub fn roll_aged(self: &Arc<Self>, now_ms: i64) {
        let segment_ms = self.segment_ms();
        if segment_ms == u64::MAX {
            return;
        }
        let active = self.state.lock().active().cloned();
        let is_aged = active.is_some_and(|segment| {
            let since_ms = segment.first_timestamp_ms().max(segment.begun_ms());
            let age_ms = now_ms.saturating_sub(since_ms);
            u64::try_from(age_ms).is_ok_and(|age_ms| age_ms > segment_ms)
        });
        if is_aged {
            self.seal_active();
        }
    }

    /// Forgets idempotent producers that have expired at `now_ms` (milliseconds since 1970): for
    /// partitions without appends.
    pub fn forget_silent_producers(&self, now_ms: i64) {
        self.state.lock().producers.expire(now_ms);
    }

    /// Ends the active segment, so that it can be dropped, unless it is empty.
    pub fn seal_active(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.active().is_none_or(|segment| segment.len() == 0) {
            return;
        }
        if state.writes.request_seal() {
            return;
        }
        state.writes.take_writer();
        drop(state);
        begin_write();
        self.writer.lock().roll(self);
        self.release_writer();
    }

    /// Releases the writer and lets "log-writer" write the batches that came meanwhile.
    fn release_writer(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.writes.release_writer();
        let queue = state.writes.mark_queued_if_due();
        drop(state);
        if queue {
            self.queue_write();
        }
        end_write();
    }
}

fn remove(partition: &PartitionLog, path: &str) -> Result<(), LogError> {
    match partition.shared.disk.remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(IoFailure::new("remove", path, &error).into())
        }
        _ => Ok(()),
    }
}
