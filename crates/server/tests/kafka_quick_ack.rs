//! The story of a synchronous producer with Nagle's algorithm: it writes each request in pieces,
//! and its kernel holds the second piece back until the first is acknowledged.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::certificates::{Authority, save};
use crate::kafka_support::{API_VERSIONS, Broker, Client, connect, start};
use rustls::{ClientConnection, Stream};

/// Without the quick acknowledgement the second piece waits for about 40 ms.
const STALL: Duration = Duration::from_millis(25);

const WARM_UP: usize = 30;
const ROUNDS: usize = 11;

/// How long a request in two writes takes: the median, once the kernel has stopped to acknowledge
/// everything at once, which it does with the first packets of a connection.
fn median(mut round: impl FnMut()) -> Duration {
    (0..WARM_UP).for_each(|_| round());
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            round();
            started.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

fn start_with(quick_ack: bool) -> Broker {
    start(|config| config.general.quick_ack = quick_ack)
}

fn plain_time(broker: &Broker) -> Duration {
    let mut client = broker.client();
    client.stream.set_nodelay(false).unwrap();
    median(|| {
        let request = client.request(API_VERSIONS, 0, &[]);
        let (head, rest) = request.split_at(8);
        client.send(head);
        client.send(rest);
        client.answer();
    })
}

#[test]
fn a_request_in_two_writes_does_not_wait_for_a_delayed_acknowledgement() {
    let time = plain_time(&start_with(true));
    assert!(time < STALL, "{time:?}");
}

#[test]
fn without_the_quick_acknowledgement_it_does() {
    let time = plain_time(&start_with(false));
    assert!(time >= STALL, "{time:?}");
}

fn start_tls(quick_ack: bool) -> (Broker, Authority) {
    let authority = Authority::new();
    let own = authority.certify();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| save(&folder, name, text);
    let broker = start(|config| {
        config.general.quick_ack = quick_ack;
        config.kafka.tls_address.0 = "127.0.0.1:0".to_owned();
        config.kafka.tls_cert = file("cert.pem", &own.certificate);
        config.kafka.tls_key = file("key.pem", &own.key);
    });
    (broker, authority)
}

/// A request over TLS in two writes, cut where `cut` says: of plain bytes, each piece a record of
/// its own, as librdkafka writes them; or of raw bytes, in the middle of a record.
fn tls_time((broker, authority): &(Broker, Authority), cut: Cut) -> Duration {
    let mut socket = connect(broker.server.addresses().kafka_tls.unwrap());
    socket.set_nodelay(false).unwrap();
    let mut tls = authority.client(None, rustls::ALL_VERSIONS);
    // Answers come in the order of requests, so a client of its own makes their bytes.
    let mut maker = Client::new(std::io::Cursor::new(Vec::new()));
    Stream::new(&mut tls, &mut socket).flush().unwrap();
    median(|| {
        let request = maker.request(API_VERSIONS, 0, &[]);
        match cut {
            Cut::Plain => {
                for piece in request.chunks(8) {
                    write_record(&mut tls, piece, &mut socket);
                }
            }
            Cut::Raw => {
                let mut raw = Vec::new();
                tls.writer().write_all(&request).unwrap();
                tls.write_tls(&mut raw).unwrap();
                let (first, rest) = raw.split_at(11);
                socket.write_all(first).unwrap();
                socket.write_all(rest).unwrap();
            }
        }
        let mut stream = Stream::new(&mut tls, &mut socket);
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

fn write_record(tls: &mut ClientConnection, plain: &[u8], socket: &mut TcpStream) {
    let mut raw = Vec::new();
    tls.writer().write_all(plain).unwrap();
    tls.write_tls(&mut raw).unwrap();
    socket.write_all(&raw).unwrap();
}

#[test]
fn over_tls_neither_a_request_nor_a_record_in_pieces_waits() {
    let broker = start_tls(true);
    for cut in [Cut::Plain, Cut::Raw] {
        let time = tls_time(&broker, cut);
        assert!(time < STALL, "{time:?}");
    }
}

#[test]
fn without_the_quick_acknowledgement_both_do() {
    let broker = start_tls(false);
    for cut in [Cut::Plain, Cut::Raw] {
        let time = tls_time(&broker, cut);
        assert!(time >= STALL, "{time:?}");
    }
}
