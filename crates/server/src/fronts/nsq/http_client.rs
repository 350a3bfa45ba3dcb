//! One HTTP request over a connection of its own, and its bounded answer: the client for auth
//! services and nsqlookupd.

use std::error::Error;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::http::request::Builder;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

/// Maximum bytes of an answer's body: enough for ten thousand channel names.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the answer is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    #[error("the answer is not HTTP")]
    Malformed,
}

impl ExchangeError {
    /// Finds the socket's error in the chain of causes, if there is one.
    fn of(error: &(dyn Error + 'static)) -> ExchangeError {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<io::Error>() {
                return ExchangeError::Io(io::Error::new(io.kind(), io.to_string()));
            }
            if error.is::<LengthLimitError>() {
                return ExchangeError::TooLong;
            }
            cause = error.source();
        }
        ExchangeError::Malformed
    }
}

/// A request to this host with the headers that NSQ's programs send.
pub(crate) fn request(host: &str, port: u16) -> Builder {
    Request::builder()
        .header(HOST, format!("{host}:{port}"))
        .header(USER_AGENT, "cloverleaf")
        .header(ACCEPT, "application/vnd.nsq; version=1.0")
        .header(CONNECTION, "close")
}

/// Sends a request and returns status and body of the answer. Dropping the future closes the
/// connection.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<String>,
) -> Result<(u16, Bytes), ExchangeError> {
    let mut http = http1::Builder::new();
    // As Go writes them: a service may compare the exact names.
    http.title_case_headers(true);
    let shaken = http.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| ExchangeError::of(&error))?;
    let answer = async {
        let sent = sender.send_request(request).await;
        let answer = sent.map_err(|error| ExchangeError::of(&error))?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
        let body = body.collect().await;
        let body = body.map_err(|error| ExchangeError::of(error.as_ref()))?;
        Ok((status, body.to_bytes()))
    };
    let mut answer = pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end before its answer is read. Then the answer's future returns the
        // rest, or the connection's error.
        _ = connection => answer.await,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The result for an answer, after which the peer closes the connection or keeps it open.
    async fn asked(answer: &[u8], closes: bool) -> Result<(u16, Bytes), ExchangeError> {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let request = request("h", 1).uri("/x").body(String::new()).unwrap();
        let peer = async {
            theirs.read_u8().await.unwrap();
            // It fails when the client has closed the connection because it has read enough.
            let _ = theirs.write_all(answer).await;
            if closes {
                let _ = theirs.shutdown().await;
            }
            std::future::pending().await
        };
        tokio::select! {
            answer = exchange(ours, request) => answer,
            () = peer => unreachable!("peer waits for ever"),
        }
    }

    #[tokio::test]
    async fn answers_are_read_in_each_form_and_bounded() {
        let long = format!(
            "HTTP/1.0 200 OK\r\n\r\n{}",
            "x".repeat(ANSWER_BYTES_MAX + 1)
        );
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       1\r\n{\r\n1;x\r\n}\r\n0\r\n\r\n";
        let not_http = "the answer is not HTTP";
        for (answer, closes, expected) in [
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
                false,
                "200 {}",
            ),
            ("HTTP/1.0 403 No\r\nA: b\r\n\r\nbody", true, "403 body"),
            (chunked, false, "200 {}"),
            (&long, false, "the answer is longer than 1048576 bytes"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{",
                true,
                "end of file before message length reached",
            ),
            ("", true, not_http),
            ("\r\n\r\n", true, not_http),
            ("SSH-2.0\r\n\r\n", true, not_http),
            ("HTTP/1.1 x\r\n\r\n", true, not_http),
            ("HTTP/1.1 200 OK\r\nx\r\n\r\n", true, not_http),
            ("HTTP/1.1 200 OK\r\n", true, not_http),
        ] {
            let found = match asked(answer.as_bytes(), closes).await {
                Ok((status, body)) => format!("{status} {}", String::from_utf8_lossy(&body)),
                Err(error) => error.to_string(),
            };
            assert_eq!(found, expected, "{answer:.60}");
        }
    }
}
