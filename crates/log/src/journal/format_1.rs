//! The byte layout of the state journal in format 1 of the data folder. This version reads it once,
//! to upgrade, and never writes it.
//!
//! ```text
//!  byte  0               8              16            20          512
//!       +---------------+--------------+-------------+-----------+-------------------
//!       | "CLOVERJ1"    | generation   | crc32c u32  | zeros     | entries
//!       |               | u64          | of 0 to 15  |           |
//!       +---------------+--------------+-------------+-----------+-------------------
//!
//! entry: +----------+-------------+------------------+
//!        | len u32  | crc32c u32  | payload          |
//!        +----------+-------------+------------------+
//! ```
//!
//! The CRC of an entry continues the CRC of the entry before it; that of the first entry continues
//! the CRC of the generation. So reading stops at the first invalid entry, and damage cannot be
//! told from the end. An entry whose length has its top bit set is the journal's own.

use crate::batch::field;

const MAGIC: &[u8; 8] = b"CLOVERJ1";
const HEADER_BYTES: usize = 512;
const ENTRY_HEADER_BYTES: usize = 8;
const NOTE_BIT: u32 = 1 << 31;

/// The generation of a file of this format; `None` if it has another format.
pub(crate) fn generation(file: &[u8]) -> Option<u32> {
    let bytes = file.get(..20)?;
    let valid = &bytes[..8] == MAGIC
        && u32::from_le_bytes(field(bytes, 16)) == crc32c::crc32c(&bytes[..16]);
    let generation = u64::from_le_bytes(field(bytes, 8));
    u32::try_from(generation).ok().filter(|_| valid)
}

/// The entries of a file of this format, and the position after the last one.
pub(crate) fn entries(file: &[u8], generation: u32) -> (Vec<Vec<u8>>, usize) {
    let mut crc = crc32c::crc32c(&u64::from(generation).to_le_bytes());
    let (mut entries, mut at) = (Vec::new(), HEADER_BYTES);
    while let Some(header) = file
        .get(at..)
        .and_then(<[u8]>::first_chunk::<ENTRY_HEADER_BYTES>)
    {
        let len = u32::from_le_bytes(field(header, 0));
        let begin = at + ENTRY_HEADER_BYTES;
        let Some(payload) = file.get(begin..begin + (len & !NOTE_BIT) as usize) else {
            break;
        };
        crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &header[..4]), payload);
        if payload.is_empty() || crc != u32::from_le_bytes(field(header, 4)) {
            break;
        }
        if len & NOTE_BIT == 0 {
            entries.push(payload.to_vec());
        }
        at = begin + payload.len();
    }
    (entries, at)
}
