//! The layers between a socket and a session: TLS, then compression.
//!
//! ```text
//! socket ──raw──▶ [ TLS ] ──▶ [ Snappy | Deflate ] ──plain──▶ session
//! ```
//!
//! No I/O here: raw bytes are fed, plain bytes are read, and the other way round. A connection
//! without layers has no `Layers` and pays nothing for them. Memory is bounded: raw bytes are
//! taken one socket read at a time, and inflated only as far as the reader has room.

mod deflate;
mod snappy;
pub(crate) mod tls;

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use cloverleaf_nsq::identify::Compression;
use cloverleaf_nsq::stats::clients::ClientTls;
use rustls::{ProtocolVersion, ServerConfig, ServerConnection};
use thiserror::Error;

use crate::half_received::FREE_BYTES;
use crate::transport::deflate::{Deflater, Inflater};
use crate::transport::snappy::{SnappyReader, SnappyWriter};

/// Most bytes that are taken out of TLS at once for a decompressor.
const STEP_BYTES: usize = 16 * 1024;

/// Bytes that a layer could not decode.
#[derive(Debug, Error)]
pub(crate) enum LayerError {
    /// TLS failed: the handshake, or a record.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The TLS library's own buffers.
    #[error("TLS: {0}")]
    TlsBuffer(#[from] io::Error),
    /// The compressed stream is malformed.
    #[error("{0}")]
    Compressed(&'static str),
}

/// Bytes that wait to be taken from the front.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: BytesMut,
    taken: usize,
}

impl Inbox {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of memory that it has.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.taken + self.bytes.capacity()
    }

    /// How many bytes fit behind the others.
    pub(crate) fn spare(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// The end of the bytes, with room for `count` more, where `whole` are expected in the end.
    pub(crate) fn room(&mut self, count: usize, whole: usize) -> &mut BytesMut {
        if self.spare() < count {
            let mut larger = BytesMut::with_capacity(self.size_with(count, whole));
            larger.extend_from_slice(&self.bytes);
            (self.bytes, self.taken) = (larger, 0);
        }
        &mut self.bytes
    }

    /// Bytes of memory that it would have with `count` more. It grows with what has come: with
    /// huge pages room that nobody has written to is memory, too. A step is a quarter, so that
    /// what comes in small pieces is not copied for each; and once a quarter is there the last one
    /// is for the whole.
    pub(crate) fn size_with(&self, count: usize, whole: usize) -> usize {
        let came = self.bytes.len() + count;
        if came <= FREE_BYTES {
            // A part of what a connection may have for nothing stays that.
            return came;
        }
        let is_quarter = came.saturating_mul(4) >= whole;
        match (is_quarter, self.bytes.is_empty()) {
            (true, _) => whole.max(came),
            (false, true) => came,
            (false, false) => came + came / 4,
        }
    }

    /// The bytes themselves, for whoever may take them as a whole.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn take(&mut self, count: usize) {
        self.bytes.advance(count.min(self.bytes.len()));
        self.taken += count;
        if self.bytes.is_empty() {
            // Released: an idle connection keeps no buffer.
            *self = Inbox::default();
        } else if self.taken >= self.bytes.len() {
            *self = Inbox {
                bytes: BytesMut::from(&self.bytes[..]),
                taken: 0,
            };
        }
    }
}

/// The compression of both directions.
enum Compressor {
    Snappy(Box<(SnappyReader, SnappyWriter)>),
    Deflate(Box<(Inflater, Deflater)>),
}

/// The layers of one connection.
#[derive(Default)]
pub(crate) struct Layers {
    tls: Option<Box<ServerConnection>>,
    tls_inbox: Inbox,
    tls_records: Records,
    compressor: Option<Compressor>,
    compressed_inbox: Inbox,
    /// Bytes came since [`Layers::wants_rest`] was asked last.
    is_fresh: bool,
    ended: bool,
}

impl Layers {
    /// Puts TLS on top of the raw stream.
    pub(crate) fn add_tls(&mut self, config: Arc<ServerConfig>) -> Result<(), LayerError> {
        let mut connection = ServerConnection::new(config)?;
        // We hand over at most one output round at a time and take all of it at once.
        connection.set_buffer_limit(None);
        self.tls = Some(Box::new(connection));
        Ok(())
    }

    /// Puts compression on top of what is there.
    pub(crate) fn add_compression(&mut self, compression: Compression) {
        self.compressor = Some(match compression {
            Compression::Snappy => Compressor::Snappy(Box::default()),
            Compression::Deflate(level) => {
                Compressor::Deflate(Box::new((Inflater::new(), Deflater::new(level))))
            }
        });
    }

    /// Bytes that were read before the topmost layer was added, and belong to it.
    pub(crate) fn feed_top(&mut self, bytes: &[u8]) {
        match self.compressor {
            Some(_) => self.compressed_inbox.push(bytes),
            None => self.feed_tls(bytes),
        }
    }

    /// Bytes from the socket.
    pub(crate) fn feed(&mut self, raw: &[u8]) {
        self.is_fresh = true;
        match self.tls {
            Some(_) => self.feed_tls(raw),
            None => self.compressed_inbox.push(raw),
        }
    }

    fn feed_tls(&mut self, raw: &[u8]) {
        self.tls_records.pass(raw);
        self.tls_inbox.push(raw);
    }

    /// Whether what was fed last ended inside a record or chunk, the rest of which is on its way.
    /// To be asked when nothing is left to be read; says so once for each feeding.
    pub(crate) fn wants_rest(&mut self) -> bool {
        let holds_part = self.tls_records.is_inside() || !self.compressed_inbox.rest().is_empty();
        std::mem::take(&mut self.is_fresh) && holds_part
    }

    /// Whether nothing was fed since it turned out that more is needed.
    pub(crate) fn is_drained(&self) -> bool {
        !self.is_fresh
    }

    /// Plain bytes, as far as they are known; 0 when more raw bytes are needed.
    pub(crate) fn read(&mut self, plain: &mut [u8]) -> Result<usize, LayerError> {
        let Some(compressor) = &mut self.compressor else {
            return match &mut self.tls {
                Some(tls) => read_tls(tls, &mut self.tls_inbox, plain, &mut self.ended),
                None => Ok(0),
            };
        };
        loop {
            let inbox = &mut self.compressed_inbox;
            let read = match compressor {
                Compressor::Snappy(both) => both.0.read(inbox, plain)?,
                Compressor::Deflate(both) => both.0.read(inbox, plain)?,
            };
            if read > 0 {
                return Ok(read);
            }
            let Some(tls) = &mut self.tls else {
                return Ok(0);
            };
            let mut step = [0; STEP_BYTES];
            match read_tls(tls, &mut self.tls_inbox, &mut step, &mut self.ended)? {
                0 => return Ok(0),
                read => self.compressed_inbox.push(&step[..read]),
            }
        }
    }

    /// Whether the peer said that it sends no more.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Turns plain bytes, which come in parts, into raw ones, flushed: the peer can read all of
    /// them. Without any it yields what the layers have to say themselves.
    pub(crate) fn write<'a>(
        &mut self,
        parts: impl Iterator<Item = &'a [u8]>,
        raw: &mut Vec<u8>,
    ) -> Result<(), LayerError> {
        let Some(compressor) = &mut self.compressor else {
            return match &mut self.tls {
                Some(tls) => write_tls(tls, parts, raw),
                None => {
                    parts.for_each(|part| raw.extend_from_slice(part));
                    Ok(())
                }
            };
        };
        let mut compressed = Vec::new();
        for part in parts {
            match compressor {
                Compressor::Snappy(both) => both.1.write(part, &mut compressed)?,
                Compressor::Deflate(both) => both.1.write(part, &mut compressed)?,
            }
        }
        match &mut self.tls {
            Some(tls) => write_tls(tls, std::iter::once(&compressed[..]), raw),
            None => {
                raw.extend_from_slice(&compressed);
                Ok(())
            }
        }
    }

    /// Says goodbye, where a layer has a word for it.
    pub(crate) fn close(&mut self, raw: &mut Vec<u8>) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The connection ends anyway, with or without the last word.
            let _ = self.write(std::iter::empty(), raw);
        }
    }

    /// Whether the TLS handshake is still going on.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// The TLS parameters that were negotiated, in nsqd's words.
    pub(crate) fn tls_facts(&self) -> Option<ClientTls> {
        let tls = self.tls.as_ref()?;
        let suite = tls.negotiated_cipher_suite();
        let version = match tls.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLS1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLS1.2",
            _ => "",
        };
        let protocol = tls.alpn_protocol().unwrap_or_default();
        Some(ClientTls {
            cipher_suite: suite.map_or(String::new(), |suite| {
                suite.suite().as_str().unwrap_or_default().to_owned()
            }),
            version: version.to_owned(),
            negotiated_protocol: String::from_utf8_lossy(protocol).into_owned(),
        })
    }

    /// Whether the stream is encrypted.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The client's certificate, DER.
    pub(crate) fn client_certificate(&self) -> Option<&[u8]> {
        let certificates = self.tls.as_ref()?.peer_certificates()?;
        certificates.first().map(AsRef::as_ref)
    }
}

/// Finds out whether the raw stream ends inside a TLS record, which the TLS library does not tell.
///
/// ```text
/// | type u8 | version u16 | length u16 | length bytes |
/// ```
#[derive(Default)]
struct Records {
    /// How many bytes of a header have come.
    header_bytes: u8,
    /// The length of the record: of its body what has not come.
    left: u16,
}

impl Records {
    const HEADER_BYTES: u8 = 5;

    fn pass(&mut self, mut raw: &[u8]) {
        loop {
            if self.header_bytes == Self::HEADER_BYTES {
                let count = raw.len().min(usize::from(self.left));
                raw = &raw[count..];
                // It is at most `left`.
                self.left -= count as u16;
                if self.left > 0 {
                    return;
                }
                self.header_bytes = 0;
            }
            let Some((byte, rest)) = raw.split_first() else {
                return;
            };
            raw = rest;
            self.header_bytes += 1;
            if self.header_bytes >= Self::HEADER_BYTES - 1 {
                self.left = self.left << 8 | u16::from(*byte);
            }
        }
    }

    fn is_inside(&self) -> bool {
        self.header_bytes > 0
    }
}

/// Encrypts the parts, as few records as they need.
fn write_tls<'a>(
    tls: &mut ServerConnection,
    parts: impl Iterator<Item = &'a [u8]>,
    raw: &mut Vec<u8>,
) -> Result<(), LayerError> {
    let parts: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
    if !parts.is_empty() {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        // Without a buffer limit it takes all.
        let taken = tls.writer().write_vectored(&parts)?;
        if taken != bytes {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
    }
    while tls.wants_write() {
        tls.write_tls(raw)?;
    }
    Ok(())
}

/// Plain bytes out of TLS; 0 when it needs more raw ones.
fn read_tls(
    tls: &mut ServerConnection,
    inbox: &mut Inbox,
    plain: &mut [u8],
    ended: &mut bool,
) -> Result<usize, LayerError> {
    loop {
        match tls.reader().read(plain) {
            Ok(0) => {
                *ended = true;
                return Ok(0);
            }
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let mut rest = inbox.rest();
        if rest.is_empty() {
            return Ok(0);
        }
        let taken = tls.read_tls(&mut rest)?;
        inbox.take(taken);
        tls.process_new_packets()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_record_is_known_in_any_pieces() {
        let stream = b"\x16\x03\x01\x00\x03abc\x17\x03\x03\x01\x01";
        let stream = [&stream[..], &[7; 257][..], b"\x17\x03\x03\x00\x00"].concat();
        let ends = [8, 8 + 5 + 257, stream.len()];
        for piece in [1, 2, 3, 7, 100, stream.len()] {
            let mut records = Records::default();
            let mut seen = 0;
            for bytes in stream.chunks(piece) {
                records.pass(bytes);
                seen += bytes.len();
                assert_eq!(!records.is_inside(), ends.contains(&seen), "{seen}");
            }
        }
    }
}
