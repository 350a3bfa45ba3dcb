//! A broker on a simulated disk, and a client that speaks through a session: no thread, no socket.
//!
//! The client side is the library `kafka-protocol`, which knows nothing of this crate.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use cloverleaf_broker::{Broker, BrokerOptions, ManualClock, Realm, Topic};
use cloverleaf_kafka::control::ConnectionPeer;
use cloverleaf_kafka::session::{Session, SessionParts};
use cloverleaf_kafka::{KafkaContext, KafkaOptions, Worker, apis};
use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, SimDisk};
use cloverleaf_session::{Input, Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::{Decodable, HeaderVersion as _, Request, StrBytes};

pub const START_MS: u64 = 1_700_000_000_000;

/// A worker that runs jobs at once.
struct Inline;

impl Worker for Inline {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

pub struct World {
    pub disk: SimDisk,
    pub clock: Arc<ManualClock>,
    pub options: KafkaOptions,
    pub broker_options: BrokerOptions,
    pub log: Log,
    pub broker: Broker,
    pub context: Arc<KafkaContext>,
    pub peer: ConnectionPeer,
    registry: Registry,
}

impl World {
    pub fn new() -> Self {
        Self::with(KafkaOptions::default())
    }

    pub fn with(options: KafkaOptions) -> Self {
        Self::build(options, BrokerOptions::default())
    }

    pub fn build(options: KafkaOptions, broker_options: BrokerOptions) -> Self {
        let disk = SimDisk::new();
        let clock = Arc::new(ManualClock::new(START_MS));
        let (log, broker, context) = open(&disk, &clock, &options, &broker_options);
        Self {
            disk,
            clock,
            options,
            broker_options,
            log,
            broker,
            context,
            peer: ConnectionPeer {
                remote: SocketAddr::from(([127, 0, 0, 1], 50_000)),
                local: SocketAddr::from(([127, 0, 0, 2], 9_092)),
                tls: false,
                software: None,
            },
            registry: Registry::new(),
        }
    }

    pub fn kill_and_restart(&mut self) {
        self.disk.kill();
        (self.log, self.broker, self.context) =
            open(&self.disk, &self.clock, &self.options, &self.broker_options);
    }

    pub fn session(&self) -> Session {
        let probe = self.registry.open(Protocol::Kafka, self.peer.remote, 0);
        let parts = SessionParts {
            context: self.context.clone(),
            peer: self.peer.clone(),
            probe,
        };
        Session::new(parts, self.now())
    }

    pub fn now(&self) -> Now {
        let unix_us = cloverleaf_broker::Clock::now_ms(&*self.clock) * 1_000;
        Now {
            us: unix_us,
            unix_us,
        }
    }

    /// One request on a connection of its own. `None`: the connection was closed.
    pub fn send(&self, frame: &[u8]) -> Option<Bytes> {
        let mut session = self.session();
        let received = session.receive(Input::Lent(frame), self.now());
        let mut out = Output::default();
        for _ in 0..4 {
            self.log.step();
            session.poll(
                &mut Context::from_waker(Waker::noop()),
                self.now(),
                &mut out,
            );
        }
        if session.take_failure().is_some() {
            assert!(session.is_ended());
            return None;
        }
        assert_eq!(received.consumed_bytes, frame.len(), "the request is whole");
        let answer: Vec<u8> = out.parts().flatten().copied().collect();
        Some(Bytes::from(answer))
    }

    /// Sends a request in one version. `None`: the connection was closed.
    pub fn try_ask<R: Request>(&self, version: i16, request: &R) -> Option<R::Response> {
        let mut answer = self.send(&frame(version, request))?;
        let size = answer.get_i32();
        assert_eq!(usize::try_from(size).unwrap(), answer.len());
        assert_eq!(answer.get_i32(), CORRELATION_ID);
        if R::Response::header_version(version) > 0 {
            assert_eq!(answer.get_u8(), 0, "no tagged fields");
        }
        let response = R::Response::decode(&mut answer, version).unwrap();
        assert!(answer.is_empty(), "bytes behind the answer");
        Some(response)
    }

    pub fn ask<R: Request>(&self, version: i16, request: &R) -> R::Response {
        self.try_ask(version, request).expect("an answer")
    }

    pub fn topic(&self, name: &str) -> Arc<Topic> {
        self.broker.topic(name).expect("the topic")
    }

    /// Creates a topic as another protocol would.
    pub fn foreign_topic(&self, name: &str) -> Arc<Topic> {
        let broker = &self.broker;
        broker.topic_or_create(name, Default::default).unwrap()
    }

    /// Publishes messages with these timestamps in one batch.
    pub fn publish(&self, topic: &str, timestamps_ms: &[i64]) {
        let mut builder = BatchBuilder::with_capacity(256, timestamps_ms[0]);
        for timestamp_ms in timestamps_ms {
            builder.push_at(*timestamp_ms, Some(b"key"), Some(b"value"), &[]);
        }
        let mut published = self
            .topic(topic)
            .publish_to(0, builder.finish(), Durability::Kernel)
            .unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..4 {
            self.log.step();
        }
        let done = std::future::Future::poll(std::pin::Pin::new(&mut published), &mut cx);
        assert!(matches!(done, Poll::Ready(Ok(_))));
    }
}

fn open(
    disk: &SimDisk,
    clock: &Arc<ManualClock>,
    options: &KafkaOptions,
    broker_options: &BrokerOptions,
) -> (Log, Broker, Arc<KafkaContext>) {
    let log_options = LogOptions {
        manual: true,
        disk_free_bytes_min: 0,
        journal_bytes: 64 << 10,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(disk.mount(), log_options).unwrap();
    let broker_options = broker_options.clone();
    let broker = Broker::open(log.clone(), recovery, broker_options, clock.clone()).unwrap();
    let realm = Realm::unrestricted(broker.clone());
    let context = KafkaContext::new(realm, options.clone(), Arc::new(Inline), Arc::new(Inline));
    (log, broker, context)
}

const CORRELATION_ID: i32 = 77;

/// A whole request with its header and size.
pub fn frame<R: Request>(version: i16, request: &R) -> Vec<u8> {
    let mut body = Vec::new();
    request.encode(&mut body, version).unwrap();
    frame_of(R::KEY, version, R::header_version(version) > 1, &body)
}

/// A request with a body of any bytes.
pub fn frame_of(key: i16, version: i16, flexible: bool, body: &[u8]) -> Vec<u8> {
    let mut head = Vec::new();
    head.extend_from_slice(&key.to_be_bytes());
    head.extend_from_slice(&version.to_be_bytes());
    head.extend_from_slice(&CORRELATION_ID.to_be_bytes());
    head.extend_from_slice(&[0, 4]);
    head.extend_from_slice(b"test");
    if flexible {
        head.push(0);
    }
    head.extend_from_slice(body);
    let size = i32::try_from(head.len()).unwrap();
    [&size.to_be_bytes()[..], &head].concat()
}

/// All versions of a request that are served, as far as the library knows them.
pub fn versions<R: Request>() -> std::ops::RangeInclusive<i16> {
    let served = apis::find(R::KEY).expect("it is served");
    served.min..=served.max.min(R::VERSIONS.max)
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn name(name: &str) -> TopicName {
    TopicName(text(name))
}
