//! The options of AMQP sessions.

use std::sync::Arc;

use cloverleaf_access::{Grants, Users};

use crate::content_memory::{ContentMemory, ContentShare};
use crate::mechanisms::guest;

/// The options of all sessions. The server fills them from its configuration.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Largest frame that is offered to clients, in bytes (`frame_max`).
    pub frame_bytes_max: u32,
    /// Maximum number of channels of a connection (`channel_max`).
    pub channels_max: u16,
    /// The heartbeat interval that is offered to clients, in seconds; 0: no heartbeats.
    pub heartbeat_s: u16,
    /// Largest body of a message, in bytes (`max_message_size`).
    pub message_bytes_max: u64,
    /// Maximum number of consumers of a channel (`consumer_max_per_channel`).
    pub consumers_max: usize,
    /// Maximum size of an uncommitted transaction's messages, in bytes.
    pub transaction_bytes_max: usize,
    /// The memory, shared by all connections, for messages that cannot be stored yet.
    pub contents: Arc<ContentMemory>,
    /// The users that may connect.
    pub users: Arc<Users>,
    /// The rights of the users; `None`: every user may do everything.
    pub grants: Option<Arc<Grants>>,
}

impl SessionOptions {
    /// A connection's share of the memory for messages that cannot be stored yet. It is at
    /// least as large as the largest message and the largest transaction that a client may send.
    pub(crate) fn content_share(&self) -> Arc<ContentShare> {
        let largest = self
            .message_bytes_max
            .max(self.transaction_bytes_max as u64);
        ContentShare::new(&self.contents, largest)
    }
}

impl Default for SessionOptions {
    /// RabbitMQ's defaults, for the options that RabbitMQ has.
    fn default() -> Self {
        Self {
            frame_bytes_max: 131_072,
            channels_max: 2047,
            heartbeat_s: 60,
            message_bytes_max: 16 << 20,
            consumers_max: 10_000,
            transaction_bytes_max: 32 << 20,
            contents: ContentMemory::new(128 << 20),
            users: Arc::new(Users::from_iter([guest().local()])),
            grants: None,
        }
    }
}
