//! Kafka: its connections, its groups, and the threads for what may block.

pub(crate) mod admin;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod doctor;
pub(crate) mod groups;
pub(crate) mod metrics;
pub(crate) mod worker;
