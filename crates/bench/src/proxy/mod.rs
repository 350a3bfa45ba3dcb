//! A distance on one machine: a TCP proxy that holds bytes back for half a round trip each way.
//!
//! Bytes of a connection stay in order: jitter delays them and never reorders them. The bandwidth
//! is a token bucket for each direction, which all connections share. Connecting takes a round
//! trip. The end of a half and a broken connection are passed on. The bytes that are held are
//! bounded by what a network of this bandwidth and delay would hold, so that a slow reader slows
//! the writer down (backpressure).
//!
//! It carries no packets. The TCP of each side talks to the proxy, which is near. So there are no
//! retransmissions and no slow start, and Nagle's algorithm and delayed acknowledgements see no
//! distance. Where that matters, the distance has to be in the network: see
//! [`Network`](crate::network::Network).
//!
//! Each proxy has one thread, named [`PROXY_THREADS`], whose CPU time is counted apart.

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

/// Whether the proxy has to rewrite addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Bytes of any protocol, which are not looked at.
    Bytes,
    /// Kafka, whose brokers announce where to connect: the proxy announces itself instead.
    Kafka,
}

/// The proxy's observations of itself.
#[derive(Debug, Default)]
pub(super) struct ProxyObservations {
    /// How much later than planned the thread delivered bytes.
    late: Mutex<Histogram>,
    /// A broker has announced an address for which there could be no listener.
    is_passed_by: AtomicBool,
}

/// A proxy that runs until it is dropped. Its connections are reset then.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    seen: Arc<ProxyObservations>,
    _thread: DelayThread,
}

impl Proxy {
    /// Listens on `listen`, whose port may be 0, and carries connections to `upstream`.
    ///
    /// # Errors
    /// The address is taken, or the system has no resources.
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

    /// How much later than planned bytes were delivered since the last call: the distance was this
    /// much longer than asked for.
    pub(crate) fn take_late(&self) -> Histogram {
        std::mem::take(&mut *self.seen.late.lock())
    }

    /// Whether clients may reach a broker past the proxy: there could be no listener for it.
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
