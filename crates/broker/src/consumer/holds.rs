//! The holds of a subscription's consumers, as the timeline shows them: which messages each had in
//! flight, from when to when.
//!
//! Nothing is written down when messages are delivered, because the ledger knows what is in flight
//! since when. When a delivery ends, one piece for a run of messages is, unless there are too many
//! of them; the memory is bounded as `cloverleaf_telemetry::Lane` says. Consumers without a
//! connection, the broker's own, are not recorded.

use std::collections::VecDeque;
use std::sync::Arc;

use cloverleaf_log::Offset;
use cloverleaf_telemetry::{Lane, LaneMemory, Pace};

use crate::broker::Broker;
use crate::consumer::{slots::Consumers, state::ConsumerState};
use crate::message::{MessageId, MessageRange};
use crate::subscription::Subscription;
use crate::subscription::ledger::Settled;

/// Consumers that have left and are still remembered, per subscription.
const DEPARTED_MAX: usize = 32;

/// Runs of messages in flight that are shown of one consumer, the latest.
const HELD_MAX: usize = 512;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldEnd {
    /// It has not: the messages are in flight.
    Held,
    /// The consumer acknowledged them, or wanted them without acknowledging.
    Acked,
    /// The consumer gave them back.
    Nacked,
    /// The consumer gave them up.
    Rejected,
    /// The consumer did not answer in time.
    TimedOut,
    /// The consumer left.
    Left,
}

/// Consecutive messages that one consumer held for one piece of time. Times are microseconds since
/// the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Their partition.
    pub partition: u32,
    /// How many.
    pub count: u32,
    /// The offset of the first one.
    pub first: Offset,
    /// When they were delivered.
    pub delivered_us: u64,
    /// When that ended; for messages in flight the time of the look.
    pub ended_us: u64,
    /// Milliseconds from the publish of their batch to this delivery, earlier deliveries included.
    /// A Kafka producer sets that time itself.
    pub waited_ms: u32,
    /// How often they had been delivered, this time included.
    pub attempts: u16,
    /// How it ended.
    pub end: HoldEnd,
    /// Messages before this that no piece tells of.
    pub left_out: u64,
}

/// The recorded holds of one consumer.
#[derive(Debug)]
pub(crate) struct HoldHistory {
    pace: Pace,
    lane: Lane<Hold>,
}

impl HoldHistory {
    pub(crate) fn new(memory: Arc<LaneMemory>) -> Self {
        Self {
            pace: Pace::default(),
            lane: Lane::new(memory),
        }
    }

    fn push(&mut self, mut hold: Hold) {
        if self.pace.has_room(hold.ended_us) {
            hold.left_out = self.pace.pass(hold.ended_us);
            self.lane.push(hold);
        } else {
            self.pace.leave_out(hold.count.into())
        }
    }
}

/// A consumer that has left.
#[derive(Debug)]
struct Departed {
    /// Which one it was: each consumer of a subscription has its own.
    arrival: u64,
    connection: u64,
    label: String,
    window: u32,
    holds: Box<HoldHistory>,
}

/// The consumers of a subscription that have left lately, oldest first.
#[derive(Debug, Default)]
pub(crate) struct DepartedHolds(VecDeque<Departed>);

impl DepartedHolds {
    /// Remembers a consumer that has left, if there is anything to remember.
    pub(crate) fn keep(&mut self, gone: &mut ConsumerState) {
        let Some(holds) = gone.holds.take().filter(|holds| !holds.lane.is_empty()) else {
            return;
        };
        if self.0.len() == DEPARTED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Departed {
            arrival: gone.arrival(),
            connection: gone.options.connection,
            label: std::mem::take(&mut gone.options.label),
            window: gone.window,
            holds,
        });
    }
}

/// Takes note of deliveries of one consumer that end together, neighbours in one piece.
pub(crate) struct Ending<'a> {
    /// `None`: it is not recorded.
    holds: Option<&'a mut HoldHistory>,
    /// There is room now.
    has_room: bool,
    /// The piece that grows: where it begins, where the next of its messages would stand, and how
    /// they were delivered.
    partition: u32,
    first: Offset,
    next: Offset,
    settled: Settled,
    end: HoldEnd,
    now_us: u64,
}

impl<'a> Ending<'a> {
    #[inline]
    pub(crate) fn new(
        consumers: &'a mut Consumers,
        slot: u32,
        end: HoldEnd,
        now_us: u64,
    ) -> Ending<'a> {
        let holds = consumers.holds(slot);
        let pace = holds.as_ref().map(|holds| &holds.pace);
        Ending {
            has_room: pace.is_some_and(|pace| pace.has_room(now_us)),
            holds,
            partition: 0,
            first: 0,
            next: 0,
            settled: Settled::default(),
            end,
            now_us,
        }
    }

    /// Messages with one fate have ended. Most are neighbours of those before: for each message of
    /// a busy consumer there are three comparisons.
    #[inline]
    pub(crate) fn add(&mut self, partition: u32, first: Offset, count: u64, settled: Settled) {
        if !self.has_room {
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
    fn begin(&mut self, partition: u32, first: Offset, settled: Settled) {
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
            holds.push(Hold::new(id, count, self.settled, self.end, self.now_us));
        }
    }

    /// All is said: so many messages have ended.
    #[inline]
    pub(crate) fn finish(mut self, messages: u64) {
        if self.has_room {
            self.close();
        } else if let Some(holds) = self.holds {
            holds.pace.leave_out(messages);
        }
    }
}

impl Hold {
    fn new(id: MessageId, count: u32, settled: Settled, end: HoldEnd, now_us: u64) -> Self {
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

    /// The messages' places.
    pub fn range(&self) -> MessageRange {
        MessageRange {
            partition: self.partition,
            first: self.first,
            count: self.count,
        }
    }
}

impl Consumers {
    /// Runs of messages of a consumer, the first of each and how many, have ended.
    pub(crate) fn note_end(
        &mut self,
        slot: u32,
        runs: impl IntoIterator<Item = (MessageId, u32)>,
        settled: Settled,
        end: HoldEnd,
        now_us: u64,
    ) {
        let mut ending = Ending::new(self, slot, end, now_us);
        let mut all = 0;
        for (id, count) in runs {
            let count = u64::from(count);
            ending.add(id.partition, id.offset, count, settled);
            all += count;
        }
        ending.finish(all);
    }

    /// A consumer leaves with these messages.
    pub(crate) fn note_leaving(
        &mut self,
        slot: u32,
        held: impl Iterator<Item = (MessageId, u32, Settled)>,
        now_us: u64,
    ) {
        let Some(holds) = self.holds(slot) else {
            return;
        };
        for (id, count, settled) in held.take(HELD_MAX) {
            holds.push(Hold::new(id, count, settled, HoldEnd::Left, now_us));
        }
    }
}

/// The part of the timeline that is one consumer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerHolds {
    /// The number of its connection, as telemetry has it.
    pub connection: u64,
    /// Its label in statistics.
    pub label: String,
    /// Whether it is still there.
    pub is_attached: bool,
    /// Whether it asks for each message, instead of being given them.
    pub pulls: bool,
    /// Messages that may be in flight to it.
    pub window: u32,
    /// The messages that it held and holds, by the end, those in flight last.
    pub holds: Vec<Hold>,
    /// Whether older ones were forgotten for newer ones.
    pub has_forgotten: bool,
    /// Messages since the last piece that no piece tells of.
    pub left_out: u64,
}

impl ConsumerHolds {
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
    /// The messages that each consumer held since `since_us` (microseconds since the Unix epoch),
    /// consumers that have left first. Consumers without anything to show are among them while they
    /// are attached.
    pub fn holds(&self, since_us: u64) -> Vec<ConsumerHolds> {
        let mut all = Vec::new();
        self.each_hold(since_us, |consumer| all.push(consumer));
        all
    }

    /// The same, one consumer after the other: deliveries of the subscription wait for a copy of
    /// what one of them held, never for all. Consumers that come meanwhile are left out.
    pub fn each_hold(&self, since_us: u64, mut tell: impl FnMut(ConsumerHolds)) {
        for (slot, arrival) in self.held_lately() {
            let seen = self.holds_of(slot, arrival, since_us);
            if let Some(seen) = seen {
                tell(seen);
            }
        }
    }

    /// The consumers to tell of: a slot, where there is one, and which of its consumers that was.
    fn held_lately(&self) -> Vec<(Option<u32>, u64)> {
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

    fn holds_of(&self, slot: Option<u32>, arrival: u64, since_us: u64) -> Option<ConsumerHolds> {
        let state = self.state.lock();
        let attached = slot.and_then(|slot| Some((slot, state.consumers.get(slot)?)));
        let attached = attached.filter(|(_, consumer)| consumer.arrival() == arrival);
        let Some((slot, consumer)) = attached else {
            // It may have left just now.
            let gone = state
                .consumers
                .departed()
                .0
                .iter()
                .find(|it| it.arrival == arrival)?;
            let seen = ConsumerHolds {
                window: gone.window,
                ..ConsumerHolds::of(gone.connection, &gone.label, &gone.holds, since_us)
            };
            return Some(seen).filter(|seen| !seen.holds.is_empty());
        };
        let (options, holds) = (&consumer.options, consumer.holds.as_ref()?);
        let mut seen = ConsumerHolds::of(options.connection, &options.label, holds, since_us);
        (seen.is_attached, seen.pulls) = (true, options.pull);
        seen.window = consumer.window;
        let now_us = self.shared.clock.now_us();
        let held = state.ledger.held_by(slot).take(HELD_MAX);
        let held =
            held.map(|(id, count, settled)| Hold::new(id, count, settled, HoldEnd::Held, now_us));
        seen.holds.extend(held);
        Some(seen)
    }

    fn forget_holds(&self, before_us: u64) {
        let mut state = self.state.lock();
        let departed = state.consumers.departed_mut();
        for holds in departed.0.iter_mut().map(|gone| &mut gone.holds) {
            holds.lane.forget_unless(|hold| hold.ended_us >= before_us);
        }
        departed.0.retain(|gone| !gone.holds.lane.is_empty());
        for holds in state.consumers.all_holds() {
            holds.lane.forget_unless(|hold| hold.ended_us >= before_us);
        }
    }
}

impl Broker {
    /// Has holds recorded in this memory, which others may share. To be called before there are
    /// consumers; without it the broker makes a memory of its own.
    pub fn record_holds_in(&self, memory: Arc<LaneMemory>) {
        // A second one would bound nothing.
        let _ = self.shared.lanes.set(memory);
    }

    /// Forgets what consumers held that have held nothing since `before_us`.
    pub fn forget_holds(&self, before_us: u64) {
        for topic in self.shared.all_topics() {
            for subscription in topic.subscriptions().iter() {
                subscription.forget_holds(before_us);
            }
        }
    }
}
