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

mod distant;
mod doors;
mod kafka;
mod line;
mod link;
mod pair;
mod relay;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

pub use distant::connect_over;
pub(crate) use line::Way;
pub use link::{Bandwidth, BandwidthError, Link};

use crate::histogram::Histogram;
use doors::Door;
use relay::Relay;

/// The name of the proxy's threads.
pub const PROXY_THREADS: &str = "bench-proxy";

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
pub(super) struct SelfSeen {
    /// How much later than it should the thread looked at what was due.
    late: Mutex<Histogram>,
    /// A broker has told an address for which no door could be made.
    is_passed_by: AtomicBool,
}

/// A proxy that works until it is dropped. Connections that it carries are reset then.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    wake: Arc<OwnedFd>,
    ended: Arc<AtomicBool>,
    seen: Arc<SelfSeen>,
    thread: Option<JoinHandle<()>>,
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
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ended = Arc::new(AtomicBool::new(false));
        let door = Door { listener, upstream };
        let is_kafka = carries == Carries::Kafka;
        let seen = Arc::new(SelfSeen::default());
        let relay = Relay::new(link, door, is_kafka, (&wake, ended.clone(), seen.clone()))?;
        let thread = std::thread::Builder::new().name(PROXY_THREADS.to_owned());
        Ok(Proxy {
            address,
            wake,
            ended,
            seen,
            thread: Some(thread.spawn(move || relay.run())?),
        })
    }

    /// How much later than it should it has looked at what was due, since this was asked last: so
    /// much longer was the distance than it was to be.
    pub(super) fn take_late(&self) -> Histogram {
        std::mem::take(&mut *self.seen.late.lock())
    }

    /// Whether clients may reach a broker without it: no door could be made for it.
    pub(super) fn is_passed_by(&self) -> bool {
        self.seen.is_passed_by.load(Ordering::Acquire)
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The counter has room for this one.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // If it has panicked, it has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
