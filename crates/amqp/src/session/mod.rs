//! One AMQP connection's state machine: bytes in, broker calls, bytes out. No socket, no clock.
//!
//! The bytes of one socket read are handled frame by frame. Publishes and acknowledgements are
//! collected and carried out together at the end of that read, or earlier, before a method that
//! must come after them. Replies are collected until the next [`Session::poll`], which also writes
//! confirms and deliveries.
//!
//! Each part owns its state, in a file or folder of its own: the connection's phase
//! (`lifecycle.rs`), the login (`handshake.rs`), heartbeats, channels, deliveries, publishes, and
//! methods that have to wait for earlier ones (`ordering.rs`). All parts use the [`Connection`].
//! The session dispatches frames to the parts.

mod channel;
mod channel_input;
mod connection;
mod connection_input;
mod content;
mod definitions;
mod deliveries;
mod frames;
mod handshake;
mod heartbeats;
mod lifecycle;
mod ordering;
mod publishes;
mod rights;

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Context;

use cloverleaf_access::{LoginError, LoginSuccess, Verification};
use cloverleaf_session::{Input, Meter, Now, Output, Received};
use cloverleaf_telemetry::Probe;

use self::channel::{Channel, Channels};
use self::channel_input::{NO_METHOD, PUBLISH_METHOD, cannot_decode, check_publish};
use self::connection::Connection;
use self::deliveries::Deliveries;
use self::frames::{Gathered, HEARTBEAT, gather};
use self::handshake::Handshake;
use self::heartbeats::Heartbeats;
use self::lifecycle::{Lifecycle, Phase};
use self::ordering::MethodOrdering;
use self::publishes::{PublishTarget, Publisher, ReadyAnswer};
use crate::body::Body;
use crate::exception::{Exception, ReplyCode};
use crate::host::VirtualHost;
use crate::options::SessionOptions;
use crate::wire::{Frame, FrameType, Method, MethodId, PROTOCOL_HEADER, method, peek_frame};

/// The dependencies of a session.
pub struct SessionParts {
    /// The virtual host: exchanges and queues.
    pub host: Arc<VirtualHost>,
    /// Limits and users.
    pub options: Arc<SessionOptions>,
    /// This connection's telemetry.
    pub probe: Probe,
    /// The client's address.
    pub peer: SocketAddr,
}

/// One connection.
pub struct Session {
    connection: Connection,
    lifecycle: Lifecycle,
    handshake: Handshake,
    heartbeats: Heartbeats,
    channels: Channels,
    deliveries: Deliveries,
    publisher: Publisher,
    ordering: MethodOrdering,
    /// `release_all` has run: the virtual host keeps nothing for this connection anymore.
    is_released: bool,
}

impl cloverleaf_session::Session for Session {
    fn wants_input(&self) -> bool {
        self.lifecycle.takes_input()
            && self.publisher.may_read_on()
            && self.deliveries.may_read_on()
            && self.ordering.may_read_on()
            && self.connection.has_room_for_replies()
    }

    fn wants_turn(&self) -> bool {
        self.publisher.wants_turn()
    }

    fn is_ended(&self) -> bool {
        self.lifecycle.phase() == Phase::Ended
    }

    fn take_failure(&mut self) -> Option<String> {
        self.lifecycle.take_failure()
    }

    fn receive(&mut self, input: Input<'_>, now: Now) -> Received {
        let input: &[u8] = &input;
        self.connection.begin_read(now);
        let (mut consumed, mut needed) = (0, 0);
        if self.lifecycle.phase() == Phase::Header {
            let (connection, lifecycle) = (&mut self.connection, &mut self.lifecycle);
            consumed = self.handshake.protocol_header(connection, lifecycle, input);
            if lifecycle.phase() == Phase::Header {
                needed = PROTOCOL_HEADER.len();
            }
        }
        while self.lifecycle.phase() != Phase::Header
            && self.wants_input()
            && !self.connection.meter.is_spent()
        {
            let rest = &input[consumed..];
            if rest.is_empty() {
                break;
            }
            self.publisher.set_input_bytes(rest.len());
            match self.frame(rest) {
                FrameOutcome::Done(bytes) => consumed += bytes,
                FrameOutcome::Needs(bytes) => {
                    needed = bytes;
                    break;
                }
                FrameOutcome::Wait => break,
            }
        }
        self.settle_acks();
        self.flush();
        if self.lifecycle.is_over() {
            consumed = input.len();
        }
        let meter = &mut self.connection.meter;
        // Requests other than publishes are answered by the next poll.
        meter.answered(meter.others);
        meter.end(consumed, input.len(), needed, now)
    }

    fn end_of_input(&mut self, _rest: &[u8], now: Now) {
        self.connection.now = now;
        self.release_all();
        self.lifecycle.enter(if self.connection.replies.is_empty() {
            Phase::Ended
        } else {
            Phase::Draining
        });
    }

    fn drain(&mut self) {
        self.lifecycle.stop();
    }

    fn poll(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Output) {
        self.connection.now = now;
        let start = out.len();
        if !self.wants_input() {
            self.reading_paused(now);
        }
        let connection = &mut self.connection;
        self.publisher.poll_room(connection, cx);
        if self.publisher.wants_turn() {
            let settled = self.publisher.make_copies(connection);
            self.settle_committed(settled);
        }
        let connection = &mut self.connection;
        self.deliveries.poll(connection, cx);
        self.ordering.poll(cx);
        self.publisher.poll_alarm(connection);
        self.check_contents();
        let connection = &mut self.connection;
        self.publisher.forget_old_routes(connection);
        let answers = self.publisher.poll_confirms(connection, cx);
        connection.take_replies(out);
        for answer in &answers {
            self.answer(answer, &mut out.bytes);
        }
        self.publisher.answered(answers);
        if self.lifecycle.is_stopping() && self.lifecycle.is_open() && self.publisher.is_done() {
            self.stop();
        }
        self.connection.take_replies(out);
        self.connection.shrink_replies();
        if self.lifecycle.is_open() && !self.lifecycle.is_stopping() {
            self.deliveries.deliver(&self.connection, cx, out);
        }
        self.check_timeouts(&mut out.bytes);
        let is_drained = self.lifecycle.phase() == Phase::Draining;
        if is_drained && self.publisher.is_confirmed() && out.len() == start {
            self.lifecycle.enter(Phase::Ended);
        }
    }

    fn next_due_us(&self) -> u64 {
        let due_us = self.lifecycle.due_us();
        if self.lifecycle.is_open() {
            due_us
                .min(self.publisher.due_us())
                .min(self.heartbeats.due_us())
        } else {
            due_us
        }
    }

    fn meter(&mut self) -> &mut Meter {
        &mut self.connection.meter
    }

    fn read(&mut self, bytes: usize, now: Now) {
        self.heartbeats.read(now.us);
        self.connection.meter.read(bytes, now);
    }

    fn reading_paused(&mut self, now: Now) {
        self.heartbeats.read(now.us);
    }

    fn wrote(&mut self, bytes: usize, now: Now) {
        self.heartbeats.wrote(now.us);
        self.connection.meter.wrote(bytes, now);
    }
}

/// The outcome of handling the first frame of the input.
enum FrameOutcome {
    /// This many bytes were consumed.
    Done(usize),
    /// The frame is incomplete: it needs at least this many bytes.
    Needs(usize),
    /// The frame must be passed in again once the session wants input again.
    Wait,
}

impl Session {
    /// A session for a newly accepted connection.
    pub fn new(parts: SessionParts, now: Now) -> Session {
        let contents = parts.options.content_share();
        Session {
            connection: Connection::new(parts, now),
            lifecycle: Lifecycle::new(now.us),
            handshake: Handshake::default(),
            heartbeats: Heartbeats::of_interval(0, now.us),
            channels: Channels::default(),
            deliveries: Deliveries::default(),
            publisher: Publisher::new(contents),
            ordering: MethodOrdering::default(),
            is_released: false,
        }
    }

    /// The telemetry of this connection.
    pub fn probe(&self) -> &Probe {
        &self.connection.meter.probe
    }

    /// A write without progress for this long fails, in microseconds: two heartbeat intervals.
    /// `None` without heartbeats.
    pub fn write_timeout_us(&self) -> Option<u64> {
        self.heartbeats.write_timeout_us()
    }

    /// Whether the connection was closed by `connection.close` and `close-ok`. Then the client
    /// should close the socket first: a client that is still reading takes an earlier EOF for a
    /// failure (amqp091-go reports it to `NotifyClose`).
    pub fn said_goodbye(&self) -> bool {
        self.lifecycle.said_goodbye()
    }

    /// Whether a login has failed since the last call. The driver delays the reply to slow down
    /// password guessing.
    #[inline]
    pub fn take_failed_login(&mut self) -> bool {
        self.handshake.take_failed_login()
    }

    /// Takes the pending verification of a password, if there is one. It is slow, so the driver
    /// runs it elsewhere and reports the verdict to [`Session::logged_in`]; the client is answered
    /// after that.
    #[inline]
    pub fn take_verification(&mut self) -> Option<Box<Verification>> {
        self.handshake.take_verification()
    }

    /// Handles the verdict on the client's credentials.
    pub fn logged_in(&mut self, verdict: Result<LoginSuccess, LoginError>) {
        let (connection, lifecycle) = (&mut self.connection, &mut self.lifecycle);
        self.handshake.logged_in(connection, lifecycle, verdict);
    }

    /// Handles the first frame, or a publish with all of its frames.
    fn frame(&mut self, input: &[u8]) -> FrameOutcome {
        let frame = match peek_frame(input, self.connection.limits.frame_bytes_max) {
            Ok(Ok(frame)) => frame,
            Ok(Err(needed)) => return FrameOutcome::Needs(needed),
            Err(error) => {
                let error = Exception::new(ReplyCode::FrameError, error.to_string());
                // After an invalid frame nothing further can be parsed.
                self.fail(0, &error, NO_METHOD);
                self.lifecycle.enter(Phase::Draining);
                return FrameOutcome::Done(input.len());
            }
        };
        let bytes = frame.len_bytes();
        let id = MethodId::peek(frame.payload);
        let is_open = self.lifecycle.is_open();
        let channel = self.channels.get(frame.channel);
        if frame.kind == FrameType::Method
            && id == PUBLISH_METHOD
            && is_open
            && channel.is_some_and(Channel::takes_publish)
        {
            if self.publisher.must_wait(&self.connection) {
                return FrameOutcome::Wait;
            }
            return self.publish_frames(&frame, &input[bytes..]);
        }
        let goes_on_with_content = channel.is_some_and(|channel| channel.content.is_some());
        if goes_on_with_content && self.publisher.must_wait(&self.connection) {
            return FrameOutcome::Wait;
        }
        if is_open && self.ordering.may_wait(&frame) {
            self.flush();
            if self
                .ordering
                .must_wait_for_earlier(&self.connection, &self.channels, &frame)
            {
                return FrameOutcome::Wait;
            }
        }
        let result = match (self.lifecycle.phase(), frame.channel) {
            (_, 0) => self.connection_frame(&frame),
            (Phase::Open, _) => self.channel_frame(&frame),
            (Phase::Closing, _) => Ok(()),
            (phase, _) => Err((phase.unexpected_method(), id)),
        };
        if let Err((error, id)) = result {
            self.fail(frame.channel, &error, id);
        }
        FrameOutcome::Done(bytes)
    }

    /// Handles `basic.publish` together with its content, if the content's frames directly follow
    /// it.
    fn publish_frames(&mut self, frame: &Frame<'_>, rest: &[u8]) -> FrameOutcome {
        let bytes = frame.len_bytes();
        let number = frame.channel;
        let publish = match Method::read(frame.payload) {
            Ok(Some(Method::BasicPublish(publish))) => publish,
            Ok(_) => return FrameOutcome::Done(bytes),
            Err(_) => {
                self.fail(number, &cannot_decode(frame.payload), PUBLISH_METHOD);
                return FrameOutcome::Done(bytes);
            }
        };
        if let Err(error) = check_publish(&publish) {
            self.fail(number, &error, PUBLISH_METHOD);
            return FrameOutcome::Done(bytes);
        }
        let frame_bytes_max = self.connection.limits.frame_bytes_max;
        let body_bytes_max = self.connection.options.message_bytes_max;
        match gather(rest, number, frame_bytes_max, body_bytes_max) {
            Gathered::Whole {
                header,
                body,
                bytes: content,
            } => {
                let target = PublishTarget {
                    exchange: publish.exchange,
                    routing_key: publish.routing_key,
                    mandatory: publish.mandatory,
                };
                if let Err(error) = self.publish(number, target, header, body) {
                    self.fail(number, &error, PUBLISH_METHOD);
                }
                FrameOutcome::Done(bytes + content)
            }
            Gathered::Needs(needed) => FrameOutcome::Needs(bytes + needed),
            Gathered::Mixed => {
                if let Err(error) = self.begin_content(number, &publish) {
                    self.fail(number, &error, PUBLISH_METHOD);
                }
                FrameOutcome::Done(bytes)
            }
        }
    }

    /// Publishes a complete message.
    fn publish(
        &mut self,
        number: u16,
        target: PublishTarget<'_>,
        header: &[u8],
        body: Body<'_>,
    ) -> Result<(), Exception> {
        let Some(channel) = self.channels.get_mut(number) else {
            return Ok(());
        };
        self.publisher.publish(
            &mut self.connection,
            channel,
            &self.deliveries,
            target,
            header,
            body,
        )
    }

    /// Publishes the collected messages, before anything that must come after them.
    fn flush(&mut self) {
        self.publisher.flush(&mut self.connection);
    }

    /// Passes the collected acknowledgements to the broker.
    fn settle_acks(&mut self) {
        self.deliveries.settle_acks(&mut self.connection);
    }

    /// Confirms publishes, or answers a `tx.commit`.
    fn answer(&mut self, answer: &ReadyAnswer, out: &mut Vec<u8>) {
        match answer {
            ReadyAnswer::Confirm(group, is_stored) => {
                self.connection.meter.answered(group.len());
                if self.channels.is_open(group.channel, group.incarnation) {
                    group.push_confirm(out, *is_stored);
                }
            }
            ReadyAnswer::Commit(commit, is_stored) => {
                if self.channels.is_open(commit.channel, commit.incarnation) {
                    self.committed(commit.channel, *is_stored);
                }
            }
        }
    }

    fn committed(&mut self, number: u16, is_stored: bool) {
        if let Ok(transaction) = self.channels.transaction(number) {
            transaction.end_commit();
        }
        self.connection.meter.answered(1);
        if is_stored {
            let ok = Method::TxCommitOk(method::TxCommitOk {});
            return self.connection.reply(number, &ok);
        }
        let error = Exception::precondition("partial tx completion");
        self.fail(number, &error, method::TxCommit::ID);
    }

    /// Ends the connection if its unfinished content or transaction has occupied memory for too
    /// long while memory is short.
    fn check_contents(&mut self) {
        let now_us = self.connection.now.us;
        if !self.lifecycle.is_open() || !self.publisher.must_check_contents(now_us) {
            return;
        }
        if let Some(number) = self.channels.overdue(now_us) {
            let text = "an unfinished message or transaction was held for too long";
            let error = Exception::new(ReplyCode::ResourceError, text);
            self.fail(number, &error, NO_METHOD);
        }
    }

    /// Sends a heartbeat if one is due, and ends a connection whose client has timed out.
    fn check_timeouts(&mut self, out: &mut Vec<u8>) {
        let now_us = self.connection.now.us;
        self.lifecycle.end_if_overdue(now_us);
        if !self.lifecycle.is_open() {
            return;
        }
        if out.is_empty() && self.heartbeats.is_beat_due(now_us) {
            out.extend_from_slice(&HEARTBEAT);
            self.heartbeats.wrote(now_us);
        }
        if self.heartbeats.is_silent(now_us) {
            let timeout_s = self.heartbeats.interval_s();
            let failure = format!("missed heartbeats from client, timeout: {timeout_s}s");
            self.lifecycle.record_failure(failure);
            self.release_all();
            self.lifecycle.enter(Phase::Ended);
        }
    }

    /// Closes a channel: its consumers end, its unacknowledged deliveries are requeued, its
    /// unfinished content and transaction are dropped. If the broker closes it, it stays in the
    /// table until the client's `channel.close-ok`.
    fn release_channel(&mut self, number: u16) {
        self.flush();
        let connection = &mut self.connection;
        self.deliveries.write_pending_of_channel(connection, number);
        self.deliveries.close_channel(connection, number);
        if let Some(channel) = self.channels.get_mut(number) {
            channel.close();
        }
    }

    /// Closes all channels, and deletes the connection's exclusive queues.
    fn release_all(&mut self) {
        if std::mem::replace(&mut self.is_released, true) {
            return;
        }
        let settled = self.publisher.make_all_copies(&mut self.connection);
        self.settle_committed(settled);
        let connection = &mut self.connection;
        for number in self.channels.numbers() {
            self.deliveries.close_channel(connection, number);
        }
        self.channels.clear();
        self.deliveries.clear();
        self.ordering.clear();
        connection.host.connection_closed(connection.owner);
    }
}

impl Drop for Session {
    /// Ensures that exclusive queues are deleted however the connection ends.
    fn drop(&mut self) {
        self.release_all();
    }
}
