//! The options of AMQP.

use std::sync::Arc;

use cloverleaf_access::{Grants, Users};

use crate::content_memory::{ContentMemory, ContentShare};
use crate::mechanisms::guest;

/// How sessions behave. The server fills it from its configuration.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Largest frame that is offered to clients, in bytes (`frame_max`).
    pub frame_bytes_max: u32,
    /// Most channels of a connection (`channel_max`).
    pub channels_max: u16,
    /// The interval of heartbeats that is offered, in seconds; 0: none.
    pub heartbeat_s: u16,
    /// Largest body of a message, in bytes (`max_message_size`).
    pub message_bytes_max: u64,
    /// Most consumers of a channel (`consumer_max_per_channel`).
    pub consumers_max: usize,
    /// Most bytes of the messages of a transaction that was not committed yet.
    pub transaction_bytes_max: usize,
    /// For messages that cannot be stored yet, of all connections together.
    pub contents: Arc<ContentMemory>,
    /// The users that may connect.
    pub users: Arc<Users>,
    /// The rights of the users; `None`: all of them.
    pub grants: Option<Arc<Grants>>,
}

impl SessionOptions {
    /// A connection's share of the memory for what cannot be stored yet: room for the largest that
    /// it may send, at least.
    pub(crate) fn content_share(&self) -> Arc<ContentShare> {
        let one = self
            .message_bytes_max
            .max(self.transaction_bytes_max as u64);
        ContentShare::new(&self.contents, one)
    }
}

impl Default for SessionOptions {
    /// RabbitMQ's defaults, where it has one.
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
