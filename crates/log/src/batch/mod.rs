//! The record batch: the same format on the disk, in memory and, for Kafka clients, on the wire.
//!
//! Kafka's message format 2, big-endian:
//!
//! ```text
//!  byte  0        8            12            16    17    21         23                27
//!       +--------+------------+-------------+-----+-----+----------+-----------------+--
//!       | base   | batch      | partition   | mag | crc | attri-   | last offset     |
//!       | offset | length i32 | leader      | ic  | u32 | butes    | delta i32       |
//!       | i64    | (from 12)  | epoch i32   | =2  |     | i16      |                 |
//!       +--------+------------+-------------+-----+-----+----------+-----------------+--
//!        27          35         43          51         53         57         61
//!       +-----------+----------+-----------+----------+----------+----------+----------+
//!       | base time | max time | producer  | producer | base     | record   | records  |
//!       | i64 ms    | i64 ms   | id i64    | epoch    | sequence | count    |          |
//!       |           |          |           | i16      | i32      | i32      |          |
//!       +-----------+----------+-----------+----------+----------+----------+----------+
//! ```
//!
//! The CRC-32C covers all bytes from byte 21 on, so base offset and leader epoch can be set when
//! the batch is appended. Attributes: bits 0-2 compression (0 none, 1 gzip, 2 snappy, 3 lz4, 4
//! zstd), bit 3 timestamp type (1 = the broker's append time), bit 4 transactional, bit 5 control,
//! bit 6 delete horizon: the base timestamp is the time from which compaction may remove the
//! batch's tombstones. Source: <https://kafka.apache.org/documentation/#recordbatch>.

pub(crate) mod builder;
pub(crate) mod inflate;
pub(crate) mod record;
pub(crate) mod validate;
pub(crate) mod varint;

use bytes::{Bytes, BytesMut};

use crate::batch::record::RecordCursor;
use crate::error::BatchError;

/// Position of a record in its partition; 0-based, never reused.
pub type Offset = u64;

/// Bytes before the first record.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Bytes that the batch length field does not count: base offset and the field itself.
const LENGTH_OVERHEAD: usize = 12;
/// First byte that the checksum covers.
pub(crate) const CRC_FROM: usize = 21;

/// Compression of a batch's records. The numbers are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// Uncompressed.
    None = 0,
    /// RFC 1952.
    Gzip = 1,
    /// Google's snappy, raw or in the framing of the Java library.
    Snappy = 2,
    /// The LZ4 frame format.
    Lz4 = 3,
    /// Zstandard.
    Zstd = 4,
}

/// A validated record batch. Cloning is cheap: the bytes are shared.
#[derive(Clone)]
pub struct Batch {
    bytes: Bytes,
    base_offset: Offset,
    max_timestamp_ms: i64,
    last_offset_delta: u32,
    count: u32,
    body_bytes: u32,
}

/// The header of a stored batch, unchecked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeekedHeader {
    pub(crate) len_bytes: usize,
    pub(crate) base: Offset,
    /// Offset after the last record.
    pub(crate) end: Offset,
    /// Number of records.
    pub(crate) count: u32,
}

/// The source of a batch, which decides how the record count is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchOrigin {
    /// From a producer: offsets are dense.
    New,
    /// From our own files: compaction may have removed records.
    Stored,
}

impl Batch {
    /// Validates one complete batch of a producer: lengths, format 2, CRC-32C, codec, and that the
    /// record count equals the last offset delta + 1. Does not walk the records: see
    /// [`Batch::validate_records`].
    ///
    /// # Errors
    /// `bytes` is not exactly one valid batch.
    pub fn parse(bytes: Bytes) -> Result<Batch, BatchError> {
        Batch::parse_as(bytes, BatchOrigin::New)
    }

    /// As [`Batch::parse`], for batches from segment files, which may have fewer records than
    /// offsets after compaction.
    ///
    /// # Errors
    /// `bytes` is not exactly one valid batch.
    pub fn parse_stored(bytes: Bytes) -> Result<Batch, BatchError> {
        Batch::parse_as(bytes, BatchOrigin::Stored)
    }

    fn parse_as(bytes: Bytes, origin: BatchOrigin) -> Result<Batch, BatchError> {
        let declared = Batch::peek_len(&bytes)?;
        if declared != bytes.len() {
            return Err(BatchError::Length {
                declared: declared as u64,
                actual: bytes.len() as u64,
            });
        }
        let stored = u32::from_be_bytes(field(&bytes, 17));
        let computed = crc32c::crc32c(&bytes[CRC_FROM..]);
        if stored != computed {
            return Err(BatchError::Checksum { stored, computed });
        }
        let codec = bytes[22] & 0x07;
        if codec > 4 {
            return Err(BatchError::Codec(codec));
        }
        let count = i32::from_be_bytes(field(&bytes, 57));
        let last_offset_delta = i32::from_be_bytes(field(&bytes, 23));
        let fits = match origin {
            BatchOrigin::New => count > 0 && count - 1 == last_offset_delta,
            BatchOrigin::Stored => {
                count >= 0 && last_offset_delta >= 0 && count - 1 <= last_offset_delta
            }
        };
        if !fits {
            return Err(BatchError::Count {
                count,
                last_offset_delta,
            });
        }
        let base = i64::from_be_bytes(field(&bytes, 0));
        if origin == BatchOrigin::Stored
            && (base < 0 || base.checked_add(i64::from(last_offset_delta) + 1).is_none())
        {
            return Err(BatchError::BaseOffset(base));
        }
        Ok(Batch {
            base_offset: if origin == BatchOrigin::Stored {
                base as u64
            } else {
                0
            },
            max_timestamp_ms: i64::from_be_bytes(field(&bytes, 35)),
            last_offset_delta: last_offset_delta as u32,
            count: count as u32,
            body_bytes: 0,
            bytes,
        })
    }

    /// Total length of a batch in bytes, according to its header. Checks only length and format.
    ///
    /// # Errors
    /// Fewer bytes than a header, an impossible length, another message format.
    pub fn peek_len(header: &[u8]) -> Result<usize, BatchError> {
        if header.len() < BATCH_HEADER_BYTES {
            return Err(BatchError::Length {
                declared: BATCH_HEADER_BYTES as u64,
                actual: header.len() as u64,
            });
        }
        let magic = header[16] as i8;
        if magic != 2 {
            return Err(BatchError::Magic(magic));
        }
        let length = i32::from_be_bytes(field(header, 8));
        let total = usize::try_from(length).unwrap_or(0) + LENGTH_OVERHEAD;
        if total < BATCH_HEADER_BYTES {
            return Err(BatchError::Length {
                declared: BATCH_HEADER_BYTES as u64,
                actual: total as u64,
            });
        }
        Ok(total)
    }

    /// Reads the header of a batch in a segment file; `None` if it is invalid.
    pub(crate) fn peek_header(header: &[u8; BATCH_HEADER_BYTES]) -> Option<PeekedHeader> {
        let len_bytes = Batch::peek_len(header).ok()?;
        let base = Batch::peek_base_offset(header);
        let last_offset_delta = u32::from_be_bytes(field(header, 23));
        Some(PeekedHeader {
            len_bytes,
            base,
            end: base.checked_add(u64::from(last_offset_delta) + 1)?,
            count: u32::from_be_bytes(field(header, 57)),
        })
    }

    /// The base offset in a header. Panics if there are fewer bytes than a header.
    pub(crate) fn peek_base_offset(header: &[u8]) -> Offset {
        u64::from_be_bytes(field(header, 0))
    }

    /// The highest timestamp in a header. Panics if there are fewer bytes than a header.
    pub(crate) fn peek_max_timestamp(header: &[u8]) -> i64 {
        i64::from_be_bytes(field(header, 35))
    }

    /// A batch whose bytes a builder has made, so that they need no validation.
    pub(crate) fn from_builder(
        bytes: Bytes,
        count: u32,
        max_timestamp_ms: i64,
        body_bytes: u32,
    ) -> Batch {
        let last_offset_delta = count.saturating_sub(1);
        Batch {
            bytes,
            base_offset: 0,
            max_timestamp_ms,
            last_offset_delta,
            count,
            body_bytes,
        }
    }

    /// Offset of the first record; 0 until the batch is appended.
    pub fn base_offset(&self) -> Offset {
        self.base_offset
    }

    /// Offset after the last record.
    pub fn end_offset(&self) -> Offset {
        self.base_offset + u64::from(self.last_offset_delta) + 1
    }

    /// Number of records.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Highest timestamp of the records, in milliseconds since 1970.
    pub fn max_timestamp_ms(&self) -> i64 {
        self.max_timestamp_ms
    }

    /// The timestamp to which the records' deltas are relative, in milliseconds since 1970.
    pub fn base_timestamp_ms(&self) -> i64 {
        i64::from_be_bytes(field(&self.bytes, 27))
    }

    /// Milliseconds from the base timestamp to the highest timestamp; 0 if the highest is lower.
    pub fn span_ms(&self) -> u64 {
        let span_ms = self
            .max_timestamp_ms
            .saturating_sub(self.base_timestamp_ms());
        u64::try_from(span_ms).unwrap_or_default()
    }

    /// Attribute bits; see the layout in the module's documentation.
    pub fn attributes(&self) -> u16 {
        u16::from_be_bytes(field(&self.bytes, 21))
    }

    /// Highest offset delta within the batch.
    pub(crate) fn last_offset_delta(&self) -> u32 {
        self.last_offset_delta
    }

    /// The whole batch, header included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The compression of the records.
    pub fn codec(&self) -> Codec {
        match self.bytes[22] & 0x07 {
            0 => Codec::None,
            1 => Codec::Gzip,
            2 => Codec::Snappy,
            3 => Codec::Lz4,
            // The parser refuses all other numbers.
            _ => Codec::Zstd,
        }
    }

    /// Id of the idempotent producer; negative when there is none.
    #[inline]
    pub fn producer_id(&self) -> i64 {
        i64::from_be_bytes(field(&self.bytes, 43))
    }

    /// Epoch of the idempotent producer; -1 when there is none.
    pub fn producer_epoch(&self) -> i16 {
        i16::from_be_bytes(field(&self.bytes, 51))
    }

    /// The idempotent producer's sequence number of the first record; -1 when there is none. The
    /// number after `i32::MAX` is 0.
    pub fn base_sequence(&self) -> i32 {
        i32::from_be_bytes(field(&self.bytes, 53))
    }

    /// Whether the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.bytes[22] & 0x10 != 0
    }

    /// Whether the records are control records (ends of transactions), not messages.
    pub fn is_control(&self) -> bool {
        self.bytes[22] & 0x20 != 0
    }

    /// Whether the records have the broker's time instead of their producer's.
    pub fn has_append_time(&self) -> bool {
        self.bytes[22] & 0x08 != 0
    }

    /// Gives all records the broker's time (Kafka's `LogAppendTime`), in milliseconds since 1970:
    /// sets the attribute bit, the maximum timestamp and the checksum. Copies the bytes only if
    /// they are shared.
    #[must_use]
    pub fn stamp_append_time(self, unix_ms: i64) -> Batch {
        let mut bytes = match self.bytes.try_into_mut() {
            Ok(own) => own,
            Err(shared) => BytesMut::from(&shared[..]),
        };
        bytes[22] |= 0x08;
        bytes[35..43].copy_from_slice(&unix_ms.to_be_bytes());
        let crc = crc32c::crc32c(&bytes[CRC_FROM..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        Batch {
            bytes: bytes.freeze(),
            max_timestamp_ms: unix_ms,
            ..self
        }
    }

    /// Whether the records are compressed.
    pub fn is_compressed(&self) -> bool {
        self.bytes[22] & 0x07 != 0
    }

    /// Bytes of all message bodies; 0 once the batch is appended, or if it is not from a
    /// [`BatchBuilder`].
    ///
    /// [`BatchBuilder`]: crate::BatchBuilder
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// A cursor at the first record of an uncompressed batch.
    pub fn records(&self) -> RecordCursor<'_> {
        RecordCursor::at(self, BATCH_HEADER_BYTES as u32)
    }

    /// The same batch with other bytes, whose header has the same values.
    pub(crate) fn with_bytes(self, bytes: Bytes) -> Batch {
        Batch { bytes, ..self }
    }

    /// Sets the record count, after the caller has changed it in the header.
    pub(crate) fn set_count(&mut self, count: u32) {
        self.count = count;
    }

    /// Takes exclusive ownership of the bytes; copies them only if they are shared. So
    /// [`UnassignedBatch::assign_offsets`], under the partition's lock, only sets two fields.
    pub(crate) fn into_unassigned(self) -> UnassignedBatch {
        let Batch {
            bytes,
            max_timestamp_ms,
            last_offset_delta,
            count,
            ..
        } = self;
        let bytes = match bytes.try_into_mut() {
            Ok(own) => own,
            Err(shared) => BytesMut::from(&shared[..]),
        };
        UnassignedBatch {
            bytes,
            max_timestamp_ms,
            last_offset_delta,
            count,
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Batch({}..{}, {} records, {} bytes)",
            self.base_offset,
            self.end_offset(),
            self.count,
            self.bytes.len()
        )
    }
}

/// A batch that has no offsets yet and whose bytes are not shared.
pub(crate) struct UnassignedBatch {
    bytes: BytesMut,
    max_timestamp_ms: i64,
    last_offset_delta: u32,
    count: u32,
}

impl UnassignedBatch {
    /// Assigns the batch's offsets: sets the base offset and the leader epoch (always 0: one
    /// broker).
    pub(crate) fn assign_offsets(mut self, base_offset: Offset) -> Batch {
        self.bytes[0..8].copy_from_slice(&base_offset.to_be_bytes());
        self.bytes[12..16].copy_from_slice(&[0; 4]);
        Batch {
            bytes: self.bytes.freeze(),
            base_offset,
            max_timestamp_ms: self.max_timestamp_ms,
            last_offset_delta: self.last_offset_delta,
            count: self.count,
            body_bytes: 0,
        }
    }
}

/// Copies a field of fixed size. Precondition: `bytes` is long enough.
#[inline]
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
