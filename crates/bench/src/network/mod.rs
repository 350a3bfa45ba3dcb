//! A distance on one machine as a network makes it: client and broker each have a network of the
//! kernel's to themselves (a namespace), with a device in it; what the kernel sends there is read
//! here, held for half a round trip, and written to the other device.
//!
//! It carries packets, so each side's own TCP has the distance before it: windows grow from small,
//! Nagle's algorithm and delayed acknowledgements cost what they cost, and `TCP_INFO` of each
//! connection shows the round trip. Where the bandwidth is limited, packets that do not fit into
//! the queue are lost and sent again.
//!
//! ```text
//! client's network                             broker's network
//!   127.0.0.2, from where it connects            127.0.0.1, where it listens
//!   127.0.0.1 is over there: rtt0 ── relay ── rtt0, over there is 127.0.0.2
//! ```
//!
//! The broker's addresses are the same on both sides, and it takes its clients for local ones, to
//! whom it may allow more than to others. Clients have to be started inside
//! ([`Network::at_client`]): connections from elsewhere do not get there, and this process's other
//! threads see nothing of it. A program of the user's may need a 127.0.0.1 of its own: then only
//! some ports of it are over there ([`Network::open_with_loopback`]). It needs the right to make
//! namespaces, which root has, and others get where user namespaces are allowed
//! ([`allow_networks`]).
//!
//! One thread named [`PROXY_THREADS`](crate::proxy::PROXY_THREADS) carries the packets. It does a
//! part of what the kernel would do for client and broker: their receiving happens when it writes.
//! So their CPU time is less than over a loopback device, and its own is no measure.

mod kernel;
mod namespace;
mod relay;
mod rtnetlink;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use namespace::allow_networks;

use crate::proxy::{DelayThread, Link};
use namespace::Namespace;

/// The devices' name, on both sides.
const DEVICE: &str = "rtt0";
/// From where clients connect.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Ethernet's packets.
const PACKET_BYTES: u32 = 1_500;
/// Packets that may wait to be carried, though windows grow in leaps: the default would lose some.
const PACKETS_WAITING_MAX: u32 = 10_000;
/// A first connection takes no longer than this and some round trips. Long enough for a busy
/// machine, which is no reason to measure by the proxy.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_ROUND_TRIPS: u32 = 10;

/// The table of routes to the broker, if only some ports are there.
const FAR_TABLE: u8 = 100;
/// It is asked before own addresses are.
const FAR_PRIORITY: u32 = 5;
const OWN_PRIORITY: u32 = 10;

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Namespaces are forbidden.
    #[error(
        "this machine lets it make no network namespace ({0}): root may, and others where user \
         namespaces are allowed"
    )]
    Namespace(io::Error),
    /// There are no TUN devices.
    #[error("it can make no device with /dev/net/tun ({0})")]
    Device(io::Error),
    /// The devices cannot be set up.
    #[error("its devices cannot be set up ({0})")]
    SetUp(io::Error),
    /// It was made, and does not work.
    #[error("nothing comes through ({0})")]
    Broken(io::Error),
}

/// Two sides with a distance between them, until this is dropped.
#[derive(Debug)]
pub struct Network {
    // First, so that it ends first: it has the devices.
    _relay: DelayThread,
    client: Namespace,
    broker: Namespace,
    link: Link,
    rtt: Duration,
}

impl Network {
    /// Makes it, and looks whether it works.
    ///
    /// # Errors
    /// The machine does not let it.
    pub fn open(link: &Link) -> Result<Network, NetworkError> {
        Network::make(link, &[])
    }

    /// The same for a client that needs a loopback device: of 127.0.0.1 these ports alone are the
    /// broker's, for TCP; the others are its own.
    ///
    /// # Errors
    /// The machine does not let it.
    pub fn open_with_loopback(link: &Link, ports: &[u16]) -> Result<Network, NetworkError> {
        Network::make(link, ports)
    }

    /// Without ports all of them are the broker's.
    fn make(link: &Link, ports: &[u16]) -> Result<Network, NetworkError> {
        let client = Namespace::new().map_err(NetworkError::Namespace)?;
        let broker = Namespace::new().map_err(NetworkError::Namespace)?;
        // A narrow line carries packets one by one, not 64 KiB at once.
        let has_segments = link.bandwidth.is_none();
        let device = |side: &Namespace| -> Result<OwnedFd, NetworkError> {
            let made = side.run(|| kernel::tun(DEVICE, has_segments));
            made.flatten().map_err(NetworkError::Device)
        };
        let devices = [device(&client)?, device(&broker)?];
        let up = || -> io::Result<u32> {
            let index = rtnetlink::index_of(DEVICE)?;
            rtnetlink::device_up(index, PACKET_BYTES, PACKETS_WAITING_MAX)?;
            Ok(index)
        };
        let set_up = client.run(|| {
            let index = up()?;
            rtnetlink::add_address(index, CLIENT)?;
            let to_broker =
                |table: u8| rtnetlink::add_route(Ipv4Addr::LOCALHOST, index, Some(CLIENT), table);
            if ports.is_empty() {
                return to_broker(libc::RT_TABLE_MAIN);
            }
            rtnetlink::loopback_up_as_usual()?;
            to_broker(FAR_TABLE)?;
            for port in ports {
                rtnetlink::add_rule_of_port(*port, FAR_TABLE, FAR_PRIORITY)?;
            }
            rtnetlink::move_rule_of_own_addresses(OWN_PRIORITY)
        });
        set_up.flatten().map_err(NetworkError::SetUp)?;
        let set_up = broker.run(|| {
            rtnetlink::loopback_up(Ipv4Addr::LOCALHOST)?;
            rtnetlink::add_route(CLIENT, up()?, None, libc::RT_TABLE_MAIN)
        });
        set_up.flatten().map_err(NetworkError::SetUp)?;
        let relay = relay::start(link, devices).map_err(NetworkError::SetUp)?;
        let mut network = Network {
            _relay: relay,
            client,
            broker,
            link: *link,
            rtt: Duration::ZERO,
        };
        let round_trip = link.rtt.saturating_add(link.jitter.saturating_mul(2));
        let most = PATIENCE.saturating_add(round_trip.saturating_mul(PATIENCE_ROUND_TRIPS));
        network.rtt = network
            .try_out(most, ports.first().copied())
            .map_err(NetworkError::Broken)?;
        Ok(network)
    }

    /// Does something on the client's side, on a thread of its own. Threads and processes that it
    /// makes are on that side, too, and sockets stay there, whoever uses them.
    ///
    /// # Errors
    /// The system does not let it.
    pub fn at_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        self.client.run(work)
    }

    /// As [`Network::at_client`], on the broker's side.
    ///
    /// # Errors
    /// The system does not let it.
    pub fn at_broker<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        self.broker.run(work)
    }

    /// The round trip as the kernel on the broker's side has measured it when this was made.
    pub fn rtt(&self) -> Duration {
        self.rtt
    }

    /// The distance.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Makes a connection, and asks its kernel for the round trip.
    fn try_out(&self, most: Duration, port: Option<u16>) -> io::Result<Duration> {
        let begun = Instant::now();
        let there = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or_default()));
        let listener = self.at_broker(|| TcpListener::bind(there)).flatten()?;
        let address = listener.local_addr()?;
        let connect = || TcpStream::connect_timeout(&address, most);
        let _client = self.at_client(connect).flatten()?;
        // The client's word that it has heard the broker's is still on its way.
        let left = most.saturating_sub(begun.elapsed());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&left))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => kernel::rtt(listener.accept()?.0.as_fd()),
        }
    }
}
