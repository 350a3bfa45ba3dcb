//! Load from several machines: workers that one coordinator controls.
//!
//! ```text
//! coordinator                                     worker
//!   Hello version, token ──────────────────────────►
//!   ◄─────────────────────────── Welcome conditions │ Refused
//!   Time ──────────────────────────────────────────►    often, to compare the clocks
//!   ◄──────────────────────────────────────── Time
//!   Prepare its part of the plan ──────────────────►
//!   ◄──────────────────────────────────────── Ready │ Failed
//!   Begin at this moment ──────────────────────────►
//!   ◄──────────────────────── Standing, Live …          all the time
//!   End │ Abort ───────────────────────────────────►
//!   ◄──────────── Second …, Numbers …, Done             the report, in pieces
//! ```
//!
//! All workers share one plan, and each has a part of its connections. Producers are numbered over
//! the whole plan, so that loss, order and duplicates are checked over all machines. Times in
//! messages are by the coordinator's clock, so a latency between two machines is as exact as the
//! comparison of their clocks. Counts and histograms are added up.
//!
//! The connection is not encrypted: the token keeps strangers from using a worker, but not from
//! reading the traffic.

mod coordinator;
mod frame;
mod line;
mod member;
mod message;
mod offset;
mod shown;
mod sum;
mod worker;

use std::net::SocketAddr;

pub use coordinator::Fleet;
pub use worker::Worker;

/// Why coordinator and workers cannot work together. The text is for the user.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Without a token, everybody could use the worker.
    #[error(
        "a worker at {0} lets everybody who reaches it connect to any broker: give it a --token, \
         and the coordinator the same, or let it listen on 127.0.0.1"
    )]
    NeedsToken(SocketAddr),
    /// The worker cannot listen on the address.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A worker cannot be used.
    #[error("worker {name}: {reason}")]
    Worker {
        /// Its address as on the command line.
        name: String,
        /// The reason as a text.
        reason: String,
    },
}
