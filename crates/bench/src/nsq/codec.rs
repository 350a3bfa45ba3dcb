//! NSQ's TCP protocol from the client's side: bytes in, bytes out, no socket.
//!
//! ```text
//! command   NAME [PARAMETER …]\n            SUB topic channel, RDY count, FIN id, NOP, CLS
//!           NAME [PARAMETER …]\n  u32 bytes  body       PUB topic, IDENTIFY, AUTH
//! MPUB      MPUB topic\n  u32 bytes  u32 messages  { u32 bytes  body }…
//! frame     u32 bytes after it  u32 type  data
//!           type 0: response, 1: error, 2: message
//! message   i64 timestamp  u16 attempts  16 bytes id  body
//! ```
//!
//! Integers are big-endian. Source: <https://nsq.io/clients/tcp_protocol_spec.html>.

use crate::wire::{Framing, WireError, put_sized, set_size};

/// The first bytes of a client.
pub(super) const MAGIC: &[u8] = b"  V2";
/// The data of a heartbeat, which the client answers with NOP.
pub(super) const HEARTBEAT: &[u8] = b"_heartbeat_";
/// Bytes of a message's id.
pub(super) const ID_BYTES: usize = 16;
/// Bytes of a frame before its type.
const SIZE_BYTES: usize = 4;
/// Bytes of a frame before its data.
const HEAD_BYTES: usize = 8;
/// Bytes of a message before its body.
const MESSAGE_HEAD_BYTES: usize = 8 + 2 + ID_BYTES;

/// A frame from a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame<'f> {
    /// The answer to a command, or a heartbeat.
    Response(&'f [u8]),
    /// A command failed.
    Error(&'f [u8]),
    /// A message for a consumer.
    Message {
        /// Number of deliveries, including this one.
        attempts: u16,
        /// The id by which it is acknowledged.
        id: &'f [u8; ID_BYTES],
        /// The body as it was published.
        body: &'f [u8],
    },
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum FrameError {
    /// The frame is larger than the bound.
    #[error("it sent a frame of {bytes} bytes, and {most} is the most that was expected")]
    TooLarge {
        /// The size of the frame.
        bytes: usize,
        /// The bound.
        most: usize,
    },
    /// The frame is too short for its type.
    #[error("it sent a frame that is cut short")]
    Short,
    /// The type is unknown.
    #[error("it sent a frame of type {0}: is this NSQ's TCP port?")]
    Type(u32),
}

/// Cuts bytes into frames of at most `bytes_max` bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frames {
    pub(super) bytes_max: usize,
}

impl Framing for Frames {
    type Frame<'f> = Frame<'f>;

    #[inline]
    fn first<'f>(&self, bytes: &'f [u8]) -> Result<Option<(Frame<'f>, usize)>, WireError> {
        frame(bytes, self.bytes_max).map_err(|error| WireError::Protocol(error.to_string()))
    }
}

/// The frame at the beginning of `bytes`, and its size with head; `None`: it is incomplete.
///
/// # Errors
/// The bytes are not a frame, or the frame has more than `most` bytes.
#[inline]
fn frame(bytes: &[u8], most: usize) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    let Some((size, rest)) = bytes.split_first_chunk::<SIZE_BYTES>() else {
        return Ok(None);
    };
    let size = u32::from_be_bytes(*size) as usize;
    if size > most {
        return Err(FrameError::TooLarge { bytes: size, most });
    }
    if size < HEAD_BYTES - SIZE_BYTES {
        return Err(FrameError::Short);
    }
    let Some((kind, _)) = rest.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let kind = u32::from_be_bytes(*kind);
    // Checked before the frame is complete: a peer of another protocol may never send as many bytes
    // as the size seems to be.
    if kind > 2 {
        return Err(FrameError::Type(kind));
    }
    let Some(data) = rest.get(4..size) else {
        return Ok(None);
    };
    let frame = match kind {
        0 => Frame::Response(data),
        1 => Frame::Error(data),
        _ => message(data)?,
    };
    Ok(Some((frame, SIZE_BYTES + size)))
}

fn message(data: &[u8]) -> Result<Frame<'_>, FrameError> {
    let head = data.split_first_chunk::<MESSAGE_HEAD_BYTES>();
    let (head, body) = head.ok_or(FrameError::Short)?;
    let id = head.last_chunk::<ID_BYTES>().ok_or(FrameError::Short)?;
    Ok(Frame::Message {
        attempts: u16::from_be_bytes([head[8], head[9]]),
        id,
        body,
    })
}

/// A command without a body.
pub(super) fn command(out: &mut Vec<u8>, words: &[&str]) {
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(word.as_bytes());
    }
    out.push(b'\n');
}

/// A command with a body.
pub(super) fn command_with(out: &mut Vec<u8>, words: &[&str], body: &[u8]) {
    command(out, words);
    put_sized(out, body);
}

/// The acknowledgement of a message.
#[inline]
pub(super) fn finish(out: &mut Vec<u8>, id: &[u8; ID_BYTES]) {
    let mut line = *b"FIN ................\n";
    line[4..4 + ID_BYTES].copy_from_slice(id);
    out.extend_from_slice(&line);
}

/// A publish of one message or several, while it is written to the output buffer. To be ended with
/// [`Publish::end`].
#[derive(Debug)]
pub(super) struct Publish {
    /// The index in `out` of the size of the body.
    at: usize,
    is_multiple: bool,
    messages: u32,
}

impl Publish {
    /// Begins a publish: MPUB with `is_multiple`, otherwise PUB, which has one message.
    pub(super) fn begin(out: &mut Vec<u8>, topic: &str, is_multiple: bool) -> Publish {
        let name = if is_multiple { "MPUB" } else { "PUB" };
        command(out, &[name, topic]);
        let at = out.len();
        out.extend_from_slice(&[0; 4]);
        if is_multiple {
            out.extend_from_slice(&[0; 4]);
        }
        Publish {
            at,
            is_multiple,
            messages: 0,
        }
    }

    /// Begins a message. The caller appends its bytes to `out` afterwards.
    #[inline]
    pub(super) fn message(&mut self, out: &mut Vec<u8>, bytes: usize) {
        debug_assert!(self.is_multiple || self.messages == 0, "PUB takes one");
        if self.is_multiple {
            out.extend_from_slice(&length(bytes).to_be_bytes());
        }
        self.messages += 1;
    }

    /// Writes the size and the number of messages.
    pub(super) fn end(self, out: &mut [u8]) {
        set_size(out, self.at);
        if self.is_multiple {
            let count = self.at + 4..self.at + 8;
            out[count].copy_from_slice(&self.messages.to_be_bytes());
        }
    }
}

/// A size as it is written. It fits: messages have at most 1 GiB, and batches are cut below it.
pub(super) fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn encoded(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_sized(&mut bytes, &[&kind.to_be_bytes(), data].concat());
        bytes
    }

    #[test]
    fn commands_are_as_the_specification_says() {
        let mut out = Vec::new();
        command(&mut out, &["SUB", "t", "c"]);
        command_with(&mut out, &["IDENTIFY"], b"{}");
        finish(&mut out, b"0123456789abcdef");
        let mut publish = Publish::begin(&mut out, "t", false);
        publish.message(&mut out, 2);
        out.extend_from_slice(b"hi");
        publish.end(&mut out);
        let mut publish = Publish::begin(&mut out, "t", true);
        for body in [b"a", b"b"] {
            publish.message(&mut out, 1);
            out.extend_from_slice(body);
        }
        publish.end(&mut out);
        let expected = b"SUB t c\nIDENTIFY\n\0\0\0\x02{}FIN 0123456789abcdef\n\
            PUB t\n\0\0\0\x02hiMPUB t\n\0\0\0\x0e\0\0\0\x02\0\0\0\x01a\0\0\0\x01b";
        assert_eq!(out, expected);
    }

    #[test]
    fn frames_are_found() {
        let mut bytes = encoded(0, b"OK");
        bytes.extend(encoded(1, b"E_BAD"));
        let mut data = vec![0; 8];
        data.extend_from_slice(b"\0\x03idididididididid");
        data.extend_from_slice(b"body");
        bytes.extend(encoded(2, &data));
        let mut frames = Vec::new();
        let mut rest = &bytes[..];
        while let Some((frame, used)) = frame(rest, 100).unwrap() {
            frames.push(frame);
            rest = &rest[used..];
        }
        let message = Frame::Message {
            attempts: 3,
            id: b"idididididididid",
            body: b"body",
        };
        let expected = [Frame::Response(b"OK"), Frame::Error(b"E_BAD"), message];
        assert_eq!((frames.as_slice(), rest), (&expected[..], &b""[..]));
    }

    #[test]
    fn what_is_no_frame_is_said() {
        let http = frame(b"HTTP/1.1 400 Bad Request", 1 << 20).unwrap_err();
        assert!(matches!(http, FrameError::TooLarge { .. }), "{http}");
        assert_eq!(frame(&encoded(7, b""), 100), Err(FrameError::Type(7)));
        assert_eq!(frame(&encoded(2, b"short"), 100), Err(FrameError::Short));
        assert_eq!(frame(&[0, 0, 0, 1, 0], 100), Err(FrameError::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(bytes: Vec<u8>, most in 0..1_000usize) {
            let mut rest = &bytes[..];
            while let Ok(Some((_, used))) = frame(rest, most) {
                prop_assert!(used >= HEAD_BYTES && used <= rest.len());
                prop_assert!(used <= SIZE_BYTES + most);
                rest = &rest[used..];
            }
        }

        #[test]
        fn what_comes_in_pieces_is_the_same(
            kind in 0..3u32, data in prop::collection::vec(any::<u8>(), 26..80), cut in 0..200usize,
        ) {
            let bytes = encoded(kind, &data);
            let cut = cut.min(bytes.len());
            let (whole, used) = frame(&bytes, 1_000).unwrap().unwrap();
            prop_assert_eq!(used, bytes.len());
            match frame(&bytes[..cut], 1_000).unwrap() {
                Some((part, _)) => prop_assert_eq!((part, cut), (whole, bytes.len())),
                None => prop_assert!(cut < bytes.len()),
            }
        }
    }
}
