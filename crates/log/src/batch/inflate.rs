//! Inflates the records of compressed batches, within bounds, and compresses records.
//!
//! Producers compress, and the log stores and serves their batches unchanged. Subscriptions and
//! compaction need the records, so they inflate batches here. The bytes came from the network, so
//! all of them are checked, and the memory is bounded by the caller's limit (for zstd also by the
//! format's default window of 128 MiB, of which only the used pages are touched).
//!
//! Only the bytes after the batch header are compressed. Snappy has two forms:
//!
//! ```text
//! raw (librdkafka):  one snappy block
//! framed (Java):     82 "SNAPPY" 00, version i32, compatible i32, { length i32, snappy block }*
//! ```
//!
//! Integers are big-endian. Source of the framing: the Java library snappy-java,
//! `SnappyOutputStream`; the others are gzip (RFC 1952), the LZ4 frame format and zstd (RFC 8878).

use std::io::{self, Read, Write};

use bytes::Bytes;

use crate::batch::{BATCH_HEADER_BYTES, Batch, CRC_FROM, Codec};
use crate::error::BatchError;
use crate::invariant::catch_panic;

/// Magic bytes of snappy's framed form.
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
/// Bytes of magic, version and compatible version.
const SNAPPY_HEADER_BYTES: usize = 16;
/// The version that snappy-java writes, in both fields.
const SNAPPY_VERSION: u32 = 1;
/// Uncompressed bytes in one block of the framed form, as snappy-java writes it.
const SNAPPY_BLOCK_BYTES: usize = 32 << 10;
/// Upper bound of the compression ratio of a snappy block: a copy element of three bytes yields up
/// to 64 bytes.
const SNAPPY_RATIO_MAX: usize = 64;

/// Zstandard's default compression level.
const ZSTD_LEVEL: i32 = 3;

/// The buffer for the inflated records first gets this many times the compressed bytes.
const RATIO_GUESS: usize = 4;

/// The reason why a batch cannot be inflated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    /// The inflated batch would be larger than the limit. It may be valid.
    #[error("the batch has more than {bytes_max} bytes when it is inflated")]
    TooLarge {
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// The compressed bytes are invalid for the codec.
    #[error("the batch cannot be inflated ({codec:?}): {reason}")]
    Malformed {
        /// The codec in the batch's header.
        codec: Codec,
        /// The message of the codec's library.
        reason: String,
    },
    /// The inflated bytes are malformed records, or their number or offsets do not match the
    /// header.
    #[error(transparent)]
    Records(#[from] BatchError),
}

/// The length of `bytes` when compressed with lz4: an estimate of how well they compress.
pub fn lz4_len(bytes: &[u8]) -> usize {
    lz4_flex::block::compress(bytes).len()
}

impl Batch {
    /// The same batch, uncompressed, with the same offsets, timestamps, producer and records.
    /// `bytes_max` bounds its size, header included. Returns an uncompressed batch as it is,
    /// unchecked.
    ///
    /// Checks that all inflated records are well formed, that their offsets increase, and that
    /// their number is that in the header.
    ///
    /// # Errors
    /// The batch would be larger than `bytes_max`, or its bytes are malformed.
    pub fn inflate(&self, bytes_max: usize) -> Result<Batch, InflateError> {
        let codec = self.codec();
        if codec == Codec::None {
            return Ok(self.clone());
        }
        let compressed = &self.bytes()[BATCH_HEADER_BYTES..];
        let too_large = InflateError::TooLarge { bytes_max };
        // The length field in the header has 31 bits.
        let records_max = bytes_max
            .min(i32::MAX as usize)
            .checked_sub(BATCH_HEADER_BYTES)
            .ok_or(too_large)?;
        let guess = compressed.len().saturating_mul(RATIO_GUESS);
        let mut out = Vec::with_capacity(BATCH_HEADER_BYTES + guess.min(records_max));
        out.extend_from_slice(&self.bytes()[..BATCH_HEADER_BYTES]);
        let decode = || match codec {
            Codec::None => Ok(()),
            Codec::Gzip => {
                let reader = flate2::bufread::MultiGzDecoder::new(compressed);
                read_bounded(reader, &mut out, records_max)
            }
            Codec::Snappy => inflate_snappy(compressed, &mut out, records_max),
            Codec::Lz4 => {
                let reader = lz4_flex::frame::FrameDecoder::new(compressed);
                read_bounded(reader, &mut out, records_max)
            }
            Codec::Zstd => zstd::stream::read::Decoder::with_buffer(compressed)
                .map_err(InflateFailure::from)
                .and_then(|reader| read_bounded(reader, &mut out, records_max)),
        };
        let outcome =
            catch_panic(decode).unwrap_or_else(|panic| Err(InflateFailure::Malformed(panic)));
        outcome.map_err(|failure| match failure {
            InflateFailure::TooLarge => InflateError::TooLarge { bytes_max },
            InflateFailure::Malformed(reason) => InflateError::Malformed { codec, reason },
        })?;
        let inflated = self.with_records(out, Codec::None);
        inflated.check_records()?;
        Ok(inflated)
    }

    /// The same batch with its records compressed, for compaction. Snappy uses the framed form,
    /// which all clients read.
    ///
    /// # Errors
    /// The batch is compressed already ([`io::ErrorKind::InvalidInput`]), or the codec's library
    /// has failed.
    pub fn compress(&self, codec: Codec) -> io::Result<Batch> {
        if codec == Codec::None {
            return Ok(self.clone());
        }
        if self.is_compressed() {
            let why = "the batch is compressed already";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let records = &self.bytes()[BATCH_HEADER_BYTES..];
        let mut out = Vec::with_capacity(BATCH_HEADER_BYTES + records.len() / 2);
        out.extend_from_slice(&self.bytes()[..BATCH_HEADER_BYTES]);
        let out = match codec {
            Codec::None => out,
            Codec::Gzip => {
                let level = flate2::Compression::default();
                let mut writer = flate2::write::GzEncoder::new(out, level);
                writer.write_all(records)?;
                writer.finish()?
            }
            Codec::Snappy => compress_snappy(records, out)?,
            Codec::Lz4 => {
                let mut writer = lz4_flex::frame::FrameEncoder::new(out);
                writer.write_all(records)?;
                writer.finish()?
            }
            Codec::Zstd => {
                let mut writer = zstd::stream::write::Encoder::new(out, ZSTD_LEVEL)?;
                writer.write_all(records)?;
                writer.finish()?
            }
        };
        Ok(self.with_records(out, codec))
    }

    /// A batch with the same offsets and no records. Subscriptions use it in place of a batch that
    /// cannot be inflated.
    #[must_use]
    pub fn without_records(&self) -> Batch {
        let mut header = self.bytes()[..BATCH_HEADER_BYTES].to_vec();
        header[57..61].copy_from_slice(&[0; 4]);
        let mut empty = self.with_records(header, Codec::None);
        empty.set_count(0);
        empty
    }

    /// This batch with other records. `out` begins with a copy of the header, in which this
    /// function sets length, codec and checksum.
    fn with_records(&self, mut out: Vec<u8>, codec: Codec) -> Batch {
        let length = (out.len() - 12) as u32;
        out[8..12].copy_from_slice(&length.to_be_bytes());
        out[22] = (out[22] & !0x07) | codec as u8;
        let crc = crc32c::crc32c(&out[CRC_FROM..]);
        out[17..21].copy_from_slice(&crc.to_be_bytes());
        // Caches count the length, not the capacity, so a large spare capacity must be released.
        if out.capacity() - out.len() > out.len() / 4 + 1024 {
            out.shrink_to_fit();
        }
        self.clone().with_bytes(Bytes::from(out))
    }

    /// Checks that all records of an uncompressed batch are well formed, that their offsets
    /// increase, and that their number is that in the header.
    fn check_records(&self) -> Result<(), BatchError> {
        let mut cursor = self.records();
        let mut next = self.base_offset();
        let mut count = 0;
        loop {
            let position = cursor.position();
            let Some((offset, record)) = cursor.next_record()? else {
                break;
            };
            if offset < next || !record.headers.is_well_formed() {
                return Err(BatchError::Record { position });
            }
            next = offset + 1;
            count += 1;
        }
        if count != self.count() {
            let position = cursor.position();
            return Err(BatchError::Record { position });
        }
        Ok(())
    }
}

/// The reason why a codec has failed.
enum InflateFailure {
    TooLarge,
    Malformed(String),
}

impl From<io::Error> for InflateFailure {
    fn from(error: io::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Reads to the end; fails if there are more than `bytes_max` bytes.
fn read_bounded(
    reader: impl Read,
    out: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<(), InflateFailure> {
    let read = reader.take(bytes_max as u64 + 1).read_to_end(out)?;
    if read > bytes_max {
        return Err(InflateFailure::TooLarge);
    }
    Ok(())
}

fn inflate_snappy(input: &[u8], out: &mut Vec<u8>, bytes_max: usize) -> Result<(), InflateFailure> {
    if !input.starts_with(SNAPPY_MAGIC) {
        return inflate_snappy_block(input, out, bytes_max);
    }
    let cut_off = || InflateFailure::Malformed("a snappy block is cut off".to_owned());
    let mut left = bytes_max;
    let mut rest = input;
    while !rest.is_empty() {
        // Several streams may follow each other, each with its header.
        if rest.starts_with(SNAPPY_MAGIC) {
            rest = rest.get(SNAPPY_HEADER_BYTES..).ok_or_else(cut_off)?;
            continue;
        }
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, after) = after.split_at_checked(length).ok_or_else(cut_off)?;
        let before = out.len();
        inflate_snappy_block(block, out, left)?;
        left -= out.len() - before;
        rest = after;
    }
    Ok(())
}

fn inflate_snappy_block(
    input: &[u8],
    out: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<(), InflateFailure> {
    let malformed = |error: snap::Error| InflateFailure::Malformed(error.to_string());
    let length = snap::raw::decompress_len(input).map_err(malformed)?;
    if length > input.len().saturating_mul(SNAPPY_RATIO_MAX) {
        return Err(InflateFailure::Malformed(format!(
            "{} bytes of snappy cannot hold {length} bytes",
            input.len()
        )));
    }
    if length > bytes_max {
        return Err(InflateFailure::TooLarge);
    }
    let before = out.len();
    out.resize(before + length, 0);
    let written = snap::raw::Decoder::new()
        .decompress(input, &mut out[before..])
        .map_err(malformed)?;
    out.truncate(before + written);
    Ok(())
}

fn compress_snappy(records: &[u8], mut out: Vec<u8>) -> io::Result<Vec<u8>> {
    out.extend_from_slice(SNAPPY_MAGIC);
    out.extend_from_slice(&SNAPPY_VERSION.to_be_bytes());
    out.extend_from_slice(&SNAPPY_VERSION.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in records.chunks(SNAPPY_BLOCK_BYTES) {
        let at = out.len();
        out.resize(at + 4 + snap::raw::max_compress_len(block.len()), 0);
        let length = encoder
            .compress(block, &mut out[at + 4..])
            .map_err(io::Error::other)?;
        out.truncate(at + 4 + length);
        out[at..at + 4].copy_from_slice(&(length as u32).to_be_bytes());
    }
    Ok(out)
}
