//! The bodies of `/mpub`: several messages in one request.
//!
//! Text form, the default: one message per line, `\n` between them, empty lines skipped.
//!
//! Binary form, `binary=true`:
//!
//! ```text
//! [ message count: u32 ] { [ size: u32 ][ body: size bytes ] } * count      big endian
//! ```
//!
//! Messages are not copied: the decoders return slices of the body. The length of the whole body is
//! checked where it is read. Sources: nsqd 1.3 `doMPUB`, `readMPUB`.

use crate::http::HttpError;

/// Maximum lengths of messages and bodies, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MpubLimits {
    /// `max_msg_size`.
    pub msg_bytes_max: usize,
    /// `max_body_size`.
    pub body_bytes_max: usize,
}

/// Splits a text body into its messages.
///
/// # Errors
/// [`HttpError::MsgTooBig`] if a line is longer than a message may be.
pub fn decode_text(body: &[u8], limits: MpubLimits) -> Result<Vec<&[u8]>, HttpError> {
    let lines = body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let mut messages = Vec::new();
    for line in lines {
        if line.len() > limits.msg_bytes_max {
            return Err(HttpError::MsgTooBig);
        }
        messages.push(line);
    }
    Ok(messages)
}

/// Splits a binary body into its messages. Bytes after the last message are ignored, as in nsqd.
///
/// # Errors
/// [`HttpError::BadBody`] if the count is missing or out of range,
/// [`HttpError::BadMessage`] if a message is cut short, empty or too long.
pub fn decode_binary(body: &[u8], limits: MpubLimits) -> Result<Vec<&[u8]>, HttpError> {
    let (count, mut rest) = take_length(body).ok_or(HttpError::BadBody)?;
    // The shortest message takes 5 bytes: its length and one byte.
    let count_max = limits.body_bytes_max.saturating_sub(4) / 5;
    if count == 0 || count > count_max {
        return Err(HttpError::BadBody);
    }
    // Capacity for at most as many messages as the body can hold, however large the count is.
    let mut messages = Vec::with_capacity(count.min(rest.len() / 5));
    for _ in 0..count {
        let (length, after) = take_length(rest).ok_or(HttpError::BadMessage)?;
        if length == 0 || length > limits.msg_bytes_max {
            return Err(HttpError::BadMessage);
        }
        let (message, after) = after
            .split_at_checked(length)
            .ok_or(HttpError::BadMessage)?;
        messages.push(message);
        rest = after;
    }
    Ok(messages)
}

/// Reads a length, in nsqd a signed 32-bit number. A negative one is returned as 0, which is also
/// invalid.
fn take_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((
        usize::try_from(i32::from_be_bytes(*head)).unwrap_or(0),
        rest,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    const LIMITS: MpubLimits = MpubLimits {
        msg_bytes_max: 10,
        body_bytes_max: 100,
    };

    fn encode(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut body = (messages.len() as u32).to_be_bytes().to_vec();
        for message in messages {
            body.extend((message.len() as u32).to_be_bytes());
            body.extend(message);
        }
        body
    }

    #[test]
    fn text_lines_are_messages_and_empty_lines_are_none() {
        let messages = decode_text(b"a\n\nbc\n\n", LIMITS).unwrap();
        assert_eq!(messages, [b"a".as_slice(), b"bc"]);
        assert!(decode_text(b"", LIMITS).unwrap().is_empty());
        assert!(decode_text(b"\n\n", LIMITS).unwrap().is_empty());
    }

    #[test]
    fn a_line_at_the_limit_passes_and_one_above_does_not() {
        assert_eq!(decode_text(b"0123456789\n", LIMITS).unwrap().len(), 1);
        assert_eq!(
            decode_text(b"0123456789a", LIMITS),
            Err(HttpError::MsgTooBig)
        );
    }

    #[test]
    fn binary_bodies_are_taken_apart() {
        let body = encode(&[b"a".to_vec(), b"bcd".to_vec()]);
        assert_eq!(
            decode_binary(&body, LIMITS).unwrap(),
            [b"a".as_slice(), b"bcd"]
        );
    }

    #[test]
    fn a_count_that_cannot_be_true_is_a_bad_body() {
        for body in [
            &b""[..],
            b"\0\0\0",
            b"\0\0\0\0",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x14",
        ] {
            assert_eq!(
                decode_binary(body, LIMITS),
                Err(HttpError::BadBody),
                "{body:?}"
            );
        }
    }

    #[test]
    fn a_message_that_is_short_empty_or_long_is_a_bad_message() {
        let short = b"\0\0\0\x02\0\0\0\x01a".to_vec();
        let cut = b"\0\0\0\x01\0\0\0\x05ab".to_vec();
        let empty = encode(&[Vec::new()]);
        let long = encode(&[vec![0; 11]]);
        let negative = b"\0\0\0\x01\xff\xff\xff\xffab".to_vec();
        for body in [short, cut, empty, long, negative] {
            assert_eq!(
                decode_binary(&body, LIMITS),
                Err(HttpError::BadMessage),
                "{body:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_within_their_bounds(
            body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Ok(messages) = decode_binary(&body, LIMITS) {
                prop_assert!(messages.len() * 5 <= body.len());
            }
            if let Ok(messages) = decode_text(&body, LIMITS) {
                let bytes: usize = messages.iter().map(|m| m.len()).sum();
                prop_assert!(bytes <= body.len());
            }
        }

        #[test]
        fn encoded_messages_are_decoded(
            messages in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 1..10), 1..8),
        ) {
            let body = encode(&messages);
            let decoded = decode_binary(&body, LIMITS).unwrap();
            prop_assert_eq!(decoded, messages);
        }
    }
}
