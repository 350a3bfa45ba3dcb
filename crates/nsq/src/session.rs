//! One NSQ connection's state machine: bytes in, broker calls, bytes out. No socket, no clock.
//!
//! The driver (crate `server`) calls it through [`cloverleaf_session::Session`]. Work that only the
//! driver can do (TLS, compression, asking the auth service) is a [`Request`], which the driver
//! fetches with [`Session::take_request`].
//!
//! ```text
//!  magic ──▶ init ──SUB──▶ subscribed ──CLS──▶ closing
//!            IDENTIFY, AUTH   RDY                 (RDY is ignored)
//!                             FIN, REQ, TOUCH     FIN, REQ, TOUCH
//!            PUB, MPUB, DPUB, NOP in every state after the magic
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::Realm;
use cloverleaf_session::{Input, Meter, Now, Output, Received, Session as _};
use cloverleaf_telemetry::Probe;

use crate::answers::Answers;
use crate::authorization::Authorizations;
use crate::codec::{MAGIC, Parsed, invalid_with, parse_command};
use crate::compressible::Sampler;
use crate::consuming::{Consuming, Delivered};
use crate::definitions::ChannelPolicy;
use crate::error::ProtocolError;
use crate::frame::{BAD_PROTOCOL, HEARTBEAT_FRAME};
use crate::identify::{Compression, Negotiated};
use crate::options::SessionOptions;
use crate::publishing::Publishing;
use crate::stats::clients::{ClientHandle, ClientTls};

/// One [`Session::poll`] encodes messages up to this many bytes, or up to the client's
/// `output_buffer_size` if that is larger. This is more than nsqd's default buffer of 16 KiB,
/// because fewer and larger writes cost less and no connection keeps the memory between polls.
const OUTPUT_BUDGET_FLOOR_BYTES: usize = 64 * 1024;

/// The parts that a session works with.
pub struct SessionParts {
    /// Topics and channels.
    pub realm: Realm,
    /// Limits and defaults.
    pub options: Arc<SessionOptions>,
    /// Options of a channel that a SUB creates.
    pub channel_policy: Arc<ChannelPolicy>,
    /// This connection among the clients that `/stats` shows.
    pub client: ClientHandle,
    /// This connection's telemetry.
    pub probe: Probe,
}

/// Work that the session asks the driver to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverTask {
    /// Start TLS in both directions, then call [`Session::upgraded_to_tls`].
    Tls,
    /// Start this compression in both directions, then call [`Session::upgraded_to`].
    Compress(Compression),
    /// Ask the auth service about this secret, then call [`Session::authorized`].
    Authorize(String),
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The four bytes of the magic have not come yet.
    Magic,
    /// Commands are read.
    Open,
    /// Nothing is read any more; the pending answers are still sent.
    Draining,
    /// The connection is to be closed once the output is written.
    Ended,
}

/// Which answer of the auth service the session waits for. It reads no commands meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthWait {
    /// The answer to AUTH.
    First,
    /// A new answer, because the old one has expired. The current command waits for it.
    Renewal,
}

/// An answer of the auth service and when it expires.
pub(crate) struct Authorized {
    /// How many authorizations the answer names.
    pub(crate) count: usize,
    pub(crate) expires_us: u64,
    /// The last topic to which publishing was allowed. Further publishes to it are not matched
    /// against the rules again.
    pub(crate) publish_topic: String,
}

/// One connection.
pub struct Session {
    pub(crate) realm: Realm,
    pub(crate) options: Arc<SessionOptions>,
    pub(crate) channel_policy: Arc<ChannelPolicy>,
    pub(crate) client: ClientHandle,
    pub(crate) meter: Meter,
    pub(crate) negotiated: Negotiated,
    pub(crate) phase: Phase,
    pub(crate) publishing: Publishing,
    pub(crate) consuming: Option<Consuming>,
    pub(crate) answers: Answers,
    pub(crate) upgrades: VecDeque<DriverTask>,
    pub(crate) upgraded: bool,
    pub(crate) tls: bool,
    pub(crate) secret: String,
    pub(crate) auth_wait: Option<AuthWait>,
    /// The driver has fetched the request for `auth_wait`.
    auth_asked: bool,
    /// An AUTH failed, and the driver has not fetched that by [`Session::take_failed_login`] yet.
    has_failed_login: bool,
    /// A publish waits until the broker's budget of unwritten bytes has space again.
    pub(crate) waits_for_room: bool,
    pub(crate) authorized: Option<Authorized>,
    pub(crate) next_heartbeat_us: u64,
    sampler: Sampler,
    last_command_us: u64,
    failure: Option<ProtocolError>,
}

/// Whether the session goes on with the next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The command is complete.
    Next,
    /// The command stays in the input and is parsed again, once the auth service has answered or
    /// the broker has written some of its unwritten bytes.
    Again,
}

impl cloverleaf_session::Session for Session {
    fn wants_input(&self) -> bool {
        matches!(self.phase, Phase::Magic | Phase::Open)
            && self.upgrades.is_empty()
            && self.auth_wait.is_none()
            && !self.waits_for_room
            && !self.answers.is_full()
    }

    fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    fn take_failure(&mut self) -> Option<String> {
        self.failure.take().map(|error| error.to_string())
    }

    fn receive(&mut self, input: Input<'_>, now: Now) -> Received {
        let input: &[u8] = &input;
        self.meter.begin();
        let (mut consumed, mut needed) = (0, 0);
        if self.phase == Phase::Magic {
            match input.first_chunk::<4>() {
                Some(MAGIC) => {
                    consumed = MAGIC.len();
                    self.phase = Phase::Open;
                    self.restart_heartbeat(now);
                }
                Some(magic) => self.refuse_protocol(magic),
                None => needed = MAGIC.len(),
            }
        }
        while self.phase == Phase::Open && self.wants_input() && !self.meter.is_spent() {
            let rest = &input[consumed..];
            if rest.is_empty() {
                break;
            }
            match parse_command(rest, &self.options) {
                Ok(Parsed::Complete(command, bytes)) => {
                    match self.execute(command, rest.len(), now) {
                        Ok(Flow::Next) => consumed += bytes,
                        Ok(Flow::Again) => break,
                        Err(error) => {
                            consumed += bytes;
                            self.refuse(error, now);
                        }
                    }
                }
                Ok(Parsed::Incomplete(incomplete)) => {
                    needed = incomplete.needed_bytes;
                    break;
                }
                Err(error) => {
                    let error = self.state_error(rest).unwrap_or(error);
                    self.refuse(error, now);
                }
            }
        }
        self.settle_fins(now);
        self.flush();
        if !matches!(self.phase, Phase::Magic | Phase::Open) {
            consumed = input.len();
        }
        if consumed > 0 {
            if self.meter.began_earlier() {
                self.sample(&input[..consumed], now);
            }
            self.last_command_us = now.us;
        }
        self.meter.end(consumed, input.len(), needed, now)
    }

    fn end_of_input(&mut self, rest: &[u8], now: Now) {
        if self.phase == Phase::Open
            && self.wants_input()
            && let Ok(Parsed::Incomplete(incomplete)) = parse_command(rest, &self.options)
            && let Some(error) = incomplete.at_end()
        {
            self.refuse(error, now);
        }
        self.drain();
    }

    fn drain(&mut self) {
        if matches!(self.phase, Phase::Magic | Phase::Open) {
            self.phase = Phase::Draining;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Output) {
        let out = &mut out.bytes;
        if !self.wants_input() {
            self.reading_paused(now);
        }
        if self.waits_for_room && self.realm.write_budget().poll_free(cx).is_ready() {
            self.waits_for_room = false;
        }
        if !self.answers.is_empty() {
            self.answer(cx, out);
        }
        self.send_heartbeat(now, out);
        if self.phase == Phase::Open {
            self.deliver(cx, now, out);
        }
        if self.phase == Phase::Draining && self.answers.is_empty() {
            self.phase = Phase::Ended;
        }
    }

    fn next_due_us(&self) -> u64 {
        if !matches!(self.phase, Phase::Magic | Phase::Open) {
            return u64::MAX;
        }
        let delivery_us = self.consuming.as_ref().and_then(Consuming::due_us);
        let delivery_us = delivery_us.unwrap_or(u64::MAX);
        let Some(interval_ms) = self.negotiated.heartbeat_interval_ms else {
            return delivery_us;
        };
        let beat_us = self.next_heartbeat_us.min(delivery_us);
        if !self.wants_input() {
            return beat_us;
        }
        beat_us.min(self.last_command_us + 2 * interval_ms * 1000)
    }

    fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    fn reading_paused(&mut self, now: Now) {
        // Time in which the session does not read is not counted as the client's silence.
        self.last_command_us = now.us;
    }
}

impl Session {
    /// A connection that has just been accepted.
    pub fn new(parts: SessionParts, now: Now) -> Session {
        let negotiated = Negotiated::default_of(&parts.options);
        Session {
            realm: parts.realm,
            options: parts.options,
            channel_policy: parts.channel_policy,
            client: parts.client,
            meter: Meter::new(parts.probe),
            negotiated,
            phase: Phase::Magic,
            publishing: Publishing::default(),
            consuming: None,
            answers: Answers::default(),
            upgrades: VecDeque::new(),
            upgraded: false,
            tls: false,
            secret: String::new(),
            auth_wait: None,
            auth_asked: false,
            has_failed_login: false,
            waits_for_room: false,
            authorized: None,
            next_heartbeat_us: u64::MAX,
            sampler: Sampler::default(),
            last_command_us: now.us,
            failure: None,
        }
    }

    /// The telemetry of this connection.
    pub fn probe(&self) -> &Probe {
        &self.meter.probe
    }

    /// Sends the answers that are ready.
    fn answer(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let (answered, outcome) = self.answers.poll(cx, out);
        self.meter.answered(answered);
        if let Err(error) = outcome {
            self.meter.probe.error();
            self.failure.get_or_insert(error);
            self.phase = Phase::Ended;
        }
    }

    fn deliver(&mut self, cx: &mut Context<'_>, now: Now, out: &mut Vec<u8>) {
        let Some(consuming) = &mut self.consuming else {
            return;
        };
        let bytes_max = OUTPUT_BUDGET_FLOOR_BYTES.max(self.negotiated.output_buffer_bytes as usize);
        let may_coalesce = self.negotiated.output_buffer_timeout_ms > 0;
        let (client, probe) = (&self.client, &self.meter.probe);
        let outcome = consuming.deliver(cx, out, bytes_max, may_coalesce, now, client, probe);
        if outcome == Delivered::Ended {
            // nsqd closes the consumers of a channel that is deleted, without a word.
            self.phase = Phase::Draining;
        }
    }

    /// Sends a heartbeat when one is due. Ends the session of a client that has been silent for two
    /// intervals, even before the magic.
    fn send_heartbeat(&mut self, now: Now, out: &mut Vec<u8>) {
        let Some(interval_ms) = self.negotiated.heartbeat_interval_ms else {
            return;
        };
        let interval_us = interval_ms * 1000;
        if self.phase == Phase::Open && now.us >= self.next_heartbeat_us {
            // While an upgrade is pending, only answers may be sent.
            if self.upgrades.is_empty() {
                out.extend_from_slice(HEARTBEAT_FRAME);
            }
            self.next_heartbeat_us += interval_us;
            if self.next_heartbeat_us <= now.us {
                self.next_heartbeat_us = now.us + interval_us;
            }
        }
        if now.us >= self.last_command_us + 2 * interval_us && self.wants_input() {
            self.phase = Phase::Ended;
        }
    }

    /// The driver gives up a write after this many microseconds without progress. As in nsqd it is
    /// the heartbeat interval; `None` (never) without heartbeats.
    pub fn write_timeout_us(&self) -> Option<u64> {
        let interval_ms = self.negotiated.heartbeat_interval_ms?;
        Some(interval_ms * 1000)
    }

    pub(crate) fn restart_heartbeat(&mut self, now: Now) {
        self.next_heartbeat_us = match self.negotiated.heartbeat_interval_ms {
            Some(interval_ms) => now.us + interval_ms * 1000,
            None => u64::MAX,
        };
    }

    /// The driver's next task. An upgrade is returned only once every earlier answer is in the
    /// output; the driver calls this after it has written the output.
    pub fn take_driver_task(&mut self) -> Option<DriverTask> {
        if self.auth_wait.is_some() && !self.auth_asked {
            self.auth_asked = true;
            return Some(DriverTask::Authorize(self.secret.clone()));
        }
        if self.answers.is_empty() && self.phase == Phase::Open {
            return self.upgrades.front().cloned();
        }
        None
    }

    /// To be called once everything that the driver reads and writes is encrypted. The OK that
    /// confirms the upgrade follows.
    pub fn upgraded_to_tls(&mut self, tls: ClientTls) {
        if self
            .upgrades
            .pop_front_if(|it| *it == DriverTask::Tls)
            .is_some()
        {
            self.tls = true;
            self.upgraded = true;
            self.client
                .update_identity(|identity| identity.tls = Some(tls));
            self.answers.response(&b"OK"[..]);
        }
    }

    /// Records the negotiated TLS parameters, once the handshake has finished.
    pub fn tls_negotiated(&mut self, tls: ClientTls) {
        self.client
            .update_identity(|identity| identity.tls = Some(tls));
    }

    /// To be called once everything that the driver reads and writes is compressed. The OK that
    /// confirms the upgrade follows.
    pub fn upgraded_to(&mut self, compression: Compression) {
        let upgrade = DriverTask::Compress(compression);
        if self.upgrades.pop_front_if(|it| *it == upgrade).is_some() {
            self.upgraded = true;
            self.client.update_identity(|identity| match compression {
                Compression::Snappy => identity.snappy = true,
                Compression::Deflate(_) => identity.deflate = true,
            });
            self.answers.response(&b"OK"[..]);
        }
    }

    /// The auth service answered; `None` if it could not be asked, which the driver has logged.
    pub fn authorized(&mut self, authorizations: Option<Authorizations>, now: Now) {
        self.auth_asked = false;
        self.last_command_us = now.us;
        let Some(wait) = self.auth_wait.take() else {
            return;
        };
        if let Err(error) = self.accept_authorizations(wait, authorizations, now) {
            self.has_failed_login = true;
            self.refuse(error, now);
        }
    }

    /// Whether an AUTH has failed since the last call. The driver delays the answer then, which
    /// slows down a client that guesses secrets.
    #[inline]
    pub fn take_failed_login(&mut self) -> bool {
        std::mem::take(&mut self.has_failed_login)
    }

    /// Queues an error as the next answer. After a fatal error nothing more is read.
    pub(crate) fn refuse(&mut self, error: ProtocolError, now: Now) {
        self.settle_fins(now);
        self.flush();
        if error.code.is_fatal() {
            self.phase = Phase::Draining;
        }
        self.answers.error(error);
    }

    /// Publishes the batch that was collected from this read.
    #[inline]
    pub(crate) fn flush(&mut self) {
        let (answers, meter) = (&mut self.answers, &mut self.meter);
        self.publishing.flush(&self.realm, answers, meter);
    }

    fn refuse_protocol(&mut self, magic: &[u8; 4]) {
        self.failure = Some(invalid_with("bad protocol magic ", magic));
        self.meter.probe.error();
        self.answers.final_error(BAD_PROTOCOL);
        self.phase = Phase::Draining;
    }

    /// Settles the FINs of this read. Errors for them are answered after the publishes that came
    /// earlier in the read.
    pub(crate) fn settle_fins(&mut self, now: Now) {
        let Some(consuming) = &mut self.consuming else {
            return;
        };
        for error in consuming.settle_fins(now, &self.client, &self.meter.probe) {
            self.flush();
            self.answers.error(error);
            self.meter.others += 1;
        }
    }

    /// Measures now and then how well published messages would compress. To be called for commands
    /// of which at least one took several reads. Skipped if the connection is compressed already,
    /// or if the options allow no compression.
    fn sample(&mut self, commands: &[u8], now: Now) {
        let may_compress = self.options.deflate || self.options.snappy;
        // In a stream of publishes, message bodies are more than half of the bytes.
        let is_published = 2 * self.meter.published.bytes > commands.len() as u64;
        if !may_compress || self.negotiated.compression.is_some() || !is_published {
            return;
        }
        if let Some(sample) = self.sampler.add(commands, now.us) {
            self.meter.probe.sampled(sample.bytes, sample.compressed);
        }
    }
}
