//! Builds record batches from single messages. This is on the hot path of all protocols except
//! Kafka, whose batches arrive complete.

use bytes::Bytes;

use crate::batch::varint::{encoded_len, put, zigzag};
use crate::batch::{BATCH_HEADER_BYTES, Batch, CRC_FROM};

/// A record header: name and value.
pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

/// Buffer size for the numbers before a record's key or value, in bytes: length 5, attributes 1,
/// timestamp delta 10, offset delta 5, key length 5 to 10, value length 5 to 10, rounded up.
const PREFIX_BYTES: usize = 56;

/// Encodes messages straight into the bytes of an uncompressed batch with producer timestamps.
///
/// The layout of one record (all integers are zigzag varints):
///
/// ```text
/// length | attributes u8 = 0 | timestamp delta | offset delta | key length (-1: none) | key
///        | value length (-1: none) | value | header count | headers
/// header: name length | name | value length (-1: none) | value
/// ```
///
/// `push` allocates only if the capacity is used up. The append refuses a batch that is larger than
/// `LogOptions::batch_bytes_max`.
#[derive(Debug)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
    count: u32,
    body_bytes: usize,
}

impl BatchBuilder {
    /// An empty builder with capacity for `bytes` bytes of records. `timestamp_ms` is the base
    /// timestamp, in milliseconds since 1970.
    pub fn with_capacity(bytes: usize, timestamp_ms: i64) -> BatchBuilder {
        let mut buffer = Vec::with_capacity(BATCH_HEADER_BYTES + bytes);
        buffer.resize(BATCH_HEADER_BYTES, 0);
        // No idempotent producer: id, epoch and sequence are -1.
        buffer[43..57].copy_from_slice(&[0xff; 14]);
        BatchBuilder {
            bytes: buffer,
            base_timestamp_ms: timestamp_ms,
            max_timestamp_ms: timestamp_ms,
            count: 0,
            body_bytes: 0,
        }
    }

    /// Adds a record with the base timestamp.
    #[inline]
    pub fn push(&mut self, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) {
        let bytes = value.map(<[u8]>::len);
        let write = |out: &mut Vec<u8>| out.extend_from_slice(value.unwrap_or_default());
        self.encode(0, key, bytes, write, headers);
    }

    /// Adds a record with the base timestamp, whose value is in several pieces.
    pub fn push_pieces<'v>(
        &mut self,
        key: Option<&[u8]>,
        value: impl Iterator<Item = &'v [u8]> + Clone,
        headers: &[Header<'_>],
    ) {
        let bytes = value.clone().map(<[u8]>::len).sum();
        let write = |out: &mut Vec<u8>| value.for_each(|piece| out.extend_from_slice(piece));
        self.encode(0, key, Some(bytes), write, headers);
    }

    /// Adds a record with its own timestamp, in milliseconds since 1970.
    pub fn push_at(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) {
        self.max_timestamp_ms = if self.count == 0 {
            timestamp_ms
        } else {
            self.max_timestamp_ms.max(timestamp_ms)
        };
        let delta = timestamp_ms.wrapping_sub(self.base_timestamp_ms);
        let bytes = value.map(<[u8]>::len);
        let write = |out: &mut Vec<u8>| out.extend_from_slice(value.unwrap_or_default());
        self.encode(zigzag(delta), key, bytes, write, headers);
    }

    #[inline]
    fn encode(
        &mut self,
        timestamp_delta: u64,
        key: Option<&[u8]>,
        value_bytes: Option<usize>,
        write_value: impl FnOnce(&mut Vec<u8>),
        headers: &[Header<'_>],
    ) {
        let offset_delta = zigzag(i64::from(self.count));
        let key_len = length_prefix(key);
        let value_len = value_bytes.map_or(zigzag(-1), |bytes| zigzag(bytes as i64));
        let value_bytes = value_bytes.unwrap_or(0);
        self.body_bytes += value_bytes;
        let body = 1
            + encoded_len(timestamp_delta)
            + encoded_len(offset_delta)
            + encoded_len(key_len)
            + key.map_or(0, <[u8]>::len)
            + encoded_len(value_len)
            + value_bytes
            + headers_len(headers);
        let mut prefix = [0u8; PREFIX_BYTES];
        let mut at = put(&mut prefix, 0, zigzag(body as i64));
        at += 1;
        at = put(&mut prefix, at, timestamp_delta);
        at = put(&mut prefix, at, offset_delta);
        at = put(&mut prefix, at, key_len);
        self.bytes.reserve(at + 10 + body);
        if let Some(key) = key {
            self.bytes.extend_from_slice(&prefix[..at]);
            self.bytes.extend_from_slice(key);
            at = 0;
        }
        at = put(&mut prefix, at, value_len);
        self.bytes.extend_from_slice(&prefix[..at]);
        write_value(&mut self.bytes);
        if headers.is_empty() {
            self.bytes.push(0);
        } else {
            self.encode_headers(headers);
        }
        self.count += 1;
    }

    /// A function of its own, so that the common case without headers stays small.
    #[cold]
    fn encode_headers(&mut self, headers: &[Header<'_>]) {
        let mut number = [0u8; PREFIX_BYTES];
        let at = put(&mut number, 0, zigzag(headers.len() as i64));
        self.bytes.extend_from_slice(&number[..at]);
        for (name, value) in headers {
            let at = put(&mut number, 0, zigzag(name.len() as i64));
            self.bytes.extend_from_slice(&number[..at]);
            self.bytes.extend_from_slice(name);
            let at = put(&mut number, 0, length_prefix(*value));
            self.bytes.extend_from_slice(&number[..at]);
            self.bytes.extend_from_slice(value.unwrap_or_default());
        }
    }

    /// Sets the idempotent producer: its id, its epoch, and the sequence number of the first
    /// record.
    #[must_use]
    pub fn with_producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> BatchBuilder {
        self.bytes[43..51].copy_from_slice(&id.to_be_bytes());
        self.bytes[51..53].copy_from_slice(&epoch.to_be_bytes());
        self.bytes[53..57].copy_from_slice(&base_sequence.to_be_bytes());
        self
    }

    /// Number of records so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the batch so far, header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no record was added yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Fills in the header and the CRC-32C. The base offset stays 0 until the batch is appended.
    ///
    /// Finishing an empty builder is a programming error (a debug assertion).
    pub fn finish(mut self) -> Batch {
        debug_assert!(self.count > 0, "a batch holds at least one record");
        let length = (self.bytes.len() - 12) as i32;
        let header = &mut self.bytes[..BATCH_HEADER_BYTES];
        header[8..12].copy_from_slice(&length.to_be_bytes());
        header[16] = 2;
        header[23..27].copy_from_slice(&self.count.saturating_sub(1).to_be_bytes());
        header[27..35].copy_from_slice(&self.base_timestamp_ms.to_be_bytes());
        header[35..43].copy_from_slice(&self.max_timestamp_ms.to_be_bytes());
        header[57..61].copy_from_slice(&self.count.to_be_bytes());
        let crc = crc32c::crc32c(&self.bytes[CRC_FROM..]);
        self.bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        // The tail cache counts the length, not the capacity, so a large spare capacity must be
        // released.
        if self.bytes.capacity() - self.bytes.len() > self.bytes.len() / 4 + 1024 {
            self.bytes.shrink_to_fit();
        }
        // A larger batch than 2^31 bytes is refused by the append, so the saturated value is never
        // used.
        let body_bytes = u32::try_from(self.body_bytes).unwrap_or(u32::MAX);
        let bytes = Bytes::from(self.bytes);
        Batch::from_builder(bytes, self.count, self.max_timestamp_ms, body_bytes)
    }
}

#[inline]
fn length_prefix(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(zigzag(-1), |bytes| zigzag(bytes.len() as i64))
}

#[inline]
fn headers_len(headers: &[Header<'_>]) -> usize {
    if headers.is_empty() {
        return 1;
    }
    let mut total = encoded_len(zigzag(headers.len() as i64));
    for (name, value) in headers {
        total += encoded_len(zigzag(name.len() as i64)) + name.len();
        total += encoded_len(length_prefix(*value)) + value.map_or(0, <[u8]>::len);
    }
    total
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn layout_is_byte_for_byte_as_kafka_documents_it() {
        let mut builder = BatchBuilder::with_capacity(64, 1_000);
        builder.push(None, Some(b"hi"), &[]);
        builder.push_at(1_005, Some(b"k"), None, &[(b"n", Some(b"v")), (b"m", None)]);
        let batch = builder.finish();
        let bytes = batch.bytes();
        assert_eq!(&bytes[0..8], &[0; 8]);
        assert_eq!(bytes[8..12], ((bytes.len() - 12) as i32).to_be_bytes());
        assert_eq!(bytes[16], 2);
        assert_eq!(bytes[21..23], [0, 0]);
        assert_eq!(bytes[23..27], 1i32.to_be_bytes());
        assert_eq!(bytes[27..35], 1_000i64.to_be_bytes());
        assert_eq!(bytes[35..43], 1_005i64.to_be_bytes());
        assert_eq!(bytes[43..57], [0xff; 14]);
        assert_eq!(bytes[57..61], 2i32.to_be_bytes());
        let first = [16, 0, 0, 0, 1, 4, b'h', b'i', 0];
        let second = [28, 0, 10, 2, 2, b'k', 1, 4, 2, b'n', 2, b'v', 2, b'm', 1];
        assert_eq!(bytes[61..70], first);
        assert_eq!(bytes[70..], second);
        assert!(Batch::parse(bytes.clone()).is_ok());
    }

    #[test]
    fn a_value_in_pieces_is_the_same_record() {
        let headers: [Header<'_>; 1] = [(b"n", Some(b"v"))];
        for cuts in [&[][..], &[0], &[1], &[1, 1, 5], &[3, 9]] {
            let value = b"a value";
            let mut from = 0;
            let mut pieces = Vec::new();
            for cut in cuts.iter().copied().chain([value.len()]) {
                let cut = cut.min(value.len());
                pieces.push(&value[from..cut]);
                from = cut;
            }
            let mut whole = BatchBuilder::with_capacity(64, 1_000);
            whole.push(Some(b"k"), Some(value), &headers);
            let mut cut = BatchBuilder::with_capacity(64, 1_000);
            cut.push_pieces(Some(b"k"), pieces.iter().copied(), &headers);
            assert_eq!(whole.finish().bytes(), cut.finish().bytes());
        }
    }

    #[test]
    fn spare_capacity_is_released() {
        let mut builder = BatchBuilder::with_capacity(1 << 20, 0);
        builder.push(None, Some(&[7; 100]), &[]);
        let batch = builder.finish();
        assert!(batch.bytes().len() < 200);
        assert_eq!(batch.count(), 1);
        assert_eq!(batch.end_offset(), 1);
    }
}
