//! Zero-copy reads: batches that are sent from the segment's file to the socket (`sendfile`).
//!
//! The checksums of these batches are not verified while they are sent, so they must have been
//! verified before: a segment remembers the bytes that this process has written or verified. Bytes
//! that the kernel has dropped from the page cache since then count as not verified.

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset};
use crate::disk::{Descriptor, DiskFile};
use crate::metrics::count;
use crate::partition::PartitionLog;
use crate::partition::read::ReadSource;
use crate::segment::Segment;

/// A smaller range, in bytes, is not worth a system call of its own.
const STORED_BYTES_MIN: usize = 64 << 10;
/// A larger range, in bytes, saves nothing more and takes long to check.
const STORED_BYTES_MAX: usize = 4 << 20;
/// If the average batch has fewer bytes, reading the headers costs more than copying the batches.
const AVERAGE_BYTES_MIN: usize = 4 << 10;

/// A range of a file that consists of whole batches.
#[derive(Clone)]
pub struct StoredBatches {
    file: Descriptor,
    position: u64,
    bytes: usize,
    count: u64,
    end: Offset,
}

impl std::fmt::Debug for StoredBatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredBatches")
            .field("position", &self.position)
            .field("bytes", &self.bytes)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl StoredBatches {
    /// The file.
    pub fn file(&self) -> &Descriptor {
        &self.file
    }

    /// Position of the first batch, in bytes from the start of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of all batches.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Number of records in all batches.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Offset after the last record.
    pub fn end_offset(&self) -> Offset {
        self.end
    }
}

impl PartitionLog {
    /// Whole batches from offset `from` on, up to `bytes_max` bytes, that can be sent from the
    /// file: they are in the page cache, and their checksums were verified before. `None` if they
    /// are too few, or if they must be read with [`PartitionLog::read`] for another reason. Never
    /// waits for the disk.
    pub fn read_stored(&self, from: Offset, bytes_max: usize) -> Option<StoredBatches> {
        if bytes_max < STORED_BYTES_MIN {
            return None;
        }
        let source = self.state.lock().source(from, 0);
        let ReadSource::Segment(segment, from) = source else {
            return None;
        };
        // After a failed sync the page cache may differ from the disk.
        if segment.is_poisoned() {
            return None;
        }
        let file = segment.file(&self.shared).ok()?;
        let bytes_max = bytes_max.min(STORED_BYTES_MAX);
        let stored = walk_headers(&segment, &*file, from, bytes_max)?;
        if stored.bytes < STORED_BYTES_MIN || stored.bytes > bytes_max {
            return None;
        }
        if !file.is_in_memory(stored.position, stored.bytes) {
            segment.note_unchecked_from(stored.position);
            return None;
        }
        segment.set_hint(stored.end, stored.position + stored.bytes as u64);
        count(&self.shared.counters.stored_reads, 1);
        Some(stored)
    }
}

/// Walks the headers of the batches, from the one that contains offset `from` on.
fn walk_headers(
    segment: &Segment,
    file: &dyn DiskFile,
    from: Offset,
    bytes_max: usize,
) -> Option<StoredBatches> {
    let descriptor = file.descriptor()?;
    let mut position = segment.position_of(from)?;
    let checked = segment.checked_bytes();
    let within = segment.base..segment.end();
    let (mut headers, mut found) = (0, None::<StoredBatches>);
    while position < checked {
        let mut header = [0; BATCH_HEADER_BYTES];
        let read = file.read_at_nowait(&mut header, position);
        if !read.is_ok_and(|count| count == BATCH_HEADER_BYTES) {
            segment.note_unchecked_from(position);
            break;
        }
        headers += 1;
        let Some(batch) = Batch::peek_header(&header) else {
            break;
        };
        let next = position + batch.len_bytes as u64;
        if next > checked || batch.base < within.start || batch.end > within.end {
            break;
        }
        match &mut found {
            None if batch.end <= from => {}
            None => {
                found = Some(StoredBatches {
                    file: descriptor.clone(),
                    position,
                    bytes: batch.len_bytes,
                    count: u64::from(batch.count),
                    end: batch.end,
                });
            }
            Some(stored) if stored.bytes + batch.len_bytes > bytes_max => break,
            Some(stored) => {
                stored.bytes += batch.len_bytes;
                stored.count += u64::from(batch.count);
                stored.end = batch.end;
            }
        }
        let bytes = found.as_ref().map_or(0, |stored| stored.bytes);
        if headers * AVERAGE_BYTES_MIN > bytes + STORED_BYTES_MIN {
            break;
        }
        position = next;
    }
    found
}
