//! Writes batches to files: chooses the segment, reserves space, issues the vectored write.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::batch::{BATCH_HEADER_BYTES, Batch};
use crate::disk::{BLOCK_BYTES, OpenMode};
use crate::error::{AppendError, IoFailure};
use crate::housekeeping::{Chore, UNSYNCED_BYTES_MAX};
use crate::metrics::count;
use crate::partition::{PartitionLog, topic_dir};
use crate::segment::{Segment, SegmentStage, SegmentState, create_index};
use crate::topic_files::topic_file;

/// Bytes of the first reservation in a segment: small, so that small topics use little disk space.
const RESERVE_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the largest reservation. Each one doubles the file up to this size.
const RESERVE_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of batches in one vectored write: the buffers that Linux takes in one call
/// (1024), less one for the padding after the batches.
const BATCHES_MAX: usize = 1023;
/// The source of the padding after the last batch of a write.
static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// Writes to the active segment of a partition.
#[derive(Default)]
pub(crate) struct SegmentWriter {
    pub(crate) active: Option<Arc<Segment>>,
    /// Position of the next batch in the active file, in bytes.
    pub(crate) position: u64,
    /// Bytes of the active file for which space is reserved.
    pub(crate) reserved: u64,
    /// Whether the file's blocks may have been written before (`prepared.rs`). Then each write is
    /// padded with zeros to the end of a block: if it changed only a part of a block that is not in
    /// the page cache, the kernel would have to read the block first, on the thread that appends.
    pub(crate) pads_blocks: bool,
    /// Whether the partition's folder exists.
    pub(crate) has_dir: bool,
}

/// The outcome of a write.
pub(crate) struct WriteOutcome {
    /// Number of batches that were written, counted from the first.
    pub(crate) count: usize,
    /// The error of the first batch that was not written.
    pub(crate) error: Option<AppendError>,
}

impl SegmentWriter {
    /// Writes batches in order, into as many segments as necessary.
    pub(crate) fn write(
        &mut self,
        partition: &Arc<PartitionLog>,
        batches: &[Batch],
    ) -> WriteOutcome {
        let mut written = 0;
        while written < batches.len() {
            match self.write_some(partition, &batches[written..]) {
                Ok(count) => written += count,
                Err(error) => {
                    return WriteOutcome {
                        count: written,
                        error: Some(error),
                    };
                }
            }
        }
        WriteOutcome {
            count: written,
            error: None,
        }
    }

    /// Writes at least one batch, and up to as many as fit into one segment and one system call.
    fn write_some(
        &mut self,
        partition: &Arc<PartitionLog>,
        batches: &[Batch],
    ) -> Result<usize, AppendError> {
        let shared = &partition.shared;
        let segment = self.segment_for(partition, &batches[0])?;
        let limit = partition.segment_bytes();
        let mut end = self.position;
        let mut taken = 0;
        let mut expected = batches[0].base_offset();
        invariant!(
            segment.end() <= expected,
            "a batch has a lower offset than the end of its segment"
        );
        for batch in batches.iter().take(BATCHES_MAX) {
            let next = end + batch.bytes().len() as u64;
            if taken > 0 && (next > limit || batch.base_offset() != expected) {
                break;
            }
            end = next;
            expected = batch.end_offset();
            taken += 1;
        }
        let batches = &batches[..taken];
        self.reserve(partition, &segment, end)?;
        invariant!(
            end <= self.reserved,
            "a write ends after the reserved space of its file"
        );
        if self.position == 0 {
            create_index(shared, &segment.index_path());
        }
        let file = segment.file(shared)?;
        let padding = self.padding(end);
        let outcome = match batches {
            [batch] if padding.is_empty() => {
                file.write_all_at(&[IoSlice::new(batch.bytes())], self.position)
            }
            [batch] => {
                let buffers = [IoSlice::new(batch.bytes()), IoSlice::new(padding)];
                file.write_all_at(&buffers, self.position)
            }
            _ => {
                let buffers = batches.iter().map(|batch| batch.bytes().as_ref());
                let padding = Some(padding).filter(|padding| !padding.is_empty());
                let buffers: Vec<_> = buffers.chain(padding).map(IoSlice::new).collect();
                file.write_all_at(&buffers, self.position)
            }
        };
        count(&shared.counters.writes, 1);
        if let Err(error) = outcome {
            return Err(self.abandon_segment(partition, &segment, &error));
        }
        let bytes = end - self.position;
        count(&shared.counters.written_bytes, bytes);
        // Counted before the segment's length grows: a sync that sees the new length subtracts the
        // bytes again.
        let before = shared.counters.unsynced_bytes.fetch_add(bytes, Relaxed);
        if before / UNSYNCED_BYTES_MAX != (before + bytes) / UNSYNCED_BYTES_MAX {
            let _ = shared.queues.chores.push(Chore::SyncNow);
        }
        for batch in batches {
            segment.note_written(batch, self.position);
            self.position += batch.bytes().len() as u64;
        }
        Ok(taken)
    }

    /// The padding from position `end` to the end of its block; empty if the file needs none.
    fn padding(&self, end: u64) -> &'static [u8] {
        let bytes = end.next_multiple_of(BLOCK_BYTES) - end;
        if self.pads_blocks && end + bytes <= self.reserved {
            &ZEROS[..bytes as usize]
        } else {
            &[]
        }
    }

    /// The active segment. Begins a new one if there is none, if it is full or poisoned, or if the
    /// offsets were raised, because such a hole must be between segments.
    fn segment_for(
        &mut self,
        partition: &Arc<PartitionLog>,
        batch: &Batch,
    ) -> Result<Arc<Segment>, AppendError> {
        let next = self.position + batch.bytes().len() as u64;
        let full = self.position > 0
            && (next > partition.segment_bytes() || self.is_aged(partition, batch));
        match &self.active {
            Some(segment)
                if !full && !segment.is_poisoned() && !follows_raise(partition, segment, batch) =>
            {
                Ok(segment.clone())
            }
            _ => {
                self.roll(partition);
                Ok(self.begin(partition, batch.base_offset())?)
            }
        }
    }

    /// Whether the active segment is older than `segment_ms`: its age is the difference between the
    /// batch's timestamp and the segment's first one, as in Kafka.
    fn is_aged(&self, partition: &PartitionLog, batch: &Batch) -> bool {
        let segment_ms = partition.segment_ms();
        segment_ms != u64::MAX
            && self.active.as_ref().is_some_and(|segment| {
                let age_ms = batch
                    .max_timestamp_ms()
                    .saturating_sub(segment.first_timestamp_ms());
                u64::try_from(age_ms).is_ok_and(|age_ms| age_ms > segment_ms)
            })
    }

    /// Ends the active segment; the housekeeper seals it.
    pub(crate) fn roll(&mut self, partition: &Arc<PartitionLog>) {
        if let Some(segment) = self.active.take() {
            segment.set_stage(SegmentStage::Rolled);
            // Fails once the log is stopped; the next start seals the segment.
            let _ = partition
                .shared
                .queues
                .chores
                .push(Chore::Seal(partition.clone(), segment));
        }
    }

    /// Creates the file of a new active segment, or uses the one that was prepared. The index is
    /// created later, once space is reserved and before the first batch is written. In this order a
    /// kill never leaves an index without a log file, nor an index beside a log file without
    /// reserved space: recovery reports both as lost messages (`recovery.rs`).
    pub(crate) fn begin(
        &mut self,
        partition: &Arc<PartitionLog>,
        base: u64,
    ) -> Result<Arc<Segment>, IoFailure> {
        let shared = &partition.shared;
        let mut dirs = vec![partition.dir.to_string()];
        if !self.has_dir {
            let created = shared.disk.create_dir_all(&partition.dir);
            created.map_err(|error| IoFailure::new("create", &partition.dir, &error))?;
            self.has_dir = true;
            if shared.describe_new(partition.topic()) {
                dirs.push(topic_file(partition.topic()));
            }
            dirs.push(topic_dir(partition.topic()));
            dirs.push("topics".to_owned());
        }
        let fresh = SegmentState::fresh(base, shared.options.clock.now_ms());
        let segment = Segment::new(base, partition.dir.clone(), fresh);
        let path = segment.log_path();
        let prepared = partition.use_prepared(&path);
        if prepared.is_none() {
            let file = shared.disk.open(&path, OpenMode::CreateNew);
            let file = file.map_err(|error| IoFailure::new("create", &path, &error))?;
            segment.set_file(shared, file);
        }
        let mut state = partition.state.lock();
        state.segments.push(segment.clone());
        let folders = &mut state.unsynced_folders;
        dirs.into_iter().for_each(|dir| folders.note(dir));
        drop(state);
        self.active = Some(segment.clone());
        self.position = 0;
        self.reserved = prepared.unwrap_or(0);
        self.pads_blocks = prepared.is_some();
        Ok(segment)
    }

    /// Reserves space in the file up to position `end` and for one more batch header. Recovery
    /// reports a file as truncated if its last batch is not followed by space for a header
    /// (`recovery.rs`). If the disk is too full for the header, reserves up to `end` only.
    pub(crate) fn reserve(
        &mut self,
        partition: &PartitionLog,
        segment: &Arc<Segment>,
        end: u64,
    ) -> Result<(), AppendError> {
        if end + BATCH_HEADER_BYTES as u64 <= self.reserved {
            return Ok(());
        }
        let shared = &partition.shared;
        // On a nearly full disk, leave free space to other partitions.
        let above = shared.space.above_reserve() / 8;
        let step = self.reserved.clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
        let step = step.min(above.max(RESERVE_BYTES_MIN));
        let limit = partition.segment_bytes().max(RESERVE_BYTES_MIN);
        let with_step = (self.reserved + step).min(limit).max(end + BLOCK_BYTES);
        let file = segment.file(shared)?;
        for size in [with_step, end] {
            match file.allocate(size) {
                Ok(()) => {
                    self.reserved = self.reserved.max(size);
                    return Ok(());
                }
                Err(error) if is_disk_full(&error) => {}
                Err(error) => {
                    let path = segment.log_path();
                    return Err(IoFailure::new("reserve room in", &path, &error).into());
                }
            }
        }
        count(&shared.counters.storage_full, 1);
        shared.release_prepared();
        Err(AppendError::StorageFull {
            free_bytes: shared.space.free_bytes(),
        })
    }

    /// Ends the active segment after a failed write, so that no batch is appended to it any more.
    /// Truncates it to the batches that were written before; a failure to do so is ignored.
    fn abandon_segment(
        &mut self,
        partition: &Arc<PartitionLog>,
        segment: &Arc<Segment>,
        error: &io::Error,
    ) -> AppendError {
        let shared = &partition.shared;
        let path = segment.log_path();
        count(&shared.counters.write_errors, 1);
        tracing::error!(file = %path, position = self.position, %error, "write to the log failed");
        if let Ok(file) = segment.file(shared) {
            let _ = file.set_len(self.position);
        }
        self.roll(partition);
        if is_disk_full(error) {
            return AppendError::StorageFull {
                free_bytes: shared.space.free_bytes(),
            };
        }
        IoFailure::new("write to", &path, error).into()
    }
}

/// Whether the offsets were raised since the last write to this segment. (A failed append leaves a
/// hole, too, but begins no new segment: otherwise each failed append to a full disk would create
/// an empty file.)
fn follows_raise(partition: &PartitionLog, segment: &Segment, batch: &Batch) -> bool {
    let base = batch.base_offset();
    base > segment.end() && {
        let raised_to = partition.state.lock().offsets.last_hole().end;
        segment.end() < raised_to && raised_to <= base
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}
