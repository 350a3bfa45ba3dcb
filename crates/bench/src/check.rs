//! Checks that no message was lost, received twice or out of order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A set of numbers that are mostly consecutive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ranges {
    /// Start and end of ranges that neither overlap nor touch.
    ranges: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a number; `false`: the set had it.
    #[inline]
    pub fn insert(&mut self, number: u64) -> bool {
        // Nearly always it extends the last range.
        if let Some(mut last) = self.ranges.last_entry()
            && *last.get() == number
        {
            *last.get_mut() += 1;
            return true;
        }
        self.insert_somewhere(number)
    }

    /// Adds `count` consecutive numbers. Returns how many of them are new.
    #[inline]
    pub fn insert_many(&mut self, first: u64, count: u64) -> u64 {
        if let Some(mut last) = self.ranges.last_entry()
            && *last.get() == first
        {
            *last.get_mut() += count;
            return count;
        }
        let new = (first..first + count).filter(|number| self.insert_somewhere(*number));
        new.count() as u64
    }

    fn insert_somewhere(&mut self, number: u64) -> bool {
        let before = self.ranges.range(..=number).next_back();
        let before = before.map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, end)| number < end) {
            return false;
        }
        let next = number.saturating_add(1);
        let end = self.ranges.remove(&next).unwrap_or(next);
        match before {
            Some((start, touches)) if touches == number => self.ranges.insert(start, end),
            _ => self.ranges.insert(number, end),
        };
        true
    }

    /// How many numbers there are.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many numbers are in both sets.
    pub fn count_common(&self, other: &Ranges) -> u64 {
        let (mut mine, mut theirs) = (self.ranges.iter(), other.ranges.iter());
        let (mut one, mut two) = (mine.next(), theirs.next());
        let mut common = 0;
        while let (Some((start, end)), Some((other_start, other_end))) = (one, two) {
            let first = start.max(other_start);
            common += end.min(other_end).saturating_sub(*first);
            match end < other_end {
                true => one = mine.next(),
                false => two = theirs.next(),
            }
        }
        common
    }

    /// Adds all numbers of another set. Returns how many were in both.
    pub fn add(&mut self, other: &Ranges) -> u64 {
        let common = self.count_common(other);
        for (start, end) in &other.ranges {
            self.insert_range(*start, *end);
        }
        common
    }

    /// Start and end of each range, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    /// Adds the numbers from `start`, which is below `end`.
    pub(crate) fn insert_range(&mut self, mut start: u64, mut end: u64) {
        // The range that begins before it, and the ranges that begin within it or touch it.
        let before = self.ranges.range(..=start).next_back();
        if let Some((first, last)) = before.map(|(first, last)| (*first, *last))
            && last >= start
        {
            start = first;
        }
        let within: Vec<u64> = self
            .ranges
            .range(start..=end)
            .map(|(first, _)| *first)
            .collect();
        for first in within {
            if let Some(last) = self.ranges.remove(&first) {
                end = end.max(last);
            }
        }
        self.ranges.insert(start, end);
    }
}

/// Accepts overlapping ranges, which it merges, and refuses empty ones.
impl<'de> Deserialize<'de> for Ranges {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Written {
            ranges: BTreeMap<u64, u64>,
        }
        let mut read = Ranges::default();
        for (start, end) in Written::deserialize(deserializer)?.ranges {
            if start >= end {
                return Err(serde::de::Error::custom("a range ends before it begins"));
            }
            read.insert_range(start, end);
        }
        Ok(read)
    }
}

/// Messages that one or several consumers have received.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Sequences by producer.
    numbers: BTreeMap<u32, Ranges>,
    /// The last sequence of a producer on a stream, where order is promised.
    #[serde(skip)]
    last: BTreeMap<(u32, u32), u64>,
    duplicates: u64,
    out_of_order: u64,
}

impl Seen {
    /// Whether no message was received.
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Adds a message. `stream`: the partition or queue within which messages keep their order;
    /// `None`: no order is promised, or the broker marked the message as redelivered. `false`: it
    /// was received before.
    #[inline]
    pub fn came(&mut self, producer: u32, sequence: u64, stream: Option<u32>) -> bool {
        let is_new = self.numbers.entry(producer).or_default().insert(sequence);
        if !is_new {
            self.duplicates += 1;
            return false;
        }
        if let Some(stream) = stream {
            let last = self.last.entry((producer, stream)).or_insert(sequence);
            if sequence < *last {
                self.out_of_order += 1;
            } else {
                *last = sequence;
            }
        }
        true
    }

    /// Adds the messages of another consumer.
    pub fn add(&mut self, other: &Seen) {
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        for (producer, numbers) in &other.numbers {
            let mine = self.numbers.entry(*producer).or_default();
            self.duplicates += mine.add(numbers);
        }
    }

    /// Adds the messages of one producer that another consumer has received.
    pub(crate) fn add_numbers(&mut self, producer: u32, numbers: &Ranges) {
        self.duplicates += self.numbers.entry(producer).or_default().add(numbers);
    }

    /// Adds faults that another consumer has found.
    pub(crate) fn add_faults(&mut self, duplicates: u64, out_of_order: u64) {
        self.duplicates += duplicates;
        self.out_of_order += out_of_order;
    }

    /// The numbers of duplicates and of messages out of order.
    pub(crate) fn faults(&self) -> (u64, u64) {
        (self.duplicates, self.out_of_order)
    }

    /// Removes and returns the sequences by producer. The faults stay.
    pub(crate) fn take_numbers(&mut self) -> BTreeMap<u32, Ranges> {
        std::mem::take(&mut self.numbers)
    }

    /// Compares the messages with those that were acknowledged to producers.
    pub fn compare(&self, acked: &BTreeMap<u32, Ranges>) -> Findings {
        let none = Ranges::default();
        let lost = acked.iter().map(|(producer, acked)| {
            let seen = self.numbers.get(producer).unwrap_or(&none);
            acked.len() - acked.count_common(seen)
        });
        Findings {
            lost: lost.sum(),
            duplicates: self.duplicates,
            out_of_order: self.out_of_order,
            unread: 0,
        }
    }
}

/// Faults, by number of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Messages that were acknowledged to a producer and received by no consumer.
    pub lost: u64,
    /// Messages that were received again, counted each time after the first.
    pub duplicates: u64,
    /// Messages that were received after a later one of the same producer on the same stream.
    pub out_of_order: u64,
    /// Messages that were acknowledged, and not consumed before the measurement ended.
    pub unread: u64,
}

impl Findings {
    /// For a measurement that ended before all messages could be received: missing messages are
    /// unread, not lost.
    pub fn of_the_unfinished(self) -> Findings {
        Findings {
            lost: 0,
            unread: self.unread + self.lost,
            ..self
        }
    }

    /// Whether a broker broke its promise. Duplicates are allowed.
    pub fn is_broken(&self) -> bool {
        self.lost > 0 || self.out_of_order > 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set_of(ranges: &Ranges) -> BTreeSet<u64> {
        ranges
            .ranges
            .iter()
            .flat_map(|(start, end)| *start..*end)
            .collect()
    }

    fn ranges_of(numbers: &[u64]) -> Ranges {
        let mut ranges = Ranges::default();
        for number in numbers {
            ranges.insert(*number);
        }
        ranges
    }

    proptest! {
        #[test]
        fn ranges_are_a_set(
            one in prop::collection::vec(0..60u64, 0..80),
            two in prop::collection::vec(0..60u64, 0..80),
        ) {
            let (mut set, mut ranges) = (BTreeSet::new(), Ranges::default());
            for number in &one {
                prop_assert_eq!(ranges.insert(*number), set.insert(*number));
            }
            prop_assert_eq!(set_of(&ranges), set.clone());
            prop_assert_eq!(ranges.len(), set.len() as u64);
            let mut many = ranges.clone();
            let first = one.first().copied().unwrap_or(60);
            let new = (first..first + 5).filter(|number| !set.contains(number)).count();
            prop_assert_eq!(many.insert_many(first, 5), new as u64);
            prop_assert_eq!(many.len(), (set.len() + new) as u64);
            let other = ranges_of(&two);
            let others = set_of(&other);
            let common = set.intersection(&others).count() as u64;
            prop_assert_eq!(ranges.count_common(&other), common);
            prop_assert_eq!(ranges.add(&other), common);
            prop_assert_eq!(&ranges, &ranges_of(&set.union(&others).copied().collect::<Vec<_>>()));
        }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let ranges = ranges_of(&[1, 2, 3, 9]);
        let text = serde_json::to_string(&ranges).unwrap_or_default();
        assert_eq!(serde_json::from_str::<Ranges>(&text).ok(), Some(ranges));
        assert!(serde_json::from_str::<Ranges>(r#"{"ranges":{"5":3}}"#).is_err());
        let touching = serde_json::from_str::<Ranges>(r#"{"ranges":{"1":3,"3":4,"9":10}}"#);
        assert_eq!(touching.ok(), Some(ranges_of(&[1, 2, 3, 9])));
    }

    #[test]
    fn each_fault_is_found() {
        let acked = BTreeMap::from([(0, ranges_of(&[0, 1, 2, 3, 4])), (1, ranges_of(&[0, 1]))]);
        let mut one = Seen::default();
        for sequence in [0, 2, 1, 1] {
            one.came(0, sequence, Some(0));
        }
        // On another stream nothing is promised.
        one.came(0, 4, Some(1));
        let mut two = Seen::default();
        two.came(0, 4, None);
        // Messages that were not acknowledged may come all the same.
        two.came(1, 5, None);
        two.came(1, 1, None);
        two.add(&one);
        let findings = two.compare(&acked);
        let expected = Findings {
            lost: 2,
            duplicates: 2,
            out_of_order: 1,
            unread: 0,
        };
        assert_eq!(findings, expected);
        assert!(findings.is_broken());
    }
}
