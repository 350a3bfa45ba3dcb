//! One AMQP connection's state machine: bytes in, broker calls, bytes out. No socket, no clock.
//!
//! A read is taken frame by frame. Publishes and acknowledgements are collected and carried out
//! together at its end, or before something that must come after them; answers to methods wait in
//! `replies` for the next [`Session::poll`], which also writes confirms and deliveries.

mod channel;
mod channel_input;
mod definitions;
mod deliveries;
mod frames;
mod handshake;
mod liveness;
mod ordering;
mod publishes;
mod rights;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Context;

use cloverleaf_access::Verification;
use cloverleaf_broker::Unwritten;
use cloverleaf_session::{Input, Meter, Now, Output, Received};
use cloverleaf_telemetry::Probe;

use self::channel::Channel;
use self::channel_input::{NONE, PUBLISH, cannot_decode, check_publish};
use self::deliveries::consumers::PendingGet;
use self::deliveries::slots::Consumers;
use self::frames::{Gathered, gather, push_method};
use self::handshake::{Client, HANDSHAKE_FRAME_BYTES_MAX, Negotiated};
use self::publishes::batches::{Publishing, Target};
use self::publishes::confirms::{Confirms, Done};
use self::publishes::fan_out::Unfinished;
use crate::content_memory::ContentShare;
use crate::exception::{Exception, ReplyCode};
use crate::host::{Owner, Routing, VirtualHost};
use crate::options::SessionOptions;
use crate::wire::{Frame, FrameType, Method, MethodId, PROTOCOL_HEADER, peek_frame};
use cloverleaf_broker::Realm;

/// With so many bytes of answers nothing further is read.
const REPLIES_BYTES_MAX: usize = 256 << 10;
/// A buffer for answers that grew beyond this is given back.
const REPLIES_KEPT_BYTES: usize = 4 << 10;

/// The parts that a session works with.
pub struct SessionParts {
    /// Exchanges and queues.
    pub host: Arc<VirtualHost>,
    /// Limits and users.
    pub options: Arc<SessionOptions>,
    /// This connection's telemetry.
    pub probe: Probe,
    /// The client's address.
    pub peer: SocketAddr,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The protocol header has not come.
    Header,
    /// `connection.start` was sent.
    Starting,
    /// The client has said who it is, and it is being found out.
    Verifying,
    /// `connection.tune` was sent.
    Tuning,
    /// The virtual host has to be opened.
    Opening,
    Open,
    /// We have sent `connection.close`.
    Closing,
    /// Nothing is read any more; what is owed will be written.
    Draining,
    /// All is said.
    Ended,
}

impl Phase {
    /// RabbitMQ's name of the state.
    fn name(self) -> &'static str {
        match self {
            Phase::Header | Phase::Starting | Phase::Verifying => "starting",
            Phase::Tuning => "tuning",
            Phase::Opening => "opening",
            Phase::Open => "running",
            Phase::Closing => "closing",
            Phase::Draining | Phase::Ended => "closed",
        }
    }
}

/// One connection.
pub struct Session {
    host: Arc<VirtualHost>,
    /// The host's realm, as the user may use it.
    realm: Realm,
    options: Arc<SessionOptions>,
    meter: Meter,
    peer: SocketAddr,
    /// Its identity to the virtual host: its exclusive queues are nobody else's.
    owner: Owner,
    phase: Phase,
    /// To be computed elsewhere, and the driver has not been told.
    verification: Option<Box<Verification>>,
    user: String,
    client: Client,
    negotiated: Negotiated,
    channels: BTreeMap<u16, Channel>,
    incarnations: u64,
    consumers: Consumers,
    /// Slots of consumers that have something to deliver.
    ready_slots: Vec<u32>,
    publishing: Publishing,
    confirms: Confirms,
    done: Vec<Done>,
    /// Slots of consumers with acknowledgements of this read.
    slots_to_settle: Vec<u32>,
    pending_get: Option<PendingGet>,
    /// This connection's share of the memory for what cannot be stored yet.
    contents: Arc<ContentShare>,
    /// Answers, for the next poll.
    replies: Output,
    /// A publish waits until the disk has taken some of what was accepted before.
    waits_for_room: bool,
    /// Messages whose copies are not all made.
    unfinished: Unfinished,
    /// Nothing further is read until these dead messages are where they belong.
    routing: Vec<Routing>,
    /// A method waits until this is written.
    unwritten: Option<Unwritten>,
    /// The foremost method waits, or has waited, for what came before it.
    has_waited: bool,
    /// The disk is full; when to look again.
    blocked_until_us: Option<u64>,
    /// The client was told so.
    is_told_blocked: bool,
    /// The time of this read or poll.
    now: Now,
    /// The same by the broker's clock, by which messages expire: milliseconds since 1970.
    broker_ms: u64,
    /// Bytes of this read that have not been looked at.
    input_bytes: usize,
    last_read_us: u64,
    last_write_us: u64,
    opened_us: u64,
    closing_since_us: u64,
    is_released: bool,
    /// The broker ends: nothing further is taken, and the client is told once what it is owed has
    /// been written.
    is_stopping: bool,
    /// Either side has said `connection.close-ok`.
    said_goodbye: bool,
    /// A wrong password came, and the driver has not been told.
    has_failed_login: bool,
    failure: Option<String>,
}

impl cloverleaf_session::Session for Session {
    fn wants_input(&self) -> bool {
        let rests = match self.phase {
            Phase::Draining | Phase::Ended | Phase::Verifying => true,
            // Its answer is still wanted.
            Phase::Closing => false,
            _ => self.is_stopping,
        };
        !rests
            && !self.waits_for_room
            && self.pending_get.is_none()
            && self.unwritten.is_none()
            && self.routing.is_empty()
            && self.unfinished.is_empty()
            && !self.confirms.is_full()
            && self.replies.len() < REPLIES_BYTES_MAX
    }

    fn wants_turn(&self) -> bool {
        !self.unfinished.is_empty() && !self.waits_for_room
    }

    fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn receive(&mut self, input: Input<'_>, now: Now) -> Received {
        let input: &[u8] = &input;
        self.now = now;
        self.broker_ms = self.realm.now_ms();
        self.meter.begin();
        let (mut consumed, mut needed) = (0, 0);
        if self.phase == Phase::Header {
            consumed = self.protocol_header(input);
            if self.phase == Phase::Header {
                needed = PROTOCOL_HEADER.len();
            }
        }
        while self.phase != Phase::Header && self.wants_input() && !self.meter.is_spent() {
            let rest = &input[consumed..];
            if rest.is_empty() {
                break;
            }
            self.input_bytes = rest.len();
            match self.frame(rest) {
                Step::Done(bytes) => consumed += bytes,
                Step::Needs(bytes) => {
                    needed = bytes;
                    break;
                }
                Step::Wait => break,
            }
        }
        self.settle_acks();
        self.flush();
        if matches!(self.phase, Phase::Draining | Phase::Ended) {
            consumed = input.len();
        }
        // They are answered with the next poll.
        self.meter.answered(self.meter.others);
        self.meter.end(consumed, input.len(), needed, now)
    }

    fn end_of_input(&mut self, _rest: &[u8], now: Now) {
        self.now = now;
        self.release_all();
        self.phase = if self.replies.is_empty() {
            Phase::Ended
        } else {
            Phase::Draining
        };
    }

    fn drain(&mut self) {
        match self.phase {
            Phase::Open => self.is_stopping = true,
            Phase::Closing | Phase::Draining | Phase::Ended => {}
            _ => self.phase = Phase::Draining,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Output) {
        self.now = now;
        let start = out.len();
        if !self.wants_input() {
            self.is_not_read(now);
        }
        if self.waits_for_room && self.realm.room().poll_free(cx).is_ready() {
            self.waits_for_room = false;
        }
        if self.wants_turn() {
            self.make_copies();
        }
        self.routing.retain(|routing| routing.poll(cx).is_pending());
        self.take_one(cx);
        self.poll_writes(cx);
        self.look_at_disk();
        self.look_at_contents();
        self.publishing.forget_old_routes(self.host.generation());
        let mut done = std::mem::take(&mut self.done);
        let mut failures = Vec::new();
        self.confirms
            .poll(cx, &mut done, |error| failures.push(error.clone()));
        for error in &failures {
            self.publish_failed(error);
        }
        out.append(&mut self.replies);
        for done in done.drain(..) {
            self.answer(&done, &mut out.bytes);
        }
        self.done = done;
        let owes_confirms = !self.confirms.is_empty() || !self.unfinished.is_empty();
        if self.is_stopping && self.phase == Phase::Open && !owes_confirms {
            self.stop();
        }
        out.append(&mut self.replies);
        if self.replies.bytes.capacity() > REPLIES_KEPT_BYTES {
            self.replies = Output::default();
        }
        if self.phase == Phase::Open && !self.is_stopping {
            self.deliver(cx, out);
        }
        self.beat(&mut out.bytes);
        if self.phase == Phase::Draining && self.confirms.is_empty() && out.len() == start {
            self.phase = Phase::Ended;
        }
    }

    fn next_due_us(&self) -> u64 {
        self.due_us()
    }

    fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    fn read(&mut self, bytes: usize, now: Now) {
        self.last_read_us = now.us;
        self.meter.read(bytes, now);
    }

    fn is_not_read(&mut self, now: Now) {
        // A client that is not listened to is not silent.
        self.last_read_us = now.us;
    }

    fn wrote(&mut self, bytes: usize, now: Now) {
        self.last_write_us = now.us;
        self.meter.wrote(bytes, now);
    }
}

/// The outcome of the input's first frame.
enum Step {
    /// So many bytes are done with.
    Done(usize),
    /// It needs so many bytes.
    Needs(usize),
    /// It has to be shown again when the session wants input again.
    Wait,
}

impl Session {
    /// A connection that has just been accepted.
    pub fn new(parts: SessionParts, now: Now) -> Session {
        let owner = parts.host.owner();
        let contents = parts.options.content_share();
        Session {
            realm: parts.host.realm().clone(),
            host: parts.host,
            options: parts.options,
            meter: Meter::new(parts.probe),
            peer: parts.peer,
            owner,
            phase: Phase::Header,
            verification: None,
            user: String::new(),
            client: Client::default(),
            negotiated: Negotiated {
                frame_bytes_max: HANDSHAKE_FRAME_BYTES_MAX,
                channels_max: 0,
                heartbeat_us: 0,
            },
            channels: BTreeMap::new(),
            incarnations: 0,
            consumers: Consumers::default(),
            ready_slots: Vec::new(),
            publishing: Publishing::default(),
            confirms: Confirms::default(),
            done: Vec::new(),
            slots_to_settle: Vec::new(),
            pending_get: None,
            contents,
            replies: Output::default(),
            waits_for_room: false,
            unfinished: Unfinished::default(),
            routing: Vec::new(),
            unwritten: None,
            has_waited: false,
            blocked_until_us: None,
            is_told_blocked: false,
            now,
            broker_ms: 0,
            input_bytes: 0,
            last_read_us: now.us,
            last_write_us: now.us,
            opened_us: now.us,
            closing_since_us: 0,
            is_released: false,
            is_stopping: false,
            said_goodbye: false,
            has_failed_login: false,
            failure: None,
        }
    }

    /// The telemetry of this connection.
    pub fn probe(&self) -> &Probe {
        &self.meter.probe
    }

    /// After how long without progress a write is given up, in microseconds: two heartbeats, if
    /// there are any.
    pub fn write_timeout_us(&self) -> Option<u64> {
        match self.negotiated.heartbeat_us {
            0 => None,
            heartbeat_us => Some(2 * heartbeat_us),
        }
    }

    /// Takes the first frame, or a publish with all its frames.
    fn frame(&mut self, input: &[u8]) -> Step {
        let frame = match peek_frame(input, self.negotiated.frame_bytes_max) {
            Ok(Ok(frame)) => frame,
            Ok(Err(needed)) => return Step::Needs(needed),
            Err(error) => {
                let error = Exception::new(ReplyCode::FrameError, error.to_string());
                // Nothing behind it can be read.
                self.fail(0, &error, NONE);
                self.phase = Phase::Draining;
                return Step::Done(input.len());
            }
        };
        let bytes = frame.len_bytes();
        let id = MethodId::peek(frame.payload);
        if frame.kind == FrameType::Method && id == PUBLISH && self.takes_publish(frame.channel) {
            if !self.realm.room().is_free() {
                self.waits_for_room = true;
                return Step::Wait;
            }
            return self.publish_frames(&frame, &input[bytes..]);
        }
        if self.goes_on_with_content(frame.channel) && !self.realm.room().is_free() {
            self.waits_for_room = true;
            return Step::Wait;
        }
        if self.phase == Phase::Open && self.waits_for_earlier(&frame) {
            return Step::Wait;
        }
        let result = match (self.phase, frame.channel) {
            (_, 0) => self.connection_frame(&frame, self.now),
            (Phase::Open, _) => self.channel_frame(&frame),
            (Phase::Closing, _) => Ok(()),
            (phase, _) => {
                let text = format!("unexpected method in connection state {}", phase.name());
                Err((Exception::new(ReplyCode::ChannelError, text), id))
            }
        };
        if let Err((error, id)) = result {
            self.fail(frame.channel, &error, id);
        }
        Step::Done(bytes)
    }

    /// Whether a publish on this channel would be carried out.
    fn takes_publish(&self, number: u16) -> bool {
        self.phase == Phase::Open
            && self.channels.get(&number).is_some_and(|channel| {
                channel.state == channel::State::Open
                    && channel.content.is_none()
                    && !channel.is_committing()
            })
    }

    /// Whether a content on this channel has come in part.
    fn goes_on_with_content(&self, number: u16) -> bool {
        let channel = self.channels.get(&number);
        channel.is_some_and(|channel| channel.content.is_some())
    }

    /// Takes a publish with its content, if that lies behind it in one piece.
    fn publish_frames(&mut self, frame: &Frame<'_>, rest: &[u8]) -> Step {
        let bytes = frame.len_bytes();
        let number = frame.channel;
        let publish = match Method::read(frame.payload) {
            Ok(Some(Method::BasicPublish(publish))) => publish,
            Ok(_) => return Step::Done(bytes),
            Err(_) => {
                self.fail(number, &cannot_decode(frame.payload), PUBLISH);
                return Step::Done(bytes);
            }
        };
        if let Err(error) = check_publish(&publish) {
            self.fail(number, &error, PUBLISH);
            return Step::Done(bytes);
        }
        let frame_bytes_max = self.negotiated.frame_bytes_max;
        let body_bytes_max = self.options.message_bytes_max;
        match gather(rest, number, frame_bytes_max, body_bytes_max) {
            Gathered::Whole {
                header,
                body,
                bytes: content,
            } => {
                let target = Target {
                    exchange: publish.exchange,
                    routing_key: publish.routing_key,
                    mandatory: publish.mandatory,
                };
                if let Err(error) = self.publish(number, target, header, body) {
                    self.fail(number, &error, PUBLISH);
                }
                Step::Done(bytes + content)
            }
            Gathered::Needs(needed) => Step::Needs(bytes + needed),
            Gathered::Mixed => {
                if let Err(error) = self.begin_content(number, &publish) {
                    self.fail(number, &error, PUBLISH);
                }
                Step::Done(bytes)
            }
        }
    }

    /// Answers a method on a channel.
    fn reply(&mut self, number: u16, method: &Method<'_>) {
        push_method(&mut self.replies.bytes, number, method);
    }

    /// Answers a method, unless its client wants no answer.
    fn reply_unless(&mut self, no_wait: bool, number: u16, method: &Method<'_>) {
        if !no_wait {
            self.reply(number, method);
        }
    }

    /// Ends what a channel has: consumers, unacknowledged deliveries, what is under way.
    fn release_channel(&mut self, number: u16) {
        self.flush();
        self.write_rests(number);
        self.release_consumers(number);
        if let Some(channel) = self.channels.get_mut(&number) {
            *channel = Channel::new(channel.incarnation);
        }
    }

    /// Ends all channels, and gives the exclusive queues up.
    fn release_all(&mut self) {
        if std::mem::replace(&mut self.is_released, true) {
            return;
        }
        self.make_all_copies();
        let numbers: Vec<u16> = self.channels.keys().copied().collect();
        for number in numbers {
            self.release_consumers(number);
        }
        self.channels.clear();
        self.pending_get = None;
        self.routing.clear();
        self.unwritten = None;
        self.host.connection_closed(self.owner);
    }
}

impl Drop for Session {
    /// However the connection ends, its exclusive queues go.
    fn drop(&mut self) {
        self.release_all();
    }
}
