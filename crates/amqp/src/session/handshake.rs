//! From the protocol header to the open connection.
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

use cloverleaf_access::{Login, LoginError, LoginStep, LoginSuccess, Mechanism, Verification};
use cloverleaf_log::Durability;
use cloverleaf_telemetry::Identity;

use super::channel_input::NO_METHOD;
use super::connection::{Capabilities, Connection, NegotiatedLimits};
use super::lifecycle::{Lifecycle, Phase};
use crate::exception::{Exception, ReplyCode};
use crate::mechanisms::MECHANISMS;
use crate::wire::{FRAME_MIN_BYTES, Method, PROTOCOL_HEADER, Table, Value, method, table_bytes};

/// Clients check this product name before they use RabbitMQ's extensions, and the version for the
/// behaviour they expect. Cloverleaf names itself in `platform`.
const PRODUCT: &str = "RabbitMQ";
const VERSION: &str = "4.1.0";
/// RabbitMQ's list of capabilities, all of which this broker has.
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

/// The accepted protocol headers. Like RabbitMQ, the broker accepts the header of AMQP 0-9, too:
/// Perl's AnyEvent::RabbitMQ sends it, and then uses only what 0-9 and 0-9-1 have in common.
const PROTOCOL_HEADERS: [&[u8; 8]; 2] = [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"];

/// A login in progress.
#[derive(Default)]
pub(super) struct Handshake {
    /// The mechanism that the client has chosen.
    mechanism: &'static str,
    /// A password verification that the driver has not taken yet.
    verification: Option<Box<Verification>>,
    /// A login has failed, and the driver has not learned of it yet (`take_failed_login`).
    has_failed_login: bool,
}

impl Handshake {
    pub(super) fn take_failed_login(&mut self) -> bool {
        std::mem::take(&mut self.has_failed_login)
    }

    pub(super) fn take_verification(&mut self) -> Option<Box<Verification>> {
        self.verification.take()
    }

    /// Handles the protocol header. Returns the number of bytes consumed.
    pub(super) fn protocol_header(
        &self,
        connection: &mut Connection,
        lifecycle: &mut Lifecycle,
        input: &[u8],
    ) -> usize {
        let Some(header) = input.first_chunk::<8>() else {
            // An incomplete header is refused as soon as it cannot match.
            if !PROTOCOL_HEADERS.iter().any(|it| it.starts_with(input)) {
                refuse_header(connection, lifecycle, input);
            }
            return 0;
        };
        if !PROTOCOL_HEADERS.contains(&header) {
            refuse_header(connection, lifecycle, header);
            return 0;
        }
        let capabilities: Vec<_> = CAPABILITIES
            .iter()
            .map(|name| (*name, Value::Bool(true)))
            .collect();
        let capabilities = table_bytes(&capabilities);
        let platform = concat!("Cloverleaf ", env!("CARGO_PKG_VERSION"));
        let text = |text: &'static str| Value::String(text.as_bytes());
        let mode = connection.realm.options().durability;
        let properties = table_bytes(&[
            // Cannot fail: the table was encoded above.
            (
                "capabilities",
                Value::Table(Table::check(&capabilities).unwrap_or_default()),
            ),
            ("product", text(PRODUCT)),
            ("version", text(VERSION)),
            ("cluster_name", text("cloverleaf")),
            ("platform", text(platform)),
            ("information", text("Apache-2.0")),
            // The durability that a confirm promises: for persistent messages in durable queues,
            // and for all others.
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
        connection.reply(0, &start);
        lifecycle.enter(Phase::Starting);
        PROTOCOL_HEADER.len()
    }

    /// `connection.start-ok`: the client's properties and credentials.
    pub(super) fn authenticate(
        &mut self,
        connection: &mut Connection,
        lifecycle: &mut Lifecycle,
        start: &method::ConnectionStartOk<'_>,
    ) {
        let properties = start.client_properties;
        let capabilities = match properties.get("capabilities") {
            Some(Value::Table(table)) => table,
            _ => Table::default(),
        };
        let has = |name: &str| capabilities.get(name) == Some(Value::Bool(true));
        connection.capabilities = Capabilities {
            consumer_cancel_notify: has("consumer_cancel_notify"),
            connection_blocked: has("connection.blocked"),
            authentication_failure_close: has("authentication_failure_close"),
        };
        let text = |name: &str| {
            let value = properties.get(name);
            let text = value.and_then(|value| value.as_text());
            text.unwrap_or_default().to_owned()
        };
        connection.meter.probe.identify(Identity {
            library: text("product"),
            // Clients differ in which of these properties they set.
            version: match text("version") {
                version if version.is_empty() => text("product_version"),
                version => version,
            },
            client_id: text("connection_name"),
            platform: text("platform"),
        });
        let mechanism = match Mechanism::find(&MECHANISMS, start.mechanism) {
            Ok(mechanism) => mechanism,
            Err(refused) => {
                return self.refuse_login(connection, lifecycle, start.mechanism, &refused);
            }
        };
        let users = Arc::clone(&connection.options.users);
        self.mechanism = mechanism.name();
        lifecycle.enter(Phase::Verifying);
        match Login::new(users, mechanism, connection.peer.ip()).respond(start.response) {
            LoginStep::Done(verdict) => self.logged_in(connection, lifecycle, verdict),
            LoginStep::Verify(verification) => self.verification = Some(verification),
            // No offered mechanism has a second step.
            LoginStep::Challenge(_) => {
                self.logged_in(connection, lifecycle, Err(LoginError::Malformed));
            }
        }
    }

    /// Handles the verdict on the client's credentials.
    pub(super) fn logged_in(
        &mut self,
        connection: &mut Connection,
        lifecycle: &mut Lifecycle,
        verdict: Result<LoginSuccess, LoginError>,
    ) {
        // The connection may have ended during the verification.
        if lifecycle.phase() != Phase::Verifying {
            return;
        }
        match verdict {
            Ok(accepted) => {
                connection.user.clone_from(&accepted.principal.name);
                if let Some(grants) = &connection.options.grants {
                    connection
                        .realm
                        .set_user(accepted.principal, Arc::clone(grants));
                }
                let tune = Method::ConnectionTune(method::ConnectionTune {
                    channel_max: connection.options.channels_max,
                    frame_max: connection.options.frame_bytes_max,
                    heartbeat: connection.options.heartbeat_s,
                });
                connection.reply(0, &tune);
                lifecycle.enter(Phase::Tuning);
            }
            Err(refused) => {
                self.refuse_login(connection, lifecycle, self.mechanism, &refused);
            }
        }
    }

    /// Refuses a login. The reason goes to the broker's log only, as in RabbitMQ.
    fn refuse_login(
        &mut self,
        connection: &mut Connection,
        lifecycle: &mut Lifecycle,
        mechanism: &str,
        refused: &LoginError,
    ) {
        let failure = format!("{mechanism} login refused: {refused}");
        self.has_failed_login = true;
        if connection.capabilities.authentication_failure_close {
            let text = format!(
                "Login was refused using authentication mechanism {mechanism}. For details see \
                 the broker logfile."
            );
            let error = Exception::new(ReplyCode::AccessRefused, text);
            connection.push_close(&error, NO_METHOD);
        }
        end_after_replies(connection, lifecycle, failure);
    }
}

/// `connection.tune-ok`: takes over the limits that the client has chosen, and returns the
/// heartbeat interval in microseconds.
pub(super) fn apply_tune_ok(
    connection: &mut Connection,
    tune: &method::ConnectionTuneOk,
) -> Result<u64, Exception> {
    let options = &connection.options;
    let (frames_max, channels_max) = (options.frame_bytes_max, options.channels_max);
    check_negotiated("frame_max", FRAME_MIN_BYTES, frames_max, tune.frame_max)?;
    let channels = u32::from(tune.channel_max);
    check_negotiated("channel_max", 1, channels_max.into(), channels)?;
    connection.limits = NegotiatedLimits {
        frame_bytes_max: match tune.frame_max {
            0 => u32::MAX,
            frame_max => frame_max,
        },
        channels_max: match tune.channel_max {
            0 => u16::MAX,
            channel_max => channel_max,
        },
    };
    Ok(u64::from(tune.heartbeat) * 1_000_000)
}

/// Refuses another protocol or version: replies with the supported protocol header, then closes.
fn refuse_header(connection: &mut Connection, lifecycle: &mut Lifecycle, header: &[u8]) {
    connection.replies.bytes.extend_from_slice(PROTOCOL_HEADER);
    let header = header.escape_ascii().to_string();
    let failure = format!("bad protocol header {header:?}");
    end_after_replies(connection, lifecycle, failure);
}

/// Closes the connection once its pending replies are written.
fn end_after_replies(connection: &mut Connection, lifecycle: &mut Lifecycle, failure: String) {
    connection.meter.probe.error();
    lifecycle.record_failure(failure);
    lifecycle.enter(Phase::Draining);
}

/// Checks a value that the client has chosen against the broker's `max`; 0: no limit.
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
