//! Clients that break every rule. After each the broker serves a healthy one, and its memory is
//! bounded.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Context, Report};
use crate::broker::{Broker, Kind};
use crate::nsq::{Connection, Frame, multi_publish_command, publish_command};
use crate::wait;

/// More than caches, buffers and incomplete requests take (128 MiB, and one request beside them),
/// and much less than is sent to the broker.
const RSS_BYTES_MAX: u64 = 400 << 20;
/// If the broker takes no bytes for this long, it has taken all that it takes.
const QUIET: Duration = Duration::from_secs(1);
/// Connections that are opened and closed.
const CONNECTIONS: usize = 10_000;

/// A hostile client's behaviour towards the broker at this address.
type Check = fn(SocketAddr) -> Result<()>;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("hostile")?;
    let mut broker = context.options(folder.path())?.start()?;
    let checks: &[(&str, Check)] = &[
        ("random bytes", random_bytes),
        ("wrong magic", wrong_magic),
        ("half frames", half_frames),
        ("huge lengths", huge_lengths),
        ("a line without end", line_without_end),
        ("commands in wrong order", wrong_order),
        ("a slow reader", slow_reader),
        ("a client that never acknowledges", never_acknowledges),
        ("10,000 connections opened and closed", open_and_close),
    ];
    for (name, check) in checks {
        report.check(name, || {
            check(broker.tcp())?;
            healthy(broker.tcp(), name)
        });
    }
    let (nsq, kafka) = (broker.tcp(), broker.kafka());
    let halves: [(&str, SocketAddr, usize, Vec<u8>); 2] = [
        ("1 GB in half requests of Kafka", kafka, 12, kafka_half()),
        ("1 GB in half bodies of NSQ", nsq, 220, nsq_half()),
    ];
    for (name, address, peers, head) in halves {
        // nsqd has no Kafka address, and promises no bound.
        if context.kind == Kind::Cloverleaf {
            report.check(name, || {
                let held = half_sent(address, peers, &head)?;
                healthy(nsq, name)?;
                drop(held);
                Ok(())
            });
        }
    }
    report.check("memory is bounded", || bounded(&mut broker));
    Ok(())
}

fn bounded(broker: &mut Broker) -> Result<()> {
    let peak = broker.process().usage()?.rss_peak_bytes;
    println!(
        "        {} MB of resident memory at the worst moment",
        peak >> 20
    );
    if peak > RSS_BYTES_MAX {
        bail!("more than {} MB", RSS_BYTES_MAX >> 20);
    }
    Ok(())
}

/// A well-behaved client publishes and reads ten messages.
fn healthy(address: SocketAddr, after: &str) -> Result<()> {
    let name: String = after
        .chars()
        .map(|c| if c.is_alphanumeric() { c } else { '_' })
        .collect();
    let mut producer = Connection::open(address)?;
    let mut consumer = Connection::consumer(address, &name, "ch", 1)?;
    for n in 0..10_u8 {
        producer.publish(&name, &[n])?;
        let message = consumer.message()?;
        if message.body != [n] || message.attempts != 1 {
            bail!("a healthy client published {n} and got {message:?}");
        }
        consumer.finish(&message.id)?;
    }
    Ok(())
}

fn random_bytes(address: SocketAddr) -> Result<()> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for round in 0..200 {
        let mut connection = if round % 2 == 0 {
            Connection::open_raw(address)?
        } else {
            Connection::open(address)?
        };
        let length = random.below(20_000);
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        // The broker may close the connection before it has read everything.
        let _ = connection.send(&bytes);
    }
    Ok(())
}

fn wrong_magic(address: SocketAddr) -> Result<()> {
    for magic in ["  V1", "  V3", "GET ", "\0\0\0\0"] {
        let mut connection = Connection::open_raw(address)?;
        connection.send(magic.as_bytes())?;
        closed(&mut connection, &format!("the magic {magic:?}"))?;
    }
    Ok(())
}

fn half_frames(address: SocketAddr) -> Result<()> {
    let whole = publish_command("half", &[7; 1000]);
    for length in (0..whole.len()).step_by(50) {
        Connection::open(address)?.send(&whole[..length])?;
    }
    let batch = multi_publish_command("half", &vec![vec![7; 50]; 20]);
    for length in (0..batch.len()).step_by(50) {
        Connection::open(address)?.send(&batch[..length])?;
    }
    // No half command is published: the first message to come is the whole one below.
    let mut connection = Connection::open(address)?;
    connection.publish("half", b"whole")?;
    let first = Connection::consumer(address, "half", "ch", 1)?.message()?;
    if first.body != b"whole" {
        bail!("half a PUB was published: {} bytes", first.body.len());
    }
    Ok(())
}

fn huge_lengths(address: SocketAddr) -> Result<()> {
    let commands: [(&str, &[u8], &str); 6] = [
        ("PUB", b"PUB huge\n\x7f\xff\xff\xff", "E_BAD_MESSAGE"),
        (
            "PUB, negative",
            b"PUB huge\n\xff\xff\xff\xff",
            "E_BAD_MESSAGE",
        ),
        ("MPUB", b"MPUB huge\n\x7f\xff\xff\xff", "E_BAD_BODY"),
        (
            "MPUB, count",
            b"MPUB huge\n\0\0\0\x0c\x7f\xff\xff\xff\0\0\0\x04body",
            "E_BAD_BODY",
        ),
        (
            "MPUB, message",
            b"MPUB huge\n\0\0\0\x0c\0\0\0\x01\x7f\xff\xff\xffbody",
            "E_BAD_MESSAGE",
        ),
        ("IDENTIFY", b"IDENTIFY\n\x7f\xff\xff\xff", "E_BAD_BODY"),
    ];
    for (name, command, code) in commands {
        let mut connection = Connection::open(address)?;
        connection.send(command)?;
        refused(&mut connection, code, name)?;
    }
    Ok(())
}

fn line_without_end(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address)?;
    // Fails when the broker closes the connection.
    let _ = connection.send(&vec![b'x'; 16 << 20]);
    closed(&mut connection, "16 MB without a line end")
}

fn wrong_order(address: SocketAddr) -> Result<()> {
    let cases: [(&[u8], &str); 7] = [
        (b"FIN 0123456789abcdef\n", "E_INVALID"),
        (b"REQ 0123456789abcdef 0\n", "E_INVALID"),
        (b"TOUCH 0123456789abcdef\n", "E_INVALID"),
        (b"CLS\n", "E_INVALID"),
        (b"RDY 1\n", "E_INVALID"),
        (b"NONSENSE\n", "E_INVALID"),
        (b"SUB order\n", "E_INVALID"),
    ];
    for (command, code) in cases {
        let mut connection = Connection::open(address)?;
        connection.send(command)?;
        refused(&mut connection, code, &String::from_utf8_lossy(command))?;
    }
    for second in [b"SUB order ch\n".as_slice(), b"IDENTIFY\n\0\0\0\x02{}"] {
        let mut connection = Connection::open(address)?;
        connection.ask(b"SUB order ch\n")?;
        connection.send(second)?;
        refused(
            &mut connection,
            "E_INVALID",
            "a second SUB or a late IDENTIFY",
        )?;
    }
    // A failed FIN does not end the connection.
    let mut connection = Connection::open(address)?;
    connection.ask(b"SUB order ch\n")?;
    connection.send(b"FIN 0123456789abcdef\n")?;
    match connection.frame()? {
        Frame::Error(text) if text.starts_with("E_FIN_FAILED") => {}
        other => bail!("FIN of a message that it never got: {other:?}"),
    }
    connection.publish("order", b"still here")
}

/// Two channels of one topic: one consumer never reads, and the other gets all messages.
fn slow_reader(address: SocketAddr) -> Result<()> {
    let _slow = Connection::consumer(address, "slow", "stuck", 2500)?;
    let mut fast = Connection::consumer(address, "slow", "fast", 200)?;
    let mut producer = Connection::open(address)?;
    let batch = multi_publish_command("slow", &vec![vec![1; 1000]; 200]);
    for _ in 0..250 {
        producer.ask(&batch)?;
        for _ in 0..200 {
            let message = fast.message()?;
            fast.finish(&message.id)?;
        }
    }
    Ok(())
}

/// Messages in flight to a consumer are delivered to another consumer when the first has
/// disconnected, and not before. nsqd waits for the message timeout even then, so the timeout is
/// short.
fn never_acknowledges(address: SocketAddr) -> Result<()> {
    let mut producer = Connection::open(address)?;
    let mut holder = Connection::open(address)?;
    holder.ask(b"IDENTIFY\n\0\0\0\x14{\"msg_timeout\":2000}")?;
    holder.ask(b"SUB held ch\n")?;
    holder.send(b"RDY 100\n")?;
    // With one command: the timeout of the first message begins with its delivery.
    let bodies: Vec<Vec<u8>> = (0..100).map(|n| vec![n]).collect();
    producer.ask(&multi_publish_command("held", &bodies))?;
    for _ in 0..100 {
        holder.message()?;
    }
    let mut other = Connection::consumer(address, "held", "ch", 101)?;
    producer.publish("held", b"new")?;
    let message = other.message()?;
    if message.body != b"new" {
        bail!("a message in flight was delivered twice: {message:?}");
    }
    other.finish(&message.id)?;
    drop(holder);
    let mut again: Vec<u8> = Vec::new();
    for _ in 0..100 {
        let message = other.message()?;
        if message.attempts != 2 {
            bail!("{} attempts where 2 were due", message.attempts);
        }
        again.extend(message.body);
        other.finish(&message.id)?;
    }
    again.sort_unstable();
    if !again.iter().copied().eq(0..100) {
        bail!("what the lost consumer held did not all come back");
    }
    Ok(())
}

fn open_and_close(address: SocketAddr) -> Result<()> {
    for n in 0..CONNECTIONS {
        let mut connection = Connection::open_raw(address)?;
        match n % 4 {
            0 => {}
            1 => connection.send(b"  ")?,
            2 => connection.send(b"  V2")?,
            _ => connection.send(b"  V2SUB churn ch\nRDY 1\n")?,
        }
    }
    Ok(())
}

/// The beginning of a Produce of 90 MB.
fn kafka_half() -> Vec<u8> {
    [
        &90_000_000_i32.to_be_bytes()[..],
        b"\0\0\0\x03\0\0\0\x01\0\x01h",
    ]
    .concat()
}

/// The beginning of an MPUB of 5 MB with five messages. The first one has the greatest size that is
/// allowed: the broker would refuse a greater one at once.
fn nsq_half() -> Vec<u8> {
    let numbers = [5_000_000_u32, 5, 1_000_000].map(u32::to_be_bytes);
    [&b"  V2MPUB half\n"[..], &numbers.concat()].concat()
}

/// Opens connections that announce a request and send as much of it as the broker takes.
fn half_sent(address: SocketAddr, peers: usize, head: &[u8]) -> Result<Vec<TcpStream>> {
    let announced = 1_000_000_000 / peers;
    let piece = vec![b'x'; 1 << 20];
    let mut streams = Vec::new();
    for _ in 0..peers {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(head)?;
        stream.set_nonblocking(true)?;
        streams.push((stream, announced));
    }
    // Until the broker has taken no bytes for a while.
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < QUIET {
        for (stream, left) in &mut streams {
            let most = (*left).min(piece.len());
            match stream.write(&piece[..most]) {
                Ok(0) => {}
                Ok(sent) => {
                    *left -= sent;
                    quiet_since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The broker may close a silent connection while others wait for memory.
                Err(error) if is_end(error.kind()) => *left = 0,
                Err(error) => return Err(error.into()),
            }
        }
        std::thread::yield_now();
    }
    Ok(streams.into_iter().map(|(stream, _)| stream).collect())
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// The broker answers with this error code and closes.
fn refused(connection: &mut Connection, code: &str, what: &str) -> Result<()> {
    match connection.frame()? {
        Frame::Error(text) if text.starts_with(code) => closed(connection, what),
        other => bail!("{what}: {other:?} where {code} was due"),
    }
}

fn closed(connection: &mut Connection, what: &str) -> Result<()> {
    if !connection.is_closed_within(wait::HANG)? {
        bail!("{what}: the connection is still open");
    }
    Ok(())
}

/// Xorshift: the same bytes on every run, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
