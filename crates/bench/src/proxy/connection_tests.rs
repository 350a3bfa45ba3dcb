//! A connection with real sockets, and a time that the test sets.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::proxy::Link;

const MS: u64 = 1_000_000;

fn directions(rtt_ms: u64, bandwidth: Option<&str>) -> (LinkDirections, u64) {
    let link = Link {
        rtt: Duration::from_millis(rtt_ms),
        bandwidth: bandwidth.map(|text| text.parse().unwrap()),
        ..Link::default()
    };
    let directions = LinkDirections {
        up: link.direction(),
        down: link.direction(),
        piece_bytes: 1 << 16,
    };
    (directions, link.rtt_ns())
}

/// A connection from a client to a broker, and both of them.
struct TestConnection {
    connection: ProxiedConnection,
    client: TcpStream,
    broker: TcpListener,
}

impl TestConnection {
    fn new(rtt_ns: u64) -> TestConnection {
        let [door, broker] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let client = TcpStream::connect(door.local_addr().unwrap()).unwrap();
        client.set_nodelay(true).unwrap();
        let (accepted, _) = door.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let times = (0, rtt_ns, 1 << 20);
        let connection =
            ProxiedConnection::new(accepted, broker.local_addr().unwrap(), None, times);
        TestConnection {
            connection,
            client,
            broker,
        }
    }

    /// Lets it move at that time.
    fn flow(&mut self, directions: &mut LinkDirections, now_ns: u64) -> NextStep {
        for is_server in [false, true] {
            self.connection.wake(is_server, true, true);
        }
        let mut buffer = [0; 1 << 16];
        self.connection
            .flow(directions, &|| now_ns, &mut buffer, &mut |_, _| None)
    }

    /// Lets it run at `now_ns`. It waits until `until_ns` then; `None`: only for its sockets.
    #[track_caller]
    fn waits_until(&mut self, directions: &mut LinkDirections, now_ns: u64, until_ns: Option<u64>) {
        assert_eq!(self.flow(directions, now_ns), NextStep::Wait(until_ns));
    }

    /// The broker's end of it, once it is connected.
    fn connect(&mut self, directions: &mut LinkDirections, now_ns: u64) -> TcpStream {
        assert_eq!(self.flow(directions, now_ns), NextStep::Connect);
        let server = self.connection.connect().unwrap();
        poll(&mut [PollFd::new(server, PollFlags::OUT)], None).unwrap();
        let (broker, _) = self.broker.accept().unwrap();
        broker.set_nodelay(true).unwrap();
        broker
    }

    /// The client sends, and the bytes have reached the proxy.
    fn client_sends(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).unwrap();
        there(&self.connection.client.stream);
    }

    /// As [`TestConnection::client_sends`], from the other end.
    fn broker_sends(&mut self, mut broker: &TcpStream, bytes: &[u8]) {
        broker.write_all(bytes).unwrap();
        there(&self.connection.server.as_ref().unwrap().stream);
    }
}

/// Waits until there is something to read.
fn there(stream: &TcpStream) {
    poll(&mut [PollFd::new(stream, PollFlags::IN)], None).unwrap();
}

/// So much comes, and nothing behind it.
fn gets(stream: &TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    let mut reader = stream;
    reader.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
    stream.set_nonblocking(true).unwrap();
    let more = reader.read(&mut [0]).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
}

#[test]
fn each_round_trip_takes_its_time_and_the_first_one_two() {
    let (mut directions, rtt_ns) = directions(40, None);
    let mut connection = TestConnection::new(rtt_ns);
    connection.client_sends(b"hello");
    // The client hears of the connection after 40 ms; its packet takes 20 more.
    connection.waits_until(&mut directions, 0, Some(60 * MS));
    connection.waits_until(&mut directions, 60 * MS - 1, Some(60 * MS));
    let broker = connection.connect(&mut directions, 60 * MS);
    connection.waits_until(&mut directions, 60 * MS, None);
    gets(&broker, b"hello");
    connection.broker_sends(&broker, b"answer");
    connection.waits_until(&mut directions, 60 * MS, Some(80 * MS));
    connection.waits_until(&mut directions, 80 * MS - 1, Some(80 * MS));
    gets(&connection.client, b"");
    connection.waits_until(&mut directions, 80 * MS, None);
    gets(&connection.client, b"answer");
    // Bytes do not wait for those that are on their way before them.
    connection.client_sends(b"one");
    connection.waits_until(&mut directions, 100 * MS, Some(120 * MS));
    connection.client_sends(b"two");
    connection.waits_until(&mut directions, 101 * MS, Some(120 * MS));
    connection.waits_until(&mut directions, 120 * MS, Some(121 * MS));
    gets(&broker, b"one");
    connection.waits_until(&mut directions, 121 * MS, None);
    gets(&broker, b"two");
}

/// By an earlier time, what came after it would arrive too early: the thread may have had to rest
/// in between.
#[test]
fn the_time_is_asked_after_the_read() {
    let (mut directions, rtt_ns) = directions(40, None);
    let mut connection = TestConnection::new(rtt_ns);
    let _broker = connection.connect(&mut directions, 60 * MS);
    connection.client_sends(b"late");
    let socket = connection.connection.client.stream.try_clone().unwrap();
    let now_ns = || {
        let left = socket.peek(&mut [0]).unwrap_err();
        assert_eq!(left.kind(), ErrorKind::WouldBlock, "it was not read");
        100 * MS
    };
    connection.connection.wake(false, true, true);
    let mut buffer = [0; 1 << 16];
    let after = connection
        .connection
        .flow(&mut directions, &now_ns, &mut buffer, &mut |_, _| None);
    assert_eq!(after, NextStep::Wait(Some(120 * MS)));
}

#[test]
fn an_end_takes_as_long_as_bytes() {
    let (mut directions, rtt_ns) = directions(40, None);
    let mut connection = TestConnection::new(rtt_ns);
    let broker = connection.connect(&mut directions, 60 * MS);
    connection
        .client
        .shutdown(std::net::Shutdown::Write)
        .unwrap();
    there(&connection.connection.client.stream);
    connection.waits_until(&mut directions, 70 * MS, Some(90 * MS));
    gets(&broker, b"");
    connection.waits_until(&mut directions, 90 * MS, None);
    assert_eq!((&broker).read(&mut [0]).unwrap(), 0, "the client has ended");
    connection.broker_sends(&broker, b"the rest");
    connection.waits_until(&mut directions, 95 * MS, Some(115 * MS));
    connection.waits_until(&mut directions, 115 * MS, None);
    gets(&connection.client, b"the rest");
}

#[test]
fn bandwidth_is_a_bound_for_all_connections_together() {
    // A megabyte per second, and 16 KiB at once.
    let (mut directions, rtt_ns) = directions(0, Some("8Mbit"));
    let mut both = [0, 1].map(|_| TestConnection::new(rtt_ns));
    let brokers = both
        .each_mut()
        .map(|connection| connection.connect(&mut directions, 0));
    both[0].client_sends(&[1; 16 << 10]);
    both[0].waits_until(&mut directions, 0, None);
    gets(&brokers[0], &[1; 16 << 10]);
    both[1].client_sends(&[2; 1_000]);
    both[1].waits_until(&mut directions, 0, Some(MS));
    both[0].client_sends(&[3; 1_000]);
    both[0].waits_until(&mut directions, 0, Some(2 * MS));
}
