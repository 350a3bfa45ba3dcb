//! The proxy's listeners: one for the address that the user named, and one for each address that a
//! Kafka broker announces.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;

use rustix::event::epoll;

/// The listener with the number `number` has the token `4 * number + LISTENER`.
pub(super) const LISTENER: u64 = 1;
/// Maximum of listeners: a cluster has fewer brokers.
const LISTENERS_MAX: usize = 1_024;

/// A listening socket, and the broker to which its connections go.
pub(super) struct ProxyListener {
    pub(super) socket: TcpListener,
    pub(super) upstream: SocketAddr,
}

/// All listeners; a listener's number is its index.
#[derive(Default)]
pub(super) struct ProxyListeners {
    listeners: Vec<ProxyListener>,
    /// Listeners by the address that a broker announced. `None`: one could not be made.
    endpoints: HashMap<(String, u16), Option<SocketAddr>>,
}

impl ProxyListeners {
    pub(super) fn get(&self, number: u64) -> Option<&ProxyListener> {
        self.listeners.get(usize::try_from(number).ok()?)
    }

    /// Adds a listener. Returns its address.
    pub(super) fn open(
        &mut self,
        epoll: &OwnedFd,
        listener: ProxyListener,
    ) -> std::io::Result<SocketAddr> {
        listener.socket.set_nonblocking(true)?;
        let address = listener.socket.local_addr()?;
        let token = epoll::EventData::new_u64(4 * self.listeners.len() as u64 + LISTENER);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(epoll, &listener.socket, token, flags)?;
        self.listeners.push(listener);
        Ok(address)
    }

    /// Where clients reach the broker at this address through the proxy; `None`: they cannot.
    pub(super) fn endpoint(
        &mut self,
        epoll: &OwnedFd,
        host: &str,
        port: u16,
    ) -> Option<(String, u16)> {
        let name = (host.to_owned(), port);
        let known = self.endpoints.get(&name).copied();
        let address = known.unwrap_or_else(|| {
            let made = self.make(epoll, host, port);
            // A broker could announce names without end.
            if self.endpoints.len() < LISTENERS_MAX {
                self.endpoints.insert(name, made);
            }
            made
        })?;
        Some((address.ip().to_string(), address.port()))
    }

    fn make(&mut self, epoll: &OwnedFd, host: &str, port: u16) -> Option<SocketAddr> {
        let resolved: Vec<SocketAddr> = (host, port).to_socket_addrs().ok()?.collect();
        let same = |listener: &&ProxyListener| resolved.contains(&listener.upstream);
        if let Some(listener) = self.listeners.iter().find(same) {
            return listener.socket.local_addr().ok();
        }
        if self.listeners.len() >= LISTENERS_MAX {
            return None;
        }
        // Clients reach the address of the first listener.
        let here = self.listeners.first()?.socket.local_addr().ok()?;
        let v4 = resolved.iter().find(|address| address.is_ipv4());
        let upstream = *v4.or(resolved.first())?;
        let socket = TcpListener::bind((here.ip(), 0)).ok()?;
        self.open(epoll, ProxyListener { socket, upstream }).ok()
    }
}
