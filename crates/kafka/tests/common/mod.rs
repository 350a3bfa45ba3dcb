//! Sessions without a socket and without a clock, against a real broker on a simulated disk. The
//! client side is the library `kafka-protocol`, which encodes requests and decodes answers.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

pub mod fetch;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use bytes::{Bytes, BytesMut};
use cloverleaf_broker::{Broker, BrokerOptions, Clock, ManualClock, Realm, Topic, TopicOptions};
use cloverleaf_kafka::control::ConnectionPeer as KafkaPeer;
use cloverleaf_kafka::{KafkaContext, KafkaOptions, Session, SessionParts, Worker};
use cloverleaf_log::{Batch, BatchBuilder, FaultyDisk, Log, LogOptions, SimDisk};
use cloverleaf_session::{Input, Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use parking_lot::Mutex;

pub const START_MS: u64 = 1_700_000_000_000;

type Job = Box<dyn FnOnce() + Send>;

/// A worker that queues jobs; they run when the test lets the world settle.
#[derive(Default)]
pub struct Jobs(Mutex<VecDeque<Job>>);

impl Jobs {
    fn run(&self) {
        loop {
            let Some(job) = self.0.lock().pop_front() else {
                break;
            };
            job();
        }
    }
}

impl Worker for Jobs {
    fn run(&self, job: Job) {
        self.0.lock().push_back(job);
    }
}

/// The defaults, except that the first rebalance of a group does not wait for more members.
pub fn no_delay() -> KafkaOptions {
    KafkaOptions {
        initial_rebalance_delay_ms: 0,
        ..KafkaOptions::default()
    }
}

/// A broker whose time and disk the test drives.
pub struct World {
    pub clock: Arc<ManualClock>,
    pub disk: SimDisk,
    pub faults: Arc<FaultyDisk>,
    pub log: Log,
    pub broker: Broker,
    pub context: Arc<KafkaContext>,
    pub registry: Registry,
    jobs: Arc<Jobs>,
    lookups: Arc<Jobs>,
    /// Whether lookups hang.
    pub lookups_hang: AtomicBool,
}

impl World {
    pub fn new() -> World {
        World::with(no_delay())
    }

    pub fn with(options: KafkaOptions) -> World {
        World::build(options, LogOptions::default(), BrokerOptions::default())
    }

    /// A broker whose budget for unwritten bytes allows one publish at a time. It writes only when
    /// it settles.
    pub fn with_small_write_budget() -> World {
        let log = LogOptions {
            inline_writes: false,
            ..LogOptions::default()
        };
        let broker = BrokerOptions {
            unwritten_bytes_max: 1,
            ..BrokerOptions::default()
        };
        World::build(no_delay(), log, broker)
    }

    pub fn build(options: KafkaOptions, log: LogOptions, broker: BrokerOptions) -> World {
        World::on(SimDisk::new(), options, log, broker)
    }

    pub fn on(
        disk: SimDisk,
        options: KafkaOptions,
        log_options: LogOptions,
        broker_options: BrokerOptions,
    ) -> World {
        let clock = Arc::new(ManualClock::new(START_MS));
        let log_options = LogOptions {
            manual: true,
            disk_free_bytes_min: 0,
            journal_bytes: 256 << 10,
            ..log_options
        };
        let faults = FaultyDisk::new(disk.mount());
        let (log, recovery) = Log::open(faults.clone(), log_options).unwrap();
        let broker = Broker::open(log.clone(), recovery, broker_options, clock.clone()).unwrap();
        let jobs = Arc::new(Jobs::default());
        let lookups = Arc::new(Jobs::default());
        let context = KafkaContext::new(
            Realm::unrestricted(broker.clone()),
            options,
            jobs.clone(),
            lookups.clone(),
        );
        World {
            clock,
            disk,
            faults,
            log,
            broker,
            context,
            registry: Registry::new(),
            jobs,
            lookups,
            lookups_hang: AtomicBool::new(false),
        }
    }

    pub fn now(&self) -> Now {
        let unix_us = self.clock.now_us();
        Now {
            us: unix_us - START_MS * 1000 + 1,
            unix_us,
        }
    }

    /// Runs everything that is due in the log, the worker and the housekeeping.
    pub fn settle(&self) {
        for _ in 0..4 {
            self.work();
            self.log.step();
            self.broker.tick();
            self.context.groups.tick(self.now().us / 1000);
        }
    }

    /// Runs the queued jobs of the worker; nothing is synced.
    pub fn work(&self) {
        self.jobs.run();
        if !self.lookups_hang.load(Ordering::SeqCst) {
            self.lookups.run();
        }
    }

    pub fn topic(&self, name: &str, partitions: u32) -> Arc<Topic> {
        let options = || TopicOptions {
            partitions,
            ..TopicOptions::default()
        };
        self.broker.topic_or_create(name, options).unwrap()
    }

    pub fn connect(&self) -> Peer<'_> {
        let now = self.now();
        let remote = SocketAddr::from(([127, 0, 0, 1], 50_000));
        let parts = SessionParts {
            context: self.context.clone(),
            peer: KafkaPeer {
                remote,
                local: SocketAddr::from(([127, 0, 0, 1], 9092)),
                tls: false,
                software: None,
            },
            probe: self.registry.open(Protocol::Kafka, remote, now.us),
        };
        Peer {
            world: self,
            session: Session::new(parts, now),
            woken: Arc::new(Woken(AtomicBool::new(true))),
            input: Vec::new(),
            output: Vec::new(),
            next_correlation_id: 1,
        }
    }
}

/// Whether the session's waker was woken. The session is polled only then, so that a lost wake-up
/// shows.
pub struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The client's end of a session.
pub struct Peer<'w> {
    pub world: &'w World,
    pub session: Session,
    woken: Arc<Woken>,
    input: Vec<u8>,
    output: Vec<u8>,
    next_correlation_id: i32,
}

impl Peer<'_> {
    /// Sends a request and returns its answer, which must come without an advance of the clock.
    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let id = self.send(version, request);
        self.pump();
        self.expect::<R>(version, id)
    }

    /// Sends a request; returns its correlation id.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        let id = self.next_correlation_id;
        self.next_correlation_id += 1;
        let frame = frame(version, request, id);
        self.feed(&frame);
        id
    }

    /// Sends bytes. No other session makes progress.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.woken.0.store(true, Ordering::SeqCst);
        self.show();
    }

    /// Sends bytes in a buffer of their own; returns the bytes that the session has not taken.
    pub fn feed_own(&mut self, mut bytes: BytesMut) -> BytesMut {
        assert!(self.input.is_empty());
        self.woken.0.store(true, Ordering::SeqCst);
        let shown = bytes.len();
        let received = self
            .session
            .receive(Input::Own(&mut bytes), self.world.now());
        let left = shown - received.consumed_bytes;
        let _ = bytes.split_to(bytes.len() - left);
        bytes
    }

    fn show(&mut self) -> bool {
        if self.input.is_empty() || !self.session.wants_input() {
            return false;
        }
        let received = self
            .session
            .receive(Input::Lent(&self.input), self.world.now());
        self.input.drain(..received.consumed_bytes);
        received.consumed_bytes > 0
    }

    /// Runs the broker and the session until neither makes progress.
    pub fn pump(&mut self) {
        loop {
            self.world.settle();
            let moved = self.poll();
            let shown = self.show();
            if shown {
                self.woken.0.store(true, Ordering::SeqCst);
            }
            if !moved && !shown {
                // The poll may have queued a job that completes at once.
                self.world.settle();
                if !self.woken.0.load(Ordering::SeqCst) {
                    return;
                }
            }
        }
    }

    /// Polls the session for output, if it was woken or is due.
    pub fn poll(&mut self) -> bool {
        let now = self.world.now();
        let is_due = self.session.next_due_us() <= now.us;
        if !self.woken.0.swap(false, Ordering::SeqCst) && !is_due {
            return false;
        }
        let waker = Waker::from(self.woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut any = false;
        loop {
            let mut out = Output::default();
            self.session.poll(&mut cx, now, &mut out);
            if out.is_empty() {
                return any;
            }
            any = true;
            self.session.wrote(out.len(), now);
            out.parts()
                .for_each(|part| self.output.extend_from_slice(part));
        }
    }

    /// Advances the clock and runs everything that is due then.
    pub fn advance(&mut self, ms: u64) {
        self.world.clock.advance(ms);
        self.pump();
    }

    /// The next answer, which must be there and belong to the request with this id.
    pub fn expect<R: Request>(&mut self, version: i16, id: i32) -> R::Response {
        let frame = self.next_frame().expect("there is an answer");
        let mut bytes = Bytes::from(frame);
        let header_version = R::Response::header_version(version);
        let header = ResponseHeader::decode(&mut bytes, header_version).unwrap();
        assert_eq!(header.correlation_id, id);
        let response = R::Response::decode(&mut bytes, version).unwrap();
        assert!(bytes.is_empty(), "{} bytes too many", bytes.len());
        response
    }

    /// The next answer as bytes, without its size.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        let size = self.output.first_chunk::<4>()?;
        let end = 4 + i32::from_be_bytes(*size) as usize;
        assert!(self.output.len() >= end, "an answer is whole");
        let frame = self.output[4..end].to_vec();
        self.output.drain(..end);
        Some(frame)
    }

    pub fn expect_nothing(&mut self) {
        assert!(self.output.is_empty(), "{:?}", self.output);
        assert!(!self.session.is_ended());
    }

    pub fn expect_closed(&mut self, why: &str) {
        assert!(self.output.is_empty());
        assert!(self.session.is_ended());
        let failure = self.session.take_failure().unwrap_or_default();
        assert!(failure.contains(why), "{failure}");
    }
}

/// A request with its size and header.
pub fn frame<R: Request>(version: i16, request: &R, correlation_id: i32) -> Vec<u8> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(text("a-test")));
    let mut bytes = BytesMut::new();
    header
        .encode(&mut bytes, R::header_version(version))
        .unwrap();
    request.encode(&mut bytes, version).unwrap();
    let mut frame = (bytes.len() as i32).to_be_bytes().to_vec();
    frame.extend_from_slice(&bytes);
    frame
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A batch as a producer sends it.
pub fn batch(values: &[&str]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(64, START_MS as i64);
    for value in values {
        builder.push(None, Some(value.as_bytes()), &[]);
    }
    builder.finish()
}

/// The values of all records in these bytes.
pub fn values(records: &[u8]) -> Vec<String> {
    let mut values = Vec::new();
    for batch in batches(records) {
        let mut cursor = batch.records();
        while let Some((_, record)) = cursor.next_record().unwrap() {
            values.push(String::from_utf8(record.value.unwrap().to_vec()).unwrap());
        }
    }
    values
}

/// The batches in these bytes.
pub fn batches(mut records: &[u8]) -> Vec<Batch> {
    let mut batches = Vec::new();
    while !records.is_empty() {
        let len = Batch::peek_len(records).unwrap();
        let (batch, rest) = records.split_at(len);
        batches.push(Batch::parse_stored(Bytes::copy_from_slice(batch)).unwrap());
        records = rest;
    }
    batches
}
