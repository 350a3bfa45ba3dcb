//! AMQP sessions without a socket and without a clock, against a real broker on a simulated disk.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Waker};

use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_amqp::wire::{
    ContentHeader, FRAME_END, FrameType, Method, MethodId, PROTOCOL_HEADER, Properties, Table,
    Value, Writer, method, peek_frame, table_bytes,
};
use cloverleaf_amqp::{Session, SessionOptions, SessionParts};
use cloverleaf_broker::{Broker, BrokerOptions, Clock, ManualClock, Realm};
use cloverleaf_log::{FaultyDisk, Log, LogOptions, SimDisk};
use cloverleaf_session::{Input, Now, Output, Session as _};
use cloverleaf_telemetry::{Protocol, Registry};

const START_MS: u64 = 1_700_000_000_000;
/// The frame size that these clients negotiate, in bytes.
pub const FRAME_BYTES_MAX: u32 = 4096;

/// A broker whose time and disk the test drives.
pub struct World {
    pub clock: Arc<ManualClock>,
    pub disk: SimDisk,
    pub faulty: Arc<FaultyDisk>,
    pub log: Log,
    pub broker: Broker,
    pub host: Arc<VirtualHost>,
    pub options: Arc<SessionOptions>,
    pub registry: Registry,
    /// How far the wall clock was set forward or back, in microseconds.
    pub wall_step_us: AtomicI64,
}

impl Default for World {
    fn default() -> Self {
        World::with(SessionOptions::default())
    }
}

impl World {
    pub fn with(options: SessionOptions) -> World {
        World::open(
            SimDisk::new(),
            Arc::new(ManualClock::new(START_MS)),
            options,
            true,
        )
    }

    /// A broker in which only [`Log::step`] writes, as the log's own thread does while the disk is
    /// slow.
    pub fn with_slow_disk() -> World {
        let clock = Arc::new(ManualClock::new(START_MS));
        World::open(SimDisk::new(), clock, SessionOptions::default(), false)
    }

    fn open(
        disk: SimDisk,
        clock: Arc<ManualClock>,
        options: SessionOptions,
        inline_writes: bool,
    ) -> World {
        let log_options = LogOptions {
            manual: true,
            inline_writes,
            disk_free_bytes_min: 0,
            journal_bytes: 64 << 10,
            ..LogOptions::default()
        };
        let faulty = FaultyDisk::new(disk.mount());
        let (log, recovery) = Log::open(faulty.clone(), log_options).unwrap();
        let broker_options = BrokerOptions::default();
        let broker = Broker::open(log.clone(), recovery, broker_options, clock.clone()).unwrap();
        let host = VirtualHost::open(Realm::unrestricted(broker.clone())).unwrap();
        World {
            clock,
            disk,
            faulty,
            log,
            broker,
            host,
            options: Arc::new(options),
            registry: Registry::new(),
            wall_step_us: AtomicI64::new(0),
        }
    }

    /// Kills the process and starts it again.
    pub fn restart(self) -> World {
        let (disk, clock) = (self.disk.clone(), self.clock.clone());
        let options = (*self.options).clone();
        // What was written to the kernel is kept.
        disk.kill();
        drop(self);
        World::open(disk, clock, options, true)
    }

    pub fn now(&self) -> Now {
        let clock_us = self.clock.now_us();
        Now {
            us: clock_us - START_MS * 1000 + 1,
            unix_us: clock_us.saturating_add_signed(self.wall_step_us.load(Ordering::Relaxed)),
        }
    }

    /// Sets the wall clock; monotonic clocks do not change.
    pub fn step_wall_clock(&self, seconds: i64) {
        self.wall_step_us
            .fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    }

    /// Lets the log, the housekeeping and the router do all their pending work.
    pub fn settle(&self) {
        for _ in 0..4 {
            self.log.step();
            self.broker.tick();
            self.host.router_tick();
        }
    }

    pub fn advance(&self, ms: u64) {
        self.clock.advance(ms);
        self.settle();
    }

    /// A connection on which the client has sent nothing.
    pub fn connect_silent(&self) -> Peer<'_> {
        let now = self.now();
        let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 5672));
        let parts = SessionParts {
            host: self.host.clone(),
            options: self.options.clone(),
            probe: self.registry.open(Protocol::Amqp, peer, now.us),
            peer,
        };
        Peer {
            world: self,
            session: Session::new(parts, now),
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// An open connection.
    pub fn connect(&self) -> Peer<'_> {
        let mut peer = self.connect_silent();
        peer.handshake("PLAIN", b"\0guest\0guest");
        let tune = method::ConnectionTuneOk {
            channel_max: 2047,
            frame_max: FRAME_BYTES_MAX,
            heartbeat: 60,
        };
        peer.method(0, Method::ConnectionTuneOk(tune));
        let open = method::ConnectionOpen {
            virtual_host: "/",
            ..Default::default()
        };
        peer.method(0, Method::ConnectionOpen(open));
        let ids: Vec<_> = peer.receive().iter().map(Got::id).collect();
        let expected = [
            method::ConnectionStart::ID,
            method::ConnectionTune::ID,
            method::ConnectionOpenOk::ID,
        ];
        assert_eq!(ids, expected);
        peer
    }

    /// An open connection with channel 1 open.
    pub fn channel(&self) -> Peer<'_> {
        let mut peer = self.connect();
        peer.open_channel(1);
        peer
    }
}

/// A client's connection.
pub struct Peer<'w> {
    pub world: &'w World,
    pub session: Session,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// A received method: its payload, and its content if it has one.
#[derive(Clone, Debug)]
pub struct Got {
    pub channel: u16,
    payload: Vec<u8>,
    pub header: Vec<u8>,
    pub body: Vec<u8>,
}

impl Got {
    pub fn method(&self) -> Method<'_> {
        Method::read(&self.payload)
            .unwrap()
            .expect("a known method")
    }

    pub fn id(&self) -> MethodId {
        self.method().id()
    }

    pub fn properties(&self) -> Properties<'_> {
        ContentHeader::read(&self.header).unwrap().1
    }

    /// The method as a delivery: its tag, whether it is a redelivery, its body.
    pub fn delivery(&self) -> (u64, bool, &str) {
        let Method::BasicDeliver(deliver) = self.method() else {
            panic!("{:?}", self.method());
        };
        let body = std::str::from_utf8(&self.body).unwrap();
        (deliver.delivery_tag, deliver.redelivered, body)
    }

    /// The method as a close of a channel or connection: its code and text.
    pub fn close(&self) -> (u16, &str) {
        match self.method() {
            Method::ChannelClose(close) => (close.reply_code, close.reply_text),
            Method::ConnectionClose(close) => (close.reply_code, close.reply_text),
            method => panic!("{method:?}"),
        }
    }
}

impl Peer<'_> {
    pub fn handshake(&mut self, mechanism: &str, response: &[u8]) {
        self.send(PROTOCOL_HEADER);
        let capabilities = table_bytes(&[
            ("consumer_cancel_notify", Value::Bool(true)),
            ("connection.blocked", Value::Bool(true)),
            ("authentication_failure_close", Value::Bool(true)),
        ]);
        let capabilities = Value::Table(Table::check(&capabilities).unwrap());
        let properties = table_bytes(&[("capabilities", capabilities)]);
        let start = method::ConnectionStartOk {
            client_properties: Table::check(&properties).unwrap(),
            mechanism,
            response,
            locale: "en_US",
        };
        self.method(0, Method::ConnectionStartOk(start));
    }

    pub fn open_channel(&mut self, channel: u16) {
        let open = Method::ChannelOpen(method::ChannelOpen::default());
        self.ask(channel, open, method::ChannelOpenOk::ID);
    }

    /// Passes bytes to the session, and collects its output.
    pub fn send(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.turn();
    }

    /// Lets the session do all it can.
    pub fn turn(&mut self) {
        loop {
            let state = |peer: &Self| {
                let wants_input = peer.session.wants_input();
                (peer.input.len(), peer.output.len(), wants_input)
            };
            let wanted_turn = self.session.wants_turn();
            let before = state(self);
            if self.session.wants_input() && !self.input.is_empty() {
                let now = self.world.now();
                self.session.read(self.input.len(), now);
                let received = self.session.receive(Input::Lent(&self.input), now);
                self.input.drain(..received.consumed_bytes);
            }
            self.poll();
            if before == state(self) && !wanted_turn && !self.session.wants_turn() {
                return;
            }
        }
    }

    fn poll(&mut self) {
        while self.poll_once() {}
    }

    /// Polls the session once; `false`: there was no output.
    pub fn poll_once(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let mut out = Output::default();
        self.session.poll(&mut cx, self.world.now(), &mut out);
        if out.is_empty() {
            return false;
        }
        for part in out.parts() {
            self.output.extend_from_slice(part);
        }
        self.session.wrote(out.len(), self.world.now());
        true
    }

    /// Passes bytes to the session, which must consume them all, without polling it.
    pub fn show(&mut self, bytes: &[u8]) {
        let received = self.session.receive(Input::Lent(bytes), self.world.now());
        assert_eq!(received.consumed_bytes, bytes.len());
    }

    /// The methods in the output so far.
    pub fn written(&mut self) -> Vec<Got> {
        let bytes = std::mem::take(&mut self.output);
        got_of(&bytes)
    }

    pub fn method(&mut self, channel: u16, method: Method<'_>) {
        self.send(&method_frame(channel, &method));
    }

    /// Sends a method and receives its answer.
    pub fn ask(&mut self, channel: u16, method: Method<'_>, answer: MethodId) -> Got {
        self.method(channel, method);
        let got = self.receive();
        assert_eq!(
            got.len(),
            1,
            "{:?}",
            got.iter().map(Got::method).collect::<Vec<_>>()
        );
        assert_eq!(got[0].id(), answer, "{:?}", got[0].method());
        got[0].clone()
    }

    /// Declares a durable queue.
    pub fn declare(&mut self, queue: &str, arguments: &[(&str, Value<'_>)]) {
        let arguments = table_bytes(arguments);
        let declare = method::QueueDeclare {
            queue,
            durable: true,
            arguments: Table::check(&arguments).unwrap(),
            ..Default::default()
        };
        self.ask(1, Method::QueueDeclare(declare), method::QueueDeclareOk::ID);
    }

    /// Publishes a persistent message.
    pub fn publish(&mut self, exchange: &str, key: &str, body: &str) {
        let properties = Properties {
            delivery_mode: Some(2),
            ..Default::default()
        };
        self.publish_with(exchange, key, &properties, body, false);
    }

    pub fn publish_with(
        &mut self,
        exchange: &str,
        key: &str,
        properties: &Properties<'_>,
        body: &str,
        mandatory: bool,
    ) {
        let frames = publish_frames(1, exchange, key, properties, body.as_bytes(), mandatory);
        self.send(&frames);
    }

    pub fn confirms(&mut self) {
        let select = Method::ConfirmSelect(method::ConfirmSelect::default());
        self.ask(1, select, method::ConfirmSelectOk::ID);
    }

    pub fn prefetch(&mut self, prefetch_count: u16, global: bool) {
        let qos = method::BasicQos {
            prefetch_size: 0,
            prefetch_count,
            global,
        };
        self.ask(1, Method::BasicQos(qos), method::BasicQosOk::ID);
    }

    /// Starts a consumer; its first deliveries are left to be received.
    pub fn consume(&mut self, queue: &str, tag: &str, no_ack: bool) {
        let consume = method::BasicConsume {
            queue,
            consumer_tag: tag,
            no_ack,
            no_wait: true,
            ..Default::default()
        };
        self.method(1, Method::BasicConsume(consume));
    }

    /// Starts a consumer with a priority.
    pub fn consume_ranked(&mut self, queue: &str, tag: &str, priority: i64) {
        let arguments = table_bytes(&[("x-priority", Value::I64(priority))]);
        let consume = method::BasicConsume {
            queue,
            consumer_tag: tag,
            no_wait: true,
            arguments: Table::check(&arguments).unwrap(),
            ..Default::default()
        };
        self.method(1, Method::BasicConsume(consume));
    }

    pub fn ack(&mut self, delivery_tag: u64, multiple: bool) {
        let ack = method::BasicAck {
            delivery_tag,
            multiple,
        };
        self.method(1, Method::BasicAck(ack));
    }

    pub fn nack(&mut self, delivery_tag: u64, multiple: bool, requeue: bool) {
        let nack = method::BasicNack {
            delivery_tag,
            multiple,
            requeue,
        };
        self.method(1, Method::BasicNack(nack));
    }

    /// The number of a queue's ready messages and of its consumers.
    pub fn counts(&mut self, queue: &str) -> (u32, u32) {
        let declare = method::QueueDeclare {
            queue,
            passive: true,
            ..Default::default()
        };
        let got = self.ask(1, Method::QueueDeclare(declare), method::QueueDeclareOk::ID);
        match got.method() {
            Method::QueueDeclareOk(ok) => (ok.message_count, ok.consumer_count),
            method => panic!("{method:?}"),
        }
    }

    /// The methods received since the last call.
    pub fn receive(&mut self) -> Vec<Got> {
        self.turn();
        self.written()
    }

    /// The bytes received since the last call.
    pub fn raw_output(&mut self) -> Vec<u8> {
        self.turn();
        std::mem::take(&mut self.output)
    }

    /// The deliveries received since the last call, which must be all that was received.
    pub fn deliveries(&mut self) -> Vec<(u64, bool, String)> {
        let all = self.receive();
        let deliveries = all.iter().map(|got| {
            let (tag, redelivered, body) = got.delivery();
            (tag, redelivered, body.to_owned())
        });
        deliveries.collect()
    }

    /// The bodies of the deliveries received since the last call.
    pub fn bodies(&mut self) -> Vec<String> {
        let deliveries = self.deliveries().into_iter();
        deliveries.map(|(_, _, body)| body).collect()
    }

    /// The code and text of the close that was received last.
    pub fn closed(&mut self) -> (u16, String) {
        let all = self.receive();
        let last = all.last().expect("a method was received");
        let (code, text) = last.close();
        (code, text.to_owned())
    }
}

pub fn method_frame(channel: u16, method: &Method<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    method.write(&mut Writer::new(&mut payload));
    frame(1, channel, &payload)
}

pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend(channel.to_be_bytes());
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    frame.push(FRAME_END);
    frame
}

pub fn publish_frames(
    channel: u16,
    exchange: &str,
    routing_key: &str,
    properties: &Properties<'_>,
    body: &[u8],
    mandatory: bool,
) -> Vec<u8> {
    let publish = method::BasicPublish {
        exchange,
        routing_key,
        mandatory,
        ..Default::default()
    };
    let mut frames = method_frame(channel, &Method::BasicPublish(publish));
    let mut raw = Vec::new();
    properties.write(&mut Writer::new(&mut raw));
    let header = ContentHeader {
        body_bytes: body.len() as u64,
        raw: &raw,
    };
    let mut payload = Vec::new();
    header.write(&mut Writer::new(&mut payload));
    frames.extend(frame(2, channel, &payload));
    for part in body.chunks(FRAME_BYTES_MAX as usize - 8) {
        frames.extend(frame(3, channel, part));
    }
    frames
}

/// Splits bytes into frames.
pub fn frames_of(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let frame = peek_frame(bytes, u32::MAX).unwrap().expect("a whole frame");
        let (one, rest) = bytes.split_at(frame.len_bytes());
        frames.push(one.to_vec());
        bytes = rest;
    }
    frames
}

fn got_of(bytes: &[u8]) -> Vec<Got> {
    let mut rest = bytes;
    let mut all: Vec<Got> = Vec::new();
    while !rest.is_empty() {
        let frame = peek_frame(rest, u32::MAX).unwrap().expect("a whole frame");
        rest = &rest[frame.len_bytes()..];
        match frame.kind {
            FrameType::Method => all.push(Got {
                channel: frame.channel,
                payload: frame.payload.to_vec(),
                header: Vec::new(),
                body: Vec::new(),
            }),
            FrameType::Header => {
                let last = all.last_mut().expect("a method before its content");
                last.header = frame.payload.to_vec();
            }
            FrameType::Body => {
                assert!(frame.len_bytes() <= FRAME_BYTES_MAX as usize);
                let last = all.last_mut().expect("a method before its content");
                last.body.extend_from_slice(frame.payload);
            }
            FrameType::Heartbeat => {}
        }
    }
    all
}
