//! A connection between coordinator and worker. One thread reads from the socket, and any thread
//! may write to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};

use super::frame::{FrameError, Frames, encode};

/// TCP keepalive for a silent peer: the idle time before the first probe, the interval between
/// probes, and the number of unanswered probes after which the kernel closes the connection.
const ASK_AFTER: Duration = Duration::from_secs(30);
const ASK_INTERVAL: Duration = Duration::from_secs(10);
const ASK_RETRIES: u32 = 6;
/// A write fails if the peer reads nothing for this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 64 << 10;

/// Why a connection has ended.
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
    /// Sends a message.
    pub(super) fn say(&self, said: &impl Serialize) -> Result<(), LineError> {
        let bytes = encode(said).ok_or(LineError::Broken("it cannot be said".to_owned()))?;
        Ok(self.0.lock().write_all(&bytes)?)
    }

    /// Closes the connection in both directions. The reading thread gets an error.
    pub(super) fn hang_up(&self) {
        // An error means that the connection is closed already.
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
    /// The next message. If `patience` is given, the whole message has to arrive within it.
    pub(super) fn hear<T: DeserializeOwned>(
        &mut self,
        patience: Option<Duration>,
    ) -> Result<T, LineError> {
        let until = patience.map(|patience| Instant::now() + patience);
        self.stream.set_read_timeout(None)?;
        loop {
            if let Some(said) = self.frames.next()? {
                return Ok(said);
            }
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(LineError::Silent);
                }
                self.stream.set_read_timeout(Some(left))?;
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(LineError::Closed),
                Ok(bytes) => self.frames.push(&self.buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets the maximum of a message's bytes.
    pub(super) fn allow(&mut self, most: usize) {
        self.frames.allow(most);
    }
}

/// Splits a socket into its halves. Messages that are received have at most `most` bytes.
pub(super) fn halves(stream: TcpStream, most: usize) -> Result<(Speaker, Listener), LineError> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(ASK_AFTER)
        .with_interval(ASK_INTERVAL)
        .with_retries(ASK_RETRIES);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let listener = Listener {
        stream: stream.try_clone()?,
        frames: Frames::new(most),
        buffer: vec![0; READ_BYTES],
    };
    Ok((Speaker(Mutex::new(stream)), listener))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn who_speaks_slowly_has_no_more_time() {
        let (near, mut far) = pair();
        let (_speaker, mut listener) = halves(near, 64 << 20).unwrap();
        far.set_nodelay(true).unwrap();
        // Each byte arrives soon, but the whole message would take very long.
        let slow = thread::spawn(move || {
            far.write_all(&(64u32 << 20).to_be_bytes()).unwrap();
            while far.write_all(b" ").is_ok() {}
        });
        let begun = Instant::now();
        let heard = listener.hear::<String>(Some(Duration::from_millis(100)));
        assert!(matches!(heard, Err(LineError::Silent)), "{heard:?}");
        assert!(begun.elapsed() < Duration::from_secs(60));
        drop((listener, _speaker));
        slow.join().unwrap();
    }

    #[test]
    fn a_long_silence_is_no_end_and_a_lost_machine_is() {
        let (near, mut far) = pair();
        let (speaker, mut listener) = halves(near, 1 << 10).unwrap();
        let heard = listener.hear::<String>(Some(Duration::from_millis(10)));
        assert!(matches!(heard, Err(LineError::Silent)), "{heard:?}");
        far.write_all(&encode(&"here").unwrap()).unwrap();
        assert_eq!(listener.hear::<String>(None).unwrap(), "here");
        assert_eq!(listener.stream.read_timeout().unwrap(), None);
        let socket = speaker.0.lock();
        let socket = SockRef::from(&*socket);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), ASK_AFTER);
    }
}
