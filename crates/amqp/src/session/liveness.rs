//! Connections on which nothing happens: heartbeats, a client that does not answer, a full disk.

use super::channel_input::NONE;
use super::frames::HEARTBEAT;
use super::{Phase, Session};
use crate::exception::{Exception, ReplyCode};
use crate::wire::{Method, method};

/// A client that we have told of the end, and that does not answer, is left after this long.
const CLOSE_TIMEOUT_US: u64 = 10_000_000;
/// A client that has not opened its connection is left after this long (`handshake_timeout`).
const HANDSHAKE_TIMEOUT_US: u64 = 10_000_000;
/// While the disk is full, how often it is looked at again.
const BLOCKED_CHECK_US: u64 = 500_000;
/// The reason that a blocked client is told.
const BLOCKED_REASON: &str = "low on disk";

impl Session {
    /// When something is to be done at the latest.
    pub(super) fn due_us(&self) -> u64 {
        let blocked_us = self.blocked_until_us.unwrap_or(u64::MAX);
        match self.phase {
            Phase::Open => {
                let contents_us = self.contents.due_us();
                blocked_us.min(contents_us).min(self.heartbeat_due_us())
            }
            Phase::Closing => self.closing_since_us + CLOSE_TIMEOUT_US,
            Phase::Draining | Phase::Ended => u64::MAX,
            _ => self.opened_us + HANDSHAKE_TIMEOUT_US,
        }
    }

    /// Tells the client that the broker ends.
    pub(super) fn stop(&mut self) {
        let text = "broker forced connection closure with reason 'shutdown'";
        let error = Exception::new(ReplyCode::ConnectionForced, text);
        self.fail(0, &error, NONE);
        // It is no fault of the client.
        self.failure = None;
    }

    /// The disk is full: the client is told, if it understands that, until there is room again.
    pub(super) fn block(&mut self) {
        self.blocked_until_us = Some(self.now.us + BLOCKED_CHECK_US);
        if self.client.connection_blocked && !self.is_told_blocked {
            self.is_told_blocked = true;
            let blocked = method::ConnectionBlocked {
                reason: BLOCKED_REASON,
            };
            self.reply(0, &Method::ConnectionBlocked(blocked));
        }
    }

    pub(super) fn look_at_disk(&mut self) {
        let is_due = self.blocked_until_us.is_some_and(|due| self.now.us >= due);
        if !is_due {
            return;
        }
        if self.realm.is_storage_full() {
            self.blocked_until_us = Some(self.now.us + BLOCKED_CHECK_US);
            return;
        }
        self.blocked_until_us = None;
        if std::mem::take(&mut self.is_told_blocked) {
            let unblocked = method::ConnectionUnblocked {};
            self.reply(0, &Method::ConnectionUnblocked(unblocked));
        }
    }

    /// Ends the connection if it holds an unfinished content or transaction for too long, while
    /// others need the memory.
    pub(super) fn look_at_contents(&mut self) {
        let now_us = self.now.us;
        if self.phase != Phase::Open || !self.contents.is_due(now_us) {
            return;
        }
        let mut channels = self.channels.iter();
        let overdue = channels.find(|(_, channel)| channel.holds_too_long(now_us));
        if let Some((&number, _)) = overdue {
            let text = "an unfinished message or transaction was held for too long";
            let error = Exception::new(ReplyCode::ResourceError, text);
            self.fail(number, &error, NONE);
        }
    }

    fn heartbeat_due_us(&self) -> u64 {
        match self.negotiated.heartbeat_us {
            0 => u64::MAX,
            interval_us => {
                let beat_us = self.last_write_us + interval_us / 2;
                beat_us.min(self.last_read_us + 2 * interval_us)
            }
        }
    }

    /// A heartbeat when nothing else was sent for half an interval; the end when nothing came for
    /// two.
    pub(super) fn beat(&mut self, out: &mut Vec<u8>) {
        let now_us = self.now.us;
        if self.phase == Phase::Closing && now_us >= self.closing_since_us + CLOSE_TIMEOUT_US {
            self.phase = Phase::Ended;
        }
        let is_open = match self.phase {
            Phase::Open => true,
            Phase::Closing | Phase::Draining | Phase::Ended => return,
            _ => false,
        };
        if !is_open {
            if now_us >= self.opened_us + HANDSHAKE_TIMEOUT_US {
                self.failure.get_or_insert("handshake_timeout".to_owned());
                self.phase = Phase::Ended;
            }
            return;
        }
        let interval_us = self.negotiated.heartbeat_us;
        if interval_us == 0 {
            return;
        }
        if out.is_empty() && now_us >= self.last_write_us + interval_us / 2 {
            out.extend_from_slice(&HEARTBEAT);
            self.last_write_us = now_us;
        }
        if now_us >= self.last_read_us + 2 * interval_us {
            let timeout_s = interval_us / 1_000_000;
            self.failure.get_or_insert(format!(
                "missed heartbeats from client, timeout: {timeout_s}s"
            ));
            self.release_all();
            self.phase = Phase::Ended;
        }
    }
}
