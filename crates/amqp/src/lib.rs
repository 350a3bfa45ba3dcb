//! AMQP 0-9-1 as RabbitMQ speaks it: the specification with RabbitMQ's errata and extensions.
//!
//! Bytes in, broker calls, bytes out: this crate has no socket and no clock, the server has both.
//! Some parts know no broker: the wire format ([`wire`]), to which queues a message goes
//! ([`routing`]), a queue's arguments ([`queue_arguments`]), and what ends channels and connections
//! ([`exception`]). The virtual host ([`host`]) has the exchanges, queues and bindings, on the
//! broker's topics.

pub mod exception;
pub mod host;
pub mod message;
pub mod queue_arguments;
pub mod routing;
pub mod wire;
