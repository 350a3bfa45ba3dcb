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

mod connection;
mod kafka;
mod relay;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::delay::{DelayThread, Link};
use crate::histogram::Histogram;
use relay::TcpRelay;

/// Whether the proxy has to exchange addresses on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Bytes of any protocol: none is looked at.
    Bytes,
    /// Kafka, whose brokers tell clients where to connect: they are told of the proxy instead.
    Kafka,
}

/// A proxy that works until it is dropped. Connections that it carries are reset then.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    is_passed_by: Arc<AtomicBool>,
    thread: DelayThread,
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
        let listener = TcpListener::bind(listen)?;
        let address = listener.local_addr()?;
        let is_passed_by = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_passed_by);
        let register = || relay::registered(listener);
        let thread = DelayThread::start(register, move |listener, alarm| {
            let door = (address, upstream);
            TcpRelay::new(link, carries, alarm, door, told).serve(listener, upstream)
        })?;
        Ok(Proxy {
            address,
            is_passed_by,
            thread,
        })
    }

    /// How late it was, see [`DelayThread::take_late`].
    pub(crate) fn take_late(&self) -> Histogram {
        self.thread.take_late()
    }

    /// Whether clients may reach a broker without it: no door could be made for it.
    pub(crate) fn is_passed_by(&self) -> bool {
        self.is_passed_by.load(Ordering::Acquire)
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
