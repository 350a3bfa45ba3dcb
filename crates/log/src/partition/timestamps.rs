//! Finding records by their timestamps.

use std::sync::Arc;

use crate::batch::{Batch, Offset};
use crate::error::ReadError;
use crate::partition::PartitionLog;
use crate::partition::read::CHUNK_BYTES_MAX;
use crate::reader::wait_for_small;
use crate::segment::Segment;

/// Bytes up to which a batch is inflated to look at its records. It is enough for the largest batch
/// of a producer with an ordinary compression ratio; a larger batch is treated as one record.
const INFLATED_BYTES_MAX: usize = 64 << 20;

impl PartitionLog {
    /// The first record whose timestamp is at least `timestamp_ms`: its offset and timestamp.
    /// Blocks on the disk. If the batch cannot be inflated, the result is the batch's first offset
    /// and its highest timestamp.
    ///
    /// # Errors
    /// A file could not be opened or read.
    pub fn offset_for_timestamp(
        self: &Arc<Self>,
        timestamp_ms: i64,
    ) -> Result<Option<(Offset, i64)>, ReadError> {
        let mut from = self.offset_before_timestamp(timestamp_ms)?;
        loop {
            let batches = self.read_waiting(from, CHUNK_BYTES_MAX)?;
            if batches.is_empty() {
                return Ok(None);
            }
            for batch in batches {
                let visible = from.max(batch.base_offset());
                from = batch.end_offset();
                if batch.max_timestamp_ms() >= timestamp_ms
                    && let Some(found) = first_since(&batch, visible, timestamp_ms)
                {
                    return Ok(Some(found));
                }
            }
        }
    }

    /// Offset and timestamp of the record with the highest timestamp, of the first one if there are
    /// several; `None` if there is no record. Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be opened or read.
    pub fn max_timestamp(self: &Arc<Self>) -> Result<Option<(Offset, i64)>, ReadError> {
        let segments = self.segments();
        let newest = segments.iter().filter(|segment| segment.bytes > 0);
        let Some(highest) = newest.map(|segment| segment.max_timestamp_ms).max() else {
            return Ok(None);
        };
        if let Some(found) = self.offset_for_timestamp(highest)? {
            return Ok(Some(found));
        }
        // The batch with the highest timestamp was removed meanwhile: scan all remaining batches.
        let mut from = self.start_offset();
        let mut best: Option<(Offset, i64)> = None;
        loop {
            let batches = self.read_waiting(from, CHUNK_BYTES_MAX)?;
            if batches.is_empty() {
                return Ok(best);
            }
            for batch in batches {
                let visible = from.max(batch.base_offset());
                from = batch.end_offset();
                let known = best.map_or(i64::MIN, |(_, timestamp_ms)| timestamp_ms);
                if batch.max_timestamp_ms() > known {
                    best = highest_of(&batch, visible, known).or(best);
                }
            }
        }
    }

    /// An offset to scan from, according to the indexes: no record before it has a timestamp of
    /// `timestamp_ms` or later.
    fn offset_before_timestamp(self: &Arc<Self>, timestamp_ms: i64) -> Result<Offset, ReadError> {
        let state = self.state.lock();
        let matches = |segment: &&Arc<Segment>| segment.max_timestamp_ms() >= timestamp_ms;
        let Some(segment) = state.segments.iter().find(matches).cloned() else {
            return Ok(self.written_end());
        };
        let logical_start = state.offsets.logical_start();
        drop(state);
        self.load_index(&segment)?;
        let from = segment.with_index(|entries| {
            let after = entries.partition_point(|entry| entry.max_timestamp_ms < timestamp_ms);
            if after == 0 {
                segment.base
            } else {
                entries[after - 1].offset
            }
        });
        Ok(from.unwrap_or(segment.base).max(logical_start))
    }

    /// Loads the index of a segment into memory; waits for the disk.
    pub(crate) fn load_index(&self, segment: &Arc<Segment>) -> Result<(), ReadError> {
        if segment.with_index(|_| ()).is_some() {
            return Ok(());
        }
        let (of, shared) = (segment.clone(), self.shared.clone());
        wait_for_small(&self.shared, segment.index_path(), move || {
            of.load_index(&shared);
        })
    }
}

/// Calls `each` with the offset and timestamp of each record from offset `from` on, until it
/// returns `false`. Returns whether the batch could be inflated.
fn each_record(batch: &Batch, from: Offset, mut each: impl FnMut(Offset, i64) -> bool) -> bool {
    let Ok(inflated) = batch.inflate(INFLATED_BYTES_MAX) else {
        return false;
    };
    let mut cursor = inflated.records();
    while let Ok(Some((offset, record))) = cursor.next_record() {
        if offset >= from && !each(offset, record.timestamp_ms) {
            break;
        }
    }
    true
}

/// The first record from offset `from` on with a timestamp of `timestamp_ms` or later; offset
/// `from` and the batch's highest timestamp if the batch cannot be inflated.
fn first_since(batch: &Batch, from: Offset, timestamp_ms: i64) -> Option<(Offset, i64)> {
    let mut found = None;
    let walked = each_record(batch, from, |offset, record_ms| {
        found = (record_ms >= timestamp_ms).then_some((offset, record_ms));
        found.is_none()
    });
    if walked {
        return found;
    }
    Some((from, batch.max_timestamp_ms()))
}

/// The first record from offset `from` on with the highest timestamp above `above_ms`.
fn highest_of(batch: &Batch, from: Offset, above_ms: i64) -> Option<(Offset, i64)> {
    let mut best: Option<(Offset, i64)> = None;
    let walked = each_record(batch, from, |offset, record_ms| {
        if record_ms > best.map_or(above_ms, |(_, best_ms)| best_ms) {
            best = Some((offset, record_ms));
        }
        true
    });
    if walked {
        return best;
    }
    Some((from, batch.max_timestamp_ms()))
}
