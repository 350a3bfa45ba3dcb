//! Where the proxy listens: one door for the address that the user named, and one for each that a
//! Kafka broker tells of itself or of others.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::TcpListener;
use tokio::task::spawn_local;

use super::Carries;
use crate::delay::{Alarm, Link, LinkDirection};

/// When the system has no room for another connection, it is asked again so much later.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;
/// Most doors: a cluster has fewer brokers.
const DOORS_MAX: usize = 1_024;
const BUFFER_BYTES: usize = 64 << 10;

/// What all connections of a proxy share.
#[derive(Debug)]
pub(super) struct TcpRelay {
    pub(super) link: Link,
    pub(super) carries: Carries,
    pub(super) alarm: Rc<Alarm>,
    /// From clients to brokers.
    pub(super) up: Rc<RefCell<LinkDirection>>,
    /// From brokers to clients.
    pub(super) down: Rc<RefCell<LinkDirection>>,
    /// For one read: about a millisecond's worth.
    pub(super) buffer: RefCell<Vec<u8>>,
    /// Where it listens, and where the connections go.
    doors: RefCell<Vec<(SocketAddr, SocketAddr)>>,
    /// Addresses as brokers tell them, and the doors to them; `None`: it cannot be made.
    endpoints: RefCell<HashMap<(String, u16), Option<SocketAddr>>>,
    /// A broker has told an address for which no door could be made.
    is_passed_by: Arc<AtomicBool>,
}

/// A listener for this thread's runtime.
pub(super) fn registered(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

impl TcpRelay {
    pub(super) fn new(
        link: Link,
        carries: Carries,
        alarm: Rc<Alarm>,
        door: (SocketAddr, SocketAddr),
        is_passed_by: Arc<AtomicBool>,
    ) -> Rc<TcpRelay> {
        let direction = || Rc::new(RefCell::new(link.direction()));
        Rc::new(TcpRelay {
            link,
            carries,
            alarm,
            up: direction(),
            down: direction(),
            buffer: RefCell::new(vec![0; link.piece_bytes().min(BUFFER_BYTES)]),
            doors: RefCell::new(vec![door]),
            endpoints: RefCell::default(),
            is_passed_by,
        })
    }

    /// Carries what comes to a door.
    pub(super) async fn serve(self: Rc<Self>, listener: TcpListener, upstream: SocketAddr) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => {
                    // However it ends, both sides have heard of it.
                    spawn_local(Rc::clone(&self).carry(client, upstream));
                }
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    // There are no descriptors for who waits: it is looked at later.
                    let now_ns = self.alarm.now_ns();
                    self.alarm.until(now_ns + ACCEPT_AGAIN_NS).await;
                }
            }
        }
    }

    /// Where clients reach the broker of this address; `None`: only there.
    pub(super) fn endpoint(self: &Rc<Self>, host: &str, port: u16) -> Option<(String, u16)> {
        let name = (host.to_owned(), port);
        let known = self.endpoints.borrow().get(&name).copied();
        let door = known.unwrap_or_else(|| {
            let made = self.door_to(host, port);
            let mut endpoints = self.endpoints.borrow_mut();
            // Names without end would fill the memory.
            if endpoints.len() < DOORS_MAX {
                endpoints.insert(name, made);
            }
            made
        });
        if door.is_none() {
            self.is_passed_by.store(true, Ordering::Release);
        }
        door.map(|address| (address.ip().to_string(), address.port()))
    }

    fn door_to(self: &Rc<Self>, host: &str, port: u16) -> Option<SocketAddr> {
        let resolved: Vec<SocketAddr> = (host, port).to_socket_addrs().ok()?.collect();
        let mut doors = self.doors.borrow_mut();
        let mut same = doors.iter().filter(|(_, there)| resolved.contains(there));
        if let Some((address, _)) = same.next() {
            return Some(*address);
        }
        if doors.len() >= DOORS_MAX {
            return None;
        }
        let v4 = resolved.iter().find(|address| address.is_ipv4());
        let upstream = *v4.or(resolved.first())?;
        // As clients of the first door reach that one.
        let listener = std::net::TcpListener::bind((doors.first()?.0.ip(), 0)).ok()?;
        let address = listener.local_addr().ok()?;
        let listener = registered(listener).ok()?;
        spawn_local(Rc::clone(self).serve(listener, upstream));
        doors.push((address, upstream));
        Some(address)
    }
}
