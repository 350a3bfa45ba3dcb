//! Deliveries: from a queue's consumers to the client, and back as acknowledgements.

pub(super) mod consumers;
pub(super) mod settlement;
pub(super) mod slots;
mod wakeups;
pub(super) mod writer;
