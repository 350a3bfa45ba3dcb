//! Requests to NSQ's HTTP API: one per connection, with bounded answers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use crate::timed::Timed;

/// Timeout of a request with its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bound of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The body of an answer with status 200; `None`: another status.
pub(super) fn request(address: SocketAddr, method: &str, path: &str) -> io::Result<Option<String>> {
    let mut stream = Timed::connect(&address, PATIENCE)?;
    // With HTTP 1.0 the answer has no chunks, and the connection ends after it.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\nAccept: */*\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let invalid = || io::Error::new(ErrorKind::InvalidData, "it does not answer in HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(invalid)?;
    let status = head.strip_prefix("HTTP/1.").ok_or_else(invalid)?;
    let is_ok = status.split_whitespace().nth(1) == Some("200");
    Ok(is_ok.then(|| body.to_owned()))
}
