//! Borrowed views of the records in a batch. Malformed bytes cause an error, never a panic, an
//! allocation or a read beyond the batch.

use crate::batch::varint::{get_i32, get_i64};
use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset, field};
use crate::error::BatchError;

/// One message, borrowed from its batch.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The record's key, if it has one.
    pub key: Option<&'a [u8]>,
    /// The message body; `None` is Kafka's tombstone.
    pub value: Option<&'a [u8]>,
    /// Name and value pairs.
    pub headers: Headers<'a>,
}

/// The headers of a record, parsed while they are iterated.
///
/// The iterator ends early at a malformed header; [`Headers::is_well_formed`] finds such a list.
#[derive(Clone, Debug, Default)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    left: u32,
}

impl<'a> Headers<'a> {
    /// Number of headers that are left, according to the record's count.
    pub fn len(&self) -> usize {
        self.left as usize
    }

    /// Whether no header is left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Value of the first header with this name; the inner option is `None` for a header without a
    /// value.
    pub fn value_of(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.clone()
            .find(|(candidate, _)| *candidate == name)
            .map(|(_, value)| value)
    }

    /// Whether all headers can be parsed and no byte follows them.
    pub fn is_well_formed(&self) -> bool {
        let mut rest = self.clone();
        while rest.left > 0 {
            if rest.next().is_none() {
                return false;
            }
        }
        rest.bytes.is_empty()
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let mut at = 0;
        let name = take_nullable(self.bytes, &mut at)??;
        let value = take_nullable(self.bytes, &mut at)?;
        self.left -= 1;
        self.bytes = &self.bytes[at..];
        Some((name, value))
    }
}

/// Reads a length and that many bytes. Outer `None`: malformed; inner `None`: null (length -1).
#[inline]
fn take_nullable<'a>(bytes: &'a [u8], at: &mut usize) -> Option<Option<&'a [u8]>> {
    let len = get_i32(bytes, at)?;
    if len < 0 {
        return (len == -1).then_some(None);
    }
    let end = at.checked_add(len as usize)?;
    let slice = bytes.get(*at..end)?;
    *at = end;
    Some(Some(slice))
}

/// Walks the records of an uncompressed batch. [`RecordCursor::at`] resumes at a saved position, so
/// that a delivery can refer to a run of records by batch and position.
#[derive(Clone, Debug)]
pub struct RecordCursor<'a> {
    bytes: &'a [u8],
    position: usize,
    base_offset: Offset,
    last_offset_delta: u32,
}

/// The beginning of a record, which reading and skipping it both need.
struct RecordFrame {
    offset: Offset,
    timestamp_delta: i64,
    /// Position of the key length.
    body: usize,
    /// Position after the record.
    end: usize,
}

impl<'a> RecordCursor<'a> {
    /// A cursor at a position that [`RecordCursor::position`] returned for the same batch.
    pub fn at(batch: &'a Batch, position: u32) -> RecordCursor<'a> {
        RecordCursor {
            bytes: batch.bytes(),
            position: (position as usize).max(BATCH_HEADER_BYTES),
            base_offset: batch.base_offset(),
            last_offset_delta: batch.last_offset_delta(),
        }
    }

    /// Byte position of the next record within its batch.
    pub fn position(&self) -> u32 {
        self.position as u32
    }

    /// The next record with its offset; `None` after the last one.
    ///
    /// # Errors
    /// The batch is compressed, or the record is malformed. The cursor stays where it is.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<(Offset, Record<'a>)>, BatchError> {
        let Some(frame) = self.frame()? else {
            return Ok(None);
        };
        let body = &self.bytes[..frame.end];
        let malformed = BatchError::Record {
            position: self.position(),
        };
        let mut at = frame.body;
        let key = take_nullable(body, &mut at).ok_or(malformed)?;
        let value = take_nullable(body, &mut at).ok_or(malformed)?;
        let count = get_i32(body, &mut at).ok_or(malformed)?;
        let bytes = &body[at..];
        // A header takes at least two bytes, so a larger count is malformed.
        let left = u32::try_from(count).map_err(|_| malformed)?;
        if left as usize > bytes.len() / 2 {
            return Err(malformed);
        }
        self.position = frame.end;
        let timestamp_ms = self.timestamp(frame.timestamp_delta);
        let record = Record {
            timestamp_ms,
            key,
            value,
            headers: Headers { bytes, left },
        };
        Ok(Some((frame.offset, record)))
    }

    /// Skips the next record. Returns its offset and its size in bytes, length prefix included.
    /// Reads only the numbers before the key.
    ///
    /// # Errors
    /// As [`RecordCursor::next_record`].
    #[inline]
    pub fn skip_record(&mut self) -> Result<Option<(Offset, u32)>, BatchError> {
        let Some(frame) = self.frame()? else {
            return Ok(None);
        };
        let size = (frame.end - self.position) as u32;
        self.position = frame.end;
        Ok(Some((frame.offset, size)))
    }

    #[inline]
    fn frame(&self) -> Result<Option<RecordFrame>, BatchError> {
        if self.position >= self.bytes.len() {
            return Ok(None);
        }
        if self.bytes[22] & 0x07 != 0 {
            return Err(BatchError::Compressed);
        }
        let malformed = BatchError::Record {
            position: self.position(),
        };
        let mut at = self.position;
        let length = get_i32(self.bytes, &mut at).ok_or(malformed)?;
        let length = usize::try_from(length).map_err(|_| malformed)?;
        let end = at.checked_add(length).ok_or(malformed)?;
        let body = self.bytes.get(..end).ok_or(malformed)?;
        // Attributes: one byte, unused by the format.
        at += 1;
        let timestamp_delta = get_i64(body, &mut at).ok_or(malformed)?;
        let delta = get_i32(body, &mut at).ok_or(malformed)?;
        let delta = u32::try_from(delta).map_err(|_| malformed)?;
        if delta > self.last_offset_delta {
            return Err(malformed);
        }
        let offset = self.base_offset + u64::from(delta);
        Ok(Some(RecordFrame {
            offset,
            timestamp_delta,
            body: at,
            end,
        }))
    }

    fn timestamp(&self, delta: i64) -> i64 {
        // Bit 3: the append time in the header replaces the producer's timestamp.
        if self.bytes[22] & 0x08 != 0 {
            return i64::from_be_bytes(field(self.bytes, 35));
        }
        i64::from_be_bytes(field(self.bytes, 27)).wrapping_add(delta)
    }
}
