//! Messages that have been stored where they go, and are not acknowledged yet because no disk has
//! them there.
//!
//! A kill takes nothing from the kernel, so the next start in the same boot takes them for
//! acknowledged; after a power loss it does not. So they come twice after a kill as seldom as
//! others, however long a sync takes.

use std::collections::BTreeMap;

use super::cursor::{CursorDelta, WORD};
use super::{Ledger, LedgerDelta, PartitionDelta};
use crate::broker::PARTITIONS_MAX;
use crate::message::MessageId;

/// The messages that have moved, by partition and word.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Moved {
    words: BTreeMap<(u32, u64), u64>,
    /// Words that the journal has to be told, and whether a bit of them was taken back.
    dirty: BTreeMap<(u32, u64), bool>,
}

impl Moved {
    /// Takes the entries that an earlier process wrote: the last one of a word counts.
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

    /// The entries that have to be written down so that none of it has moved.
    pub(crate) fn taken_back(&self) -> LedgerDelta {
        delta(self.words.keys().map(|place| (*place, 0)))
    }
}

/// Words as entries have them.
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
    /// These messages have moved; or they have not after all.
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

    /// The entries of it that have to be written down since the last call. Messages that are
    /// acknowledged meanwhile need none any more.
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

    /// All of it, for a snapshot.
    pub(crate) fn whole_moved(&self) -> LedgerDelta {
        delta(self.moved.words.iter().map(|(place, bits)| (*place, *bits)))
    }

    /// Acknowledges what has moved, now that it is for good where it goes. Before
    /// [`Self::finish_restore`].
    pub(crate) fn settle_moved(&mut self, moved: &Moved) {
        for ((partition, word), bits) in &moved.words {
            self.grow(*partition as usize + 1);
            let cursor = &mut self.cursors[*partition as usize];
            cursor.ack_bits(*word, *bits);
            // Delivery begins anew, and steps over it.
            cursor.next = cursor.floor();
            cursor.restored_end = cursor.restored_end.max(cursor.known_end());
        }
    }
}
