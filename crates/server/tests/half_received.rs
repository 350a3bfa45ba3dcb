//! Peers that send only a part of huge requests: the memory for all of them together is bounded,
//! other clients are served meanwhile, and waiting ones are served in the end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::amqp_support;
use crate::kafka_support::{Broker, PRODUCE, connect, eventually, produce_body};
use crate::support::{Time, expect_read, start_driven};

const MIB: usize = 1 << 20;
/// The number of hostile peers.
const PEERS: usize = 8;
/// The size of each request, and how much of it is sent.
const WHOLE: usize = 24 * MIB;
const SENT: usize = 20 * MIB;
/// The value of `half_received_bytes_max`.
const BOUND: u64 = 8 << 20;

/// Peers that have sent a part of their requests, or are still trying to.
struct HostilePeers {
    streams: Vec<TcpStream>,
    senders: Vec<thread::JoinHandle<()>>,
}

impl HostilePeers {
    fn begin(address: SocketAddr, head: &[u8]) -> HostilePeers {
        let streams: Vec<TcpStream> = (0..PEERS).map(|_| connect(address)).collect();
        let send = |stream: &TcpStream| {
            let mut stream = stream.try_clone().unwrap();
            let head = head.to_vec();
            thread::spawn(move || {
                let body = vec![b'x'; MIB];
                // It fails once the broker has closed the connection.
                let mut sent = stream.write_all(&head);
                for _ in 0..SENT / MIB {
                    sent = sent.and_then(|()| stream.write_all(&body));
                }
            })
        };
        let senders = streams.iter().map(send).collect();
        HostilePeers { streams, senders }
    }
}

impl Drop for HostilePeers {
    fn drop(&mut self) {
        for stream in &self.streams {
            // It fails if the connection is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        for sender in self.senders.drain(..) {
            sender.join().unwrap();
        }
    }
}

fn metric(broker: &Broker, name: &str) -> u64 {
    let page = broker.admin("/metrics");
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cloverleaf_half_received_{name} ")));
    line.unwrap().parse::<f64>().unwrap() as u64
}

/// How long the peer of a half received request may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(1);

fn broker() -> (Broker, Time) {
    start_driven(|config| {
        config.general.half_received_bytes_max.0 = BOUND;
        config.general.half_received_timeout = SILENCE_MAX;
        config.kafka.batch_bytes_max.0 = 32 << 20;
        config.nsq.max_body_size.0 = 32 << 20;
        config.nsq.max_msg_size.0 = 32 << 20;
    })
}

/// Waits until all connections but one wait for memory, and checks that the memory is within its
/// bound.
fn expect_bounded(broker: &Broker) {
    eventually("all but one wait", || {
        metric(broker, "waiting") == PEERS as u64 - 1
    });
    eventually("one exceeds the bound", || {
        metric(broker, "bytes") > SENT as u64
    });
    let most = BOUND + WHOLE as u64 + PEERS as u64 * (256 << 10);
    assert!(metric(broker, "bytes") <= most);
}

fn kafka_head() -> Vec<u8> {
    let size = (WHOLE as i32).to_be_bytes();
    // Produce, version 3, and the rest of the request's header.
    [&size[..], b"\0\0\0\x03\0\0\0\x01\0\x01h"].concat()
}

fn nsq_head() -> Vec<u8> {
    [b"  V2PUB hostile\n", &(WHOLE as u32).to_be_bytes()[..]].concat()
}

/// Publishes `bytes` bytes and reads the answer, as an NSQ client does.
fn nsq_goes_round(stream: &mut TcpStream, topic: &str, bytes: usize) {
    let body = vec![b'n'; bytes];
    let size = (bytes as u32).to_be_bytes();
    stream
        .write_all(&[format!("PUB {topic}\n").as_bytes(), &size, &body].concat())
        .unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[8..], b"OK");
}

#[test]
fn half_requests_of_kafka_are_bounded_and_others_go_on() {
    let (broker, _time) = broker();
    let mut usual = broker.client();
    usual.make_topic("t");
    let hostile = HostilePeers::begin(broker.address(), &kafka_head());
    expect_bounded(&broker);
    let body = vec![b'u'; 700 << 10];
    let mut other = broker.client();
    let request = other.request(PRODUCE, 3, &produce_body("t", 1, &[&body]));
    for round in 0..20 {
        assert_eq!(usual.produce("t", 1, &[b"small"]), (0, 3 * round));
        // Two requests at once, and neither waits: the memory for usual requests is Kafka's own.
        other.send(&request[..600 << 10]);
        assert_eq!(usual.produce("t", 1, &[&body]), (0, 3 * round + 1));
        assert_eq!(metric(&broker, "waiting"), PEERS as u64 - 1);
        other.send(&request[600 << 10..]);
        other.answer();
    }
    let mut nsq = connect(broker.server.addresses().of("nsq.tcp_address").unwrap());
    nsq.write_all(b"  V2").unwrap();
    nsq_goes_round(&mut nsq, "small", 100);
    nsq_goes_round(&mut nsq, "usual", MIB);
    assert_eq!(metric(&broker, "closed_total"), 0);
    drop(hostile);
    eventually("all is given back", || metric(&broker, "bytes") == 0);
    assert_eq!(metric(&broker, "waiting"), 0);
}

#[test]
fn half_commands_of_nsq_are_bounded_and_others_go_on() {
    let (broker, _time) = broker();
    let nsq = broker.server.addresses().of("nsq.tcp_address").unwrap();
    let hostile = HostilePeers::begin(nsq, &nsq_head());
    expect_bounded(&broker);
    let mut usual = connect(nsq);
    usual.write_all(b"  V2").unwrap();
    for _ in 0..20 {
        nsq_goes_round(&mut usual, "t", 100);
        nsq_goes_round(&mut usual, "t", 700 << 10);
    }
    let mut kafka = broker.client();
    kafka.make_topic("k");
    assert_eq!(kafka.produce("k", 1, &[&vec![b'k'; 700 << 10]]), (0, 0));
    drop(hostile);
    eventually("all is given back", || metric(&broker, "bytes") == 0);
}

#[test]
fn stalled_peers_are_closed_and_a_large_request_succeeds() {
    let (broker, mut time) = broker();
    let mut usual = broker.client();
    usual.make_topic("t");
    let hostile = HostilePeers::begin(broker.address(), &kafka_head());
    expect_bounded(&broker);
    let body = vec![b'u'; 22 * MIB];
    let request = usual.request(PRODUCE, 3, &produce_body("t", 1, &[&body]));
    thread::scope(|scope| {
        let large = scope.spawn(|| {
            usual.send(&request);
            usual.answer();
        });
        // The request is last in the queue, and has nearly all its time left when its turn comes.
        time.pass_until(SILENCE_MAX / 20, "all the others are closed", || {
            metric(&broker, "closed_total") == PEERS as u64
        });
        large.join().unwrap();
    });
    for stream in &hostile.streams {
        let mut rest = Vec::new();
        // A reset is an end too.
        if (&*stream).read_to_end(&mut rest).is_ok() {
            assert_eq!(rest, b"");
        }
    }
    eventually("all is given back", || metric(&broker, "bytes") == 0);
}

#[test]
fn a_connection_that_waits_for_memory_does_not_count_as_silent() {
    let (broker, mut time) = broker();
    let nsq = broker.server.addresses().of("nsq.tcp_address").unwrap();
    let piece = vec![b'x'; MIB];
    let mut ahead = connect(nsq);
    ahead.write_all(&nsq_head()).unwrap();
    for _ in 0..8 {
        ahead.write_all(&piece).unwrap();
    }
    eventually("it exceeds the bound", || metric(&broker, "bytes") > BOUND);
    let mut waiting = connect(nsq);
    let identify = br#"{"heartbeat_interval":1000}"#;
    let identify = [
        b"  V2IDENTIFY\n",
        &(identify.len() as u32).to_be_bytes()[..],
        identify,
    ];
    waiting.write_all(&identify.concat()).unwrap();
    waiting.write_all(&nsq_head()[4..]).unwrap();
    waiting.write_all(&piece).unwrap();
    eventually("one is queued", || metric(&broker, "waiting") == 1);
    // The first connection goes on sending, for longer than two heartbeats of the waiting one.
    for _ in 0..6 {
        time.pass(SILENCE_MAX * 9 / 10);
        ahead.write_all(&piece[..64 << 10]).unwrap();
        time.settle();
        expect_read(&ahead);
    }
    assert_eq!(metric(&broker, "waiting"), 1);
    drop(ahead);
    for _ in 1..WHOLE / MIB {
        waiting.write_all(&piece).unwrap();
    }
    let mut told = Vec::new();
    while !told.ends_with(b"OK") || told.len() < 20 {
        let mut byte = [0];
        assert_eq!(waiting.read(&mut byte).unwrap(), 1, "{told:?}");
        told.push(byte[0]);
    }
}

/// Bytes of a usual request that is larger than a connection's free part.
const USUAL: usize = 60_000;

/// Peers that have sent 40 kB of a command of 1 MiB each, one after the other.
struct SilentPeers {
    streams: Vec<TcpStream>,
}

impl SilentPeers {
    const SENT: usize = 40_000;

    fn begin(broker: &Broker, peers: usize) -> SilentPeers {
        let head = [b"  V2PUB silent\n", &(MIB as u32).to_be_bytes()[..]].concat();
        let address = broker.server.addresses().of("nsq.tcp_address").unwrap();
        let begin = |_| {
            let mut stream = connect(address);
            // In two pieces, as a network would cut them: the buffer must not grow for the second
            // one.
            stream.write_all(&head).unwrap();
            stream.write_all(&[b's'; SilentPeers::SENT / 2]).unwrap();
            expect_read(&stream);
            stream.write_all(&[b's'; SilentPeers::SENT / 2]).unwrap();
            stream
        };
        SilentPeers {
            streams: (0..peers).map(begin).collect(),
        }
    }

    /// The indexes of the closed connections.
    fn closed(&self) -> Vec<usize> {
        let is_closed = |stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            let read = (&mut &*stream).read(&mut [0]);
            !matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
        };
        let all = self.streams.iter().enumerate();
        all.filter(|(_, stream)| is_closed(stream))
            .map(|(peer, _)| peer)
            .collect()
    }
}

#[test]
fn a_connection_holds_no_memory_after_its_close_frame() {
    let (broker, mut time) = start_driven(|config| {
        config.nsq.max_msg_size.0 = 32 << 20;
    });
    let mut peer = connect(broker.server.addresses().of("nsq.tcp_address").unwrap());
    let identify = br#"{"heartbeat_interval":1000}"#;
    let identify = [
        b"  V2IDENTIFY\n",
        &(identify.len() as u32).to_be_bytes()[..],
        identify,
    ];
    peer.write_all(&identify.concat()).unwrap();
    peer.write_all(&nsq_head()[4..]).unwrap();
    peer.write_all(&vec![b'x'; MIB]).unwrap();
    eventually("it is charged", || metric(&broker, "bytes") >= MIB as u64);
    // It is silent for two heartbeats.
    for _ in 0..4 {
        time.pass(SILENCE_MAX);
    }
    let mut told = Vec::new();
    peer.read_to_end(&mut told).unwrap();
    // The broker goes on reading until the client closes its side, so that the client receives all
    // output.
    assert_eq!(metric(&broker, "bytes"), 0);
}

/// A client of each protocol sends a usual request and gets its answer.
fn usual_requests_go_round(broker: &Broker) {
    let mut nsq = connect(broker.server.addresses().of("nsq.tcp_address").unwrap());
    nsq.write_all(b"  V2").unwrap();
    nsq_goes_round(&mut nsq, "usual", USUAL);
    others_go_round(broker);
}

fn others_go_round(broker: &Broker) {
    let mut kafka = broker.client();
    kafka.make_topic("k");
    // In two parts, so that the broker has to hold the first one.
    let request = kafka.request(PRODUCE, 3, &produce_body("k", 1, &[&[b'k'; USUAL]]));
    kafka.send(&request[..USUAL - 10_000]);
    expect_read(&kafka.stream);
    kafka.send(&request[USUAL - 10_000..]);
    kafka.answer();
    let amqp = connect(broker.server.addresses().of("amqp.address").unwrap());
    let mut amqp = amqp_support::Client::login(amqp, "guest", "guest");
    amqp.open();
    amqp.declare("a");
    amqp.publish("a", &[b'a'; USUAL]);
    assert_eq!(amqp.get("a").map(|body| body.len()), Some(USUAL));
}

#[test]
fn memory_grows_with_received_bytes_not_announced_ones() {
    let (broker, _time) = start_driven(|_| {});
    let silent = SilentPeers::begin(&broker, 200);
    // The clock stands still, so no connection is closed; and none has to wait.
    usual_requests_go_round(&broker);
    assert_eq!(metric(&broker, "waiting"), 0);
    let came = (200 * SilentPeers::SENT) as u64;
    let bytes = metric(&broker, "bytes");
    assert!((came..came * 3 / 2).contains(&bytes), "{bytes}");
    drop(silent);
    eventually("all is given back", || metric(&broker, "bytes") == 0);
}

#[test]
fn the_peers_silent_longest_are_closed_and_no_more_than_necessary() {
    let (broker, mut time) = start_driven(|config| {
        config.general.half_received_bytes_max.0 = 1 << 20;
    });
    // NSQ's own memory and the common memory are used up, and one connection is beyond the bound.
    let mut silent = SilentPeers::begin(&broker, 1);
    while metric(&broker, "waiting") == 0 && silent.streams.len() < 100 {
        time.pass(Duration::from_millis(1));
        silent
            .streams
            .append(&mut SilentPeers::begin(&broker, 1).streams);
        time.settle();
    }
    let peers = silent.streams.len();
    assert!((10..30).contains(&peers), "{peers}");
    // Other protocols have memory of their own.
    others_go_round(&broker);
    let mut nsq = connect(broker.server.addresses().of("nsq.tcp_address").unwrap());
    nsq.write_all(b"  V2").unwrap();
    let size = (USUAL as u32).to_be_bytes();
    let command = [b"PUB usual\n", &size[..], &[b'n'; USUAL]].concat();
    nsq.write_all(&command).unwrap();
    time.settle();
    assert_eq!(silent.closed(), [0; 0]);
    // A second later the peers count as silent.
    time.pass_until(Duration::from_millis(100), "it is answered", || {
        metric(&broker, "waiting") == 0
    });
    let mut answer = [0; 10];
    nsq.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[8..], b"OK");
    let closed = silent.closed();
    assert!((1..6).contains(&closed.len()), "{closed:?}");
    assert_eq!(closed, Vec::from_iter(0..closed.len()));
}
