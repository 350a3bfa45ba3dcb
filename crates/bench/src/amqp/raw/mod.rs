//! AMQP without a client library, chosen by `?client=raw`. The client costs next to nothing, so the
//! measurement shows the broker's own limits. Each connection has one socket, one channel and one
//! thread.

mod codec;
mod consumer;
mod producer;

use std::net::SocketAddr;

use crate::driver::DriverError;
use crate::plan::Plan;
use crate::reader::Reader;
use crate::url::Url;
use crate::wire::{Wire, WireError, put_sized, told};

use codec::{CHANNEL, Frame, Frames, Name, put_method, put_short};

pub(super) use consumer::RawReceiver;
pub(super) use producer::RawPublisher;

/// Protocol header of AMQP 0-9-1.
const PROTOCOL: &[u8; 8] = b"AMQP\0\0\x09\x01";
/// The largest frame size that the client agrees to (`frame-max`).
const FRAME_BYTES_MAX: u32 = 128 << 10;
/// The longest short string.
const SHORT_BYTES_MAX: usize = 255;
/// Capabilities that this client announces.
const CAPABILITIES: [&str; 3] = [
    "authentication_failure_close",
    "basic.nack",
    "consumer_cancel_notify",
];

/// A connection with an open channel.
struct RawConnection {
    wire: Wire,
    url: Url,
    frames: Frames,
}

impl RawConnection {
    /// Opens connection number `number`. If the URL has several addresses, connections use them in
    /// turn.
    fn open(url: &Url, plan: &Plan, number: u32) -> Result<RawConnection, DriverError> {
        if plan.topic.len() > SHORT_BYTES_MAX {
            let what = format!("a queue's name has {SHORT_BYTES_MAX} bytes at most");
            return Err(DriverError::Unsupported { what });
        }
        let addresses = url.addresses()?;
        let place = number as usize % addresses.len().max(1);
        let address = addresses.get(place).copied();
        let address: SocketAddr = address.ok_or_else(|| url.unreachable("no address"))?;
        let wire = Wire::connect(address).map_err(|error| url.unreachable(error))?;
        let mut connection = RawConnection {
            wire,
            url: url.clone(),
            frames: Frames {
                bytes_max: FRAME_BYTES_MAX as usize,
            },
        };
        connection.log_in()?;
        connection.ask(
            CHANNEL,
            codec::CHANNEL_OPEN,
            codec::CHANNEL_OPEN_OK,
            |out| {
                put_short(out, "");
            },
        )?;
        Ok(connection)
    }

    fn log_in(&mut self) -> Result<(), DriverError> {
        self.wire.out().extend_from_slice(PROTOCOL);
        self.expect(codec::START)?;
        let user = self.url.user.clone().unwrap_or_else(|| "guest".to_owned());
        let password = self.url.password.clone();
        let password = password.unwrap_or_else(|| "guest".to_owned());
        self.say(0, codec::START_OK, |out| {
            put_sized(out, &client_properties());
            put_short(out, "PLAIN");
            put_sized(out, format!("\0{user}\0{password}").as_bytes());
            put_short(out, "en_US");
        });
        let tune = self.expect(codec::TUNE)?;
        let mut tune = Reader(&tune);
        let (channels, frame_bytes) = (tune.u16(), tune.u32());
        let frame_bytes_max = match frame_bytes.unwrap_or(0) {
            0 => FRAME_BYTES_MAX,
            theirs => theirs.min(FRAME_BYTES_MAX),
        };
        self.frames.bytes_max = frame_bytes_max as usize;
        self.say(0, codec::TUNE_OK, |out| {
            out.extend_from_slice(&channels.unwrap_or(0).to_be_bytes());
            out.extend_from_slice(&frame_bytes_max.to_be_bytes());
            // No heartbeats.
            out.extend_from_slice(&[0; 2]);
        });
        let vhost = self.url.path.clone().filter(|path| !path.is_empty());
        self.ask(0, codec::OPEN, codec::OPEN_OK, |out| {
            put_short(out, vhost.as_deref().unwrap_or("/"));
            put_short(out, "");
            out.push(0);
        })
    }

    fn say(&mut self, channel: u16, name: Name, fill: impl FnOnce(&mut Vec<u8>)) {
        put_method(self.wire.out(), channel, name, fill);
    }

    /// Sends a method, and waits for its answer.
    fn ask(
        &mut self,
        channel: u16,
        name: Name,
        answer: Name,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), DriverError> {
        self.say(channel, name, fill);
        self.expect(answer).map(drop)
    }

    /// Waits for a method, and returns its arguments.
    fn expect(&mut self, wanted: Name) -> Result<Vec<u8>, DriverError> {
        let answer = self.wire.ask(self.frames, |frame, _| match frame {
            Frame::Method(name, arguments) if name == wanted => Ok(Some(arguments.to_vec())),
            frame => closing(&frame).map(|()| None),
        });
        let answer = answer.map_err(|error| told(error, None, &self.url))?;
        answer.ok_or_else(|| self.url.unreachable("no answer"))
    }
}

/// Checks that a frame does not close the channel or the connection, and does not cancel the
/// consumer.
fn closing(frame: &Frame<'_>) -> Result<(), WireError> {
    let words = match frame {
        Frame::Method(codec::CLOSE | codec::CHANNEL_CLOSE, arguments) => {
            let mut arguments = Reader(arguments);
            arguments.u16();
            let text = arguments.short().unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        }
        Frame::Method(codec::CANCEL, _) => "it has cancelled the consumer".to_owned(),
        _ => return Ok(()),
    };
    Err(WireError::Refused(words))
}

/// The client properties, encoded as an AMQP table without its size.
fn client_properties() -> Vec<u8> {
    let mut capabilities = Vec::new();
    for name in CAPABILITIES {
        put_short(&mut capabilities, name);
        capabilities.extend_from_slice(b"t\x01");
    }
    let mut table = Vec::new();
    put_short(&mut table, "product");
    table.push(b'S');
    put_sized(&mut table, b"cloverleaf-bench");
    put_short(&mut table, "version");
    table.push(b'S');
    put_sized(&mut table, env!("CARGO_PKG_VERSION").as_bytes());
    put_short(&mut table, "capabilities");
    table.push(b'F');
    put_sized(&mut table, &capabilities);
    table
}
