//! A connection to a broker that is never waited for longer than until a given time.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::codec::{Frame, FrameError, frame};

/// Until a connection is made, and for each answer before the measurement.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Room that is read into at once.
const READ_BYTES: usize = 256 << 10;
/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    /// The system says so.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The broker has closed it.
    #[error("it closed the connection")]
    Closed,
    /// What it sends is not NSQ's protocol.
    #[error("{0}")]
    Frame(#[from] FrameError),
}

/// Bytes on their way out and in.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// What is to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// What has come and is not used: `taken..filled`.
    input: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Most bytes of a frame.
    frame_bytes_max: usize,
}

impl Wire {
    /// Connects.
    pub(super) fn connect(address: SocketAddr, frame_bytes_max: usize) -> io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Wire {
            stream,
            out: Vec::new(),
            sent: 0,
            input: vec![0; READ_BYTES],
            taken: 0,
            filled: 0,
            frame_bytes_max,
        })
    }

    /// Where what is to be sent is written.
    #[inline]
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that wait to be sent.
    #[inline]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what the system takes.
    pub(super) fn send(&mut self) -> Result<(), WireError> {
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match send(
                &self.stream,
                rest,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(bytes) => self.sent += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    // What is sent makes room, now and then.
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

    /// Waits until something came or can be sent, but no longer than so many nanoseconds. `true`:
    /// something came.
    pub(super) fn wait(&self, most_ns: u64) -> Result<bool, WireError> {
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
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let other = PollFlags::HUP | PollFlags::ERR;
        Ok(polled[0].revents().intersects(PollFlags::IN | other))
    }

    /// Takes in what has come. `false`: nothing.
    pub(super) fn receive(&mut self) -> Result<bool, WireError> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        }
        if self.filled == self.input.len() {
            self.input.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
            if self.filled == self.input.len() {
                // A frame that is larger; the codec bounds it.
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
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Hands over each frame that is whole, with the output for what is to be said to it.
    pub(super) fn frames(
        &mut self,
        mut each: impl FnMut(Frame<'_>, &mut Vec<u8>),
    ) -> Result<(), WireError> {
        while let Some((frame, used)) =
            frame(&self.input[self.taken..self.filled], self.frame_bytes_max)?
        {
            self.taken += used;
            each(frame, &mut self.out);
        }
        Ok(())
    }
}
