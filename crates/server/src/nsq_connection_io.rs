//! The bytes of one connection: from the socket to the session, from the session to the socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use cloverleaf_nsq::{Now, Session};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::transport::{Inbox, LayerError, Layers};

/// Most bytes of one socket read.
const READ_BYTES: usize = 256 * 1024;

/// Room before the read bytes: half a command of up to this size is copied there, so that it is
/// whole without a buffer of its own. Beyond, copying it for each read would cost too much.
const FRONT_BYTES: usize = 32 * 1024;

/// A shared output buffer that grew beyond this is given back.
const OUTPUT_KEPT_BYTES: usize = 1024 * 1024;

/// A peer to which output is stuck has to take this much, or all, before the time of the write
/// starts anew: who takes a byte now and then holds buffers for ever.
const TAKEN_BYTES_MIN: usize = 64 * 1024;

/// What the connections of a core share, one turn at a time.
#[derive(Default)]
pub(crate) struct Scratch {
    /// `FRONT_BYTES`, then `READ_BYTES`; allocated with the first connection.
    input: Vec<u8>,
    /// Raw bytes for layers, `READ_BYTES`; allocated with the first connection that has any.
    raw_input: Vec<u8>,
    output: Vec<u8>,
    raw_output: Vec<u8>,
}

/// Whether anything moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing: wakers are registered.
    None,
    /// This many bytes, or something else if 0.
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
pub(crate) enum Broken {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// What lies between the socket and the session.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// A socket, its layers, and what is stuck.
pub(crate) struct Io {
    stream: TcpStream,
    layers: Option<Box<Layers>>,
    /// Read and not consumed.
    carry: Inbox,
    /// The session need not be shown less than this.
    needed_bytes: usize,
    /// Raw output that the socket did not take; sent up to `unsent_from`.
    unsent: Vec<u8>,
    unsent_from: usize,
    unsent_since_us: Option<u64>,
    /// How much the socket took since then.
    unsent_taken_bytes: usize,
    at_end: bool,
}

impl Io {
    pub(crate) fn new(stream: TcpStream) -> Io {
        Io {
            stream,
            layers: None,
            carry: Inbox::default(),
            needed_bytes: 0,
            unsent: Vec::new(),
            unsent_from: 0,
            unsent_since_us: None,
            unsent_taken_bytes: 0,
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

    /// Since when the socket takes nothing worth mention.
    pub(crate) fn unsent_since_us(&self) -> Option<u64> {
        self.unsent_since_us
    }

    /// Adds a layer. What was read and not consumed is that layer's first input: nothing that
    /// came before an upgrade can pass for what comes through it.
    pub(crate) fn upgrade(
        &mut self,
        add: impl FnOnce(&mut Layers) -> Result<(), LayerError>,
    ) -> Result<(), LayerError> {
        let layers = self.layers.get_or_insert_default();
        add(layers)?;
        let carry = std::mem::take(&mut self.carry);
        layers.feed_top(carry.rest());
        self.needed_bytes = 0;
        Ok(())
    }

    /// Reads once and hands what came to the session, if it wants any.
    pub(crate) fn read(
        &mut self,
        session: &mut Session,
        scratch: &mut Scratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, Broken> {
        if !session.wants_input() || self.at_end {
            return Ok(Progress::None);
        }
        let carried = self.carry.rest().len();
        if carried > 0 && carried >= self.needed_bytes {
            // The session stopped within what it had, and now it goes on.
            return Ok(Progress::Bytes(self.show_carry(session, now)));
        }
        if scratch.input.is_empty() {
            scratch.input = vec![0; FRONT_BYTES + READ_BYTES];
        }
        let room = &mut scratch.input[FRONT_BYTES..];
        let count = match &mut self.layers {
            None => match poll_read(&mut self.stream, cx, room) {
                Poll::Pending => return Ok(Progress::None),
                Poll::Ready(result) => {
                    let count = result?;
                    session.probe().read(count, now.us);
                    count
                }
            },
            Some(layers) => match layers.read(room)? {
                0 if !layers.is_ended() => {
                    scratch.raw_input.resize(READ_BYTES, 0);
                    let raw = &mut scratch.raw_input[..];
                    let Poll::Ready(result) = poll_read(&mut self.stream, cx, raw) else {
                        return Ok(Progress::None);
                    };
                    let count = result?;
                    session.probe().read(count, now.us);
                    if count > 0 {
                        layers.feed(&raw[..count]);
                        return Ok(Progress::Bytes(count));
                    }
                    0
                }
                count => count,
            },
        };
        if count == 0 {
            self.at_end = true;
            session.end_of_input(self.carry.rest(), now);
            return Ok(Progress::Bytes(0));
        }
        let cost_bytes = self.show(session, &mut scratch.input, count, now);
        if !self.carry.rest().is_empty() && session.wants_input() {
            // The rest of a command is on its way: a client with Nagle's algorithm sends it only
            // once it has our acknowledgement, which the kernel would delay by 40 ms. A failure
            // costs that delay and nothing else.
            let _ = rustix::net::sockopt::set_tcp_quickack(&self.stream, true);
        }
        Ok(Progress::Bytes(count.max(cost_bytes)))
    }

    /// Shows the session what came, which starts at `FRONT_BYTES` of `buffer`, behind what was
    /// carried. Returns what that cost.
    fn show(&mut self, session: &mut Session, buffer: &mut [u8], count: usize, now: Now) -> usize {
        let carried = self.carry.rest().len();
        let fresh = FRONT_BYTES..FRONT_BYTES + count;
        if carried + count < self.needed_bytes {
            self.carry.push(&buffer[fresh]);
            session.probe().read_ended_inside_frame();
            return 0;
        }
        if carried > FRONT_BYTES {
            self.carry.push(&buffer[fresh]);
            return self.show_carry(session, now);
        }
        let start = FRONT_BYTES - carried;
        buffer[start..FRONT_BYTES].copy_from_slice(self.carry.rest());
        let input = &buffer[start..fresh.end];
        let received = session.receive(input, now);
        self.needed_bytes = received.needed_bytes;
        self.carry.take(carried);
        self.carry.push(&input[received.consumed_bytes..]);
        received.cost_bytes
    }

    /// Shows the session what was carried alone. Returns what that cost.
    fn show_carry(&mut self, session: &mut Session, now: Now) -> usize {
        let received = session.receive(self.carry.rest(), now);
        self.needed_bytes = received.needed_bytes;
        self.carry.take(received.consumed_bytes);
        received.cost_bytes
    }

    /// Writes what is stuck; if that goes out, asks the session for more and writes that.
    pub(crate) fn write(
        &mut self,
        session: &mut Session,
        scratch: &mut Scratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, Broken> {
        let mut moved = Progress::None;
        while self.unsent_from < self.unsent.len() {
            let rest = &self.unsent[self.unsent_from..];
            let Poll::Ready(result) = poll_write(&mut self.stream, cx, rest) else {
                return Ok(moved);
            };
            let count = result?;
            session.wrote(count, now);
            self.unsent_from += count;
            self.unsent_taken_bytes += count;
            if self.unsent_taken_bytes >= TAKEN_BYTES_MIN {
                self.unsent_taken_bytes = 0;
                self.unsent_since_us = Some(now.us);
            }
            moved = moved.and(Progress::Bytes(count));
        }
        if !self.unsent.is_empty() {
            self.unsent = Vec::new();
            self.unsent_from = 0;
            self.unsent_since_us = None;
            self.unsent_taken_bytes = 0;
        }
        scratch.output.clear();
        session.poll(cx, now, &mut scratch.output);
        let bytes = match &mut self.layers {
            None => &scratch.output,
            Some(layers) => {
                scratch.raw_output.clear();
                layers.write(&scratch.output, &mut scratch.raw_output)?;
                &scratch.raw_output
            }
        };
        if bytes.is_empty() {
            return Ok(moved);
        }
        let count = match poll_write(&mut self.stream, cx, bytes) {
            Poll::Ready(result) => result?,
            Poll::Pending => 0,
        };
        session.wrote(count, now);
        if count < bytes.len() {
            self.unsent.extend_from_slice(&bytes[count..]);
            self.unsent_since_us = Some(now.us);
        }
        let moved = moved.and(Progress::Bytes(bytes.len()));
        for buffer in [&mut scratch.output, &mut scratch.raw_output] {
            if buffer.capacity() > OUTPUT_KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        Ok(moved)
    }

    /// Tells the peer that nothing more will come, if a layer has a word for it.
    pub(crate) fn say_goodbye(&mut self) {
        if let Some(layers) = &mut self.layers
            && self.unsent.is_empty()
        {
            let mut raw = Vec::new();
            layers.close(&mut raw);
            // The connection ends anyway, whether the peer hears this or not.
            let _ = self.stream.try_write(&raw);
        }
    }

    /// The socket, and whether the peer has ended its side.
    pub(crate) fn into_stream(self) -> (TcpStream, bool) {
        (self.stream, self.at_end)
    }
}

/// A read that keeps tokio's knowledge of the socket: a short read means that it is empty, so
/// that no further system call is needed to find out.
fn poll_read(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    room: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(room);
    Pin::new(stream)
        .poll_read(cx, &mut buffer)
        .map_ok(|()| buffer.filled().len())
}

fn poll_write(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    Pin::new(stream).poll_write(cx, bytes)
}
