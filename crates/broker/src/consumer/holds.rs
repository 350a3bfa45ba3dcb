//! The holds of a subscription's consumers, for the timeline: which messages each consumer had in
//! flight, and from when to when.
//!
//! A delivery itself records nothing, because the ledger knows what is in flight since when. The
//! end of a delivery records one hold per run of consecutive messages, up to a rate limit.
//! `cloverleaf_telemetry::Lane` bounds the memory. Consumers without a connection (the broker's
//! own) are not recorded.

use std::collections::VecDeque;
use std::sync::Arc;

use cloverleaf_log::Offset;
use cloverleaf_telemetry::{Lane, LaneMemory, RateLimit};

use crate::broker::Broker;
use crate::consumer::{slots::Consumers, state::ConsumerState};
use crate::message::{MessageId, MessageRange};
use crate::subscription::Subscription;
use crate::subscription::ledger::SettledDelivery;

/// How many consumers that have left are remembered per subscription.
const DEPARTED_MAX: usize = 32;

/// How many runs of messages in flight are shown per consumer: the latest ones.
const HELD_MAX: usize = 512;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryEnd {
    /// It has not ended: the messages are in flight.
    Held,
    /// The consumer acknowledged them, or it consumes without acknowledgements.
    Acked,
    /// The consumer requeued them.
    Nacked,
    /// The consumer rejected them.
    Rejected,
    /// The consumer did not answer within its ack wait.
    TimedOut,
    /// The consumer left.
    Left,
}

/// Consecutive messages that one consumer had in flight over the same period. Times are
/// microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliverySpan {
    /// Their partition.
    pub partition: u32,
    /// The number of messages.
    pub count: u32,
    /// The offset of the first message.
    pub first: Offset,
    /// When they were delivered.
    pub delivered_us: u64,
    /// When the delivery ended; for messages in flight the time of this report.
    pub ended_us: u64,
    /// Milliseconds from the publish of their batch to this delivery, including earlier deliveries.
    /// A Kafka producer sets the publish time itself.
    pub waited_ms: u32,
    /// How often they had been delivered, including this delivery.
    pub attempts: u16,
    /// How it ended.
    pub end: DeliveryEnd,
    /// How many earlier messages were not recorded because of the rate limit, since the last
    /// recorded hold.
    pub left_out: u64,
}

/// The recorded holds of one consumer.
#[derive(Debug)]
pub(crate) struct HoldHistory {
    pace: RateLimit,
    lane: Lane<DeliverySpan>,
}

impl HoldHistory {
    pub(crate) fn new(memory: Arc<LaneMemory>) -> Self {
        Self {
            pace: RateLimit::default(),
            lane: Lane::new(memory),
        }
    }

    fn push(&mut self, mut hold: DeliverySpan) {
        if self.pace.may_record(hold.ended_us) {
            hold.left_out = self.pace.recorded(hold.ended_us);
            self.lane.push(hold);
        } else {
            self.pace.leave_out(hold.count.into())
        }
    }
}

/// A consumer that has left.
#[derive(Debug)]
struct DepartedConsumer {
    /// The consumer's number of arrival, unique in its subscription.
    arrival: u64,
    connection: u64,
    label: String,
    window: u32,
    holds: Box<HoldHistory>,
}

/// The consumers that have left the subscription recently, oldest first.
#[derive(Debug, Default)]
pub(crate) struct DepartedHolds(VecDeque<DepartedConsumer>);

impl DepartedHolds {
    /// Remembers a consumer that has left, if it has recorded holds.
    pub(crate) fn keep(&mut self, gone: &mut ConsumerState) {
        let Some(holds) = gone.holds.take().filter(|holds| !holds.lane.is_empty()) else {
            return;
        };
        if self.0.len() == DEPARTED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(DepartedConsumer {
            arrival: gone.arrival(),
            connection: gone.options.connection,
            label: std::mem::take(&mut gone.options.label),
            window: gone.window,
            holds,
        });
    }
}

/// Records deliveries of one consumer that end together; consecutive messages become one hold.
pub(crate) struct HoldRecorder<'a> {
    /// `None`: this consumer is not recorded.
    holds: Option<&'a mut HoldHistory>,
    /// The rate limit allows a recording now.
    may_record: bool,
    /// The hold under construction: its first offset, the offset after its last message, and its
    /// delivery.
    partition: u32,
    first: Offset,
    next: Offset,
    settled: SettledDelivery,
    end: DeliveryEnd,
    now_us: u64,
}

impl<'a> HoldRecorder<'a> {
    #[inline]
    pub(crate) fn new(
        consumers: &'a mut Consumers,
        slot: u32,
        end: DeliveryEnd,
        now_us: u64,
    ) -> HoldRecorder<'a> {
        let holds = consumers.holds(slot);
        let pace = holds.as_ref().map(|holds| &holds.pace);
        HoldRecorder {
            may_record: pace.is_some_and(|pace| pace.may_record(now_us)),
            holds,
            partition: 0,
            first: 0,
            next: 0,
            settled: SettledDelivery::default(),
            end,
            now_us,
        }
    }

    /// Adds consecutive messages of one delivery. They mostly follow those added before, so a busy
    /// consumer pays three comparisons per message.
    #[inline]
    pub(crate) fn add(
        &mut self,
        partition: u32,
        first: Offset,
        count: u64,
        settled: SettledDelivery,
    ) {
        if !self.may_record {
            return;
        }
        let follows = self.next == first
            && self.settled.delivered_us == settled.delivered_us
            && self.partition == partition;
        if !follows {
            self.begin(partition, first, settled);
        }
        self.next = first + count;
    }

    #[inline(never)]
    fn begin(&mut self, partition: u32, first: Offset, settled: SettledDelivery) {
        self.close();
        (self.partition, self.first, self.settled) = (partition, first, settled);
    }

    fn close(&mut self) {
        let count = self.next - self.first;
        if let Some(holds) = self.holds.as_mut().filter(|_| count > 0) {
            let id = MessageId {
                partition: self.partition,
                offset: self.first,
            };
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            holds.push(DeliverySpan::new(
                id,
                count,
                self.settled,
                self.end,
                self.now_us,
            ));
        }
    }

    /// Records the last hold. `messages` is the number of all messages added.
    #[inline]
    pub(crate) fn finish(mut self, messages: u64) {
        if self.may_record {
            self.close();
        } else if let Some(holds) = self.holds {
            holds.pace.leave_out(messages);
        }
    }
}

impl DeliverySpan {
    fn new(
        id: MessageId,
        count: u32,
        settled: SettledDelivery,
        end: DeliveryEnd,
        now_us: u64,
    ) -> Self {
        Self {
            partition: id.partition,
            count,
            first: id.offset,
            delivered_us: settled.delivered_us,
            ended_us: now_us,
            waited_ms: settled.waited_ms,
            attempts: settled.attempts,
            end,
            left_out: 0,
        }
    }

    /// The offsets of the messages.
    pub fn range(&self) -> MessageRange {
        MessageRange {
            partition: self.partition,
            first: self.first,
            count: self.count,
        }
    }
}

impl Consumers {
    /// Records the end of runs of messages: the first message and the length of each.
    pub(crate) fn note_end(
        &mut self,
        slot: u32,
        runs: impl IntoIterator<Item = (MessageId, u32)>,
        settled: SettledDelivery,
        end: DeliveryEnd,
        now_us: u64,
    ) {
        let mut recorder = HoldRecorder::new(self, slot, end, now_us);
        let mut all = 0;
        for (id, count) in runs {
            let count = u64::from(count);
            recorder.add(id.partition, id.offset, count, settled);
            all += count;
        }
        recorder.finish(all);
    }

    /// Records that a consumer leaves while these messages are in flight to it.
    pub(crate) fn note_leaving(
        &mut self,
        slot: u32,
        held: impl Iterator<Item = (MessageId, u32, SettledDelivery)>,
        now_us: u64,
    ) {
        let Some(holds) = self.holds(slot) else {
            return;
        };
        for (id, count, settled) in held.take(HELD_MAX) {
            holds.push(DeliverySpan::new(
                id,
                count,
                settled,
                DeliveryEnd::Left,
                now_us,
            ));
        }
    }
}

/// One consumer's part of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerDeliveries {
    /// The number of its connection in telemetry.
    pub connection: u64,
    /// Its label in statistics.
    pub label: String,
    /// Whether it is still attached.
    pub is_attached: bool,
    /// Whether it pulls messages one by one (AMQP's `basic.get`).
    pub pulls: bool,
    /// How many messages may be in flight to it.
    pub window: u32,
    /// Its holds in the order in which they ended; messages in flight come last.
    pub holds: Vec<DeliverySpan>,
    /// Whether older holds were dropped for newer ones.
    pub has_forgotten: bool,
    /// Messages since the last recorded hold that were not recorded because of the rate limit.
    pub left_out: u64,
}

impl ConsumerDeliveries {
    fn of(connection: u64, label: &str, holds: &HoldHistory, since_us: u64) -> Self {
        let recent = holds.lane.iter().filter(|hold| hold.ended_us >= since_us);
        Self {
            connection,
            label: label.to_owned(),
            is_attached: false,
            pulls: false,
            window: 0,
            holds: recent.copied().collect(),
            has_forgotten: holds.lane.forgotten() > 0,
            left_out: holds.pace.left_out(),
        }
    }
}

impl Subscription {
    /// The holds of each consumer since `since_us` (microseconds since the Unix epoch), beginning
    /// with consumers that have left. Attached consumers are listed even without holds.
    pub fn holds(&self, since_us: u64) -> Vec<ConsumerDeliveries> {
        let mut all = Vec::new();
        self.each_hold(since_us, |consumer| all.push(consumer));
        all
    }

    /// As [`Self::holds`], one consumer at a time, so that the subscription's lock is held only
    /// while one consumer's holds are copied. Consumers that attach meanwhile are left out.
    pub fn each_hold(&self, since_us: u64, mut tell: impl FnMut(ConsumerDeliveries)) {
        for (slot, arrival) in self.consumers_to_report() {
            let seen = self.holds_of(slot, arrival, since_us);
            if let Some(seen) = seen {
                tell(seen);
            }
        }
    }

    /// The consumers to report: the slot of each attached one, and each one's number of arrival.
    fn consumers_to_report(&self) -> Vec<(Option<u32>, u64)> {
        let state = self.state.lock();
        let departed = state
            .consumers
            .departed()
            .0
            .iter()
            .map(|gone| (None, gone.arrival));
        let attached = (0u32..).zip(state.consumers.slots());
        let attached = attached.filter_map(|(slot, consumer)| {
            let consumer = consumer.as_ref().filter(|it| it.holds.is_some())?;
            Some((Some(slot), consumer.arrival()))
        });
        departed.chain(attached).collect()
    }

    fn holds_of(
        &self,
        slot: Option<u32>,
        arrival: u64,
        since_us: u64,
    ) -> Option<ConsumerDeliveries> {
        let state = self.state.lock();
        let attached = slot.and_then(|slot| Some((slot, state.consumers.get(slot)?)));
        let attached = attached.filter(|(_, consumer)| consumer.arrival() == arrival);
        let Some((slot, consumer)) = attached else {
            // It may have left since the list was made.
            let gone = state
                .consumers
                .departed()
                .0
                .iter()
                .find(|it| it.arrival == arrival)?;
            let seen = ConsumerDeliveries {
                window: gone.window,
                ..ConsumerDeliveries::of(gone.connection, &gone.label, &gone.holds, since_us)
            };
            return Some(seen).filter(|seen| !seen.holds.is_empty());
        };
        let (options, holds) = (&consumer.options, consumer.holds.as_ref()?);
        let mut seen = ConsumerDeliveries::of(options.connection, &options.label, holds, since_us);
        (seen.is_attached, seen.pulls) = (true, options.pull);
        seen.window = consumer.window;
        let now_us = self.shared.clock.now_us();
        let held = state.ledger.held_by(slot).take(HELD_MAX);
        let held = held.map(|(id, count, settled)| {
            DeliverySpan::new(id, count, settled, DeliveryEnd::Held, now_us)
        });
        seen.holds.extend(held);
        Some(seen)
    }

    fn forget_holds(&self, before_us: u64) {
        let mut state = self.state.lock();
        let departed = state.consumers.departed_mut();
        for holds in departed.0.iter_mut().map(|gone| &mut gone.holds) {
            holds.lane.clear_unless(|hold| hold.ended_us >= before_us);
        }
        departed.0.retain(|gone| !gone.holds.lane.is_empty());
        for holds in state.consumers.all_holds() {
            holds.lane.clear_unless(|hold| hold.ended_us >= before_us);
        }
    }
}

impl Broker {
    /// Sets the memory in which holds are recorded; it may be shared with other recorders. Must be
    /// called before consumers attach; otherwise the broker creates a memory of its own.
    pub fn record_holds_in(&self, memory: Arc<LaneMemory>) {
        // A second call has no effect: holds are recorded in the first memory already.
        let _ = self.shared.hold_memory.set(memory);
    }

    /// Forgets holds that ended before `before_us`.
    pub fn forget_holds(&self, before_us: u64) {
        for topic in self.shared.all_topics() {
            for subscription in topic.subscriptions().iter() {
                subscription.forget_holds(before_us);
            }
        }
    }
}
