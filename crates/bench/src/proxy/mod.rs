//! A distance on one machine: a TCP proxy that holds bytes back for half a round trip each way.
//!
//! Each connection is carried in order; jitter delays, and never overtakes; bandwidth is one bucket
//! of tokens for each direction, which all connections share; a connection takes a round trip to be
//! made; the end of one half is passed on, and a broken connection too. Bytes on their way are
//! bounded by what a network of this bandwidth and delay would hold, so that a slow reader is felt
//! by the writer (backpressure).
//!
//! It carries no packets. The kernel on each side talks to the proxy at once, so nothing is lost
//! and sent again, no window grows from small, and Nagle's algorithm and delayed acknowledgements
//! see no distance. Where that matters, the distance has to be in the network: see
//! [`Network`](crate::network::Network).
//!
//! One thread, named [`PROXY_THREADS`]; its cost is no broker's and no client's.

mod connection;
mod delay;
mod kafka;
mod link;
mod listeners;
mod relay;
mod thread;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub(crate) use delay::LinkDirection;
pub use link::{Bandwidth, BandwidthError, Link};
pub(crate) use thread::DelayThread;
pub use thread::PROXY_THREADS;

use crate::histogram::Histogram;
use listeners::ProxyListener;
use relay::Relay;

/// Whether the proxy has to exchange addresses on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Bytes of any protocol: none is looked at.
    Bytes,
    /// Kafka, whose brokers tell clients where to connect: they are told of the proxy instead.
    Kafka,
}

/// The proxy's observations of itself.
#[derive(Debug, Default)]
pub(super) struct ProxyObservations {
    /// How much later than it should the thread looked at what was due.
    late: Mutex<Histogram>,
    /// A broker has told an address for which no door could be made.
    is_passed_by: AtomicBool,
}

/// A proxy that works until it is dropped. Connections that it carries are reset then.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    seen: Arc<ProxyObservations>,
    _thread: DelayThread,
}

impl Proxy {
    /// Begins to listen on `listen`, whose port may be 0, and carries what comes to `upstream`.
    ///
    /// # Errors
    /// The address is taken, or the system has no room.
    pub fn start(
        link: Link,
        carries: Carries,
        listen: SocketAddr,
        upstream: SocketAddr,
    ) -> std::io::Result<Proxy> {
        let socket = TcpListener::bind(listen)?;
        let address = socket.local_addr()?;
        let listener = ProxyListener { socket, upstream };
        let is_kafka = carries == Carries::Kafka;
        let seen = Arc::new(ProxyObservations::default());
        let thread = DelayThread::start(|end| {
            let relay = Relay::new(link, listener, is_kafka, (end, seen.clone()))?;
            Ok(move |_: &OwnedFd| relay.run())
        })?;
        Ok(Proxy {
            address,
            seen,
            _thread: thread,
        })
    }

    /// How much later than it should it has looked at what was due, since this was asked last: so
    /// much longer was the distance than it was to be.
    pub(crate) fn take_late(&self) -> Histogram {
        std::mem::take(&mut *self.seen.late.lock())
    }

    /// Whether clients may reach a broker without it: no door could be made for it.
    pub(crate) fn is_passed_by(&self) -> bool {
        self.seen.is_passed_by.load(Ordering::Acquire)
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
