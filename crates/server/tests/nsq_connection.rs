//! NSQ's TCP protocol over real sockets: cases that need a socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::nsq_support::{Broker, PATIENCE, start, start_driven};
use cloverleaf_server::config_value::AuthMethod;

struct Client {
    stream: TcpStream,
}

/// Type and body of a frame.
type Frame = (u32, Vec<u8>);

fn connect_silent(broker: &Broker) -> Client {
    let stream =
        TcpStream::connect(broker.server.addresses().of("nsq.tcp_address").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    Client { stream }
}

fn connect(broker: &Broker) -> Client {
    let mut client = connect_silent(broker);
    client.send(b"  V2");
    client
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn frame(&mut self) -> Frame {
        read_frame(&mut self.stream)
    }

    fn expect(&mut self, kind: u32, body: &str) {
        let (got, text) = self.frame();
        assert_eq!((got, &*String::from_utf8_lossy(&text)), (kind, body));
    }

    fn expect_ok(&mut self) {
        self.expect(0, "OK");
    }

    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b""),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }

    fn subscribe(&mut self, topic: &str, channel: &str, count: u32) {
        self.send(format!("SUB {topic} {channel}\nRDY {count}\n").as_bytes());
        self.expect_ok();
    }

    /// Finishes the next message and returns its body.
    fn message(&mut self) -> Vec<u8> {
        let (kind, body) = self.frame();
        assert_eq!(kind, 2, "{}", String::from_utf8_lossy(&body));
        let id = &body[10..26];
        self.send(&[b"FIN ", id, b"\n"].concat());
        body[26..].to_vec()
    }
}

fn read_frame(stream: &mut impl Read) -> Frame {
    let mut head = [0; 8];
    stream.read_exact(&mut head).unwrap();
    let size = u32::from_be_bytes(head[..4].try_into().unwrap());
    let kind = u32::from_be_bytes(head[4..].try_into().unwrap());
    let mut body = vec![0; size as usize - 4];
    stream.read_exact(&mut body).unwrap();
    (kind, body)
}

fn sized(line: &str, body: &[u8]) -> Vec<u8> {
    let size = (body.len() as u32).to_be_bytes();
    [line.as_bytes(), &size, body].concat()
}

fn publish(topic: &str, body: &[u8]) -> Vec<u8> {
    sized(&format!("PUB {topic}\n"), body)
}

fn publish_many(topic: &str, bodies: &[&[u8]]) -> Vec<u8> {
    let mut inner = Vec::from((bodies.len() as u32).to_be_bytes());
    for body in bodies {
        inner.extend_from_slice(&sized("", body));
    }
    sized(&format!("MPUB {topic}\n"), &inner)
}

#[test]
fn commands_may_come_byte_by_byte() {
    let broker = start(|_| {});
    let mut client = connect_silent(&broker);
    let input = [&b"  V2"[..], &publish("t", b"one"), b"SUB t ch\nRDY 1\n"].concat();
    for byte in input {
        client.send(&[byte]);
    }
    client.expect_ok();
    client.expect_ok();
    assert_eq!(client.message(), b"one");
}

#[test]
fn a_frame_larger_than_any_read_arrives_whole() {
    let broker = start(|_| {});
    let mut client = connect(&broker);
    let bodies: Vec<Vec<u8>> = (0..40_u8).map(|n| vec![n; 100_000]).collect();
    let slices: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    // Two large commands in a row, followed by a small one.
    let large = publish_many("t", &slices);
    client.send(&[&large[..], &large, &publish("t", b"end")].concat());
    for _ in 0..3 {
        client.expect_ok();
    }
    client.subscribe("t", "ch", 10);
    for body in bodies.iter().chain(&bodies) {
        assert!(client.message() == *body);
    }
    assert_eq!(client.message(), b"end");
}

#[test]
fn bad_input_gets_an_error_and_ends_only_its_connection() {
    let broker = start(|_| {});
    let mut other = connect(&broker);
    other.subscribe("t", "ch", 10);
    let mut client = connect_silent(&broker);
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    client.expect(1, "E_BAD_PROTOCOL");
    client.expect_end();
    let huge = [b"PUB t\n", &0x7fff_ffff_u32.to_be_bytes()[..]].concat();
    for (input, expect) in [
        (
            b"\0\x01\x02\n".to_vec(),
            "E_INVALID invalid command \0\x01\x02",
        ),
        (
            huge,
            "E_BAD_MESSAGE PUB message too big 2147483647 > 1048576",
        ),
        (
            vec![b'x'; 20_000],
            "E_INVALID command line longer than 16384 bytes",
        ),
    ] {
        let mut client = connect(&broker);
        client.send(&input);
        // Input beyond the part that is read must not destroy the answer.
        let _ = client.stream.write_all(&[b'\n'; 100_000]);
        client.expect(1, expect);
        client.expect_end();
    }
    let mut client = connect(&broker);
    client.send(&publish("t", b"cut off")[..12]);
    client.stream.shutdown(Shutdown::Write).unwrap();
    client.expect(1, "E_BAD_MESSAGE PUB failed to read message body");
    client.expect_end();
    other.send(&publish("t", b"fine"));
    let mut got = [other.frame(), other.frame()];
    got.sort();
    assert_eq!(got[0], (0, b"OK".to_vec()));
    assert!(got[1].1.ends_with(b"fine"));
}

#[test]
fn a_consumer_that_reads_nothing_blocks_no_other() {
    let broker = start(|_| {});
    let mut stuck = connect(&broker);
    stuck.subscribe("t", "stuck", 2500);
    let mut reader = connect(&broker);
    reader.subscribe("t", "read", 2500);
    let mut producer = connect(&broker);
    let body = vec![7; 10_000];
    let bodies = vec![&body[..]; 100];
    for _ in 0..30 {
        producer.send(&publish_many("t", &bodies));
        producer.expect_ok();
    }
    for _ in 0..3000 {
        assert_eq!(reader.message().len(), body.len());
    }
    // The consumer was only slow: all of its messages are still there.
    for _ in 0..3000 {
        assert_eq!(stuck.message().len(), body.len());
    }
}

#[test]
fn heartbeats_come_without_any_traffic() {
    let (broker, mut time) = start_driven(|_| {});
    let mut client = connect(&broker);
    client.send(&sized("IDENTIFY\n", br#"{"heartbeat_interval":1000}"#));
    client.expect_ok();
    for _ in 0..2 {
        time.pass(Duration::from_millis(999));
        client.send(b"NOP\n");
        time.pass(Duration::from_millis(1));
        client.expect(0, "_heartbeat_");
    }
    // After two silent intervals, the broker ends the connection.
    time.pass(Duration::from_millis(1000));
    client.expect(0, "_heartbeat_");
    time.pass(Duration::from_millis(999));
    client.expect_end();
}

#[test]
fn a_client_without_the_magic_is_closed() {
    let (broker, mut time) = start_driven(|config| {
        config.nsq.client_timeout = Duration::from_secs(200);
    });
    let [mut slow, mut silent] = [connect_silent(&broker), connect_silent(&broker)];
    slow.send(b"  V");
    silent.send(b"  V");
    // Connections are accepted in order: once this one is served, the silent ones are accepted.
    let mut last = connect(&broker);
    last.send(&publish("t", b"before"));
    last.expect_ok();
    time.pass(Duration::from_secs(199));
    slow.send(b"2");
    slow.send(&publish("t", b"in time"));
    slow.expect_ok();
    time.pass(Duration::from_secs(2));
    silent.expect_end();
}

#[test]
fn a_client_that_closes_its_side_gets_pending_answers() {
    let broker = start(|_| {});
    let mut client = connect(&broker);
    client.send(&publish("t", b"x").repeat(1000));
    client.stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..1000 {
        client.expect_ok();
    }
    client.expect_end();
}

#[test]
fn shutting_down_closes_connections_and_loses_nothing() {
    let broker = start(|_| {});
    let mut idle = connect(&broker);
    idle.subscribe("t", "ch", 1);
    let mut client = connect(&broker);
    client.send(&publish("t", b"x"));
    client.expect_ok();
    assert_eq!(idle.message(), b"x");
    broker.server.shutdown();
    idle.expect_end();
    client.expect_end();
}

const NEGOTIATE: &str = r#"{"feature_negotiation":true,"#;

#[test]
fn a_connection_can_be_compressed_with_snappy() {
    let broker = start(|_| {});
    let mut client = connect(&broker);
    client.send(&sized(
        "IDENTIFY\n",
        format!(r#"{NEGOTIATE}"snappy":true}}"#).as_bytes(),
    ));
    let (_, answer) = client.frame();
    assert!(String::from_utf8_lossy(&answer).contains(r#""snappy":true"#));
    let mut reader = snap::read::FrameDecoder::new(client.stream.try_clone().unwrap());
    let mut writer = snap::write::FrameEncoder::new(client.stream);
    assert_eq!(read_frame(&mut reader).1, b"OK");
    let body = vec![b'z'; 500_000];
    writer.write_all(&publish("t", &body)).unwrap();
    writer.write_all(b"SUB t ch\nRDY 1\n").unwrap();
    writer.flush().unwrap();
    assert_eq!(read_frame(&mut reader).1, b"OK");
    assert_eq!(read_frame(&mut reader).1, b"OK");
    assert!(read_frame(&mut reader).1.ends_with(&body));
}

#[test]
fn a_connection_can_be_compressed_with_deflate() {
    let broker = start(|_| {});
    let mut client = connect(&broker);
    let negotiate = format!(r#"{NEGOTIATE}"deflate":true,"deflate_level":3}}"#);
    client.send(&sized("IDENTIFY\n", negotiate.as_bytes()));
    let (_, answer) = client.frame();
    assert!(String::from_utf8_lossy(&answer).contains(r#""deflate_level":3"#));
    let reader = flate2::read::DeflateDecoder::new(client.stream.try_clone().unwrap());
    // With a smaller buffer this decoder would wait for the socket before it returns bytes that it
    // has.
    let mut reader = BufReader::with_capacity(1 << 20, reader);
    let level = flate2::Compression::new(3);
    let mut writer = flate2::write::DeflateEncoder::new(client.stream, level);
    assert_eq!(read_frame(&mut reader).1, b"OK");
    let body = vec![b'z'; 500_000];
    writer.write_all(&publish("t", &body)).unwrap();
    writer.write_all(b"SUB t ch\nRDY 1\n").unwrap();
    writer.flush().unwrap();
    assert_eq!(read_frame(&mut reader).1, b"OK");
    assert_eq!(read_frame(&mut reader).1, b"OK");
    assert!(read_frame(&mut reader).1.ends_with(&body));
}

#[test]
fn malformed_compression_ends_the_connection() {
    let broker = start(|_| {});
    let mut client = connect(&broker);
    client.send(&sized(
        "IDENTIFY\n",
        format!(r#"{NEGOTIATE}"snappy":true}}"#).as_bytes(),
    ));
    client.frame();
    client.send(b"PUB in the clear\n");
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).unwrap();
}

/// An auth service that gives `answers` in turn; the receiver gets the requests.
fn auth_service(answers: Vec<String>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, asked) = channel();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut request, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.strip_prefix("Content-Length: ") {
                    length = value.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
                request.push_str(line.split("\r\n").next().unwrap());
                request.push('\n');
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            request.push_str(&String::from_utf8(body).unwrap());
            sender.send(request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, asked)
}

const ALLOWED: &str = r#"{"ttl":60,"identity":"me","authorizations":[
    {"topic":"^t$","channels":[".*"],"permissions":["subscribe","publish"]}]}"#;

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn the_auth_service_decides() {
    let none = ok(r#"{"ttl":1,"authorizations":[]}"#);
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{ALLOWED}\r\n0\r\n\r\n",
        ALLOWED.len()
    );
    let failed = "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_owned();
    let (address, asked) = auth_service(vec![ok(ALLOWED), none, failed, chunked]);
    let broker = start(|config| config.nsq.auth_http_address = vec![address]);
    let mut client = connect(&broker);
    client.send(&[&sized("AUTH\n", b"a secret")[..], &publish("t", b"x")].concat());
    client.expect(
        0,
        r#"{"identity":"me","identity_url":"","permission_count":1}"#,
    );
    client.expect_ok();
    let request = asked.recv().unwrap();
    let query = "/auth?common_name=&remote_ip=127.0.0.1&secret=a+secret&tls=false";
    assert!(
        request.starts_with(&format!("GET {query} HTTP/1.1\n")),
        "{request}"
    );
    assert!(
        request.contains("\nAccept: application/vnd.nsq; version=1.0\n"),
        "{request}"
    );
    client.send(&publish("u", b"x"));
    client.expect(1, "E_UNAUTHORIZED AUTH failed for PUB on \"u\" \"\"");
    client.expect_end();
    for expect in [
        "E_UNAUTHORIZED AUTH no authorizations found",
        "E_AUTH_FAILED AUTH failed",
    ] {
        let mut client = connect(&broker);
        client.send(&sized("AUTH\n", b"x"));
        client.expect(1, expect);
        client.expect_end();
    }
    let mut client = connect(&broker);
    client.send(&sized("AUTH\n", b"x"));
    client.expect(
        0,
        r#"{"identity":"me","identity_url":"","permission_count":1}"#,
    );
    client.subscribe("t", "ch", 1);
    let mut client = connect(&broker);
    client.send(b"SUB t ch\n");
    client.expect(1, "E_AUTH_FIRST AUTH required before SUB");
}

#[test]
fn the_auth_service_can_be_asked_by_post() {
    let (address, asked) = auth_service(vec![ok(ALLOWED)]);
    let broker = start(|config| {
        config.nsq.auth_http_address = vec![format!("http://{address}/other")];
        config.nsq.auth_http_request_method = AuthMethod::Post;
    });
    let mut client = connect(&broker);
    client.send(&sized("AUTH\n", b"s"));
    client.expect(
        0,
        r#"{"identity":"me","identity_url":"","permission_count":1}"#,
    );
    let request = asked.recv().unwrap();
    assert!(request.starts_with("POST /other HTTP/1.1\n"), "{request}");
    let body = r#"{"common_name":[""],"remote_ip":["127.0.0.1"],"secret":["s"],"tls":["false"]}"#;
    assert!(request.ends_with(body), "{request}");
}
