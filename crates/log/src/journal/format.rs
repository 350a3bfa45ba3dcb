//! The bytes of the state journal.
//!
//! Two files, `state.0` and `state.1`, of which one is current. Little-endian:
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
//! An entry whose length has its top bit set is a mark: 16 random bytes of our own, written before
//! the first entry of a snapshot and at each start. Nothing is told of it.
//!
//! The header has a sector of its own, so that it cannot tear. The CRC of an entry continues the
//! CRC of the entry before it (the first one continues that of the generation), so an entry is
//! valid only behind exactly those before it: what an older generation, or a tail that was cut off,
//! has left behind is no entry, not even behind entries that are written a second time, because a
//! mark comes before them. Reading stops at the first entry that does not fit.

use crate::batch::field;

/// First bytes of a journal file.
const MAGIC: &[u8; 8] = b"CLOVERJ1";
/// Size of the header: one sector.
pub(crate) const HEADER_BYTES: usize = 512;
/// Bytes before an entry's payload.
pub(crate) const ENTRY_HEADER_BYTES: usize = 8;

/// Set in the length of a mark.
const MARK: u32 = 1 << 31;

/// An entry that was read.
pub(crate) struct Decoded<'a> {
    payload: &'a [u8],
    is_mark: bool,
}

impl<'a> Decoded<'a> {
    /// Bytes in the file.
    pub(crate) fn size(&self) -> usize {
        ENTRY_HEADER_BYTES + self.payload.len()
    }

    /// The owner's payload; `None` for a mark.
    pub(crate) fn payload(&self) -> Option<&'a [u8]> {
        (!self.is_mark).then_some(self.payload)
    }
}

/// The header of a journal file.
pub fn encode_journal_header(generation: u64) -> [u8; 512] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The generation that a header names; `None` when it is none of ours.
pub fn decode_journal_header(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.get(..20)?;
    let valid = &bytes[..8] == MAGIC
        && u32::from_le_bytes(field(bytes, 16)) == crc32c::crc32c(&bytes[..16]);
    valid.then(|| u64::from_le_bytes(field(bytes, 8)))
}

/// The running checksum of a file's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain(u32);

impl Chain {
    pub(crate) fn of_generation(generation: u64) -> Chain {
        Chain(crc32c::crc32c(&generation.to_le_bytes()))
    }

    fn next(self, len: [u8; 4], payload: &[u8]) -> Chain {
        Chain(crc32c::crc32c_append(
            crc32c::crc32c_append(self.0, &len),
            payload,
        ))
    }

    /// Appends an entry to `out` and moves on.
    pub(crate) fn encode(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.encode_as(payload.len() as u32, payload, out);
    }

    /// Appends a mark to `out` and moves on.
    pub(crate) fn encode_mark(&mut self, random: [u8; 16], out: &mut Vec<u8>) {
        self.encode_as(random.len() as u32 | MARK, &random, out);
    }

    fn encode_as(&mut self, len: u32, payload: &[u8], out: &mut Vec<u8>) {
        let len = len.to_le_bytes();
        *self = self.next(len, payload);
        out.extend_from_slice(&len);
        out.extend_from_slice(&self.0.to_le_bytes());
        out.extend_from_slice(payload);
    }

    /// Reads the entry at the start of `bytes`. Moves on only if it is valid.
    pub(crate) fn decode<'a>(&mut self, bytes: &'a [u8]) -> Option<Decoded<'a>> {
        let header = bytes.get(..ENTRY_HEADER_BYTES)?;
        let size = entry_len(header)?;
        let payload = bytes.get(ENTRY_HEADER_BYTES..)?.get(..size)?;
        let len: [u8; 4] = field(header, 0);
        let next = self.next(len, payload);
        if u32::from_le_bytes(field(header, 4)) != next.0 {
            return None;
        }
        *self = next;
        let is_mark = u32::from_le_bytes(len) & MARK != 0;
        Some(Decoded { payload, is_mark })
    }
}

/// Payload bytes that an entry's header announces; `None` when it is cut off or announces none.
pub(crate) fn entry_len(header: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*header.first_chunk()?) & !MARK;
    (len > 0).then_some(len as usize)
}

/// All valid entries of a file's body (the bytes after the header).
pub fn decode_journal_entries(generation: u64, body: &[u8]) -> Vec<&[u8]> {
    let mut chain = Chain::of_generation(generation);
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some(entry) = chain.decode(&body[at..]) {
        at += entry.size();
        entries.extend(entry.payload());
    }
    entries
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    fn body(generation: u64, entries: &[Vec<u8>]) -> Vec<u8> {
        let mut chain = Chain::of_generation(generation);
        let mut out = Vec::new();
        entries
            .iter()
            .for_each(|entry| chain.encode(entry, &mut out));
        out
    }

    #[test]
    fn a_header_names_its_generation() {
        let mut header = encode_journal_header(7);
        assert_eq!(decode_journal_header(&header), Some(7));
        header[9] ^= 1;
        assert_eq!(decode_journal_header(&header), None);
        assert_eq!(decode_journal_header(&header[..10]), None);
    }

    #[test]
    fn an_entry_behind_another_past_is_none() {
        let old = body(1, &[b"aaaa".to_vec(), b"bbbb".to_vec()]);
        let mut new = body(1, &[b"cccc".to_vec()]);
        new.extend_from_slice(&old[new.len()..]);
        assert_eq!(decode_journal_entries(1, &new), [b"cccc"]);
        assert!(decode_journal_entries(2, &new).is_empty());
    }

    #[test]
    fn a_mark_ends_what_was_written_before_it() {
        let old = body(1, &[b"aaaa".to_vec(), b"bbbb".to_vec(), b"cccc".to_vec()]);
        let mut chain = Chain::of_generation(1);
        let mut new = Vec::new();
        chain.encode_mark([7; 16], &mut new);
        chain.encode(b"aaaa", &mut new);
        new.extend_from_slice(&old[12..]);
        assert_eq!(decode_journal_entries(1, &new), [b"aaaa"]);
    }

    proptest! {
        #[test]
        fn entries_survive_the_round_trip(
            entries in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 1..50), 0..10),
            junk in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut bytes = body(3, &entries);
            bytes.extend(junk);
            prop_assert_eq!(decode_journal_entries(3, &bytes), entries);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            decode_journal_entries(0, &bytes);
            decode_journal_header(&bytes);
        }
    }
}
