//! Connections with real sockets and a time that is told.

#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::task::{LocalSet, spawn_local, yield_now};

use super::*;
use crate::delay::{Alarm, Link};

const MS: u64 = 1_000_000;

/// Plays with a relay at this distance.
fn play<F: Future<Output = ()>>(
    rtt_ms: u64,
    bandwidth: Option<&str>,
    play: impl FnOnce(Rc<TcpRelay>) -> F,
) {
    let link = Link {
        rtt: Duration::from_millis(rtt_ms),
        bandwidth: bandwidth.map(|text| text.parse().unwrap()),
        ..Link::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let alarm = Rc::new(Alarm::told());
    let doors = (nowhere, nowhere);
    let relay = TcpRelay::new(link, Carries::Bytes, alarm, doors, Arc::default());
    LocalSet::new().block_on(&runtime, play(relay));
}

/// Turns of the relay after which a test is given up: all that is local comes after a few.
const TURNS_MAX: u32 = 20_000_000;

async fn turns_until(is_so: impl Fn() -> bool) {
    for _ in 0..TURNS_MAX {
        if is_so() {
            return;
        }
        yield_now().await;
    }
    panic!("it does not come to that");
}

/// Lets the relay work until it waits for this time, or for none.
async fn waits_for(relay: &TcpRelay, next_ns: Option<u64>) {
    turns_until(|| relay.alarm.next_ns() == next_ns).await;
}

/// A client's socket, where its broker listens, and the proxy's socket for the client.
fn begin(relay: &Rc<TcpRelay>) -> (TcpStream, TcpListener, TcpStream) {
    let [door, broker] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let client = TcpStream::connect(door.local_addr().unwrap()).unwrap();
    client.set_nodelay(true).unwrap();
    let (accepted, _) = door.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let door = accepted.try_clone().unwrap();
    let accepted = tokio::net::TcpStream::from_std(accepted).unwrap();
    let upstream = broker.local_addr().unwrap();
    spawn_local(Rc::clone(relay).carry(accepted, upstream));
    (client, broker, door)
}

/// Lets the relay work until it has read what the client has sent.
async fn is_read(door: &TcpStream) {
    turns_until(|| door.peek(&mut [0]).is_err()).await;
}

/// Both sockets of a connection that was made by this time.
async fn connected(relay: &Rc<TcpRelay>, at_ns: u64) -> (TcpStream, TcpStream) {
    let (client, listener, _) = begin(relay);
    if at_ns > 0 {
        waits_for(relay, Some(at_ns)).await;
        relay.alarm.tell(at_ns);
    }
    listener.set_nonblocking(true).unwrap();
    let broker = loop {
        match listener.accept() {
            Ok((broker, _)) => break broker,
            Err(_) => yield_now().await,
        }
    };
    broker.set_nonblocking(false).unwrap();
    broker.set_nodelay(true).unwrap();
    (client, broker)
}

/// Waits until there is something to read: the relay works on this thread, and so has not read it.
fn there(stream: &TcpStream) {
    poll(&mut [PollFd::new(stream, PollFlags::IN)], None).unwrap();
}

fn send(mut stream: &TcpStream, bytes: &[u8]) {
    std::io::Write::write_all(&mut stream, bytes).unwrap();
}

/// So much comes, and nothing behind it.
async fn gets(stream: &TcpStream, bytes: &[u8]) {
    turns_until(|| peeked(stream, bytes.len()) == bytes.len()).await;
    let mut reader = stream;
    let mut got = vec![0; bytes.len()];
    reader.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
    stream.set_nonblocking(true).unwrap();
    let more = reader.read(&mut [0]).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
}

fn peeked(stream: &TcpStream, most: usize) -> usize {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut vec![0; most]).unwrap_or(0);
    stream.set_nonblocking(false).unwrap();
    peeked
}

#[test]
fn each_round_trip_takes_its_time_and_the_first_one_two() {
    play(40, None, async |relay| {
        let (client, listener, door) = begin(&relay);
        send(&client, b"hello");
        there(&door);
        is_read(&door).await;
        // The client hears of the connection after 40 ms; its packet takes 20 more.
        waits_for(&relay, Some(60 * MS)).await;
        relay.alarm.tell(60 * MS - 1);
        waits_for(&relay, Some(60 * MS)).await;
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "not before its time");
        relay.alarm.tell(60 * MS);
        listener.set_nonblocking(false).unwrap();
        waits_for(&relay, None).await;
        let broker = loop {
            match poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&ZERO)) {
                Ok(1) => break listener.accept().unwrap().0,
                _ => yield_now().await,
            }
        };
        gets(&broker, b"hello").await;
        broker.set_nodelay(true).unwrap();
        send(&broker, b"answer");
        waits_for(&relay, Some(80 * MS)).await;
        relay.alarm.tell(80 * MS - 1);
        waits_for(&relay, Some(80 * MS)).await;
        gets(&client, b"").await;
        relay.alarm.tell(80 * MS);
        gets(&client, b"answer").await;
        // Bytes do not wait for those that are on their way before them.
        relay.alarm.tell(100 * MS);
        send(&client, b"one");
        waits_for(&relay, Some(120 * MS)).await;
        relay.alarm.tell(101 * MS);
        send(&client, b"two");
        there(&door);
        is_read(&door).await;
        relay.alarm.tell(120 * MS);
        gets(&broker, b"one").await;
        waits_for(&relay, Some(121 * MS)).await;
        relay.alarm.tell(121 * MS);
        gets(&broker, b"two").await;
    });
}

const ZERO: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

#[test]
fn an_end_takes_as_long_as_bytes() {
    play(40, None, async |relay| {
        let (client, broker) = connected(&relay, 60 * MS).await;
        relay.alarm.tell(70 * MS);
        client.shutdown(Shutdown::Write).unwrap();
        waits_for(&relay, Some(90 * MS)).await;
        gets(&broker, b"").await;
        relay.alarm.tell(90 * MS);
        waits_for(&relay, None).await;
        assert_eq!(
            read_later(&broker).await.unwrap(),
            0,
            "the client has ended"
        );
        relay.alarm.tell(95 * MS);
        send(&broker, b"the rest");
        waits_for(&relay, Some(115 * MS)).await;
        gets(&client, b"").await;
        relay.alarm.tell(115 * MS);
        gets(&client, b"the rest").await;
        drop(broker);
        waits_for(&relay, Some(135 * MS)).await;
        relay.alarm.tell(135 * MS);
        assert_eq!(read_later(&client).await.unwrap(), 0, "the broker, too");
    });
}

#[test]
fn a_broken_connection_is_heard_of_as_late() {
    play(40, None, async |relay| {
        let (client, broker) = connected(&relay, 60 * MS).await;
        send(&broker, b"x");
        waits_for(&relay, Some(80 * MS)).await;
        relay.alarm.tell(80 * MS);
        gets(&client, b"x").await;
        SockRef::from(&broker)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(broker);
        waits_for(&relay, Some(100 * MS)).await;
        gets(&client, b"").await;
        relay.alarm.tell(100 * MS);
        let error = read_later(&client).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

/// A byte, an end or an error, once it comes.
async fn read_later(mut stream: &TcpStream) -> io::Result<usize> {
    stream.set_nonblocking(true)?;
    loop {
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => yield_now().await,
            done => return done,
        }
    }
}

#[test]
fn bandwidth_is_a_bound_for_all_connections_together() {
    // A megabyte per second, and 16 KiB at once.
    play(0, Some("8Mbit"), async |relay| {
        let (one, one_broker) = connected(&relay, 0).await;
        let (two, _two_broker) = connected(&relay, 0).await;
        send(&one, &[1; 12_500]);
        gets(&one_broker, &[1; 12_500]).await;
        send(&one, &[1; (16 << 10) - 12_500]);
        gets(&one_broker, &[1; (16 << 10) - 12_500]).await;
        send(&two, &[2; 1_000]);
        waits_for(&relay, Some(MS)).await;
        send(&one, &[3; 1_000]);
        relay.alarm.tell(MS / 2);
        gets(&one_broker, b"").await;
        relay.alarm.tell(MS);
        waits_for(&relay, Some(2 * MS)).await;
    });
}
