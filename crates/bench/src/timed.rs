//! A connection for one short exchange with a deadline, which a peer that sends a byte now and then
//! cannot extend.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The connection.
#[derive(Debug)]
pub(crate) struct Timed {
    stream: TcpStream,
    end: Instant,
}

impl Timed {
    /// Connects. The deadline covers connecting and all later reads and writes.
    pub(crate) fn connect(address: &SocketAddr, most: Duration) -> io::Result<Timed> {
        let end = Instant::now() + most;
        Ok(Timed {
            stream: TcpStream::connect_timeout(address, most)?,
            end,
        })
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::Error::new(ErrorKind::TimedOut, "it takes too long"))
        } else {
            Ok(Some(left))
        }
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::TcpListener;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;

    use super::*;

    #[test]
    fn a_byte_now_and_then_does_not_keep_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (over, is_over) = channel::<()>();
        let drips = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let pause = Duration::from_millis(20);
            while is_over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                // A reader that has heard enough is gone.
                let _ = stream.write_all(b"x");
            }
        });
        // Some bytes come in that time on any machine; without the limit they never end.
        let mut timed = Timed::connect(&address, Duration::from_secs(2)).unwrap();
        let mut bytes = Vec::new();
        let error = timed.read_to_end(&mut bytes).unwrap_err();
        let kinds = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert!(!bytes.is_empty());
        // The kernel's timer may be a little early; once it is late, nothing goes any more.
        while timed.write_all(b"more").is_ok() {
            thread::yield_now();
        }
        drop(over);
        drips.join().unwrap();
    }
}
