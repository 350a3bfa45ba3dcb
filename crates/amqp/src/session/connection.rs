//! The context that all parts of a session work in: virtual host, user, negotiated limits, time,
//! counters, and pending replies.

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

/// Largest frame before login, as in RabbitMQ 4.1 (`initial_frame_max`), whose check counts the
/// payload only.
const HANDSHAKE_FRAME_BYTES_MAX: u32 = 8192 + FRAME_OVERHEAD_BYTES as u32;
/// With this many bytes of pending replies nothing further is read.
const REPLIES_BYTES_MAX: usize = 256 << 10;
/// A reply buffer larger than this is freed once it is empty.
const REPLIES_KEPT_BYTES: usize = 4 << 10;

/// A connection as all parts of its session see it. It makes no decisions.
pub(super) struct Connection {
    pub(super) host: Arc<VirtualHost>,
    /// The virtual host's realm, with the user's rights.
    pub(super) realm: Realm,
    pub(super) options: Arc<SessionOptions>,
    pub(super) meter: Meter,
    pub(super) peer: SocketAddr,
    /// Identifies the connection to the virtual host as the owner of its exclusive queues.
    pub(super) owner: Owner,
    pub(super) user: String,
    pub(super) capabilities: Capabilities,
    pub(super) limits: NegotiatedLimits,
    /// Replies, to be sent by the next poll.
    pub(super) replies: Output,
    /// The time of the current read or poll.
    pub(super) now: Now,
    /// The time of the current read by the broker's clock, by which messages expire, in
    /// milliseconds since 1970.
    pub(super) broker_ms: u64,
}

/// RabbitMQ's extensions that the client understands, where the broker behaves differently without
/// them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capabilities {
    pub(super) consumer_cancel_notify: bool,
    pub(super) connection_blocked: bool,
    pub(super) authentication_failure_close: bool,
}

/// The negotiated limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct NegotiatedLimits {
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
            limits: NegotiatedLimits {
                frame_bytes_max: HANDSHAKE_FRAME_BYTES_MAX,
                channels_max: 0,
            },
            replies: Output::default(),
            now,
            broker_ms: 0,
        }
    }

    /// Begins a read: takes the time from both clocks.
    #[inline]
    pub(super) fn begin_read(&mut self, now: Now) {
        self.now = now;
        self.broker_ms = self.realm.now_ms();
        self.meter.begin();
    }

    /// The user, for access checks.
    #[inline]
    pub(super) fn user(&self) -> User<'_> {
        User {
            realm: &self.realm,
            name: &self.user,
        }
    }

    /// The timestamp of published messages, in milliseconds since 1970.
    #[inline]
    pub(super) fn timestamp_ms(&self) -> i64 {
        i64::try_from(self.broker_ms).unwrap_or(i64::MAX)
    }

    /// Sends a method on a channel.
    pub(super) fn reply(&mut self, number: u16, method: &Method<'_>) {
        push_method(&mut self.replies.bytes, number, method);
    }

    /// Sends a reply, unless the client asked for none (`no-wait`).
    pub(super) fn reply_unless(&mut self, no_wait: bool, number: u16, method: &Method<'_>) {
        if !no_wait {
            self.reply(number, method);
        }
    }

    /// Sends a method with a content. If the body is part of `batch`, it may be sent from there
    /// without a copy.
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

    /// Whether the limit of pending replies is not reached.
    #[inline]
    pub(super) fn has_room_for_replies(&self) -> bool {
        self.replies.len() < REPLIES_BYTES_MAX
    }

    /// Moves the pending replies to the end of `out`.
    #[inline]
    pub(super) fn take_replies(&mut self, out: &mut Output) {
        out.append(&mut self.replies);
    }

    /// Frees the reply buffer if it has grown.
    #[inline]
    pub(super) fn shrink_replies(&mut self) {
        if self.replies.bytes.capacity() > REPLIES_KEPT_BYTES {
            self.replies = Output::default();
        }
    }
}
