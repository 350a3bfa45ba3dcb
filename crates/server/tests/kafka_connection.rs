//! Kafka over real sockets: cases that need a socket.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::kafka_support::{
    API_VERSIONS, Client, FETCH, config, fetch_body, fetched, holds, start, start_driven,
};
use crate::support::expect_shutdown;
use cloverleaf_server::Server;
use cloverleaf_server::config_value::HostPort;

#[test]
fn messages_go_in_and_come_out() {
    let broker = start(|_| {});
    let mut client = broker.client();
    let keys = client.api_versions();
    assert!(keys.contains(&0) && keys.contains(&1), "{keys:?}");
    client.make_topic("t");
    assert_eq!(client.produce("t", 1, &[b"one", b"two"]), (0, 0));
    assert_eq!(client.produce("t", -1, &[b"three"]), (0, 2));
    let (error, batches) = client.fetch("t", 0, 1 << 20);
    assert_eq!(error, 0);
    for body in ["one", "two", "three"] {
        assert!(holds(&batches, body.as_bytes()), "{body}");
    }
}

#[test]
fn requests_may_come_byte_by_byte_and_many_at_once() {
    let broker = start(|_| {});
    let mut client = broker.client();
    client.stream.set_nodelay(true).unwrap();
    let request = client.request(API_VERSIONS, 0, &[]);
    for byte in &request {
        client.send(&[*byte]);
    }
    let first = client.answer();
    let mut other = broker.client();
    let request = other.request(API_VERSIONS, 0, &[]);
    other.send(&request.repeat(3));
    for _ in 0..3 {
        assert_eq!(other.answer(), first);
    }
}

#[test]
fn a_request_larger_than_any_read_arrives_whole() {
    let broker = start(|config| config.kafka.batch_bytes_max.0 = 8 << 20);
    let mut client = broker.client();
    client.make_topic("t");
    let body = vec![b'x'; 5 << 20];
    for round in 0..3 {
        assert_eq!(client.produce("t", 1, &[&body]), (0, round));
    }
    assert_eq!(client.produce("t", 1, &[b"small"]), (0, 3));
    let (error, batches) = client.fetch("t", 1, 6 << 20);
    assert_eq!(error, 0);
    assert!(batches.len() > 5 << 20, "{}", batches.len());
}

fn expect_end(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end too: the broker has closed the socket with unread input.
    if stream.read_to_end(&mut rest).is_ok() {
        assert_eq!(rest, b"");
    }
}

#[test]
fn invalid_requests_end_only_their_connection() {
    let broker = start(|config| {
        config.kafka.batch_bytes_max.0 = 10_000;
        config.kafka.request_bytes_max.0 = 10_000 + 65_536;
        config.kafka.control_request_bytes_max.0 = 1_000;
    });
    let mut good = broker.client();
    good.api_versions();
    for bytes in [
        // Too large; too large for a request other than Produce; negative; too small; HTTP.
        &[0, 2, 0, 0][..],
        &[0, 0, 8, 0, 0, 18, 0, 0],
        &[0xff; 8],
        &[0, 0, 0, 2, 0, 18],
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut socket = broker.socket();
        socket.write_all(bytes).unwrap();
        expect_end(socket);
    }
    good.api_versions();
    good.make_topic("t");
    let (error, _) = good.produce("t", 1, &[&[0; 5_000]]);
    assert_eq!(
        error, 0,
        "a Produce may be larger than what is kept in memory"
    );
}

#[test]
fn half_a_request_and_silence_end_the_connection_in_time() {
    let (broker, mut time) = start_driven(|config| {
        config.kafka.idle_timeout = Duration::from_secs(300);
    });
    let mut silent = broker.client();
    silent.api_versions();
    let request = silent.request(API_VERSIONS, 0, &[]);
    silent.send(&request[..5]);
    time.pass(Duration::from_secs(299));
    // The connection was still served, and its idle time starts again from here.
    silent.send(&request[5..]);
    silent.answer();
    silent.send(&request[..5]);
    // In two steps, because the test's own connections would reach the timeout too.
    time.pass(Duration::from_secs(200));
    time.pass(Duration::from_secs(101));
    expect_end(silent.stream);
}

#[test]
fn a_client_that_sends_now_and_then_is_not_idle() {
    let (broker, mut time) = start_driven(|config| {
        config.kafka.idle_timeout = Duration::from_millis(700);
    });
    let mut client = broker.client();
    // Each Fetch waits up to half a second without a byte in either direction; the message of
    // another connection ends its wait early.
    client.make_topic("t");
    client.produce("t", 1, &[b"first"]);
    let mut other = broker.client();
    for offset in 1..6 {
        let request = client.request(FETCH, 4, &fetch_body("t", offset, 1000));
        client.send(&request);
        time.pass(Duration::from_millis(400));
        other.produce("t", 1, &[b"more"]);
        let answer = client.answer();
        assert!(holds(&fetched("t", &answer).1, b"more"));
    }
}

/// Produces 24 messages of a mebibyte, which do not fit into the socket's buffers.
fn fill<S: Read + Write>(client: &mut Client<S>) -> Vec<Vec<u8>> {
    let bodies: Vec<Vec<u8>> = (0..24).map(|n| vec![n; 1 << 20]).collect();
    client.make_topic("t");
    for body in &bodies {
        assert_eq!(client.produce("t", 1, &[body]).0, 0);
    }
    bodies
}

#[test]
fn a_slow_reader_gets_everything_and_delays_no_other() {
    let broker = start(|config| config.kafka.batch_bytes_max.0 = 2 << 20);
    let mut producer = broker.client();
    let bodies = fill(&mut producer);
    let mut slow = broker.client();
    let request = slow.request(FETCH, 4, &fetch_body("t", 0, 50 << 20));
    slow.send(&request);
    // The client reads nothing yet.
    let mut peeked = [0; 8];
    while slow.stream.peek(&mut peeked).unwrap() < 8 {}
    let mut quick = broker.client();
    quick.api_versions();
    assert_eq!(quick.produce("t", 1, &[b"meanwhile"]), (0, 24));
    let answer = slow.answer();
    let (error, batches) = fetched("t", &answer);
    assert_eq!(error, 0);
    let mut rest = &batches[..];
    for body in &bodies {
        let batch = u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize + 12;
        // The value is followed by the number of headers, one byte.
        assert!(rest[batch - 1 - body.len()..batch - 1] == body[..]);
        rest = &rest[batch..];
    }
    assert!(rest.is_empty() || holds(rest, b"meanwhile"));
}

#[test]
fn a_shutdown_answers_pending_requests() {
    let (broker, _time) =
        start_driven(|config| config.general.drain_timeout = Duration::from_secs(3600));
    let mut client = broker.client();
    client.make_topic("t");
    client.produce("t", 1, &[b"one"]);
    let mut body = fetch_body("t", 1, 1000);
    // A wait of a minute, which the shutdown has to end.
    body[4..8].copy_from_slice(&60_000i32.to_be_bytes());
    let request = client.request(FETCH, 4, &body);
    client.send(&request);
    client.stream.shutdown(Shutdown::Write).ok();
    expect_shutdown(broker);
}

#[test]
fn clients_get_the_address_they_reached_or_the_configured_one() {
    let broker = start(|_| {});
    let port = i32::from(broker.address().port());
    assert_eq!(broker.client().advertised(), ("127.0.0.1".to_owned(), port));
    let broker = start(|config| {
        config.kafka.advertised_address = Some(HostPort {
            host: "kafka.example.com".to_owned(),
            port: 19092,
        });
    });
    let told = ("kafka.example.com".to_owned(), 19092);
    assert_eq!(broker.client().advertised(), told);
}

#[test]
fn a_port_that_is_taken_is_named_with_its_option() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    config.kafka.address.0 = taken.local_addr().unwrap().to_string();
    let error = Server::start(config).err().unwrap().to_string();
    for part in ["(kafka.address)", "--kafka-address", "another broker"] {
        assert!(error.contains(part), "{error}");
    }
}
