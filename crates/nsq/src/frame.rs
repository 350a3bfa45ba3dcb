//! Frames from the broker to the client, encoded straight into the output buffer.
//!
//! ```text
//! | size u32 | type u32 | body |                       size counts type and body
//!
//! type 0  response    body: OK, CLOSE_WAIT, _heartbeat_, or JSON
//! type 1  error       body: code, blank, text
//! type 2  message     body: | timestamp i64 ns | attempts u16 | id 16 bytes | message |
//! ```
//!
//! All numbers are big endian. Source: nsq.io/clients/tcp_protocol_spec.html.

use crate::message_id::ID_BYTES;

/// Size, type, timestamp, attempts, id.
pub const MESSAGE_HEADER_BYTES: usize = 4 + 4 + 8 + 2 + ID_BYTES;

/// The kind of content that a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// An answer, or a heartbeat.
    Response = 0,
    /// A code and a text.
    Error = 1,
    /// A message.
    Message = 2,
}

/// A whole frame `OK`.
pub const OK_FRAME: &[u8; 10] = b"\0\0\0\x06\0\0\0\0OK";

/// A whole frame `_heartbeat_`.
pub const HEARTBEAT_FRAME: &[u8; 19] = b"\0\0\0\x0f\0\0\0\0_heartbeat_";

/// The answer to CLS.
pub const CLOSE_WAIT: &[u8] = b"CLOSE_WAIT";

/// The error for a connection that does not start with the magic. It has no text.
pub const BAD_PROTOCOL: &[u8] = b"E_BAD_PROTOCOL";

/// Appends a response or an error.
pub fn push_frame(out: &mut Vec<u8>, frame_type: FrameType, body: &[u8]) {
    out.reserve(8 + body.len());
    out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    out.extend_from_slice(&(frame_type as u32).to_be_bytes());
    out.extend_from_slice(body);
}

/// Appends `count` frames `OK`.
pub fn push_oks(out: &mut Vec<u8>, count: u32) {
    for _ in 0..count {
        out.extend_from_slice(OK_FRAME);
    }
}

/// Appends a message.
#[inline]
pub fn push_message(
    out: &mut Vec<u8>,
    timestamp_ns: i64,
    attempts: u16,
    id: &[u8; ID_BYTES],
    body: &[u8],
) {
    let mut header = [0; MESSAGE_HEADER_BYTES];
    let size = (MESSAGE_HEADER_BYTES - 4 + body.len()) as u32;
    header[0..4].copy_from_slice(&size.to_be_bytes());
    header[4..8].copy_from_slice(&(FrameType::Message as u32).to_be_bytes());
    header[8..16].copy_from_slice(&timestamp_ns.to_be_bytes());
    header[16..18].copy_from_slice(&attempts.to_be_bytes());
    header[18..].copy_from_slice(id);
    out.reserve(MESSAGE_HEADER_BYTES + body.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_nsqds_layout() {
        let mut out = Vec::new();
        push_frame(&mut out, FrameType::Response, b"OK");
        assert_eq!(out, OK_FRAME);
        out.clear();
        push_frame(&mut out, FrameType::Response, b"_heartbeat_");
        assert_eq!(out, HEARTBEAT_FRAME);
        out.clear();
        push_frame(&mut out, FrameType::Error, b"E_X y");
        assert_eq!(out, b"\0\0\0\x09\0\0\0\x01E_X y");
        out.clear();
        push_oks(&mut out, 2);
        assert_eq!(out, [OK_FRAME.as_slice(), OK_FRAME].concat());
        out.clear();
        push_message(&mut out, 0x0102, 3, b"0123456789abcdef", b"body");
        let expect = b"\0\0\0\x22\0\0\0\x02\0\0\0\0\0\0\x01\x02\0\x030123456789abcdefbody";
        assert_eq!(out, expect);
    }
}
