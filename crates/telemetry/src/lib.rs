//! What the broker knows about each of its clients.
//!
//! A session holds one [`Probe`] per connection and tells it what it sees: bytes, requests,
//! answers, deliveries, acknowledgements. A probe is written by one thread and read by any:
//! recording is a relaxed load and a store, without lock, syscall or hash look-up. The
//! [`Registry`] lists the probes of all open connections and keeps the totals of the closed ones;
//! its [`Snapshot`] is plain data, which `/metrics` renders and the doctor reads.
//!
//! What it is not: it knows nothing of protocols beyond the [`Protocol`] tag, has no clock (the
//! caller passes microseconds of any monotonic clock), opens no socket and keeps no history.

mod counters;
mod histogram;
mod identity;
mod probe;
mod prometheus;
mod protocol;
mod registry;
mod snapshot;
mod tcp_info;

pub use counters::Counters;
pub use histogram::{Histogram, HistogramSnapshot};
pub use identity::Identity;
pub use probe::{Probe, Recorder};
pub use prometheus::{MetricKind, MetricText, render};
pub use protocol::Protocol;
pub use registry::Registry;
pub use snapshot::{
    ClosedConnection, ConnectionSnapshot, Gauges, Histograms, ProtocolTotals, Snapshot,
};
pub use tcp_info::TcpInfo;
