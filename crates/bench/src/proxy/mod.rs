//! A distance on one machine: a TCP proxy that holds bytes back for half a round trip each way.
//!
//! What it is like: each connection is carried in order; jitter delays, and never overtakes;
//! bandwidth is one bucket of tokens for each direction, which all connections share; a connection
//! takes a round trip to be made; the end of one half is passed on, and a broken connection too.
//! What waits is bounded by what a network of this bandwidth and delay would hold, so that a slow
//! reader is felt by the writer.
//!
//! What it is not: packets. The kernel on each side talks to the proxy at once, so nothing is lost
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

use rustix::event::{EventfdFlags, eventfd};

pub use distant::connect_over;
pub(crate) use line::Way;
pub use link::{Bandwidth, BandwidthError, Link};

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

/// A proxy that works until it is dropped. Connections that it carries are reset then.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    wake: Arc<OwnedFd>,
    ended: Arc<AtomicBool>,
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
        let relay = Relay::new(link, door, is_kafka, (&wake, ended.clone()))?;
        let thread = std::thread::Builder::new().name(PROXY_THREADS.to_owned());
        Ok(Proxy {
            address,
            wake,
            ended,
            thread: Some(thread.spawn(move || relay.run())?),
        })
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
