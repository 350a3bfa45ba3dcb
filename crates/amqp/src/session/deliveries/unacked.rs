//! Deliveries that wait for their acknowledgement.

use std::collections::BTreeMap;

use cloverleaf_broker::{Delivery, MessageRange};
use cloverleaf_log::Offset;

/// Consecutive deliveries of consecutive messages to one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) struct Run {
    pub(super) first_tag: u64,
    pub(super) count: u32,
    /// The consumer's slot, and which consumer that was.
    pub(super) slot: u32,
    pub(super) incarnation: u64,
    pub(super) partition: u32,
    pub(super) first: Offset,
}

impl Run {
    /// A delivery of a consumer, with the tag of its first message.
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

    pub(super) fn range(&self) -> MessageRange {
        MessageRange {
            partition: self.partition,
            first: self.first,
            count: self.count,
        }
    }

    /// The first `count` of it, and the rest.
    fn split(self, count: u32) -> (Run, Run) {
        let head = Run { count, ..self };
        let tail = Run {
            first_tag: self.first_tag + u64::from(count),
            count: self.count - count,
            first: self.first + u64::from(count),
            ..self
        };
        (head, tail)
    }
}

/// The messages of a delivery.
pub(super) fn range_of(delivery: &Delivery) -> MessageRange {
    MessageRange {
        partition: delivery.partition,
        first: delivery.first,
        count: delivery.count,
    }
}

/// A channel's unacknowledged deliveries, as runs: an unlimited prefetch costs no entry per
/// message.
#[derive(Debug, Default)]
pub(super) struct Unacked {
    /// By their first tag; none overlaps another.
    runs: BTreeMap<u64, Run>,
}

impl Unacked {
    /// Adds deliveries with tags above all others.
    pub(super) fn push(&mut self, run: Run) {
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

    /// Puts back what was taken.
    pub(super) fn restore(&mut self, runs: Vec<Run>) {
        for run in runs {
            self.runs.insert(run.first_tag, run);
        }
    }

    /// Takes the delivery of that tag.
    pub(super) fn take(&mut self, tag: u64) -> Option<Run> {
        let (_, run) = self.runs.range(..=tag).next_back()?;
        let run = *run;
        if tag >= run.end_tag() {
            return None;
        }
        self.runs.remove(&run.first_tag);
        // Less than the run's count.
        let before = (tag - run.first_tag) as u32;
        let (head, rest) = run.split(before);
        let (one, tail) = rest.split(1);
        for part in [head, tail] {
            if part.count > 0 {
                self.runs.insert(part.first_tag, part);
            }
        }
        Some(one)
    }

    /// Takes all deliveries up to that tag.
    pub(super) fn take_up_to(&mut self, tag: u64) -> Vec<Run> {
        let above = self.runs.split_off(&tag.saturating_add(1));
        let mut taken: Vec<Run> = std::mem::replace(&mut self.runs, above)
            .into_values()
            .collect();
        if let Some(last) = taken.last_mut()
            && last.end_tag() > tag + 1
        {
            // Less than the run's count.
            let (head, tail) = last.split((tag + 1 - last.first_tag) as u32);
            *last = head;
            self.runs.insert(tail.first_tag, tail);
        }
        taken
    }

    /// Takes all.
    pub(super) fn take_all(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.runs).into_values().collect()
    }

    /// Whether the tag names one of them.
    pub(super) fn contains(&self, tag: u64) -> bool {
        let before = self.runs.range(..=tag).next_back();
        before.is_some_and(|(_, run)| tag < run.end_tag())
    }

    /// How many deliveries there are.
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

    fn run(first_tag: u64, count: u32, first: Offset) -> Run {
        Run {
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
        let mut unacked = Unacked::default();
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
        fn as_a_set_of_tags(
            counts in prop::collection::vec((1u32..20, any::<bool>()), 1..20),
            takes in prop::collection::vec((1u64..250, any::<bool>()), 0..60),
        ) {
            let (mut unacked, mut model) = (Unacked::default(), BTreeSet::new());
            let (mut tag, mut offset) = (1, 0);
            for (count, gap) in counts {
                offset += u64::from(gap);
                unacked.push(run(tag, count, offset));
                model.extend(tag..tag + u64::from(count));
                tag += u64::from(count);
                offset += u64::from(count);
            }
            for (tag, multiple) in takes {
                if multiple {
                    let taken = unacked.take_up_to(tag);
                    let taken: u64 = taken.iter().map(|run| u64::from(run.count)).sum();
                    let above = model.split_off(&(tag + 1));
                    prop_assert_eq!(taken, model.len() as u64);
                    model = above;
                } else {
                    prop_assert_eq!(unacked.contains(tag), model.contains(&tag));
                    prop_assert_eq!(unacked.take(tag).is_some(), model.remove(&tag));
                }
                prop_assert_eq!(unacked.len(), model.len() as u64);
            }
        }
    }
}
