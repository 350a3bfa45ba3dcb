//! Groups of journal entries of which a crash leaves all or none.
//!
//! Each entry has its own checksum, so a crash during a write of several may leave only the first
//! ones. Entries that must be atomic are therefore encoded as one:
//!
//! ```text
//! 18 together    { length u32, entry }*, none of them of kind 18
//! ```
//!
//! Numbers are big endian. The kind is stored in journals: never change it.

use crate::broker::{CatalogError, Shared};
use crate::journal::entries::{Entry, EntryError};

const KIND: u8 = 18;

impl Shared {
    /// Writes entries to the journal, all or none. They are in the kernel when this returns, not
    /// synced.
    pub(crate) fn write_together(&self, entries: &[Entry]) -> Result<(), CatalogError> {
        match entries {
            [] => Ok(()),
            [entry] => self.write_entries(std::slice::from_ref(entry)),
            entries => self.write_encoded(&[encode(entries)]),
        }
    }
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut out = vec![KIND];
    for entry in entries {
        let bytes = entry.encode();
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&bytes);
    }
    out
}

/// Decodes one journal entry, which may be a group.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Entry>, EntryError> {
    let Some((&KIND, mut rest)) = bytes.split_first() else {
        return Ok(vec![Entry::decode(bytes)?]);
    };
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let parts = rest.split_first_chunk().and_then(|(length, behind)| {
            behind.split_at_checked(u32::from_be_bytes(*length) as usize)
        });
        let (entry, behind) = parts.ok_or_else(|| EntryError {
            kind: KIND,
            reason: "too short".to_owned(),
        })?;
        entries.push(Entry::decode(entry)?);
        rest = behind;
    }
    Ok(entries)
}

/// Whether `bytes` decode as an entry or a group. For the fuzz target.
#[doc(hidden)]
pub fn is_entry(bytes: &[u8]) -> bool {
    decode(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::namespace::Name;

    fn several() -> Vec<Entry> {
        let kept = Entry::Kept {
            key: Name::from("key").owned(),
            value: Some(vec![KIND; 9]),
        };
        vec![kept, Entry::TopicDeleted(Uuid::nil()), Entry::Closed]
    }

    #[test]
    fn a_group_decodes_as_written_and_so_does_a_single_entry() {
        assert_eq!(decode(&encode(&several())).unwrap(), several());
        for entry in several() {
            assert_eq!(decode(&entry.encode()).unwrap(), [entry]);
        }
        let nested = encode(&several());
        let length = u32::try_from(nested.len()).unwrap().to_be_bytes();
        let nested = [&[KIND], &length[..], &nested].concat();
        assert_eq!(decode(&nested).unwrap_err().kind, KIND);
        assert!(decode(&[]).is_err());
    }

    #[test]
    fn a_cut_group_is_refused_unless_it_is_cut_between_entries() {
        let whole = encode(&several());
        let ends = several().into_iter().scan(1, |at, entry| {
            *at += 4 + entry.encode().len();
            Some(*at)
        });
        let ends: Vec<usize> = std::iter::once(1).chain(ends).collect();
        for len in 1..whole.len() {
            assert_eq!(decode(&whole[..len]).is_ok(), ends.contains(&len), "{len}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_read(rest in prop::collection::vec(any::<u8>(), 0..99)) {
            let bytes = [&[KIND], &rest[..]].concat();
            if let Ok(entries) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&entries)).unwrap(), entries);
            }
        }
    }
}
