//! Limits on the messages that wait: their number and the bytes of their bodies.
//!
//! `waiting_bytes.rs` counts the bytes. Messages that are stored when a subscription is created or
//! restored are counted then, from the newest segment back until they exceed the limit. Older ones
//! need no count: while one of them waits, the limit is exceeded in any case.

use std::ops::Range;
use std::sync::Arc;

use cloverleaf_log::{Batch, Offset, ReadError};

use crate::message::DeadReason;
use crate::options::{Overflow, PartitionOrder};
use crate::subscription::dispatch::{
    DEAD_MAX, DispatchRound, DispatchStep, HeadScan, Unavailable, partition_number,
};
use crate::subscription::ledger::NextSpan;
use crate::subscription::run::{Verdict, body_bytes};
use crate::subscription::{Subscription, SubscriptionState};
use crate::topic::Topic;
use crate::topic::partition::Partition;

/// Bytes per read when bodies are counted.
const COUNT_BYTES: usize = 1 << 20;

impl Subscription {
    /// Whether the oldest messages are dropped when too many wait.
    pub(crate) fn drops_head(&self) -> bool {
        self.is_limited() && self.options().overflow == Overflow::DropHead
    }

    /// Whether the number or the bytes of waiting messages are limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.options().length_max.is_some() || self.options().length_bytes_max.is_some()
    }

    /// Checks a publish against the limits, and reserves its bytes: `false` refuses it. The bytes
    /// count as waiting from now on; [`Self::end_reservation`] subtracts them if the publish
    /// failed. Its messages count once the log has accepted them.
    fn reserve_length(&self, count: u64, bytes: u64, may_refuse: bool) -> bool {
        let mut state = self.state.lock();
        let options = self.options();
        if may_refuse && options.overflow == Overflow::RejectPublish {
            let length_max = options.length_max.unwrap_or(u64::MAX);
            let is_too_long = options.length_max.is_some()
                && state
                    .log
                    .depth_accepted(&state.ledger)
                    .saturating_add(count)
                    > length_max;
            let bytes_max = options.length_bytes_max;
            let is_too_large = bytes_max.is_some_and(|bytes_max| {
                let bodies = &state.waiting_bytes;
                bodies.exceeds(bytes_max, bytes, &state.ledger)
            });
            if is_too_long || is_too_large {
                return false;
            }
        }
        if options.length_bytes_max.is_some() {
            let state = &mut *state;
            let is_drained = || state.log.is_drained(&state.ledger);
            state.waiting_bytes.publish_begins(bytes, is_drained);
        }
        true
    }

    /// Ends a reservation: the publish of `bytes` was stored, or it failed.
    fn end_reservation(&self, bytes: u64, is_stored: bool) {
        if self.options().length_bytes_max.is_some() {
            let mut state = self.state.lock();
            state.waiting_bytes.publish_ends(self, bytes, is_stored);
        }
    }

    /// Counts the bytes of waiting bodies below `ends`, up to the limit. Blocks on the disk.
    pub(crate) fn count_bodies(self: &Arc<Self>, ends: &[Offset]) {
        let (Some(bytes_max), Some(topic)) = (self.options().length_bytes_max, self.topic()) else {
            return;
        };
        for (partition, (log, end)) in topic.partitions().iter().zip(ends).enumerate() {
            let mut counted = 0;
            let mut ranges = log.ranges();
            while let Some(range) = ranges.pop() {
                if counted > bytes_max {
                    let mut state = self.state.lock();
                    state.waiting_bytes.skip_uncounted(partition, range.end);
                    break;
                }
                let range = range.start..range.end.min(*end);
                match self.count_range(partition, log, range) {
                    Ok(bytes) => counted += bytes,
                    Err(error) => {
                        tracing::warn!(subscription = ?self, partition, %error,
                            "messages that cannot be read do not count against the limit in bytes");
                    }
                }
            }
        }
    }

    fn count_range(
        &self,
        partition: usize,
        log: &Partition,
        Range { start, end }: Range<Offset>,
    ) -> Result<u64, ReadError> {
        let index = partition_number(partition);
        let (mut from, mut counted) = (start.max(self.floor(index).unwrap_or(start)), 0);
        while from < end {
            let batches = log.read_waiting(from, COUNT_BYTES)?;
            let Some(last) = batches.last() else { break };
            let next = last.end_offset();
            for batch in &batches {
                let name = (log.topic(), index, batch.base_offset());
                let batch = if batch.is_compressed() {
                    self.shared.inflater.inflate(name, batch)
                } else {
                    batch.clone()
                };
                let mut state = self.state.lock();
                let mut records = batch.records();
                while let Ok(Some((offset, record))) = records.next_record() {
                    if offset < from || offset >= end {
                        continue;
                    }
                    let bytes = body_bytes(&record);
                    counted += u64::from(bytes);
                    if state.ledger.record_body_bytes(index, offset, bytes) {
                        state.waiting_bytes.add(bytes.into());
                    }
                }
            }
            from = next.max(from + 1);
        }
        Ok(counted)
    }
}

impl DispatchRound<'_> {
    /// Drops the oldest waiting messages of a queue that exceeds a limit.
    pub(crate) fn drop_head(&mut self) {
        let length_max = self.subscription.options().length_max;
        match (self.subscription.options().length_bytes_max, length_max) {
            (Some(bytes_max), _) => self.drop_bytes(bytes_max, length_max),
            (None, Some(length_max)) => self.drop_messages(length_max),
            (None, None) => {}
        }
    }

    /// The partitions in the order in which they lose messages: the next message to be delivered
    /// goes first, as in RabbitMQ's priority queues.
    fn drop_order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.state.log.count();
        let is_reversed = self.subscription.options().order == PartitionOrder::HighestFirst;
        (0..count).map(move |turn| if is_reversed { count - 1 - turn } else { turn })
    }

    /// Drops messages until the bodies fit the limit. Reads each message, because its size must be
    /// known.
    fn drop_bytes(&mut self, bytes_max: u64, length_max: Option<u64>) {
        for partition in self.drop_order() {
            while self.exceeds_limit(bytes_max, length_max) {
                if self.is_step_limit_reached() {
                    self.state.timers.retry_at(self.now_ms);
                    return;
                }
                let head = match self.scan_head(partition, 1) {
                    HeadScan::Run(head) => head,
                    HeadScan::SteppedOver => continue,
                    HeadScan::Unavailable(Unavailable::Empty) => break,
                    HeadScan::Unavailable(Unavailable::Pending) => return,
                };
                let all_removed = match head.run.verdict {
                    Verdict::Deliver => self.discard(&head, Some(DeadReason::Length)),
                    Verdict::Unwanted | Verdict::Expired | Verdict::Later(_) => {
                        matches!(self.apply_verdict(&head), DispatchStep::SteppedOver(_))
                    }
                };
                self.stepped_bytes += u64::from(head.run.bytes);
                if !all_removed {
                    // Too many dead letters wait to be written. A dispatch follows when they are.
                    return;
                }
            }
        }
    }

    /// Whether the waiting messages exceed a limit.
    fn exceeds_limit(&self, bytes_max: u64, length_max: Option<u64>) -> bool {
        let (state, ledger) = (&*self.state, &self.state.ledger);
        state.waiting_bytes.exceeds(bytes_max, 0, ledger)
            || length_max.is_some_and(|max| state.log.depth(ledger) > max)
    }

    fn drop_messages(&mut self, length_max: u64) {
        let has_dead_letter_topic = self.subscription.options().dead_letter.is_some();
        let order = self.drop_order();
        let SubscriptionState { ledger, log, .. } = &mut *self.state;
        let mut excess = log.depth(ledger).saturating_sub(length_max);
        for partition in order {
            let index = partition_number(partition);
            while excess > 0 {
                // Too many dead letters wait to be written. A dispatch follows when they are.
                if has_dead_letter_topic && ledger.dead() >= DEAD_MAX {
                    return;
                }
                if ledger.first_ready(index).is_some() {
                    if has_dead_letter_topic {
                        ledger.make_first_ready_dead(index, DeadReason::Length)
                    } else {
                        ledger.drop_ready(index, 1)
                    }
                    excess -= 1;
                    continue;
                }
                let (next, end) = (ledger.next(index), log.end(partition));
                if next >= end {
                    break;
                }
                match ledger.next_span(index, excess.min(end - next)) {
                    NextSpan::Taken(count) => ledger.step_over(index, count),
                    NextSpan::Free(_) if has_dead_letter_topic => {
                        ledger.make_next_dead(index, DeadReason::Length);
                        excess -= 1;
                    }
                    NextSpan::Free(count) => {
                        ledger.skip_to(index, next + count);
                        excess -= count;
                    }
                }
            }
        }
    }
}

/// A publish's reservation in every limited subscription of a topic, released on drop unless the
/// publish happened.
pub(crate) struct LengthReservation {
    /// The subscriptions in which the publish is reserved.
    subscriptions: Vec<Arc<Subscription>>,
    bytes: u64,
    is_stored: bool,
}

impl LengthReservation {
    /// Reserves length for `batch` in each limited subscription of `topic`.
    ///
    /// # Errors
    /// The subscription that refuses the batch; none refuses it if `may_refuse` is false.
    pub(crate) fn reserve(
        topic: &Topic,
        batch: &Batch,
        may_refuse: bool,
    ) -> Result<Self, Arc<Subscription>> {
        let mut reservation = Self {
            subscriptions: Vec::new(),
            bytes: 0,
            is_stored: false,
        };
        let subscriptions = topic.subscriptions();
        let limited = subscriptions.iter().filter(|s| s.is_limited());
        let mut limited = limited.peekable();
        if limited.peek().is_none() {
            return Ok(reservation);
        }
        let counts = |s: &Arc<Subscription>| s.options().length_bytes_max.is_some();
        if subscriptions.iter().any(counts) {
            reservation.bytes = body_bytes_of(topic, batch);
        }
        let count = u64::from(batch.count());
        for subscription in limited {
            if !subscription.reserve_length(count, reservation.bytes, may_refuse) {
                return Err(subscription.clone());
            }
            reservation.subscriptions.push(subscription.clone());
        }
        Ok(reservation)
    }

    /// Keeps the reservation as waiting bytes: the publish happened.
    pub(crate) fn keep(mut self) {
        self.is_stored = true;
    }
}

impl Drop for LengthReservation {
    fn drop(&mut self) {
        for subscription in &self.subscriptions {
            subscription.end_reservation(self.bytes, self.is_stored);
        }
    }
}

/// The total bytes of the bodies of a batch.
fn body_bytes_of(topic: &Topic, batch: &Batch) -> u64 {
    let bytes_max = topic.shared().inflater.batch_bytes_max();
    let inflated;
    let batch = if batch.is_compressed() {
        match batch.inflate(bytes_max) {
            Ok(batch) => {
                inflated = batch;
                &inflated
            }
            // Dispatch will skip its messages.
            Err(_) => return 0,
        }
    } else {
        batch
    };
    let (mut bytes, mut records) = (0, batch.records());
    while let Ok(Some((_, record))) = records.next_record() {
        bytes += u64::from(body_bytes(&record));
    }
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_log::{BatchBuilder, SimDisk};

    use super::*;
    use crate::test_broker::open;
    use crate::{SubscriptionOptions, TopicOptions};

    #[test]
    fn concurrent_publishes_count_each_other() {
        let (_log, broker) = open(&SimDisk::new());
        let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
        let options = || SubscriptionOptions {
            length_bytes_max: Some(10),
            overflow: Overflow::RejectPublish,
            ..SubscriptionOptions::default()
        };
        topic.subscription_or_create("s", options).unwrap();
        let place = |body: &[u8]| {
            let mut builder = BatchBuilder::with_capacity(64, 0);
            builder.push(None, Some(body), &[]);
            LengthReservation::reserve(&topic, &builder.finish(), true)
        };
        let first = place(b"123456").unwrap();
        let second = place(b"123").unwrap();
        assert!(place(b"12").is_err(), "nine bytes are on their way");
        drop(second);
        let third = place(b"1234").unwrap();
        assert!(place(b"1").is_err());
        drop((first, third));
        drop(place(b"1234567890").unwrap());
    }
}
