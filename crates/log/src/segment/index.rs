//! The sparse index of a segment.
//!
//! It has one entry per 32 KiB of log, in memory and in the file `<base offset>.index`, which is
//! created empty before the segment's first batch is written. An entry is written to the file only
//! after the log before its position was synced. So recovery searches for the end of the log from
//! the last entry on. A footer seals the segment: it says where the log ends, so that opening a
//! sealed segment needs a read of 32 bytes only.
//!
//! Every entry, little-endian, 32 bytes:
//!
//! ```text
//!  byte  0          8           16              24          28
//!       +----------+-----------+---------------+-----------+-----------+
//!       | offset   | position  | max timestamp | kind u32  | crc32c    |
//!       | u64      | u64 bytes | i64 ms        | 1 to 4    | u32       |
//!       +----------+-----------+---------------+-----------+-----------+
//! ```
//!
//! Kind 1 (entry): the batch at `position` has a base offset of at least `offset`; all bytes before
//! it are synced, and their records have timestamps up to the maximum. Kind 2 (footer): the segment
//! is sealed, `offset` is its end offset, `position` its length, and the maximum is that of all
//! records. Kinds 3 and 4 are the same as 1 and 2, and say that there may be batches of idempotent
//! producers before `position`. The CRC-32C covers the segment's base offset (8 bytes, not stored
//! here) and bytes 0 to 27, so that an entry of another segment's index is invalid here. The
//! numbers of the kinds never change.

use crate::batch::{Offset, field};

/// Log bytes between two index entries: few enough to scan for each read, many enough that the
/// index of 10 GB takes only 8 MB of memory.
pub(crate) const INDEX_INTERVAL_BYTES: u64 = 32 << 10;
/// Size of an entry and of the footer in the index file.
pub const INDEX_ENTRY_BYTES: usize = 32;

/// A known batch boundary in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The batch at `position` has at least this base offset.
    pub offset: Offset,
    /// Bytes from the start of the segment.
    pub position: u64,
    /// Highest timestamp of the records before `position`, in milliseconds since 1970.
    pub max_timestamp_ms: i64,
}

/// A decoded entry of the index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexItem {
    /// A batch boundary, with everything before it synced.
    Entry(IndexEntry),
    /// The segment is sealed and ends here.
    Footer(IndexEntry),
}

/// Encodes one item of the index of the segment with this base offset. `has_producers`: there may
/// be batches of idempotent producers before its position.
pub fn encode_index_item(
    base: Offset,
    item: IndexItem,
    has_producers: bool,
) -> [u8; INDEX_ENTRY_BYTES] {
    let (entry, kind) = match item {
        IndexItem::Entry(entry) => (entry, 1u32),
        IndexItem::Footer(entry) => (entry, 2u32),
    };
    let kind = kind + 2 * u32::from(has_producers);
    let mut bytes = [0; INDEX_ENTRY_BYTES];
    bytes[0..8].copy_from_slice(&entry.offset.to_le_bytes());
    bytes[8..16].copy_from_slice(&entry.position.to_le_bytes());
    bytes[16..24].copy_from_slice(&entry.max_timestamp_ms.to_le_bytes());
    bytes[24..28].copy_from_slice(&kind.to_le_bytes());
    let crc = checksum(base, &bytes[..28]);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn checksum(base: Offset, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&base.to_le_bytes()), bytes)
}

/// Decodes one item, and whether there may be batches of idempotent producers before its position.
/// `None` if the bytes are no item of this segment's index.
pub fn decode_index_item(base: Offset, bytes: &[u8]) -> Option<(IndexItem, bool)> {
    let bytes = bytes.get(..INDEX_ENTRY_BYTES)?;
    if u32::from_le_bytes(field(bytes, 28)) != checksum(base, &bytes[..28]) {
        return None;
    }
    let entry = IndexEntry {
        offset: u64::from_le_bytes(field(bytes, 0)),
        position: u64::from_le_bytes(field(bytes, 8)),
        max_timestamp_ms: i64::from_le_bytes(field(bytes, 16)),
    };
    match u32::from_le_bytes(field(bytes, 24)) {
        kind @ (1 | 3) => Some((IndexItem::Entry(entry), kind == 3)),
        kind @ (2 | 4) => Some((IndexItem::Footer(entry), kind == 4)),
        _ => None,
    }
}

/// The valid items at the beginning of an index file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexContents {
    /// Entries. Positions increase, and offsets never decrease.
    pub entries: Vec<IndexEntry>,
    /// The footer, if the segment is sealed.
    pub footer: Option<IndexEntry>,
    /// Whether there may be batches of idempotent producers before the last item's position.
    pub has_producers: bool,
}

/// Decodes an index file up to its first invalid item. Never fails: without a valid item the index
/// is empty.
pub fn decode_index(base: Offset, bytes: &[u8]) -> IndexContents {
    let mut contents = IndexContents::default();
    let mut last = IndexEntry {
        offset: base,
        position: 0,
        max_timestamp_ms: i64::MIN,
    };
    for bytes in bytes.chunks_exact(INDEX_ENTRY_BYTES) {
        let item = decode_index_item(base, bytes);
        let has_producers = item.is_some_and(|(_, has_producers)| has_producers);
        match item.map(|(item, _)| item) {
            Some(IndexItem::Entry(entry))
                if entry.position > last.position && entry.offset >= last.offset =>
            {
                contents.entries.push(entry);
                contents.has_producers |= has_producers;
                last = entry;
            }
            Some(IndexItem::Footer(footer))
                if footer.position >= last.position && footer.offset >= last.offset =>
            {
                contents.footer = Some(footer);
                contents.has_producers |= has_producers;
                break;
            }
            _ => break,
        }
    }
    contents
}

/// The position from which to read in order to find `offset`: the last known batch boundary before
/// it.
pub(crate) fn position_before(entries: &[IndexEntry], offset: Offset) -> u64 {
    match entries.partition_point(|entry| entry.offset <= offset) {
        0 => 0,
        after => entries[after - 1].position,
    }
}

/// The first known batch boundary after a position, from which to continue after a corrupt region.
pub(crate) fn boundary_after(entries: &[IndexEntry], position: u64) -> Option<u64> {
    let after = entries.partition_point(|entry| entry.position <= position);
    entries.get(after).map(|entry| entry.position)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    fn entry(offset: u64, position: u64) -> IndexEntry {
        IndexEntry {
            offset,
            position,
            max_timestamp_ms: 5,
        }
    }

    #[test]
    fn items_survive_the_round_trip_only_in_their_own_segment() {
        for item in [
            IndexItem::Entry(entry(9, 70)),
            IndexItem::Footer(entry(10, 99)),
        ] {
            for has_producers in [false, true] {
                let bytes = encode_index_item(3, item, has_producers);
                assert_eq!(decode_index_item(3, &bytes), Some((item, has_producers)));
                assert_eq!(decode_index_item(4, &bytes), None);
            }
        }
    }

    #[test]
    fn reading_stops_at_the_first_item_that_is_out_of_order() {
        let mut file = Vec::new();
        for item in [entry(5, 100), entry(7, 200), entry(7, 150), entry(9, 300)] {
            file.extend(encode_index_item(5, IndexItem::Entry(item), false));
        }
        let contents = decode_index(5, &file);
        assert_eq!(contents.entries, [entry(5, 100), entry(7, 200)]);
        assert_eq!(position_before(&contents.entries, 6), 100);
        assert_eq!(position_before(&contents.entries, 4), 0);
        assert_eq!(boundary_after(&contents.entries, 100), Some(200));
        assert_eq!(boundary_after(&contents.entries, 200), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            decode_index(0, &bytes);
        }

        #[test]
        fn a_changed_byte_ends_the_index(at in 0usize..64, to in any::<u8>()) {
            let mut file = Vec::new();
            file.extend(encode_index_item(0, IndexItem::Entry(entry(1, 10)), false));
            file.extend(encode_index_item(0, IndexItem::Footer(entry(2, 20)), true));
            prop_assume!(file[at] != to);
            file[at] = to;
            let contents = decode_index(0, &file);
            prop_assert_eq!(contents.entries.len(), at / INDEX_ENTRY_BYTES);
            prop_assert!(contents.footer.is_none());
        }
    }
}
