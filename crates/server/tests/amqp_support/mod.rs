//! A real broker, and an AMQP client that builds its frames byte by byte.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use cloverleaf_server::config_value::ListenAddress;
use cloverleaf_server::{Config, Server};
use tempfile::TempDir;

use crate::support::PATIENCE;

/// The protocol header that a client sends first.
pub const HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";
/// Maximum body bytes of one frame.
const FRAME_BODY_BYTES_MAX: usize = 131_072 - 8;

pub struct Broker {
    pub server: Server,
    config: Config,
    _folder: TempDir,
}

/// Starts a broker; `change` adjusts its configuration for the test.
pub fn start(change: impl FnOnce(&mut Config)) -> Broker {
    let folder = tempfile::tempdir().unwrap();
    let any_port = || ListenAddress("127.0.0.1:0".to_owned());
    let mut config = Config::default();
    config.general.data_dir = folder.path().join("data");
    config.general.admin_address = any_port();
    config.general.disk_free_bytes_min.0 = 0;
    config.general.cores = 1;
    config.nsq.tcp_address.0.clear();
    config.nsq.http_address.0.clear();
    config.nsq.lookup_http_address.0.clear();
    config.kafka.address.0.clear();
    config.amqp.address = any_port();
    change(&mut config);
    Broker {
        server: Server::start(config.clone()).unwrap(),
        config,
        _folder: folder,
    }
}

impl Broker {
    pub fn address(&self) -> SocketAddr {
        self.server.addresses().of("amqp.address").unwrap()
    }

    /// Shuts the broker down in order, and starts another one on the same folder.
    pub fn restart(self) -> Broker {
        let Broker {
            server,
            config,
            _folder,
        } = self;
        server.shutdown();
        Broker {
            server: Server::start(config.clone()).unwrap(),
            config,
            _folder,
        }
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Requests a path of the admin interface and returns the whole answer.
pub fn ask_admin(broker: &Broker, method: &str, path: &str) -> String {
    let address = broker.server.addresses().of("admin_address").unwrap();
    let mut socket = connect(address);
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-length: 0\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// A client that uses channel 1 of its connection.
pub struct Client<S> {
    stream: S,
}

fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

impl<S: Read + Write> Client<S> {
    /// Opens the protocol and logs in; the caller reads whether the login was accepted.
    pub fn login(stream: S, user: &str, password: &str) -> Self {
        let mut client = Self { stream };
        client.stream.write_all(HEADER).unwrap();
        client.expect((10, 10));
        let response = format!("\0{user}\0{password}");
        // Only a client with this capability is told that its password is wrong.
        let wants = [short("authentication_failure_close"), b"t\x01".to_vec()].concat();
        let properties = [short("capabilities"), b"F".to_vec(), long(&wants)].concat();
        let arguments = [
            long(&properties),
            short("PLAIN"),
            long(response.as_bytes()),
            short("en_US"),
        ];
        client.method(0, (10, 11), &arguments.concat());
        client
    }

    /// Goes on after an accepted login, until channel 1 is open.
    pub fn open(&mut self) {
        let tune = self.expect((10, 30));
        self.method(0, (10, 31), &tune);
        self.method(0, (10, 40), &[short("/"), vec![0, 0]].concat());
        self.expect((10, 41));
        self.method(1, (20, 10), &[0]);
        self.expect((20, 11));
    }

    /// Closes the connection in order, and leaves the socket open.
    pub fn close(&mut self) {
        self.method(
            0,
            (10, 50),
            &[vec![0, 200], short("bye"), vec![0; 4]].concat(),
        );
        self.expect((10, 51));
    }

    /// Declares a durable queue.
    pub fn declare(&mut self, queue: &str) {
        let arguments = [vec![0, 0], short(queue), vec![2], long(b"")].concat();
        self.method(1, (50, 10), &arguments);
        self.expect((50, 11));
    }

    /// Publishes a persistent message to a queue, without confirm.
    pub fn publish(&mut self, queue: &str, body: &[u8]) {
        let arguments = [vec![0, 0], short(""), short(queue), vec![0]].concat();
        self.method(1, (60, 40), &arguments);
        let size = (body.len() as u64).to_be_bytes();
        // With delivery mode 2, persistent.
        let header = [&[0, 60, 0, 0][..], &size, &[0x10, 0, 2]].concat();
        self.frame(2, 1, &header);
        for piece in body.chunks(FRAME_BODY_BYTES_MAX) {
            self.frame(3, 1, piece);
        }
    }

    /// Gets a message and acknowledges it; `None` when the queue is empty.
    pub fn get(&mut self, queue: &str) -> Option<Vec<u8>> {
        let arguments = [vec![0, 0], short(queue), vec![1]].concat();
        self.method(1, (60, 70), &arguments);
        let (_, ids, _) = self.next_method();
        if ids == (60, 72) {
            return None;
        }
        assert_eq!(ids, (60, 71));
        let (kind, _, header) = self.next_frame();
        assert_eq!(kind, 2);
        let size = u64::from_be_bytes(header[4..12].try_into().unwrap());
        let mut body = Vec::new();
        while (body.len() as u64) < size {
            let (kind, _, piece) = self.next_frame();
            assert_eq!(kind, 3);
            body.extend(piece);
        }
        Some(body)
    }

    /// The code and the text with which the broker closes the connection.
    pub fn refusal(&mut self) -> (u16, String) {
        let arguments = self.expect((10, 50));
        let length = usize::from(arguments[2]);
        let text = String::from_utf8(arguments[3..3 + length].to_vec()).unwrap();
        (u16::from_be_bytes([arguments[0], arguments[1]]), text)
    }

    fn method(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        let ids = [class.to_be_bytes(), method.to_be_bytes()].concat();
        self.frame(1, channel, &[&ids, arguments].concat());
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&[kind][..], &channel.to_be_bytes(), &size].concat();
        let frame = [&head, payload, &[0xce]].concat();
        self.stream.write_all(&frame).unwrap();
    }

    fn next_frame(&mut self) -> (u8, u16, Vec<u8>) {
        let mut head = [0; 7];
        self.stream.read_exact(&mut head).unwrap();
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let mut payload = vec![0; size + 1];
        self.stream.read_exact(&mut payload).unwrap();
        assert_eq!(payload.pop(), Some(0xce));
        (head[0], u16::from_be_bytes([head[1], head[2]]), payload)
    }

    /// Channel, ids and arguments of the next method; heartbeats are skipped.
    fn next_method(&mut self) -> (u16, (u16, u16), Vec<u8>) {
        loop {
            let (kind, channel, payload) = self.next_frame();
            if kind == 1 {
                let ids = (
                    u16::from_be_bytes([payload[0], payload[1]]),
                    u16::from_be_bytes([payload[2], payload[3]]),
                );
                return (channel, ids, payload[4..].to_vec());
            }
        }
    }

    fn expect(&mut self, expected: (u16, u16)) -> Vec<u8> {
        let (_, ids, arguments) = self.next_method();
        assert_eq!(ids, expected);
        arguments
    }
}
