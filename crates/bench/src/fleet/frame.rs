//! Frames between a coordinator and its workers: pieces of JSON, each behind its length.
//!
//! ```text
//! length u32, big-endian | JSON, UTF-8
//! ```
//!
//! A length is believed only below a limit, and memory is taken as bytes come, not as they are
//! announced.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Before a token was seen, nothing longer is listened to.
pub(super) const HELLO_BYTES_MAX: usize = 4 << 10;
/// A plan may carry a file of payloads, which takes four bytes for one.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Workers report in pieces.
pub(super) const REPLY_BYTES_MAX: usize = 4 << 20;

const LENGTH_BYTES: usize = 4;

/// Why the other side is not listened to any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a message of {bytes} bytes, where at most {most} are expected")]
    TooLong { bytes: usize, most: usize },
    #[error("what was said is not understood: {0}")]
    Strange(String),
}

/// Bytes of which whole pieces are taken.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    most: usize,
}

impl Frames {
    /// Nothing yet; pieces have at most `most` bytes.
    pub(super) fn new(most: usize) -> Frames {
        Frames {
            bytes: Vec::new(),
            most,
        }
    }

    /// From now on pieces may be so long.
    pub(super) fn allow(&mut self, most: usize) {
        self.most = most;
    }

    /// More bytes have come.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next piece, if all of it is there.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_be_bytes(*length) as usize;
        if bytes > self.most {
            return Err(FrameError::TooLong {
                bytes,
                most: self.most,
            });
        }
        let Some(piece) = self.bytes.get(LENGTH_BYTES..LENGTH_BYTES + bytes) else {
            return Ok(None);
        };
        let said = serde_json::from_slice(piece);
        self.bytes.drain(..LENGTH_BYTES + bytes);
        if self.bytes.is_empty() {
            // The memory that a long one has taken is given back.
            self.bytes = Vec::new();
        }
        said.map(Some)
            .map_err(|error| FrameError::Strange(error.to_string()))
    }
}

/// A piece with its length; `None`: it is too long for one, or cannot be said in JSON.
pub(super) fn encode(said: &impl Serialize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, said).ok()?;
    let length = u32::try_from(bytes.len() - LENGTH_BYTES).ok()?;
    bytes[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    proptest! {
        #[test]
        fn what_is_said_is_heard_in_any_pieces(
            all in prop::collection::vec(prop::collection::vec(any::<String>(), 0..4), 1..6),
            piece in 1..50usize,
        ) {
            let bytes: Vec<u8> = all.iter().flat_map(|it| encode(it).unwrap()).collect();
            let (mut frames, mut heard) = (Frames::new(1 << 20), Vec::new());
            for piece in bytes.chunks(piece) {
                frames.push(piece);
                while let Some(said) = frames.next::<Vec<String>>().unwrap() {
                    heard.push(said);
                }
            }
            prop_assert_eq!(heard, all);
            prop_assert_eq!(frames.bytes.capacity(), 0);
        }

        #[test]
        fn hostile_bytes_take_no_memory_and_break_nothing(
            bytes: Vec<u8>, piece in 1..64usize, most in 0..200usize,
        ) {
            let mut frames = Frames::new(most);
            'all: for piece in bytes.chunks(piece) {
                frames.push(piece);
                loop {
                    match frames.next::<Value>() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'all,
                    }
                }
                prop_assert!(frames.bytes.len() <= LENGTH_BYTES + most + piece.len());
            }
        }
    }

    #[test]
    fn a_length_is_not_believed() {
        let mut frames = Frames::new(HELLO_BYTES_MAX);
        frames.push(&[0xff, 0xff, 0xff]);
        assert_eq!(frames.next::<Value>(), Ok(None));
        frames.push(&[0xff]);
        let error = frames.next::<Value>().unwrap_err();
        assert!(matches!(
            error,
            FrameError::TooLong {
                bytes: 0xffff_ffff,
                ..
            }
        ));
        let mut frames = Frames::new(HELLO_BYTES_MAX);
        frames.push(&encode(&"x".repeat(HELLO_BYTES_MAX - 2)).unwrap());
        assert!(frames.next::<Value>().unwrap().is_some());
        let deep = [&[0, 0, 8, 0][..], &[b'['; 2_048]].concat();
        frames.push(&deep);
        assert!(matches!(
            frames.next::<Value>(),
            Err(FrameError::Strange(_))
        ));
    }
}
