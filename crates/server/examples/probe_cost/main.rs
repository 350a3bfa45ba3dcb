//! Counts the cost of telemetry in instructions: publishes and consumes a fixed number of messages
//! of 200 bytes through two sessions of a protocol, without sockets. Build and count it with the
//! probe:
//!
//! ```sh
//! cargo build --release -p cloverleaf-server --example probe_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     target/release/examples/probe_cost nsq FOLDER ROUNDS MESSAGES_PER_ROUND
//! ```
//!
//! and once more with `--no-default-features`, which leaves the probe out. Run each build with two
//! numbers of rounds: the difference in instructions divided by the difference in messages excludes
//! the start and the end. A round is one read with a request (NSQ: MPUB, Kafka: Produce; AMQP:
//! messages with confirms), the consumer's deliveries, and one read with its acknowledgements
//! (Kafka: a Fetch).

mod amqp;
mod kafka;
mod nsq;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use cloverleaf_broker::{Broker, BrokerOptions, Clock};
use cloverleaf_log::{Log, LogOptions, RealDisk};
use cloverleaf_session::{Input, Now, Output, Received, Session};
use cloverleaf_telemetry::{Probe, Protocol, Registry};

const BODY: [u8; 200] = [b'x'; 200];
const CLIENT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 50_000);

/// The time that a fast machine needs for a message, and for a round apart from its messages.
const MESSAGE_US: u64 = 2;
const ROUND_US: u64 = 20;

/// A clock that each round advances: under valgrind a second has far less work than elsewhere, so
/// records that are made a number of times per second would seem to cost more than they do.
#[derive(Default)]
struct DrivenClock(AtomicU64);

impl Clock for DrivenClock {
    fn now_us(&self) -> u64 {
        1_700_000_000_000_000 + self.0.load(Ordering::Relaxed)
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A broker without threads, on real files.
struct SimulatedBroker {
    broker: Broker,
    registry: Registry,
    clock: Arc<DrivenClock>,
}

impl SimulatedBroker {
    fn open(folder: &str) -> Outcome<SimulatedBroker> {
        let options = LogOptions {
            manual: true,
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(RealDisk::open(folder)?, options)?;
        let clock = Arc::new(DrivenClock::default());
        Ok(SimulatedBroker {
            broker: Broker::open(log, recovery, BrokerOptions::default(), clock.clone())?,
            registry: Registry::new(),
            clock,
        })
    }

    fn now(&self) -> Now {
        Now {
            us: self.clock.0.load(Ordering::Relaxed) + 1,
            unix_us: self.clock.now_us(),
        }
    }

    /// Begins a round of `messages` messages.
    fn next_round(&self, messages: u32) {
        let round_us = ROUND_US + MESSAGE_US * u64::from(messages);
        self.clock.0.fetch_add(round_us, Ordering::Relaxed);
    }

    fn probe(&self, protocol: Protocol) -> Probe {
        self.registry.open(protocol, CLIENT, self.now().us)
    }
}

/// One connection, and the bytes that its session sent last.
struct Peer<'w, S> {
    simulated: &'w SimulatedBroker,
    session: S,
    out: Output,
    told: Vec<u8>,
}

impl<'w, S: Session> Peer<'w, S> {
    fn new(simulated: &'w SimulatedBroker, session: S) -> Peer<'w, S> {
        Peer {
            simulated,
            session,
            out: Output::default(),
            told: Vec::new(),
        }
    }

    /// Shows the session these bytes as one read, and returns its output.
    ///
    /// None of these functions is inlined, so that they are the same code with and without the
    /// probe: the compiler would inline some of them in one case only, which makes up to 80
    /// instructions per message.
    #[inline(never)]
    fn say(&mut self, bytes: &[u8]) -> &[u8] {
        self.told.clear();
        // Computed in both builds, with and without the probe.
        let now = std::hint::black_box(self.simulated.now());
        self.session.read(bytes.len(), now);
        let mut rest = bytes;
        while !rest.is_empty() {
            let received = receive(&mut self.session, rest, now);
            rest = &rest[received.consumed_bytes..];
            self.go_on(now);
        }
        &self.told
    }

    /// Returns the output that the session has without new input.
    #[inline(never)]
    fn listen(&mut self) -> &[u8] {
        self.told.clear();
        let now = std::hint::black_box(self.simulated.now());
        self.go_on(now);
        &self.told
    }

    #[inline(never)]
    fn go_on(&mut self, now: Now) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            self.out.clear();
            poll(&mut self.session, &mut context, now, &mut self.out);
            if self.out.is_empty() {
                return;
            }
            for part in self.out.parts() {
                self.told.extend_from_slice(part);
            }
            self.session.wrote(self.out.len(), now);
        }
    }
}

/// Not inlined, like [`Peer::say`]: the session's own code begins here.
#[inline(never)]
fn receive(session: &mut impl Session, input: &[u8], now: Now) -> Received {
    session.receive(Input::Lent(input), now)
}

/// Not inlined, like [`receive`].
#[inline(never)]
fn poll(session: &mut impl Session, context: &mut Context<'_>, now: Now, out: &mut Output) {
    session.poll(context, now, out);
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, protocol, folder, rounds, per_round] = &arguments[..] else {
        return Err("usage: probe_cost nsq|kafka|amqp FOLDER ROUNDS MESSAGES_PER_ROUND".into());
    };
    let (rounds, per_round): (u32, u32) = (rounds.parse()?, per_round.parse()?);
    let simulated = SimulatedBroker::open(folder)?;
    let consumed = match protocol.as_str() {
        "nsq" => nsq::play(&simulated, rounds, per_round)?,
        "kafka" => kafka::play(&simulated, rounds, per_round)?,
        "amqp" => amqp::play(&simulated, rounds, per_round)?,
        other => return Err(format!("{other} is none of nsq, kafka, amqp").into()),
    };
    if consumed != u64::from(rounds) * u64::from(per_round) {
        return Err(format!("{consumed} messages came back").into());
    }
    println!("{consumed} messages published, delivered and acknowledged");
    Ok(())
}
