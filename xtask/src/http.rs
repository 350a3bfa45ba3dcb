//! As much of an HTTP client as the tests need: one request per connection, HTTP/1.0.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail};

use crate::wait;

/// An answer without its headers.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; any status but 200 is an error.
    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        if self.status != 200 {
            bail!("status {}: {}", self.status, self.text());
        }
        serde_json::from_slice(&self.body).with_context(|| format!("no JSON: {}", self.text()))
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    request(address, "GET", path, &[])
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &[u8]) -> Result<Answer> {
    request(address, "POST", path, body)
}

fn request(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
    let what = || format!("{method} {path} at {address}");
    let mut stream = TcpStream::connect_timeout(&address, wait::HANG).with_context(what)?;
    stream.set_read_timeout(Some(wait::HANG))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).with_context(what)?;
    stream.write_all(body).with_context(what)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).with_context(what)?;
    let end = bytes
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .with_context(what)?;
    let first = String::from_utf8_lossy(&bytes[..end]);
    let status = first
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok());
    Ok(Answer {
        status: status.with_context(what)?,
        body: bytes.split_off(end + 4),
    })
}
