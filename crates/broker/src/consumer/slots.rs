//! The consumers of a subscription, by slot, and which of them are in line.
//!
//! All changes of a consumer that bear on whose turn it is go through here, so that the ranking,
//! which only a subscription with many consumers has, follows.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use crate::consumer::Holding;
use crate::consumer::holds::Holds;
use crate::consumer::outbox::Outbox;
use crate::consumer::overdue::Overdue;
use crate::consumer::ranking::{Place, Ranking};
use crate::consumer::shared_window::SharedWindow;
use crate::options::{ConsumerOptions, Dispatch, SubscriptionOptions};

/// With more slots than this the consumers are ranked, not looked at one by one: about here both
/// cost the same.
pub(crate) const LOOKED_AT_MAX: usize = 16;

/// The subscription's state of one consumer.
#[derive(Debug)]
pub(crate) struct ConsumerState {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) window: u32,
    pub(crate) in_flight: u32,
    pub(crate) stalled: bool,
    /// Is a consumer to others: it neither only pulls nor has it retired. Asked for each delivery.
    counts: bool,
    /// Gets nothing more, and settles what it has.
    retired: bool,
    /// The window that it shares with others.
    shared: Option<Arc<SharedWindow>>,
    pub(crate) options: ConsumerOptions,
    /// The place in the order of arrival.
    arrival: u64,
    pub(crate) delivered: u64,
    /// Messages that were taken from it because it held them for too long.
    timed_out: u64,
    /// A sample of these, while it may still answer them.
    pub(crate) overdue: Option<Box<Overdue>>,
    /// Where it stands in the ranking, if it does.
    pub(crate) place: Option<Place>,
    /// The holds that the timeline shows of it.
    pub(crate) holds: Option<Box<Holds>>,
}

impl ConsumerState {
    pub(crate) fn new(options: ConsumerOptions, outbox: Arc<Outbox>, arrival: u64) -> Self {
        let window = options.shared_window.clone();
        let mut consumer = Self {
            outbox,
            window: 0,
            in_flight: 0,
            stalled: false,
            counts: !options.pull,
            retired: false,
            shared: None,
            options,
            arrival,
            delivered: 0,
            timed_out: 0,
            overdue: None,
            place: None,
            holds: None,
        };
        consumer.share(window);
        consumer
    }

    /// Its place in the order of arrival, which no other one of the subscription ever has.
    pub(crate) fn arrival(&self) -> u64 {
        self.arrival
    }

    /// Whether it may ask for messages.
    pub(crate) fn may_pull(&self) -> bool {
        !self.retired && self.options.pull
    }

    /// The window that it shares with others: while it is full, nothing is delivered.
    pub(crate) fn shared_window(&self) -> Option<&Arc<SharedWindow>> {
        self.shared.as_ref()
    }

    /// The window in which its messages take places: those that need no acknowledgement take none.
    pub(crate) fn places(&self) -> Option<&Arc<SharedWindow>> {
        self.shared.as_ref().filter(|_| !self.options.auto_ack)
    }

    pub(crate) fn share(&mut self, window: Option<Arc<SharedWindow>>) {
        self.shared = window.filter(|_| !self.options.pull);
    }

    /// Messages that may be delivered to it now.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        match &self.shared {
            // A consumer that takes no place in the window takes none from those who wait.
            Some(shared) if self.options.auto_ack && shared.free() > 0 => self.own_room(),
            Some(shared) if self.options.auto_ack => 0,
            Some(shared) => self.own_room().min(shared.room()),
            None => self.own_room(),
        }
    }

    /// As [`Self::room`], whatever the window says that it shares.
    #[inline]
    pub(crate) fn own_room(&self) -> u64 {
        #[cfg(test)]
        tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
        if self.stalled || !self.counts {
            0
        } else {
            u64::from(self.window.saturating_sub(self.in_flight))
        }
    }

    /// The messages that it holds, and those that were taken from it.
    pub(crate) fn holding(&self) -> Holding {
        Holding {
            in_flight: self.in_flight,
            timed_out: self.timed_out,
        }
    }

    /// Deadlines of messages have passed. Returns the shared window that has new room.
    pub(crate) fn time_out(&mut self, count: u32) -> Option<Arc<SharedWindow>> {
        self.timed_out += u64::from(count);
        self.settle(count)
    }

    /// Messages are no longer in flight. Returns the shared window that has new room.
    pub(crate) fn settle(&mut self, count: u32) -> Option<Arc<SharedWindow>> {
        let count = count.min(self.in_flight);
        self.in_flight -= count;
        let shared = self.places().filter(|_| count > 0)?;
        shared.release(u64::from(count));
        Some(shared.clone())
    }
}

/// The consumers of a subscription.
#[derive(Debug)]
pub(crate) struct Consumers {
    slots: Vec<Option<ConsumerState>>,
    /// The free slots, and some that are not any more.
    free: BinaryHeap<Reverse<u32>>,
    attached: u64,
    /// Those that are consumers to others.
    counted: usize,
    /// Those of them that want to be alone.
    exclusive: usize,
    /// Where one consumer gets everything.
    line: Option<Line>,
    /// Where there are many.
    ranking: Option<Box<Ranking>>,
}

/// The order of succession where one consumer gets everything until it leaves.
#[derive(Debug, Default)]
struct Line {
    /// By priority, then by arrival.
    order: BTreeSet<(Reverse<i32>, u64, u32)>,
    active: Option<u32>,
    /// The active one makes way for a higher priority once it holds no message.
    yields: bool,
}

impl Consumers {
    pub(crate) fn new(options: &SubscriptionOptions) -> Self {
        let line = Line {
            yields: options.active_yields,
            ..Line::default()
        };
        Self {
            slots: Vec::new(),
            free: BinaryHeap::new(),
            attached: 0,
            counted: 0,
            exclusive: 0,
            line: options.single_active.then_some(line),
            ranking: None,
        }
    }

    /// Whether there is none, not even one that pulls or has retired.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many are consumers to others: they neither only pull nor have they retired.
    pub(crate) fn counted(&self) -> usize {
        self.counted
    }

    /// Whether one of them wants to be alone.
    pub(crate) fn has_exclusive(&self) -> bool {
        self.exclusive > 0
    }

    /// Those that are consumers to others.
    pub(crate) fn iter_counted(&self) -> impl Iterator<Item = &ConsumerState> {
        let all = self.slots.iter().flatten();
        all.filter(|consumer| consumer.counts)
    }

    /// The same, each with whether it would get the next message, if it had room: neither is
    /// another one active in its stead, nor is there one of a higher priority.
    pub(crate) fn iter_served(&self) -> impl Iterator<Item = (&ConsumerState, bool)> {
        let active = self.line.as_ref().map(|line| line.active);
        let highest = self.iter_counted().map(|it| it.options.priority).max();
        let all = (0u32..).zip(&self.slots);
        let all = all.filter_map(|(slot, consumer)| Some((slot, consumer.as_ref()?)));
        let counted = all.filter(|(_, consumer)| consumer.counts);
        counted.map(move |(slot, consumer)| {
            let is_served = match active {
                Some(active) => active == Some(slot),
                None => Some(consumer.options.priority) == highest,
            };
            (consumer, is_served)
        })
    }

    pub(crate) fn slots(&self) -> &[Option<ConsumerState>] {
        &self.slots
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&ConsumerState> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    /// The deliveries that a consumer has not answered in time, for as long as its answers are
    /// looked at.
    #[inline]
    pub(crate) fn take_overdue(&mut self, slot: u32) -> Option<Box<Overdue>> {
        self.slots.get_mut(slot as usize)?.as_mut()?.overdue.take()
    }

    /// The rest of it.
    #[inline]
    pub(crate) fn keep_overdue(&mut self, slot: u32, overdue: Option<Box<Overdue>>, now_us: u64) {
        if let Some(mut overdue) = overdue
            && !overdue.is_done(now_us)
            && let Some(Some(consumer)) = self.slots.get_mut(slot as usize)
        {
            consumer.overdue = Some(overdue);
        }
    }

    /// Changes a consumer, and with it its place in the ranking.
    #[inline]
    pub(crate) fn change<R>(
        &mut self,
        slot: u32,
        change: impl FnOnce(&mut ConsumerState) -> R,
    ) -> Option<R> {
        let consumer = self.slots.get_mut(slot as usize)?.as_mut()?;
        let result = change(consumer);
        if let Some(ranking) = &mut self.ranking {
            ranking.place(slot, consumer);
        }
        Some(result)
    }

    /// The recorded holds of a consumer, if it is recorded at all.
    #[inline]
    pub(crate) fn holds(&mut self, slot: u32) -> Option<&mut Holds> {
        let consumer = self.slots.get_mut(slot as usize)?.as_mut()?;
        consumer.holds.as_deref_mut()
    }

    /// The recorded holds of all consumers.
    pub(crate) fn all_holds(&mut self) -> impl Iterator<Item = &mut Holds> {
        let all = self.slots.iter_mut().flatten();
        all.filter_map(|consumer| consumer.holds.as_deref_mut())
    }

    /// As [`Self::change`], with each of them.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut ConsumerState)) {
        for (slot, consumer) in (0u32..).zip(&mut self.slots) {
            let Some(consumer) = consumer else { continue };
            change(consumer);
            if let Some(ranking) = &mut self.ranking {
                ranking.place(slot, consumer);
            }
        }
    }

    /// A new one. Returns its slot.
    pub(crate) fn attach(
        &mut self,
        options: ConsumerOptions,
        outbox: Arc<Outbox>,
        policy: Dispatch,
    ) -> u32 {
        self.attached += 1;
        let consumer = ConsumerState::new(options, outbox, self.attached);
        let slot = self.free_slot();
        if consumer.counts {
            self.counted += 1;
            self.exclusive += usize::from(consumer.options.exclusive);
            if let Some(line) = &mut self.line {
                line.order.insert(rank(slot, &consumer));
                line.active.get_or_insert(slot);
            }
        }
        self.slots[slot as usize] = Some(consumer);
        if self.slots.len() > LOOKED_AT_MAX && self.ranking.is_none() && self.line.is_none() {
            self.rank(policy);
        }
        slot
    }

    fn free_slot(&mut self) -> u32 {
        while let Some(Reverse(slot)) = self.free.pop() {
            if self.slots.get(slot as usize).is_some_and(Option::is_none) {
                return slot;
            }
        }
        self.slots.push(None);
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    /// It gets nothing more. Says whether it was a consumer to others.
    pub(crate) fn retire(&mut self, slot: u32) -> bool {
        let Some(consumer) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return false;
        };
        consumer.retired = true;
        let counted = std::mem::take(&mut consumer.counts);
        if counted {
            self.counted -= 1;
            self.exclusive -= usize::from(consumer.options.exclusive);
            if let Some(line) = &mut self.line {
                line.leave(rank(slot, consumer));
            }
        }
        if let Some(ranking) = &mut self.ranking {
            ranking.place(slot, consumer);
        }
        counted
    }

    /// It goes. Says whether it was a consumer to others.
    pub(crate) fn detach(&mut self, slot: u32) -> (Option<ConsumerState>, bool) {
        let counted = self.retire(slot);
        let gone = self.slots.get_mut(slot as usize).and_then(Option::take);
        if gone.is_some() {
            self.free.push(Reverse(slot));
        }
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
        if self.slots.is_empty() {
            self.free = BinaryHeap::new();
        }
        // Not where it was begun: one that comes and goes is not to have them ranked each time.
        if self.slots.len() <= LOOKED_AT_MAX / 2 && self.ranking.take().is_some() {
            let all = self.slots.iter_mut().flatten();
            all.for_each(|consumer| consumer.place = None);
        }
        (gone, counted)
    }

    /// The single active consumer, which gets everything; none while it waits for the last messages
    /// that the one before holds.
    pub(crate) fn active(&mut self) -> Option<u32> {
        let slots = &self.slots;
        let line = self.line.as_mut()?;
        let active = line.active?;
        let (Reverse(highest), _, first) = *line.order.first()?;
        let holder = slots.get(active as usize).and_then(Option::as_ref)?;
        if !line.yields || highest <= holder.options.priority {
            return Some(active);
        }
        if holder.in_flight > 0 {
            return None;
        }
        line.active = Some(first);
        line.active
    }

    /// Ranks all of them, because they are many or the policy is another one.
    fn rank(&mut self, policy: Dispatch) {
        let mut ranking = Box::new(Ranking::new(policy));
        for (slot, consumer) in (0u32..).zip(&mut self.slots) {
            if let Some(consumer) = consumer {
                consumer.place = None;
                ranking.place(slot, consumer);
            }
        }
        self.ranking = Some(ranking);
    }

    /// Another policy says whose turn it is.
    pub(crate) fn set_policy(&mut self, policy: Dispatch) {
        if self.ranking.is_some() {
            self.rank(policy);
        }
    }

    /// The ranking, and those who are ranked, if there are many.
    #[inline]
    pub(crate) fn ranked(&mut self) -> Option<(&mut Ranking, &mut [Option<ConsumerState>])> {
        let ranking = self.ranking.as_deref_mut()?;
        Some((ranking, &mut self.slots))
    }
}

impl Line {
    fn leave(&mut self, rank: (Reverse<i32>, u64, u32)) {
        self.order.remove(&rank);
        if self.active == Some(rank.2) {
            self.active = self.order.first().map(|(_, _, slot)| *slot);
        }
    }
}

fn rank(slot: u32, consumer: &ConsumerState) -> (Reverse<i32>, u64, u32) {
    (Reverse(consumer.options.priority), consumer.arrival, slot)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, SimDisk};

    use crate::{
        Broker, BrokerOptions, Consumer, ConsumerOptions, ManualClock, SharedWindow,
        SubscriptionOptions, TopicOptions,
    };

    thread_local! {
        /// How often somebody looked at a consumer.
        pub(super) static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    const MANY: usize = 10_000;

    /// Attaches many consumers, publishes to them, has all acknowledged, and lets them go.
    fn looks_at_many(options: SubscriptionOptions, shared: impl Fn(usize) -> ConsumerOptions) {
        let log_options = LogOptions {
            manual: true,
            disk_free_bytes_min: 0,
            ..LogOptions::default()
        };
        let (log, recovery) = Log::open(SimDisk::new().mount(), log_options).unwrap();
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let broker = Broker::open(log, recovery, BrokerOptions::default(), clock).unwrap();
        let topic = broker.topic_or_create("t", TopicOptions::default).unwrap();
        let subscription = topic.subscription_or_create("s", || options).unwrap();
        LOOKS.set(0);
        let attach = |number| {
            let consumer = subscription.attach(shared(number)).unwrap();
            consumer.set_window(1);
            consumer
        };
        let consumers: Vec<Consumer> = (0..MANY).map(attach).collect();
        let mut context = Context::from_waker(Waker::noop());
        let (mut deliveries, mut count) = (Vec::new(), 0);
        for _ in 0..4 {
            for _ in 0..MANY / 4 {
                let mut builder = BatchBuilder::with_capacity(64, 0);
                builder.push(None, Some(b"m"), &[]);
                drop(topic.publish(builder.finish(), Durability::Kernel).unwrap());
            }
            for consumer in &consumers {
                while let Poll::Ready(Some(())) =
                    consumer.poll_deliveries(&mut context, &mut deliveries)
                {
                    for delivery in deliveries.drain(..) {
                        count += u64::from(delivery.count);
                        consumer.ack_ranges(&[delivery.range()], |_, _| {});
                    }
                }
            }
        }
        // A round in which the window was full may have left some.
        while subscription.counts().depth + subscription.counts().in_flight > 0 {
            for consumer in &consumers {
                if let Poll::Ready(Some(())) =
                    consumer.poll_deliveries(&mut context, &mut deliveries)
                {
                    for delivery in deliveries.drain(..) {
                        count += u64::from(delivery.count);
                        consumer.ack_ranges(&[delivery.range()], |_, _| {});
                    }
                }
            }
        }
        drop(consumers);
        assert_eq!(count, MANY as u64);
        // 10,000 consumers and messages: to look at each consumer for each would be 10^8 looks.
        let looks = LOOKS.get();
        assert!(looks < 100 * MANY as u64, "{looks} looks");
    }

    #[test]
    fn ten_thousand_consumers_are_not_looked_at_for_each_message() {
        let plain = |_| ConsumerOptions::default();
        looks_at_many(SubscriptionOptions::default(), plain);
        let fill_first = SubscriptionOptions {
            dispatch: crate::Dispatch::FillFirst,
            ..SubscriptionOptions::default()
        };
        looks_at_many(fill_first, plain);
        let single = SubscriptionOptions {
            single_active: true,
            active_yields: true,
            ..SubscriptionOptions::default()
        };
        looks_at_many(single, |number| ConsumerOptions {
            priority: i32::try_from(number % 3).unwrap_or_default(),
            ..ConsumerOptions::default()
        });
    }

    #[test]
    fn nor_when_they_share_a_window_that_is_full() {
        let one = SharedWindow::new(7);
        looks_at_many(SubscriptionOptions::default(), |_| ConsumerOptions {
            shared_window: Some(one.clone()),
            ..ConsumerOptions::default()
        });
        let each: Vec<_> = (0..MANY).map(|_| SharedWindow::new(1)).collect();
        looks_at_many(SubscriptionOptions::default(), |number| ConsumerOptions {
            shared_window: each.get(number).cloned(),
            ..ConsumerOptions::default()
        });
    }
}
