//! A network of two sides, as connections of the standard library see it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::network_support::{IN_PROCESS, is_forbidden};
use cloverleaf_bench::{
    Acks, Amount, Arrivals, BrokerPlace, Link, Meter, Network, PROXY_THREADS, PayloadKind, Plan,
    connect_across,
};

/// One test at a time, so that all that it sees of this process is its own.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (!is_forbidden(IN_PROCESS)).then_some(alone)
}

fn link(rtt_ms: u64) -> Link {
    Link {
        rtt: Duration::from_millis(rtt_ms),
        ..Link::default()
    }
}

/// A listener on the broker's side, and a connection to it from the client's.
fn connected(network: &Network) -> (TcpListener, TcpStream, TcpStream) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = network
        .at_broker(|| TcpListener::bind(any))
        .unwrap()
        .unwrap();
    let address = listener.local_addr().unwrap();
    let client = network.at_client(|| TcpStream::connect(address));
    let (broker, _) = listener.accept().unwrap();
    (listener, client.unwrap().unwrap(), broker)
}

/// Sends a byte there and another back.
fn exchange(bytes: [u8; 2], mut client: &TcpStream, mut broker: &TcpStream) {
    let mut got = [0; 2];
    client.write_all(&bytes[..1]).unwrap();
    broker.read_exact(&mut got[..1]).unwrap();
    broker.write_all(&bytes[1..]).unwrap();
    client.read_exact(&mut got[1..]).unwrap();
    assert_eq!(got, bytes);
}

/// Waits until it is so; a machine may be slow.
fn comes_true(is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        thread::yield_now();
    }
    true
}

/// Descriptors of namespaces and devices that this process has open.
fn open_files() -> Vec<String> {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let files =
        files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.display().to_string()));
    files
        .filter(|file| file.starts_with("net:") || file == "/dev/net/tun")
        .collect()
}

/// Threads that carry, and threads that are in another network than this process.
fn threads_left() -> usize {
    let ours = fs::read_link("/proc/self/ns/net").unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let is_left = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let network = fs::read_link(task.path().join("ns/net"));
        name.trim_end() == PROXY_THREADS || network.is_ok_and(|network| network != ours)
    };
    tasks.filter(is_left).count()
}

#[test]
fn tcp_sees_the_round_trip() {
    let Some(_alone) = alone() else { return };
    let network = Network::open(&link(20)).unwrap();
    let rtt = network.rtt();
    // How much longer depends on the machine; the tests of `network/relay.rs` tell the time.
    assert!(rtt >= Duration::from_millis(20), "TCP_INFO: {rtt:?}");
    let (_listener, client, broker) = connected(&network);
    exchange(*b"xy", &client, &broker);
}

#[test]
fn much_comes_through_whole_and_its_cost_is_told_apart() {
    let Some(_alone) = alone() else { return };
    let network = Network::open(&link(2)).unwrap();
    let (_listener, mut client, mut broker) = connected(&network);
    let meter = Meter::begin(&BrokerPlace::Elsewhere);
    let piece: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    let sent = piece.clone();
    let writer = thread::spawn(move || {
        for _ in 0..256 {
            client.write_all(&sent).unwrap();
        }
    });
    let mut got = vec![0; piece.len()];
    for _ in 0..256 {
        broker.read_exact(&mut got).unwrap();
        assert!(got == piece);
    }
    writer.join().unwrap();
    assert_eq!(broker.read(&mut got).unwrap(), 0);
    let usage = meter.end();
    assert!(usage.proxy_cpu_s > 0.0, "{usage:?}");
}

#[test]
fn much_comes_through_a_narrow_line_whole() {
    let Some(_alone) = alone() else { return };
    let bandwidth = "40Mbit".parse().ok();
    let network = Network::open(&Link {
        bandwidth,
        ..link(4)
    })
    .unwrap();
    let (_listener, mut client, mut broker) = connected(&network);
    let writer = thread::spawn(move || client.write_all(&vec![7; 2_000_000]).unwrap());
    let mut got = Vec::new();
    broker.read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert!(got == vec![7; 2_000_000]);
}

#[test]
fn nothing_is_left_of_it() {
    let Some(_alone) = alone() else { return };
    assert_eq!((open_files(), threads_left()), (Vec::new(), 0));
    let network = Network::open(&link(10)).unwrap();
    assert_eq!((open_files().len(), threads_left()), (4, 1));
    let (listener, mut client, broker) = connected(&network);
    let address = listener.local_addr().unwrap();
    // The address and port are still free outside of the network.
    TcpListener::bind(address).unwrap();
    drop(network);
    assert_eq!(open_files(), Vec::<String>::new());
    assert!(comes_true(|| threads_left() == 0));
    // Bytes that are sent go nowhere, and nobody is the worse for it.
    client.write_all(b"x").unwrap();
    drop((listener, client, broker));
}

#[test]
fn several_know_nothing_of_each_other() {
    let Some(_alone) = alone() else { return };
    let networks = [5, 50].map(|ms| Network::open(&link(ms)).unwrap());
    assert!(networks[1].rtt() >= Duration::from_millis(50));
    // The same address and port in both.
    let there = SocketAddr::from(([127, 0, 0, 1], 4150));
    let connections = networks.each_ref().map(|network| {
        let listen = || TcpListener::bind(there).unwrap();
        let listener = network.at_broker(listen).unwrap();
        let client = network.at_client(|| TcpStream::connect(there).unwrap());
        (client.unwrap(), listener.accept().unwrap().0)
    });
    for (bytes, (client, broker)) in [*b"ab", *b"cd"].into_iter().zip(&connections) {
        exchange(bytes, client, broker);
    }
}

fn plan() -> Plan {
    Plan {
        run: 1,
        topic: "t".to_owned(),
        producers: 1,
        consumers: 1,
        size_bytes: 100,
        payload: PayloadKind::Random,
        amount: Amount::Messages(1),
        warm_up_s: 0.0,
        arrivals: Arrivals::Closed,
        batch_messages: 1,
        in_flight: 1,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 1,
    }
}

#[test]
fn nobody_there_is_said_with_the_brokers_name() {
    let Some(_alone) = alone() else { return };
    let network = Arc::new(Network::open(&link(2)).unwrap());
    let url = "nsq://127.0.0.1:4150".parse().unwrap();
    let client = connect_across(&url, &network).unwrap();
    let error = client.prepare(&plan()).err().unwrap().to_string();
    assert!(
        error.starts_with("cannot connect to nsq://127.0.0.1:4150"),
        "{error}"
    );
}

#[test]
fn consumers_are_waited_for_as_long_as_a_narrow_line_takes() {
    let Some(_alone) = alone() else { return };
    let bandwidth = "64kbit".parse().ok();
    let url = "nsq://127.0.0.1:4150".parse().unwrap();
    let narrow = Network::open(&Link {
        bandwidth,
        ..link(2)
    });
    let client = connect_across(&url, &Arc::new(narrow.unwrap())).unwrap();
    assert!(client.quiet(&plan()) > Duration::from_secs(60));
}

#[test]
fn a_client_with_a_loopback_of_its_own_reaches_the_broker_at_some_ports_only() {
    let Some(_alone) = alone() else { return };
    let network = Network::open_with_loopback(&link(10), &[4150, 9092]).unwrap();
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let bind = |port| move || TcpListener::bind(at(port)).unwrap();
    let far = network.at_broker(bind(9092)).unwrap();
    let beside = network.at_broker(bind(7000)).unwrap();
    let own = network.at_client(bind(7000)).unwrap();
    let connect = |port| network.at_client(|| TcpStream::connect(at(port)).unwrap());
    let (client, mut near) = (connect(9092).unwrap(), connect(7000).unwrap());
    let (broker, _) = far.accept().unwrap();
    let (mut own, _) = own.accept().unwrap();
    assert!(network.rtt() >= Duration::from_millis(10), "of those ports");
    exchange(*b"xy", &client, &broker);
    near.write_all(b"x").unwrap();
    own.read_exact(&mut [0]).unwrap();
    beside.set_nonblocking(true).unwrap();
    assert!(beside.accept().is_err(), "that port is not the broker's");
}
