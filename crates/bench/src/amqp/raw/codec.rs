//! The frames of AMQP 0-9-1 that publishing and consuming need.
//!
//! ```text
//! frame:   kind (u8: 1 method, 2 header, 3 body, 8 heartbeat) | channel (u16) | size (u32)
//!          | payload | 0xCE
//! method:  class (u16) | method (u16) | arguments
//! header:  class (u16) | 0 (u16) | size of the body (u64) | flags (u16) | properties by flag
//! text:    short: size (u8), bytes; long: size (u32), bytes
//! ```
//!
//! Source: AMQP 0-9-1, sections 2.3.5 and 4.2.

use crate::reader::Reader;
use crate::wire::{Framing, WireError, set_size};

/// Bytes of a frame in addition to its payload: 7 before it, 1 after it.
pub(super) const FRAME_EXTRA_BYTES: usize = 8;
/// The only channel of a connection.
pub(super) const CHANNEL: u16 = 1;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const FRAME_END: u8 = 0xce;
const BASIC: u16 = 60;
/// Flag of a content header that has a delivery mode.
const HAS_DELIVERY_MODE: u16 = 1 << 12;

/// A method's name: class and method number.
pub(super) type Name = (u16, u16);

pub(super) const START: Name = (10, 10);
pub(super) const START_OK: Name = (10, 11);
pub(super) const TUNE: Name = (10, 30);
pub(super) const TUNE_OK: Name = (10, 31);
pub(super) const OPEN: Name = (10, 40);
pub(super) const OPEN_OK: Name = (10, 41);
pub(super) const CLOSE: Name = (10, 50);
pub(super) const CHANNEL_OPEN: Name = (20, 10);
pub(super) const CHANNEL_OPEN_OK: Name = (20, 11);
pub(super) const CHANNEL_CLOSE: Name = (20, 40);
pub(super) const QOS: Name = (BASIC, 10);
pub(super) const QOS_OK: Name = (BASIC, 11);
pub(super) const CONSUME: Name = (BASIC, 20);
pub(super) const CANCEL: Name = (BASIC, 30);
const PUBLISH: Name = (BASIC, 40);
const DELIVER: Name = (BASIC, 60);
const ACK: Name = (BASIC, 80);
const NACK: Name = (BASIC, 120);
pub(super) const CONFIRM: Name = (85, 10);
pub(super) const CONFIRM_OK: Name = (85, 11);

/// A frame from the broker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'f> {
    /// `basic.ack` or `basic.nack` for publishes.
    Answer {
        tag: u64,
        is_multiple: bool,
        is_ack: bool,
    },
    /// `basic.deliver`: the header and body of a message follow.
    Deliver { tag: u64, is_redelivered: bool },
    /// The content header of a message.
    Header { body_bytes: u64 },
    /// A part of a message's body.
    Body(&'f [u8]),
    /// Another method with its arguments.
    Method(Name, &'f [u8]),
    /// A frame that is ignored, such as a heartbeat.
    Other,
}

/// Splits a byte stream into frames of at most `bytes_max` bytes, frame header and end byte
/// included.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frames {
    pub(super) bytes_max: usize,
}

impl Framing for Frames {
    type Frame<'f> = Frame<'f>;

    #[inline]
    fn first<'f>(&self, bytes: &'f [u8]) -> Result<Option<(Frame<'f>, usize)>, WireError> {
        frame(bytes, self.bytes_max)
    }
}

/// The first frame of these bytes with its size. `None`: the frame is not complete yet.
fn frame(bytes: &[u8], bytes_max: usize) -> Result<Option<(Frame<'_>, usize)>, WireError> {
    let Some(([kind, _, _, size @ ..], rest)) = bytes.split_first_chunk::<7>() else {
        return Ok(None);
    };
    let size = u32::from_be_bytes(*size) as usize;
    if size + FRAME_EXTRA_BYTES > bytes_max {
        return Err(WireError::Protocol(format!(
            "it sent a frame of {size} bytes"
        )));
    }
    let Some((payload, end)) = rest.split_at_checked(size) else {
        return Ok(None);
    };
    match end.first() {
        None => return Ok(None),
        Some(&FRAME_END) => {}
        Some(other) => {
            return Err(WireError::Protocol(format!(
                "it sent a frame that ends with {other:#x}"
            )));
        }
    }
    let frame = match *kind {
        METHOD => method(payload),
        HEADER => header(payload),
        BODY => Some(Frame::Body(payload)),
        _ => Some(Frame::Other),
    };
    let frame =
        frame.ok_or_else(|| WireError::Protocol("it sent a frame that is cut short".to_owned()))?;
    Ok(Some((frame, size + FRAME_EXTRA_BYTES)))
}

fn method(payload: &[u8]) -> Option<Frame<'_>> {
    let mut bytes = Reader(payload);
    let name = (bytes.u16()?, bytes.u16()?);
    let arguments = bytes.0;
    Some(match name {
        ACK | NACK => Frame::Answer {
            tag: bytes.u64()?,
            is_multiple: bytes.u8()? & 1 != 0,
            is_ack: name == ACK,
        },
        DELIVER => {
            bytes.short()?;
            Frame::Deliver {
                tag: bytes.u64()?,
                is_redelivered: bytes.u8()? & 1 != 0,
            }
        }
        _ => Frame::Method(name, arguments),
    })
}

fn header(payload: &[u8]) -> Option<Frame<'_>> {
    let mut bytes = Reader(payload);
    bytes.take(4)?;
    Some(Frame::Header {
        body_bytes: bytes.u64()?,
    })
}

impl<'b> Reader<'b> {
    /// Reads a short string.
    pub(super) fn short(&mut self) -> Option<&'b [u8]> {
        let size = self.u8()?;
        self.take(usize::from(size))
    }
}

/// Writes a frame whose payload `fill` writes.
fn put_frame(out: &mut Vec<u8>, kind: u8, channel: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    set_size(out, at);
    out.push(FRAME_END);
}

/// Writes a method whose arguments `fill` writes.
pub(super) fn put_method(
    out: &mut Vec<u8>,
    channel: u16,
    (class, method): Name,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    put_frame(out, METHOD, channel, |out| {
        out.extend_from_slice(&class.to_be_bytes());
        out.extend_from_slice(&method.to_be_bytes());
        fill(out);
    });
}

/// Writes a short string. A text of more than 255 bytes is cut; `RawConnection::open` refuses such
/// queue names.
pub(super) fn put_short(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(255)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// Writes a `basic.ack` for this delivery and all before it.
pub(super) fn put_ack(out: &mut Vec<u8>, tag: u64) {
    put_method(out, CHANNEL, ACK, |out| {
        out.extend_from_slice(&tag.to_be_bytes());
        // The bit `multiple`.
        out.push(1);
    });
}

/// The frames that are the same for every message: `basic.publish` and the content header.
pub(super) fn publish_head(queue: &str, body_bytes: usize, delivery_mode: u8) -> Vec<u8> {
    let mut out = Vec::new();
    put_method(&mut out, CHANNEL, PUBLISH, |out| {
        out.extend_from_slice(&[0; 2]);
        put_short(out, "");
        put_short(out, queue);
        out.push(0);
    });
    put_frame(&mut out, HEADER, CHANNEL, |out| {
        out.extend_from_slice(&BASIC.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(body_bytes as u64).to_be_bytes());
        out.extend_from_slice(&HAS_DELIVERY_MODE.to_be_bytes());
        out.push(delivery_mode);
    });
    out
}

/// Writes one body frame.
#[inline]
pub(super) fn put_body(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    put_frame(out, BODY, CHANNEL, fill);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = publish_head("q", 3, 2);
        put_body(&mut out, |out| out.extend_from_slice(b"abc"));
        put_ack(&mut out, 7);
        let mut rest = &out[..];
        let mut next = || {
            let (frame, used) = frame(rest, 1 << 17).unwrap().unwrap();
            rest = &rest[used..];
            frame
        };
        assert_eq!(next(), Frame::Method(PUBLISH, b"\0\0\0\x01q\0"));
        assert_eq!(next(), Frame::Header { body_bytes: 3 });
        assert_eq!(next(), Frame::Body(b"abc"));
        let answer = Frame::Answer {
            tag: 7,
            is_multiple: true,
            is_ack: true,
        };
        assert_eq!(next(), answer);
        for cut in 0..FRAME_EXTRA_BYTES {
            assert_eq!(frame(&out[..cut], 1 << 17).unwrap(), None);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut out = Vec::new();
        put_ack(&mut out, 1);
        assert!(frame(&out, 16).is_err(), "too large");
        *out.last_mut().unwrap() = 0;
        assert!(frame(&out, 100).is_err(), "no end");
        let mut short = Vec::new();
        put_method(&mut short, CHANNEL, DELIVER, |_| {});
        assert!(frame(&short, 100).is_err(), "no arguments");
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(bytes: Vec<u8>) {
            let _ = frame(&bytes, 1 << 17);
        }
    }
}
