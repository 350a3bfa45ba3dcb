//! Sessions without a socket and without a clock, against a real broker on a simulated disk.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Waker};

use cloverleaf_broker::{Broker, BrokerOptions, Clock, ManualClock, Realm, SubscriptionStats};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_nsq::definitions::channel_options;
use cloverleaf_nsq::stats::clients::Clients;
use cloverleaf_nsq::{DriverTask, Session, SessionOptions, SessionParts};
use cloverleaf_session::{Input, Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};

const START_MS: u64 = 1_700_000_000_000;

/// A broker whose time and disk the test drives.
pub struct World {
    pub clock: Arc<ManualClock>,
    pub disk: SimDisk,
    pub log: Log,
    pub broker: Broker,
    pub options: Arc<SessionOptions>,
    pub clients: Arc<Clients>,
    pub registry: Registry,
    /// How far the wall clock was set forward, or back if negative.
    pub wall_step_us: AtomicI64,
}

impl World {
    pub fn new() -> World {
        World::with(SessionOptions::default())
    }

    pub fn with(options: SessionOptions) -> World {
        World::build(options, true, BrokerOptions::default())
    }

    /// A broker whose budget of unwritten bytes admits one publish at a time. It writes only in
    /// [`World::settle`].
    pub fn with_little_room() -> World {
        let broker_options = BrokerOptions {
            unwritten_bytes_max: 1,
            ..BrokerOptions::default()
        };
        World::build(SessionOptions::default(), false, broker_options)
    }

    fn build(options: SessionOptions, inline_writes: bool, broker_options: BrokerOptions) -> World {
        let clock = Arc::new(ManualClock::new(START_MS));
        let disk = SimDisk::new();
        let log_options = LogOptions {
            manual: true,
            inline_writes,
            disk_free_bytes_min: 0,
            journal_bytes: 64 << 10,
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(disk.mount(), log_options).unwrap();
        let broker = Broker::open(log.clone(), recovery, broker_options, clock.clone()).unwrap();
        World {
            clock,
            disk,
            log,
            broker,
            options: Arc::new(options),
            clients: Clients::new(),
            registry: Registry::new(),
            wall_step_us: AtomicI64::new(0),
        }
    }

    pub fn now(&self) -> Now {
        let clock_us = self.clock.now_us();
        Now {
            us: clock_us - START_MS * 1000 + 1,
            unix_us: clock_us.saturating_add_signed(self.wall_step_us.load(Ordering::Relaxed)),
        }
    }

    /// Sets the wall clock; the monotonic clock stays as it is.
    pub fn step_wall_clock(&self, seconds: i64) {
        self.wall_step_us
            .fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    }

    /// Runs the log and the housekeeping until they have done everything that is due.
    pub fn settle(&self) {
        for _ in 0..4 {
            self.log.step();
            self.broker.tick();
        }
    }

    pub fn advance(&self, ms: u64) {
        self.clock.advance(ms);
        self.settle();
    }

    /// A connection that has not sent anything.
    pub fn connect_silent(&self) -> Peer<'_> {
        let now = self.now();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 4150));
        let parts = SessionParts {
            realm: Realm::unrestricted(self.broker.clone()),
            options: self.options.clone(),
            channel_policy: Arc::new(|_, channel| channel_options(channel)),
            client: self.clients.connect(address.to_string(), 0),
            probe: self.registry.open(Protocol::Nsq, address, now.us),
        };
        Peer {
            world: self,
            session: Session::new(parts, now),
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// A connection that has sent the magic.
    pub fn connect(&self) -> Peer<'_> {
        let mut peer = self.connect_silent();
        peer.send(b"  V2");
        peer
    }

    /// A consumer that has subscribed and is ready for `count` messages.
    pub fn subscribe(&self, topic: &str, channel: &str, count: u32) -> Peer<'_> {
        let mut peer = self.connect();
        peer.subscribe(topic, channel);
        peer.send(format!("RDY {count}\n").as_bytes());
        peer
    }

    pub fn publish(&self, topic: &str, bodies: &[&str]) {
        let mut peer = self.connect();
        for body in bodies {
            peer.send(&sized(&format!("PUB {topic}\n"), body.as_bytes()));
            peer.expect_ok();
        }
    }

    pub fn channel(&self, topic: &str, channel: &str) -> SubscriptionStats {
        let topic = self.broker.topic(topic).expect("the topic is there");
        topic
            .subscription(channel)
            .expect("the channel is there")
            .stats()
    }
}

/// One frame, as the client decodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Response(String),
    Error(String),
    Message(Message),
}

/// The fields of a message frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub timestamp_ns: i64,
    pub attempts: u16,
    pub id: String,
    pub body: String,
}

/// The client's end of a session.
pub struct Peer<'w> {
    pub world: &'w World,
    pub session: Session,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Peer<'_> {
    /// Sends bytes and runs broker and session until nothing changes any more.
    pub fn send(&mut self, bytes: &[u8]) {
        self.feed(bytes);
        self.pump();
    }

    /// Sends bytes without running the broker.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        if self.session.wants_input() {
            let received = self
                .session
                .receive(Input::Lent(&self.input), self.world.now());
            self.input.drain(..received.consumed_bytes);
        }
    }

    /// Runs broker and session until nothing changes any more.
    pub fn pump(&mut self) {
        loop {
            self.world.settle();
            if !self.poll() && !self.go_on() {
                return;
            }
        }
    }

    /// Shows the session its remaining input again, if it wants input now.
    fn go_on(&mut self) -> bool {
        if self.input.is_empty() || !self.session.wants_input() {
            return false;
        }
        let received = self
            .session
            .receive(Input::Lent(&self.input), self.world.now());
        self.input.drain(..received.consumed_bytes);
        received.consumed_bytes > 0
    }

    /// Polls the session once. Returns whether it had output.
    pub fn poll(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let mut out = Output::default();
        self.session.poll(&mut cx, self.world.now(), &mut out);
        self.session.wrote(out.len(), self.world.now());
        self.output.extend_from_slice(&out.bytes);
        !out.is_empty()
    }

    pub fn end_input(&mut self) {
        self.session.end_of_input(&self.input, self.world.now());
        self.pump();
    }

    pub fn request(&mut self) -> Option<DriverTask> {
        self.session.take_driver_task()
    }

    /// The frames since the last call.
    pub fn frames(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut rest = &self.output[..];
        while let Some((size, behind)) = rest.split_first_chunk::<4>() {
            let (frame, behind) = behind.split_at(u32::from_be_bytes(*size) as usize);
            frames.push(parse_frame(frame));
            rest = behind;
        }
        assert!(rest.is_empty());
        self.output.clear();
        frames
    }

    pub fn messages(&mut self) -> Vec<Message> {
        let message = |frame| match frame {
            Frame::Message(message) => message,
            other => panic!("not a message: {other:?}"),
        };
        self.frames().into_iter().map(message).collect()
    }

    pub fn bodies(&mut self) -> Vec<String> {
        self.messages()
            .into_iter()
            .map(|message| message.body)
            .collect()
    }

    pub fn expect(&mut self, frames: &[Frame]) {
        assert_eq!(self.frames(), frames);
    }

    pub fn expect_ok(&mut self) {
        self.expect(&[Frame::Response("OK".into())]);
    }

    /// Expects only this error, after which the connection ends.
    pub fn expect_fatal(&mut self, text: &str) {
        self.expect(&[Frame::Error(text.into())]);
        assert!(self.session.is_ended(), "{text}");
    }

    /// Expects only this error, after which the connection stays open.
    pub fn expect_error(&mut self, text: &str) {
        self.expect(&[Frame::Error(text.into())]);
        assert!(!self.session.is_ended(), "{text}");
    }

    pub fn subscribe(&mut self, topic: &str, channel: &str) {
        self.send(format!("SUB {topic} {channel}\n").as_bytes());
        self.expect_ok();
    }

    pub fn identify(&mut self, json: &str) -> String {
        self.send(&sized("IDENTIFY\n", json.as_bytes()));
        match &self.frames()[..] {
            [Frame::Response(answer)] => answer.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn parse_frame(frame: &[u8]) -> Frame {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (kind, body) = frame.split_first_chunk::<4>().unwrap();
    match u32::from_be_bytes(*kind) {
        0 => Frame::Response(text(body)),
        1 => Frame::Error(text(body)),
        2 => Frame::Message(Message {
            timestamp_ns: i64::from_be_bytes(body[..8].try_into().unwrap()),
            attempts: u16::from_be_bytes(body[8..10].try_into().unwrap()),
            id: text(&body[10..26]),
            body: text(&body[26..]),
        }),
        other => panic!("frame type {other}"),
    }
}

/// A command with a sized body.
pub fn sized(line: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(line);
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

pub fn publish(topic: &str, body: &str) -> Vec<u8> {
    sized(&format!("PUB {topic}\n"), body.as_bytes())
}

pub fn publish_many(topic: &str, bodies: &[&str]) -> Vec<u8> {
    let mut inner = Vec::from((bodies.len() as u32).to_be_bytes());
    for body in bodies {
        inner.extend_from_slice(&sized("", body.as_bytes()));
    }
    sized(&format!("MPUB {topic}\n"), &inner)
}

pub fn response(text: &str) -> Frame {
    Frame::Response(text.into())
}
