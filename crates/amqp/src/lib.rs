//! AMQP 0-9-1 as RabbitMQ speaks it: the specification with RabbitMQ's errata and extensions.
//!
//! Bytes in, broker calls, bytes out: sockets and the clock are the server's.
//!
//! ```text
//! session ──▶ host (exchanges, queues, exclusive use) ──▶ broker (topics, subscriptions)
//!    │           └─▶ routing (from exchange and key to queues), queue_arguments
//!    └─▶ wire (frames, methods, tables), message (how a message is stored in a record)
//! ```

mod body;
mod content_memory;
pub mod exception;
pub mod host;
mod log_throttle;
mod mechanisms;
pub mod message;
mod options;
pub mod queue_arguments;
pub mod routing;
mod session;
pub mod wire;

pub use body::{Body, Pieces};
pub use content_memory::ContentMemory;
pub use mechanisms::guest;
pub use options::SessionOptions;
pub use session::{Session, SessionParts};
