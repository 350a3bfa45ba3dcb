//! Samples of produced data: a small piece of a request is compressed now and then, to estimate how
//! well a producer's data compresses.
//!
//! Only requests that arrived in several socket reads are sampled: the size of a request that
//! arrives in one read costs no transfer time. Compressing a piece of 8 KB takes some 20 µs, at
//! most once a second for each connection.

use cloverleaf_log::{BATCH_HEADER_BYTES, lz4_len};

use super::{ProduceElement, walk};
use crate::apis::{self, Api};
use crate::frame::{self, SIZE_BYTES};

/// Minimum time between two samples of a connection, in microseconds.
const PAUSE_US: u64 = 1_000_000;

/// Maximum and minimum size of a piece in bytes. The ratio of a smaller piece says nothing.
const PIECE_BYTES_MAX: usize = 8 << 10;
const PIECE_BYTES_MIN: usize = 1 << 10;

/// Offset in a batch of the byte with the compression codec, and the codec's bits in it; 0:
/// uncompressed.
const CODEC_AT: usize = 22;
const CODEC_BITS: u8 = 0x07;

/// Decides when a connection is sampled.
#[derive(Debug, Default)]
pub(crate) struct CompressionSampler {
    due_us: u64,
}

/// The size of a sampled piece before and after compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompressionSample {
    pub(crate) bytes: u64,
    /// Size after compression. A piece of a compressed batch counts with its own size.
    pub(crate) compressed: u64,
}

impl CompressionSampler {
    /// Samples the request at the beginning of `input`, if it is a Produce and a sample is due.
    #[inline(never)]
    pub(crate) fn sample(&mut self, input: &[u8], now_us: u64) -> Option<CompressionSample> {
        if now_us < self.due_us {
            return None;
        }
        let sample = CompressionSample::of(first_batch(input)?, now_us)?;
        self.due_us = now_us + PAUSE_US;
        Some(sample)
    }
}

impl CompressionSample {
    /// Compresses a piece from anywhere in the batch: its beginning may differ from the rest.
    /// `seed` chooses the place.
    fn of(batch: &[u8], seed: u64) -> Option<CompressionSample> {
        let codec = batch.get(CODEC_AT)? & CODEC_BITS;
        let records = batch.get(BATCH_HEADER_BYTES..)?;
        let count = records.len().min(PIECE_BYTES_MAX);
        if count < PIECE_BYTES_MIN {
            return None;
        }
        let places = (records.len() - count + 1) as u64;
        let start = (seed % places) as usize;
        let piece = &records[start..start + count];
        let compressed = match codec {
            0 => lz4_len(piece).min(count),
            _ => count,
        };
        Some(CompressionSample {
            bytes: count as u64,
            compressed: compressed as u64,
        })
    }
}

/// The first batch of the request at the beginning of `input`, if it is a Produce.
fn first_batch(input: &[u8]) -> Option<&[u8]> {
    let size = frame::peek_size(input, usize::MAX).ok()??;
    let request = input.get(SIZE_BYTES..)?.get(..size)?;
    let start = frame::read_start(request).ok()?;
    let versions = apis::find(start.api_key)?;
    if versions.api != Api::Produce || !versions.serves(start.version) {
        return None;
    }
    let (header, body) = frame::read_header(request, versions).ok()?;
    let mut batch = None;
    walk(body, header.version, |_, element| {
        if let ProduceElement::Partition(_, Some(records)) = element {
            batch.get_or_insert(records);
        }
    })
    .ok()?;
    batch
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn batch(codec: u8, records: &[u8]) -> Vec<u8> {
        let mut batch = vec![0; BATCH_HEADER_BYTES];
        batch[CODEC_AT] = codec;
        batch.extend_from_slice(records);
        batch
    }

    #[test]
    fn text_compresses_and_compressed_data_does_not() {
        let text = "GET /orders/17 200 a line as others are\n".repeat(1000);
        for seed in [0, 1, 12_345_678] {
            let plain = CompressionSample::of(&batch(0, text.as_bytes()), seed).unwrap();
            assert_eq!(plain.bytes, PIECE_BYTES_MAX as u64);
            assert!(plain.compressed < plain.bytes / 4, "{plain:?}");
            let done = CompressionSample::of(&batch(4, text.as_bytes()), seed).unwrap();
            assert_eq!(done.bytes, done.compressed);
        }
    }

    #[test]
    fn noise_does_not_compress() {
        let mut state = 7u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let noise: Vec<u8> = (0..50_000).map(|_| next()).collect();
        let sample = CompressionSample::of(&batch(0, &noise), 99).unwrap();
        assert_eq!(sample.bytes, sample.compressed);
        assert_eq!(
            CompressionSample::of(&batch(0, &noise[..1000]), 0),
            None,
            "too little"
        );
        assert_eq!(CompressionSample::of(&noise[..22], 0), None);
    }
}
