//! Frames and headers of requests and answers.
//!
//! ```text
//! request   size i32, api key i16, version i16, correlation id i32, client id (i16 length, UTF-8),
//!           [flexible versions: tagged fields], body
//! answer    size i32, correlation id i32, [flexible versions: tagged fields], body
//! ```
//!
//! Source: <https://kafka.apache.org/protocol#protocol_messages>.

use crate::apis::ApiVersions;
use crate::wire::{Malformed, Reader};

/// Bytes of the size field.
pub const SIZE_BYTES: usize = 4;

/// Bytes up to and including the correlation id, without the size field.
const HEADER_BYTES_MIN: usize = 8;

/// An invalid size field. The connection is closed, as in Kafka.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The request is larger than the limit.
    #[error("a request of {bytes} bytes, at most {bytes_max} are allowed")]
    TooLarge {
        /// The value of the size field.
        bytes: i64,
        /// The limit.
        bytes_max: usize,
    },
    /// The request is too short for a header.
    #[error("a request of {bytes} bytes has no room for its header")]
    TooSmall {
        /// The value of the size field.
        bytes: i64,
    },
}

/// The size of the first request in `input`, without its size field; `None`: the size field is
/// incomplete.
pub fn peek_size(input: &[u8], bytes_max: usize) -> Result<Option<usize>, FrameError> {
    let Some(size) = input.first_chunk::<SIZE_BYTES>() else {
        return Ok(None);
    };
    let size = i32::from_be_bytes(*size);
    let bytes = i64::from(size);
    match usize::try_from(size) {
        Ok(size) if size > bytes_max => Err(FrameError::TooLarge { bytes, bytes_max }),
        Ok(size) if size >= HEADER_BYTES_MIN => Ok(Some(size)),
        _ => Err(FrameError::TooSmall { bytes }),
    }
}

/// Recognizes another protocol by the first bytes of a stream. No Kafka request begins with them:
/// as a size field they would be hundreds of megabytes.
pub fn foreign(input: &[u8]) -> Option<&'static str> {
    match input {
        [0x16, 0x03, ..] => Some("a TLS handshake: this port is without TLS"),
        [b'G', b'E', b'T', b' ', ..]
        | [b'P', b'O', b'S', b'T', ..]
        | [b'H', b'E', b'A', b'D', ..] => Some("an HTTP request: this port is Kafka's"),
        [b' ', b' ', b'V', b'1' | b'2', ..] => Some("an NSQ client: this port is Kafka's"),
        _ => None,
    }
}

/// The header that every request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader<'a> {
    /// The API key.
    pub api_key: i16,
    /// The API version.
    pub version: i16,
    /// The id that the answer repeats.
    pub correlation_id: i32,
    /// The client's `client.id`.
    pub client_id: Option<&'a str>,
}

/// Decodes the part of a header that all versions of all requests share.
pub fn read_start(request: &[u8]) -> Result<RequestHeader<'static>, Malformed> {
    let mut reader = Reader::new(request, false);
    Ok(RequestHeader {
        api_key: reader.i16()?,
        version: reader.i16()?,
        correlation_id: reader.i32()?,
        client_id: None,
    })
}

/// Decodes the header of a request whose version is served. Also returns a reader of the body.
pub fn read_header<'a>(
    request: &'a [u8],
    versions: &ApiVersions,
) -> Result<(RequestHeader<'a>, Reader<'a>), Malformed> {
    // The client id keeps its old encoding in all versions (KIP-482).
    let mut reader = Reader::new(request, false);
    let (api_key, version, correlation_id) = (reader.i16()?, reader.i16()?, reader.i32()?);
    let client_id = reader.nullable_string()?;
    let mut body = Reader::new(reader.rest(), versions.is_flexible(version));
    body.skip_tagged()?;
    let header = RequestHeader {
        api_key,
        version,
        correlation_id,
        client_id,
    };
    Ok((header, body))
}

/// Begins an answer: a placeholder for its size, then its header. Returns the position at which it
/// begins; [`finish_answer`] fills in the size.
pub fn begin_answer(out: &mut Vec<u8>, correlation_id: i32, flexible: bool) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; SIZE_BYTES]);
    out.extend_from_slice(&correlation_id.to_be_bytes());
    if flexible {
        out.push(0);
    }
    start
}

/// Fills in the size of the answer that begins at `start`. It includes `shared_bytes`, the size of
/// the shared batches and file ranges of the answer, which are not in `out`.
pub fn finish_answer(out: &mut [u8], start: usize, shared_bytes: usize) {
    let size = out.len() - start - SIZE_BYTES + shared_bytes;
    let size = i32::try_from(size).unwrap_or(i32::MAX);
    out[start..start + SIZE_BYTES].copy_from_slice(&size.to_be_bytes());
}
