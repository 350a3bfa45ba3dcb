//! Frames between a coordinator and its workers: JSON documents, each after its length.
//!
//! ```text
//! length u32, big-endian | JSON, UTF-8
//! ```
//!
//! A length above the limit is an error. Memory is allocated for the bytes that arrive, not for the
//! length announced.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum of a frame before the peer has shown its token.
pub(super) const HELLO_BYTES_MAX: usize = 4 << 10;
/// Maximum of a request. A plan may contain a file of payloads, and JSON takes four bytes for each
/// of its bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Maximum of a reply. Workers split their reports into several replies.
pub(super) const REPLY_BYTES_MAX: usize = 4 << 20;

const LENGTH_BYTES: usize = 4;

/// Why a frame cannot be read. The connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a message of {bytes} bytes, where at most {most} are expected")]
    TooLong { bytes: usize, most: usize },
    #[error("what was said is not understood: {0}")]
    Strange(String),
}

/// Received bytes, which are split into frames.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    most: usize,
}

impl Frames {
    /// Starts without bytes. Frames have at most `most` bytes.
    pub(super) fn new(most: usize) -> Frames {
        Frames {
            bytes: Vec::new(),
            most,
        }
    }

    /// Sets the maximum of a frame's bytes.
    pub(super) fn allow(&mut self, most: usize) {
        self.most = most;
    }

    /// Adds received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame; `None`: it is not complete yet.
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
            // Frees the memory of a long frame.
            self.bytes = Vec::new();
        }
        said.map(Some)
            .map_err(|error| FrameError::Strange(error.to_string()))
    }
}

/// Encodes a frame. `None`: the value is too long for the length field, or has no form in JSON.
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
