//! A consumer: the handle by which a protocol's session takes and settles messages.

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

/// A delivery that was settled: telemetry measures the time from delivery to acknowledgement with
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement {
    /// How long the consumer had the message, in microseconds by the broker's clock. A wall clock
    /// may step; the broker's does not.
    pub held_us: u64,
    /// How often the message had been delivered.
    pub attempts: u16,
}

/// How many messages a consumer has in flight, and how many have timed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InFlightCounts {
    /// Messages in flight to it.
    pub in_flight: u32,
    /// Messages that it did not settle within its ack wait, since it attached. They were requeued.
    pub timed_out: u64,
}

/// One consumer of a subscription. Dropping it detaches it and requeues its messages in flight.
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

    /// The subscription that it consumes from.
    pub fn subscription(&self) -> &Arc<Subscription> {
        &self.subscription
    }

    /// Sets how many messages may be in flight to this consumer at once.
    ///
    /// This is NSQ's RDY and AMQP's prefetch; `u32::MAX` is no limit, 0 stops delivery.
    pub fn set_window(&self, messages: u32) {
        self.subscription.change(|state| {
            let set = |consumer: &mut ConsumerState| consumer.window = messages;
            state.consumers.change(self.slot, set);
        });
    }

    /// Shares a window with other consumers from now on; `None` shares none. Messages in flight
    /// count against it.
    pub fn set_shared_window(&self, window: Option<Arc<SharedWindow>>) {
        let mut left = None;
        self.subscription.change(|state| {
            state.consumers.change(self.slot, |consumer| {
                let in_flight = u64::from(consumer.in_flight);
                left = consumer.charged_window().cloned();
                if let Some(left) = &left {
                    left.release(in_flight);
                }
                consumer.share(window);
                if let Some(entered) = consumer.charged_window() {
                    entered.enter(in_flight);
                }
            });
        });
        if let Some(left) = left {
            shared_window::serve(vec![left]);
        }
    }

    /// Takes the deliveries in the outbox. `None`: the subscription was deleted and delivers
    /// nothing more.
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

    /// Stops delivery (AMQP's `basic.cancel`). Deliveries still in the outbox are requeued as if
    /// they had not been delivered. If this was the single active or the exclusive consumer, others
    /// take over. Messages taken from the outbox stay in flight and can be settled until the
    /// consumer is dropped.
    pub fn retire(&self) {
        self.retire_unseen(&[]);
    }

    /// As [`Self::retire`]. `unseen` are ranges that the session has taken from the outbox but not
    /// sent to its client: they are requeued too, at their original offsets, as if they had not
    /// been delivered. Messages in them that are not in flight to this consumer are ignored.
    pub fn retire_unseen(&self, unseen: &[MessageRange]) {
        let left = self.subscription.change(|state| {
            if state.consumers.get(self.slot).is_none() {
                return false;
            }
            let counted = state.consumers.retire(self.slot);
            self.undeliver(state, unseen.iter().copied());
            self.requeue_outbox(state);
            counted && !state.closed && state.consumers.counted() == 0
        });
        self.subscription.on_consumer_left(left);
    }

    fn detach(&self) {
        let left = self.subscription.change(|state| {
            self.requeue_outbox(state);
            let held = state.ledger.held_by(self.slot);
            state.consumers.note_leaving(self.slot, held, state.now_us);
            let counted = state.consumers.detach(self.slot);
            let released = state.ledger.release(self.slot);
            self.subscription
                .counters
                .requeued
                .fetch_add(released, Ordering::Relaxed);
            if state.consumers.is_empty() {
                // Without consumers nothing needs the batches that were read ahead: free their
                // memory.
                state.readers.clear();
            }
            counted && !state.closed && state.consumers.counted() == 0
        });
        self.subscription.on_consumer_left(left);
    }

    /// Requeues the messages in a consumer's outbox as if they had not been delivered.
    fn requeue_outbox(&self, state: &mut SubscriptionState) {
        let deliveries = state.consumers.take_outbox(self.slot);
        self.undeliver(state, deliveries.iter().map(Delivery::range));
    }

    /// Requeues the messages of these ranges that are in flight to the consumer, as if they had not
    /// been delivered.
    fn undeliver(&self, state: &mut SubscriptionState, ranges: impl Iterator<Item = MessageRange>) {
        let mut count = 0;
        for range in ranges {
            let place = (range.first, range.end());
            count += state
                .ledger
                .undeliver_between(range.partition, place, self.slot);
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

    /// The number of messages in flight to this consumer.
    pub fn in_flight(&self) -> u32 {
        self.subscription
            .state
            .lock()
            .consumers
            .in_flight_at(self.slot)
    }

    /// How many messages it has in flight, and how many have timed out.
    pub fn holding(&self) -> InFlightCounts {
        let state = self.subscription.state.lock();
        let consumer = state.consumers.get(self.slot);
        consumer.map_or_else(InFlightCounts::default, ConsumerState::holding)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.detach();
    }
}
