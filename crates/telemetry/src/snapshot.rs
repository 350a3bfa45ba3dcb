//! Telemetry as plain data: what `/metrics` renders and the doctor reads.
//!
//! Later versions read recorded snapshots: a field that is added needs a default.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{Counters, HistogramSnapshot, Identity, Protocol, TcpInfo};

/// Current values, in contrast to counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gauges {
    /// Requests received and not answered yet.
    pub requests_in_flight: u64,
    /// Maximum number of requests in flight at once, since the connection was opened.
    pub requests_in_flight_max: u64,
    /// Messages that the client is willing to have in flight.
    pub credit_granted: u64,
    /// Messages that the client has in flight.
    pub credit_used: u64,
    /// Since when messages wait while the client has no credit, on the broker's monotonic clock; 0
    /// if none wait.
    pub no_credit_since_us: u64,
    /// Since when the client has messages in flight, on the same clock; 0 if it has none.
    pub holding_since_us: u64,
    /// Microseconds from the latest delivery to a client with nothing in flight to the next
    /// acknowledgement; 0 before the first. No other acknowledgement was queued before this one on
    /// its way.
    pub first_ack_us: u64,
}

macro_rules! histograms {
    ($($(#[doc = $help:literal])+ $name:ident,)+) => {
        /// The distributions of one connection, or of a protocol's connections together.
        ///
        /// If a connection has more than a thousand rounds a second, only one round in sixteen is
        /// measured, with the weight of all sixteen. Then `request_gap_us`, `service_us` and
        /// `record_age_us` are estimates: the number of gaps is exact, that of the other two is
        /// approximate. All other histograms are exact. Of the counters, `round_changes_us` is an
        /// estimate, the sums of squares cover the measured rounds only, and `rounds` and
        /// `rounds_us` lag by up to a hundred rounds that were passed over last. All other counters
        /// are exact.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Histograms { $($(#[doc = $help])+ pub $name: HistogramSnapshot,)+ }

        impl Histograms {
            /// Adds the counts of every histogram of `other`.
            pub fn merge(&mut self, other: &Histograms) {
                $(self.$name.merge(&other.$name);)+
            }

            /// How many histograms there are.
            pub const COUNT: usize = [$(stringify!($name)),+].len();

            /// All of them, in the order of definition.
            pub fn to_array(&self) -> [&HistogramSnapshot; Self::COUNT] {
                [$(&self.$name,)+]
            }

            /// From histograms in the order of definition.
            pub fn from_array([$($name,)+]: [HistogramSnapshot; Self::COUNT]) -> Self {
                Self { $($name,)+ }
            }

            /// Name, help text and values of each histogram.
            pub(crate) fn each(
                &self,
            ) -> impl Iterator<Item = (&'static str, &'static str, &HistogramSnapshot)> {
                [$((stringify!($name), concat!($($help),+).trim(), &self.$name),)+].into_iter()
            }
        }
    };
}

histograms! {
    /// Microseconds from the last answer sent to the first byte of the next request.
    request_gap_us,
    /// Microseconds between the first and the last byte of a request.
    request_receive_us,
    /// Microseconds from the last byte of a request to its answer, for one request at a time.
    service_us,
    /// Microseconds from the time that a request's first record bears to its arrival.
    record_age_us,
    /// Messages per publishing request.
    request_messages,
    /// Bytes per publishing request, of those that did not come in one read.
    split_request_bytes,
    /// Microseconds from the delivery of a message to its acknowledgement.
    ack_latency_us,
    /// Microseconds between the socket reads that brought acknowledgements.
    ack_gap_us,
    /// Microseconds from a delivery whose deadline had passed to its acknowledgement, of a sample
    /// of those that came too late.
    overdue_ack_us,
}

/// One open connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionSnapshot {
    /// Number of the connection; unique for the life of the broker process.
    pub id: u64,
    /// The protocol that it speaks.
    pub protocol: Protocol,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// The identity that the client gives itself.
    pub identity: Identity,
    /// When it was opened, on the broker's monotonic clock.
    pub opened_us: u64,
    /// When its client last sent something, on the same clock.
    pub last_active_us: u64,
    /// Counts since it was opened.
    pub counters: Counters,
    /// Values of this moment.
    pub gauges: Gauges,
    /// Distributions since it was opened.
    pub histograms: Histograms,
    /// The kernel's view, where it was asked for and available.
    pub tcp: Option<TcpInfo>,
}

/// A connection that was closed recently, kept to detect a client that reconnects for every
/// message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedConnection {
    /// Number of the connection.
    pub id: u64,
    /// The protocol that it spoke.
    pub protocol: Protocol,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// The identity that the client gave itself.
    pub identity: Identity,
    /// When it was opened, on the broker's monotonic clock.
    pub opened_us: u64,
    /// When its client last sent something, on the same clock.
    pub last_active_us: u64,
    /// Counts of its whole life.
    pub counters: Counters,
    /// Whether it was closed when a request had arrived only in part.
    pub is_inside_request: bool,
    /// The kernel's round-trip time right after accept, in microseconds; 0 if it was not fetched.
    pub young_rtt_us: u32,
    /// The histogram of the same name in [`Histograms`].
    pub request_gap_us: HistogramSnapshot,
    /// Sum over its requests of the time between first and last byte, in microseconds.
    pub receiving_us: u64,
    /// How many ages of records were measured.
    pub record_ages: u64,
    /// Sum of these ages, in microseconds; [`u64::MAX`] if it may have overflowed, because clients
    /// choose the timestamps of records.
    pub record_ages_us: u64,
}

/// The sums over all connections of a protocol, open and closed, since the broker started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolTotals {
    /// The protocol.
    pub protocol: Protocol,
    /// Connections opened.
    pub connections_opened: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Sums of the counters.
    pub counters: Counters,
    /// Merged histograms.
    pub histograms: Histograms,
}

/// The telemetry of all connections at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// When it was taken, on the broker's monotonic clock, in microseconds.
    pub taken_us: u64,
    /// One entry per protocol that had a connection, in the order of [`Protocol::ALL`].
    pub totals: Vec<ProtocolTotals>,
    /// Open connections, by id.
    pub connections: Vec<ConnectionSnapshot>,
    /// Recently closed connections, oldest first; bounded.
    pub closed: Vec<ClosedConnection>,
}
