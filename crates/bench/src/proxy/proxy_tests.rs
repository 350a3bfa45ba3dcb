//! The proxy with real sockets and the real time; `connection_tests.rs` sets the time.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn link(rtt_ms: u64, jitter_ms: u64, bandwidth: Option<&str>) -> Link {
    Link {
        rtt: Duration::from_millis(rtt_ms),
        jitter: Duration::from_millis(jitter_ms),
        bandwidth: bandwidth.map(|text| text.parse().unwrap()),
    }
}

/// A proxy to a server that does this with each connection.
fn proxy(link: Link, serve: impl Fn(TcpStream) + Send + Clone + 'static) -> Proxy {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = server.local_addr().unwrap();
    thread::spawn(move || {
        for stream in server.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    let listen = "127.0.0.1:0".parse().unwrap();
    Proxy::start(link, Carries::Bytes, listen, upstream).unwrap()
}

fn client(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4_096];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..bytes]).is_err() {
            return;
        }
    }
}

/// A message and its echo.
fn round(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

#[test]
fn an_hour_is_longer_than_no_distance() {
    let far = proxy(link(3_600_000, 0, None), |_| panic!("an hour has passed"));
    let mut waiting = client(&far);
    waiting.write_all(b"hello").unwrap();
    let near = proxy(link(0, 0, None), echo);
    let mut stream = client(&near);
    for _ in 0..100 {
        round(&mut stream);
    }
    waiting.set_nonblocking(true).unwrap();
    // The far broker's panic would end its connection.
    let error = waiting.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn half_of_a_connection_may_end_first() {
    let proxy = proxy(link(20, 0, None), |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all.reverse();
        stream.write_all(&all).unwrap();
    });
    let mut stream = client(&proxy);
    stream.write_all(b"forwards").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "sdrawrof");
}

#[test]
fn a_broken_connection_is_broken_on_the_other_side() {
    let proxy = proxy(link(20, 0, None), |stream| {
        let mut hello = [0; 5];
        (&stream).read_exact(&mut hello).unwrap();
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    });
    let mut stream = client(&proxy);
    stream.write_all(b"hello").unwrap();
    let error = stream.read(&mut [0; 5]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn nobody_behind_the_proxy_is_a_broken_connection() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    let proxy = Proxy::start(link(10, 0, None), Carries::Bytes, listen, gone).unwrap();
    let error = client(&proxy).read(&mut [0; 5]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_writer_feels_a_slow_reader() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let proxy = proxy(link(2, 0, None), move |mut stream| {
        wait.lock().unwrap().recv().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&(all.len() as u64).to_be_bytes()).unwrap();
    });
    let mut stream = client(&proxy);
    stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let (piece, mut written) = (vec![1; 1 << 20], 0);
    let error = loop {
        match stream.write(&piece) {
            Ok(bytes) => written += bytes,
            Err(error) => break error,
        }
        assert!(written < 256 << 20, "somebody keeps everything");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    go.send(()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(u64::from_be_bytes(answer), written as u64);
}

#[test]
fn many_connections_are_carried_at_once() {
    let proxy = proxy(link(30, 0, None), echo);
    let mut streams: Vec<TcpStream> = (0..100).map(|_| client(&proxy)).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&(number as u64).to_be_bytes()).unwrap();
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_be_bytes(answer), number as u64);
    }
    drop(proxy);
    let ended = streams[0].read(&mut [0; 1]);
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
}

/// A proxy to a broker that answers one Metadata request with these nodes, whose hosts have nine
/// bytes, and the nodes of the answer that a client gets.
fn metadata(broker: TcpListener, nodes: &[(&str, u16)]) -> (Proxy, Vec<(String, u16)>) {
    const NODE_BYTES: usize = 19;
    let upstream = broker.local_addr().unwrap();
    // Correlation 9, and the number of nodes.
    let mut body = vec![0, 0, 0, 9, 0, 0, 0, nodes.len() as u8];
    for (host, port) in nodes {
        body.extend([0, 0, 0, 1, 0, 9]);
        body.extend(host.bytes());
        body.extend(i32::from(*port).to_be_bytes());
    }
    thread::spawn(move || {
        let (mut stream, _) = broker.accept().unwrap();
        stream.read_exact(&mut [0; 12]).unwrap();
        let size = (body.len() as i32).to_be_bytes();
        stream.write_all(&[&size, &body[..]].concat()).unwrap();
    });
    let listen = "127.0.0.1:0".parse().unwrap();
    let proxy = Proxy::start(link(2, 0, None), Carries::Kafka, listen, upstream).unwrap();
    let mut stream = client(&proxy);
    // Metadata, version 0, correlation 9.
    let request = [0, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, 9];
    stream.write_all(&request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let told = answer[12..].chunks(NODE_BYTES).map(|node| {
        let host = String::from_utf8(node[6..15].to_vec()).unwrap();
        (host, u16::from_be_bytes([node[17], node[18]]))
    });
    (proxy, told.collect())
}

#[test]
fn a_kafka_client_stays_on_the_proxy() {
    let [broker, other] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [&broker, &other].map(|it| it.local_addr().unwrap().port());
    // The address that it listens on, and another one.
    let (proxy, told) = metadata(broker, &ports.map(|port| ("localhost", port)));
    assert_eq!(told[0], ("127.0.0.1".to_owned(), proxy.address().port()));
    assert_eq!(told[1].0, "127.0.0.1");
    assert!(!ports.contains(&told[1].1), "{told:?}");
    TcpStream::connect(("127.0.0.1", told[1].1)).unwrap();
    other.accept().unwrap();
    assert!(!proxy.is_passed_by());
}

#[test]
fn an_address_that_cannot_be_put_at_a_distance_is_seen() {
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    // No name has a space in it.
    let (proxy, _) = metadata(broker, &[("not there", 9_092)]);
    assert!(proxy.is_passed_by());
}

#[test]
fn the_proxy_knows_how_late_it_is() {
    let proxy = proxy(link(4, 0, None), echo);
    let mut stream = client(&proxy);
    for _ in 0..3 {
        round(&mut stream);
    }
    let late = proxy.take_late();
    assert!(late.len() >= 6, "{} pieces were on their way", late.len());
    assert!(proxy.take_late().is_empty(), "it was taken");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn bytes_and_order_survive_real_sockets(
        pieces in prop::collection::vec(1..40_000usize, 1..30), jitter_ms in 0..3u64,
        limited in prop::bool::ANY,
    ) {
        let proxy = proxy(link(1, jitter_ms, limited.then_some("200Mbit")), echo);
        let stream = client(&proxy);
        let all: Vec<u8> = (0..pieces.iter().sum::<usize>()).map(|at| (at % 251) as u8).collect();
        let mut back = Vec::new();
        thread::scope(|scope| {
            let (mut writer, all) = (&stream, &all);
            scope.spawn(move || {
                let mut rest = &all[..];
                for piece in pieces {
                    let (first, others) = rest.split_at(piece);
                    writer.write_all(first).unwrap();
                    rest = others;
                }
                writer.shutdown(Shutdown::Write).unwrap();
            });
            (&stream).read_to_end(&mut back).unwrap();
        });
        prop_assert!(back == all, "{} of {} bytes", back.len(), all.len());
    }
}

#[test]
fn its_cost_is_told_apart() {
    let meter = crate::usage::Meter::begin(&crate::usage::BrokerPlace::Elsewhere);
    let proxy = proxy(link(0, 0, None), |mut stream| {
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        stream.write_all(b"!").unwrap();
    });
    let mut stream = client(&proxy);
    // Enough for some ticks of the clock that counts CPU time.
    for _ in 0..512 {
        stream.write_all(&[0; 1 << 20]).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    let usage = meter.end();
    assert!(
        usage.proxy_cpu_s > 0.0 && usage.client_cpu_s > 0.0,
        "{usage:?}"
    );
}
