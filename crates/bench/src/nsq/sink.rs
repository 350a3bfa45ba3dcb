//! A peer that answers NSQ's publishes and does nothing else: against it a generator shows what it
//! costs itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Bytes that one read takes at most.
const READ_BYTES: usize = 256 << 10;
/// Commands are lines; ours are shorter.
const LINE_BYTES_MAX: usize = 1_024;
/// The answer to everything: size, type "response", text.
const OK: &[u8] = b"\0\0\0\x06\0\0\0\0OK";

/// It listens until this process ends.
#[derive(Debug)]
pub struct Sink {
    listener: TcpListener,
}

impl Sink {
    /// Listens.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(address: SocketAddr) -> io::Result<Sink> {
        let listener = TcpListener::bind(address)?;
        Ok(Sink { listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers every connection on a thread of its own, and does not return before listening
    /// fails.
    ///
    /// # Errors
    /// Listening failed.
    pub fn run(&self) -> io::Result<()> {
        loop {
            let (stream, _) = self.listener.accept()?;
            let thread = thread::Builder::new().name("sink".to_owned());
            // A connection that breaks is over.
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

/// Where in a command the bytes stand.
#[derive(Debug, Default)]
struct Reader {
    /// The part that has come of a line, or of the size behind it.
    begun: Vec<u8>,
    /// The line is over, and four bytes of size follow.
    is_sized: bool,
    /// Bytes of a body that are still to come.
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
