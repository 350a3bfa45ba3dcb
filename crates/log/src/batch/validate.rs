//! Validates all records of a producer's batch before it is stored. This is on the hot path, once
//! per message, so it makes the same checks as [`RecordCursor`](crate::RecordCursor) without
//! building a record.

use crate::batch::varint::{get_i32, get_i64};
use crate::batch::{BATCH_HEADER_BYTES, Batch};
use crate::error::BatchError;

/// Facts about the records of a batch, for the limits of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordsSummary {
    /// Lowest timestamp of a record, in milliseconds since 1970; `i64::MAX` if there is none.
    pub earliest_ms: i64,
    /// Highest timestamp of a record, in milliseconds since 1970; `i64::MIN` if there is none.
    pub latest_ms: i64,
    /// Number of records without a key.
    pub without_key: u32,
    /// Bytes of all message bodies.
    pub body_bytes: u64,
}

impl Batch {
    /// Checks that all records of an uncompressed batch are well formed, that their offsets are
    /// consecutive, and that their number is that in the header.
    ///
    /// # Errors
    /// The position of the first malformed record; or the batch is compressed ([`Batch::inflate`]
    /// checks its records).
    pub fn validate_records(&self) -> Result<RecordsSummary, BatchError> {
        if self.is_compressed() {
            return Err(BatchError::Compressed);
        }
        let bytes = &self.bytes()[..];
        let base_ms = self.base_timestamp_ms();
        let mut position = BATCH_HEADER_BYTES;
        let mut count = 0;
        let mut summary = RecordsSummary {
            earliest_ms: i64::MAX,
            latest_ms: i64::MIN,
            without_key: 0,
            body_bytes: 0,
        };
        while position < bytes.len() {
            // Fits in u32: a batch's length has 31 bits.
            let malformed = BatchError::Record {
                position: position as u32,
            };
            if count > self.last_offset_delta() {
                return Err(malformed);
            }
            let walked = walk_record(bytes, position, count).ok_or(malformed)?;
            let timestamp_ms = base_ms.wrapping_add(walked.timestamp_delta);
            summary.earliest_ms = summary.earliest_ms.min(timestamp_ms);
            summary.latest_ms = summary.latest_ms.max(timestamp_ms);
            summary.without_key += u32::from(!walked.has_key);
            summary.body_bytes += walked.body_bytes as u64;
            position = walked.end;
            count += 1;
        }
        if count != self.count() {
            return Err(BatchError::Record {
                position: position as u32,
            });
        }
        Ok(summary)
    }
}

/// A well-formed record.
struct WalkedRecord {
    timestamp_delta: i64,
    has_key: bool,
    body_bytes: usize,
    /// Position after the record.
    end: usize,
}

/// Walks the record at `position`; `None` if it is malformed or has another offset delta.
#[inline]
fn walk_record(bytes: &[u8], position: usize, offset_delta: u32) -> Option<WalkedRecord> {
    let mut at = position;
    let length = usize::try_from(get_i32(bytes, &mut at)?).ok()?;
    let end = at.checked_add(length)?;
    let record = bytes.get(..end)?;
    // Attributes: one byte, unused by the format.
    at += 1;
    let timestamp_delta = get_i64(record, &mut at)?;
    if u32::try_from(get_i32(record, &mut at)?).ok()? != offset_delta {
        return None;
    }
    let has_key = skip_nullable(record, &mut at)?.is_some();
    let body_bytes = skip_nullable(record, &mut at)?.unwrap_or(0);
    let headers = u32::try_from(get_i32(record, &mut at)?).ok()?;
    for _ in 0..headers {
        // The name of a header must not be null.
        skip_nullable(record, &mut at)??;
        skip_nullable(record, &mut at)?;
    }
    (at == end).then_some(WalkedRecord {
        timestamp_delta,
        has_key,
        body_bytes,
        end,
    })
}

/// Skips a length and that many bytes. Returns the length, with an inner `None` for null (length
/// -1). Outer `None`: malformed.
#[inline]
fn skip_nullable(bytes: &[u8], at: &mut usize) -> Option<Option<usize>> {
    let length = get_i32(bytes, at)?;
    if length < 0 {
        return (length == -1).then_some(None);
    }
    *at = at.checked_add(length as usize)?;
    (*at <= bytes.len()).then_some(Some(length as usize))
}
