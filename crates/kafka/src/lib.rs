//! The Kafka protocol, as Kafka 4 brokers speak it, for clients from librdkafka 1.x on.
//!
//! Bytes in, broker calls, bytes out: this crate has no socket and no clock, the server has both.
//! It knows the broker, the log's batches and the telemetry, and no other protocol.
//!
//! Ingress: [`frame`] finds a request in the read buffer; `produce` validates its record batches in
//! place and appends them to the topic's partitions. Egress: `fetch` adds stored batches to the
//! output by reference, without a copy. Everything else is the control plane: [`wire::Reader`]
//! decodes the requests and checks each length against the bytes that have arrived; the library
//! `kafka-protocol` encodes the answers.

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
pub use fetch::{FetchPositions, FetchedPartition};
pub use options::KafkaOptions;
pub use session::{Session, SessionParts};
