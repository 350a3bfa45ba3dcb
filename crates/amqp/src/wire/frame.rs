//! Frames: how the byte stream is divided.

use super::reader::Reader;

/// The protocol header, which each AMQP 0-9-1 client sends first.
pub const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\0\0\x09\x01";
/// Type, channel and size, in front of each payload.
pub const FRAME_HEADER_BYTES: usize = 7;
/// The octet after each payload.
pub const FRAME_END: u8 = 206;
/// Bytes of a frame besides its payload.
pub const FRAME_OVERHEAD_BYTES: usize = FRAME_HEADER_BYTES + 1;
/// Each peer must accept frames of this size, and may not negotiate less (`frame-min-size`).
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
    /// A heartbeat (8).
    Heartbeat,
}

/// A whole frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame<'a> {
    /// The kind of its payload.
    pub kind: FrameType,
    /// The channel; 0 is the connection itself.
    pub channel: u16,
    /// The payload.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Size of the whole frame, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.payload.len() + FRAME_OVERHEAD_BYTES
    }
}

/// A malformed or oversized frame. Each error closes the connection: FRAME_ERROR (501).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The type is unknown.
    #[error("unknown frame type {kind}")]
    Type {
        /// The type octet.
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
        /// The octet found at the frame's end.
        found: u8,
    },
}

/// The frame at the start of `input`. `Ok(Err(n))`: it is incomplete, and `input` must have at
/// least `n` bytes before it is worth another try.
///
/// # Errors
/// The bytes are not a frame. Nothing after them can be parsed either.
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
