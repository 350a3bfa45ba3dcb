//! Messages whose copies are written to their destination (a dead-letter topic, or the topic of a
//! delayed publish) but not synced there, so that the originals cannot be acknowledged yet.
//!
//! A kill loses nothing that the kernel has, so the next start in the same boot counts these
//! messages as acknowledged. After a power loss they do not count. A kill therefore duplicates them
//! as rarely as other messages, however long a sync takes.

use std::collections::BTreeMap;

use super::cursor::{CursorDelta, WORD};
use super::{Ledger, LedgerDelta, PartitionDelta};
use crate::broker::PARTITIONS_MAX;
use crate::message::MessageId;

/// The moved messages: a bit per offset, by partition and word.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct MovedMessages {
    words: BTreeMap<(u32, u64), u64>,
    /// Words whose entry in the journal is out of date, and whether a bit was cleared since.
    dirty: BTreeMap<(u32, u64), bool>,
}

impl MovedMessages {
    /// Applies entries that an earlier process wrote: the last entry of a word counts.
    pub(crate) fn restore(&mut self, delta: PartitionDelta) {
        if delta.partition < PARTITIONS_MAX {
            let words = delta.cursor.words.into_iter();
            let words = words.filter(|(word, _)| *word < u64::MAX / WORD);
            self.words
                .extend(words.map(|(word, bits)| ((delta.partition, word), bits)));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.values().all(|bits| *bits == 0)
    }

    /// Entries that clear every moved message in the journal.
    pub(crate) fn taken_back(&self) -> LedgerDelta {
        delta(self.words.keys().map(|place| (*place, 0)))
    }
}

/// Groups words into one delta per partition.
fn delta(words: impl Iterator<Item = ((u32, u64), u64)>) -> LedgerDelta {
    let mut all: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for ((partition, word), bits) in words {
        all.entry(partition).or_default().push((word, bits));
    }
    let of_one = |(partition, words)| PartitionDelta {
        partition,
        cursor: CursorDelta {
            words,
            ..CursorDelta::default()
        },
        retries: Vec::new(),
    };
    all.into_iter().map(of_one).collect()
}

impl Ledger {
    /// Records that these messages have moved or, with `has_moved` false, that their copies failed.
    pub(crate) fn note_moved(&mut self, ids: &[MessageId], has_moved: bool) {
        if self.volatile {
            return;
        }
        for id in ids {
            let (place, bit) = ((id.partition, id.offset / WORD), 1 << (id.offset % WORD));
            let bits = self.moved.words.entry(place).or_default();
            if has_moved {
                *bits |= bit
            } else {
                *bits &= !bit
            }
            *self.moved.dirty.entry(place).or_default() |= !has_moved;
        }
    }

    /// The changes for the journal since the last call. Messages that were acknowledged meanwhile
    /// are left out.
    pub(crate) fn take_moved(&mut self) -> LedgerDelta {
        let cursors = &self.cursors;
        self.moved.words.retain(|(partition, word), bits| {
            let cursor = cursors.get(*partition as usize);
            *bits &= !cursor.map_or(u64::MAX, |cursor| cursor.acked_bits(*word));
            *bits != 0
        });
        let words = &self.moved.words;
        let changed = std::mem::take(&mut self.moved.dirty).into_iter();
        delta(changed.filter_map(|(place, is_less)| {
            let bits = words.get(&place).copied().unwrap_or(0);
            (bits != 0 || is_less).then_some((place, bits))
        }))
    }

    /// The whole state, for a snapshot.
    pub(crate) fn whole_moved(&self) -> LedgerDelta {
        delta(self.moved.words.iter().map(|(place, bits)| (*place, *bits)))
    }

    /// Acknowledges the moved messages: their copies are synced now. Call before
    /// [`Self::finish_restore`].
    pub(crate) fn settle_moved(&mut self, moved: &MovedMessages) {
        for ((partition, word), bits) in &moved.words {
            self.grow(*partition as usize + 1);
            let cursor = &mut self.cursors[*partition as usize];
            cursor.ack_bits(*word, *bits);
            // Delivery starts at the floor and steps over the acknowledged messages.
            cursor.next = cursor.floor();
            cursor.restored_end = cursor.restored_end.max(cursor.known_end());
        }
    }
}
