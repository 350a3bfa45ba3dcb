//! The surroundings in which all parts of a session work: the virtual host and the user who has
//! come to it, the limits that were agreed upon, the time, the counts, and the answers.

use std::net::SocketAddr;
use std::sync::Arc;

use cloverleaf_broker::Realm;
use cloverleaf_session::{Meter, Now, Output};

use super::SessionParts;
use super::frames::{push_content, push_method};
use super::rights::User;
use crate::body::Body;
use crate::host::{Owner, VirtualHost};
use crate::options::SessionOptions;
use crate::wire::{FRAME_OVERHEAD_BYTES, Method};

/// Frames of a client that has not logged in are no larger than this, as in RabbitMQ 4.1
/// (`initial_frame_max`): payload and overhead, of which it takes some bytes too much.
const HANDSHAKE_FRAME_BYTES_MAX: u32 = 8192 + FRAME_OVERHEAD_BYTES as u32;
/// With so many bytes of answers nothing further is read.
const REPLIES_BYTES_MAX: usize = 256 << 10;
/// A buffer for answers that grew beyond this is given back.
const REPLIES_KEPT_BYTES: usize = 4 << 10;

/// A connection as every part of its session needs it. It decides nothing.
pub(super) struct Connection {
    pub(super) host: Arc<VirtualHost>,
    /// The host's realm, as the user may use it.
    pub(super) realm: Realm,
    pub(super) options: Arc<SessionOptions>,
    pub(super) meter: Meter,
    pub(super) peer: SocketAddr,
    /// Its identity to the virtual host: its exclusive queues are nobody else's.
    pub(super) owner: Owner,
    pub(super) user: String,
    pub(super) capabilities: Capabilities,
    pub(super) limits: Limits,
    /// Answers, for the next poll.
    pub(super) replies: Output,
    /// The time of this read or poll.
    pub(super) now: Now,
    /// The same by the broker's clock, by which messages expire: milliseconds since 1970.
    pub(super) broker_ms: u64,
}

/// RabbitMQ's extensions that the client understands, as far as we act upon them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capabilities {
    pub(super) consumer_cancel_notify: bool,
    pub(super) connection_blocked: bool,
    pub(super) authentication_failure_close: bool,
}

/// The limits that both sides have agreed upon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) frame_bytes_max: u32,
    pub(super) channels_max: u16,
}

impl Connection {
    pub(super) fn new(parts: SessionParts, now: Now) -> Self {
        Self {
            realm: parts.host.realm().clone(),
            owner: parts.host.owner(),
            host: parts.host,
            options: parts.options,
            meter: Meter::new(parts.probe),
            peer: parts.peer,
            user: String::new(),
            capabilities: Capabilities::default(),
            limits: Limits {
                frame_bytes_max: HANDSHAKE_FRAME_BYTES_MAX,
                channels_max: 0,
            },
            replies: Output::default(),
            now,
            broker_ms: 0,
        }
    }

    /// A read begins: what it takes from both clocks.
    #[inline]
    pub(super) fn begin_read(&mut self, now: Now) {
        self.now = now;
        self.broker_ms = self.realm.now_ms();
        self.meter.begin();
    }

    /// The user, for questions about rights.
    #[inline]
    pub(super) fn user(&self) -> User<'_> {
        User {
            realm: &self.realm,
            name: &self.user,
        }
    }

    /// The time with which messages are stamped, in milliseconds since 1970.
    #[inline]
    pub(super) fn timestamp_ms(&self) -> i64 {
        i64::try_from(self.broker_ms).unwrap_or(i64::MAX)
    }

    /// Answers a method on a channel.
    pub(super) fn reply(&mut self, number: u16, method: &Method<'_>) {
        push_method(&mut self.replies.bytes, number, method);
    }

    /// Answers a method, unless its client wants no answer.
    pub(super) fn reply_unless(&mut self, no_wait: bool, number: u16, method: &Method<'_>) {
        if !no_wait {
            self.reply(number, method);
        }
    }

    /// Answers with a method that has a content. Where the body is a part of `batch`, it may be
    /// sent from there.
    pub(super) fn reply_with_content(
        &mut self,
        number: u16,
        method: &Method<'_>,
        properties: &[u8],
        body: Body<'_>,
        batch: Option<&bytes::Bytes>,
    ) {
        self.reply(number, method);
        let frame_bytes_max = self.limits.frame_bytes_max;
        push_content(
            &mut self.replies,
            number,
            properties,
            body,
            frame_bytes_max,
            batch,
        );
    }

    /// Whether more answers may be added.
    #[inline]
    pub(super) fn has_room_for_replies(&self) -> bool {
        self.replies.len() < REPLIES_BYTES_MAX
    }

    /// Moves the answers behind `out`.
    #[inline]
    pub(super) fn take_replies(&mut self, out: &mut Output) {
        out.append(&mut self.replies);
    }

    /// Gives the memory for answers back after many of them.
    #[inline]
    pub(super) fn shrink_replies(&mut self) {
        if self.replies.bytes.capacity() > REPLIES_KEPT_BYTES {
            self.replies = Output::default();
        }
    }
}
