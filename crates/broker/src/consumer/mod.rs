//! A consumer: the handle through which a protocol's session takes and settles messages.

pub(crate) mod attachment;
pub(crate) mod holds;
pub(crate) mod outbox;
pub(crate) mod overdue;
pub(crate) mod ranking;
pub(crate) mod shared_window;
pub(crate) mod slots;
pub(crate) mod state;
pub(crate) mod wakes;

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::consumer::outbox::Outbox;
use crate::consumer::shared_window::SharedWindow;
use crate::message::{Delivery, MessageId, MessageRange};
use crate::subscription::Subscription;
use crate::subscription::died::Died;
use crate::subscription::ledger::NotInFlight;
use crate::subscription::settlement::Settle;

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
        self.subscription.set_window(self.slot, messages);
    }

    /// Shares a window with other consumers from now on, or with none. Messages in flight count.
    pub fn set_shared_window(&self, window: Option<Arc<SharedWindow>>) {
        self.subscription.set_shared_window(self.slot, window);
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
                    self.subscription.auto_acked(self.slot, taken);
                } else if taken.was_full {
                    self.subscription.outbox_taken(self.slot);
                }
                Poll::Ready(Some(()))
            }
        }
    }

    /// Takes exactly one message, for a consumer with [`crate::ConsumerOptions::pull`] (AMQP's
    /// `basic.get`). `None`: none is ready, or the subscription was deleted.
    ///
    /// Pending while the disk is asked. A caller that gives up asking loses nothing.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.subscription
            .poll_take(self.slot, &self.outbox, context)
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
        self.subscription.retire(self.slot, unseen);
    }

    /// Acknowledges one message.
    pub fn ack(&self, id: MessageId) -> Result<Settlement, NotInFlight> {
        let mut result = Err(NotInFlight);
        self.ack_many(&[id], |_, settled, _| result = settled);
        result
    }

    /// Acknowledges messages in one go; `settled` hears of each. It must not call the broker. The
    /// last that it hears is about acknowledgements that come too late: in microseconds, how long
    /// the consumer took for a delivery whose deadline had passed, as far as that is remembered.
    pub fn ack_many(
        &self,
        ids: &[MessageId],
        settled: impl FnMut(MessageId, Result<Settlement, NotInFlight>, Option<u64>),
    ) {
        self.subscription.ack_many(self.slot, ids, settled);
    }

    /// Gives a message back: at once in its old position, or after `delay_ms`.
    pub fn nack(&self, id: MessageId, delay_ms: u64) -> Result<Settlement, NotInFlight> {
        self.subscription.nack(self.slot, id, delay_ms)
    }

    /// Gives a message up: it goes to the dead-letter topic, or nowhere if there is none.
    pub fn reject(&self, id: MessageId) -> Result<Settlement, NotInFlight> {
        self.subscription.reject(self.slot, id)
    }

    /// Acknowledges ranges in one go; `settled` hears of each, in pieces with one fate: `None` for
    /// messages that are not in flight to this consumer. It must not call the broker.
    pub fn ack_ranges(
        &self,
        ranges: &[MessageRange],
        settled: impl FnMut(MessageRange, Option<Settlement>),
    ) {
        self.subscription.ack_ranges(self.slot, ranges, settled);
    }

    /// Gives ranges back in one go: at once, in their old position. Messages of them that are not
    /// in flight to this consumer are left alone.
    pub fn nack_ranges(&self, ranges: &[MessageRange]) {
        let settle = Settle::Nack;
        self.subscription.settle_ranges(self.slot, settle, ranges);
    }

    /// Gives ranges up in one go: they go to the dead-letter topic, or nowhere if there is none.
    /// Messages of them that are not in flight to this consumer are left alone.
    pub fn reject_ranges(&self, ranges: &[MessageRange]) {
        let settle = Settle::Reject;
        self.subscription.settle_ranges(self.slot, settle, ranges);
    }

    /// As [`Self::nack_ranges`]. Messages that have died of it (they were delivered too often) are
    /// handed over, if somebody has asked for them ([`crate::Broker::route_dead`]), and told to
    /// nobody else.
    #[must_use]
    pub fn nack_ranges_taking(&self, ranges: &[MessageRange]) -> Vec<Died> {
        self.subscription
            .settle_ranges_taking(self.slot, Settle::Nack, ranges)
    }

    /// As [`Self::reject_ranges`], and hands over as [`Self::nack_ranges_taking`].
    #[must_use]
    pub fn reject_ranges_taking(&self, ranges: &[MessageRange]) -> Vec<Died> {
        self.subscription
            .settle_ranges_taking(self.slot, Settle::Reject, ranges)
    }

    /// Starts a message's deadline anew.
    pub fn extend(&self, id: MessageId) -> Result<(), NotInFlight> {
        self.subscription.extend(self.slot, id)
    }

    /// Messages in flight to this consumer.
    pub fn in_flight(&self) -> u32 {
        self.subscription.in_flight_of(self.slot)
    }

    /// The messages that it holds, and those that were taken from it.
    pub fn holding(&self) -> Holding {
        self.subscription.holding_of(self.slot)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.subscription.detach(self.slot);
    }
}
