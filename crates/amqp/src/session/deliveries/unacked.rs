//! Deliveries that wait for an acknowledgement.

use std::collections::BTreeMap;

use cloverleaf_broker::{Delivery, MessageRange};
use cloverleaf_log::Offset;

/// Deliveries with consecutive tags, of messages with consecutive offsets, to one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) struct UnackedRun {
    pub(super) first_tag: u64,
    pub(super) count: u32,
    /// The consumer's slot; `incarnation` distinguishes the consumers that use the slot in turn.
    pub(super) slot: u32,
    pub(super) incarnation: u64,
    pub(super) partition: u32,
    pub(super) first: Offset,
}

impl UnackedRun {
    /// The deliveries of a broker's [`Delivery`], with the tag of its first message.
    pub(super) fn of(delivery: &Delivery, first_tag: u64, slot: u32, incarnation: u64) -> Self {
        Self {
            first_tag,
            count: delivery.count,
            slot,
            incarnation,
            partition: delivery.partition,
            first: delivery.first,
        }
    }

    fn end_tag(&self) -> u64 {
        self.first_tag + u64::from(self.count)
    }

    fn has(&self, tag: u64) -> bool {
        (self.first_tag..self.end_tag()).contains(&tag)
    }

    pub(super) fn range(&self) -> MessageRange {
        MessageRange {
            partition: self.partition,
            first: self.first,
            count: self.count,
        }
    }

    /// Splits off the first `count` deliveries; returns them and the rest.
    fn split(self, count: u32) -> (UnackedRun, UnackedRun) {
        let head = UnackedRun { count, ..self };
        let tail = UnackedRun {
            first_tag: self.first_tag + u64::from(count),
            count: self.count - count,
            first: self.first + u64::from(count),
            ..self
        };
        (head, tail)
    }
}

/// The messages in a delivery.
pub(super) fn range_of(delivery: &Delivery) -> MessageRange {
    MessageRange {
        partition: delivery.partition,
        first: delivery.first,
        count: delivery.count,
    }
}

/// A channel's unacknowledged deliveries, as runs, so that an unlimited prefetch costs no entry per
/// message.
#[derive(Debug, Default)]
pub(super) struct UnackedDeliveries {
    /// Keyed by the run's first tag when it was inserted. If deliveries are then taken from its
    /// front, the run keeps its key, which is lower than its first tag. Runs never overlap.
    runs: BTreeMap<u64, UnackedRun>,
}

impl UnackedDeliveries {
    /// Adds deliveries, with tags higher than all others.
    pub(super) fn push(&mut self, run: UnackedRun) {
        if let Some(mut last) = self.runs.last_entry() {
            let last = last.get_mut();
            let follows = last.end_tag() == run.first_tag
                && last.incarnation == run.incarnation
                && last.partition == run.partition
                && last.first + u64::from(last.count) == run.first;
            if follows && let Some(count) = last.count.checked_add(run.count) {
                last.count = count;
                return;
            }
        }
        self.runs.insert(run.first_tag, run);
    }

    /// Puts back deliveries that were taken.
    pub(super) fn restore(&mut self, runs: Vec<UnackedRun>) {
        let kept = std::mem::take(&mut self.runs).into_values();
        // Rebuilds all keys: the key of another run may be lower than its first tag, and a restored
        // run may belong between the two.
        self.runs = kept.chain(runs).map(|run| (run.first_tag, run)).collect();
    }

    /// Takes the delivery with this tag.
    #[inline]
    pub(super) fn take(&mut self, tag: u64) -> Option<UnackedRun> {
        let (&key, run) = self.runs.range_mut(..=tag).next_back()?;
        if !run.has(tag) {
            return None;
        }
        // Fits in u32: less than the run's count.
        let before = (tag - run.first_tag) as u32;
        let (head, rest) = run.split(before);
        let (one, tail) = rest.split(1);
        match (head.count, tail.count) {
            (0, 0) => {
                self.runs.remove(&key);
            }
            (0, _) => *run = tail,
            (_, 0) => *run = head,
            (_, _) => {
                *run = head;
                self.runs.insert(tail.first_tag, tail);
            }
        }
        Some(one)
    }

    /// Takes all deliveries up to this tag.
    pub(super) fn take_up_to(&mut self, tag: u64) -> Vec<UnackedRun> {
        let above = self.runs.split_off(&tag.saturating_add(1));
        let mut taken: Vec<UnackedRun> = std::mem::replace(&mut self.runs, above)
            .into_values()
            .collect();
        if let Some(last) = taken.last_mut()
            && last.end_tag() > tag + 1
        {
            // Fits in u32: less than the run's count. 0 if the run's first tag is above `tag`.
            let count = (tag + 1).saturating_sub(last.first_tag) as u32;
            let (head, tail) = last.split(count);
            *last = head;
            self.runs.insert(tail.first_tag, tail);
        }
        taken.pop_if(|last| last.count == 0);
        taken
    }

    /// Takes all deliveries.
    pub(super) fn take_all(&mut self) -> Vec<UnackedRun> {
        std::mem::take(&mut self.runs).into_values().collect()
    }

    /// Whether the delivery with this tag is unacknowledged.
    pub(super) fn contains(&self, tag: u64) -> bool {
        let before = self.runs.range(..=tag).next_back();
        before.is_some_and(|(_, run)| run.has(tag))
    }

    /// The number of unacknowledged deliveries.
    #[cfg(test)]
    fn len(&self) -> u64 {
        self.runs.values().map(|run| u64::from(run.count)).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn run(first_tag: u64, count: u32, first: Offset) -> UnackedRun {
        UnackedRun {
            first_tag,
            count,
            slot: 0,
            incarnation: 0,
            partition: 0,
            first,
        }
    }

    #[test]
    fn deliveries_in_a_row_are_one_run() {
        let mut unacked = UnackedDeliveries::default();
        unacked.push(run(1, 3, 100));
        unacked.push(run(4, 2, 103));
        unacked.push(run(6, 1, 200));
        assert_eq!(unacked.runs.len(), 2);
        assert_eq!(unacked.take(4).unwrap(), run(4, 1, 103));
        assert_eq!(unacked.take(4), None);
        assert_eq!(unacked.take(7), None);
        assert_eq!(unacked.take_up_to(5), [run(1, 3, 100), run(5, 1, 104)]);
        assert_eq!(unacked.take_all(), [run(6, 1, 200)]);
    }

    proptest! {
        #[test]
        fn unacked_deliveries_behave_as_a_set_of_tags(
            counts in prop::collection::vec((1u32..20, any::<bool>()), 1..20),
            takes in prop::collection::vec((1u64..250, any::<bool>()), 0..60),
        ) {
            let (mut unacked, mut model) = (UnackedDeliveries::default(), BTreeSet::new());
            let (mut tag, mut offset) = (1, 0);
            for (count, gap) in counts {
                offset += u64::from(gap);
                unacked.push(run(tag, count, offset));
                model.extend(tag..tag + u64::from(count));
                tag += u64::from(count);
                offset += u64::from(count);
            }
            let mut given = Vec::new();
            for (index, (tag, multiple)) in takes.into_iter().enumerate() {
                if index % 7 == 6 {
                    let tags = |run: &UnackedRun| run.first_tag..run.end_tag();
                    model.extend(given.iter().flat_map(tags));
                    unacked.restore(std::mem::take(&mut given));
                }
                if multiple {
                    let taken = unacked.take_up_to(tag);
                    given.extend_from_slice(&taken);
                    let taken: u64 = taken.iter().map(|run| u64::from(run.count)).sum();
                    let above = model.split_off(&(tag + 1));
                    prop_assert_eq!(taken, model.len() as u64);
                    model = above;
                } else {
                    prop_assert_eq!(unacked.contains(tag), model.contains(&tag));
                    let one = unacked.take(tag);
                    given.extend(one);
                    prop_assert_eq!(one.map(|run| run.first_tag), model.take(&tag));
                }
                prop_assert_eq!(unacked.len(), model.len() as u64);
            }
        }
    }
}
