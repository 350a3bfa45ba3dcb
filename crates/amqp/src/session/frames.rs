//! Encoding of frames, and the recognition of a content whose frames follow each other.

use bytes::Bytes;
use cloverleaf_session::Output;

use crate::body::Body;
use crate::wire::{
    ContentHeader, FRAME_END, FRAME_HEADER_BYTES, FRAME_OVERHEAD_BYTES, Frame, FrameType, Method,
    MethodId, Writer, peek_frame,
};

/// The class `basic`, whose methods have contents.
pub(super) const BASIC: u16 = 60;
/// A content whose body frames, except the last, are smaller than this is received frame by frame.
/// Gathering it would parse all of its frames again for each read.
const BODY_FRAME_BYTES_MIN: usize = 1024;
/// A smaller body is copied: as a part of a vectored write it would cost about as much.
const SHARED_BYTES_MIN: usize = 16 << 10;
/// A body references its batch only if the batch is at most this many times as large. So a slow
/// client makes the broker keep at most this many times the bytes sent to it.
const SHARED_BATCH_RATIO: usize = 8;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;

/// A heartbeat frame.
pub(super) const HEARTBEAT: [u8; FRAME_OVERHEAD_BYTES] = [8, 0, 0, 0, 0, 0, 0, FRAME_END];

/// Appends a frame whose payload is appended by `write`.
pub(super) fn push_frame(
    out: &mut Vec<u8>,
    kind: u8,
    channel: u16,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    write(out);
    let payload = out.len() - start - FRAME_HEADER_BYTES;
    // Cannot overflow: no payload written here has 4 GiB.
    let size = (payload as u32).to_be_bytes();
    out[start + 3..start + FRAME_HEADER_BYTES].copy_from_slice(&size);
    out.push(FRAME_END);
}

/// Appends a method frame.
pub(super) fn push_method(out: &mut Vec<u8>, channel: u16, method: &Method<'_>) {
    push_frame(out, METHOD, channel, |out| {
        method.write(&mut Writer::new(out));
    });
}

/// Appends a content: its header, and its body in frames of at most `frame_bytes_max`. If the body
/// is part of `batch`, it may reference the batch instead of copying it (see [`is_shared`]).
pub(super) fn push_content(
    out: &mut Output,
    channel: u16,
    properties: &[u8],
    body: Body<'_>,
    frame_bytes_max: u32,
    batch: Option<&Bytes>,
) {
    let header = ContentHeader {
        body_bytes: body.len() as u64,
        raw: properties,
    };
    push_frame(&mut out.bytes, HEADER, channel, |out| {
        header.write(&mut Writer::new(out));
    });
    let shared = batch.filter(|batch| is_shared(body.len(), batch.len()));
    for piece in body.pieces() {
        for payload in piece.chunks(payload_bytes_max(frame_bytes_max)) {
            match shared {
                Some(batch) => share_frame(out, BODY, channel, batch.slice_ref(payload)),
                None => push_frame(&mut out.bytes, BODY, channel, |out| {
                    out.extend_from_slice(payload);
                }),
            }
        }
    }
}

/// Whether a body is sent from its batch. Then the whole batch stays in memory until the client has
/// received the body, and each frame is a part of a vectored write.
fn is_shared(body_bytes: usize, batch_bytes: usize) -> bool {
    body_bytes >= SHARED_BYTES_MIN && body_bytes >= batch_bytes / SHARED_BATCH_RATIO
}

/// Appends a frame whose payload is shared memory.
fn share_frame(out: &mut Output, kind: u8, channel: u16, payload: Bytes) {
    // Fits: the caller has cut the payload to the size of a frame.
    let size = payload.len() as u32;
    out.bytes.push(kind);
    out.bytes.extend_from_slice(&channel.to_be_bytes());
    out.bytes.extend_from_slice(&size.to_be_bytes());
    out.share(payload);
    out.bytes.push(FRAME_END);
}

fn payload_bytes_max(frame_bytes_max: u32) -> usize {
    (frame_bytes_max as usize)
        .saturating_sub(FRAME_OVERHEAD_BYTES)
        .max(1)
}

/// The result of looking for a content after its method frame.
#[derive(Debug, PartialEq)]
pub(super) enum Gathered<'a> {
    /// The whole content, in `bytes` bytes: the payload of its header, and its body.
    Whole {
        header: &'a [u8],
        body: Body<'a>,
        bytes: usize,
    },
    /// The content is incomplete: at least this many bytes are needed.
    Needs(usize),
    /// Another frame lies in between, or a frame is invalid: the content is received frame by
    /// frame.
    Mixed,
}

/// Looks for the content of a method on `channel` in the bytes after its frame. A body larger than
/// `body_bytes_max` is not gathered: it is refused when its header is read alone.
pub(super) fn gather(
    input: &[u8],
    channel: u16,
    frame_bytes_max: u32,
    body_bytes_max: u64,
) -> Gathered<'_> {
    let next = |at: usize| -> Result<Frame<'_>, Option<usize>> {
        let rest = input.get(at..).unwrap_or_default();
        match peek_frame(rest, frame_bytes_max) {
            Ok(Ok(frame)) if frame.channel == channel => Ok(frame),
            Ok(Err(needed)) => Err(Some(at + needed)),
            _ => Err(None),
        }
    };
    let header = match next(0) {
        Ok(frame) if frame.kind == FrameType::Header => frame,
        Err(Some(needed)) => return Gathered::Needs(needed),
        _ => return Gathered::Mixed,
    };
    let first = header.len_bytes();
    let Some(length) = body_length(header.payload, body_bytes_max) else {
        // Refused when the header is read alone.
        return Gathered::Mixed;
    };
    let (mut at, mut left, mut one) = (first, length, &[][..]);
    while left > 0 {
        match next(at) {
            Ok(frame) if frame.kind == FrameType::Body && frame.payload.len() <= left => {
                one = frame.payload;
                if one.len() < left.min(BODY_FRAME_BYTES_MIN) {
                    return Gathered::Mixed;
                }
                at += frame.len_bytes();
                left -= one.len();
            }
            Err(Some(needed)) => {
                let frames = left.div_ceil(payload_bytes_max(frame_bytes_max));
                let rest = at + left + frames * FRAME_OVERHEAD_BYTES;
                return Gathered::Needs(needed.max(rest));
            }
            _ => return Gathered::Mixed,
        }
    }
    let body = match one.len() == length {
        true => one.into(),
        false => Body::of_frames(&input[first..at], length),
    };
    Gathered::Whole {
        header: header.payload,
        body,
        bytes: at,
    }
}

/// The body size in a content header, if the class is right and the size is allowed.
fn body_length(header: &[u8], body_bytes_max: u64) -> Option<usize> {
    if MethodId::peek(header).class != BASIC {
        return None;
    }
    let bytes: [u8; 8] = header.get(4..12)?.try_into().ok()?;
    let length = u64::from_be_bytes(bytes);
    (length <= body_bytes_max).then_some(usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Properties, method};

    const FRAME_BYTES: u32 = 4096;
    const BODY_BYTES_MAX: u64 = 1 << 20;

    fn content(channel: u16, body: &[u8], frame_bytes: u32) -> Vec<u8> {
        let (mut raw, mut out) = (Vec::new(), Output::default());
        Properties::default().write(&mut Writer::new(&mut raw));
        push_content(&mut out, channel, &raw, body.into(), frame_bytes, None);
        out.bytes
    }

    proptest! {
        #[test]
        fn a_content_is_gathered_however_it_is_cut(
            length in 0usize..20_000,
            frame_bytes in 1032u32..5000,
            cut in 0usize..40_000,
        ) {
            let frame_bytes = frame_bytes.min(FRAME_BYTES);
            let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let mut bytes = content(3, &body, frame_bytes);
            let whole = bytes.len();
            bytes.extend_from_slice(&HEARTBEAT);
            let shown = &bytes[..cut.min(bytes.len())];
            match gather(shown, 3, FRAME_BYTES, BODY_BYTES_MAX) {
                Gathered::Whole { header, body: found, bytes: consumed } => {
                    prop_assert_eq!(consumed, whole);
                    let (header, _) = ContentHeader::read(header).unwrap();
                    prop_assert_eq!(header.body_bytes, length as u64);
                    prop_assert_eq!(found.len(), length);
                    prop_assert_eq!(found.to_vec(), body);
                }
                Gathered::Needs(needed) => {
                    prop_assert!(shown.len() < whole);
                    prop_assert!(needed > shown.len() && needed <= whole);
                }
                Gathered::Mixed => prop_assert!(false),
            }
        }
    }

    proptest! {
        #[test]
        fn a_shared_body_is_the_same_bytes(
            before in 0usize..300_000,
            length in 0usize..100_000,
            frame_bytes in 4096u32..131_072,
        ) {
            let batch: Bytes = (0..before + length).map(|n| n as u8).collect();
            let body = &batch[before..];
            let mut out = Output::default();
            push_content(&mut out, 3, &[0, 0], body.into(), frame_bytes, Some(&batch));
            let written: Vec<u8> = out.parts().flatten().copied().collect();
            let mut copied = Output::default();
            push_content(&mut copied, 3, &[0, 0], body.into(), frame_bytes, None);
            prop_assert_eq!(&written, &copied.bytes);
            let is_worth_it = length >= SHARED_BYTES_MIN && length >= (before + length) / 8;
            prop_assert_eq!(out.is_plain(), !is_worth_it);
        }
    }

    #[test]
    fn another_frame_in_between_is_seen() {
        let whole = content(3, &[7; 9000], FRAME_BYTES);
        let header = peek_frame(&whole, FRAME_BYTES).unwrap().unwrap();
        for at in [0, header.len_bytes()] {
            let mut mixed = whole.clone();
            mixed.splice(at..at, HEARTBEAT);
            assert_eq!(
                gather(&mixed, 3, FRAME_BYTES, BODY_BYTES_MAX),
                Gathered::Mixed
            );
        }
        let mixed = gather(&whole, 4, FRAME_BYTES, BODY_BYTES_MAX);
        assert_eq!(mixed, Gathered::Mixed);
        assert_eq!(gather(&whole, 3, FRAME_BYTES, 8999), Gathered::Mixed);
        // Frames without `frame-end`: nothing may be kept for them.
        let mut empty = content(3, b"x", FRAME_BYTES);
        empty.truncate(empty.len() - 9);
        for length in [0, 1] {
            let mut small = content(3, &[7; 9000], FRAME_BYTES);
            small.truncate(header.len_bytes());
            push_frame(&mut small, BODY, 3, |out| out.resize(out.len() + length, 7));
            assert_eq!(
                gather(&small, 3, FRAME_BYTES, BODY_BYTES_MAX),
                Gathered::Mixed
            );
        }
        push_frame(&mut empty, BODY, 3, |_| {});
        assert_eq!(
            gather(&empty, 3, FRAME_BYTES, BODY_BYTES_MAX),
            Gathered::Mixed
        );
        let mut method = Vec::new();
        push_method(&mut method, 3, &Method::TxSelect(method::TxSelect {}));
        assert_eq!(
            gather(&method, 3, FRAME_BYTES, BODY_BYTES_MAX),
            Gathered::Mixed
        );
    }
}
