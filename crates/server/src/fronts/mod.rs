//! The protocols, a folder for each.

pub(crate) mod amqp;
pub(crate) mod kafka;
pub(crate) mod nsq;
