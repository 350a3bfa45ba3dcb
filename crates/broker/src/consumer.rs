//! A consumer: the handle through which a protocol's session takes and settles messages.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::ledger::NotInFlight;
use crate::message::{Delivery, MessageId};
use crate::outbox::Outbox;
use crate::subscription::Subscription;

/// What was settled: for the delivered-to-acknowledged time of the telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement {
    /// When the message had been handed to the consumer, in microseconds since the Unix epoch.
    pub delivered_us: u64,
    /// How often it had been delivered.
    pub attempts: u16,
}

/// One consumer of a subscription. Dropping it detaches it; what it held is delivered to others.
#[derive(Debug)]
pub struct Consumer {
    subscription: Arc<Subscription>,
    slot: u32,
    outbox: Arc<Outbox>,
}

impl Consumer {
    pub(crate) fn new(subscription: Arc<Subscription>, slot: u32, outbox: Arc<Outbox>) -> Self {
        Self {
            subscription,
            slot,
            outbox,
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

    /// Takes what was delivered. `None`: the subscription was deleted, nothing more will come.
    pub fn poll_deliveries(
        &self,
        context: &mut Context<'_>,
        into: &mut Vec<Delivery>,
    ) -> Poll<Option<()>> {
        match self.outbox.poll_take(context, into) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(taken)) => {
                if taken.was_full {
                    self.subscription.outbox_taken(self.slot);
                }
                Poll::Ready(Some(()))
            }
        }
    }

    /// Acknowledges one message.
    pub fn ack(&self, id: MessageId) -> Result<Settlement, NotInFlight> {
        let mut result = Err(NotInFlight);
        self.ack_many(&[id], |_, settled| result = settled);
        result
    }

    /// Acknowledges messages in one go; `settled` hears of each. It must not call the broker.
    pub fn ack_many(
        &self,
        ids: &[MessageId],
        settled: impl FnMut(MessageId, Result<Settlement, NotInFlight>),
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

    /// Starts a message's deadline anew.
    pub fn extend(&self, id: MessageId) -> Result<(), NotInFlight> {
        self.subscription.extend(self.slot, id)
    }

    /// Messages in flight to this consumer.
    pub fn in_flight(&self) -> u32 {
        self.subscription.in_flight_of(self.slot)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.subscription.detach(self.slot);
    }
}
