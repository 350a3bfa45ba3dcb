//! A plain blocking NSQ client (protocol V2): the tests that send what no library would send, and
//! the measurements that no library's own cost may blur, use it.
//!
//! A frame from the broker, integers big-endian:
//!
//! ```text
//! size u32 | type u32: 0 response, 1 error, 2 message | data, size − 4 bytes
//! a message: timestamp i64 (ns) | attempts u16 | id, 16 bytes | body
//! ```

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait;

/// No frame of a test is larger; a larger one is a broken stream.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// One frame from the broker.
#[derive(Debug)]
pub(crate) enum Frame {
    Response(Vec<u8>),
    Error(String),
    Message(Message),
}

/// A delivered message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) attempts: u16,
    pub(crate) id: [u8; 16],
    pub(crate) body: Vec<u8>,
}

/// A connection after the magic `  V2`.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// Connects and says `  V2`; reads fail when nothing comes for ever.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let mut connection = Self::open_raw(address)?;
        connection.send(b"  V2")?;
        Ok(connection)
    }

    /// Connects and says nothing.
    pub(crate) fn open_raw(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, wait::HANG)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(wait::HANG))?;
        Ok(Self {
            reader: BufReader::with_capacity(64 << 10, stream),
        })
    }

    /// Connects as a consumer with `window` messages in flight.
    pub(crate) fn consumer(
        address: SocketAddr,
        topic: &str,
        channel: &str,
        window: u32,
    ) -> Result<Self> {
        let mut connection = Self::open(address)?;
        connection.ask(format!("SUB {topic} {channel}\n").as_bytes())?;
        connection.send(format!("RDY {window}\n").as_bytes())?;
        Ok(connection)
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.reader.get_mut().write_all(bytes)?;
        Ok(())
    }

    /// The next frame; heartbeats are answered and passed over.
    pub(crate) fn frame(&mut self) -> Result<Frame> {
        loop {
            let mut head = [0_u8; 8];
            self.reader
                .read_exact(&mut head)
                .context("the broker closed the connection")?;
            let [s0, s1, s2, s3, t0, t1, t2, t3] = head;
            let size = u32::from_be_bytes([s0, s1, s2, s3]) as usize;
            if !(4..=FRAME_BYTES_MAX).contains(&size) {
                bail!("a frame of {size} bytes");
            }
            let mut data = vec![0; size - 4];
            self.reader.read_exact(&mut data)?;
            match u32::from_be_bytes([t0, t1, t2, t3]) {
                0 if data == b"_heartbeat_" => self.send(b"NOP\n")?,
                0 => return Ok(Frame::Response(data)),
                1 => return Ok(Frame::Error(String::from_utf8_lossy(&data).into_owned())),
                2 => return Ok(Frame::Message(message(&data)?)),
                other => bail!("a frame of unknown type {other}"),
            }
        }
    }

    /// Sends a command and returns its answer; an error frame is an error.
    pub(crate) fn ask(&mut self, command: &[u8]) -> Result<Vec<u8>> {
        self.send(command)?;
        match self.frame()? {
            Frame::Response(data) => Ok(data),
            Frame::Error(text) => bail!("{text}"),
            Frame::Message(_) => bail!("a message where an answer was due"),
        }
    }

    /// Publishes one message and waits for its OK.
    pub(crate) fn publish(&mut self, topic: &str, body: &[u8]) -> Result<()> {
        match self.ask(&publish_command(topic, body))?.as_slice() {
            b"OK" => Ok(()),
            other => bail!("answer {:?} to PUB", String::from_utf8_lossy(other)),
        }
    }

    /// The next message, which is not finished yet.
    pub(crate) fn message(&mut self) -> Result<Message> {
        loop {
            match self.frame()? {
                Frame::Message(message) => return Ok(message),
                Frame::Error(text) => bail!("{text}"),
                Frame::Response(_) => {}
            }
        }
    }

    /// Sends FIN.
    pub(crate) fn finish(&mut self, id: &[u8; 16]) -> Result<()> {
        let mut command = *b"FIN 0000000000000000\n";
        command[4..20].copy_from_slice(id);
        self.send(&command)
    }

    /// Whether the broker closes the connection, having sent whatever it likes before.
    pub(crate) fn is_closed_within(&mut self, most: Duration) -> Result<bool> {
        self.stream().set_read_timeout(Some(most))?;
        loop {
            let seen = match self.reader.fill_buf() {
                Ok([]) => return Ok(true),
                Ok(bytes) => bytes.len(),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Ok(true),
            };
            self.reader.consume(seen);
        }
    }
}

/// The bytes of a PUB.
pub(crate) fn publish_command(topic: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("PUB {topic}\n").into_bytes();
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// The bytes of an MPUB.
pub(crate) fn multi_publish_command(topic: &str, bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("MPUB {topic}\n").into_bytes();
    let size: usize = 4 + bodies.iter().map(|body| 4 + body.len()).sum::<usize>();
    bytes.extend((size as u32).to_be_bytes());
    bytes.extend((bodies.len() as u32).to_be_bytes());
    for body in bodies {
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(body);
    }
    bytes
}

fn message(data: &[u8]) -> Result<Message> {
    let attempts = data
        .get(8..10)
        .and_then(|b| b.try_into().ok())
        .map(u16::from_be_bytes);
    let id = data.get(10..26).and_then(|b| b.try_into().ok());
    match (attempts, id, data.get(26..)) {
        (Some(attempts), Some(id), Some(body)) => Ok(Message {
            attempts,
            id,
            body: body.to_vec(),
        }),
        _ => bail!("a message frame of {} bytes", data.len()),
    }
}
