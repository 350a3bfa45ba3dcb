//! Load from several machines: workers that do what one coordinator says.
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
//! All share one plan, and each has other connections of it: numbers of producers are those of the
//! whole plan, so that loss, order and duplicates are checked over all machines. Times in messages
//! are the coordinator's: latency from one machine to another is as exact as the clocks were
//! compared. Counts are added up, histograms too.
//!
//! Nothing is encrypted: the token keeps strangers from using a worker, not from listening.

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

/// Why machines do not work together, in a sentence for their user.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Everybody could use the worker.
    #[error(
        "a worker at {0} lets everybody who reaches it connect to any broker: give it a --token, \
         and the coordinator the same, or let it listen on 127.0.0.1"
    )]
    NeedsToken(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The error, in the system's words.
        source: std::io::Error,
    },
    /// A worker does not work.
    #[error("worker {name}: {reason}")]
    Worker {
        /// Its address as it was given.
        name: String,
        /// The reason, in words.
        reason: String,
    },
}
