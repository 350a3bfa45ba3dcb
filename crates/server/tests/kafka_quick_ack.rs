//! A synchronous producer with Nagle's algorithm: it writes each request in pieces, and its kernel
//! holds the second piece back until the first is acknowledged.
//!
//! The wait of its kernel is not measured. The test checks whether the broker's kernel has
//! acknowledged the first piece once the broker has read it, or delays that for an answer to send
//! along.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::certificates::{Authority, save};
use crate::kafka_support::{API_VERSIONS, Broker, Client, connect};
use crate::support::{Time, eventually, start_driven};
use cloverleaf_server::segments_sent;
use cloverleaf_telemetry::TcpInfo;
use rustls::{ClientConnection, Stream};

/// For the first packets of a connection the kernel acknowledges everything at once.
const WARM_UP: usize = 30;
const ROUNDS: usize = 11;
/// If the broker is slow, the kernel's delay may pass before the broker has read, but not in all
/// rounds.
const ROUNDS_MAX: usize = 10_000;

/// Segments that the broker's kernel has sent to this client, and bytes that the broker has read
/// from it.
fn traffic(broker: &Broker, client: SocketAddr) -> (u32, u64) {
    let count = |descriptor| {
        let cwnd = segments_sent(descriptor)?;
        // The snapshot has no field for this number, so another one carries it.
        Some(TcpInfo {
            cwnd,
            ..TcpInfo::default()
        })
    };
    let snapshot = broker.server.context().registry.snapshot(1, count);
    let connection = snapshot.connections.iter().find(|it| it.peer == client);
    let connection = connection.unwrap();
    (connection.tcp.unwrap().cwnd, connection.counters.bytes_in)
}

/// Whether the first piece is acknowledged when only it was read: in each of [`ROUNDS`] rounds, or
/// not in at least one of many. `send` sends the first piece, `finish` does the rest.
fn acknowledges_at_once(
    (broker, time): (&Broker, &mut Time),
    client: &TcpStream,
    mut send: impl FnMut() -> Vec<u8>,
    mut finish: impl FnMut(Vec<u8>),
) -> bool {
    let address = client.local_addr().unwrap();
    for _ in 0..WARM_UP {
        let rest = send();
        finish(rest);
    }
    let mut round = || {
        time.settle();
        let (segments, bytes) = traffic(broker, address);
        let rest = send();
        // Checked soon: the kernel's delay is 40 ms at most.
        eventually("first piece read", || traffic(broker, address).1 > bytes);
        time.take_turn();
        let is_acknowledged = traffic(broker, address).0 > segments;
        finish(rest);
        is_acknowledged
    };
    let is_quick = broker.server.context().config.general.quick_ack;
    let rounds = if is_quick { ROUNDS } else { ROUNDS_MAX };
    (0..rounds).all(|_| round())
}

fn is_plain_quick(quick_ack: bool) -> bool {
    let (broker, mut time) = start_driven(|config| config.general.quick_ack = quick_ack);
    let mut client = broker.client();
    // After an answer, the connection is known to be accepted; before, only the kernel
    // acknowledges.
    client.api_versions();
    let client = std::cell::RefCell::new(client);
    let socket = client.borrow().stream.try_clone().unwrap();
    socket.set_nodelay(false).unwrap();
    let send = || {
        let request = client.borrow_mut().request(API_VERSIONS, 0, &[]);
        client.borrow_mut().send(&request[..8]);
        request[8..].to_vec()
    };
    acknowledges_at_once((&broker, &mut time), &socket, send, |rest| {
        client.borrow_mut().send(&rest);
        client.borrow_mut().answer();
    })
}

#[test]
fn a_request_in_two_writes_does_not_wait_for_a_delayed_acknowledgement() {
    assert!(is_plain_quick(true));
}

#[test]
fn without_the_quick_acknowledgement_a_request_in_two_writes_waits() {
    assert!(!is_plain_quick(false));
}

/// A request over TLS in two writes, cut where `cut` says: between plain bytes, each piece in a
/// record of its own, as librdkafka writes; or between raw bytes, in the middle of a record.
fn is_tls_quick(quick_ack: bool, cut: Cut) -> bool {
    let authority = Authority::new();
    let own = authority.certify();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| save(&folder, name, text);
    let (broker, mut time) = start_driven(|config| {
        config.general.quick_ack = quick_ack;
        config.kafka.tls_address.0 = "127.0.0.1:0".to_owned();
        config.kafka.tls_cert = file("cert.pem", &own.certificate);
        config.kafka.tls_key = file("key.pem", &own.key);
    });
    let mut socket = connect(broker.server.addresses().of("kafka.tls_address").unwrap());
    socket.set_nodelay(false).unwrap();
    let seen = socket.try_clone().unwrap();
    let mut tls = authority.client(None, rustls::ALL_VERSIONS);
    // This client only makes the requests' bytes: its own answers would have to come in order.
    let mut maker = Client::new(std::io::Cursor::new(Vec::new()));
    Stream::new(&mut tls, &mut socket).flush().unwrap();
    let (tls, socket) = (
        std::cell::RefCell::new(tls),
        std::cell::RefCell::new(socket),
    );
    let send = || {
        let request = maker.request(API_VERSIONS, 0, &[]);
        let tls = &mut *tls.borrow_mut();
        let (first, rest) = match cut {
            Cut::Plain => {
                let (head, rest) = request.split_at(8);
                (record(tls, head), record(tls, rest))
            }
            Cut::Raw => {
                let mut raw = record(tls, &request);
                let rest = raw.split_off(11);
                (raw, rest)
            }
        };
        socket.borrow_mut().write_all(&first).unwrap();
        rest
    };
    acknowledges_at_once((&broker, &mut time), &seen, send, |rest| {
        let (tls, socket) = (&mut *tls.borrow_mut(), &mut *socket.borrow_mut());
        socket.write_all(&rest).unwrap();
        let mut stream = Stream::new(tls, socket);
        let mut size = [0; 4];
        stream.read_exact(&mut size).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(size) as usize];
        stream.read_exact(&mut answer).unwrap();
    })
}

#[derive(Clone, Copy)]
enum Cut {
    Plain,
    Raw,
}

/// A TLS record with these bytes, as on the wire.
fn record(tls: &mut ClientConnection, plain: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    tls.writer().write_all(plain).unwrap();
    tls.write_tls(&mut raw).unwrap();
    raw
}

#[test]
fn over_tls_neither_a_request_nor_a_record_in_pieces_waits() {
    assert!(is_tls_quick(true, Cut::Plain));
    assert!(is_tls_quick(true, Cut::Raw));
}

#[test]
fn without_the_quick_acknowledgement_both_wait_over_tls() {
    assert!(!is_tls_quick(false, Cut::Plain));
    assert!(!is_tls_quick(false, Cut::Raw));
}
