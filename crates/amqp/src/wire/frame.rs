//! Frames: how the stream is cut.

use super::reader::Reader;

/// The bytes that each client of AMQP 0-9-1 sends first.
pub const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\0\0\x09\x01";
/// Type, channel and size in front of a payload.
pub const FRAME_HEADER_BYTES: usize = 7;
/// The octet behind each payload.
pub const FRAME_END: u8 = 206;
/// The bytes of a frame beside its payload.
pub const FRAME_OVERHEAD_BYTES: usize = FRAME_HEADER_BYTES + 1;
/// A peer must take frames of this size, and may not negotiate less (`frame-min-size`).
pub const FRAME_MIN_BYTES: u32 = 4096;

/// The kind of payload that a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameType {
    /// A method (1).
    Method,
    /// A content header (2).
    Header,
    /// A part of a content's body (3).
    Body,
    /// A sign of life (8).
    Heartbeat,
}

/// A whole frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame<'a> {
    /// The kind of its payload.
    pub kind: FrameType,
    /// 0: the connection itself.
    pub channel: u16,
    /// The payload.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Bytes of the whole frame.
    pub fn len_bytes(&self) -> usize {
        self.payload.len() + FRAME_OVERHEAD_BYTES
    }
}

/// Bytes that are no frame, or none that may be sent. Each ends the connection: FRAME_ERROR (501).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The type is unknown.
    #[error("unknown frame type {kind}")]
    Type {
        /// The octet that stands where the type should.
        kind: u8,
    },
    /// The frame is larger than was negotiated.
    #[error("frame of {bytes} bytes is larger than the negotiated {bytes_max}")]
    TooLarge {
        /// Size of the whole frame.
        bytes: u64,
        /// The limit that was negotiated (`frame-max`).
        bytes_max: u32,
    },
    /// The frame does not end where it should.
    #[error("frame end octet is {found}, not {FRAME_END}")]
    End {
        /// The octet that stands there.
        found: u8,
    },
}

/// The frame at the start of `input`: it, or how many bytes it needs before it can be told.
///
/// # Errors
/// There is none; nothing behind it can be read either.
pub fn peek_frame(input: &[u8], bytes_max: u32) -> Result<Result<Frame<'_>, usize>, FrameError> {
    let mut reader = Reader::new(input);
    let (Ok(kind), Ok(channel), Ok(size)) = (reader.octet(), reader.short(), reader.long()) else {
        return Ok(Err(FRAME_HEADER_BYTES));
    };
    let kind = match kind {
        1 => FrameType::Method,
        2 => FrameType::Header,
        3 => FrameType::Body,
        8 => FrameType::Heartbeat,
        kind => return Err(FrameError::Type { kind }),
    };
    let bytes = u64::from(size) + FRAME_OVERHEAD_BYTES as u64;
    if bytes > u64::from(bytes_max) {
        return Err(FrameError::TooLarge { bytes, bytes_max });
    }
    let (Ok(payload), Ok(end)) = (reader.take(size as usize), reader.octet()) else {
        return Ok(Err(bytes as usize));
    };
    if end != FRAME_END {
        return Err(FrameError::End { found: end });
    }
    Ok(Ok(Frame {
        kind,
        channel,
        payload,
    }))
}
