//! The parts of Produce, Fetch and record batches that a benchmark needs.
//!
//! ```text
//! request:  size (i32) | API (i16) | version (i16) | number (i32) | client (string) | body
//! answer:   size (i32) | number (i32) | body
//! string:   size (i16; -1: none), bytes          bytes, array: size (i32), ...
//! batch:    base offset (i64) | size of what follows (i32) | leader epoch (i32) | 2 (i8)
//!           | CRC-32C of what follows (u32) | attributes (i16) | last offset delta (i32)
//!           | base time (i64) | last time (i64) | producer (i64, i16, i32) | records (i32) | ...
//! record:   size (varint) | attributes (i8) | time delta, offset delta (varint)
//!           | key: size (varint; -1: none), bytes | value: the same | headers (varint)
//! ```
//!
//! Source: Kafka's protocol guide; Produce version 7, Fetch version 11, which every broker since
//! Kafka 2.3 has, RecordBatch version 2.

use crate::reader::Reader;
use crate::wire::{Framing, WireError, put_varint, set_size};

/// The client id, which identifies this client in the broker's logs.
const CLIENT: &str = "cloverleaf-bench";
const PRODUCE: (i16, i16) = (0, 7);
const FETCH: (i16, i16) = (1, 11);
/// Bytes of a batch before its records.
const BATCH_HEAD_BYTES: usize = 61;
/// The first bytes of these, which the batch's size field does not count.
const BATCH_SIZE_FROM: usize = 12;
/// Offset of the checksum in a batch, and of the first byte that it covers.
const BATCH_CRC_AT: usize = 17;
const BATCH_CRC_FROM: usize = 21;
/// Time limit for the broker's wait for its replicas.
const TIMEOUT_MS: i32 = 30_000;
/// Bytes of the correlation id, the minimum that follows an answer's size.
const NUMBER_BYTES: usize = 4;
/// The bits of a batch's attributes that are its compression codec.
const CODEC_MASK: i16 = 7;

fn put_string(out: &mut Vec<u8>, text: &str) {
    let size = i16::try_from(text.len()).unwrap_or(i16::MAX);
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&text.as_bytes()[..size as usize]);
}

fn put_i32(out: &mut Vec<u8>, number: i32) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_zigzag(out: &mut Vec<u8>, number: i64) {
    put_varint(out, ((number << 1) ^ (number >> 63)) as u64);
}

/// Bytes of the zigzag varint of a number, which is not negative.
fn varint_bytes(number: u64) -> usize {
    let bits = 64 - (number << 1 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn put_head(out: &mut Vec<u8>, (api, version): (i16, i16), number: i32) {
    put_i32(out, 0);
    out.extend_from_slice(&api.to_be_bytes());
    out.extend_from_slice(&version.to_be_bytes());
    put_i32(out, number);
    put_string(out, CLIENT);
}

/// A Produce request with one batch, to which messages are being added.
#[derive(Debug)]
pub(super) struct ProduceRequest {
    start: usize,
    batch: usize,
    records: i32,
}

impl ProduceRequest {
    /// Begins a request after the bytes that `out` already has.
    pub(super) fn begin(
        out: &mut Vec<u8>,
        number: i32,
        acks: i16,
        (topic, partition): (&str, i32),
        now_ms: i64,
    ) -> ProduceRequest {
        let start = out.len();
        put_head(out, PRODUCE, number);
        // No transaction.
        out.extend_from_slice(&(-1i16).to_be_bytes());
        out.extend_from_slice(&acks.to_be_bytes());
        put_i32(out, TIMEOUT_MS);
        put_i32(out, 1);
        put_string(out, topic);
        put_i32(out, 1);
        put_i32(out, partition);
        put_i32(out, 0);
        let batch = out.len();
        out.extend_from_slice(&[0; BATCH_HEAD_BYTES]);
        let mut head = |at: usize, bytes: &[u8]| {
            out[batch + at..batch + at + bytes.len()].copy_from_slice(bytes);
        };
        head(12, &(-1i32).to_be_bytes());
        head(16, &[2]);
        head(27, &now_ms.to_be_bytes());
        head(35, &now_ms.to_be_bytes());
        // No idempotent producer.
        head(43, &[0xff; 14]);
        ProduceRequest {
            start,
            batch,
            records: 0,
        }
    }

    /// Adds a message of `bytes` bytes, which `fill` writes.
    #[inline]
    pub(super) fn push(
        &mut self,
        out: &mut Vec<u8>,
        bytes: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        let delta = self.records as u64;
        // 1 byte each: attributes, time delta, "no key", "no headers".
        let size = 4 + varint_bytes(delta) + varint_bytes(bytes as u64) + bytes;
        put_zigzag(out, size as i64);
        out.extend_from_slice(&[0, 0]);
        put_zigzag(out, delta as i64);
        put_zigzag(out, -1);
        put_zigzag(out, bytes as i64);
        fill(out);
        out.push(0);
        self.records += 1;
    }

    /// Completes the request: sets its sizes, counts and checksum.
    pub(super) fn end(self, out: &mut [u8]) {
        let (start, batch) = (self.start, self.batch);
        set_size(out, start);
        set_size(out, batch - 4);
        set_size(out, batch + BATCH_SIZE_FROM - 4);
        let head = &mut out[batch..];
        head[23..27].copy_from_slice(&(self.records - 1).to_be_bytes());
        head[57..61].copy_from_slice(&self.records.to_be_bytes());
        let crc = crc32c::crc32c(&head[BATCH_CRC_FROM..]);
        head[BATCH_CRC_AT..BATCH_CRC_FROM].copy_from_slice(&crc.to_be_bytes());
    }
}

/// Writes a Fetch request for these partitions, each with its offset.
pub(super) fn put_fetch(
    out: &mut Vec<u8>,
    number: i32,
    topic: &str,
    partitions: &[(i32, i64)],
    wait_ms: i32,
    (bytes_max, partition_bytes_max): (i32, i32),
) {
    let start = out.len();
    put_head(out, FETCH, number);
    let count = i32::try_from(partitions.len()).unwrap_or(i32::MAX);
    for field in [-1, wait_ms, 1, bytes_max] {
        put_i32(out, field);
    }
    // Isolation level "read uncommitted"; no fetch session.
    out.push(0);
    put_i32(out, 0);
    put_i32(out, -1);
    put_i32(out, 1);
    put_string(out, topic);
    put_i32(out, count);
    for (partition, offset) in partitions {
        put_i32(out, *partition);
        put_i32(out, -1);
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&(-1i64).to_be_bytes());
        put_i32(out, partition_bytes_max);
    }
    put_i32(out, 0);
    put_string(out, "");
    set_size(out, start);
}

impl<'b> Reader<'b> {
    fn string(&mut self) -> Option<&'b [u8]> {
        let size = self.i16()?;
        self.take(usize::try_from(size).unwrap_or(0))
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let size = self.i32()?;
        self.take(usize::try_from(size).unwrap_or(0))
    }

    /// Reads a zigzag varint: the lowest bit is the sign.
    #[inline]
    fn zigzag(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }
}

/// Splits a byte stream into the bodies of answers. The number is the maximum of an answer's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer(pub(super) usize);

impl Framing for Answer {
    type Frame<'f> = &'f [u8];

    fn first<'f>(&self, bytes: &'f [u8]) -> Result<Option<(&'f [u8], usize)>, WireError> {
        answer(bytes, self.0)
    }
}

/// The error of an answer that ends too early.
pub(super) fn cut_short() -> WireError {
    WireError::Protocol("it sent an answer that is cut short".to_owned())
}

/// The body of the first answer in these bytes, and the bytes of the whole answer with size and
/// correlation id. `None`: the answer is not complete yet.
///
/// # Errors Its size field says more than `most` bytes, or fewer than a correlation id has.
fn answer(bytes: &[u8], most: usize) -> Result<Option<(&[u8], usize)>, WireError> {
    let Some(size) = bytes.first_chunk() else {
        return Ok(None);
    };
    let said = i32::from_be_bytes(*size);
    let size = usize::try_from(said).ok().filter(|size| *size <= most);
    let Some(size) = size.filter(|size| *size >= NUMBER_BYTES) else {
        return Err(WireError::Protocol(format!(
            "it announced an answer of {said} bytes"
        )));
    };
    let whole = bytes.get(4..4 + size);
    Ok(whole.map(|whole| (&whole[NUMBER_BYTES..], 4 + size)))
}

/// The error code of a Produce answer for one partition; 0: none. `None`: the answer is cut short.
pub(super) fn produced(answer: &[u8]) -> Option<i16> {
    let mut fields = Reader(answer);
    fields.i32()?;
    fields.string()?;
    fields.i32()?;
    fields.i32()?;
    fields.i16()
}

/// Calls `each` with each partition of a Fetch answer: number, error code, batches. Returns the
/// error code of the whole answer; `None`: the answer is cut short.
pub(super) fn fetched<'b>(
    answer: &'b [u8],
    mut each: impl FnMut(i32, i16, &'b [u8]),
) -> Option<i16> {
    let mut fields = Reader(answer);
    fields.i32()?;
    let error = fields.i16()?;
    fields.i32()?;
    for _ in 0..fields.i32()? {
        fields.string()?;
        for _ in 0..fields.i32()? {
            let (partition, error) = (fields.i32()?, fields.i16()?);
            fields.take(24)?;
            // Skips the aborted transactions; -1: none.
            for _ in 0..fields.i32()? {
                fields.take(16)?;
            }
            fields.i32()?;
            each(partition, error, fields.bytes()?);
        }
    }
    Some(error)
}

/// Calls `each` with the value of each record from offset `from` on. Returns the offset after the
/// last record. An incomplete batch at the end is skipped: the next answer has it whole. `None`: a
/// batch is malformed or compressed.
#[inline]
pub(super) fn records<'b>(
    batches: &'b [u8],
    from: i64,
    mut each: impl FnMut(&'b [u8]),
) -> Option<i64> {
    let (mut rest, mut next) = (batches, from);
    while rest.len() >= BATCH_HEAD_BYTES {
        let mut head = Reader(rest);
        let (base, size) = (head.i64()?, usize::try_from(head.i32()?).ok()?);
        let Some((batch, behind)) = rest.split_at_checked(BATCH_SIZE_FROM + size) else {
            break;
        };
        rest = behind;
        let mut head = Reader(batch.get(BATCH_CRC_FROM..)?);
        let (attributes, last) = (head.i16()?, i64::from(head.i32()?));
        head.take(30)?;
        if attributes & CODEC_MASK != 0 {
            return None;
        }
        for _ in 0..head.i32()? {
            let size = usize::try_from(head.zigzag()?).ok()?;
            let mut record = Reader(head.take(size)?);
            record.take(1)?;
            record.zigzag()?;
            let offset = base.saturating_add(record.zigzag()?);
            let key = record.zigzag()?;
            record.take(usize::try_from(key).unwrap_or(0))?;
            let value = record.zigzag()?;
            let value = record.take(usize::try_from(value).unwrap_or(0))?;
            if offset >= from {
                each(value);
            }
        }
        next = next.max(base.saturating_add(last + 1));
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn batch(values: &[&[u8]]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        let mut request = ProduceRequest::begin(&mut out, 7, -1, ("t", 3), 1_000);
        for value in values {
            request.push(&mut out, value.len(), |out| out.extend_from_slice(value));
        }
        let from = request.batch;
        request.end(&mut out);
        let size = i32::from_be_bytes(*out[6..].first_chunk().unwrap());
        assert_eq!(size as usize, out.len() - 10);
        out.split_off(from)
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let long = [7; 300];
        let mut batches = batch(&[b"one", b"", &long]);
        let crc = u32::from_be_bytes(*batches[BATCH_CRC_AT..].first_chunk().unwrap());
        assert_eq!(crc, crc32c::crc32c(&batches[BATCH_CRC_FROM..]));
        batches[..8].copy_from_slice(&40i64.to_be_bytes());
        let whole = batches.len();
        batches.extend_from_within(..whole - 1);
        let mut values = Vec::new();
        let next = records(&batches, 41, |value| values.push(value.to_vec()));
        assert_eq!(next, Some(43));
        assert_eq!(values, [vec![], long.to_vec()]);
        // A compressed batch cannot be read.
        batches[BATCH_CRC_FROM + 1] = 4;
        assert_eq!(records(&batches, 0, |_| {}), None);
    }

    #[test]
    fn answers_are_found() {
        let bytes = [&[0, 0, 0, 6, 0, 0, 0, 1, 5, 6][..], &[0, 0]].concat();
        assert_eq!(answer(&bytes, 6).unwrap(), Some((&[5, 6][..], 10)));
        assert_eq!(answer(&bytes[..9], 6).unwrap(), None);
        assert_eq!(answer(&bytes[..3], 6).unwrap(), None);
        let mut produce = Vec::new();
        put_i32(&mut produce, 1);
        put_string(&mut produce, "t");
        put_i32(&mut produce, 1);
        put_i32(&mut produce, 3);
        produce.extend_from_slice(&7i16.to_be_bytes());
        assert_eq!(produced(&produce), Some(7));
    }

    #[test]
    fn a_size_that_cannot_be_is_not_waited_for() {
        for size in [7, i32::MAX, 3, -1, i32::MIN] {
            let error = answer(&size.to_be_bytes(), 6).unwrap_err().to_string();
            assert_eq!(error, format!("it announced an answer of {size} bytes"));
        }
    }

    proptest! {
        #[test]
        fn numbers_have_the_size_that_is_said(number in 0..i64::MAX / 2) {
            let mut out = Vec::new();
            put_zigzag(&mut out, number);
            prop_assert_eq!(out.len(), varint_bytes(number as u64));
            prop_assert_eq!(Reader(&out).zigzag(), Some(number));
            out.clear();
            put_zigzag(&mut out, -number);
            prop_assert_eq!(Reader(&out).zigzag(), Some(-number));
        }

        #[test]
        fn any_bytes_are_looked_at(bytes: Vec<u8>) {
            let _ = (answer(&bytes, 100), produced(&bytes));
            let _ = fetched(&bytes, |_, _, batches| {
                let _ = records(batches, 0, |_| {});
            });
            let _ = records(&bytes, 0, |_| {});
        }
    }
}
