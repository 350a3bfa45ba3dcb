//! NSQ: its TCP protocol V2, its HTTP API and its lookup protocol, as nsqd 1.3 has them.
//!
//! Bytes in, broker calls and bytes out: this crate has no socket and no clock, the server has
//! both. It knows the broker, the log's batches and the telemetry, and no other protocol.
//!
//! A message's way in: [`codec::parse_command`] finds a PUB in the read buffer, the session's
//! publishing half copies its body into a batch, and the batch is published to the topic. Its way
//! out: the consuming half encodes the records of a delivery into the output buffer.

mod answers;
pub mod authorization;
pub mod codec;
mod commands;
mod compressible;
mod consuming;
pub mod definitions;
pub mod error;
pub mod frame;
pub mod http;
pub mod identify;
pub mod lookup;
pub mod message_id;
pub mod names;
pub mod options;
mod publishing;
mod sampling;
pub mod session;
pub mod stats;

pub use error::{Code, ProtocolError};
pub use options::{COMPATIBLE_VERSION, SessionOptions};
pub use session::{DriverTask, Session, SessionParts};
