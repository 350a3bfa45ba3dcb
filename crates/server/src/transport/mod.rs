//! The layers between a socket and a session: TLS, then compression.
//!
//! ```text
//! socket ──raw──▶ [ TLS ] ──▶ [ Snappy | Deflate ] ──plain──▶ session
//! ```
//!
//! No I/O: the caller feeds raw bytes and reads plain bytes, and the other way round. A connection
//! without layers has no `Layers` and pays nothing for them. Memory is bounded: raw bytes come one
//! socket read at a time, and are inflated only as far as the reader's buffer has space.

mod deflate;
mod snappy;
pub(crate) mod tls;

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use cloverleaf_nsq::identify::Compression;
use cloverleaf_nsq::stats::clients::ClientTls;
use rustls::pki_types::CertificateDer;
use rustls::{ProtocolVersion, ServerConfig, ServerConnection};
use thiserror::Error;

use crate::half_received::FREE_BYTES;
use crate::transport::deflate::{Deflater, Inflater};
use crate::transport::snappy::{SnappyReader, SnappyWriter};

/// Maximum bytes that are taken out of TLS at once for a decompressor.
const STEP_BYTES: usize = 16 * 1024;

/// Bytes that a layer could not decode or encode.
#[derive(Debug, Error)]
pub(crate) enum LayerError {
    /// TLS failed: the handshake, or a record.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The TLS library's buffers failed.
    #[error("TLS: {0}")]
    TlsBuffer(#[from] io::Error),
    /// The compressed stream is malformed.
    #[error("{0}")]
    Compressed(&'static str),
}

/// A buffer that is filled at the end and emptied from the front.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: BytesMut,
    taken: usize,
}

impl Inbox {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The memory that it uses, in bytes.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.taken + self.bytes.capacity()
    }

    /// How many bytes can be appended without an allocation.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// The buffer, with space for at least `count` more bytes; `whole` is the size that it will
    /// reach in the end.
    pub(crate) fn reserve(&mut self, count: usize, whole: usize) -> &mut BytesMut {
        if self.spare_bytes() < count {
            let mut larger = BytesMut::with_capacity(self.memory_bytes_with(count, whole));
            larger.extend_from_slice(&self.bytes);
            (self.bytes, self.taken) = (larger, 0);
        }
        &mut self.bytes
    }

    /// Bytes of memory that it would use with `count` more. It grows with the bytes that came: with
    /// huge pages, even space that was never written to takes memory. It grows by a quarter, so
    /// that a command in small pieces is not copied for each; once a quarter of the command has
    /// come, it grows to the whole.
    pub(crate) fn memory_bytes_with(&self, count: usize, whole: usize) -> usize {
        let came = self.bytes.len() + count;
        if came <= FREE_BYTES {
            // Small buffers stay exact, within the bytes that a connection has free of charge.
            return came;
        }
        let is_quarter = came.saturating_mul(4) >= whole;
        match (is_quarter, self.bytes.is_empty()) {
            (true, _) => whole.max(came),
            (false, true) => came,
            (false, false) => came + came / 4,
        }
    }

    /// The bytes themselves, for a caller that may take all of them.
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
            // The memory is freed: an idle connection keeps no buffer.
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
    tls_records: TlsRecordTracker,
    compressor: Option<Compressor>,
    compressed_inbox: Inbox,
    /// Whether bytes came since [`Layers::wants_rest`] was asked last.
    has_new_bytes: bool,
    ended: bool,
}

impl Layers {
    /// Puts TLS on top of the raw stream.
    pub(crate) fn add_tls(&mut self, config: Arc<ServerConfig>) -> Result<(), LayerError> {
        let mut connection = ServerConnection::new(config)?;
        // Each call writes one bounded step of output and takes all of it out again at once.
        connection.set_buffer_limit(None);
        self.tls = Some(Box::new(connection));
        Ok(())
    }

    /// Puts compression on top of the layers that are there.
    pub(crate) fn add_compression(&mut self, compression: Compression) {
        self.compressor = Some(match compression {
            Compression::Snappy => Compressor::Snappy(Box::default()),
            Compression::Deflate(level) => {
                Compressor::Deflate(Box::new((Inflater::new(), Deflater::new(level))))
            }
        });
    }

    /// Takes bytes that were read before the topmost layer was added, and belong to it.
    pub(crate) fn feed_top(&mut self, bytes: &[u8]) {
        match self.compressor {
            Some(_) => self.compressed_inbox.push(bytes),
            None => self.feed_tls(bytes),
        }
    }

    /// Takes bytes from the socket.
    pub(crate) fn feed(&mut self, raw: &[u8]) {
        self.has_new_bytes = true;
        match self.tls {
            Some(_) => self.feed_tls(raw),
            None => self.compressed_inbox.push(raw),
        }
    }

    fn feed_tls(&mut self, raw: &[u8]) {
        self.tls_records.track(raw);
        self.tls_inbox.push(raw);
    }

    /// Whether the bytes fed last ended inside a record or chunk, the rest of which is on its way.
    /// To be asked when there is nothing left to read; true only once per [`Layers::feed`].
    pub(crate) fn wants_rest(&mut self) -> bool {
        let holds_part = self.tls_records.is_inside() || !self.compressed_inbox.rest().is_empty();
        std::mem::take(&mut self.has_new_bytes) && holds_part
    }

    /// Whether a read has found that more raw bytes are needed, and none were fed since.
    pub(crate) fn is_drained(&self) -> bool {
        !self.has_new_bytes
    }

    /// Returns the count of plain bytes; 0 when more raw bytes are needed.
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

    /// Whether the peer has closed its side of the TLS stream.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Encodes the plain bytes of `parts` as raw bytes, flushed, so that the peer can read all of
    /// them. Without parts it yields the layers' own messages, such as those of a handshake.
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

    /// Appends TLS's closing message (`close_notify`), if there is TLS.
    pub(crate) fn close(&mut self, raw: &mut Vec<u8>) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The connection ends anyway, with or without this message.
            let _ = self.write(std::iter::empty(), raw);
        }
    }

    /// Whether the TLS handshake is still in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// The TLS parameters that were negotiated, in the words that nsqd uses.
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

    /// The client's certificate.
    pub(crate) fn client_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.as_ref()?.peer_certificates()?.first()
    }
}

/// Tracks whether the raw stream ends inside a TLS record, which the TLS library does not report.
///
/// ```text
/// | type u8 | version u16 | length u16 | length bytes |
/// ```
#[derive(Default)]
struct TlsRecordTracker {
    /// How many bytes of a header have come.
    header_bytes: u8,
    /// In the header: the bytes of the length so far. In the body: the bytes that have not come.
    left: u16,
}

impl TlsRecordTracker {
    const HEADER_BYTES: u8 = 5;

    fn track(&mut self, mut raw: &[u8]) {
        loop {
            if self.header_bytes == Self::HEADER_BYTES {
                let count = raw.len().min(usize::from(self.left));
                raw = &raw[count..];
                // Fits in u16: `count` is at most `left`.
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

/// Encrypts the parts in as few records as possible.
fn write_tls<'a>(
    tls: &mut ServerConnection,
    parts: impl Iterator<Item = &'a [u8]>,
    raw: &mut Vec<u8>,
) -> Result<(), LayerError> {
    let parts: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
    if !parts.is_empty() {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        // Without a buffer limit the library takes all of them.
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

/// Returns the count of plain bytes; 0 when TLS needs more raw ones.
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
            let mut records = TlsRecordTracker::default();
            let mut seen = 0;
            for bytes in stream.chunks(piece) {
                records.track(bytes);
                seen += bytes.len();
                assert_eq!(!records.is_inside(), ends.contains(&seen), "{seen}");
            }
        }
    }
}
