//! Chooses the consumer that gets the next messages.
//!
//! Few consumers are compared one by one; `ranking.rs` orders many, and makes the same choice.

use std::sync::Arc;

use crate::consumer::slots::Consumers;
use crate::consumer::state::ConsumerState;
use crate::options::Dispatch;
use crate::subscription::Subscription;

impl Consumers {
    /// The consumer that gets the next messages, and how many at most: its free slots or, among
    /// several with [`Dispatch::LeastLoaded`], its fair share if that is less. `waiting` returns
    /// the approximate number of waiting messages.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        subscription: &Arc<Subscription>,
        waiting: impl Fn() -> u64,
    ) -> Option<(u32, u64)> {
        if self.succession.is_some() {
            let slot = self.active()?;
            let free = self.get(slot)?.free_slots();
            return (free > 0).then_some((slot, free));
        }
        if self.ranking.is_some() {
            return self.choose_ranked(subscription, waiting);
        }
        match self.policy {
            Dispatch::LeastLoaded => self.choose_least_loaded(waiting),
            Dispatch::FillFirst => self.choose_first_with_free_slots(),
        }
    }

    fn choose_ranked(
        &mut self,
        subscription: &Arc<Subscription>,
        waiting: impl Fn() -> u64,
    ) -> Option<(u32, u64)> {
        let ranking = self.ranking.as_deref_mut()?;
        loop {
            let slot = ranking.best(self.last_served)?;
            let consumer = self.slots.get_mut(slot as usize)?.as_mut()?;
            let (free, in_flight) = (consumer.free_slots(), consumer.in_flight);
            if free == 0 {
                let released = ranking.park(slot, consumer, subscription);
                self.wakes.add_window(released);
                continue;
            }
            return Some(match self.policy {
                Dispatch::LeastLoaded => (slot, share(in_flight, free, ranking.rivals(), waiting)),
                Dispatch::FillFirst => (slot, free),
            });
        }
    }

    /// All consumers with their slots, beginning at slot `from`.
    fn in_turn(&self, from: u32) -> impl Iterator<Item = (u32, &ConsumerState)> {
        let slots = &self.slots;
        let (first, rest) = slots.split_at(slots.len().min(from as usize));
        let all = (from..).zip(rest).chain((0..).zip(first));
        all.filter_map(|(slot, consumer)| consumer.as_ref().map(|c| (slot, c)))
    }

    /// The consumer that was served last or, if its window is full, the next one with free slots. A
    /// higher priority goes first.
    fn choose_first_with_free_slots(&self) -> Option<(u32, u64)> {
        let mut best: Option<(u32, u64, i32)> = None;
        for (slot, consumer) in self.in_turn(self.last_served) {
            let (free, priority) = (consumer.free_slots(), consumer.options.priority);
            if free > 0 && best.is_none_or(|(_, _, leading)| priority > leading) {
                best = Some((slot, free, priority));
            }
        }
        best.map(|(slot, free, _)| (slot, free))
    }

    fn choose_least_loaded(&self, waiting: impl Fn() -> u64) -> Option<(u32, u64)> {
        let mut best: Option<(u32, u64, &ConsumerState)> = None;
        let (mut rivals, mut in_flight) = (0u64, 0u64);
        for (slot, consumer) in self.in_turn(self.last_served + 1) {
            let free = consumer.free_slots();
            if free == 0 {
                continue;
            }
            match best {
                Some((_, _, leader)) if consumer.options.priority < leader.options.priority => {
                    continue;
                }
                Some((_, _, leader)) if consumer.options.priority == leader.options.priority => {
                    rivals += 1;
                    in_flight += u64::from(consumer.in_flight);
                    if consumer.in_flight < leader.in_flight {
                        best = Some((slot, free, consumer));
                    }
                }
                _ => {
                    (rivals, in_flight) = (1, u64::from(consumer.in_flight));
                    best = Some((slot, free, consumer));
                }
            }
        }
        let (slot, free, consumer) = best?;
        Some((
            slot,
            share(consumer.in_flight, free, (rivals, in_flight), waiting),
        ))
    }
}

/// The fair share of one consumer, if all `rivals` share the waiting messages evenly.
#[inline]
fn share(
    in_flight: u32,
    free: u64,
    (rivals, all_in_flight): (u64, u64),
    waiting: impl Fn() -> u64,
) -> u64 {
    if rivals <= 1 {
        return free;
    }
    // The number in flight that each rival would reach.
    let level = (all_in_flight + waiting()) / rivals;
    level.saturating_sub(u64::from(in_flight)).max(1).min(free)
}
