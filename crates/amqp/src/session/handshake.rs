//! From the protocol header to the open connection, and what ends it.
//!
//! ```text
//! client                     server
//! AMQP 0 0 9 1        ──▶
//!                     ◀──    connection.start
//! connection.start-ok ──▶
//!                     ◀──    connection.tune
//! connection.tune-ok  ──▶
//! connection.open     ──▶
//!                     ◀──    connection.open-ok
//! ```

use std::sync::Arc;

use cloverleaf_access::{Accepted, Login, Mechanism, Refused, Step, Verification};
use cloverleaf_log::Durability;
use cloverleaf_session::Now;
use cloverleaf_telemetry::Identity;

use super::channel_input::{NONE, cannot_decode};
use super::frames::push_method;
use super::{Phase, Session};
use crate::exception::{Exception, ReplyCode};
use crate::mechanisms::MECHANISMS;
use crate::wire::{
    FRAME_MIN_BYTES, FRAME_OVERHEAD_BYTES, Frame, FrameType, Method, MethodId, PROTOCOL_HEADER,
    Table, Value, method, table_bytes,
};

/// The product that programs look for before they use RabbitMQ's extensions, and the version whose
/// behaviour they may expect. Our own name stands in `platform`.
const PRODUCT: &str = "RabbitMQ";
const VERSION: &str = "4.1.0";
/// The only virtual host.
const VIRTUAL_HOST: &str = "/";
/// Frames of a client that has not logged in are no larger than this, as in RabbitMQ 4.1
/// (`initial_frame_max`): payload and overhead, of which it takes some bytes too much.
pub(super) const HANDSHAKE_FRAME_BYTES_MAX: u32 = 8192 + FRAME_OVERHEAD_BYTES as u32;

/// RabbitMQ's extensions that we have: all of RabbitMQ's.
const CAPABILITIES: &[&str] = &[
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
];

/// The client's properties that we act upon.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Client {
    pub(super) consumer_cancel_notify: bool,
    pub(super) connection_blocked: bool,
    authentication_failure_close: bool,
    /// The mechanism by which it logs in.
    mechanism: &'static str,
}

/// The limits that both sides have agreed upon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Negotiated {
    pub(super) frame_bytes_max: u32,
    pub(super) channels_max: u16,
    /// 0: none.
    pub(super) heartbeat_us: u64,
}

/// The protocol headers that are taken for ours: 0-9 differs in nothing that a client of today
/// uses, and RabbitMQ takes it for 0-9-1, too (Perl's AnyEvent::RabbitMQ says it).
const PROTOCOL_HEADERS: [&[u8; 8]; 2] = [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"];

impl Session {
    /// Whether it ended in order. Then the client is the one who closes the socket: one that still
    /// reads takes an end that comes earlier for a fault (amqp091-go tells `NotifyClose` of it).
    pub fn said_goodbye(&self) -> bool {
        self.said_goodbye
    }

    /// Whether a login has failed since this was asked last. The answer to it is not to be sent at
    /// once: who tries passwords is to have as few tries as possible.
    #[inline]
    pub fn take_failed_login(&mut self) -> bool {
        std::mem::take(&mut self.has_failed_login)
    }

    /// Looks at the first bytes. Returns how many are done with.
    pub(super) fn protocol_header(&mut self, input: &[u8]) -> usize {
        let Some(header) = input.first_chunk::<8>() else {
            // Bytes that cannot become it any more are refused at once.
            if !PROTOCOL_HEADERS.iter().any(|it| it.starts_with(input)) {
                self.refuse_header(input);
            }
            return 0;
        };
        if !PROTOCOL_HEADERS.contains(&header) {
            self.refuse_header(header);
            return 0;
        }
        let capabilities: Vec<_> = CAPABILITIES
            .iter()
            .map(|name| (*name, Value::Bool(true)))
            .collect();
        let capabilities = table_bytes(&capabilities);
        let platform = concat!("Cloverleaf ", env!("CARGO_PKG_VERSION"));
        let text = |text: &'static str| Value::String(text.as_bytes());
        let mode = self.realm.options().durability;
        let properties = table_bytes(&[
            // They were written a line above.
            (
                "capabilities",
                Value::Table(Table::check(&capabilities).unwrap_or_default()),
            ),
            ("product", text(PRODUCT)),
            ("version", text(VERSION)),
            ("cluster_name", text("cloverleaf")),
            ("platform", text(platform)),
            ("information", text("Apache-2.0")),
            // The durability that a confirm promises: of a persistent message in a durable queue,
            // of another.
            ("cloverleaf.durability", text(mode.name())),
            (
                "cloverleaf.durability.persistent",
                text(mode.class_name(Durability::Disk)),
            ),
            (
                "cloverleaf.durability.transient",
                text(mode.class_name(Durability::Kernel)),
            ),
        ]);
        let mechanisms = MECHANISMS.map(|mechanism| mechanism.name()).join(" ");
        let start = Method::ConnectionStart(method::ConnectionStart {
            version_major: 0,
            version_minor: 9,
            server_properties: Table::check(&properties).unwrap_or_default(),
            mechanisms: mechanisms.as_bytes(),
            locales: b"en_US",
        });
        self.reply(0, &start);
        self.phase = Phase::Starting;
        PROTOCOL_HEADER.len()
    }

    /// Another protocol, or another version: the answer is what we speak, and the end.
    fn refuse_header(&mut self, header: &[u8]) {
        self.replies.bytes.extend_from_slice(PROTOCOL_HEADER);
        self.fail_quietly(format!(
            "bad protocol header {:?}",
            header.escape_ascii().to_string()
        ));
    }

    /// A frame of channel 0.
    pub(super) fn connection_frame(
        &mut self,
        frame: &Frame<'_>,
        now: Now,
    ) -> Result<(), (Exception, MethodId)> {
        if frame.kind == FrameType::Heartbeat {
            return Ok(());
        }
        let id = MethodId::peek(frame.payload);
        if frame.kind != FrameType::Method {
            let text = "content on channel 0";
            return Err((Exception::new(ReplyCode::UnexpectedFrame, text), NONE));
        }
        let method = match Method::read(frame.payload) {
            Ok(Some(method)) => method,
            Ok(None) => {
                let text = format!("unknown method {}.{}", id.class, id.method);
                return Err((Exception::new(ReplyCode::CommandInvalid, text), id));
            }
            Err(_) => return Err((cannot_decode(frame.payload), id)),
        };
        self.connection_method(&method, now)
            .map_err(|error| (error, id))
    }

    fn connection_method(&mut self, method: &Method<'_>, now: Now) -> Result<(), Exception> {
        match (self.phase, method) {
            (Phase::Starting, Method::ConnectionStartOk(start)) => {
                self.authenticate(start);
                Ok(())
            }
            (Phase::Tuning, Method::ConnectionTuneOk(tune)) => self.tuned(tune, now),
            (Phase::Opening, Method::ConnectionOpen(open)) => {
                if open.virtual_host != VIRTUAL_HOST {
                    let text = format!("vhost {} not found", open.virtual_host);
                    return Err(Exception::new(ReplyCode::NotAllowed, text));
                }
                let ok = Method::ConnectionOpenOk(method::ConnectionOpenOk::default());
                self.reply(0, &ok);
                self.phase = Phase::Open;
                Ok(())
            }
            (Phase::Open, Method::ConnectionUpdateSecret(_)) => {
                // There are no secrets that expire.
                let ok = method::ConnectionUpdateSecretOk {};
                self.reply(0, &Method::ConnectionUpdateSecretOk(ok));
                Ok(())
            }
            (Phase::Closing, Method::ConnectionCloseOk(_)) => {
                self.said_goodbye = true;
                self.phase = Phase::Draining;
                Ok(())
            }
            (_, Method::ConnectionClose(_)) => {
                let numbers: Vec<u16> = self.channels.keys().copied().collect();
                numbers.iter().for_each(|number| self.write_rests(*number));
                self.release_all();
                self.reply(0, &Method::ConnectionCloseOk(method::ConnectionCloseOk {}));
                self.said_goodbye = true;
                self.phase = Phase::Draining;
                Ok(())
            }
            // Sent before the client has heard of the end.
            (Phase::Closing | Phase::Draining | Phase::Ended, _) => Ok(()),
            (phase, _) => {
                let text = format!("unexpected method in connection state {}", phase.name());
                Err(Exception::new(ReplyCode::ChannelError, text))
            }
        }
    }

    fn authenticate(&mut self, start: &method::ConnectionStartOk<'_>) {
        let properties = start.client_properties;
        let capabilities = match properties.get("capabilities") {
            Some(Value::Table(table)) => table,
            _ => Table::default(),
        };
        let has = |name: &str| capabilities.get(name) == Some(Value::Bool(true));
        self.client = Client {
            consumer_cancel_notify: has("consumer_cancel_notify"),
            connection_blocked: has("connection.blocked"),
            authentication_failure_close: has("authentication_failure_close"),
            mechanism: "",
        };
        let text = |name: &str| {
            let value = properties.get(name);
            let text = value.and_then(|value| value.as_text());
            text.unwrap_or_default().to_owned()
        };
        self.meter.probe.identify(Identity {
            library: text("product"),
            // Some say the one, some the other.
            version: match text("version") {
                version if version.is_empty() => text("product_version"),
                version => version,
            },
            client_id: text("connection_name"),
            platform: text("platform"),
        });
        let mechanism = match Mechanism::find(&MECHANISMS, start.mechanism) {
            Ok(mechanism) => mechanism,
            Err(refused) => return self.refuse_login(start.mechanism, &refused),
        };
        let users = Arc::clone(&self.options.users);
        self.client.mechanism = mechanism.name();
        self.phase = Phase::Verifying;
        match Login::new(users, mechanism, self.peer.ip()).respond(start.response) {
            Step::Done(verdict) => self.logged_in(verdict),
            Step::Verify(verification) => self.verification = Some(verification),
            // None that is offered has one.
            Step::Challenge(_) => self.logged_in(Err(Refused::Malformed)),
        }
    }

    /// Takes what has to be computed before the client is answered, elsewhere, because it takes
    /// long; then [`Session::logged_in`].
    #[inline]
    pub fn take_verification(&mut self) -> Option<Box<Verification>> {
        self.verification.take()
    }

    /// Says who the client is.
    pub fn logged_in(&mut self, verdict: Result<Accepted, Refused>) {
        // The connection may have ended meanwhile.
        if self.phase != Phase::Verifying {
            return;
        }
        match verdict {
            Ok(accepted) => {
                self.user.clone_from(&accepted.principal.name);
                if let Some(grants) = &self.options.grants {
                    self.realm.enter(accepted.principal, Arc::clone(grants));
                }
                let tune = Method::ConnectionTune(method::ConnectionTune {
                    channel_max: self.options.channels_max,
                    frame_max: self.options.frame_bytes_max,
                    heartbeat: self.options.heartbeat_s,
                });
                self.reply(0, &tune);
                self.phase = Phase::Tuning;
            }
            Err(refused) => self.refuse_login(self.client.mechanism, &refused),
        }
    }

    /// The reason is for our log alone.
    fn refuse_login(&mut self, mechanism: &str, refused: &Refused) {
        let failure = format!("{mechanism} login refused: {refused}");
        self.has_failed_login = true;
        if self.client.authentication_failure_close {
            let text = format!(
                "Login was refused using authentication mechanism {mechanism}. For details see \
                 the broker logfile."
            );
            let error = Exception::new(ReplyCode::AccessRefused, text);
            self.push_close(&error, NONE);
        }
        self.fail_quietly(failure);
    }

    fn tuned(&mut self, tune: &method::ConnectionTuneOk, now: Now) -> Result<(), Exception> {
        let (frames_max, channels_max) = (self.options.frame_bytes_max, self.options.channels_max);
        check_negotiated("frame_max", FRAME_MIN_BYTES, frames_max, tune.frame_max)?;
        let channels = u32::from(tune.channel_max);
        check_negotiated("channel_max", 1, channels_max.into(), channels)?;
        self.negotiated = Negotiated {
            frame_bytes_max: match tune.frame_max {
                0 => u32::MAX,
                frame_max => frame_max,
            },
            channels_max: match tune.channel_max {
                0 => u16::MAX,
                channel_max => channel_max,
            },
            heartbeat_us: u64::from(tune.heartbeat) * 1_000_000,
        };
        self.last_read_us = now.us;
        self.last_write_us = now.us;
        self.phase = Phase::Opening;
        Ok(())
    }

    /// Ends a channel or the connection.
    pub(super) fn fail(&mut self, number: u16, error: &Exception, id: MethodId) {
        self.meter.probe.error();
        if number != 0 && !error.code.is_hard() {
            tracing::debug!(peer = %self.peer, channel = number, %error, "a channel is closed");
            self.release_channel(number);
            if let Some(channel) = self.channels.get_mut(&number) {
                channel.state = super::channel::State::Closing;
            }
            let text = error.to_string();
            let close = Method::ChannelClose(method::ChannelClose {
                reply_code: error.code as u16,
                reply_text: &text,
                class_id: id.class,
                method_id: id.method,
            });
            return self.reply(number, &close);
        }
        if self.phase == Phase::Closing {
            // It has been told once, and has so long to answer.
            return;
        }
        self.failure.get_or_insert(error.to_string());
        self.release_all();
        self.push_close(error, id);
        self.phase = Phase::Closing;
        self.closing_since_us = self.now.us;
    }

    fn push_close(&mut self, error: &Exception, id: MethodId) {
        let text = error.to_string();
        let close = Method::ConnectionClose(method::ConnectionClose {
            reply_code: error.code as u16,
            reply_text: &text,
            class_id: id.class,
            method_id: id.method,
        });
        push_method(&mut self.replies.bytes, 0, &close);
    }

    /// Ends the connection once what is owed is written.
    pub(super) fn fail_quietly(&mut self, failure: String) {
        self.meter.probe.error();
        self.failure.get_or_insert(failure);
        self.phase = Phase::Draining;
    }
}

/// Whether a client may choose this value, where ours is `max`; 0: no limit.
fn check_negotiated(name: &str, min: u32, max: u32, value: u32) -> Result<(), Exception> {
    let fail = |is: &str, which: &str, limit: u32| {
        let text =
            format!("negotiated {name} = {value} is {is} than the {which} allowed value ({limit})");
        Err(Exception::new(ReplyCode::NotAllowed, text))
    };
    if value != 0 && value < min {
        return fail("lower", "minimum", min);
    }
    if max != 0 && (value == 0 || value > max) {
        return fail("higher", "maximum", max);
    }
    Ok(())
}
