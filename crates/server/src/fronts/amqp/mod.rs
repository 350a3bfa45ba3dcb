//! AMQP: its connections, and the thread of its router.

pub(crate) mod admin;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod metrics;
pub(crate) mod router;
