//! A server that answers NSQ's publishes and drops the messages. Measurements against it show the
//! cost of the generator itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Bytes that one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// Bound of a command's line. Our clients send shorter ones.
const LINE_BYTES_MAX: usize = 1_024;
/// The answer to all commands: size, type "response", text.
const OK: &[u8] = b"\0\0\0\x06\0\0\0\0OK";

/// A listener, which ends with this process.
#[derive(Debug)]
pub struct Sink {
    listener: TcpListener,
}

impl Sink {
    /// Listens.
    ///
    /// # Errors
    /// The address is not available.
    pub fn bind(address: SocketAddr) -> io::Result<Sink> {
        let listener = TcpListener::bind(address)?;
        Ok(Sink { listener })
    }

    /// The address on which it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers each connection on a thread of its own. Returns only if listening fails.
    ///
    /// # Errors
    /// Listening failed.
    pub fn run(&self) -> io::Result<()> {
        loop {
            let (stream, _) = self.listener.accept()?;
            let thread = thread::Builder::new().name("sink".to_owned());
            // Errors of a connection are ignored: it is over.
            thread.spawn(move || answer(stream).ok())?;
        }
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut magic = [0; 4];
    stream.read_exact(&mut magic)?;
    let mut reader = Reader::default();
    let mut input = vec![0; READ_BYTES];
    let mut out = Vec::new();
    loop {
        let bytes = stream.read(&mut input)?;
        if bytes == 0 {
            return Ok(());
        }
        reader.take(&input[..bytes], &mut out)?;
        stream.write_all(&out)?;
        out.clear();
    }
}

/// The state of parsing commands.
#[derive(Debug, Default)]
struct Reader {
    /// The received part of a line, or of the size after it.
    begun: Vec<u8>,
    /// The line is complete, and four bytes of size follow.
    is_sized: bool,
    /// Bytes of a body that were not received.
    skip: usize,
}

impl Reader {
    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let here = self.skip.min(bytes.len());
                bytes = &bytes[here..];
                self.skip -= here;
                if self.skip == 0 {
                    out.extend_from_slice(OK);
                }
                continue;
            }
            if self.is_sized {
                let here = (4 - self.begun.len()).min(bytes.len());
                self.begun.extend_from_slice(&bytes[..here]);
                bytes = &bytes[here..];
                if let Some(size) = self.begun.first_chunk::<4>() {
                    self.skip = u32::from_be_bytes(*size) as usize;
                    self.is_sized = false;
                    self.begun.clear();
                }
                continue;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let here = end.map_or(bytes.len(), |end| end + 1);
            self.begun.extend_from_slice(&bytes[..here]);
            bytes = &bytes[here..];
            if self.begun.len() > LINE_BYTES_MAX {
                return Err(io::Error::new(ErrorKind::InvalidData, "no command"));
            }
            if end.is_some() {
                let is = |name: &str| self.begun.starts_with(name.as_bytes());
                self.is_sized = is("PUB ") || is("MPUB ") || is("IDENTIFY") || is("AUTH");
                if is("SUB ") {
                    out.extend_from_slice(OK);
                }
                self.begun.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn commands_are_answered_however_they_are_cut() {
        let commands = b"IDENTIFY\n\0\0\0\x02{}SUB t c\nRDY 5\nPUB t\n\0\0\0\x03a\nbMPUB t\n\
            \0\0\0\x09\0\0\0\x01\0\0\0\x01x";
        for size in [1, 3, 7, commands.len()] {
            let (mut reader, mut out) = (Reader::default(), Vec::new());
            for piece in commands.chunks(size) {
                reader.take(piece, &mut out).unwrap();
            }
            assert_eq!(out, OK.repeat(4), "in pieces of {size}");
        }
        let mut reader = Reader::default();
        assert!(reader.take(&[b'x'; 2_000], &mut Vec::new()).is_err());
    }
}
