//! A small HTTP client, for NSQ's interfaces and the admin interface.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub use crate::support::{Broker, PATIENCE, eventually, start, start_driven};

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Broker {
    pub fn http(&self) -> SocketAddr {
        self.server.addresses().of("nsq.http_address").unwrap()
    }

    pub fn lookup(&self) -> SocketAddr {
        self.server
            .addresses()
            .of("nsq.lookup_http_address")
            .unwrap()
    }

    pub fn get(&self, target: &str) -> Answer {
        request(self.http(), "GET", target, b"")
    }

    pub fn post(&self, target: &str, body: &[u8]) -> Answer {
        request(self.http(), "POST", target, body)
    }

    pub fn put(&self, target: &str, body: &[u8]) -> Answer {
        request(self.http(), "PUT", target, body)
    }
}

/// Sends one request with a body of known length.
pub fn request(address: SocketAddr, method: &str, target: &str, body: &[u8]) -> Answer {
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    exchange(address, &[head.as_bytes(), body])
}

/// Sends bytes as they are and reads one answer. The broker may answer without reading all of them.
pub fn exchange(address: SocketAddr, pieces: &[&[u8]]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for piece in pieces {
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !is_whole(&answer) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0);
    Answer {
        status,
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    length
        .and_then(|length| length.parse().ok())
        .is_some_and(|length: usize| body.len() >= length)
}
