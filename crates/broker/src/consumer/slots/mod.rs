//! The consumers of a subscription, by slot.
//!
//! Every change of a consumer that affects which one is next goes through this type, so that the
//! ranking, which only a subscription with many consumers has, stays up to date.

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

/// With more slots than this the consumers are ranked instead of compared one by one. At about this
/// number both cost the same.
pub(crate) const UNRANKED_MAX: usize = 16;

/// The consumers of a subscription.
#[derive(Debug)]
pub(crate) struct Consumers {
    slots: Vec<Option<ConsumerState>>,
    /// The free slots. It may contain slots that are in use again.
    free: BinaryHeap<Reverse<u32>>,
    attached: u64,
    /// The consumers without those that only pull or have retired.
    counted: usize,
    /// The number of counted consumers that have exclusive use.
    exclusive: usize,
    /// With a single active consumer: the order of succession.
    succession: Option<Succession>,
    /// With many consumers: their ranking.
    ranking: Option<Box<Ranking>>,
    /// The policy that selects the next consumer.
    policy: Dispatch,
    /// The slot that was served last.
    last_served: u32,
    /// The slots of pulling consumers that wait for a read from the disk.
    pull_waits: BTreeSet<u32>,
    /// The holds of consumers that have left.
    departed: DepartedHolds,
    /// The tasks and shared windows to notify of the change under way.
    wakes: Wakes,
}

/// The order of succession of the single active consumer.
#[derive(Debug, Default)]
struct Succession {
    /// Sorted by priority, arrival and slot.
    order: BTreeSet<(Reverse<i32>, u64, u32)>,
    active: Option<u32>,
    /// The active consumer yields to one of a higher priority once it has no message in flight.
    yields: bool,
}

impl Consumers {
    pub(crate) fn new(options: &SubscriptionOptions) -> Self {
        let succession = Succession {
            yields: options.active_yields,
            ..Succession::default()
        };
        Self {
            slots: Vec::new(),
            free: BinaryHeap::new(),
            attached: 0,
            counted: 0,
            exclusive: 0,
            succession: options.single_active.then_some(succession),
            ranking: None,
            policy: options.dispatch,
            last_served: 0,
            pull_waits: BTreeSet::new(),
            departed: DepartedHolds::default(),
            wakes: Wakes::default(),
        }
    }

    /// Whether there is no consumer, including those that pull or have retired.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of consumers without those that only pull or have retired.
    pub(crate) fn counted(&self) -> usize {
        self.counted
    }

    /// Whether a consumer has exclusive use.
    pub(crate) fn has_exclusive(&self) -> bool {
        self.exclusive > 0
    }

    /// The consumers without those that only pull or have retired.
    pub(crate) fn iter_counted(&self) -> impl Iterator<Item = &ConsumerState> {
        let all = self.slots.iter().flatten();
        all.filter(|consumer| consumer.is_counted)
    }

    /// As [`Self::iter_counted`], each with whether it would get the next message if its window had
    /// free slots: no other consumer is active instead, and none has a higher priority.
    pub(crate) fn iter_served(&self) -> impl Iterator<Item = (&ConsumerState, bool)> {
        let active = self.succession.as_ref().map(|succession| succession.active);
        let highest = self.iter_counted().map(|it| it.options.priority).max();
        let all = (0u32..).zip(&self.slots);
        let all = all.filter_map(|(slot, consumer)| Some((slot, consumer.as_ref()?)));
        let counted = all.filter(|(_, consumer)| consumer.is_counted);
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

    /// Takes the overdue deliveries of a consumer while its acknowledgements are processed.
    #[inline]
    pub(crate) fn take_overdue_deliveries(&mut self, slot: u32) -> Option<Box<Overdue>> {
        self.slots.get_mut(slot as usize)?.as_mut()?.overdue.take()
    }

    /// Puts the overdue deliveries back, if any are left.
    #[inline]
    pub(crate) fn put_back_overdue(
        &mut self,
        slot: u32,
        overdue: Option<Box<Overdue>>,
        now_us: u64,
    ) {
        if let Some(mut overdue) = overdue
            && !overdue.is_done(now_us)
            && let Some(Some(consumer)) = self.slots.get_mut(slot as usize)
        {
            consumer.overdue = Some(overdue);
        }
    }

    /// Changes a consumer and updates its position in the ranking.
    #[inline]
    pub(crate) fn change<R>(
        &mut self,
        slot: u32,
        change: impl FnOnce(&mut ConsumerState) -> R,
    ) -> Option<R> {
        let consumer = self.slots.get_mut(slot as usize)?.as_mut()?;
        let result = change(consumer);
        if let Some(ranking) = &mut self.ranking {
            ranking.update(slot, consumer);
        }
        Some(result)
    }

    /// The recorded holds of a consumer; `None` if it is not recorded.
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

    /// As [`Self::change`], for each consumer.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut ConsumerState)) {
        for (slot, consumer) in (0u32..).zip(&mut self.slots) {
            let Some(consumer) = consumer else { continue };
            change(consumer);
            if let Some(ranking) = &mut self.ranking {
                ranking.update(slot, consumer);
            }
        }
    }

    /// Adds a consumer. Returns its slot.
    pub(crate) fn attach(&mut self, options: ConsumerOptions, outbox: Arc<Outbox>) -> u32 {
        self.attached += 1;
        let consumer = ConsumerState::new(options, outbox, self.attached);
        let slot = self.free_slot();
        if consumer.is_counted {
            self.counted += 1;
            self.exclusive += usize::from(consumer.options.exclusive);
            if let Some(succession) = &mut self.succession {
                succession.order.insert(rank(slot, &consumer));
                succession.active.get_or_insert(slot);
            }
        }
        self.slots[slot as usize] = Some(consumer);
        if self.slots.len() > UNRANKED_MAX && self.ranking.is_none() && self.succession.is_none() {
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

    /// Stops delivery to a consumer. Returns whether it was counted as a consumer.
    pub(crate) fn retire(&mut self, slot: u32) -> bool {
        let Some(consumer) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return false;
        };
        consumer.retired = true;
        let counted = std::mem::take(&mut consumer.is_counted);
        if counted {
            self.counted -= 1;
            self.exclusive -= usize::from(consumer.options.exclusive);
            if let Some(succession) = &mut self.succession {
                succession.leave(rank(slot, consumer));
            }
        }
        if let Some(ranking) = &mut self.ranking {
            ranking.update(slot, consumer);
        }
        counted
    }

    /// Removes a consumer. Returns whether it was counted as a consumer.
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
        // The ranking ends at half of the number at which it starts, so that one consumer that
        // comes and goes does not rebuild it each time.
        if self.slots.len() <= UNRANKED_MAX / 2 && self.ranking.take().is_some() {
            let all = self.slots.iter_mut().flatten();
            all.for_each(|consumer| consumer.position = None);
        }
        if let Some(mut gone) = gone {
            let released = gone.settle(u32::MAX);
            self.window_released(released);
            self.departed.keep(&mut gone);
        }
        counted
    }

    /// The single active consumer; `None` while it may not get more because it yields to a higher
    /// priority and still has messages in flight.
    pub(crate) fn active(&mut self) -> Option<u32> {
        let slots = &self.slots;
        let succession = self.succession.as_mut()?;
        let active = succession.active?;
        let (Reverse(highest), _, first) = *succession.order.first()?;
        let holder = slots.get(active as usize).and_then(Option::as_ref)?;
        if !succession.yields || highest <= holder.options.priority {
            return Some(active);
        }
        if holder.in_flight > 0 {
            return None;
        }
        succession.active = Some(first);
        succession.active
    }

    /// Builds the ranking of all consumers.
    fn rank(&mut self) {
        let mut ranking = Box::new(Ranking::new(self.policy));
        for (slot, consumer) in (0u32..).zip(&mut self.slots) {
            if let Some(consumer) = consumer {
                consumer.position = None;
                ranking.update(slot, consumer);
            }
        }
        self.ranking = Some(ranking);
    }

    /// Changes the policy that selects the next consumer.
    pub(crate) fn set_policy(&mut self, policy: Dispatch) {
        self.policy = policy;
        if self.ranking.is_some() {
            self.rank();
        }
    }

    /// The policy that selects the next consumer.
    pub(crate) fn policy(&self) -> Dispatch {
        self.policy
    }

    /// The ack deadline of a message that is delivered to this consumer now.
    #[inline]
    pub(crate) fn ack_due_ms(&self, slot: u32, now_ms: u64) -> u64 {
        self.get(slot)
            .and_then(|consumer| consumer.options.ack_wait_ms)
            .map_or(NEVER_MS, |wait| now_ms.saturating_add(wait))
    }

    pub(crate) fn in_flight_at(&self, slot: u32) -> u32 {
        self.get(slot).map_or(0, |consumer| consumer.in_flight)
    }

    /// Puts a delivery into a consumer's outbox; the consumer stalls once the outbox has
    /// `bytes_max` bytes. Returns `false` if the consumer has left.
    #[inline]
    pub(crate) fn push_delivery(&mut self, slot: u32, delivery: Delivery, bytes_max: u64) -> bool {
        let pushed = self.change(slot, |consumer| {
            consumer.in_flight += delivery.count;
            consumer.delivered += u64::from(delivery.count);
            if consumer.options.pull {
                // The consumer takes the delivery at once, so it needs no wake and does not count
                // as served.
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

    /// Takes the deliveries that are still in a consumer's outbox.
    pub(crate) fn take_outbox(&mut self, slot: u32) -> Vec<Delivery> {
        let taken = self.change(slot, |consumer| {
            consumer.stalled = false;
            consumer.outbox.take_all()
        });
        taken.unwrap_or_default()
    }

    /// A consumer has taken its deliveries: its outbox has space again.
    #[inline]
    pub(crate) fn outbox_taken(&mut self, slot: u32) {
        self.change(slot, |consumer| consumer.stalled = false);
    }

    /// Removes messages of a consumer from its count in flight.
    #[inline]
    pub(crate) fn settle(&mut self, slot: u32, count: u32) {
        let released = self.change(slot, |consumer| consumer.settle(count));
        self.window_released(released.flatten());
    }

    /// Notes that the ack deadline of a consumer's messages has passed.
    pub(crate) fn time_out(&mut self, slot: u32, count: u32) {
        let released = self.change(slot, |consumer| consumer.time_out(count));
        self.window_released(released.flatten());
    }

    /// Forgets all messages in flight and empties the outboxes.
    pub(crate) fn forget_deliveries(&mut self) {
        let mut wakes = self.take_wakes();
        self.change_all(|consumer| {
            consumer.outbox.clear();
            consumer.stalled = false;
            wakes.add_window(consumer.settle(u32::MAX));
        });
        self.wakes = wakes;
    }

    /// Closes all outboxes and forgets all messages in flight.
    pub(crate) fn close(&mut self) {
        let mut wakes = self.take_wakes();
        self.change_all(|consumer| {
            wakes.add(consumer.outbox.close());
            wakes.add_window(consumer.settle(u32::MAX));
        });
        self.wakes = wakes;
    }

    /// Takes the slots of waiting pulling consumers, so that the dispatch that follows does not
    /// wake them.
    pub(crate) fn take_pull_waits(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.pull_waits)
    }

    /// Puts the waiting pulling consumers back.
    pub(crate) fn keep_pull_waits(&mut self, waiting: BTreeSet<u32>) {
        self.pull_waits = waiting;
    }

    /// Wakes the pulling consumers that wait for a read: they poll again.
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

    /// Takes the tasks and windows to notify once the lock is released.
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
