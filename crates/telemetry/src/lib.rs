//! Per-connection telemetry: what the broker measures of each of its clients.
//!
//! A session has one [`Probe`] and reports to it bytes, requests, answers, deliveries and
//! acknowledgements. One thread writes a probe and any thread reads it: recording is a relaxed load
//! and a store, without lock, syscall or hash look-up. The [`Registry`] lists the probes of all
//! open connections and keeps the totals of the closed ones; its [`Snapshot`] is plain data, which
//! `/metrics` renders and the doctor reads.
//!
//! Limits: this crate knows nothing of protocols beyond the [`Protocol`] tag, has no clock (the
//! caller passes microseconds of any monotonic clock) and opens no socket. The only history that it
//! keeps is for the timeline: [`Lane`]s of bounded length, in bounded memory, sampled above a rate.

mod about;
mod ack_latencies;
mod counters;
mod exchanges;
mod histogram;
mod identity;
mod lane;
mod probe;
mod prometheus;
mod protocol;
mod registry;
mod rounds;
mod snapshot;
mod tcp_info;

pub use ack_latencies::AckLatencies;
pub use counters::Counters;
pub use exchanges::{Exchange, ExchangeKind, ExchangesSnapshot, Topics};
pub use histogram::{Histogram, HistogramSnapshot};
pub use identity::Identity;
pub use lane::{
    LANE_PIECES_MAX, LANES_BYTES_MAX, Lane, LaneMemory, RateLimit, pieces_per_second_max,
};
pub use probe::{Probe, Recorder};
pub use prometheus::{MetricKind, MetricText, render};
pub use protocol::{Batching, Compression, Protocol, Traits};
pub use registry::{KnownConnection, Registry};
pub use snapshot::{
    ClosedConnection, ConnectionSnapshot, Gauges, Histograms, ProtocolTotals, Snapshot,
};
pub use tcp_info::TcpInfo;
