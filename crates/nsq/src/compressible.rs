//! Measures how well the messages of a producer would compress, on a small sample once a second.
//!
//! Only commands that arrive in several reads are sampled: if a command arrives whole, its size
//! costs no waiting. NSQ compresses the connection rather than each message, so a sample may
//! consist of many small commands from several reads. Compressing a sample of 8 KB takes about 20
//! µs.

use cloverleaf_log::lz4_len;

/// Time between two samples of a connection, and the longest time to collect one.
const SAMPLE_INTERVAL_US: u64 = 1_000_000;

/// Maximum and minimum bytes of a sample. Fewer bytes say nothing about the stream.
const SAMPLE_BYTES_MAX: usize = 8 << 10;
const SAMPLE_BYTES_MIN: usize = 1 << 10;

/// Collects samples of the bytes that one connection publishes.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// The bytes collected so far; the memory is freed when the sample is complete.
    piece: Vec<u8>,
    /// When the first bytes of `piece` came.
    since_us: u64,
    due_us: u64,
}

/// Bytes of a sample, before and after compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) bytes: u64,
    pub(crate) compressed: u64,
}

impl Sampler {
    /// Adds complete publish commands to the sample, if one is due. Returns the sample once it is
    /// full, or with the first commands after a second.
    #[inline(never)]
    pub(crate) fn add(&mut self, commands: &[u8], now_us: u64) -> Option<Sample> {
        if now_us < self.due_us {
            return None;
        }
        if self.piece.is_empty() {
            self.since_us = now_us;
        }
        let room = SAMPLE_BYTES_MAX - self.piece.len();
        self.piece
            .extend_from_slice(&commands[..commands.len().min(room)]);
        let bytes = self.piece.len();
        let is_old = now_us >= self.since_us + SAMPLE_INTERVAL_US;
        if bytes < SAMPLE_BYTES_MAX && !is_old {
            return None;
        }
        let piece = std::mem::take(&mut self.piece);
        self.due_us = now_us + SAMPLE_INTERVAL_US;
        (bytes >= SAMPLE_BYTES_MIN).then(|| Sample {
            bytes: bytes as u64,
            compressed: lz4_len(&piece).min(bytes) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const TEXT: &str = "PUB orders\n....{\"order\":17,\"state\":\"paid\",\"currency\":\"EUR\"}";

    #[test]
    fn small_commands_of_many_reads_are_one_piece() {
        let mut sampler = Sampler::default();
        let samples: Vec<_> = (0..5_000)
            .filter_map(|read| sampler.add(TEXT.as_bytes(), 1 + read * 1_000))
            .collect();
        // One sample a second, each of the maximum size.
        assert_eq!(samples.len(), 5);
        for sample in samples {
            assert_eq!(sample.bytes, SAMPLE_BYTES_MAX as u64);
            assert!(sample.compressed < sample.bytes / 4, "{sample:?}");
        }
        assert_eq!(sampler.piece.capacity(), 0);
    }

    #[test]
    fn a_large_command_is_sampled_in_part() {
        let mut sampler = Sampler::default();
        let large = TEXT.repeat(10_000);
        let sample = sampler.add(large.as_bytes(), 1).unwrap();
        assert_eq!(sample.bytes, SAMPLE_BYTES_MAX as u64);
        assert_eq!(sampler.add(large.as_bytes(), 900_000), None);
        assert!(sampler.add(large.as_bytes(), 1_000_001).is_some());
    }

    #[test]
    fn a_slow_stream_gives_a_smaller_sample() {
        let mut sampler = Sampler::default();
        let some = TEXT.repeat(40);
        assert_eq!(sampler.add(some.as_bytes(), 1), None);
        let sample = sampler.add(b"PUB orders\n....{}", 1_100_000).unwrap();
        assert!(sample.bytes > some.len() as u64);
        // Below the minimum size there is no sample.
        assert_eq!(sampler.add(TEXT.as_bytes(), 3_000_000), None);
        assert_eq!(sampler.add(TEXT.as_bytes(), 4_100_000), None);
        assert!(sampler.piece.is_empty());
    }

    #[test]
    fn incompressible_bytes_keep_their_size() {
        let mut state = 7u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let noise: Vec<u8> = (0..9_000).map(|_| next()).collect();
        let sample = Sampler::default().add(&noise, 1).unwrap();
        assert_eq!(sample.bytes, sample.compressed);
    }
}
