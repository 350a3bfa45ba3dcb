//! Which messages of one partition a subscription has acknowledged: a floor and a bitmap above it.
//!
//! ```text
//!            floor                      next
//!   ##########|##..#.##|########|..####..|            # acknowledged   . leased
//!             '-word---'-(full)-'-word---'            a word is 64 offsets
//! ```
//!
//! Wholly acknowledged words above the floor collapse into ranges, so that one stuck message
//! followed by a hundred million acknowledged ones costs a few bytes.

use std::collections::BTreeMap;

use cloverleaf_log::{Offset, invariant};

use super::leases::NIL;

/// Offsets per word: one bit each of a `u64`.
pub(crate) const WORD: u64 = 64;

/// The bits of 64 offsets that are neither all acknowledged nor all untouched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AckWord {
    /// Bit n: offset `word * 64 + n` is acknowledged.
    pub(crate) acked: u64,
    /// Index of the first lease in the word's linked list; [`NIL`] if there is none.
    pub(crate) leases: u32,
    dirty: bool,
}

impl Default for AckWord {
    fn default() -> Self {
        Self {
            acked: 0,
            leases: NIL,
            dirty: false,
        }
    }
}

/// The acknowledgement state of one partition.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    floor: Offset,
    /// Every offset below is acknowledged or leased; delivery of new messages continues here.
    pub(crate) next: Offset,
    /// After a restart, offsets from `next` up to here may be acknowledged or leased already. Above
    /// it all are free.
    pub(crate) restored_end: Offset,
    /// How many offsets in `[next, restored_end)` are neither acknowledged nor leased.
    pub(crate) restored_free: u64,
    words: BTreeMap<u64, AckWord>,
    /// Start and end (exclusive) of ranges of wholly acknowledged words above the floor.
    full: BTreeMap<u64, u64>,
    volatile: bool,
    floor_dirty: bool,
    dirty_words: Vec<u64>,
    dirty_ranges: Vec<(u64, u64)>,
}

/// The changes of a cursor since the last [`Cursor::take_delta`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct CursorDelta {
    pub(crate) floor: Offset,
    /// Word numbers and their acknowledged bits.
    pub(crate) words: Vec<(u64, u64)>,
    /// Ranges of wholly acknowledged words: start and end (exclusive).
    pub(crate) ranges: Vec<(u64, u64)>,
}

/// The bits of `word` whose offsets lie in `[start, end)`.
pub(crate) fn bits_between(word: u64, start: Offset, end: Offset) -> u64 {
    let base = word * WORD;
    let from = start.max(base) - base;
    let to = end.min(base + WORD).saturating_sub(base);
    if from >= to {
        return 0;
    }
    let width = to - from;
    (u64::MAX >> (WORD - width)) << from
}

impl Cursor {
    /// A cursor of which everything below `floor` is acknowledged.
    pub(crate) fn starting_at(floor: Offset) -> Self {
        Self {
            floor,
            next: floor,
            floor_dirty: true,
            ..Self::default()
        }
    }

    /// Stops collecting changes for the journal.
    pub(crate) fn make_volatile(&mut self) {
        self.volatile = true;
    }

    pub(crate) fn floor(&self) -> Offset {
        self.floor
    }

    /// One above the highest acknowledged offset.
    pub(crate) fn known_end(&self) -> Offset {
        let word_end = self.words.last_key_value().map_or(0, |(word, state)| {
            word * WORD + (WORD - u64::from(state.acked.leading_zeros()))
        });
        let full_end = self.full.last_key_value().map_or(0, |(_, end)| end * WORD);
        self.floor.max(word_end).max(full_end)
    }

    pub(crate) fn word(&self, word: u64) -> Option<&AckWord> {
        self.words.get(&word)
    }

    /// The entry of a word, created if missing. The word must not be wholly acknowledged.
    pub(crate) fn word_mut(&mut self, word: u64) -> &mut AckWord {
        debug_assert!(!self.is_full(word));
        let floor = self.floor;
        self.words.entry(word).or_insert_with(|| AckWord {
            acked: bits_between(word, 0, floor),
            ..AckWord::default()
        })
    }

    fn is_full(&self, word: u64) -> bool {
        self.full
            .range(..=word)
            .next_back()
            .is_some_and(|(_, end)| word < *end)
    }

    /// The acknowledged bits of a word.
    pub(crate) fn acked_bits(&self, word: u64) -> u64 {
        if let Some(state) = self.words.get(&word) {
            state.acked
        } else if self.is_full(word) {
            u64::MAX
        } else {
            bits_between(word, 0, self.floor)
        }
    }

    /// Whether every offset in `[start, end)` is acknowledged.
    pub(crate) fn covers(&self, start: Offset, end: Offset) -> bool {
        let start = start.max(self.floor);
        if start >= end {
            return true;
        }
        let (mut word, last) = (start / WORD, (end - 1) / WORD);
        while word <= last {
            if let Some((_, full_end)) = self
                .full
                .range(..=word)
                .next_back()
                .filter(|(_, full_end)| word < **full_end)
            {
                word = *full_end;
                continue;
            }
            let wanted = bits_between(word, start, end);
            if self.acked_bits(word) & wanted != wanted {
                return false;
            }
            word += 1;
        }
        true
    }

    /// The end of the range of wholly acknowledged words that contains `offset`, if one does.
    pub(crate) fn full_until(&self, offset: Offset) -> Option<Offset> {
        let (_, end) = self.full.range(..=offset / WORD).next_back()?;
        (offset / WORD < *end).then_some(end * WORD)
    }

    /// The first offset of the first word at or above word `from` that has acknowledged or leased
    /// messages; `Offset::MAX` if there is none.
    pub(crate) fn untouched_until(&self, from: u64) -> Offset {
        let partial = self.words.range(from..).next().map(|(word, _)| *word);
        let full = self.full.range(from..).next().map(|(start, _)| *start);
        let known = partial.into_iter().chain(full).min();
        known.map_or(Offset::MAX, |word| word.saturating_mul(WORD))
    }

    /// How many offsets in `[start, end)` are acknowledged.
    pub(crate) fn acked_between(&self, start: Offset, end: Offset) -> u64 {
        let below_floor = self.floor.min(end).saturating_sub(start);
        let start = start.max(self.floor);
        let in_words: u64 = self
            .words_between(start, end)
            .map(|word| {
                u64::from((self.acked_bits(word) & bits_between(word, start, end)).count_ones())
            })
            .sum();
        let overlap = |(from, to): (&u64, &u64)| {
            (to * WORD)
                .min(end)
                .saturating_sub((from * WORD).max(start))
        };
        below_floor + in_words + self.full.iter().map(overlap).sum::<u64>()
    }

    /// The words in `[start, end)` that have an entry: neither wholly acknowledged nor untouched.
    pub(crate) fn words_between(&self, start: Offset, end: Offset) -> impl Iterator<Item = u64> {
        let last = if end > start { end.div_ceil(WORD) } else { 0 };
        let first = (start / WORD).min(last);
        self.words.range(first..last).map(|(word, _)| *word)
    }

    /// Acknowledges bits of one word. The caller has removed them from their leases.
    pub(crate) fn ack_bits(&mut self, word: u64, bits: u64) {
        if self.is_full(word) || (word + 1) * WORD <= self.floor {
            return;
        }
        let volatile = self.volatile;
        let state = self.word_mut(word);
        state.acked |= bits;
        let whole = state.acked == u64::MAX;
        invariant!(
            !whole || state.leases == NIL,
            "a wholly acknowledged word has a lease"
        );
        if !volatile && !std::mem::replace(&mut state.dirty, true) {
            self.dirty_words.push(word);
        }
        if whole {
            self.words.remove(&word);
            self.insert_full(word, word + 1);
        }
        if self.floor / WORD == word {
            self.raise_floor();
        }
    }

    /// Acknowledges `[start, end)`. No lease may cover any of it.
    pub(crate) fn ack_range(&mut self, start: Offset, end: Offset) {
        let start = start.max(self.floor);
        if start >= end {
            return;
        }
        let (first, last) = (start / WORD, (end - 1) / WORD);
        self.ack_bits(first, bits_between(first, start, end));
        if last > first {
            if last > first + 1 {
                let inner: Vec<u64> = self.words.range(first + 1..last).map(|(w, _)| *w).collect();
                for word in inner {
                    self.words.remove(&word);
                }
                self.insert_full(first + 1, last);
                if !self.volatile {
                    self.dirty_ranges.push((first + 1, last));
                }
            }
            self.ack_bits(last, bits_between(last, start, end));
        }
        self.raise_floor();
    }

    /// Unlinks all leases from the words. The caller drops the leases themselves.
    pub(crate) fn forget_leases(&mut self) {
        self.words.retain(|_, word| {
            word.leases = NIL;
            word.acked != 0
        });
    }

    fn insert_full(&mut self, mut start: u64, mut end: u64) {
        if let Some((before, before_end)) =
            self.full.range(..=start).next_back().map(|(s, e)| (*s, *e))
            && before_end >= start
        {
            self.full.remove(&before);
            start = before;
            end = end.max(before_end);
        }
        while let Some((after, after_end)) = self.full.range(start..).next().map(|(s, e)| (*s, *e))
        {
            if after > end {
                break;
            }
            self.full.remove(&after);
            end = end.max(after_end);
        }
        self.full.insert(start, end);
    }

    fn raise_floor(&mut self) {
        let before = self.floor;
        loop {
            let word = self.floor / WORD;
            if let Some((start, end)) = self.full.first_key_value().map(|(s, e)| (*s, *e))
                && start <= word
            {
                if word < end {
                    self.floor = end * WORD;
                }
                self.full.remove(&start);
                continue;
            }
            if let Some(state) = self.words.get(&word) {
                // Never all ones here: a wholly acknowledged word is in `full`.
                self.floor = word * WORD + u64::from(state.acked.trailing_ones());
                if state.acked == bits_between(word, 0, self.floor) && state.leases == NIL {
                    self.words.remove(&word);
                }
            }
            break;
        }
        invariant!(
            self.floor >= before,
            "the floor of acknowledged messages has fallen"
        );
        self.floor_dirty |= self.floor != before;
        self.next = self.next.max(self.floor);
    }

    /// The changes since the last call, or `None`.
    pub(crate) fn take_delta(&mut self) -> Option<CursorDelta> {
        if !self.floor_dirty && self.dirty_words.is_empty() && self.dirty_ranges.is_empty() {
            return None;
        }
        let mut delta = CursorDelta {
            floor: self.floor,
            ..CursorDelta::default()
        };
        let floor_word = self.floor / WORD;
        for word in std::mem::take(&mut self.dirty_words) {
            if let Some(state) = self.words.get_mut(&word) {
                state.dirty = false;
            }
            if word >= floor_word {
                delta.words.push((word, self.acked_bits(word)));
            }
        }
        delta.words.sort_unstable();
        delta.words.dedup();
        delta.ranges = std::mem::take(&mut self.dirty_ranges);
        delta.ranges.retain(|(_, end)| *end > floor_word);
        self.floor_dirty = false;
        Some(delta)
    }

    /// The whole state, for a snapshot.
    pub(crate) fn whole(&self) -> CursorDelta {
        CursorDelta {
            floor: self.floor,
            words: self
                .words
                .iter()
                .filter(|(_, state)| state.acked != 0)
                .map(|(word, state)| (*word, state.acked))
                .collect(),
            ranges: self
                .full
                .iter()
                .map(|(start, end)| (*start, *end))
                .collect(),
        }
    }

    /// Applies a delta that an earlier process wrote to the journal. Deltas only ever add
    /// acknowledgements.
    pub(crate) fn restore(&mut self, delta: &CursorDelta) {
        if delta.floor > self.floor {
            self.ack_range(self.floor, delta.floor);
        }
        for (start, end) in &delta.ranges {
            if let (Some(start), Some(end)) = (start.checked_mul(WORD), end.checked_mul(WORD)) {
                self.ack_range(start, end);
            }
        }
        for (word, bits) in &delta.words {
            if *word < u64::MAX / WORD {
                self.ack_bits(*word, *bits);
            }
        }
        self.next = self.floor;
        self.restored_end = self.known_end();
        self.floor_dirty = false;
        self.dirty_ranges.clear();
        for word in std::mem::take(&mut self.dirty_words) {
            if let Some(state) = self.words.get_mut(&word) {
                state.dirty = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bits_between_covers_edges() {
        assert_eq!(bits_between(0, 0, 64), u64::MAX);
        assert_eq!(bits_between(0, 3, 5), 0b11000);
        assert_eq!(bits_between(1, 3, 65), 1);
        assert_eq!(bits_between(1, 0, 64), 0);
        assert_eq!(bits_between(0, 64, 70), 0);
    }

    #[test]
    fn one_stuck_message_keeps_memory_small() {
        let mut cursor = Cursor::starting_at(0);
        cursor.ack_range(1, 100_000_000);
        assert_eq!(cursor.floor(), 0);
        assert!(cursor.words.len() <= 2);
        assert_eq!(cursor.full.len(), 1);
        cursor.ack_range(0, 1);
        assert_eq!(cursor.floor(), 100_000_000);
        assert!(cursor.full.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_a_set(ranges in prop::collection::vec((0u64..700, 0u64..200), 1..60),
                             take_at in prop::collection::vec(any::<bool>(), 60)) {
            let mut cursor = Cursor::starting_at(0);
            let mut copy = Cursor::starting_at(0);
            let mut model = BTreeSet::new();
            for (turn, (start, length)) in ranges.into_iter().enumerate() {
                cursor.ack_range(start, start + length);
                model.extend(start..start + length);
                let floor = (0..).find(|offset| !model.contains(offset)).unwrap();
                prop_assert_eq!(cursor.floor(), floor);
                for offset in (0..950).step_by(7) {
                    prop_assert_eq!(cursor.covers(offset, offset + 1), model.contains(&offset));
                    let end = offset + length;
                    let covered = (offset..end).all(|offset| model.contains(&offset));
                    prop_assert_eq!(cursor.covers(offset, end), covered);
                    let acked = (offset..end).filter(|offset| model.contains(offset)).count();
                    prop_assert_eq!(cursor.acked_between(offset, end), acked as u64);
                }
                if take_at[turn] && let Some(delta) = cursor.take_delta() {
                    copy.restore(&delta);
                }
            }
            if let Some(delta) = cursor.take_delta() {
                copy.restore(&delta);
            }
            let mut from_snapshot = Cursor::starting_at(0);
            from_snapshot.restore(&cursor.whole());
            for offset in 0..950 {
                let expected = model.contains(&offset);
                prop_assert_eq!(copy.covers(offset, offset + 1), expected);
                prop_assert_eq!(from_snapshot.covers(offset, offset + 1), expected);
            }
        }
    }
}
