//! The bytes of a message: a stamp that identifies it, and a body.
//!
//! ```text
//! stamp: magic (u32) | run (u32) | producer (u32) | sequence (u64) | intended time (u64)
//!        | lag (u32) | check (u32)
//! ```
//!
//! The check covers the fields and the size of the message. In every 64th message of a producer it
//! covers the body, too. Covering each body would cost more CPU time than sending the message.

use serde::{Deserialize, Serialize};

use crate::schedule::Random;

/// Bytes of a [`Stamp`]: the smallest message that can be checked.
pub const STAMP_BYTES: usize = 36;
/// Identifies messages with a stamp of this layout.
const MAGIC: u32 = 0x4356_4c43;
/// The body is checked in messages whose sequence is a multiple of this.
const BODY_CHECK_EVERY: u64 = 64;
/// Random bytes from which bodies are cut: more than one message, so that bodies differ.
const RANDOM_BYTES: usize = 1 << 20;

/// The identity and times that a message carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the measurement. Messages of earlier measurements may remain in a topic.
    pub run: u32,
    /// Number of the producer.
    pub producer: u32,
    /// Number of the message among those of its producer, from 0 on.
    pub sequence: u64,
    /// When the message was due, in nanoseconds since 1970.
    pub intended_unix_ns: u64,
    /// Time from then until it was sent, in microseconds.
    pub lag_us: u32,
}

impl Stamp {
    /// Writes the stamp to the beginning of a message whose body is complete.
    ///
    /// # Panics
    /// The message is shorter than [`STAMP_BYTES`].
    #[inline]
    pub fn write(&self, message: &mut [u8]) {
        message[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        message[4..8].copy_from_slice(&self.run.to_be_bytes());
        message[8..12].copy_from_slice(&self.producer.to_be_bytes());
        message[12..20].copy_from_slice(&self.sequence.to_be_bytes());
        message[20..28].copy_from_slice(&self.intended_unix_ns.to_be_bytes());
        message[28..32].copy_from_slice(&self.lag_us.to_be_bytes());
        let check = self.check(message);
        message[32..STAMP_BYTES].copy_from_slice(&check.to_be_bytes());
    }

    /// Reads the stamp at the beginning of a message. `None`: there is no stamp, or bytes of the
    /// message were changed, removed or added.
    #[inline]
    pub fn read(message: &[u8]) -> Option<Stamp> {
        let head: &[u8; STAMP_BYTES] = message.first_chunk()?;
        let number =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(number(at)) << 32 | u64::from(number(at + 4));
        let stamp = Stamp {
            run: number(4),
            producer: number(8),
            sequence: long(12),
            intended_unix_ns: long(20),
            lag_us: number(28),
        };
        (number(0) == MAGIC && number(32) == stamp.check(message)).then_some(stamp)
    }

    /// Whether a message for which [`Stamp::read`] returned `None` is one of this measurement.
    pub(crate) fn was_of(run: u32, message: &[u8]) -> bool {
        let begins = [MAGIC.to_be_bytes(), run.to_be_bytes()];
        message.starts_with(begins.as_flattened())
    }

    /// The check value of all fields and the message's size, and of its body in every 64th message.
    #[inline]
    fn check(&self, message: &[u8]) -> u32 {
        let body = match self.sequence.is_multiple_of(BODY_CHECK_EVERY) {
            true => crc32c::crc32c(&message[STAMP_BYTES..]),
            false => 0,
        };
        self.mixed() ^ body ^ message.len() as u32
    }

    #[inline]
    fn mixed(&self) -> u32 {
        let fields = u64::from(self.run) << 32 | u64::from(self.producer);
        let times = self.intended_unix_ns.rotate_left(41) ^ u64::from(self.lag_us).rotate_left(53);
        let mut mixed = fields ^ self.sequence.rotate_left(17) ^ times;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed >> 32) as u32
    }
}

/// The content of bodies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PayloadKind {
    /// Incompressible bytes.
    Random,
    /// Text as of log lines, which compresses to about a fifth.
    Compressible,
    /// Consecutive pieces of a file, which is repeated.
    File(Vec<u8>),
}

/// Makes the bytes of messages.
#[derive(Debug, Clone)]
pub struct Payloads {
    source: Vec<u8>,
    size_bytes: usize,
    at: usize,
}

impl Payloads {
    /// Messages of `size_bytes`, which has to be [`STAMP_BYTES`] at least.
    pub fn new(kind: &PayloadKind, size_bytes: usize, seed: u64) -> Payloads {
        let mut random = Random(seed);
        let bytes = RANDOM_BYTES.max(2 * size_bytes);
        let mut source = match kind {
            PayloadKind::Random => std::iter::repeat_with(|| random.next().to_be_bytes())
                .take(bytes / 8)
                .flatten()
                .collect(),
            PayloadKind::Compressible => log_lines(&mut random, bytes),
            PayloadKind::File(file) => file.clone(),
        };
        if source.is_empty() {
            source.push(0);
        }
        // A body may begin at each byte of the original.
        let whole = source.len();
        while source.len() < whole + size_bytes {
            source.extend_from_within(..whole.min(size_bytes));
        }
        Payloads {
            source,
            size_bytes,
            at: 0,
        }
    }

    /// Bytes of each message.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Appends a message to `out`.
    #[inline]
    pub fn push(&mut self, stamp: &Stamp, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.source[self.at..self.at + self.size_bytes]);
        stamp.write(&mut out[start..]);
        self.at += self.size_bytes;
        if self.at + self.size_bytes > self.source.len() {
            self.at = 0;
        }
    }
}

/// Lines like those of a web server's log.
fn log_lines(random: &mut Random, bytes: usize) -> Vec<u8> {
    const PATHS: [&str; 6] = [
        "/",
        "/login",
        "/orders",
        "/orders/latest",
        "/static/main.css",
        "/api/v1/items",
    ];
    let mut lines = Vec::with_capacity(bytes + 128);
    while lines.len() < bytes {
        let word = random.next();
        let path = PATHS[(word % 6) as usize];
        let (host, ms, size) = ((word >> 8) % 250, (word >> 16) % 900, (word >> 32) % 20_000);
        let line = format!(
            "10.0.3.{host} - - \"GET {path} HTTP/1.1\" 200 {size} {ms} ms \
             \"Mozilla/5.0 (X11; Linux)\"\n"
        );
        lines.extend_from_slice(line.as_bytes());
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_have_their_size_and_differ() {
        let kinds = [
            PayloadKind::Random,
            PayloadKind::Compressible,
            PayloadKind::File(b"abc".to_vec()),
            PayloadKind::File(Vec::new()),
        ];
        for kind in kinds {
            for size in [STAMP_BYTES, 100, 3_000_000] {
                let mut payloads = Payloads::new(&kind, size, 1);
                let mut out = b"before".to_vec();
                for sequence in 0..5 {
                    let stamp = Stamp {
                        run: 1,
                        producer: 2,
                        sequence,
                        intended_unix_ns: 4,
                        lag_us: 5,
                    };
                    out.truncate(6);
                    payloads.push(&stamp, &mut out);
                    assert_eq!(out.len(), 6 + size);
                    assert_eq!(Stamp::read(&out[6..]), Some(stamp));
                }
            }
        }
    }

    #[test]
    fn what_is_cut_off_added_or_changed_is_seen() {
        let mut stamp = Stamp {
            run: 9,
            producer: 2,
            sequence: 640,
            intended_unix_ns: 4,
            lag_us: 5,
        };
        let mut message = vec![7; 200];
        stamp.write(&mut message);
        assert_eq!(Stamp::read(&message), Some(stamp));
        let longer = [&message[..], &[7]].concat();
        for other in [&message[..199], &message[..STAMP_BYTES], &longer] {
            assert_eq!(Stamp::read(other), None);
            assert!(Stamp::was_of(9, other) && !Stamp::was_of(8, other));
        }
        message[150] ^= 1;
        assert_eq!(Stamp::read(&message), None);
        assert!(Stamp::was_of(9, &message));
        // Not every message's bytes are looked at.
        stamp.sequence += 1;
        stamp.write(&mut message);
        message[150] ^= 1;
        assert_eq!(Stamp::read(&message), Some(stamp));
        assert!(!Stamp::was_of(9, b"another program's"));
    }

    proptest! {
        #[test]
        fn a_damaged_stamp_is_seen(
            run: u32, producer: u32, sequence: u64, intended_unix_ns: u64, lag_us: u32,
            at in 0..STAMP_BYTES, bit in 0..8,
        ) {
            let stamp = Stamp { run, producer, sequence, intended_unix_ns, lag_us };
            let mut message = [0; 40];
            stamp.write(&mut message);
            prop_assert_eq!(Stamp::read(&message), Some(stamp));
            message[at] ^= 1u8 << bit;
            prop_assert_eq!(Stamp::read(&message), None);
        }

        #[test]
        fn any_bytes_are_looked_at(message: Vec<u8>) {
            let _ = Stamp::read(&message);
        }
    }
}
