//! The walk over a producer's records before they are stored: every one, so every nanosecond of it
//! is paid per message. It says what [`RecordCursor`](crate::RecordCursor) would say, and makes no
//! record of it.

use crate::batch::varint::{get_i32, get_i64};
use crate::batch::{BATCH_HEADER_BYTES, Batch};
use crate::error::BatchError;

/// The facts about all records of a batch that a topic may put limits on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordsSummary {
    /// Lowest timestamp of a record, in milliseconds since 1970; `i64::MAX` if there is none.
    pub earliest_ms: i64,
    /// Highest timestamp of a record, in milliseconds since 1970; `i64::MIN` if there is none.
    pub latest_ms: i64,
    /// Records that have no key.
    pub without_key: u32,
    /// Bytes of their bodies.
    pub body_bytes: u64,
}

impl Batch {
    /// Walks all records of an uncompressed batch and checks that each is well formed, that their
    /// offsets are dense and that there are as many as the header says.
    ///
    /// # Errors
    /// The position of the first malformed record, or that the batch is compressed: the reader that
    /// inflates it checks it.
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
            // A batch's length has 31 bits.
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
struct Walked {
    timestamp_delta: i64,
    has_key: bool,
    body_bytes: usize,
    /// First byte after it.
    end: usize,
}

/// The record at `position`, if it is well formed and has this offset delta.
#[inline]
fn walk_record(bytes: &[u8], position: usize, offset_delta: u32) -> Option<Walked> {
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
        // The name of a header is not null.
        skip_nullable(record, &mut at)??;
        skip_nullable(record, &mut at)?;
    }
    (at == end).then_some(Walked {
        timestamp_delta,
        has_key,
        body_bytes,
        end,
    })
}

/// Steps over a length and that many bytes; says how many there were, and `None` for the length -1,
/// which is null.
#[inline]
fn skip_nullable(bytes: &[u8], at: &mut usize) -> Option<Option<usize>> {
    let length = get_i32(bytes, at)?;
    if length < 0 {
        return (length == -1).then_some(None);
    }
    *at = at.checked_add(length as usize)?;
    (*at <= bytes.len()).then_some(Some(length as usize))
}
