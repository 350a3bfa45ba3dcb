//! The Kafka protocol, as Kafka 4 brokers speak it, for clients from librdkafka 1.x on.
//!
//! Bytes in, broker calls, bytes out: this crate has no socket and no clock, the server has both.
//! It knows the broker, the log's batches and the telemetry, and no other protocol.
//!
//! The way of a record batch in: [`frame`] finds a request in the read buffer, `produce` checks its
//! batches where they lie and hands them to the topic. The way out: `fetch` puts stored batches
//! beside the output, by reference. Everything else is the control plane: requests are read by
//! [`wire::Reader`], which believes no length, and answers are written by the library
//! `kafka-protocol`.

mod answer;
mod answers;
mod api_versions;
pub mod apis;
pub mod context;
pub mod control;
pub mod error_code;
mod fetch;
pub mod frame;
pub mod groups;
pub mod options;
mod produce;
pub mod session;
mod topic_ref;
pub mod wire;
mod wire_out;

pub use context::{KafkaContext, Worker};
pub use fetch::{Readers, Reading};
pub use options::KafkaOptions;
pub use session::{Session, SessionParts};
