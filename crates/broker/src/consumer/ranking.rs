//! The ranking: orders many consumers so that the next one is found fast.
//!
//! With few consumers `choice.rs` compares all. The ranking keeps those with free slots in their
//! window in order, so that a choice and a change cost O(log n). A consumer that only a full shared
//! window stops is parked at that window, and is released when the window has free slots.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::consumer::shared_window::SharedWindow;
use crate::consumer::state::ConsumerState;
use crate::options::Dispatch;
use crate::subscription::Subscription;
use cloverleaf_log::invariant;

/// The position of a consumer in the ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankPosition {
    priority: i32,
    /// The sort key before the slot: messages in flight, or 0 with `Dispatch::FillFirst`.
    load: u32,
    in_flight: u32,
    /// The shared window at which it is parked, by address.
    parked: Option<usize>,
}

/// The consumers that have free slots in their own windows.
#[derive(Debug)]
pub(crate) struct Ranking {
    policy: Dispatch,
    ready: RankedConsumers,
    /// Parked consumers by shared window. The subscription waits on each of these windows.
    parked: HashMap<usize, RankedConsumers>,
}

/// Consumers by priority.
#[derive(Debug, Default)]
struct RankedConsumers {
    levels: BTreeMap<i32, PriorityLevel>,
}

/// Consumers of one priority.
#[derive(Debug, Default)]
struct PriorityLevel {
    /// Load and slot of each consumer.
    members: BTreeSet<(u32, u32)>,
    in_flight: u64,
}

impl Ranking {
    pub(crate) fn new(policy: Dispatch) -> Self {
        Self {
            policy,
            ready: RankedConsumers::default(),
            parked: HashMap::new(),
        }
    }

    /// Updates the position of a consumer after a change.
    pub(crate) fn update(&mut self, slot: u32, consumer: &mut ConsumerState) {
        let before = consumer.position.take();
        let parked = before.and_then(|position| position.parked);
        let here = consumer.shared_window().map(key_of);
        let wanted = self.position_of(consumer, parked.filter(|key| here == Some(*key)));
        self.exchange(slot, before, wanted);
        consumer.position = wanted;
    }

    fn position_of(&self, consumer: &ConsumerState, parked: Option<usize>) -> Option<RankPosition> {
        let position = RankPosition {
            priority: consumer.options.priority,
            load: match self.policy {
                Dispatch::LeastLoaded => consumer.in_flight,
                Dispatch::FillFirst => 0,
            },
            in_flight: consumer.in_flight,
            parked,
        };
        (consumer.own_free_slots() > 0).then_some(position)
    }

    fn exchange(&mut self, slot: u32, before: Option<RankPosition>, wanted: Option<RankPosition>) {
        if before == wanted {
            return;
        }
        if let Some(before) = before {
            match before.parked {
                None => self.ready.remove(slot, before),
                Some(key) => {
                    if let Some(ranked) = self.parked.get_mut(&key) {
                        ranked.remove(slot, before);
                        if ranked.levels.is_empty() {
                            self.parked.remove(&key);
                        }
                    }
                }
            }
        }
        if let Some(wanted) = wanted {
            match wanted.parked {
                None => self.ready.insert(slot, wanted),
                Some(key) => self.parked.entry(key).or_default().insert(slot, wanted),
            }
        }
    }

    /// The best consumer after the one that was served last. Its shared window may be full.
    pub(crate) fn best(&self, last_served: u32) -> Option<u32> {
        self.ready.best(self.policy, last_served)
    }

    /// The number of consumers with free slots at the highest priority, and their messages in
    /// flight.
    pub(crate) fn rivals(&self) -> (u64, u64) {
        let level = self.ready.levels.last_key_value();
        level.map_or((0, 0), |(_, level)| {
            (level.members.len() as u64, level.in_flight)
        })
    }

    /// Parks a consumer at its full shared window, so that others go first until the window has
    /// free slots. Returns the window if it has free slots by now, of which no waiter was notified.
    pub(crate) fn park(
        &mut self,
        slot: u32,
        consumer: &mut ConsumerState,
        subscription: &Arc<Subscription>,
    ) -> Option<Arc<SharedWindow>> {
        let window = consumer.shared_window()?.clone();
        let key = key_of(&window);
        let has_free_slots =
            !self.parked.contains_key(&key) && window.register_waiter(subscription);
        let (before, wanted) = (consumer.position, self.position_of(consumer, Some(key)));
        self.exchange(slot, before, wanted);
        consumer.position = wanted;
        has_free_slots.then_some(window)
    }

    /// Releases as many consumers parked at `window` as it has free slots. Returns `true` if some
    /// stay parked: the subscription must wait on the window again.
    pub(crate) fn unpark(
        &mut self,
        window: &Arc<SharedWindow>,
        consumers: &mut [Option<ConsumerState>],
        last_served: u32,
    ) -> bool {
        let key = key_of(window);
        for _ in 0..window.reservable_slots() {
            let Some(ranked) = self.parked.get(&key) else {
                return false;
            };
            let next = ranked.best(self.policy, last_served).unwrap_or(u32::MAX);
            let Some(Some(consumer)) = consumers.get_mut(next as usize) else {
                return false;
            };
            let (before, wanted) = (consumer.position, self.position_of(consumer, None));
            self.exchange(next, before, wanted);
            consumer.position = wanted;
        }
        self.parked.contains_key(&key)
    }
}

impl RankedConsumers {
    fn insert(&mut self, slot: u32, position: RankPosition) {
        let level = self.levels.entry(position.priority).or_default();
        level.members.insert((position.load, slot));
        level.in_flight += u64::from(position.in_flight);
    }

    fn remove(&mut self, slot: u32, position: RankPosition) {
        if let Some(level) = self.levels.get_mut(&position.priority) {
            level.members.remove(&(position.load, slot));
            invariant!(
                level.in_flight >= u64::from(position.in_flight),
                "consumer {slot} has {} messages in flight, but all of its priority only {}",
                position.in_flight,
                level.in_flight
            );
            level.in_flight -= u64::from(position.in_flight);
            if level.members.is_empty() {
                self.levels.remove(&position.priority);
            }
        }
    }

    /// With `LeastLoaded` the next consumer in turn among those with the least load; with
    /// `FillFirst` the one that was served last, if it still has free slots.
    fn best(&self, policy: Dispatch, last_served: u32) -> Option<u32> {
        let (_, level) = self.levels.last_key_value()?;
        let first = level.members.first()?;
        let from = match policy {
            Dispatch::LeastLoaded => last_served.saturating_add(1),
            Dispatch::FillFirst => last_served,
        };
        let mut next = level.members.range((first.0, from)..=(first.0, u32::MAX));
        Some(next.next().unwrap_or(first).1)
    }
}

fn key_of(window: &Arc<SharedWindow>) -> usize {
    Arc::as_ptr(window) as usize
}
