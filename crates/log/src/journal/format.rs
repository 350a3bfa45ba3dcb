//! The byte layout of the state journal.
//!
//! Two files, `state.0` and `state.1`, of which one is current. Little-endian:
//!
//! ```text
//!  byte  0               8              12       16            20        512       1024
//!       +---------------+--------------+--------+-------------+---------+---------+---------
//!       | "CLOVERJ2"    | generation   | tag    | crc32c u32  | zeros   | the     | entries
//!       |               | u32          | u32    | of 0 to 15  |         | same    |
//!       +---------------+--------------+--------+-------------+---------+---------+---------
//!
//! entry: +---------+---------+------------+----------------+-------------+------------+---------
//!        | tag u32 | len u32 | crc32c u32 | generation u32 | ordinal u32 | synced u32 | payload
//!        +---------+---------+------------+----------------+-------------+------------+---------
//! ```
//!
//! The header is stored twice, each copy in a sector of its own, so that neither a torn write nor
//! one damaged sector destroys both. The tag is a random number, chosen for each generation of the
//! file. Recovery searches for it to find entries after damaged bytes. Because it is random, no
//! client can put bytes into a payload that pass for an entry, and entries of an older generation
//! are not taken for current ones. The CRC covers the entry except the CRC field. Ordinals count
//! the entries of a generation from 0, so the number of missing entries is known. The first
//! `synced` sectors of the file were durable when the entry was written, so a hole in them was not
//! left by a power loss.
//!
//! An entry whose length has its top bit set is a [`JournalNote`], written by the journal itself
//! and not by its owner.

use crate::batch::field;

/// First bytes of a journal file.
const MAGIC: &[u8; 8] = b"CLOVERJ2";
/// Bytes that a disk writes atomically.
pub(crate) const SECTOR_BYTES: usize = 512;
/// Size of the header, both copies.
pub(crate) const HEADER_BYTES: usize = 2 * SECTOR_BYTES;
/// Bytes before an entry's payload.
pub(crate) const ENTRY_HEADER_BYTES: usize = 24;

/// The bit in an entry's length that says that the entry is a [`JournalNote`].
const NOTE_BIT: u32 = 1 << 31;

/// The identity of a generation of a file, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalId {
    /// Increases with each snapshot; the file with the higher generation is current.
    pub generation: u32,
    /// A random number with which each entry begins. Its lowest byte is not 0.
    pub tag: u32,
}

impl JournalId {
    pub(crate) fn new(generation: u32) -> JournalId {
        let [a, b, c, d, ..] = *uuid::Uuid::new_v4().as_bytes();
        let tag = u32::from_le_bytes([a | 1, b, c, d]);
        JournalId { generation, tag }
    }
}

/// A decoded entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodedEntry<'a> {
    pub(crate) id: JournalId,
    pub(crate) ordinal: u32,
    /// Bytes of the file that were synced when the entry was written.
    pub(crate) synced: u64,
    is_note: bool,
    payload: &'a [u8],
}

/// An entry that the journal writes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalNote {
    /// The snapshot is complete, so the file can be used even if its header is damaged. The entries
    /// before this note replace those of `generation` with an ordinal below `ordinal`.
    Complete { generation: u32, ordinal: u32 },
    /// The other file has replaced this one; it has this generation.
    Superseded { generation: u32 },
    /// This many entries before this one were lost to damage.
    Lost { entries: u32 },
    /// A note of a kind that this version does not know.
    Unknown,
}

impl<'a> DecodedEntry<'a> {
    /// Bytes of the entry in the file, header included.
    pub(crate) fn size(&self) -> usize {
        ENTRY_HEADER_BYTES + self.payload.len()
    }

    /// The owner's payload; `None` for a [`JournalNote`].
    pub(crate) fn payload(&self) -> Option<&'a [u8]> {
        (!self.is_note).then_some(self.payload)
    }

    pub(crate) fn note(&self) -> Option<JournalNote> {
        let number = |at| Some(u32::from_le_bytes(*self.payload.get(at..)?.first_chunk()?));
        let known = || {
            Some(match self.payload.first()? {
                b'C' => JournalNote::Complete {
                    generation: number(1)?,
                    ordinal: number(5)?,
                },
                b'S' => JournalNote::Superseded {
                    generation: number(1)?,
                },
                b'L' => JournalNote::Lost {
                    entries: number(1)?,
                },
                _ => return None,
            })
        };
        self.is_note
            .then(|| known().unwrap_or(JournalNote::Unknown))
    }
}

/// The header of a journal file, both copies.
pub fn encode_journal_header(id: JournalId) -> [u8; 1024] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&id.generation.to_le_bytes());
    bytes[12..16].copy_from_slice(&id.tag.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    let (first, second) = bytes.split_at_mut(SECTOR_BYTES);
    second.copy_from_slice(first);
    bytes
}

/// Decodes one copy of a header; `None` if it is invalid.
pub fn decode_journal_header(bytes: &[u8]) -> Option<JournalId> {
    let bytes = bytes.get(..20)?;
    let valid = &bytes[..8] == MAGIC
        && u32::from_le_bytes(field(bytes, 16)) == crc32c::crc32c(&bytes[..16]);
    valid.then(|| JournalId {
        generation: u32::from_le_bytes(field(bytes, 8)),
        tag: u32::from_le_bytes(field(bytes, 12)),
    })
}

/// Identity and ordinal of the next entry of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextEntry {
    pub(crate) id: JournalId,
    pub(crate) ordinal: u32,
}

impl NextEntry {
    /// Appends an encoded entry to `out` and increments the ordinal. `synced`: bytes of the file
    /// that are synced.
    pub(crate) fn encode(&mut self, payload: &[u8], synced: u64, out: &mut Vec<u8>) {
        self.encode_as(payload.len() as u32, payload, synced, out);
    }

    /// Appends an encoded note to `out` and increments the ordinal.
    pub(crate) fn encode_note(&mut self, note: JournalNote, synced: u64, out: &mut Vec<u8>) {
        let (kind, numbers) = match note {
            JournalNote::Complete {
                generation,
                ordinal,
            } => (b'C', [generation, ordinal]),
            JournalNote::Superseded { generation } => (b'S', [generation, 0]),
            JournalNote::Lost { entries } => (b'L', [entries, 0]),
            JournalNote::Unknown => (b'?', [0, 0]),
        };
        let mut payload = vec![kind];
        for number in numbers {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        self.encode_as(payload.len() as u32 | NOTE_BIT, &payload, synced, out);
    }

    fn encode_as(&mut self, len: u32, payload: &[u8], synced: u64, out: &mut Vec<u8>) {
        let synced = u32::try_from(synced / SECTOR_BYTES as u64).unwrap_or(0);
        let mut header = [0; ENTRY_HEADER_BYTES];
        header[..4].copy_from_slice(&self.id.tag.to_le_bytes());
        header[4..8].copy_from_slice(&len.to_le_bytes());
        header[12..16].copy_from_slice(&self.id.generation.to_le_bytes());
        header[16..20].copy_from_slice(&self.ordinal.to_le_bytes());
        header[20..].copy_from_slice(&synced.to_le_bytes());
        let crc = checksum(&header, payload);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
        self.ordinal += 1;
    }
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header[..8]);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &header[12..]), payload)
}

/// Decodes the entry at the start of `bytes`, of any file and generation; `None` if there is none.
pub(crate) fn decode_entry(bytes: &[u8]) -> Option<DecodedEntry<'_>> {
    let (header, rest) = bytes.split_first_chunk::<ENTRY_HEADER_BYTES>()?;
    let len = u32::from_le_bytes(field(header, 4));
    let size = (len & !NOTE_BIT) as usize;
    let payload = rest.get(..size).filter(|payload| !payload.is_empty())?;
    if u32::from_le_bytes(field(header, 8)) != checksum(header, payload) {
        return None;
    }
    let id = JournalId {
        generation: u32::from_le_bytes(field(header, 12)),
        tag: u32::from_le_bytes(field(header, 0)),
    };
    Some(DecodedEntry {
        id,
        ordinal: u32::from_le_bytes(field(header, 16)),
        synced: u64::from(u32::from_le_bytes(field(header, 20))) * SECTOR_BYTES as u64,
        is_note: len & NOTE_BIT != 0,
        payload,
    })
}
