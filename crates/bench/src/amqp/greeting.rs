//! The greeting that an AMQP broker sends before the login: product and version in
//! `connection.start`, which lapin reads and does not expose.
//!
//! ```text
//! client: "AMQP" 0 0 9 1
//! broker: frame type 1 | channel 0 (u16) | size (u32) | payload | 0xCE
//! payload: class 10 (u16) | method 10 (u16) | major, minor (u8) | properties (table) | ...
//! table: size (u32) | name (u8 size, bytes), kind (u8), value | ...
//! ```
//!
//! Source: AMQP 0-9-1, sections 2.3.5, 4.2.5 and 1.4.2.1.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use crate::driver::Promise;
use crate::reader::Reader;
use crate::timed::Timed;

/// Time limit for connecting and the answer together.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest greeting that is accepted. RabbitMQ's has about 500 bytes.
const GREETING_BYTES_MAX: u32 = 64 * 1024;
/// Protocol header of AMQP 0-9-1.
const HEADER: &[u8; 8] = b"AMQP\0\0\x09\x01";
/// Class and method of `connection.start`.
const START: [u8; 4] = [0, 10, 0, 10];

/// A broker's description of itself, the server properties of `connection.start`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The properties whose value is a long string, by name.
    texts: BTreeMap<String, String>,
}

impl Greeting {
    /// Connects to this address and reads the greeting.
    ///
    /// # Errors The address does not answer, or does not answer in AMQP 0-9-1.
    pub(super) fn of(address: &SocketAddr) -> io::Result<Greeting> {
        let mut socket = Timed::connect(address, PATIENCE)?;
        socket.write_all(HEADER)?;
        read(&mut socket).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionReset => other("it has closed the connection"),
            _ => other(&format!(
                "something listens there, but it does not answer as an AMQP 0-9-1 broker ({error})"
            )),
        })
    }

    /// Whether the broker is Cloverleaf. Its `platform` says so; its `product` is the one that
    /// RabbitMQ's clients expect.
    pub(super) fn is_cloverleaf(&self) -> bool {
        self.text("platform").starts_with(CLOVERLEAF)
    }

    /// The durability that Cloverleaf states for the confirm of a persistent message in a durable
    /// queue, or of another message.
    pub(super) fn class(&self, is_persistent: bool) -> Option<Promise> {
        Promise::named(match is_persistent {
            true => self.text("cloverleaf.durability.persistent"),
            false => self.text("cloverleaf.durability.transient"),
        })
    }

    /// Product name and version.
    pub(super) fn product(&self) -> (String, String) {
        match self.text("platform").strip_prefix(CLOVERLEAF) {
            Some(version) => ("Cloverleaf".to_owned(), version.trim().to_owned()),
            None => {
                let named = |name, unnamed: &str| match self.text(name) {
                    "" => unnamed.to_owned(),
                    text => text.to_owned(),
                };
                let product = named("product", "AMQP broker");
                (product, named("version", "(it does not tell its version)"))
            }
        }
    }

    /// A greeting with these properties.
    #[cfg(test)]
    pub(super) fn with(fields: &[(&str, &str)]) -> Greeting {
        let fields = fields.iter();
        Greeting {
            texts: fields
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    fn text(&self, name: &str) -> &str {
        self.texts.get(name).map_or("", String::as_str)
    }
}

const CLOVERLEAF: &str = "Cloverleaf";

fn other(text: &str) -> io::Error {
    io::Error::other(text.to_owned())
}

fn read(input: &mut impl Read) -> io::Result<Greeting> {
    let mut head = [0; 7];
    input.read_exact(&mut head)?;
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    if head[..3] != [1, 0, 0] || size > GREETING_BYTES_MAX {
        return Err(other("its first bytes are none of AMQP 0-9-1"));
    }
    let mut payload = vec![0; size as usize];
    input.read_exact(&mut payload)?;
    parse(&payload).ok_or_else(|| other("its greeting is none of AMQP 0-9-1"))
}

/// The greeting in the payload of a method frame.
fn parse(payload: &[u8]) -> Option<Greeting> {
    let mut bytes = Reader(payload.strip_prefix(&START)?);
    bytes.take(2)?;
    let size = bytes.number(4)?;
    let mut table = Reader(bytes.take(size)?);
    let mut texts = BTreeMap::new();
    while !table.0.is_empty() {
        let name_size = table.number(1)?;
        let name = String::from_utf8_lossy(table.take(name_size)?).into_owned();
        let kind = table.number(1)?;
        let value = table.value(u8::try_from(kind).ok()?)?;
        if kind == usize::from(b'S') {
            texts.insert(name, String::from_utf8_lossy(value).into_owned());
        }
    }
    Some(Greeting { texts })
}

impl<'b> Reader<'b> {
    fn number(&mut self, size: usize) -> Option<usize> {
        let bytes = self.take(size)?.iter();
        Some(bytes.fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// The bytes of a field value of this kind, without its size.
    fn value(&mut self, kind: u8) -> Option<&'b [u8]> {
        let size = match kind {
            b't' | b'b' | b'B' => 1,
            b's' | b'u' | b'U' => 2,
            b'I' | b'i' | b'f' => 4,
            b'L' | b'l' | b'd' | b'T' => 8,
            b'D' => 5,
            b'V' => 0,
            b'S' | b'F' | b'A' | b'x' => self.number(4)?,
            _ => return None,
        };
        self.take(size)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn greeting(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut table = b"\x0ccapabilitiesF\0\0\0\x06\x03abct\x01".to_vec();
        for (name, value) in fields {
            table.push(u8::try_from(name.len()).unwrap());
            table.extend_from_slice(name.as_bytes());
            table.push(b'S');
            table.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
            table.extend_from_slice(value.as_bytes());
        }
        let mut payload = [&START[..], &[0, 9]].concat();
        payload.extend_from_slice(&u32::try_from(table.len()).unwrap().to_be_bytes());
        payload.extend_from_slice(&table);
        payload.extend_from_slice(b"\0\0\0\x05PLAIN\0\0\0\x05en_US");
        payload
    }

    fn framed(payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[1, 0, 0], &size[..], payload, b"\xce"].concat()
    }

    #[test]
    fn brokers_are_told_apart() {
        let rabbit = framed(&greeting(&[("product", "RabbitMQ"), ("version", "4.0.5")]));
        let rabbit = read(&mut &rabbit[..]).unwrap();
        assert_eq!(
            rabbit.product(),
            ("RabbitMQ".to_owned(), "4.0.5".to_owned())
        );
        assert!(!rabbit.is_cloverleaf());
        let fields = [("product", "RabbitMQ"), ("platform", "Cloverleaf 0.1.0")];
        let ours = read(&mut &framed(&greeting(&fields))[..]).unwrap();
        assert_eq!(
            ours.product(),
            ("Cloverleaf".to_owned(), "0.1.0".to_owned())
        );
        assert!(ours.is_cloverleaf());
        let silent = parse(&greeting(&[])).unwrap().product();
        assert_eq!(silent.0, "AMQP broker");
    }

    #[test]
    fn another_protocol_is_seen() {
        for answer in [
            &b"HTTP/1.1 400 Bad Request"[..],
            b"AMQP\0\0\x09\x01",
            b"",
            b"\x01\0\0",
        ] {
            assert!(read(&mut &answer[..]).is_err(), "{answer:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(mut payload: Vec<u8>) {
            let _ = parse(&payload);
            payload.splice(..0, [&START[..], &[0, 9]].concat());
            let _ = parse(&payload);
        }
    }
}
