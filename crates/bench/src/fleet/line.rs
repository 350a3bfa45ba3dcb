//! One conversation: a socket from which a thread reads, and to which anybody writes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{FrameError, Frames, encode};

/// Who takes nothing for so long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 64 << 10;

/// Why a conversation has ended.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum LineError {
    #[error("the connection was closed")]
    Closed,
    #[error("nothing was heard in time")]
    Silent,
    #[error("{0}")]
    Broken(String),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl From<std::io::Error> for LineError {
    fn from(error: std::io::Error) -> LineError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => LineError::Silent,
            _ => LineError::Broken(error.to_string()),
        }
    }
}

/// The writing half.
#[derive(Debug)]
pub(super) struct Speaker(Mutex<TcpStream>);

impl Speaker {
    /// Says something.
    pub(super) fn say(&self, said: &impl Serialize) -> Result<(), LineError> {
        let bytes = encode(said).ok_or(LineError::Broken("it cannot be said".to_owned()))?;
        Ok(self.0.lock().write_all(&bytes)?)
    }

    /// Ends the conversation; who reads hears of it.
    pub(super) fn hang_up(&self) {
        // What is not connected any more needs no end.
        let _ = self.0.lock().shutdown(Shutdown::Both);
    }
}

/// The reading half.
#[derive(Debug)]
pub(super) struct Listener {
    stream: TcpStream,
    frames: Frames,
    buffer: Vec<u8>,
}

impl Listener {
    /// What is said next; waits for it at most so long, if a time is given.
    pub(super) fn hear<T: DeserializeOwned>(
        &mut self,
        patience: Option<Duration>,
    ) -> Result<T, LineError> {
        self.stream.set_read_timeout(patience)?;
        loop {
            if let Some(said) = self.frames.next()? {
                return Ok(said);
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(LineError::Closed),
                Ok(bytes) => self.frames.push(&self.buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// From now on so much may be said at once.
    pub(super) fn allow(&mut self, most: usize) {
        self.frames.allow(most);
    }
}

/// Both halves of a socket; at most `most` bytes are listened to at once.
pub(super) fn halves(stream: TcpStream, most: usize) -> Result<(Speaker, Listener), LineError> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let listener = Listener {
        stream: stream.try_clone()?,
        frames: Frames::new(most),
        buffer: vec![0; READ_BYTES],
    };
    Ok((Speaker(Mutex::new(stream)), listener))
}
