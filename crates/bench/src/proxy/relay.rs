//! The event loop of the proxy's thread: waits for sockets and times, and carries bytes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::connection::{LinkDirections, NextStep, ProxiedConnection};
use super::kafka::AddressRewriter;
use super::listeners::{LISTENER, ProxyListener, ProxyListeners};
use super::{Link, ProxyObservations};
use crate::clock::Clock;

/// Token of the descriptor that ends the thread.
const END: u64 = 0;
/// The two sockets of connection `id` have the tokens `4 * id + CLIENT` and `4 * id + SERVER`.
const CLIENT: u64 = 2;
const SERVER: u64 = 3;
/// Connections have higher numbers than listeners, because both kinds have timers.
const FIRST_CONNECTION: u64 = 1 << 16;
/// How long after a failed accept, as for want of descriptors, it is tried again.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;
const EVENTS: usize = 256;
const BUFFER_BYTES: usize = 64 << 10;

/// The state of the proxy's thread.
pub(super) struct Relay {
    link: Link,
    clock: Clock,
    epoll: OwnedFd,
    listeners: ProxyListeners,
    connections: HashMap<u64, ProxiedConnection>,
    last_id: u64,
    directions: LinkDirections,
    /// Connections by the time at which bytes arrive. A timer that is obsolete does no harm.
    times: BinaryHeap<Reverse<(u64, u64)>>,
    is_kafka: bool,
    seen: Arc<ProxyObservations>,
}

impl Relay {
    pub(super) fn new(
        link: Link,
        listener: ProxyListener,
        is_kafka: bool,
        (end, seen): (&OwnedFd, Arc<ProxyObservations>),
    ) -> io::Result<Relay> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            end,
            epoll::EventData::new_u64(END),
            epoll::EventFlags::IN,
        )?;
        let directions = LinkDirections {
            up: link.direction(),
            down: link.direction(),
            piece_bytes: link.piece_bytes().min(BUFFER_BYTES),
        };
        let mut listeners = ProxyListeners::default();
        listeners.open(&epoll, listener)?;
        Ok(Relay {
            link,
            clock: Clock::new(),
            epoll,
            listeners,
            connections: HashMap::new(),
            last_id: 0,
            directions,
            times: BinaryHeap::new(),
            is_kafka,
            seen,
        })
    }

    /// Runs until the thread has to end.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut busy, mut next): (HashSet<u64>, HashSet<u64>) = Default::default();
        loop {
            if self.wait(&mut events, !busy.is_empty()).is_err() {
                return;
            }
            if events.iter().any(|event| event.data.u64() == END) {
                break;
            }
            for event in events.drain(..) {
                let flags = event.flags;
                let over = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                let readable =
                    flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | over);
                let writable = flags.intersects(epoll::EventFlags::OUT | over);
                let (id, part) = (event.data.u64() / 4, event.data.u64() % 4);
                match part {
                    LISTENER => self.accept(id, &mut busy),
                    CLIENT | SERVER => {
                        if let Some(connection) = self.connections.get_mut(&id) {
                            connection.wake(part == SERVER, readable, writable);
                            busy.insert(id);
                        }
                    }
                    _ => {}
                }
            }
            let now_ns = self.clock.now_ns();
            while let Some(Reverse((due_ns, id))) = self.times.peek().copied()
                && due_ns <= now_ns
            {
                self.times.pop();
                match self.connections.get_mut(&id) {
                    Some(connection) => {
                        self.seen.late.lock().record(now_ns - due_ns);
                        connection.armed_ns = None;
                        busy.insert(id);
                    }
                    // A listener's timer, or that of a connection that has ended.
                    None => self.accept(id, &mut busy),
                }
            }
            for id in busy.drain() {
                if self.flow(id, &mut buffer) {
                    next.insert(id);
                }
            }
            std::mem::swap(&mut busy, &mut next);
        }
        for connection in self.connections.values() {
            connection.reset();
        }
    }

    /// Waits for events of sockets or for the next timer. `at_once`: a connection has work left,
    /// so it does not wait.
    fn wait(&self, events: &mut Vec<epoll::Event>, at_once: bool) -> io::Result<()> {
        let until = self.times.peek().map(|Reverse((due_ns, _))| *due_ns);
        let left_ns = until.map(|ns| ns.saturating_sub(self.clock.now_ns()));
        // The timeout of epoll_wait(2) has milliseconds, that of ppoll(2) nanoseconds.
        let time = if at_once { Some(0) } else { left_ns };
        let time = time.map(|ns| Timespec::try_from(Duration::from_nanos(ns)));
        let polled = poll(
            &mut [PollFd::new(&self.epoll, PollFlags::IN)],
            time.transpose().map_err(io::Error::other)?.as_ref(),
        );
        let zero = Timespec::default();
        match polled.and_then(|_| epoll::wait(&self.epoll, spare_capacity(events), Some(&zero))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self, number: u64, busy: &mut HashSet<u64>) {
        while let Some(listener) = self.listeners.get(number) {
            let upstream = listener.upstream;
            match listener.socket.accept() {
                Ok((client, _)) => {
                    // A socket for which this fails is closed.
                    if let Ok(id) = self.add(client, upstream) {
                        busy.insert(id);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    // There are no descriptors for the clients that wait: it is tried again later.
                    let later_ns = self.clock.now_ns() + ACCEPT_AGAIN_NS;
                    self.times.push(Reverse((later_ns, number)));
                    return;
                }
            }
        }
    }

    fn add(&mut self, client: TcpStream, upstream: SocketAddr) -> io::Result<u64> {
        client.set_nonblocking(true)?;
        client.set_nodelay(true)?;
        self.last_id += 1;
        let id = FIRST_CONNECTION + self.last_id;
        self.watch(&client, 4 * id + CLIENT)?;
        let exchange = self.is_kafka.then(AddressRewriter::default);
        let times = (
            self.clock.now_ns(),
            self.link.rtt_ns(),
            self.link.room_bytes(),
        );
        self.connections.insert(
            id,
            ProxiedConnection::new(client, upstream, exchange, times),
        );
        Ok(id)
    }

    fn watch(&self, stream: &TcpStream, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            stream,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    /// Reads and writes a connection's sockets. `true`: it has more to do at once.
    fn flow(&mut self, id: u64, buffer: &mut [u8]) -> bool {
        let Some(mut connection) = self.connections.remove(&id) else {
            return false;
        };
        loop {
            let clock = self.clock;
            let (listeners, epoll) = (&mut self.listeners, &self.epoll);
            let seen = &self.seen;
            let mut endpoint = |host: &str, port| {
                let listener = listeners.endpoint(epoll, host, port);
                if listener.is_none() {
                    seen.is_passed_by.store(true, Ordering::Release);
                }
                listener
            };
            let after = connection.flow(
                &mut self.directions,
                &|| clock.now_ns(),
                buffer,
                &mut endpoint,
            );
            match after {
                NextStep::Over => return false,
                NextStep::Again => {
                    self.connections.insert(id, connection);
                    return true;
                }
                NextStep::Wait(until_ns) => {
                    if let Some(ns) = until_ns
                        && connection.armed_ns.is_none_or(|armed_ns| ns < armed_ns)
                    {
                        connection.armed_ns = Some(ns);
                        self.times.push(Reverse((ns, id)));
                    }
                    self.connections.insert(id, connection);
                    return false;
                }
                NextStep::Connect => {
                    let watched = match connection.connect() {
                        Ok(server) => self.watch(server, 4 * id + SERVER),
                        Err(error) => Err(error),
                    };
                    if watched.is_err() {
                        connection.reset();
                        return false;
                    }
                }
            }
        }
    }
}
