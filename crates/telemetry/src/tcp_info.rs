//! The kernel's view of a connection.

use serde::{Deserialize, Serialize};

/// The fields of Linux's `TCP_INFO` that explain a slow client. Filled by the server on demand,
/// never on the hot path; all zero if the kernel does not report them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpInfo {
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u32,
    /// The minimum round-trip time of the last minutes, in microseconds; 0 if the kernel does not
    /// report it. Delayed acknowledgements of a peer that has nothing to send raise the smoothed
    /// time, but not this one.
    pub min_rtt_us: u32,
    /// Mean deviation of the round-trip time, in microseconds.
    pub rttvar_us: u32,
    /// The receiver's own estimate of the round-trip time, in microseconds.
    pub rcv_rtt_us: u32,
    /// Segments retransmitted since the connection began.
    pub retransmits: u32,
    /// Segments believed lost at this moment.
    pub lost: u32,
    /// Segments sent and not acknowledged at this moment.
    pub unacked: u32,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Largest segment we send, in bytes.
    pub mss_bytes: u32,
    /// Milliseconds since we last sent data.
    pub last_sent_ms: u32,
    /// Milliseconds since we last received data.
    pub last_received_ms: u32,
}
