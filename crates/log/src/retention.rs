//! What leaves the log.
//!
//! The log knows ages, sizes and segments; who has consumed what is known above it, which names the
//! segments to drop. Any sealed segment may go, not only the oldest: the hole is legal.
//!
//! The place of compaction is here, too: it will write a sealed segment anew with fewer records
//! under the same name (batches keep base offset, last offset delta and their records' offsets,
//! which is why [`crate::Batch::parse_stored`] allows fewer records than offsets), through a file
//! that is synced and then renamed over the old one, with a new index beside it.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::batch::{Batch, Offset};
use crate::error::{IoFailure, LogError};
use crate::metrics::count;
use crate::partition::{PartitionLog, tail_weight};
use crate::segment::Segment;

impl PartitionLog {
    /// Readers no longer see records before `offset`; segments that lie wholly before it are
    /// dropped. The offset itself is not persisted here: the caller persists it and sets it again
    /// after a start.
    ///
    /// # Errors
    /// A file could not be removed. Blocks on the disk.
    pub fn truncate_before(self: &Arc<Self>, offset: Offset) -> Result<u64, LogError> {
        let mut state = self.state.lock();
        let offset = offset.min(state.next_offset);
        state.logical_start = state.logical_start.max(offset);
        let gone: Vec<Offset> = state
            .segments
            .iter()
            .filter(|segment| segment.end() <= offset && segment.is_droppable())
            .map(|segment| segment.base)
            .collect();
        drop(state);
        self.drop_segments(&gone)
    }

    /// Drops old segments: those whose records are all older than `older_than_ms` (milliseconds
    /// since 1970), and the oldest while all together have more than `bytes_max` bytes. Returns the
    /// bytes freed. Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be removed.
    pub fn retain(
        self: &Arc<Self>,
        older_than_ms: Option<i64>,
        bytes_max: Option<u64>,
    ) -> Result<u64, LogError> {
        let segments = self.segments();
        let mut total: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let mut gone = Vec::new();
        for segment in segments.iter().take_while(|segment| segment.sealed) {
            let too_old = older_than_ms.is_some_and(|limit| segment.max_timestamp_ms < limit);
            let too_much = bytes_max.is_some_and(|limit| total > limit);
            if !too_old && !too_much {
                break;
            }
            total -= segment.bytes;
            gone.push(segment.base);
        }
        self.drop_segments(&gone)
    }

    /// Drops the segments with these base offsets; those that are not sealed, and unknown
    /// ones, are left alone.
    /// Returns the bytes freed. Blocks on the disk: for housekeeping, not for a network thread.
    ///
    /// The newest segment's name says which offsets were given away, so a fresh active segment is
    /// begun before the last segment goes, and its name is made durable first.
    ///
    /// # Errors
    /// A file could not be removed, or that fresh segment not be created.
    pub fn drop_segments(self: &Arc<Self>, bases: &[Offset]) -> Result<u64, LogError> {
        if bases.is_empty() {
            return Ok(0);
        }
        self.keep_a_name(bases)?;
        self.sync_names()?;
        let mut state = self.state.lock();
        let kept_name = state.segments.last().map_or(0, |segment| segment.base);
        let goes = |segment: &Arc<Segment>| {
            bases.contains(&segment.base) && segment.base < kept_name && segment.is_droppable()
        };
        let gone: Vec<Arc<Segment>> = state
            .segments
            .extract_if(.., |segment| goes(segment))
            .collect();
        let mut freed_tail = 0;
        let lies_in = |offset: Offset| {
            gone.iter()
                .any(|segment| segment.base <= offset && offset < segment.end())
        };
        state.tail.retain(|batch| {
            let keep = !lies_in(batch.base_offset());
            if !keep {
                freed_tail += tail_weight(batch);
            }
            keep
        });
        drop(state);
        self.shared.tail.discharge(freed_tail);
        let mut freed = 0;
        for segment in gone {
            // No sync of the file may be under way while it goes.
            let _one_at_a_time = segment.sync_lock.lock();
            remove(self, &segment.log_path())?;
            remove(self, &segment.index_path())?;
            freed += segment.len();
        }
        Ok(freed)
    }

    /// Begins a new segment if all there are would go.
    fn keep_a_name(self: &Arc<Self>, bases: &[Offset]) -> Result<(), LogError> {
        let mut state = self.state.lock();
        let newest_goes = state
            .segments
            .last()
            .is_some_and(|segment| segment.is_droppable() && bases.contains(&segment.base));
        // While somebody writes, a segment comes with the write.
        if !newest_goes || state.writing {
            return Ok(());
        }
        state.writing = true;
        // What is pending goes into it, or behind it.
        let next = state
            .pending
            .first()
            .map_or(state.next_offset, Batch::base_offset);
        drop(state);
        let mut writer = self.writer.lock();
        let begun = if writer.active.is_none() {
            writer.begin(self, next).err()
        } else {
            None
        };
        drop(writer);
        self.release_writer();
        if let Some(failure) = begun {
            return Err(failure.into());
        }
        Ok(())
    }

    /// Makes the names of the remaining segments durable before others go.
    fn sync_names(&self) -> Result<(), LogError> {
        let dirs = self.state.lock().unsynced_dirs.clone();
        for (dir, _) in &dirs {
            count(&self.shared.counters.syncs, 1);
            let sync = self.shared.disk.sync_dir(dir);
            sync.map_err(|error| IoFailure::new("sync", dir, &error))?;
        }
        self.state
            .lock()
            .unsynced_dirs
            .retain(|dir| !dirs.contains(dir));
        Ok(())
    }

    /// Ends the active segment, so that it can be dropped. An empty one stays.
    pub fn seal_active(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.active().is_none_or(|segment| segment.len() == 0) {
            return;
        }
        if state.writing {
            state.seal_requested = true;
            return;
        }
        state.writing = true;
        drop(state);
        self.writer.lock().roll(self);
        self.release_writer();
    }

    /// Gives the writer back and lets "log-writer" write what came meanwhile.
    fn release_writer(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.writing = false;
        let queue = !state.pending.is_empty() && !std::mem::replace(&mut state.write_queued, true);
        drop(state);
        if queue {
            self.queue_write();
        }
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
