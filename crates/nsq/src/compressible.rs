//! How well what a producer sends would compress: a small piece of it, now and then.
//!
//! Only commands that come in several reads are looked at: where they are there at once, their
//! bytes cost nobody any time. NSQ compresses a connection and not a message, so the piece may have
//! many small commands in it, from as many reads as it takes. To compress one of 8 KB takes some
//! 20 µs, once a second of a connection.

use cloverleaf_log::lz4_len;

/// Between two looks.
const PAUSE_US: u64 = 1_000_000;

/// Bytes that are compressed, at most; and at least, for it to say anything.
const PIECE_BYTES_MAX: usize = 8 << 10;
const PIECE_BYTES_MIN: usize = 1 << 10;

/// A piece of what one connection publishes.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Its memory is there only while it is gathered, which ends with the next commands.
    piece: Vec<u8>,
    /// When the first of it came.
    since_us: u64,
    due_us: u64,
}

/// A piece that was compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) bytes: u64,
    pub(crate) compressed: u64,
}

impl Sampler {
    /// Takes commands that publish, whole ones, if it is time. Returns a sample once enough of them
    /// have come, or a second has passed.
    #[inline(never)]
    pub(crate) fn look(&mut self, commands: &[u8], now_us: u64) -> Option<Sample> {
        if now_us < self.due_us {
            return None;
        }
        if self.piece.is_empty() {
            self.since_us = now_us;
        }
        let room = PIECE_BYTES_MAX - self.piece.len();
        self.piece
            .extend_from_slice(&commands[..commands.len().min(room)]);
        let bytes = self.piece.len();
        let is_old = now_us >= self.since_us + PAUSE_US;
        if bytes < PIECE_BYTES_MAX && !is_old {
            return None;
        }
        let piece = std::mem::take(&mut self.piece);
        self.due_us = now_us + PAUSE_US;
        (bytes >= PIECE_BYTES_MIN).then(|| Sample {
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
            .filter_map(|read| sampler.look(TEXT.as_bytes(), 1 + read * 1_000))
            .collect();
        // One a second, and as much as fits.
        assert_eq!(samples.len(), 5);
        for sample in samples {
            assert_eq!(sample.bytes, PIECE_BYTES_MAX as u64);
            assert!(sample.compressed < sample.bytes / 4, "{sample:?}");
        }
        assert_eq!(sampler.piece.capacity(), 0);
    }

    #[test]
    fn a_large_command_is_looked_at_in_part() {
        let mut sampler = Sampler::default();
        let large = TEXT.repeat(10_000);
        let sample = sampler.look(large.as_bytes(), 1).unwrap();
        assert_eq!(sample.bytes, PIECE_BYTES_MAX as u64);
        assert_eq!(sampler.look(large.as_bytes(), 900_000), None);
        assert!(sampler.look(large.as_bytes(), 1_000_001).is_some());
    }

    #[test]
    fn what_comes_slowly_is_not_waited_for() {
        let mut sampler = Sampler::default();
        let some = TEXT.repeat(40);
        assert_eq!(sampler.look(some.as_bytes(), 1), None);
        let sample = sampler.look(b"PUB orders\n....{}", 1_100_000).unwrap();
        assert!(sample.bytes > some.len() as u64);
        // Too little says nothing.
        assert_eq!(sampler.look(TEXT.as_bytes(), 3_000_000), None);
        assert_eq!(sampler.look(TEXT.as_bytes(), 4_100_000), None);
        assert!(sampler.piece.is_empty());
    }

    #[test]
    fn noise_takes_as_much_as_it_does() {
        let mut state = 7u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let noise: Vec<u8> = (0..9_000).map(|_| next()).collect();
        let sample = Sampler::default().look(&noise, 1).unwrap();
        assert_eq!(sample.bytes, sample.compressed);
    }
}
