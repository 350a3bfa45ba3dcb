//! A full disk, as the client is told of it, and other failures of the log.

use cloverleaf_broker::PublishError;
use cloverleaf_log::AppendError;

use crate::repeats::Repeats;
use crate::session::connection::Connection;
use crate::wire::{Method, method};

/// While the disk is full, how often it is looked at again.
const CHECK_US: u64 = 500_000;
/// The reason that a blocked client is told.
const REASON: &str = "low on disk";

/// Publishes that failed, of all connections: they share one log.
static FAILURES: Repeats = Repeats::new();

/// Whether the disk was full when this connection published.
#[derive(Default)]
pub(super) struct StorageAlarm {
    /// It is; when to look again.
    check_us: Option<u64>,
    /// The client was told so.
    is_told: bool,
}

impl StorageAlarm {
    /// When [`StorageAlarm::poll`] has to be called at the latest.
    pub(super) fn due_us(&self) -> u64 {
        self.check_us.unwrap_or(u64::MAX)
    }

    /// A batch was not stored.
    pub(super) fn not_stored(&mut self, connection: &mut Connection, error: &PublishError) {
        connection.meter.probe.error();
        match error {
            PublishError::QueueFull { .. } => {}
            PublishError::Log(AppendError::StorageFull { .. }) => self.raise(connection),
            error => {
                let (peer, due) = (connection.peer, FAILURES.count(connection.now.us));
                if let Some(times) = due {
                    tracing::warn!(%peer, %error, times, "messages were not stored");
                }
            }
        }
    }

    /// The disk is full: the client is told, if it understands that, until there is room again.
    fn raise(&mut self, connection: &mut Connection) {
        self.check_us = Some(connection.now.us + CHECK_US);
        if connection.capabilities.connection_blocked && !self.is_told {
            self.is_told = true;
            let blocked = method::ConnectionBlocked { reason: REASON };
            connection.reply(0, &Method::ConnectionBlocked(blocked));
        }
    }

    /// Looks at the disk again, if it is time.
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
        if std::mem::take(&mut self.is_told) {
            let unblocked = method::ConnectionUnblocked {};
            connection.reply(0, &Method::ConnectionUnblocked(unblocked));
        }
    }
}
