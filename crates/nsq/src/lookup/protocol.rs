//! The wire protocol between nsqd and nsqlookupd, seen from nsqd.
//!
//! ```text
//! connection:  "  V1"
//! commands:    IDENTIFY\n [ size: u32 ][ JSON ]
//!              REGISTER <topic> [ <channel>]\n
//!              UNREGISTER <topic> [ <channel>]\n
//!              PING\n
//! answers:     [ size: i32 ][ bytes ]         big endian; "OK", JSON for IDENTIFY, or "E_..."
//! ```
//!
//! Every command has exactly one answer, in order. Source: nsqd 1.3 `nsqd/lookup_peer.go`,
//! `nsqlookupd/lookup_protocol_v1.go`.

use bytes::{Buf, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// First bytes of a connection.
pub const MAGIC: &[u8] = b"  V1";

/// nsqd's description of itself for nsqlookupd, which passes it on to consumers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LookupIdentity {
    /// Address under which consumers reach this broker.
    pub broadcast_address: String,
    /// Name of this machine.
    pub hostname: String,
    /// Port of the HTTP interface.
    pub http_port: u16,
    /// Port of the TCP protocol.
    pub tcp_port: u16,
    /// Region, empty if not configured.
    pub topology_region: String,
    /// Zone, empty if not configured.
    pub topology_zone: String,
    /// NSQ version that is spoken.
    pub version: String,
}

/// nsqlookupd's answer to IDENTIFY.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LookupdInfo {
    /// Port of its TCP protocol.
    pub tcp_port: u16,
    /// Port of its HTTP interface.
    pub http_port: u16,
    /// Its version.
    pub version: String,
    /// Address under which its HTTP interface is reached; empty from very old versions.
    pub broadcast_address: String,
}

/// A topic, or a channel of a topic, to be registered at nsqlookupd. A topic sorts before its
/// channels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Registration {
    /// Name of the topic.
    pub topic: String,
    /// Name of the channel, or none for the topic itself.
    pub channel: Option<String>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupCommand<'a> {
    /// First command of a connection.
    Identify(&'a LookupIdentity),
    /// This broker has the topic or channel.
    Register(&'a Registration),
    /// This broker no longer has the topic or channel.
    Unregister(&'a Registration),
    /// Keep-alive: nsqlookupd considers a broker inactive after 300 s without one.
    Ping,
}

impl LookupCommand<'_> {
    /// Appends the command's bytes to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            LookupCommand::Identify(identity) => {
                // Serializing a struct of strings and numbers cannot fail.
                let body = serde_json::to_vec(identity).unwrap_or_default();
                out.extend_from_slice(b"IDENTIFY\n");
                out.extend_from_slice(&(body.len() as u32).to_be_bytes());
                out.extend_from_slice(&body);
            }
            LookupCommand::Register(what) => encode_registration("REGISTER", what, out),
            LookupCommand::Unregister(what) => encode_registration("UNREGISTER", what, out),
            LookupCommand::Ping => out.extend_from_slice(b"PING\n"),
        }
    }
}

fn encode_registration(command: &str, what: &Registration, out: &mut BytesMut) {
    out.extend_from_slice(command.as_bytes());
    for name in std::iter::once(&what.topic).chain(&what.channel) {
        out.extend_from_slice(b" ");
        out.extend_from_slice(name.as_bytes());
    }
    out.extend_from_slice(b"\n");
}

/// An answer announces a length that no answer can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {size} bytes is announced, {size_max} are allowed")]
pub struct AnswerTooLarge {
    /// The announced size.
    pub size: i32,
    /// The maximum size that is accepted.
    pub size_max: usize,
}

/// Splits the bytes of a connection into answers.
#[derive(Debug)]
pub struct AnswerDecoder {
    buffer: BytesMut,
    size_max: usize,
}

impl AnswerDecoder {
    /// A decoder that refuses answers of more than `size_max` bytes.
    pub fn new(size_max: usize) -> AnswerDecoder {
        AnswerDecoder {
            buffer: BytesMut::new(),
            size_max,
        }
    }

    /// Adds bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Drops all buffered bytes, for a new connection.
    pub fn clear(&mut self) {
        self.buffer = BytesMut::new();
    }

    /// The next whole answer, or `None` until more bytes have come.
    ///
    /// # Errors
    /// [`AnswerTooLarge`], also for a negative size; the connection cannot be used
    /// afterwards.
    pub fn next_answer(&mut self) -> Result<Option<Bytes>, AnswerTooLarge> {
        let Some(head) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let announced = i32::from_be_bytes(*head);
        let size = usize::try_from(announced)
            .ok()
            .filter(|size| *size <= self.size_max);
        let Some(size) = size else {
            return Err(AnswerTooLarge {
                size: announced,
                size_max: self.size_max,
            });
        };
        if self.buffer.len() - 4 < size {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(size).freeze()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    fn encoded(command: LookupCommand<'_>) -> Vec<u8> {
        let mut out = BytesMut::new();
        command.encode(&mut out);
        out.to_vec()
    }

    fn registration(topic: &str, channel: Option<&str>) -> Registration {
        Registration {
            topic: topic.into(),
            channel: channel.map(Into::into),
        }
    }

    #[test]
    fn commands_are_lines() {
        let channel = registration("t", Some("c#ephemeral"));
        assert_eq!(
            encoded(LookupCommand::Register(&channel)),
            b"REGISTER t c#ephemeral\n"
        );
        let topic = registration("t", None);
        assert_eq!(
            encoded(LookupCommand::Unregister(&topic)),
            b"UNREGISTER t\n"
        );
        assert_eq!(encoded(LookupCommand::Ping), b"PING\n");
    }

    #[test]
    fn identify_carries_all_fields_that_nsqlookupd_requires() {
        let identity = LookupIdentity {
            broadcast_address: "b".into(),
            hostname: "h".into(),
            http_port: 4151,
            tcp_port: 4150,
            topology_region: String::new(),
            topology_zone: "z".into(),
            version: "1.3.0".into(),
        };
        let bytes = encoded(LookupCommand::Identify(&identity));
        let (line, rest) = bytes.split_at(9);
        assert_eq!(line, b"IDENTIFY\n");
        let (size, body) = rest.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_be_bytes(*size) as usize, body.len());
        let json: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert_eq!(json["tcp_port"], 4150);
        assert_eq!(json["http_port"], 4151);
        assert_eq!(json["version"], "1.3.0");
        assert_eq!(json["broadcast_address"], "b");
        assert_eq!(json["hostname"], "h");
        assert_eq!(json["topology_zone"], "z");
        assert_eq!(json["topology_region"], "");
    }

    #[test]
    fn a_topic_sorts_before_its_channels() {
        assert!(registration("t", None) < registration("t", Some("a")));
    }

    #[test]
    fn answers_may_come_in_pieces() {
        let mut decoder = AnswerDecoder::new(10);
        decoder.push(b"\0\0\0\x02O");
        assert_eq!(decoder.next_answer(), Ok(None));
        decoder.push(b"K\0\0\0\0\0\0");
        assert_eq!(decoder.next_answer(), Ok(Some(Bytes::from_static(b"OK"))));
        assert_eq!(decoder.next_answer(), Ok(Some(Bytes::new())));
        assert_eq!(decoder.next_answer(), Ok(None));
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        for head in [&b"\0\0\0\x0b"[..], b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"] {
            let mut decoder = AnswerDecoder::new(10);
            decoder.push(head);
            assert!(decoder.next_answer().is_err(), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_within_their_bounds(
            pieces in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..40), 0..10),
        ) {
            let total: usize = pieces.iter().map(Vec::len).sum();
            let mut decoder = AnswerDecoder::new(64);
            let mut seen = 0;
            'pieces: for piece in &pieces {
                decoder.push(piece);
                loop {
                    match decoder.next_answer() {
                        Ok(Some(answer)) => {
                            prop_assert!(answer.len() <= 64);
                            seen += answer.len() + 4;
                        }
                        Ok(None) => break,
                        Err(_) => break 'pieces,
                    }
                }
            }
            prop_assert!(seen <= total);
        }
    }
}
