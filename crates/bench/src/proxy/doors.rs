//! Where the proxy listens: one door for the address that the user named, and one for each that a
//! Kafka broker tells of itself or of others.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;

use rustix::event::epoll;

/// Door `number` has the token `4 * number + DOOR`.
pub(super) const DOOR: u64 = 1;
/// Most doors: a cluster has fewer brokers.
const DOORS_MAX: usize = 1_024;

/// A listener, and where its connections go.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) upstream: SocketAddr,
}

/// All of them, each with its number.
#[derive(Default)]
pub(super) struct Doors {
    doors: Vec<Door>,
    /// Addresses as brokers tell them, and the doors to them; `None`: it cannot be made.
    endpoints: HashMap<(String, u16), Option<SocketAddr>>,
}

impl Doors {
    /// The door of this number.
    pub(super) fn get(&self, number: u64) -> Option<&Door> {
        self.doors.get(usize::try_from(number).ok()?)
    }

    /// Adds a door; gives where it is.
    pub(super) fn open(&mut self, epoll: &OwnedFd, door: Door) -> std::io::Result<SocketAddr> {
        door.listener.set_nonblocking(true)?;
        let address = door.listener.local_addr()?;
        let token = epoll::EventData::new_u64(4 * self.doors.len() as u64 + DOOR);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(epoll, &door.listener, token, flags)?;
        self.doors.push(door);
        Ok(address)
    }

    /// Where clients reach the broker of this address; `None`: only there.
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
            // Names without end would fill the memory.
            if self.endpoints.len() < DOORS_MAX {
                self.endpoints.insert(name, made);
            }
            made
        })?;
        Some((address.ip().to_string(), address.port()))
    }

    fn make(&mut self, epoll: &OwnedFd, host: &str, port: u16) -> Option<SocketAddr> {
        let resolved: Vec<SocketAddr> = (host, port).to_socket_addrs().ok()?.collect();
        let same = |door: &&Door| resolved.contains(&door.upstream);
        if let Some(door) = self.doors.iter().find(same) {
            return door.listener.local_addr().ok();
        }
        if self.doors.len() >= DOORS_MAX {
            return None;
        }
        // As clients of the first door reach that one.
        let here = self.doors.first()?.listener.local_addr().ok()?;
        let v4 = resolved.iter().find(|address| address.is_ipv4());
        let upstream = *v4.or(resolved.first())?;
        let listener = TcpListener::bind((here.ip(), 0)).ok()?;
        self.open(epoll, Door { listener, upstream }).ok()
    }
}
