//! A nonblocking connection to a broker, and the ports of our own clients, which need no library.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::driver::DriverError;
use crate::message_source::{Message, MessageSource};
use crate::pump::{Answers, Arrivals, Limits, NotTaken, PublishPort, ReceivePort};
use crate::url::Url;

/// Timeout of connecting, and of each answer before the measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that one read takes at most.
const READ_BYTES: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The broker has closed it.
    #[error("it closed the connection")]
    Closed,
    /// The broker sent bytes that violate the protocol.
    #[error("{0}")]
    Protocol(String),
    /// The broker refused a request.
    #[error("{0}")]
    Refused(String),
}

/// A connection with its output and input buffers.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    /// Bytes to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// The socket's buffer was full.
    is_stuck: bool,
    /// The socket accepted bytes after that: the peer is alive, though it may not have answered.
    has_moved: bool,
    /// Bytes that were received and not processed: `taken..filled`.
    input: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl Wire {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Wire {
            stream,
            out: Vec::new(),
            sent: 0,
            is_stuck: false,
            has_moved: false,
            input: vec![0; READ_BYTES],
            taken: 0,
            filled: 0,
        })
    }

    /// With Nagle's algorithm, the last bytes of a request wait for the acknowledgement of those
    /// before.
    pub(crate) fn set_nagle(&self, is_on: bool) -> io::Result<()> {
        self.stream.set_nodelay(!is_on)
    }

    /// The output buffer.
    #[inline]
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Number of bytes that wait to be sent.
    #[inline]
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends as many bytes as the socket accepts.
    pub(crate) fn send(&mut self) -> Result<(), WireError> {
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match send(
                &self.stream,
                rest,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(bytes) => {
                    self.sent += bytes;
                    self.has_moved |= std::mem::take(&mut self.is_stuck);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.is_stuck = true;
                    // Removes sent bytes from the buffer, but not each time.
                    if self.sent > self.out.len() / 2 {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Waits until bytes can be received or sent, at most this many nanoseconds. `true`: they can
    /// be received.
    pub(crate) fn wait(&self, most_ns: u64) -> Result<bool, WireError> {
        let mut wanted = PollFlags::IN;
        if self.waiting_bytes() > 0 {
            wanted |= PollFlags::OUT;
        }
        let mut polled = [PollFd::new(&self.stream, wanted)];
        let timeout =
            Timespec::try_from(Duration::from_nanos(most_ns)).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let other = PollFlags::HUP | PollFlags::ERR;
        Ok(polled[0].revents().intersects(PollFlags::IN | other))
    }

    /// Receives bytes into the input buffer. `false`: there are none.
    pub(crate) fn receive(&mut self) -> Result<bool, WireError> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        }
        if self.filled == self.input.len() {
            self.input.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
            if self.filled == self.input.len() {
                // The frame is larger than the buffer. Each codec refuses a frame above its bound
                // as soon as it has the size.
                self.input.resize(self.filled * 2, 0);
            }
        }
        loop {
            let room = &mut self.input[self.filled..];
            match recv(&self.stream, room, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(WireError::Closed),
                Ok((_, bytes)) => {
                    self.filled += bytes;
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Calls `each` with each complete frame and the output buffer for answers, until it fails.
    #[inline]
    pub(crate) fn frames<F: Framing>(
        &mut self,
        framing: F,
        mut each: impl FnMut(F::Frame<'_>, &mut Vec<u8>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        loop {
            let received = &self.input[self.taken..self.filled];
            let Some((frame, used)) = framing.first(received)? else {
                return Ok(());
            };
            let result = each(frame, &mut self.out);
            self.taken = (self.taken + used).min(self.filled);
            result?;
        }
    }

    /// Sends the output, and receives bytes within this time. `true`: some came.
    pub(crate) fn exchange(&mut self, most_ns: u64) -> Result<bool, WireError> {
        self.send()?;
        Ok(self.wait(most_ns)? && self.receive()?)
    }

    /// Sends the output, and waits for a frame that `each` takes for the answer; `None`: it did not
    /// come in time.
    pub(crate) fn ask<F: Framing, A>(
        &mut self,
        framing: F,
        mut each: impl FnMut(F::Frame<'_>, &mut Vec<u8>) -> Result<Option<A>, WireError>,
    ) -> Result<Option<A>, WireError> {
        let end = Instant::now() + PATIENCE;
        let mut answer = None;
        loop {
            self.frames(framing, |frame, out| {
                if let Some(found) = each(frame, out)? {
                    answer = Some(found);
                }
                Ok(())
            })?;
            let left = end.saturating_duration_since(Instant::now());
            if answer.is_some() || left.is_zero() {
                return Ok(answer);
            }
            self.exchange(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))?;
        }
    }
}

/// Sets the size in the four bytes at `at`: the number of bytes of `out` after them. Requests
/// are cut before they are too large for it.
#[inline]
pub(crate) fn set_size(out: &mut [u8], at: usize) {
    let size = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&size.to_be_bytes());
}

/// Writes bytes with their size in four bytes before them.
pub(crate) fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(bytes);
    set_size(out, at);
}

/// Writes a number as [`Reader::varint`](crate::reader::Reader::varint) reads it.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// How a protocol's bytes are cut into frames, and the bound of one.
pub(crate) trait Framing: Copy {
    type Frame<'f>;

    /// The first frame of these bytes, and its size; `None`: it is incomplete.
    fn first<'f>(&self, bytes: &'f [u8]) -> Result<Option<(Self::Frame<'f>, usize)>, WireError>;
}

/// A protocol's part of a producer on a socket.
pub(crate) trait PublishCodec: Send {
    /// Begins a request of at most `messages_max` messages.
    fn begin_request(&mut self, _out: &mut Vec<u8>, _messages_max: usize, _unix_ns: u64) {}

    /// Writes a message, whose bytes [`MessageSource::push`] appends.
    fn put(&mut self, out: &mut Vec<u8>, message: &Message, source: &mut MessageSource);

    fn end_request(&mut self, _out: &mut Vec<u8>) {}

    /// Processes the input.
    fn answers(&mut self, wire: &mut Wire, answers: &mut Answers<'_>) -> Result<(), WireError>;

    /// The broker's last refusal. In some protocols the connection ends only after it, and the
    /// refusal says more than that end.
    fn refusal(&mut self) -> Option<String> {
        None
    }
}

/// A producer on a socket.
pub(crate) struct SocketPublisher<C> {
    pub(crate) wire: Wire,
    pub(crate) url: Url,
    pub(crate) limits: Limits,
    /// While this many bytes wait to be sent, no more messages are written.
    pub(crate) waiting_bytes_max: usize,
    /// Whether the broker answers. Otherwise messages count as acknowledged once the socket has
    /// accepted them.
    pub(crate) is_answered: bool,
    pub(crate) codec: C,
}

impl<C: PublishCodec> SocketPublisher<C> {
    fn exchange(&mut self, most_ns: u64, answers: &mut Answers<'_>) -> Result<(), WireError> {
        self.wire.send()?;
        if std::mem::take(&mut self.wire.has_moved) {
            answers.alive();
        }
        let mut most_ns = most_ns;
        if !self.is_answered && self.wire.waiting_bytes() == 0 && !answers.has_all() {
            answers.acked_to(u64::MAX);
            // The window is free again.
            most_ns = 0;
        }
        if self.wire.wait(most_ns)? && self.wire.receive()? {
            self.codec.answers(&mut self.wire, answers)?;
        }
        Ok(())
    }
}

impl<C: PublishCodec> PublishPort for SocketPublisher<C> {
    fn url(&self) -> &Url {
        &self.url
    }

    fn limits(&self, _feed: &MessageSource) -> Limits {
        self.limits
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.wire.waiting_bytes() < self.waiting_bytes_max
    }

    #[inline]
    fn begin_request(&mut self, messages_max: usize, unix_ns: u64) {
        let out = &mut self.wire.out;
        self.codec.begin_request(out, messages_max, unix_ns);
    }

    #[inline]
    fn put(&mut self, message: &Message, source: &mut MessageSource) -> Result<(), NotTaken> {
        self.codec.put(&mut self.wire.out, message, source);
        Ok(())
    }

    #[inline]
    fn end_request(&mut self) {
        self.codec.end_request(&mut self.wire.out);
    }

    fn exchange(&mut self, most_ns: u64, answers: &mut Answers<'_>) -> Result<(), DriverError> {
        let result = SocketPublisher::exchange(self, most_ns, answers);
        result.map_err(|error| told(error, self.codec.refusal(), &self.url))
    }
}

/// A protocol's part of a consumer on a socket.
pub(crate) trait ReceiveCodec: Send {
    /// Writes the command that begins to consume.
    fn start(&mut self, out: &mut Vec<u8>);

    /// Processes the messages of the input. Writes their acknowledgements, or requests for more.
    fn messages(&mut self, wire: &mut Wire, arrivals: &mut Arrivals<'_>) -> Result<(), WireError>;

    /// Writes the command that ends the consumer.
    fn end(&mut self, _out: &mut Vec<u8>) {}

    /// As [`PublishCodec::refusal`].
    fn refusal(&mut self) -> Option<String> {
        None
    }
}

/// A consumer on a socket.
pub(crate) struct SocketReceiver<C> {
    pub(crate) wire: Wire,
    pub(crate) url: Url,
    pub(crate) codec: C,
}

impl<C: ReceiveCodec> SocketReceiver<C> {
    fn told(&mut self, result: Result<(), WireError>) -> Result<(), DriverError> {
        result.map_err(|error| told(error, self.codec.refusal(), &self.url))
    }
}

impl<C: ReceiveCodec> ReceivePort for SocketReceiver<C> {
    fn start(&mut self) -> Result<(), DriverError> {
        self.codec.start(&mut self.wire.out);
        let sent = self.wire.send();
        self.told(sent)
    }

    fn receive(&mut self, most_ns: u64, arrivals: &mut Arrivals<'_>) -> Result<(), DriverError> {
        let received = self.wire.exchange(most_ns).and_then(|has_come| {
            if has_come {
                self.codec.messages(&mut self.wire, arrivals)
            } else {
                Ok(())
            }
        });
        self.told(received)
    }

    fn end(&mut self) -> Result<(), DriverError> {
        self.codec.end(&mut self.wire.out);
        let sent = self.wire.send();
        self.told(sent)
    }
}

/// The error for the user.
pub(crate) fn told(error: WireError, refusal: Option<String>, url: &Url) -> DriverError {
    match (refusal, error) {
        (Some(words), _) | (None, WireError::Refused(words)) => url.refused(words),
        (None, error) => url.gone(error),
    }
}
