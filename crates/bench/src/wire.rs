//! A connection to a broker that is never waited for longer than until a given time.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Until a connection is made, and for each answer before the measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Room that is read into at once.
const READ_BYTES: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The system says so.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The broker has closed it.
    #[error("it closed the connection")]
    Closed,
    /// It sends bytes that are not its protocol's.
    #[error("{0}")]
    Protocol(String),
    /// The broker says that it does not want it.
    #[error("{0}")]
    Refused(String),
}

/// Bytes on their way out and in.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    /// Bytes to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// The system's buffer had no room for more.
    is_stuck: bool,
    /// It has taken something since.
    has_moved: bool,
    /// Bytes that have come and are not used: `taken..filled`.
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

    /// Where what is to be sent is written.
    #[inline]
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that wait to be sent.
    #[inline]
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what the system takes.
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
                    // Sent bytes are dropped now and then, to make room.
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

    /// Whether the peer has taken something, since this was asked last, that there was no room for
    /// before: it lives, though it may not have answered.
    pub(crate) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Waits until something came or can be sent, but no longer than so many nanoseconds. `true`:
    /// something came.
    pub(crate) fn wait(&self, most_ns: u64) -> Result<bool, WireError> {
        let mut wanted = PollFlags::IN;
        if self.waiting_bytes() > 0 {
            wanted |= PollFlags::OUT;
        }
        let mut polled = [PollFd::new(&self.stream, wanted)];
        let timeout = Timespec {
            tv_sec: i64::try_from(most_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(most_ns % 1_000_000_000).unwrap_or(0),
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let other = PollFlags::HUP | PollFlags::ERR;
        Ok(polled[0].revents().intersects(PollFlags::IN | other))
    }

    /// Takes in what has come. `false`: nothing.
    pub(crate) fn receive(&mut self) -> Result<bool, WireError> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        }
        if self.filled == self.input.len() {
            self.input.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
            if self.filled == self.input.len() {
                // A frame that is larger; each codec refuses one that is larger than can be, as
                // soon as it says its size.
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

    /// Bytes that have come and were not taken.
    #[inline]
    pub(crate) fn received(&self) -> &[u8] {
        &self.input[self.taken..self.filled]
    }

    /// The same, with the output for what is to be said to it.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.input[self.taken..self.filled], &mut self.out)
    }

    /// Takes so many bytes of it.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.filled);
    }
}
