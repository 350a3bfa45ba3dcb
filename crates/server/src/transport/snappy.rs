//! Snappy's framing format, both ways, for streams that come in pieces.
//!
//! ```text
//! | type u8 | length u24 le | data |
//!
//! type 0xff          stream identifier, data "sNaPpY"
//!      0x00          | masked CRC-32C u32 le | Snappy block |     at most 65,536 bytes inflated
//!      0x01          | masked CRC-32C u32 le | plain bytes |      at most 65,536
//!      0x02 - 0x7f   reserved, an error
//!      0x80 - 0xfe   padding and reserved, skipped
//! ```
//!
//! Source: google/snappy, framing_format.txt. The crate `snap` has this format only for blocking
//! readers; these return when the next piece has not come yet.

use snap::raw::{Decoder, Encoder, max_compress_len};

use crate::transport::{Inbox, LayerError};

const HEADER_BYTES: usize = 4;
const CRC_BYTES: usize = 4;
const STREAM_IDENTIFIER: u8 = 0xff;
const COMPRESSED: u8 = 0x00;
const UNCOMPRESSED: u8 = 0x01;
const IDENTIFIER: &[u8] = b"sNaPpY";

/// Maximum plain bytes of one chunk.
const CHUNK_BYTES_MAX: usize = 65_536;

/// Decodes chunks.
#[derive(Default)]
pub(crate) struct SnappyReader {
    decoder: Decoder,
    identified: bool,
    /// Inflated and not yet read.
    plain: Inbox,
    /// Bytes of a skipped chunk that have not come yet.
    skip: usize,
}

impl SnappyReader {
    /// Returns the count of plain bytes; 0 when more of the stream is needed.
    pub(crate) fn read(&mut self, inbox: &mut Inbox, out: &mut [u8]) -> Result<usize, LayerError> {
        loop {
            let ready = self.plain.rest();
            if !ready.is_empty() {
                let count = ready.len().min(out.len());
                out[..count].copy_from_slice(&ready[..count]);
                self.plain.take(count);
                return Ok(count);
            }
            if !self.next_chunk(inbox)? {
                return Ok(0);
            }
        }
    }

    /// Handles one chunk; `false` when it is not complete.
    fn next_chunk(&mut self, inbox: &mut Inbox) -> Result<bool, LayerError> {
        if self.skip > 0 {
            let count = self.skip.min(inbox.rest().len());
            inbox.take(count);
            self.skip -= count;
            return Ok(self.skip == 0);
        }
        let Some((header, rest)) = inbox.rest().split_first_chunk::<HEADER_BYTES>() else {
            return Ok(false);
        };
        let [kind, length @ ..] = *header;
        let length = u32::from_le_bytes([length[0], length[1], length[2], 0]) as usize;
        match kind {
            STREAM_IDENTIFIER => {
                if length != IDENTIFIER.len() {
                    return Err(LayerError::Compressed(
                        "Snappy: malformed stream identifier",
                    ));
                }
            }
            _ if !self.identified => {
                return Err(LayerError::Compressed("Snappy: no stream identifier"));
            }
            COMPRESSED | UNCOMPRESSED => {
                let most = CRC_BYTES + max_compress_len(CHUNK_BYTES_MAX);
                if length < CRC_BYTES || length > most {
                    return Err(LayerError::Compressed("Snappy: chunk of impossible size"));
                }
            }
            0x02..=0x7f => return Err(LayerError::Compressed("Snappy: reserved chunk")),
            0x80..=0xfe => {
                inbox.take(HEADER_BYTES);
                self.skip = length;
                return Ok(true);
            }
        }
        let Some(data) = rest.get(..length) else {
            return Ok(false);
        };
        if kind == STREAM_IDENTIFIER {
            if data != IDENTIFIER {
                return Err(LayerError::Compressed(
                    "Snappy: malformed stream identifier",
                ));
            }
            self.identified = true;
        } else {
            self.plain = Inbox::default();
            self.plain.push(&inflate(&mut self.decoder, kind, data)?);
        }
        inbox.take(HEADER_BYTES + length);
        Ok(true)
    }
}

fn inflate(decoder: &mut Decoder, kind: u8, data: &[u8]) -> Result<Vec<u8>, LayerError> {
    let malformed = LayerError::Compressed("Snappy: malformed chunk");
    let Some((crc, block)) = data.split_first_chunk::<CRC_BYTES>() else {
        return Err(malformed);
    };
    let plain = if kind == COMPRESSED {
        let length = snap::raw::decompress_len(block);
        if !length.is_ok_and(|length| length <= CHUNK_BYTES_MAX) {
            return Err(LayerError::Compressed("Snappy: chunk of impossible size"));
        }
        let Ok(plain) = decoder.decompress_vec(block) else {
            return Err(malformed);
        };
        plain
    } else {
        if block.len() > CHUNK_BYTES_MAX {
            return Err(LayerError::Compressed("Snappy: chunk of impossible size"));
        }
        block.to_vec()
    };
    if masked_crc(&plain) != u32::from_le_bytes(*crc) {
        return Err(LayerError::Compressed("Snappy: checksum does not match"));
    }
    Ok(plain)
}

/// Encodes chunks.
pub(crate) struct SnappyWriter {
    encoder: Encoder,
    identified: bool,
    /// Scratch space for one compressed chunk.
    block: Vec<u8>,
}

impl Default for SnappyWriter {
    fn default() -> SnappyWriter {
        SnappyWriter {
            encoder: Encoder::new(),
            identified: false,
            block: Vec::new(),
        }
    }
}

impl SnappyWriter {
    /// Appends `plain` in chunks that contain nothing else.
    pub(crate) fn write(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), LayerError> {
        if !self.identified {
            self.identified = true;
            push_header(out, STREAM_IDENTIFIER, IDENTIFIER.len());
            out.extend_from_slice(IDENTIFIER);
        }
        for chunk in plain.chunks(CHUNK_BYTES_MAX) {
            self.block.resize(max_compress_len(chunk.len()), 0);
            let compressed = self.encoder.compress(chunk, &mut self.block);
            let length = compressed.map_err(|_| LayerError::Compressed("Snappy: no room"))?;
            // A chunk that shrinks by less than an eighth is sent as it is: the peer saves the
            // work.
            let (kind, data) = if length < chunk.len() - chunk.len() / 8 {
                (COMPRESSED, &self.block[..length])
            } else {
                (UNCOMPRESSED, chunk)
            };
            push_header(out, kind, CRC_BYTES + data.len());
            out.extend_from_slice(&masked_crc(chunk).to_le_bytes());
            out.extend_from_slice(data);
        }
        Ok(())
    }
}

fn push_header(out: &mut Vec<u8>, kind: u8, length: usize) {
    let [a, b, c, _] = (length as u32).to_le_bytes();
    out.extend_from_slice(&[kind, a, b, c]);
}

/// The checksum of plain bytes, masked as the format demands.
fn masked_crc(plain: &[u8]) -> u32 {
    crc32c::crc32c(plain)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use std::io::{Read, Write};

    fn sample() -> Vec<u8> {
        let noise = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8);
        [vec![7; 150_000], noise.collect()].concat()
    }

    #[test]
    fn the_crate_snap_reads_what_we_write() {
        let (mut writer, mut out) = (SnappyWriter::default(), Vec::new());
        let sample = sample();
        for piece in sample.chunks(100_000) {
            writer.write(piece, &mut out).unwrap();
        }
        assert!(out.len() < sample.len());
        let mut read = Vec::new();
        let mut reader = snap::read::FrameDecoder::new(&out[..]);
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, sample);
    }

    #[test]
    fn we_read_what_the_crate_snap_writes_in_any_pieces() {
        let sample = sample();
        let mut writer = snap::write::FrameEncoder::new(Vec::new());
        writer.write_all(&sample).unwrap();
        let framed = writer.into_inner().unwrap();
        for piece in [1, 7, 1000, framed.len()] {
            let (mut reader, mut inbox) = (SnappyReader::default(), Inbox::default());
            let (mut read, mut out) = (Vec::new(), [0; 5000]);
            for bytes in framed.chunks(piece) {
                inbox.push(bytes);
                loop {
                    match reader.read(&mut inbox, &mut out).unwrap() {
                        0 => break,
                        count => read.extend_from_slice(&out[..count]),
                    }
                }
            }
            assert!(read == sample);
        }
    }

    #[test]
    fn malformed_streams_are_refused() {
        let identified = |rest: &[u8]| [b"\xff\x06\0\0sNaPpY", rest].concat();
        for bytes in [
            b"\0\x05\0\0\0\0\0\0x".to_vec(),
            b"\xff\x07\0\0sNaPpYx".to_vec(),
            b"\xff\x06\0\0SnApPy".to_vec(),
            identified(b"\x02\0\0\0"),
            identified(b"\x01\x05\0\0\0\0\0\0x"),
            identified(b"\0\xff\xff\xff"),
            // A block that claims to inflate to 4 GiB.
            identified(b"\0\x0a\0\0\0\0\0\0\xff\xff\xff\xff\x0fx"),
        ] {
            let (mut reader, mut inbox) = (SnappyReader::default(), Inbox::default());
            inbox.push(&bytes);
            assert!(reader.read(&mut inbox, &mut [0; 10]).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn padding_is_skipped() {
        let (mut reader, mut inbox) = (SnappyReader::default(), Inbox::default());
        inbox.push(b"\xff\x06\0\0sNaPpY\xfe\x03\0\0ab");
        let mut out = [0; 10];
        assert_eq!(reader.read(&mut inbox, &mut out).unwrap(), 0);
        inbox.push(b"c");
        let mut chunk = Vec::new();
        push_header(&mut chunk, UNCOMPRESSED, CRC_BYTES + 2);
        chunk.extend_from_slice(&masked_crc(b"hi").to_le_bytes());
        chunk.extend_from_slice(b"hi");
        inbox.push(&chunk);
        assert_eq!(reader.read(&mut inbox, &mut out).unwrap(), 2);
        assert_eq!(&out[..2], b"hi");
    }
}
