//! How consumers come and go, and what the subscription knows of each.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::consumer::Consumer;
use crate::message::{Delivery, MessageRange};
use crate::options::ConsumerOptions;
use crate::outbox::Outbox;
use crate::shared_window::{self, SharedWindow};
use crate::source::Source;
use crate::subscription::{State, Subscription};

/// What the subscription knows of one consumer.
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
    pub(crate) arrival: u64,
    pub(crate) delivered: u64,
}

impl ConsumerState {
    /// Whether it is a consumer to others: neither does it only pull, nor has it retired.
    pub(crate) fn counts(&self) -> bool {
        self.counts
    }

    /// Whether it may ask for messages.
    pub(crate) fn may_pull(&self) -> bool {
        !self.retired && self.options.pull
    }

    /// The window that it shares with others.
    pub(crate) fn shared_window(&self) -> Option<&Arc<SharedWindow>> {
        self.shared.as_ref()
    }

    fn share(&mut self, window: Option<Arc<SharedWindow>>) {
        let is_limited = !self.options.auto_ack && !self.options.pull;
        self.shared = window.filter(|_| is_limited);
    }

    /// Messages that may be delivered to it now.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        match &self.shared {
            Some(shared) => self.own_room().min(shared.room()),
            None => self.own_room(),
        }
    }

    /// As [`Self::room`], whatever the window says that it shares.
    #[inline]
    pub(crate) fn own_room(&self) -> u64 {
        if self.stalled || !self.counts {
            0
        } else {
            u64::from(self.window.saturating_sub(self.in_flight))
        }
    }

    /// Messages are no longer in flight. Returns the shared window that has new room.
    pub(crate) fn settle(&mut self, count: u32) -> Option<Arc<SharedWindow>> {
        let count = count.min(self.in_flight);
        self.in_flight -= count;
        let shared = self.shared.as_ref().filter(|_| count > 0)?;
        shared.release(u64::from(count));
        Some(shared.clone())
    }
}

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
            let mut present = state.counted_consumers();
            let count = state.counted_consumers().count();
            let is_taken = present.any(|consumer| consumer.options.exclusive);
            if is_taken || (options.exclusive && count > 0) {
                return Err(AttachError::Exclusive);
            }
            let consumers_max = self.options().consumers_max;
            if consumers_max > 0 && count >= consumers_max as usize {
                return Err(AttachError::TooMany { consumers_max });
            }
        }
        state.attached += 1;
        let auto_ack = options.auto_ack;
        let window = options.shared_window.clone();
        let mut consumer = ConsumerState {
            outbox: outbox.clone(),
            window: 0,
            in_flight: 0,
            stalled: false,
            counts: !options.pull,
            retired: false,
            shared: None,
            options,
            arrival: state.attached,
            delivered: 0,
        };
        consumer.share(window);
        let free = state.consumers.iter().position(Option::is_none);
        let slot = free.unwrap_or(state.consumers.len());
        if slot == state.consumers.len() {
            state.consumers.push(None);
        }
        state.consumers[slot] = Some(consumer);
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        Ok(Consumer::new(self.clone(), slot, outbox, auto_ack))
    }

    pub(crate) fn detach(self: &Arc<Self>, slot: u32) {
        let left = self.change(|state| {
            self.give_outbox_back(state, slot);
            let gone = state
                .consumers
                .get_mut(slot as usize)
                .and_then(Option::take);
            let counted = gone.as_ref().is_some_and(ConsumerState::counts);
            if let Some(mut gone) = gone {
                state.freed.extend(gone.settle(u32::MAX));
            }
            let released = state.ledger.release(slot);
            self.counters
                .requeued
                .fetch_add(released, Ordering::Relaxed);
            while state.consumers.last().is_some_and(Option::is_none) {
                state.consumers.pop();
            }
            if state.consumers.is_empty() {
                // Nobody reads: what was read ahead need not wait in memory.
                state.sources.iter_mut().for_each(Source::clear);
                state.replays.iter_mut().for_each(Source::clear);
            }
            counted && !state.closed && state.counted_consumers().next().is_none()
        });
        self.lost_last_consumer(left);
    }

    /// Nothing more is delivered to a consumer; what it has taken, apart from `unseen`, can still
    /// be settled.
    pub(crate) fn retire(self: &Arc<Self>, slot: u32, unseen: &[MessageRange]) {
        let left = self.change(|state| {
            let Some(consumer) = state.consumer_mut(slot) else {
                return false;
            };
            let counted = std::mem::take(&mut consumer.counts);
            consumer.retired = true;
            self.untake(state, slot, unseen.iter().copied());
            self.give_outbox_back(state, slot);
            counted && !state.closed && state.counted_consumers().next().is_none()
        });
        self.lost_last_consumer(left);
    }

    fn lost_last_consumer(self: &Arc<Self>, is_so: bool) {
        if is_so && self.is_ephemeral() {
            // Deleting touches files: not on the thread of a connection.
            self.shared.work.unused(self.clone());
        }
    }

    /// What a consumer has not taken out of its outbox goes back as if it had not been delivered.
    fn give_outbox_back(&self, state: &mut State, slot: u32) {
        let Some(consumer) = state.consumer_mut(slot) else {
            return;
        };
        let deliveries = consumer.outbox.take_all();
        consumer.stalled = false;
        self.untake(state, slot, deliveries.iter().map(Delivery::range));
    }

    /// What of these ranges is in flight to a consumer goes back as if it had not been delivered.
    fn untake(&self, state: &mut State, slot: u32, ranges: impl Iterator<Item = MessageRange>) {
        let mut count = 0;
        for range in ranges {
            let place = (range.first, range.end());
            count += state.ledger.untake_between(range.partition, place, slot);
        }
        let count32 = u32::try_from(count).unwrap_or(u32::MAX);
        if let Some(consumer) = state.consumer_mut(slot) {
            consumer.delivered = consumer.delivered.saturating_sub(count);
        }
        state.settle(slot, count32);
        self.counters.requeued.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn set_window(self: &Arc<Self>, slot: u32, messages: u32) {
        self.change(|state| {
            if let Some(consumer) = state.consumer_mut(slot) {
                consumer.window = messages;
            }
        });
    }

    pub(crate) fn set_shared_window(
        self: &Arc<Self>,
        slot: u32,
        window: Option<Arc<SharedWindow>>,
    ) {
        let mut left = None;
        self.change(|state| {
            let Some(consumer) = state.consumer_mut(slot) else {
                return;
            };
            let in_flight = u64::from(consumer.in_flight);
            left = consumer.shared_window().cloned();
            if let Some(left) = &left {
                left.release(in_flight);
            }
            consumer.share(window);
            if let Some(entered) = consumer.shared_window() {
                entered.enter(in_flight);
            }
        });
        if let Some(left) = left {
            shared_window::serve(vec![left]);
        }
    }

    pub(crate) fn outbox_taken(self: &Arc<Self>, slot: u32) {
        self.change(|state| {
            if let Some(consumer) = state.consumer_mut(slot) {
                consumer.stalled = false;
            }
        });
    }

    pub(crate) fn in_flight_of(&self, slot: u32) -> u32 {
        let state = self.state.lock();
        state
            .consumer(slot)
            .map_or(0, |consumer| consumer.in_flight)
    }

    pub(crate) fn has_consumers(&self) -> bool {
        self.state.lock().counted_consumers().next().is_some()
    }
}

impl State {
    pub(crate) fn consumer(&self, slot: u32) -> Option<&ConsumerState> {
        self.consumers.get(slot as usize).and_then(Option::as_ref)
    }

    pub(crate) fn consumer_mut(&mut self, slot: u32) -> Option<&mut ConsumerState> {
        self.consumers
            .get_mut(slot as usize)
            .and_then(Option::as_mut)
    }

    /// Those that are consumers to others.
    pub(crate) fn counted_consumers(&self) -> impl Iterator<Item = &ConsumerState> {
        let all = self.consumers.iter().flatten();
        all.filter(|consumer| consumer.counts())
    }

    /// Messages of a consumer are no longer in flight.
    pub(crate) fn settle(&mut self, slot: u32, count: u32) {
        let freed = self
            .consumer_mut(slot)
            .and_then(|consumer| consumer.settle(count));
        self.freed(freed);
    }

    /// A shared window has new room: whoever waits for it is to hear of it.
    pub(crate) fn freed(&mut self, window: Option<Arc<SharedWindow>>) {
        if let Some(window) = window {
            let is_last = |last: &Arc<SharedWindow>| Arc::ptr_eq(last, &window);
            if !self.freed.last().is_some_and(is_last) {
                self.freed.push(window);
            }
        }
    }

    /// The window that a consumer shares.
    #[inline]
    pub(crate) fn shared_window_of(&self, slot: usize) -> Option<Arc<SharedWindow>> {
        let consumer = self.consumers.get(slot).and_then(Option::as_ref)?;
        consumer.shared.clone()
    }

    /// Leaves the subscription's name with each shared window that is all that keeps a consumer
    /// from its messages. `true`: one of them has room again, so look once more.
    pub(crate) fn waits_for_shared_window(&self, subscription: &Arc<Subscription>) -> bool {
        if subscription.options().single_active {
            // The others get nothing, whatever room they have.
            let active = self.active_consumer();
            return active.is_some_and(|(_, consumer)| consumer.waits_for_shared(subscription));
        }
        let mut has_room = false;
        for consumer in self.consumers.iter().flatten() {
            has_room |= consumer.waits_for_shared(subscription);
        }
        has_room
    }
}

impl ConsumerState {
    /// Whether there is room again in the shared window that alone keeps it from its messages.
    fn waits_for_shared(&self, subscription: &Arc<Subscription>) -> bool {
        if self.own_room() == 0 {
            return false;
        }
        let Some(shared) = self.shared_window() else {
            return false;
        };
        shared.wait(subscription);
        shared.room() > 0
    }
}
