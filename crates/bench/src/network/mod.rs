//! A distance on one machine, made of packets: client and broker each have a network namespace with
//! a TUN device in it. Packets that the kernel sends to a device are read here, held for half a
//! round trip, and written to the other device.
//!
//! The TCP of each side sees the distance: slow start, Nagle's algorithm and delayed
//! acknowledgements have their usual cost, and `TCP_INFO` of each connection shows the round trip.
//! Where the bandwidth is limited, packets that do not fit into the queue are dropped and
//! retransmitted.
//!
//! ```text
//! client's network                             broker's network
//!   127.0.0.2, from where it connects            127.0.0.1, where it listens
//!   127.0.0.1 is over there: rtt0 ── relay ── rtt0, over there is 127.0.0.2
//! ```
//!
//! The broker's addresses are the same on both sides. The broker sees its clients as local ones,
//! which may have more rights than remote ones. Clients have to be started inside
//! ([`Network::at_client`]): connections from elsewhere do not reach the broker, and the other
//! threads of this process are not in the namespaces. A user's program may need a 127.0.0.1 of its
//! own. Then only some of its ports lead to the broker ([`Network::open_with_loopback`]). A process
//! needs the right to make namespaces, which root has. Others get it where user namespaces are
//! allowed ([`allow_networks`]).
//!
//! One thread named [`PROXY_THREADS`](crate::proxy::PROXY_THREADS) carries the packets. The kernel
//! processes a packet's receipt within the thread's write. So client and broker need less CPU time
//! than over a loopback device, and the CPU time of this thread says nothing.

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

/// The name of the device on either side.
const DEVICE: &str = "rtt0";
/// The address from which clients connect.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The maximum of a packet, as on Ethernet.
const PACKET_BYTES: u32 = 1_500;
/// Length of a device's queue. The default drops packets when a TCP window grows in leaps.
const PACKETS_WAITING_MAX: u32 = 10_000;
/// Time for a first connection, beside some round trips. It suffices on a busy machine, which is no
/// reason to fall back to the proxy.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_ROUND_TRIPS: u32 = 10;

/// The routing table of the ports that lead to the broker, if only some do.
const FAR_TABLE: u8 = 100;
/// The rules for these ports precede the rule for local addresses.
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
    /// The network was made, and carries nothing.
    #[error("nothing comes through ({0})")]
    Broken(io::Error),
}

/// Two sides with a distance between them, which exist until this is dropped.
#[derive(Debug)]
pub struct Network {
    // The first field is dropped first: the thread has the devices.
    _relay: DelayThread,
    client: Namespace,
    broker: Namespace,
    link: Link,
    rtt: Duration,
}

impl Network {
    /// Makes a network, and checks that it carries a connection.
    ///
    /// # Errors
    /// The machine does not let it.
    pub fn open(link: &Link) -> Result<Network, NetworkError> {
        Network::make(link, &[])
    }

    /// A network for a client that needs a loopback device. Only these TCP ports of 127.0.0.1 lead
    /// to the broker; the others are the client's own.
    ///
    /// # Errors
    /// The machine does not let it.
    pub fn open_with_loopback(link: &Link, ports: &[u16]) -> Result<Network, NetworkError> {
        Network::make(link, ports)
    }

    /// Without `ports`, all ports lead to the broker.
    fn make(link: &Link, ports: &[u16]) -> Result<Network, NetworkError> {
        let client = Namespace::new().map_err(NetworkError::Namespace)?;
        let broker = Namespace::new().map_err(NetworkError::Namespace)?;
        // With a bandwidth, packets are carried one by one, not in segments of 64 KiB.
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

    /// Calls `work` on the client's side, on a thread of its own. Threads and processes that it
    /// starts are on that side, too. Sockets stay there, whichever thread uses them.
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

    /// The round trip that the kernel on the broker's side measured when this was made.
    pub fn rtt(&self) -> Duration {
        self.rtt
    }

    /// The distance.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Makes a connection. Returns the round trip that the kernel measured.
    fn try_out(&self, most: Duration, port: Option<u16>) -> io::Result<Duration> {
        let begun = Instant::now();
        let there = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or_default()));
        let listener = self.at_broker(|| TcpListener::bind(there)).flatten()?;
        let address = listener.local_addr()?;
        let connect = || TcpStream::connect_timeout(&address, most);
        let _client = self.at_client(connect).flatten()?;
        // The last packet of the handshake is still on its way.
        let left = most.saturating_sub(begun.elapsed());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&left))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => kernel::rtt(listener.accept()?.0.as_fd()),
        }
    }
}
