//! The bytes of one connection: from the socket to the session, from the session to the socket.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BufMut;
use cloverleaf_session::{Input, Now, Session};
use cloverleaf_telemetry::Protocol;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::connection::output::{OutputScratch, SocketWriter, UnsentOutput};
use crate::context::ServerContext;
use crate::half_received::{FREE_BYTES, HeldMemory};
use crate::transport::{Inbox, LayerError, Layers};

/// At most this many bytes that a peer sends after the end of its connection are read and dropped.
const LINGER_BYTES_MAX: usize = 256 * 1024;

/// Maximum bytes of one socket read.
const READ_BYTES: usize = 256 * 1024;

/// Space in front of the bytes read: the beginning of a half received command, up to this size, is
/// copied there, so that the command is contiguous without a buffer of its own. A larger beginning
/// would cost too much to copy for each read.
const FRONT_BYTES: usize = FREE_BYTES;

/// Buffers that the connections of a core share; one connection uses them at a time.
#[derive(Default)]
pub(crate) struct ConnectionScratch {
    /// `FRONT_BYTES`, then `READ_BYTES`; allocated at the first read.
    input: Vec<u8>,
    /// Raw bytes for layers, `READ_BYTES`; allocated at the first read of a connection that has
    /// layers.
    raw_input: Vec<u8>,
    output: OutputScratch,
}

/// Whether a step read, wrote or changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing happened: wakers are registered.
    None,
    /// This many bytes were read or written; 0: something else happened.
    Bytes(usize),
}

impl Progress {
    pub(crate) fn and(self, other: Progress) -> Progress {
        match (self, other) {
            (Progress::None, progress) | (progress, Progress::None) => progress,
            (Progress::Bytes(one), Progress::Bytes(two)) => Progress::Bytes(one + two),
        }
    }
}

/// Why no further byte can be read or written.
#[derive(Debug, Error)]
pub(crate) enum TransportError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// A layer between the socket and the session: TLS or compression.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// A socket, its layers, its unconsumed input and its unsent output.
pub(crate) struct ConnectionIo {
    stream: TcpStream,
    layers: Option<Box<Layers>>,
    /// Whether the kernel is asked to acknowledge at once when a read ends inside a command.
    quick_ack: bool,
    /// Bytes read that the session has not consumed.
    carry: Inbox,
    /// The memory charged for `carry`.
    hold: HeldMemory,
    /// The session needs at least this many bytes to go on: fewer are not shown to it.
    needed_bytes: usize,
    /// Output that the socket did not take.
    unsent: UnsentOutput,
    at_end: bool,
}

impl ConnectionIo {
    pub(crate) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        protocol: Protocol,
        context: &ServerContext,
    ) -> ConnectionIo {
        let memory = Arc::clone(&context.half_received);
        ConnectionIo {
            stream,
            layers: None,
            quick_ack: context.config.general.quick_ack,
            carry: Inbox::default(),
            hold: HeldMemory::new(memory, protocol, peer.ip()),
            needed_bytes: 0,
            unsent: UnsentOutput::default(),
            at_end: false,
        }
    }

    pub(crate) fn layers(&self) -> Option<&Layers> {
        self.layers.as_deref()
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.layers().is_some_and(Layers::is_handshaking)
    }

    /// Whether the socket has taken all output so far.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// When unsent output appeared, or the socket last took enough of it; `None`: all is sent.
    pub(crate) fn unsent_since_us(&self) -> Option<u64> {
        self.unsent.since_us()
    }

    /// When to check a half received command again: whether its rest has come, or whether memory
    /// for the rest is free now.
    pub(crate) fn rest_due_us(&self) -> Option<u64> {
        self.hold.due_us()
    }

    /// Whether the rest of a half received command is late, so that the connection has to end.
    pub(crate) fn is_rest_overdue(&self, now: Now) -> bool {
        self.hold.is_expired(now.us)
    }

    /// Adds a layer. Bytes that were read and not consumed become that layer's first input, so that
    /// plaintext that a peer pipelines before an upgrade is never taken for data that came through
    /// the layer.
    pub(crate) fn upgrade(
        &mut self,
        add: impl FnOnce(&mut Layers) -> Result<(), LayerError>,
    ) -> Result<(), LayerError> {
        let layers = self.layers.get_or_insert_default();
        add(layers)?;
        let carry = std::mem::take(&mut self.carry);
        layers.feed_top(carry.rest());
        self.hold.release();
        self.needed_bytes = 0;
        Ok(())
    }

    /// Reads once and shows the session the bytes that came, if it wants input.
    pub(crate) fn read(
        &mut self,
        session: &mut impl Session,
        scratch: &mut ConnectionScratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, TransportError> {
        if !session.wants_input() || self.at_end {
            self.hold.pause(now.us);
            return Ok(Progress::None);
        }
        let carried = self.carry.rest().len();
        if carried > 0 && carried >= self.needed_bytes {
            // The session stopped although it had enough input; it wants input again now.
            return Ok(Progress::Bytes(self.show_carry(session, cx, now)));
        }
        if scratch.input.is_empty() {
            scratch.input = vec![0; FRONT_BYTES + READ_BYTES];
        }
        let Poll::Ready(bytes_max) = self.admit(carried, scratch, cx, now) else {
            if self.hold.is_waiting() {
                session.reading_paused(now);
            }
            return Ok(Progress::None);
        };
        if self.layers.is_none() && carried >= FRONT_BYTES {
            return self.read_rest(bytes_max, session, scratch, cx, now);
        }
        let space = &mut scratch.input[FRONT_BYTES..FRONT_BYTES + bytes_max];
        let count = match &mut self.layers {
            None => match poll_read(&mut self.stream, cx, space) {
                Poll::Pending => return Ok(Progress::None),
                Poll::Ready(result) => {
                    let count = result?;
                    session.read(count, now);
                    count
                }
            },
            Some(layers) => match layers.read(space)? {
                0 if !layers.is_ended() => {
                    if layers.wants_rest() {
                        // A TLS handshake is not a request, so its pauses are not measured.
                        if !layers.is_handshaking() {
                            session.read_ended_inside_frame(now);
                        }
                        self.acknowledge_quickly();
                    }
                    return self.read_raw(bytes_max, session, scratch, cx, now);
                }
                count => count,
            },
        };
        if count == 0 {
            return Ok(self.end_input(session, now));
        }
        let cost_bytes = self.show(session, &mut scratch.input, count, cx, now);
        if !self.carry.rest().is_empty() && session.wants_input() {
            self.acknowledge_quickly();
        }
        Ok(Progress::Bytes(count.max(cost_bytes)))
    }

    /// How many bytes may be read now: as many as there is memory to keep. Pending while there is
    /// none.
    #[inline]
    fn admit(
        &mut self,
        carried: usize,
        scratch: &mut ConnectionScratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Poll<usize> {
        if carried < FRONT_BYTES {
            return Poll::Ready(if self.hold.is_tight() {
                FRONT_BYTES - carried
            } else {
                READ_BYTES
            });
        }
        self.admit_rest(carried, scratch, cx, now)
    }

    fn admit_rest(
        &mut self,
        carried: usize,
        scratch: &mut ConnectionScratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Poll<usize> {
        let whole = self.needed_bytes;
        let count = (whole - carried).min(READ_BYTES);
        // Free space of the buffer is charged already.
        let (count, bytes) = match self.carry.spare_bytes() {
            0 => (count, self.carry.memory_bytes_with(count, whole)),
            spare => (count.min(spare), self.carry.memory_bytes()),
        };
        if self.hold.try_grow(whole, bytes, cx, now.us) {
            return Poll::Ready(count);
        }
        let mut there = ReadBuf::new(&mut scratch.input[..count]);
        let count = match self.stream.poll_peek(cx, &mut there) {
            _ if self.layers().is_some_and(|layers| !layers.is_drained()) => count,
            // A connection whose peer sends nothing does not queue for memory, so its peer's time
            // limit keeps running.
            Poll::Pending => {
                self.hold.await_peer(now.us);
                return Poll::Pending;
            }
            // The end of the stream needs no memory.
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(1),
            Poll::Ready(Ok(count)) => count,
        };
        let bytes = self.carry.memory_bytes_with(count, whole);
        self.hold
            .poll_grow(whole, bytes, cx, now.us)
            .map(|()| count)
    }

    /// Reads the rest of a large command into the buffer that keeps its beginning.
    fn read_rest(
        &mut self,
        bytes_max: usize,
        session: &mut impl Session,
        scratch: &mut ConnectionScratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, TransportError> {
        let read = if self.carry.spare_bytes() > 0 {
            let space = self.carry.reserve(bytes_max, self.needed_bytes);
            pin!(self.stream.read_buf(&mut space.limit(bytes_max))).poll(cx)
        } else {
            // The buffer grows with the bytes that came: a peer may announce bytes and never send
            // them.
            let fresh = &mut scratch.input[FRONT_BYTES..FRONT_BYTES + bytes_max];
            poll_read(&mut self.stream, cx, fresh).map_ok(|count| {
                let space = self.carry.reserve(count, self.needed_bytes);
                space.extend_from_slice(&fresh[..count]);
                count
            })
        };
        let Poll::Ready(result) = read else {
            self.charge(0, cx, now);
            return Ok(Progress::None);
        };
        let count = result?;
        session.read(count, now);
        if count == 0 {
            return Ok(self.end_input(session, now));
        }
        if self.carry.rest().len() < self.needed_bytes {
            self.charge(0, cx, now);
            session.read_ended_inside_frame(now);
            self.acknowledge_quickly();
            return Ok(Progress::Bytes(count));
        }
        Ok(Progress::Bytes(
            count.max(self.show_carry(session, cx, now)),
        ))
    }

    /// Reads raw bytes for the layers.
    fn read_raw(
        &mut self,
        bytes_max: usize,
        session: &mut impl Session,
        scratch: &mut ConnectionScratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, TransportError> {
        scratch.raw_input.resize(READ_BYTES, 0);
        // No more than may be kept: the decoded bytes may have to stay in the layers.
        let raw = &mut scratch.raw_input[..bytes_max.max(FRONT_BYTES)];
        let Poll::Ready(result) = poll_read(&mut self.stream, cx, raw) else {
            self.charge(0, cx, now);
            return Ok(Progress::None);
        };
        let count = result?;
        session.read(count, now);
        if count == 0 {
            return Ok(self.end_input(session, now));
        }
        if let Some(layers) = &mut self.layers {
            layers.feed(&raw[..count]);
        }
        Ok(Progress::Bytes(count))
    }

    fn end_input(&mut self, session: &mut impl Session, now: Now) -> Progress {
        self.at_end = true;
        session.end_of_input(self.carry.rest(), now);
        Progress::Bytes(0)
    }

    /// Asks the kernel to acknowledge at once because the rest of a command is on its way: a client
    /// with Nagle's algorithm sends it only after our acknowledgement, which the kernel would delay
    /// by 40 ms.
    fn acknowledge_quickly(&self) {
        if self.quick_ack {
            // A failure costs that delay and nothing else.
            let _ = rustix::net::sockopt::set_tcp_quickack(&self.stream, true);
        }
    }

    /// Shows the session the carried bytes and the `count` bytes just read, which start at
    /// `FRONT_BYTES` of `buffer`. Returns the cost of the work, in bytes.
    fn show(
        &mut self,
        session: &mut impl Session,
        buffer: &mut [u8],
        count: usize,
        cx: &Context<'_>,
        now: Now,
    ) -> usize {
        let carried = self.carry.rest().len();
        let fresh = FRONT_BYTES..FRONT_BYTES + count;
        if carried + count < self.needed_bytes {
            self.carry
                .reserve(count, self.needed_bytes)
                .extend_from_slice(&buffer[fresh]);
            self.charge(0, cx, now);
            session.read_ended_inside_frame(now);
            return 0;
        }
        if carried > FRONT_BYTES {
            self.carry.push(&buffer[fresh]);
            return self.show_carry(session, cx, now);
        }
        let start = FRONT_BYTES - carried;
        buffer[start..FRONT_BYTES].copy_from_slice(self.carry.rest());
        let input = &buffer[start..fresh.end];
        let received = session.receive(Input::Lent(input), now);
        self.needed_bytes = received.needed_bytes;
        self.carry.take(carried);
        let rest = &input[received.consumed_bytes..];
        if !rest.is_empty() {
            let space = self.carry.reserve(rest.len(), self.needed_bytes);
            space.extend_from_slice(rest);
        }
        self.charge(received.consumed_bytes, cx, now);
        received.cost_bytes
    }

    /// Shows the session the carried bytes alone. Returns the cost of the work, in bytes.
    fn show_carry(&mut self, session: &mut impl Session, cx: &Context<'_>, now: Now) -> usize {
        let shown = self.carry.rest().len();
        let input = if shown == self.needed_bytes {
            Input::Own(self.carry.buffer())
        } else {
            Input::Lent(self.carry.rest())
        };
        let received = session.receive(input, now);
        self.needed_bytes = received.needed_bytes;
        // The session may have taken the buffer, and consumed bytes with it.
        let left = shown - received.consumed_bytes;
        self.carry.take(self.carry.rest().len() - left);
        self.charge(received.consumed_bytes, cx, now);
        received.cost_bytes
    }

    /// Charges the connection for exactly the memory that it keeps.
    #[inline]
    fn charge(&mut self, consumed_bytes: usize, cx: &Context<'_>, now: Now) {
        let (received_bytes, bytes) = (self.carry.rest().len(), self.carry.memory_bytes());
        let is_next = consumed_bytes > 0;
        self.hold.charge(
            self.needed_bytes,
            received_bytes,
            bytes,
            is_next,
            cx,
            now.us,
        );
    }

    /// Writes the unsent output; once that is sent, asks the session for more and writes that.
    pub(crate) fn write(
        &mut self,
        session: &mut impl Session,
        scratch: &mut ConnectionScratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, TransportError> {
        let mut writer = SocketWriter {
            stream: &mut self.stream,
            layers: self.layers.as_deref_mut(),
            session,
            cx,
            now,
        };
        self.unsent.write(&mut writer, &mut scratch.output)
    }

    /// Drops input that was not consumed, and releases its memory.
    pub(crate) fn drop_input(&mut self) {
        self.carry = Inbox::default();
        self.hold.release();
    }

    /// Sends the closing message of TLS (`close_notify`), if there is TLS.
    pub(crate) fn send_close_notify(&mut self) {
        if self.is_flushed()
            && let Some(layers) = &mut self.layers
        {
            let mut raw = Vec::new();
            layers.close(&mut raw);
            // The connection ends anyway, whether the peer hears this or not.
            let _ = self.stream.try_write(&raw);
        }
    }

    /// Closes the sending side. Errors do not matter: the connection ends anyway.
    pub(crate) async fn shutdown(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Reads and drops input until the peer closes its side or `LINGER_BYTES_MAX` have come.
    pub(crate) async fn linger(&mut self) {
        // On the heap, because an array would be part of every connection's future for its whole
        // life.
        let mut bytes = vec![0; 4096];
        let mut left = LINGER_BYTES_MAX;
        while !self.at_end {
            match self.stream.read(&mut bytes).await {
                Ok(read @ 1..) if read < left => left -= read,
                Ok(0) | Err(_) => self.at_end = true,
                Ok(_) => return,
            }
        }
    }
}

/// A read by which tokio learns the socket's state: a short read means that it is empty, so that no
/// further system call is needed to find out.
fn poll_read(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    space: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(space);
    Pin::new(stream)
        .poll_read(cx, &mut buffer)
        .map_ok(|()| buffer.filled().len())
}
