//! Deliveries that wait for their acknowledgement, and what becomes of them.

use std::collections::BTreeMap;

use cloverleaf_broker::MessageRange;
use cloverleaf_log::Offset;

use crate::exception::Exception;
use crate::session::Session;
use crate::session::channel::{Mode, Verdict};

/// Consecutive deliveries of consecutive messages to one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) struct Run {
    pub(in crate::session) first_tag: u64,
    pub(in crate::session) count: u32,
    /// The consumer's slot, and which consumer that was.
    pub(in crate::session) slot: u32,
    pub(in crate::session) incarnation: u64,
    pub(in crate::session) partition: u32,
    pub(in crate::session) first: Offset,
}

impl Run {
    fn end_tag(&self) -> u64 {
        self.first_tag + u64::from(self.count)
    }

    pub(in crate::session) fn range(&self) -> MessageRange {
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

/// A channel's unacknowledged deliveries, as runs: an unlimited prefetch costs no entry per
/// message.
#[derive(Debug, Default)]
pub(in crate::session) struct Unacked {
    /// By their first tag; none overlaps another.
    runs: BTreeMap<u64, Run>,
}

impl Unacked {
    /// Adds deliveries with tags above all others.
    pub(in crate::session) fn push(&mut self, run: Run) {
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
    pub(in crate::session) fn restore(&mut self, runs: Vec<Run>) {
        for run in runs {
            self.runs.insert(run.first_tag, run);
        }
    }

    /// Takes the delivery of that tag.
    pub(in crate::session) fn take(&mut self, tag: u64) -> Option<Run> {
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
    pub(in crate::session) fn take_up_to(&mut self, tag: u64) -> Vec<Run> {
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
    pub(in crate::session) fn take_all(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.runs).into_values().collect()
    }

    /// Whether the tag names one of them.
    fn contains(&self, tag: u64) -> bool {
        let before = self.runs.range(..=tag).next_back();
        before.is_some_and(|(_, run)| tag < run.end_tag())
    }

    /// How many deliveries there are.
    #[cfg(test)]
    fn len(&self) -> u64 {
        self.runs.values().map(|run| u64::from(run.count)).sum()
    }
}

/// The way in which deliveries are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum Settle {
    Ack,
    Requeue,
    Reject,
}

/// The deliveries that a transaction has settled.
pub(in crate::session) type Settled = Vec<(Settle, Vec<Run>)>;

impl Session {
    /// `basic.ack`, `basic.nack`, `basic.reject`.
    pub(in crate::session) fn settle(
        &mut self,
        number: u16,
        verdict: Verdict,
    ) -> Result<(), Exception> {
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        let tag = verdict.tag;
        let unknown = || Exception::precondition(format!("unknown delivery tag {tag}"));
        let runs = match (verdict.multiple, tag) {
            (true, 0) => channel.unacked.take_all(),
            (true, _) if !channel.unacked.contains(tag) => return Err(unknown()),
            (true, _) => channel.unacked.take_up_to(tag),
            (false, _) => vec![channel.unacked.take(tag).ok_or_else(unknown)?],
        };
        if runs.is_empty() {
            return Ok(());
        }
        match &mut channel.mode {
            Mode::Transaction(transaction) => transaction.settled.push((verdict.settle, runs)),
            Mode::Plain | Mode::Confirm(_) => self.settle_runs(verdict.settle, &runs),
        }
        Ok(())
    }

    /// Settles deliveries: acknowledgements with the others of this read, what goes back or dies at
    /// once and together, so that it keeps its order.
    pub(in crate::session) fn settle_runs(&mut self, settle: Settle, runs: &[Run]) {
        if settle == Settle::Ack {
            runs.iter().for_each(|run| self.acknowledge(run));
            return;
        }
        // In the client's order: acknowledgements that came before go first.
        self.settle_acks();
        let mut by_slot: BTreeMap<u32, Vec<MessageRange>> = BTreeMap::new();
        for run in runs {
            if self.consumers.of_run(run).is_some() {
                by_slot.entry(run.slot).or_default().push(run.range());
            }
        }
        for (slot, ranges) in by_slot {
            let Some(consuming) = self.consumers.get_mut(slot) else {
                continue;
            };
            let count: u64 = ranges.iter().map(|range| u64::from(range.count)).sum();
            consuming.unacked = consuming.unacked.saturating_sub(count);
            self.meter.probe.nacked(count);
            self.meter.called(1);
            let died = match settle {
                Settle::Reject => consuming.consumer.reject_ranges_taking(&ranges),
                Settle::Ack | Settle::Requeue => consuming.consumer.nack_ranges_taking(&ranges),
            };
            if !died.is_empty() {
                // The client's next request finds the messages where they belong.
                let subscription = &consuming.queue.subscription;
                let (steps, routing) = self.host.route_died(subscription, died);
                self.meter.called(steps);
                self.routing.extend(routing);
            }
            self.consumers.settled(count);
            self.tell_in_flight(slot);
            self.remove_if_done(slot);
        }
    }

    fn acknowledge(&mut self, run: &Run) {
        // Without it the queue was deleted, and the message with it.
        let Some(consuming) = self.consumers.of_run(run) else {
            return;
        };
        consuming.unacked = consuming.unacked.saturating_sub(run.count.into());
        let range = run.range();
        if consuming.acks.is_empty() {
            self.slots_to_settle.push(run.slot);
        }
        match consuming.acks.last_mut() {
            Some(last) if follows(last, &range) => last.count += range.count,
            _ => consuming.acks.push(range),
        }
        self.consumers.settled(run.count.into());
    }

    /// Tells the broker of the acknowledgements of this read.
    pub(in crate::session) fn settle_acks(&mut self) {
        if self.slots_to_settle.is_empty() {
            return;
        }
        let now_us = self.now.us;
        for slot in std::mem::take(&mut self.slots_to_settle) {
            let Some(consuming) = self.consumers.get_mut(slot) else {
                continue;
            };
            self.meter.called(1);
            let (mut in_order, mut out_of_order) = (0, 0);
            let (probe, last_ack) = (&self.meter.probe, &mut consuming.last_ack);
            consuming
                .consumer
                .ack_ranges(&consuming.acks, |range, settled| {
                    let Some(settlement) = settled else {
                        return probe.late_ack();
                    };
                    let count = u64::from(range.count);
                    probe.acked_many(count, settlement.held_us);
                    let place = (range.partition, range.first);
                    match last_ack.is_some_and(|last| place < last) {
                        true => out_of_order += count,
                        false => in_order += count,
                    }
                    *last_ack = Some((range.partition, range.first + count - 1));
                });
            consuming.acks.clear();
            if consuming.acks.capacity() > 256 {
                consuming.acks = Vec::new();
            }
            probe.acks(in_order, out_of_order, now_us);
            self.tell_in_flight(slot);
            self.remove_if_done(slot);
        }
    }

    /// `basic.recover`: all unacknowledged deliveries of the channel go back.
    pub(in crate::session) fn recover(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let runs = channel.unacked.take_all();
        self.settle_runs(Settle::Requeue, &runs);
    }
}

/// Whether `next` begins where `last` ends.
fn follows(last: &MessageRange, next: &MessageRange) -> bool {
    last.partition == next.partition
        && last.first + u64::from(last.count) == next.first
        && last.count.checked_add(next.count).is_some()
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
