//! Publishes: from the client into the queues' topics, and their confirms.

pub(super) mod batches;
pub(super) mod confirms;
pub(super) mod fan_out;
pub(super) mod route_cache;
pub(super) mod transaction;
