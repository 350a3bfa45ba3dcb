//! Reads the entries of a journal file that may be damaged or torn.
//!
//! At bytes that are no valid entry, the reader searches for the next entry with a valid checksum;
//! the bytes between are a *hole*. After a power loss, some of the newest unsynced entries may be
//! missing while later ones are there. The later ones are ignored then, because an entry is valid
//! only if all entries before it are. A hole within the synced part, or one that is found although
//! no power was lost, is damage instead, and the entries after it are used.

use super::format::{
    DecodedEntry, ENTRY_HEADER_BYTES, HEADER_BYTES, JournalId, JournalNote, SECTOR_BYTES,
    decode_entry, decode_journal_header,
};

/// Bytes between two entries that are no valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalHole {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Ordinal of the first missing entry, and the number of missing entries.
    pub(crate) first: u32,
    pub(crate) entries: u32,
}

/// The state of the two copies of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderState {
    Whole,
    /// A crash has interrupted the write of the header: one copy is older, or was never written.
    Torn,
    /// At least one copy is damaged.
    Damaged,
    /// Both copies are zeros: the file was not in use yet, or the header is damaged.
    Blank,
}

/// The result of reading one file.
#[derive(Debug)]
pub(crate) struct FileContents {
    pub(crate) id: JournalId,
    /// The owner's entries with their ordinals, oldest first.
    pub(crate) entries: Vec<(u32, Vec<u8>)>,
    pub(crate) holes: Vec<JournalHole>,
    /// Position after the last entry, and the ordinal of the next one.
    pub(crate) end: u64,
    pub(crate) ordinal: u32,
    /// Bytes, from the start of the file, that are known to have been synced.
    pub(crate) synced: u64,
    /// Number of entries that earlier starts have found missing.
    pub(crate) lost_earlier: u32,
    /// `generation` and `ordinal` of the [`JournalNote::Complete`], and the ordinal of the note
    /// itself.
    pub(crate) complete: Option<(u32, u32, u32)>,
    pub(crate) superseded_by: Option<u32>,
    pub(crate) header: HeaderState,
    /// Number of entries after a hole that a power loss has left; they are ignored.
    pub(crate) torn_entries: u32,
    /// Bytes that are not zero, and no valid entry, follow the last entry.
    pub(crate) is_end_torn: bool,
}

impl FileContents {
    pub(crate) fn into_entries(self) -> Vec<Vec<u8>> {
        self.entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Whether the file was in use: a snapshot writes the header last.
    pub(crate) fn has_header(&self) -> bool {
        has_header(self.header)
    }
}

fn has_header(header: HeaderState) -> bool {
    matches!(header, HeaderState::Whole | HeaderState::Torn)
}

/// Reads a file; `None` if neither its header nor a [`JournalNote::Complete`] can be read.
/// `lost_power`: unsynced bytes may be missing.
pub(crate) fn read(file: &[u8], lost_power: bool) -> Option<FileContents> {
    let sectors = [0, SECTOR_BYTES].map(|at| file.get(at..at + SECTOR_BYTES).unwrap_or_default());
    let copies = sectors.map(decode_journal_header);
    let is_blank = |number: usize| sectors[number].iter().all(|byte| *byte == 0);
    let is_sound = |number: usize| copies[number].is_some() || is_blank(number);
    let state = match copies {
        [Some(first), Some(second)] if first == second => HeaderState::Whole,
        _ if !is_sound(0) || !is_sound(1) => HeaderState::Damaged,
        [None, None] => HeaderState::Blank,
        _ => HeaderState::Torn,
    };
    let header = copies.into_iter().flatten().max_by_key(|id| id.generation);
    let id = header.or_else(|| identify(file))?;
    let contents = read_entries(file, id, state, lost_power);
    // Without a header, only this note proves that the snapshot in the file is complete.
    (header.is_some() || contents.complete.is_some()).then_some(contents)
}

fn read_entries(file: &[u8], id: JournalId, header: HeaderState, lost_power: bool) -> FileContents {
    let mut found: Vec<(usize, DecodedEntry<'_>)> = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some((position, entry)) = find_entry(file, at, id) {
        at = position + entry.size();
        found.push((position, entry));
    }
    // A disk may have written entries to the wrong place, or twice: restore the order, and drop
    // duplicates.
    found.sort_by_key(|(_, entry)| entry.ordinal);
    found.dedup_by_key(|(_, entry)| entry.ordinal);
    let synced = found.iter().map(|(position, entry)| match entry.note() {
        // The header is written only after all bytes up to this note were synced.
        Some(JournalNote::Complete { .. }) if has_header(header) => {
            (position + entry.size()) as u64
        }
        _ => entry.synced,
    });
    let synced = synced.max();
    let mut contents = FileContents {
        id,
        entries: Vec::new(),
        holes: Vec::new(),
        end: HEADER_BYTES as u64,
        ordinal: 0,
        synced: synced.unwrap_or(0),
        lost_earlier: 0,
        complete: None,
        superseded_by: None,
        header,
        torn_entries: 0,
        is_end_torn: false,
    };
    for (number, (position, entry)) in found.iter().enumerate() {
        let position = *position as u64;
        if position != contents.end || entry.ordinal != contents.ordinal {
            if lost_power && contents.end >= contents.synced {
                contents.torn_entries = u32::try_from(found.len() - number).unwrap_or(u32::MAX);
                break;
            }
            contents.holes.push(JournalHole {
                at: contents.end,
                bytes: position.saturating_sub(contents.end),
                first: contents.ordinal,
                entries: entry.ordinal - contents.ordinal,
            });
        }
        contents.end = position + entry.size() as u64;
        contents.ordinal = entry.ordinal + 1;
        match entry.note() {
            None => {
                let payload = entry.payload().map(<[u8]>::to_vec);
                contents
                    .entries
                    .extend(payload.map(|it| (entry.ordinal, it)));
            }
            Some(JournalNote::Complete {
                generation,
                ordinal,
            }) => contents.complete = Some((generation, ordinal, entry.ordinal)),
            Some(JournalNote::Superseded { generation }) => {
                contents.superseded_by = Some(generation)
            }
            Some(JournalNote::Lost { entries }) => {
                contents.lost_earlier = contents.lost_earlier.saturating_add(entries);
            }
            Some(JournalNote::Unknown) => {}
        }
    }
    contents.is_end_torn = contents.torn_entries == 0 && is_torn(file, contents.end as usize);
    contents
}

/// The first entry of this generation at or after position `at`.
fn find_entry(file: &[u8], mut at: usize, id: JournalId) -> Option<(usize, DecodedEntry<'_>)> {
    let tag = id.tag.to_le_bytes();
    loop {
        let rest = file.get(at..)?;
        if let Some(entry) = decode_entry(rest).filter(|entry| entry.id == id) {
            return Some((at, entry));
        }
        let next = rest.get(1..)?.windows(tag.len()).position(|it| it == tag)?;
        at += 1 + next;
    }
}

/// The identity of a file without a header, from its first entry.
fn identify(file: &[u8]) -> Option<JournalId> {
    let starts = HEADER_BYTES..file.len().saturating_sub(ENTRY_HEADER_BYTES);
    let mut entries = starts.filter_map(|at| decode_entry(&file[at..]));
    entries.next().map(|entry| entry.id)
}

/// Whether a torn or damaged entry follows the last one: each write leaves zeros after its last
/// entry.
fn is_torn(file: &[u8], end: usize) -> bool {
    let following = file.get(end..).unwrap_or_default();
    let header = &following[..following.len().min(ENTRY_HEADER_BYTES)];
    header.iter().any(|byte| *byte != 0)
}

/// All entries before the first hole, as after a power loss.
pub fn decode_journal_entries(file: &[u8]) -> Vec<Vec<u8>> {
    read(file, true).map_or_else(Vec::new, FileContents::into_entries)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::super::format::{NextEntry, encode_journal_header};
    use super::*;
    use proptest::prelude::*;

    const ID: JournalId = JournalId {
        generation: 3,
        tag: 0x1234_5671,
    };

    /// A file, and the position of each entry.
    fn file_of(entries: &[Vec<u8>], synced: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = encode_journal_header(ID).to_vec();
        let mut next_entry = NextEntry { id: ID, ordinal: 0 };
        let mut starts = Vec::new();
        next_entry.encode_note(
            JournalNote::Complete {
                generation: 2,
                ordinal: 9,
            },
            0,
            &mut bytes,
        );
        for (number, entry) in entries.iter().enumerate() {
            starts.push(bytes.len());
            let synced = synced.get(number).map_or(0, |at| starts[*at]);
            next_entry.encode(entry, synced as u64, &mut bytes);
        }
        bytes.extend_from_slice(&[0; 2048]);
        (bytes, starts)
    }

    fn entries(count: u8) -> Vec<Vec<u8>> {
        (0..count).map(|n| vec![n; 600]).collect()
    }

    #[test]
    fn a_header_names_its_file_twice() {
        let mut header = encode_journal_header(ID);
        assert_eq!(decode_journal_header(&header), Some(ID));
        header[9] ^= 1;
        assert_eq!(decode_journal_header(&header), None);
        assert_eq!(decode_journal_header(&header[512..]), Some(ID));
        assert_eq!(decode_journal_header(&header[..10]), None);
    }

    #[test]
    fn a_file_without_a_header_is_known_by_its_entries() {
        let (mut file, _) = file_of(&entries(4), &[]);
        file[..HEADER_BYTES].fill(0);
        assert_eq!(read(&file, false).unwrap().into_entries(), entries(4));
        // Without the note, too, it may be an unfinished snapshot.
        file[HEADER_BYTES..HEADER_BYTES + 30].fill(0);
        assert!(read(&file, false).is_none());
    }

    #[test]
    fn entries_after_a_hole_are_used_unless_a_power_loss_may_have_left_it() {
        let all = entries(5);
        let (mut file, starts) = file_of(&all, &[]);
        file[starts[2] + 30] ^= 1;
        let found = read(&file, false).unwrap();
        let kept = [&all[..2], &all[3..]].concat();
        let hole = JournalHole {
            at: starts[2] as u64,
            bytes: 624,
            first: 3,
            entries: 1,
        };
        assert_eq!(found.holes, [hole]);
        assert_eq!(found.into_entries(), kept);
        let found = read(&file, true).unwrap();
        assert_eq!(found.torn_entries, 2);
        assert_eq!(found.into_entries(), all[..2]);
        // The last entry was written after the first four were synced.
        let (mut file, starts) = file_of(&all, &[0, 0, 0, 0, 4]);
        file[starts[2] + 30] ^= 1;
        assert_eq!(read(&file, true).unwrap().into_entries(), kept);
    }

    #[test]
    fn a_snapshot_in_use_was_synced_whole() {
        let all = entries(5);
        let (mut file, starts) = file_of(&all[..4], &[]);
        let end = starts[3] + 624;
        let mut next_entry = NextEntry { id: ID, ordinal: 5 };
        let mut following = Vec::new();
        let note = JournalNote::Complete {
            generation: 2,
            ordinal: 9,
        };
        next_entry.encode_note(note, 0, &mut following);
        next_entry.encode(&all[4], 0, &mut following);
        file[end..end + following.len()].copy_from_slice(&following);
        file[starts[1] + 30] ^= 1;
        let kept = [&all[..1], &all[2..]].concat();
        assert_eq!(read(&file, true).unwrap().into_entries(), kept);
        // Without the header it is unknown whether the snapshot was synced.
        file[..HEADER_BYTES].fill(0);
        assert_eq!(read(&file, true).unwrap().into_entries(), all[..1]);
    }

    #[test]
    fn a_damaged_last_entry_is_detected() {
        let (mut file, starts) = file_of(&entries(3), &[]);
        assert!(!read(&file, false).unwrap().is_end_torn);
        file[starts[2] + 100] ^= 1;
        let found = read(&file, false).unwrap();
        assert!(found.is_end_torn && found.into_entries() == entries(2));
    }

    #[test]
    fn an_entry_within_a_payload_is_not_an_entry() {
        let (inner, starts) = file_of(&entries(2), &[]);
        let mut outer = encode_journal_header(JournalId { tag: 77, ..ID }).to_vec();
        let id = JournalId { tag: 77, ..ID };
        NextEntry { id, ordinal: 0 }.encode(&inner[starts[0]..], 0, &mut outer);
        outer[HEADER_BYTES + 8] ^= 1;
        assert!(read(&outer, false).unwrap().entries.is_empty());
    }

    proptest! {
        #[test]
        fn damage_loses_only_the_entries_that_it_hit(
            count in 1u8..12,
            at in 0usize..9_000,
            len in 1usize..3_000,
            with in any::<Option<u8>>(),
        ) {
            let all = entries(count);
            let (mut file, starts) = file_of(&all, &[]);
            let whole = file.clone();
            let from = at.min(file.len());
            let to = (at + len).min(file.len());
            file[from..to].iter_mut().for_each(|byte| *byte = with.unwrap_or(!*byte));
            let hit = |start: &usize| file[*start..start + 624] != whole[*start..start + 624];
            let kept = starts.iter().zip(&all).filter(|(start, _)| !hit(start));
            let kept: Vec<Vec<u8>> = kept.map(|(_, entry)| entry.clone()).collect();
            let found = read(&file, false);
            let is_all_hit = from < 1024 && file[1024..1057] != whole[1024..1057];
            prop_assert!(found.is_some() || is_all_hit);
            if let Some(found) = found {
                prop_assert_eq!(found.into_entries(), kept);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3_000)) {
            read(&bytes, false);
            decode_journal_entries(&bytes);
            let mut following = encode_journal_header(ID).to_vec();
            following.extend(&bytes);
            read(&following, false);
        }
    }
}
