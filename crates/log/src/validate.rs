//! The walk over a producer's records before they are stored: every one, so every nanosecond of it
//! is paid per message. It says what [`RecordCursor`](crate::RecordCursor) would say, and makes no
//! record of it.

use crate::batch::{BATCH_HEADER_BYTES, Batch};
use crate::error::BatchError;
use crate::varint::{get_i32, get_i64};

impl Batch {
    /// Walks all records of an uncompressed batch and checks that each is well formed, that their
    /// offsets are dense and that there are as many as the header says. A compressed batch passes:
    /// who inflates it checks it.
    ///
    /// # Errors
    /// The position of the first malformed record.
    pub fn validate_records(&self) -> Result<(), BatchError> {
        if self.is_compressed() {
            return Ok(());
        }
        let bytes = &self.bytes()[..];
        let mut position = BATCH_HEADER_BYTES;
        let mut count = 0;
        while position < bytes.len() {
            // A batch's length has 31 bits.
            let malformed = BatchError::Record {
                position: position as u32,
            };
            if count > self.last_offset_delta() {
                return Err(malformed);
            }
            position = record_end(bytes, position, count).ok_or(malformed)?;
            count += 1;
        }
        if count != self.count() {
            return Err(BatchError::Record {
                position: position as u32,
            });
        }
        Ok(())
    }
}

/// Where the record at `position` ends, if it is well formed and has this offset delta.
#[inline]
fn record_end(bytes: &[u8], position: usize, offset_delta: u32) -> Option<usize> {
    let mut at = position;
    let length = usize::try_from(small(bytes, &mut at)?).ok()?;
    let end = at.checked_add(length)?;
    let record = bytes.get(..end)?;
    // Attributes: one byte, unused by the format.
    at += 1;
    get_i64(record, &mut at)?;
    if u32::try_from(small(record, &mut at)?).ok()? != offset_delta {
        return None;
    }
    skip(record, &mut at, true)?;
    skip(record, &mut at, true)?;
    let headers = u32::try_from(small(record, &mut at)?).ok()?;
    for _ in 0..headers {
        skip(record, &mut at, false)?;
        skip(record, &mut at, true)?;
    }
    (at == end).then_some(end)
}

/// Steps over a length and that many bytes, or over the length -1 where that is allowed.
#[inline]
fn skip(bytes: &[u8], at: &mut usize, may_be_null: bool) -> Option<()> {
    let length = small(bytes, at)?;
    if length < 0 {
        return (may_be_null && length == -1).then_some(());
    }
    *at = at.checked_add(length as usize)?;
    (*at <= bytes.len()).then_some(())
}

/// As [`get_i32`], quick for what takes one or two bytes.
#[inline]
fn small(bytes: &[u8], at: &mut usize) -> Option<i32> {
    let first = i32::from(*bytes.get(*at)?);
    if first < 0x80 {
        *at += 1;
        return Some((first >> 1) ^ -(first & 1));
    }
    if let Some(second) = bytes.get(*at + 1)
        && *second < 0x80
    {
        *at += 2;
        let folded = (first & 0x7f) | (i32::from(*second) << 7);
        return Some((folded >> 1) ^ -(folded & 1));
    }
    get_i32(bytes, at)
}
