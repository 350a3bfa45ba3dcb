//! The consumers of a subscription, by slot, and which of them are in line.
//!
//! All changes of a consumer that bear on whose turn it is go through here, so that the ranking,
//! which only a subscription with many consumers has, follows.

mod choice;
mod shared_windows;
#[cfg(test)]
pub(crate) mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use crate::consumer::holds::{DepartedHolds, HoldHistory};
use crate::consumer::outbox::Outbox;
use crate::consumer::overdue::Overdue;
use crate::consumer::ranking::Ranking;
use crate::consumer::state::ConsumerState;
use crate::consumer::wakes::Wakes;
use crate::message::Delivery;
use crate::options::{ConsumerOptions, Dispatch, SubscriptionOptions};
use crate::subscription::ledger::leases::NEVER_MS;

/// With more slots than this the consumers are ranked, not looked at one by one: about here both
/// cost the same.
pub(crate) const LOOKED_AT_MAX: usize = 16;

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
    line: Option<Succession>,
    /// Where there are many.
    ranking: Option<Box<Ranking>>,
    /// Which of them gets the next message.
    policy: Dispatch,
    /// The one that was served last.
    last_served: u32,
    /// Those that pull and wait for the disk.
    pull_waits: BTreeSet<u32>,
    /// The holds of those that have left.
    departed: DepartedHolds,
    /// The tasks and windows that hear of the change under way.
    wakes: Wakes,
}

/// The order of succession where one consumer gets everything until it leaves.
#[derive(Debug, Default)]
struct Succession {
    /// By priority, then by arrival.
    order: BTreeSet<(Reverse<i32>, u64, u32)>,
    active: Option<u32>,
    /// The active one makes way for a higher priority once it holds no message.
    yields: bool,
}

impl Consumers {
    pub(crate) fn new(options: &SubscriptionOptions) -> Self {
        let line = Succession {
            yields: options.active_yields,
            ..Succession::default()
        };
        Self {
            slots: Vec::new(),
            free: BinaryHeap::new(),
            attached: 0,
            counted: 0,
            exclusive: 0,
            line: options.single_active.then_some(line),
            ranking: None,
            policy: options.dispatch,
            last_served: 0,
            pull_waits: BTreeSet::new(),
            departed: DepartedHolds::default(),
            wakes: Wakes::default(),
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
    pub(crate) fn holds(&mut self, slot: u32) -> Option<&mut HoldHistory> {
        let consumer = self.slots.get_mut(slot as usize)?.as_mut()?;
        consumer.holds.as_deref_mut()
    }

    /// The recorded holds of all consumers.
    pub(crate) fn all_holds(&mut self) -> impl Iterator<Item = &mut HoldHistory> {
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
    pub(crate) fn attach(&mut self, options: ConsumerOptions, outbox: Arc<Outbox>) -> u32 {
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
            self.rank();
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
    pub(crate) fn detach(&mut self, slot: u32) -> bool {
        self.pull_waits.remove(&slot);
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
        if let Some(mut gone) = gone {
            let freed = gone.settle(u32::MAX);
            self.window_freed(freed);
            self.departed.keep(&mut gone);
        }
        counted
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
    fn rank(&mut self) {
        let mut ranking = Box::new(Ranking::new(self.policy));
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
        self.policy = policy;
        if self.ranking.is_some() {
            self.rank();
        }
    }

    /// Which of them gets the next message.
    pub(crate) fn policy(&self) -> Dispatch {
        self.policy
    }

    /// When a message has to be settled that is delivered to this consumer now.
    #[inline]
    pub(crate) fn ack_due_ms(&self, slot: u32, now_ms: u64) -> u64 {
        self.get(slot)
            .and_then(|consumer| consumer.options.ack_wait_ms)
            .map_or(NEVER_MS, |wait| now_ms.saturating_add(wait))
    }

    pub(crate) fn in_flight_at(&self, slot: u32) -> u32 {
        self.get(slot).map_or(0, |consumer| consumer.in_flight)
    }

    /// Puts a delivery into the outbox of a consumer, which stalls once that holds `bytes_max`.
    /// `false`: the consumer has left.
    #[inline]
    pub(crate) fn hand_over(&mut self, slot: u32, delivery: Delivery, bytes_max: u64) -> bool {
        let pushed = self.change(slot, |consumer| {
            consumer.in_flight += delivery.count;
            consumer.delivered += u64::from(delivery.count);
            if consumer.options.pull {
                // It takes the delivery at once, and it is nobody's turn.
                let _ = consumer.outbox.push(delivery, u64::MAX);
                return None;
            }
            let (full, waker) = consumer.outbox.push(delivery, bytes_max);
            consumer.stalled = full;
            Some(waker)
        });
        match pushed {
            Some(Some(waker)) => {
                self.wakes.add(waker);
                self.last_served = slot;
            }
            Some(None) => {}
            None => return false,
        }
        true
    }

    /// Takes back the deliveries that a consumer has not taken out of its outbox.
    pub(crate) fn take_outbox(&mut self, slot: u32) -> Vec<Delivery> {
        let taken = self.change(slot, |consumer| {
            consumer.stalled = false;
            consumer.outbox.take_all()
        });
        taken.unwrap_or_default()
    }

    /// A consumer has taken its deliveries: there is room in its outbox again.
    #[inline]
    pub(crate) fn outbox_taken(&mut self, slot: u32) {
        self.change(slot, |consumer| consumer.stalled = false);
    }

    /// Messages of a consumer are no longer in flight.
    #[inline]
    pub(crate) fn settle(&mut self, slot: u32, count: u32) {
        let freed = self.change(slot, |consumer| consumer.settle(count));
        self.window_freed(freed.flatten());
    }

    /// Deadlines of a consumer's messages have passed.
    pub(crate) fn time_out(&mut self, slot: u32, count: u32) {
        let freed = self.change(slot, |consumer| consumer.time_out(count));
        self.window_freed(freed.flatten());
    }

    /// Forgets what is in flight to all of them, and in their outboxes.
    pub(crate) fn forget_deliveries(&mut self) {
        let mut wakes = self.take_wakes();
        self.change_all(|consumer| {
            consumer.outbox.clear();
            consumer.stalled = false;
            wakes.add_window(consumer.settle(u32::MAX));
        });
        self.wakes = wakes;
    }

    /// Nothing more will come to any of them, and messages in flight can be settled no more.
    pub(crate) fn close(&mut self) {
        let mut wakes = self.take_wakes();
        self.change_all(|consumer| {
            wakes.add(consumer.outbox.close());
            wakes.add_window(consumer.settle(u32::MAX));
        });
        self.wakes = wakes;
    }

    /// Those that pull and wait, to whom the dispatch that follows is no news.
    pub(crate) fn take_pull_waits(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.pull_waits)
    }

    /// They wait on.
    pub(crate) fn keep_pull_waits(&mut self, waiting: BTreeSet<u32>) {
        self.pull_waits = waiting;
    }

    /// Those that pull and wait for the disk ask again.
    #[inline]
    pub(crate) fn wake_pulls(&mut self) {
        if self.pull_waits.is_empty() {
            return;
        }
        for slot in std::mem::take(&mut self.pull_waits) {
            let waker = self.get(slot).and_then(|pull| pull.outbox.take_waker());
            self.wakes.add(waker);
        }
    }

    /// The tasks and windows that hear of the change: to be sent once the lock is free.
    #[inline]
    pub(crate) fn take_wakes(&mut self) -> Wakes {
        std::mem::take(&mut self.wakes)
    }

    pub(crate) fn departed(&self) -> &DepartedHolds {
        &self.departed
    }

    pub(crate) fn departed_mut(&mut self) -> &mut DepartedHolds {
        &mut self.departed
    }
}

impl Succession {
    fn leave(&mut self, rank: (Reverse<i32>, u64, u32)) {
        self.order.remove(&rank);
        if self.active == Some(rank.2) {
            self.active = self.order.first().map(|(_, _, slot)| *slot);
        }
    }
}

fn rank(slot: u32, consumer: &ConsumerState) -> (Reverse<i32>, u64, u32) {
    (Reverse(consumer.options.priority), consumer.arrival(), slot)
}
