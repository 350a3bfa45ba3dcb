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
        let auto_ack = options.auto_ack;
        let is_recorded = options.connection > 0;
        let slot = state.consumers.attach(options, outbox.clone());
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
            let held = state.ledger.held_by(slot);
            state.consumers.note_leaving(slot, held, state.now_us);
            let counted = state.consumers.detach(slot);
            let released = state.ledger.release(slot);
            self.counters
                .requeued
                .fetch_add(released, Ordering::Relaxed);
            if state.consumers.is_empty() {
                // Without consumers, batches that were read ahead need not wait in memory.
                state.readers.clear();
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
        let deliveries = state.consumers.take_outbox(slot);
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
        state.consumers.settle(slot, count32);
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
        self.change(|state| state.consumers.outbox_taken(slot));
    }

    pub(crate) fn in_flight_of(&self, slot: u32) -> u32 {
        self.state.lock().consumers.in_flight_at(slot)
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

impl Subscription {
    /// There is room again in a shared window for which this has waited.
    pub(crate) fn window_has_room(self: &Arc<Self>, window: &Arc<SharedWindow>) {
        self.change(|state| {
            if state.consumers.unpark(window) && window.wait(self) {
                state.consumers.window_freed(Some(window.clone()));
            }
        });
    }
}

impl ConsumerState {
    /// Waits for the shared window that alone keeps it from its messages; it is returned if it has
    /// room that nobody is told of.
    pub(crate) fn wait_for_shared(
        &self,
        subscription: &Arc<Subscription>,
    ) -> Option<Arc<SharedWindow>> {
        let shared = self.shared_window().filter(|_| self.own_room() > 0)?;
        shared.wait(subscription).then(|| shared.clone())
    }
}
