//! A connection with real sockets and a time that is told.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::proxy::Link;

const MS: u64 = 1_000_000;

fn ways(rtt_ms: u64, bandwidth: Option<&str>) -> (Ways, u64) {
    let link = Link {
        rtt: Duration::from_millis(rtt_ms),
        bandwidth: bandwidth.map(|text| text.parse().unwrap()),
        ..Link::default()
    };
    let ways = Ways {
        up: link.way(),
        down: link.way(),
        piece_bytes: 1 << 16,
    };
    (ways, link.rtt_ns())
}

/// A connection from a client to a broker, and both of them.
struct Told {
    pair: Pair,
    client: TcpStream,
    broker: TcpListener,
}

impl Told {
    fn new(rtt_ns: u64) -> Told {
        let [door, broker] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let client = TcpStream::connect(door.local_addr().unwrap()).unwrap();
        client.set_nodelay(true).unwrap();
        let (accepted, _) = door.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        let times = (0, rtt_ns, 1 << 20);
        let pair = Pair::new(accepted, broker.local_addr().unwrap(), None, times);
        Told {
            pair,
            client,
            broker,
        }
    }

    /// Lets it move at that time.
    fn flow(&mut self, ways: &mut Ways, now_ns: u64) -> After {
        for is_server in [false, true] {
            self.pair.wake(is_server, true, true);
        }
        let mut buffer = [0; 1 << 16];
        self.pair
            .flow(ways, &|| now_ns, &mut buffer, &mut |_, _| None)
    }

    /// The broker's end of it, once it is connected.
    fn connect(&mut self, ways: &mut Ways, now_ns: u64) -> TcpStream {
        assert_eq!(self.flow(ways, now_ns), After::Connect);
        let server = self.pair.connect().unwrap();
        poll(&mut [PollFd::new(server, PollFlags::OUT)], None).unwrap();
        let (broker, _) = self.broker.accept().unwrap();
        broker.set_nodelay(true).unwrap();
        broker
    }

    /// The client sends, and the bytes have reached the proxy.
    fn client_sends(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).unwrap();
        there(&self.pair.client.stream);
    }

    /// As [`Told::client_sends`], from the other end.
    fn broker_sends(&mut self, mut broker: &TcpStream, bytes: &[u8]) {
        broker.write_all(bytes).unwrap();
        there(&self.pair.server.as_ref().unwrap().stream);
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
    let (mut ways, rtt_ns) = ways(40, None);
    let mut told = Told::new(rtt_ns);
    told.client_sends(b"hello");
    // The client hears of the connection after 40 ms; its packet takes 20 more.
    assert_eq!(told.flow(&mut ways, 0), After::Wait(Some(60 * MS)));
    assert_eq!(
        told.flow(&mut ways, 60 * MS - 1),
        After::Wait(Some(60 * MS))
    );
    let broker = told.connect(&mut ways, 60 * MS);
    assert_eq!(told.flow(&mut ways, 60 * MS), After::Wait(None));
    gets(&broker, b"hello");
    told.broker_sends(&broker, b"answer");
    assert_eq!(told.flow(&mut ways, 60 * MS), After::Wait(Some(80 * MS)));
    assert_eq!(
        told.flow(&mut ways, 80 * MS - 1),
        After::Wait(Some(80 * MS))
    );
    gets(&told.client, b"");
    assert_eq!(told.flow(&mut ways, 80 * MS), After::Wait(None));
    gets(&told.client, b"answer");
    // Bytes do not wait for those that are on their way before them.
    told.client_sends(b"one");
    assert_eq!(told.flow(&mut ways, 100 * MS), After::Wait(Some(120 * MS)));
    told.client_sends(b"two");
    assert_eq!(told.flow(&mut ways, 101 * MS), After::Wait(Some(120 * MS)));
    assert_eq!(told.flow(&mut ways, 120 * MS), After::Wait(Some(121 * MS)));
    gets(&broker, b"one");
    assert_eq!(told.flow(&mut ways, 121 * MS), After::Wait(None));
    gets(&broker, b"two");
}

/// By an earlier time, what came after it would arrive too early: the thread may have had to rest
/// in between.
#[test]
fn the_time_is_asked_after_the_read() {
    let (mut ways, rtt_ns) = ways(40, None);
    let mut told = Told::new(rtt_ns);
    let _broker = told.connect(&mut ways, 60 * MS);
    told.client_sends(b"late");
    let socket = told.pair.client.stream.try_clone().unwrap();
    let now_ns = || {
        let left = socket.peek(&mut [0]).unwrap_err();
        assert_eq!(left.kind(), ErrorKind::WouldBlock, "it was not read");
        100 * MS
    };
    told.pair.wake(false, true, true);
    let mut buffer = [0; 1 << 16];
    let after = told
        .pair
        .flow(&mut ways, &now_ns, &mut buffer, &mut |_, _| None);
    assert_eq!(after, After::Wait(Some(120 * MS)));
}

#[test]
fn an_end_takes_as_long_as_bytes() {
    let (mut ways, rtt_ns) = ways(40, None);
    let mut told = Told::new(rtt_ns);
    let broker = told.connect(&mut ways, 60 * MS);
    told.client.shutdown(std::net::Shutdown::Write).unwrap();
    there(&told.pair.client.stream);
    assert_eq!(told.flow(&mut ways, 70 * MS), After::Wait(Some(90 * MS)));
    gets(&broker, b"");
    assert_eq!(told.flow(&mut ways, 90 * MS), After::Wait(None));
    assert_eq!((&broker).read(&mut [0]).unwrap(), 0, "the client has ended");
    told.broker_sends(&broker, b"the rest");
    assert_eq!(told.flow(&mut ways, 95 * MS), After::Wait(Some(115 * MS)));
    assert_eq!(told.flow(&mut ways, 115 * MS), After::Wait(None));
    gets(&told.client, b"the rest");
}

#[test]
fn bandwidth_is_a_bound_for_all_connections_together() {
    // A megabyte per second, and 16 KiB at once.
    let (mut ways, rtt_ns) = ways(0, Some("8Mbit"));
    let mut both = [0, 1].map(|_| Told::new(rtt_ns));
    let brokers = both.each_mut().map(|told| told.connect(&mut ways, 0));
    both[0].client_sends(&[1; 16 << 10]);
    assert_eq!(both[0].flow(&mut ways, 0), After::Wait(None));
    gets(&brokers[0], &[1; 16 << 10]);
    both[1].client_sends(&[2; 1_000]);
    assert_eq!(both[1].flow(&mut ways, 0), After::Wait(Some(MS)));
    both[0].client_sends(&[3; 1_000]);
    assert_eq!(both[0].flow(&mut ways, 0), After::Wait(Some(2 * MS)));
}
