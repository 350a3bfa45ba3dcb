//! How consumers come and go, and what the subscription knows of each.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::consumer::holds::Holds;
use crate::consumer::outbox::Outbox;
use crate::consumer::shared_window::{self, SharedWindow};
use crate::consumer::state::ConsumerState;
use crate::consumer::{Consumer, Holding};
use crate::message::{Delivery, MessageRange};
use crate::options::ConsumerOptions;
use crate::subscription::reader::Source;
use crate::subscription::{State, Subscription};

/// Why a consumer cannot attach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// As many consumers as the subscription allows are there.
    #[error("the subscription has {consumers_max} consumers, as many as it allows")]
    TooMany {
        /// The limit.
        consumers_max: u32,
    },
    /// An exclusive consumer is there, or this one wants to be alone and is not.
    #[error("the subscription is in exclusive use")]
    Exclusive,
    /// The subscription was deleted.
    #[error("the subscription was deleted")]
    Deleted,
}

impl Subscription {
    /// Attaches a consumer; it gets messages once its window is set.
    pub fn attach(self: &Arc<Self>, options: ConsumerOptions) -> Result<Consumer, AttachError> {
        let outbox = Arc::new(Outbox::default());
        let mut state = self.state.lock();
        if state.closed {
            return Err(AttachError::Deleted);
        }
        if !options.pull {
            let count = state.consumers.counted();
            if state.consumers.has_exclusive() || (options.exclusive && count > 0) {
                return Err(AttachError::Exclusive);
            }
            let consumers_max = self.options().consumers_max;
            if consumers_max > 0 && count >= consumers_max as usize {
                return Err(AttachError::TooMany { consumers_max });
            }
        }
        let (auto_ack, policy) = (options.auto_ack, state.policy);
        let is_recorded = options.connection > 0;
        let slot = state.consumers.attach(options, outbox.clone(), policy);
        if is_recorded {
            let holds = Box::new(Holds::new(self.shared.lanes()));
            let record = |consumer: &mut ConsumerState| consumer.holds = Some(holds);
            state.consumers.change(slot, record);
        }
        Ok(Consumer::new(self.clone(), slot, outbox, auto_ack))
    }

    pub(crate) fn detach(self: &Arc<Self>, slot: u32) {
        let left = self.change(|state| {
            self.give_outbox_back(state, slot);
            state.pull_waits.remove(&slot);
            state.note_leaving(slot, state.now_us);
            let (gone, counted) = state.consumers.detach(slot);
            if let Some(mut gone) = gone {
                let freed = gone.settle(u32::MAX);
                state.freed(freed);
                state.departed.keep(&mut gone);
            }
            let released = state.ledger.release(slot);
            self.counters
                .requeued
                .fetch_add(released, Ordering::Relaxed);
            if state.consumers.is_empty() {
                // Without consumers, batches that were read ahead need not wait in memory.
                state.sources.iter_mut().for_each(Source::clear);
                state.replays.iter_mut().for_each(Source::clear);
            }
            counted && !state.closed && state.consumers.counted() == 0
        });
        self.lost_last_consumer(left);
    }

    /// Nothing more is delivered to a consumer; what it has taken, apart from `unseen`, can still
    /// be settled.
    pub(crate) fn retire(self: &Arc<Self>, slot: u32, unseen: &[MessageRange]) {
        let left = self.change(|state| {
            if state.consumers.get(slot).is_none() {
                return false;
            }
            let counted = state.consumers.retire(slot);
            self.untake(state, slot, unseen.iter().copied());
            self.give_outbox_back(state, slot);
            counted && !state.closed && state.consumers.counted() == 0
        });
        self.lost_last_consumer(left);
    }

    fn lost_last_consumer(self: &Arc<Self>, is_so: bool) {
        if is_so && self.is_ephemeral() {
            // Deleting touches files: not on the thread of a connection.
            self.shared.work.unused(self.clone());
        }
    }

    /// Gives back the messages that a consumer has not taken out of its outbox, as if they had not
    /// been delivered.
    fn give_outbox_back(&self, state: &mut State, slot: u32) {
        let taken = state.consumers.change(slot, |consumer| {
            consumer.stalled = false;
            consumer.outbox.take_all()
        });
        let deliveries = taken.unwrap_or_default();
        self.untake(state, slot, deliveries.iter().map(Delivery::range));
    }

    /// Gives back those of these ranges that are in flight to a consumer, as if they had not been
    /// delivered.
    fn untake(&self, state: &mut State, slot: u32, ranges: impl Iterator<Item = MessageRange>) {
        let mut count = 0;
        for range in ranges {
            let place = (range.first, range.end());
            count += state.ledger.untake_between(range.partition, place, slot);
        }
        let count32 = u32::try_from(count).unwrap_or(u32::MAX);
        state.consumers.change(slot, |consumer| {
            consumer.delivered = consumer.delivered.saturating_sub(count);
        });
        state.settle(slot, count32);
        self.counters.requeued.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn set_window(self: &Arc<Self>, slot: u32, messages: u32) {
        self.change(|state| {
            let set = |consumer: &mut ConsumerState| consumer.window = messages;
            state.consumers.change(slot, set);
        });
    }

    pub(crate) fn set_shared_window(
        self: &Arc<Self>,
        slot: u32,
        window: Option<Arc<SharedWindow>>,
    ) {
        let mut left = None;
        self.change(|state| {
            state.consumers.change(slot, |consumer| {
                let in_flight = u64::from(consumer.in_flight);
                left = consumer.places().cloned();
                if let Some(left) = &left {
                    left.release(in_flight);
                }
                consumer.share(window);
                if let Some(entered) = consumer.places() {
                    entered.enter(in_flight);
                }
            });
        });
        if let Some(left) = left {
            shared_window::serve(vec![left]);
        }
    }

    pub(crate) fn outbox_taken(self: &Arc<Self>, slot: u32) {
        self.change(|state| {
            let taken = |consumer: &mut ConsumerState| consumer.stalled = false;
            state.consumers.change(slot, taken);
        });
    }

    pub(crate) fn in_flight_of(&self, slot: u32) -> u32 {
        self.state.lock().in_flight_at(slot)
    }

    pub(crate) fn holding_of(&self, slot: u32) -> Holding {
        let state = self.state.lock();
        let consumer = state.consumers.get(slot);
        consumer.map_or_else(Holding::default, ConsumerState::holding)
    }

    pub(crate) fn has_consumers(&self) -> bool {
        self.state.lock().consumers.counted() > 0
    }
}

impl State {
    pub(crate) fn in_flight_at(&self, slot: u32) -> u32 {
        let consumer = self.consumers.get(slot);
        consumer.map_or(0, |consumer| consumer.in_flight)
    }

    /// Messages of a consumer are no longer in flight.
    pub(crate) fn settle(&mut self, slot: u32, count: u32) {
        let settle = |consumer: &mut ConsumerState| consumer.settle(count);
        let freed = self.consumers.change(slot, settle).flatten();
        self.freed(freed);
    }

    /// Deadlines of a consumer's messages have passed.
    pub(crate) fn time_out(&mut self, slot: u32, count: u32) {
        let time_out = |consumer: &mut ConsumerState| consumer.time_out(count);
        let freed = self.consumers.change(slot, time_out).flatten();
        self.freed(freed);
    }

    /// A shared window has new room: its waiters are to hear of it.
    pub(crate) fn freed(&mut self, window: Option<Arc<SharedWindow>>) {
        let Some(window) = window else { return };
        self.unpark(&window);
        let is_last = |last: &Arc<SharedWindow>| Arc::ptr_eq(last, &window);
        if !self.freed.last().is_some_and(is_last) {
            self.freed.push(window);
        }
    }

    /// The waiters for room in a shared window have their turn again. `true`: not all of them.
    fn unpark(&mut self, window: &Arc<SharedWindow>) -> bool {
        let last_served = self.rotation.consumer;
        self.consumers
            .ranked()
            .is_some_and(|(ranking, all)| ranking.unpark(window, all, last_served))
    }

    /// The window in which a consumer's messages take places.
    #[inline]
    pub(crate) fn places_of(&self, slot: u32) -> Option<Arc<SharedWindow>> {
        self.consumers.get(slot)?.places().cloned()
    }

    /// Leaves the subscription's name with each shared window that is all that keeps a consumer
    /// from its messages.
    pub(crate) fn wait_for_shared_windows(&mut self, subscription: &Arc<Subscription>) {
        if subscription.options().single_active {
            // The others get nothing, whatever room they have.
            let active = self.consumers.active();
            let active = active.and_then(|slot| self.consumers.get(slot));
            let freed = active.and_then(|consumer| consumer.wait_for_shared(subscription));
            self.freed.extend(freed);
        } else if self.consumers.ranked().is_none() {
            // Many were parked as they were found.
            let all = self.consumers.slots().iter().flatten();
            let freed = all.filter_map(|consumer| consumer.wait_for_shared(subscription));
            self.freed.extend(freed);
        }
    }
}

impl Subscription {
    /// There is room again in a shared window for which this has waited.
    pub(crate) fn window_has_room(self: &Arc<Self>, window: &Arc<SharedWindow>) {
        self.change(|state| {
            if state.unpark(window) && window.wait(self) {
                state.freed(Some(window.clone()));
            }
        });
    }
}

impl ConsumerState {
    /// Waits for the shared window that alone keeps it from its messages; it is returned if it has
    /// room that nobody is told of.
    fn wait_for_shared(&self, subscription: &Arc<Subscription>) -> Option<Arc<SharedWindow>> {
        let shared = self.shared_window().filter(|_| self.own_room() > 0)?;
        shared.wait(subscription).then(|| shared.clone())
    }
}
