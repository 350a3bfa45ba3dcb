//! A Kafka client that builds its requests byte by byte, only in versions without compact lengths.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{SystemTime, UNIX_EPOCH};

use cloverleaf_log::BatchBuilder;

pub use crate::support::{Broker, PATIENCE, config, eventually, start, start_driven};

impl Broker {
    pub fn address(&self) -> SocketAddr {
        self.server.addresses().of("kafka.address").unwrap()
    }

    pub fn socket(&self) -> TcpStream {
        connect(self.address())
    }

    pub fn client(&self) -> Client<TcpStream> {
        Client::new(self.socket())
    }

    /// The admin interface's answer, head and body.
    pub fn admin(&self, target: &str) -> String {
        let mut socket = connect(self.server.addresses().of("admin_address").unwrap());
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A client over any stream.
pub struct Client<S> {
    pub stream: S,
    correlation_id: i32,
}

pub const PRODUCE: i16 = 0;
pub const FETCH: i16 = 1;
pub const METADATA: i16 = 3;
pub const OFFSET_COMMIT: i16 = 8;
pub const JOIN_GROUP: i16 = 11;
pub const API_VERSIONS: i16 = 18;

impl<S: Read + Write> Client<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            correlation_id: 0,
        }
    }

    /// The bytes of a request, in a version without compact lengths.
    pub fn request(&mut self, key: i16, version: i16, body: &[u8]) -> Vec<u8> {
        self.correlation_id += 1;
        let mut request = Vec::new();
        request.extend_from_slice(&key.to_be_bytes());
        request.extend_from_slice(&version.to_be_bytes());
        request.extend_from_slice(&self.correlation_id.to_be_bytes());
        string(&mut request, "raw");
        request.extend_from_slice(body);
        let size = (request.len() as i32).to_be_bytes();
        [&size[..], &request].concat()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    /// The body of the next answer.
    pub fn answer(&mut self) -> Vec<u8> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head).unwrap();
        let size = i32::from_be_bytes(head[..4].try_into().unwrap());
        let mut body = vec![0; size as usize - 4];
        self.stream.read_exact(&mut body).unwrap();
        let answered = i32::from_be_bytes(head[4..].try_into().unwrap());
        assert_eq!(answered, self.correlation_id, "answers come in order");
        body
    }

    pub fn ask(&mut self, key: i16, version: i16, body: &[u8]) -> Vec<u8> {
        let request = self.request(key, version, body);
        self.send(&request);
        self.answer()
    }

    /// The keys of the requests that the broker serves.
    pub fn api_versions(&mut self) -> Vec<i16> {
        let answer = self.ask(API_VERSIONS, 0, &[]);
        let mut fields = Fields(&answer);
        assert_eq!(fields.i16(), 0);
        (0..fields.i32())
            .map(|_| {
                let key = fields.i16();
                fields.take(4);
                key
            })
            .collect()
    }

    /// Creates a topic as clients do: by a Metadata request for it.
    pub fn make_topic(&mut self, topic: &str) {
        let mut body = Vec::from(1i32.to_be_bytes());
        string(&mut body, topic);
        self.ask(METADATA, 1, &body);
    }

    /// The host and port at which the broker says it can be reached.
    pub fn advertised(&mut self) -> (String, i32) {
        // A request for no topics.
        let answer = self.ask(METADATA, 1, &0i32.to_be_bytes());
        let mut fields = Fields(&answer);
        assert_eq!(fields.i32(), 1);
        fields.i32();
        (fields.string(), fields.i32())
    }

    /// Produces to partition 0; returns the error and the offset of the first message.
    pub fn produce(&mut self, topic: &str, acks: i16, bodies: &[&[u8]]) -> (i16, i64) {
        let body = produce_body(topic, acks, bodies);
        let answer = self.ask(PRODUCE, 3, &body);
        let mut fields = Fields(&answer);
        assert_eq!((fields.i32(), fields.string().as_str()), (1, topic));
        assert_eq!((fields.i32(), fields.i32()), (1, 0));
        (fields.i16(), fields.i64())
    }

    /// Fetches from partition 0; returns the error and the stored batches.
    pub fn fetch(&mut self, topic: &str, offset: i64, bytes_max: i32) -> (i16, Vec<u8>) {
        let request = self.request(FETCH, 4, &fetch_body(topic, offset, bytes_max));
        self.send(&request);
        let answer = self.answer();
        fetched(topic, &answer)
    }
}

pub fn fetch_body(topic: &str, offset: i64, bytes_max: i32) -> Vec<u8> {
    let mut body = Vec::new();
    // Replica, maximum wait, minimum bytes, maximum bytes, isolation level.
    for field in [-1, 500, 1, bytes_max] {
        body.extend_from_slice(&i32::to_be_bytes(field));
    }
    body.push(0);
    body.extend_from_slice(&1i32.to_be_bytes());
    string(&mut body, topic);
    body.extend_from_slice(&1i32.to_be_bytes());
    body.extend_from_slice(&0i32.to_be_bytes());
    body.extend_from_slice(&offset.to_be_bytes());
    body.extend_from_slice(&bytes_max.to_be_bytes());
    body
}

/// Error and batches of an answer to [`fetch_body`].
pub fn fetched(topic: &str, answer: &[u8]) -> (i16, Vec<u8>) {
    let mut fields = Fields(answer);
    fields.take(4);
    assert_eq!((fields.i32(), fields.string().as_str()), (1, topic));
    assert_eq!((fields.i32(), fields.i32()), (1, 0));
    let error = fields.i16();
    fields.take(16);
    // The number of aborted transactions.
    fields.i32();
    let length = fields.i32().max(0) as usize;
    (error, fields.take(length).to_vec())
}

pub fn produce_body(topic: &str, acks: i16, bodies: &[&[u8]]) -> Vec<u8> {
    // With the current time, because retention would delete older messages.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut builder = BatchBuilder::with_capacity(0, since.as_millis() as i64);
    for body in bodies {
        builder.push(None, Some(body), &[]);
    }
    let batch = builder.finish();
    let mut body = Vec::new();
    body.extend_from_slice(&(-1i16).to_be_bytes());
    body.extend_from_slice(&acks.to_be_bytes());
    body.extend_from_slice(&5_000i32.to_be_bytes());
    body.extend_from_slice(&1i32.to_be_bytes());
    string(&mut body, topic);
    body.extend_from_slice(&1i32.to_be_bytes());
    body.extend_from_slice(&0i32.to_be_bytes());
    let bytes = batch.bytes();
    body.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    body.extend_from_slice(bytes);
    body
}

pub fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as i16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Reads an answer field by field.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    pub fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    pub fn string(&mut self) -> String {
        let length = self.i16() as usize;
        String::from_utf8(self.take(length).to_vec()).unwrap()
    }
}

/// Whether the bytes of the stored batches contain this body.
pub fn holds(batches: &[u8], body: &[u8]) -> bool {
    batches.windows(body.len()).any(|window| window == body)
}
