//! The record batch: the one format on disk, in memory and (for Kafka clients) on the wire.
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
//! The CRC-32C covers everything from byte 21 on, so base offset and leader epoch can be patched
//! when the batch gets its place in a partition. Attributes: bits 0-2 compression (0 none, 1 gzip,
//! 2 snappy, 3 lz4, 4 zstd), bit 3 timestamp type (1 = the broker's append time), bit 4
//! transactional, bit 5 control, bit 6 delete horizon: the base timestamp is the time from which
//! compaction may remove the batch's tombstones.
//! Source: <https://kafka.apache.org/documentation/#recordbatch>.

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

/// How the records of a batch are compressed. The numbers are the format's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// Not at all.
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
    /// The offset behind its last record.
    pub(crate) end: Offset,
    /// Its records.
    pub(crate) count: u32,
}

/// How strict the record count is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// From a producer: offsets are dense.
    New,
    /// From our own files: compaction may have removed records.
    Stored,
}

impl Batch {
    /// Validates one ready-made batch of a producer: lengths, format 2, CRC-32C, codec, and that
    /// the record count equals the last offset delta + 1. The records themselves are not walked:
    /// see [`Batch::validate_records`].
    ///
    /// # Errors
    /// [`BatchError`] says what is wrong; `bytes` must be exactly one batch.
    pub fn parse(bytes: Bytes) -> Result<Batch, BatchError> {
        Batch::parse_as(bytes, Origin::New)
    }

    /// As [`Batch::parse`], for batches from our own files, which may hold fewer records than
    /// offsets.
    ///
    /// # Errors
    /// [`BatchError`] says what is wrong; `bytes` must be exactly one batch.
    pub fn parse_stored(bytes: Bytes) -> Result<Batch, BatchError> {
        Batch::parse_as(bytes, Origin::Stored)
    }

    fn parse_as(bytes: Bytes, origin: Origin) -> Result<Batch, BatchError> {
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
            Origin::New => count > 0 && count - 1 == last_offset_delta,
            Origin::Stored => {
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
        if origin == Origin::Stored
            && (base < 0 || base.checked_add(i64::from(last_offset_delta) + 1).is_none())
        {
            return Err(BatchError::BaseOffset(base));
        }
        Ok(Batch {
            base_offset: if origin == Origin::Stored {
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

    /// Total length in bytes that a batch header announces. Checks only length and format.
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

    /// Reads the header of a batch in one of our own files; `None` if it is none.
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

    /// The base offset that a header names. Panics when there are fewer bytes than a header.
    pub(crate) fn peek_base_offset(header: &[u8]) -> Offset {
        u64::from_be_bytes(field(header, 0))
    }

    /// The highest timestamp that a header names. Panics when there are fewer bytes than a header.
    pub(crate) fn peek_max_timestamp(header: &[u8]) -> i64 {
        i64::from_be_bytes(field(header, 35))
    }

    /// A batch of parts that a builder knows to be valid.
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

    /// Offset of the first record; 0 until the batch was appended.
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

    /// The timestamp to which the records' deltas are added, in milliseconds since 1970.
    pub fn base_timestamp_ms(&self) -> i64 {
        i64::from_be_bytes(field(&self.bytes, 27))
    }

    /// From that time to the latest of all records, in milliseconds; 0 if that is earlier.
    pub fn span_ms(&self) -> u64 {
        let span_ms = self
            .max_timestamp_ms
            .saturating_sub(self.base_timestamp_ms());
        u64::try_from(span_ms).unwrap_or_default()
    }

    /// Attribute bits; see the module's layout.
    pub fn attributes(&self) -> u16 {
        u16::from_be_bytes(field(&self.bytes, 21))
    }

    /// Highest offset delta within the batch.
    pub(crate) fn last_offset_delta(&self) -> u32 {
        self.last_offset_delta
    }

    /// The whole batch as it is stored.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How the records are compressed.
    pub fn codec(&self) -> Codec {
        match self.bytes[22] & 0x07 {
            0 => Codec::None,
            1 => Codec::Gzip,
            2 => Codec::Snappy,
            3 => Codec::Lz4,
            // No other number passes the parser.
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
    /// sets the attribute bit and the maximum timestamp, and computes the checksum anew. Copies
    /// the bytes only if somebody else holds them too.
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

    /// Bytes of the bodies, before it is appended; 0 if it is not from a [`BatchBuilder`].
    ///
    /// [`BatchBuilder`]: crate::BatchBuilder
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Walks the records of an uncompressed batch from the first one.
    pub fn records(&self) -> RecordCursor<'_> {
        RecordCursor::at(self, BATCH_HEADER_BYTES as u32)
    }

    /// The same batch with other bytes, whose header says the same.
    pub(crate) fn with_bytes(self, bytes: Bytes) -> Batch {
        Batch { bytes, ..self }
    }

    /// For whoever has changed the count in the header.
    pub(crate) fn set_count(&mut self, count: u32) {
        self.count = count;
    }

    /// Makes the bytes exclusively ours, copying them only if somebody else holds them too, so
    /// that [`Unplaced::place`] under the partition's lock is two stores.
    pub(crate) fn into_unplaced(self) -> Unplaced {
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
        Unplaced {
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

/// A batch whose bytes are ours alone and that has no place in a partition yet.
pub(crate) struct Unplaced {
    bytes: BytesMut,
    max_timestamp_ms: i64,
    last_offset_delta: u32,
    count: u32,
}

impl Unplaced {
    /// Gives the batch its offsets: patches base offset and leader epoch (always 0: one broker).
    pub(crate) fn place(mut self, base_offset: Offset) -> Batch {
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

/// Copies a fixed-size field; callers have checked that the header is complete.
#[inline]
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
