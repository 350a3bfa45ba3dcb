//! Settling deliveries: acknowledge, requeue, or discard.

use std::collections::BTreeMap;

use cloverleaf_broker::MessageRange;

use super::Deliveries;
use super::unacked::UnackedRun;
use crate::exception::Exception;
use crate::session::connection::Connection;

/// The way in which deliveries are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum SettleAction {
    Ack,
    Requeue,
    Discard,
}

/// Deliveries that were settled in a transaction, to be carried out by its commit.
pub(in crate::session) type TransactionSettlements = Vec<(SettleAction, Vec<UnackedRun>)>;

impl Deliveries {
    /// Removes the delivery with this tag, or with `multiple` all up to it, from the unacknowledged
    /// ones. With `multiple` and tag 0 it removes all.
    ///
    /// # Errors
    /// PRECONDITION_FAILED: the tag is unknown.
    #[inline]
    pub(in crate::session) fn take(
        &mut self,
        number: u16,
        tag: u64,
        multiple: bool,
    ) -> Result<Vec<UnackedRun>, Exception> {
        let Some(channel) = self.channels.get_mut(&number) else {
            return Ok(Vec::new());
        };
        let unacked = &mut channel.unacked;
        let unknown = || Exception::precondition(format!("unknown delivery tag {tag}"));
        match (multiple, tag) {
            (true, 0) => Ok(unacked.take_all()),
            (true, _) if !unacked.contains(tag) => Err(unknown()),
            (true, _) => Ok(unacked.take_up_to(tag)),
            (false, _) => Ok(vec![unacked.take(tag).ok_or_else(unknown)?]),
        }
    }

    /// Makes deliveries unacknowledged again that were settled in a transaction.
    pub(in crate::session) fn restore(&mut self, number: u16, settled: TransactionSettlements) {
        if let Some(channel) = self.channels.get_mut(&number) {
            for (_, runs) in settled {
                channel.unacked.restore(runs);
            }
        }
    }

    /// Settles deliveries. Acknowledgements are collected until the end of the read. Requeues and
    /// discards are carried out at once, those of one method together, so that the messages keep
    /// their order.
    pub(in crate::session) fn settle(
        &mut self,
        connection: &mut Connection,
        action: SettleAction,
        runs: &[UnackedRun],
    ) {
        if action == SettleAction::Ack {
            runs.iter().for_each(|run| self.acknowledge(run));
            return;
        }
        // Keeps the client's order: earlier acknowledgements are carried out first.
        self.settle_acks(connection);
        let mut by_slot: BTreeMap<u32, Vec<MessageRange>> = BTreeMap::new();
        for run in runs {
            if self.consumers.of_run(run).is_some() {
                by_slot.entry(run.slot).or_default().push(run.range());
            }
        }
        for (slot, ranges) in by_slot {
            let Some(entry) = self.consumers.get_mut(slot) else {
                continue;
            };
            let count: u64 = ranges.iter().map(|range| u64::from(range.count)).sum();
            entry.unacked = entry.unacked.saturating_sub(count);
            connection.meter.probe.nacked(count);
            connection.meter.called(1);
            let died = match action {
                SettleAction::Discard => entry.consumer.reject_ranges_returning_dead(&ranges),
                SettleAction::Ack | SettleAction::Requeue => {
                    entry.consumer.nack_ranges_returning_dead(&ranges)
                }
            };
            if !died.is_empty() {
                // Dead-letters the messages now, so that the client's next method finds them in
                // their new queues.
                let subscription = &entry.queue.subscription;
                let (steps, wait) = connection.host.route_died(subscription, died);
                connection.meter.called(steps);
                self.dead_letter_waits.extend(wait);
            }
            self.consumers.settled(count);
            self.report_in_flight(connection, slot);
            self.remove_if_done(slot);
        }
    }

    fn acknowledge(&mut self, run: &UnackedRun) {
        // No consumer means that its queue was deleted, and the message with it.
        let Some(entry) = self.consumers.of_run(run) else {
            return;
        };
        entry.unacked = entry.unacked.saturating_sub(run.count.into());
        let range = run.range();
        if entry.acks.is_empty() {
            self.slots_to_settle.push(run.slot);
        }
        match entry.acks.last_mut() {
            Some(last) if follows(last, &range) => last.count += range.count,
            _ => entry.acks.push(range),
        }
        self.consumers.settled(run.count.into());
    }

    /// Passes the acknowledgements of this read to the broker.
    pub(in crate::session) fn settle_acks(&mut self, connection: &mut Connection) {
        if self.slots_to_settle.is_empty() {
            return;
        }
        let now_us = connection.now.us;
        for slot in std::mem::take(&mut self.slots_to_settle) {
            let Some(entry) = self.consumers.get_mut(slot) else {
                continue;
            };
            connection.meter.called(1);
            let (mut in_order, mut out_of_order) = (0, 0);
            let (probe, last_ack) = (&connection.meter.probe, &mut entry.last_ack);
            entry.consumer.ack_ranges(&entry.acks, |range, settled| {
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
            entry.acks.clear();
            if entry.acks.capacity() > 256 {
                entry.acks = Vec::new();
            }
            probe.acks(in_order, out_of_order, now_us);
            self.report_in_flight(connection, slot);
            self.remove_if_done(slot);
        }
    }

    /// `basic.recover`: requeues all unacknowledged deliveries of the channel.
    pub(in crate::session) fn recover(&mut self, connection: &mut Connection, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let runs = channel.unacked.take_all();
        self.settle(connection, SettleAction::Requeue, &runs);
    }
}

/// Whether `next` begins where `last` ends.
fn follows(last: &MessageRange, next: &MessageRange) -> bool {
    last.partition == next.partition
        && last.first + u64::from(last.count) == next.first
        && last.count.checked_add(next.count).is_some()
}
