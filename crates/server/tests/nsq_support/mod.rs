//! A real broker on ports of the system's choice, and an HTTP client of a few lines.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use cloverleaf_server::config_value::ListenAddress;
use cloverleaf_server::{Config, Server};
use tempfile::TempDir;

/// How long anything may take in a test before it counts as never.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Broker {
    pub server: Server,
    _folder: TempDir,
}

/// Starts a broker; `change` sets what the test is about.
pub fn start(change: impl FnOnce(&mut Config)) -> Broker {
    let folder = tempfile::tempdir().unwrap();
    let any_port = || ListenAddress("127.0.0.1:0".to_owned());
    let mut config = Config::default();
    config.general.data_dir = folder.path().join("data");
    config.general.admin_address = any_port();
    config.general.cores = 1;
    config.nsq.tcp_address = any_port();
    config.nsq.http_address = any_port();
    config.nsq.https_address = any_port();
    config.nsq.lookup_http_address = any_port();
    config.kafka.address = any_port();
    config.amqp.address = any_port();
    config.nsq.broadcast_address = "127.0.0.1".to_owned();
    change(&mut config);
    Broker {
        server: Server::start(config).unwrap(),
        _folder: folder,
    }
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Broker {
    pub fn http(&self) -> SocketAddr {
        self.server.addresses().nsq_http.unwrap()
    }

    pub fn lookup(&self) -> SocketAddr {
        self.server.addresses().nsq_lookup_http.unwrap()
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

/// One request with a body of known length.
pub fn request(address: SocketAddr, method: &str, target: &str, body: &[u8]) -> Answer {
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    exchange(address, &[head.as_bytes(), body])
}

/// Sends bytes as they are and reads one answer. A broker that has answered need not read on.
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

/// Waits until `condition` holds.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(within(PATIENCE, condition), "never: {what}");
}

/// Whether a condition comes true in time.
pub fn within(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
