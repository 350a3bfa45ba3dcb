//! What the telemetry probe costs, counted in instructions: publishes and consumes a fixed number
//! of messages through two NSQ sessions, without sockets. Count it with and without the probe:
//!
//! ```sh
//! cargo build --release -p cloverleaf-nsq --example probe_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     target/release/examples/probe_cost FOLDER ROUNDS PER_MPUB
//! ```
//!
//! and again with `--no-default-features`; run each with two numbers of rounds, and the difference
//! of the instructions divided by the difference of the messages is free of start and end. The
//! clock is driven: under valgrind a second holds far less work than elsewhere, and what is
//! recorded a number of times per second would seem to cost more than it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use cloverleaf_broker::{Broker, BrokerOptions, Clock};
use cloverleaf_log::{Log, LogOptions, RealDisk};
use cloverleaf_nsq::definitions::channel_options;
use cloverleaf_nsq::stats_clients::Clients;
use cloverleaf_nsq::{Session, SessionOptions, SessionParts};
use cloverleaf_session::{Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};

const BODY_BYTES: usize = 200;
/// Size, frame type, timestamp and attempts before the id of a message frame.
const ID_AT: usize = 18;
const ID_BYTES: usize = 16;

/// What a message takes of the time of a fast machine, and what a round takes beside its messages.
const MESSAGE_US: u64 = 2;
const ROUND_US: u64 = 20;

/// A clock that each round moves on.
#[derive(Default)]
struct DrivenClock(AtomicU64);

impl Clock for DrivenClock {
    fn now_us(&self) -> u64 {
        1_700_000_000_000_000 + self.0.load(Ordering::Relaxed)
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct World {
    broker: Broker,
    clients: Arc<Clients>,
    registry: Registry,
    clock: Arc<DrivenClock>,
}

impl World {
    fn now(&self) -> Now {
        let unix_us = self.clock.now_us();
        Now {
            us: self.clock.0.load(Ordering::Relaxed) + 1,
            unix_us,
        }
    }

    fn session(&self) -> Session {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 4150));
        let now = self.now();
        let parts = SessionParts {
            broker: self.broker.clone(),
            options: Arc::new(SessionOptions::default()),
            channel_policy: Arc::new(|_, channel| channel_options(channel)),
            client: self.clients.connect(address.to_string(), 0),
            probe: self.registry.open(Protocol::Nsq, address, now.us),
        };
        Session::new(parts, now)
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, rounds, per_mpub] = &arguments[..] else {
        return Err("usage: probe_cost FOLDER ROUNDS PER_MPUB".into());
    };
    let (rounds, per_mpub): (u32, u32) = (rounds.parse()?, per_mpub.parse()?);
    let options = LogOptions {
        manual: true,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(RealDisk::open(folder)?, options)?;
    let clock = Arc::new(DrivenClock::default());
    let broker = Broker::open(
        log.clone(),
        recovery,
        BrokerOptions::default(),
        clock.clone(),
    )?;
    let (clients, registry) = (Clients::new(), Registry::new());
    let world = World {
        broker,
        clients,
        registry,
        clock,
    };

    let (mut producer, mut consumer) = (world.session(), world.session());
    let mut out = Output::default();
    feed(&mut consumer, &world, b"  V2SUB t ch\nRDY 2500\n", &mut out);
    feed(&mut producer, &world, b"  V2", &mut out);
    let publish = mpub(per_mpub);
    let mut fins = Vec::new();
    let mut consumed = 0;
    for _ in 0..rounds {
        let round_us = ROUND_US + MESSAGE_US * u64::from(per_mpub);
        world.clock.0.fetch_add(round_us, Ordering::Relaxed);
        out.clear();
        feed(&mut producer, &world, &publish, &mut out);
        out.clear();
        poll(&mut consumer, &world, &mut out);
        consumed += finish_all(&out.bytes, &mut fins);
        out.clear();
        feed(&mut consumer, &world, &fins, &mut out);
    }
    if consumed != u64::from(rounds) * u64::from(per_mpub) {
        return Err(format!("{consumed} messages came back").into());
    }
    println!("{consumed} messages published, delivered and finished");
    Ok(())
}

fn feed(session: &mut Session, world: &World, bytes: &[u8], out: &mut Output) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let received = session.receive(rest, world.now());
        rest = &rest[received.consumed_bytes..];
        poll(session, world, out);
    }
}

fn poll(session: &mut Session, world: &World, out: &mut Output) {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        let before = out.len();
        session.poll(&mut context, world.now(), out);
        session.wrote(out.len() - before, world.now());
        if out.len() == before {
            return;
        }
    }
}

fn mpub(count: u32) -> Vec<u8> {
    let mut body = count.to_be_bytes().to_vec();
    for _ in 0..count {
        body.extend_from_slice(&(BODY_BYTES as u32).to_be_bytes());
        body.extend_from_slice(&[b'x'; BODY_BYTES]);
    }
    let mut command = b"MPUB t\n".to_vec();
    command.extend_from_slice(&(body.len() as u32).to_be_bytes());
    command.extend_from_slice(&body);
    command
}

/// Writes a FIN for each message frame in `frames`, says how many there were.
fn finish_all(frames: &[u8], fins: &mut Vec<u8>) -> u64 {
    fins.clear();
    let (mut rest, mut count) = (frames, 0);
    while let Some((size, behind)) = rest.split_first_chunk::<4>() {
        let size = u32::from_be_bytes(*size) as usize;
        if size == BODY_BYTES + 30 {
            fins.extend_from_slice(b"FIN ");
            fins.extend_from_slice(&rest[ID_AT..ID_AT + ID_BYTES]);
            fins.push(b'\n');
            count += 1;
        }
        rest = &behind[size..];
    }
    count
}
