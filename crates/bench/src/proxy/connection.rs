//! One connection through the proxy: the client's socket, the broker's, and the bytes that are
//! delayed in each direction.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::delay::{DelayedBytes, End, LinkDirection};
use super::kafka::{AddressRewriter, Endpoint};

/// Maximum of bytes that are read from one connection before other connections are served.
const TURN_BYTES: usize = 256 << 10;

/// A socket of a connection, and its state.
#[derive(Debug)]
struct ProxySocket {
    stream: TcpStream,
    /// A read may succeed. Events are edge-triggered, so this stays true until a read would block.
    readable: bool,
    /// A write may succeed, until one would block.
    writable: bool,
    /// Nothing more is read from it, or written to it.
    read_over: bool,
    write_over: bool,
}

impl ProxySocket {
    fn new(stream: TcpStream) -> ProxySocket {
        ProxySocket {
            stream,
            readable: true,
            writable: true,
            read_over: false,
            write_over: false,
        }
    }
}

/// The state of a connection after [`ProxiedConnection::flow`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// It has used up its turn and has more to do: other connections are served first.
    Again,
    /// It has nothing to do before this time, or before an event of its sockets.
    Wait(Option<u64>),
    /// The caller has to connect the broker's side now.
    Connect,
    /// It has ended.
    Over,
}

/// The two directions of the link, which all connections share.
pub(super) struct LinkDirections {
    /// From clients to the broker.
    pub(super) up: LinkDirection,
    /// From the broker to clients.
    pub(super) down: LinkDirection,
    /// Maximum of bytes of one read: what the bandwidth lets through in about a millisecond.
    pub(super) piece_bytes: usize,
}

/// One connection.
#[derive(Debug)]
pub(super) struct ProxiedConnection {
    client: ProxySocket,
    server: Option<ProxySocket>,
    up: DelayedBytes,
    down: DelayedBytes,
    up_is_over: bool,
    down_is_over: bool,
    /// When the client would have received the SYN-ACK: it can send from then on.
    open_ns: u64,
    /// When the broker would have received the ACK of the handshake.
    connect_ns: u64,
    /// The broker's address.
    pub(super) upstream: SocketAddr,
    exchange: Option<AddressRewriter>,
    /// Reused for responses whose addresses are rewritten.
    scratch: Vec<u8>,
    /// The time for which the relay has a timer for this connection.
    pub(super) armed_ns: Option<u64>,
}

impl ProxiedConnection {
    /// A connection that a client has just made, with round trips of `rtt_ns`.
    pub(super) fn new(
        client: TcpStream,
        upstream: SocketAddr,
        exchange: Option<AddressRewriter>,
        (now_ns, rtt_ns, room_bytes): (u64, u64, usize),
    ) -> ProxiedConnection {
        ProxiedConnection {
            client: ProxySocket::new(client),
            server: None,
            up: DelayedBytes::new(room_bytes),
            down: DelayedBytes::new(room_bytes),
            up_is_over: false,
            down_is_over: false,
            open_ns: now_ns + rtt_ns,
            connect_ns: now_ns + rtt_ns + rtt_ns / 2,
            upstream,
            exchange,
            scratch: Vec::new(),
            armed_ns: None,
        }
    }

    /// Begins to connect to the broker.
    pub(super) fn connect(&mut self) -> std::io::Result<&TcpStream> {
        let domain = Domain::for_address(self.upstream);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&SockAddr::from(self.upstream)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let side = ProxySocket {
            // Until an event says that it is connected.
            readable: false,
            writable: false,
            ..ProxySocket::new(socket.into())
        };
        Ok(&self.server.insert(side).stream)
    }

    /// Records an event of a socket.
    pub(super) fn wake(&mut self, is_server: bool, readable: bool, writable: bool) {
        let side = if is_server {
            self.server.as_mut()
        } else {
            Some(&mut self.client)
        };
        if let Some(side) = side {
            side.readable |= readable;
            side.writable |= writable;
        }
    }

    /// Has both sockets send a reset when they are closed.
    pub(super) fn reset(&self) {
        let sides = [Some(&self.client), self.server.as_ref()];
        for side in sides.into_iter().flatten() {
            // A socket for which this fails is closed as usual.
            let _ = SockRef::from(&side.stream).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    /// Reads and writes what the sockets allow now. The clock is read after each read of a socket:
    /// with an earlier time, bytes that were sent while this thread did not run would arrive too
    /// early.
    pub(super) fn flow(
        &mut self,
        directions: &mut LinkDirections,
        now_ns: &dyn Fn() -> u64,
        buffer: &mut [u8],
        endpoint: &mut Endpoint<'_>,
    ) -> NextStep {
        let piece = directions.piece_bytes.min(buffer.len());
        let mut turn = TURN_BYTES;
        loop {
            let before = turn;
            let exchange = &mut self.exchange;
            let open_ns = self.open_ns;
            let mut pass = |line: &mut DelayedBytes, bytes: &[u8]| {
                if let Some(exchange) = exchange.as_mut() {
                    exchange.requests(bytes);
                }
                // The client cannot send before the connection is open.
                let due_ns = directions.up.due_ns(bytes.len(), now_ns().max(open_ns));
                line.put(bytes, due_ns);
                due_ns
            };
            let buffer = &mut buffer[..piece];
            turn = read(&mut self.client, &mut self.up, buffer, turn, &mut pass);
            let Some(server) = &mut self.server else {
                if now_ns() >= self.connect_ns {
                    return NextStep::Connect;
                }
                match turn < before {
                    true if turn > 0 => continue,
                    true => return NextStep::Again,
                    false => return NextStep::Wait(Some(self.connect_ns)),
                }
            };
            let scratch = &mut self.scratch;
            let mut pass = |line: &mut DelayedBytes, bytes: &[u8]| {
                let passes = match exchange.as_mut() {
                    None => bytes,
                    Some(exchange) => {
                        scratch.clear();
                        if bytes.is_empty() {
                            scratch.append(&mut exchange.rest())
                        } else {
                            exchange.responses(bytes, scratch, endpoint)
                        }
                        &*scratch
                    }
                };
                let due_ns = directions.down.due_ns(passes.len(), now_ns());
                line.put(passes, due_ns);
                due_ns
            };
            turn = read(server, &mut self.down, buffer, turn, &mut pass);
            let now_ns = now_ns();
            let up = deliver(&mut self.up, server, &mut self.up_is_over, now_ns);
            let down = deliver(
                &mut self.down,
                &mut self.client,
                &mut self.down_is_over,
                now_ns,
            );
            if up.is_reset || down.is_reset {
                self.reset();
                return NextStep::Over;
            }
            if up.is_lost && !self.down.is_finished() {
                // The broker is gone: the client hears of it when it would.
                let due_ns = directions.down.due_ns(0, now_ns);
                self.down.finish(End::Broken, due_ns);
            }
            if down.is_lost && !self.up.is_finished() {
                let due_ns = directions.up.due_ns(0, now_ns);
                self.up.finish(End::Broken, due_ns);
            }
            if self.up_is_over && self.down_is_over {
                return NextStep::Over;
            }
            if turn == 0 {
                return NextStep::Again;
            }
            if turn == before && up.bytes == 0 && down.bytes == 0 {
                break;
            }
        }
        let next = |line: &DelayedBytes, is_over: bool| line.next_ns().filter(|_| !is_over);
        let up = next(&self.up, self.up_is_over);
        let down = next(&self.down, self.down_is_over);
        NextStep::Wait(up.into_iter().chain(down).min())
    }
}

/// Reads what is there, until there is no room or this turn's bytes are used up; gives those that
/// are left. `pass` puts bytes into the line and says when they arrive; none: the end has come.
fn read(
    from: &mut ProxySocket,
    line: &mut DelayedBytes,
    buffer: &mut [u8],
    mut turn: usize,
    pass: &mut dyn FnMut(&mut DelayedBytes, &[u8]) -> u64,
) -> usize {
    while from.readable && !from.read_over && turn > 0 {
        let most = line.room_bytes().min(buffer.len()).min(turn);
        if most == 0 {
            break;
        }
        match (&from.stream).read(&mut buffer[..most]) {
            Ok(0) => {
                from.read_over = true;
                let due_ns = pass(line, &[]);
                line.finish(End::Finished, due_ns);
            }
            Ok(bytes) => {
                turn -= bytes;
                pass(line, &buffer[..bytes]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => from.readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => {
                from.read_over = true;
                let due_ns = pass(line, &[]);
                line.finish(End::Broken, due_ns);
            }
        }
    }
    turn
}

/// The result of [`deliver`].
#[derive(Debug, Default)]
struct Delivered {
    bytes: usize,
    /// The receiver is gone.
    is_lost: bool,
    /// The connection broke, and that has arrived.
    is_reset: bool,
}

/// Writes what has arrived.
fn deliver(
    line: &mut DelayedBytes,
    to: &mut ProxySocket,
    is_over: &mut bool,
    now_ns: u64,
) -> Delivered {
    let mut delivered = Delivered::default();
    while !*is_over {
        let arrived = line.arrived(now_ns);
        if !arrived.is_empty() && to.writable && !to.write_over {
            match (&to.stream).write(arrived) {
                Ok(bytes) => {
                    line.take(bytes);
                    delivered.bytes += bytes;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => to.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    line.abandon();
                    to.write_over = true;
                    to.read_over = true;
                    *is_over = true;
                    delivered.is_lost = true;
                }
            }
            continue;
        }
        match line.end(now_ns) {
            // Not before it is connected, else it would never be.
            Some(End::Finished) if to.writable => {
                // A peer that is gone need not be told.
                let _ = to.stream.shutdown(std::net::Shutdown::Write);
                to.write_over = true;
                *is_over = true;
            }
            Some(End::Broken) => {
                *is_over = true;
                delivered.is_reset = true;
            }
            _ => break,
        }
    }
    delivered
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
