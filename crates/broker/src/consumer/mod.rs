//! A consumer: the handle through which a protocol's session takes and settles messages.

pub(crate) mod attachment;
pub(crate) mod holds;
pub(crate) mod outbox;
pub(crate) mod overdue;
mod pull;
pub(crate) mod ranking;
mod settlement;
pub(crate) mod shared_window;
pub(crate) mod slots;
pub(crate) mod state;
pub(crate) mod wakes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::consumer::outbox::Outbox;
use crate::consumer::shared_window::SharedWindow;
use crate::consumer::state::ConsumerState;
use crate::message::{Delivery, MessageRange};
use crate::subscription::{Subscription, SubscriptionState};

/// A delivery that was settled: for the delivered-to-acknowledged time of the telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement {
    /// How long the consumer had the message, in microseconds by the broker's clock. No other clock
    /// could tell: a wall clock steps, the broker's does not.
    pub held_us: u64,
    /// How often it had been delivered.
    pub attempts: u16,
}

/// The messages that a consumer holds, and those that were taken from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holding {
    /// Messages in flight to it.
    pub in_flight: u32,
    /// Messages that it ever held for too long, and that others may have got.
    pub timed_out: u64,
}

/// One consumer of a subscription. Dropping it detaches it; what it held is delivered to others.
#[derive(Debug)]
pub struct Consumer {
    subscription: Arc<Subscription>,
    slot: u32,
    outbox: Arc<Outbox>,
    auto_ack: bool,
}

impl Consumer {
    pub(crate) fn new(
        subscription: Arc<Subscription>,
        slot: u32,
        outbox: Arc<Outbox>,
        auto_ack: bool,
    ) -> Self {
        Self {
            subscription,
            slot,
            outbox,
            auto_ack,
        }
    }

    /// The subscription from which it consumes.
    pub fn subscription(&self) -> &Arc<Subscription> {
        &self.subscription
    }

    /// Sets the most messages that may be in flight to this consumer at once.
    ///
    /// NSQ's RDY and AMQP's prefetch; `u32::MAX` is no limit, 0 stops delivery.
    pub fn set_window(&self, messages: u32) {
        self.subscription.change(|state| {
            let set = |consumer: &mut ConsumerState| consumer.window = messages;
            state.consumers.change(self.slot, set);
        });
    }

    /// Shares a window with other consumers from now on, or with none. Messages in flight count.
    pub fn set_shared_window(&self, window: Option<Arc<SharedWindow>>) {
        let mut left = None;
        self.subscription.change(|state| {
            state.consumers.change(self.slot, |consumer| {
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

    /// Takes what was delivered. `None`: the subscription was deleted, nothing more will come.
    pub fn poll_deliveries(
        &self,
        context: &mut Context<'_>,
        into: &mut Vec<Delivery>,
    ) -> Poll<Option<()>> {
        let before = into.len();
        match self.outbox.poll_take(context, into) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(taken)) => {
                if self.auto_ack {
                    let taken = into.get(before..).unwrap_or_default();
                    self.auto_acked(taken);
                } else if taken.was_full {
                    self.subscription
                        .change(|state| state.consumers.outbox_taken(self.slot));
                }
                Poll::Ready(Some(()))
            }
        }
    }

    /// Ends delivery (AMQP's `basic.cancel`): what was not taken goes back as if it had not been
    /// delivered, and others take over where this one was the single active or the exclusive one.
    /// Messages that were taken stay in flight, and can be settled until the consumer is dropped.
    pub fn retire(&self) {
        self.retire_unseen(&[]);
    }

    /// As [`Self::retire`], for a session that has taken more than its client was sent: these
    /// ranges go back too, together with what was not taken and in their old positions, as if they
    /// had not been delivered. Messages of them that are not in flight to this consumer are left
    /// alone.
    pub fn retire_unseen(&self, unseen: &[MessageRange]) {
        let left = self.subscription.change(|state| {
            if state.consumers.get(self.slot).is_none() {
                return false;
            }
            let counted = state.consumers.retire(self.slot);
            self.untake(state, unseen.iter().copied());
            self.give_outbox_back(state);
            counted && !state.closed && state.consumers.counted() == 0
        });
        self.subscription.lost_last_consumer(left);
    }

    fn detach(&self) {
        let left = self.subscription.change(|state| {
            self.give_outbox_back(state);
            let held = state.ledger.held_by(self.slot);
            state.consumers.note_leaving(self.slot, held, state.now_us);
            let counted = state.consumers.detach(self.slot);
            let released = state.ledger.release(self.slot);
            self.subscription
                .counters
                .requeued
                .fetch_add(released, Ordering::Relaxed);
            if state.consumers.is_empty() {
                // Without consumers, batches that were read ahead need not wait in memory.
                state.readers.clear();
            }
            counted && !state.closed && state.consumers.counted() == 0
        });
        self.subscription.lost_last_consumer(left);
    }

    /// Gives back the messages that a consumer has not taken out of its outbox, as if they had not
    /// been delivered.
    fn give_outbox_back(&self, state: &mut SubscriptionState) {
        let deliveries = state.consumers.take_outbox(self.slot);
        self.untake(state, deliveries.iter().map(Delivery::range));
    }

    /// Gives back those of these ranges that are in flight to a consumer, as if they had not been
    /// delivered.
    fn untake(&self, state: &mut SubscriptionState, ranges: impl Iterator<Item = MessageRange>) {
        let mut count = 0;
        for range in ranges {
            let place = (range.first, range.end());
            count += state
                .ledger
                .untake_between(range.partition, place, self.slot);
        }
        let count32 = u32::try_from(count).unwrap_or(u32::MAX);
        state.consumers.change(self.slot, |consumer| {
            consumer.delivered = consumer.delivered.saturating_sub(count);
        });
        state.consumers.settle(self.slot, count32);
        self.subscription
            .counters
            .requeued
            .fetch_add(count, Ordering::Relaxed);
    }

    /// Messages in flight to this consumer.
    pub fn in_flight(&self) -> u32 {
        self.subscription
            .state
            .lock()
            .consumers
            .in_flight_at(self.slot)
    }

    /// The messages that it holds, and those that were taken from it.
    pub fn holding(&self) -> Holding {
        let state = self.subscription.state.lock();
        let consumer = state.consumers.get(self.slot);
        consumer.map_or_else(Holding::default, ConsumerState::holding)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.detach();
    }
}
