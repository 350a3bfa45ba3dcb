//! Failures to store messages: a full disk blocks the client, other errors are logged.

use cloverleaf_broker::PublishError;
use cloverleaf_log::AppendError;

use crate::log_throttle::LogThrottle;
use crate::session::connection::Connection;
use crate::wire::{Method, method};

/// Interval of the checks whether the disk is still full.
const CHECK_US: u64 = 500_000;
/// The reason in `connection.blocked`.
const REASON: &str = "low on disk";

/// Throttles the log's lines about failed publishes of all connections: they share one log.
static FAILED_PUBLISHES: LogThrottle = LogThrottle::new();

/// Whether the disk was full at this connection's last publish.
#[derive(Default)]
pub(super) struct StorageAlarm {
    /// The time of the next check, while the disk is full.
    check_us: Option<u64>,
    /// The client has been sent `connection.blocked`.
    is_blocked: bool,
}

impl StorageAlarm {
    /// The time by which [`StorageAlarm::poll`] has to be called.
    pub(super) fn due_us(&self) -> u64 {
        self.check_us.unwrap_or(u64::MAX)
    }

    /// Handles a publish that was not stored.
    pub(super) fn not_stored(&mut self, connection: &mut Connection, error: &PublishError) {
        connection.meter.probe.error();
        match error {
            PublishError::QueueFull { .. } => {}
            PublishError::Log(AppendError::StorageFull { .. }) => self.raise(connection),
            error => {
                let (peer, due) = (connection.peer, FAILED_PUBLISHES.count(connection.now.us));
                if let Some(times) = due {
                    tracing::warn!(%peer, %error, times, "messages were not stored");
                }
            }
        }
    }

    /// The disk is full: blocks a client that understands `connection.blocked` until there is
    /// space.
    fn raise(&mut self, connection: &mut Connection) {
        self.check_us = Some(connection.now.us + CHECK_US);
        if connection.capabilities.connection_blocked && !self.is_blocked {
            self.is_blocked = true;
            let blocked = method::ConnectionBlocked { reason: REASON };
            connection.reply(0, &Method::ConnectionBlocked(blocked));
        }
    }

    /// Checks again whether the disk is full, if it is time, and unblocks the client if not.
    #[inline]
    pub(super) fn poll(&mut self, connection: &mut Connection) {
        let now_us = connection.now.us;
        if now_us < self.due_us() {
            return;
        }
        if connection.realm.is_storage_full() {
            self.check_us = Some(now_us + CHECK_US);
            return;
        }
        self.check_us = None;
        if std::mem::take(&mut self.is_blocked) {
            let unblocked = method::ConnectionUnblocked {};
            connection.reply(0, &Method::ConnectionUnblocked(unblocked));
        }
    }
}
