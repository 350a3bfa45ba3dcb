//! The outbox: deliveries on their way from a subscription to a consumer's connection.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::message::Delivery;

/// Approximate memory of a delivery besides its records, in bytes.
const DELIVERY_BYTES: u64 = 128;

/// Deliveries that the consumer's connection has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<OutboxState>,
}

#[derive(Debug, Default)]
struct OutboxState {
    deliveries: Vec<Delivery>,
    bytes: u64,
    /// `bytes` reached the limit, so the subscription delivers nothing more until the outbox is
    /// taken.
    full: bool,
    closed: bool,
    waker: Option<Waker>,
}

/// Whether the outbox was full when its deliveries were taken.
pub(crate) struct TakenDeliveries {
    /// The subscription must be told that the outbox has space again.
    pub(crate) was_full: bool,
}

impl Outbox {
    /// Adds a delivery. Returns whether the outbox has `bytes_max` bytes or more now, and the waker
    /// of the connection's task.
    pub(crate) fn push(&self, delivery: Delivery, bytes_max: u64) -> (bool, Option<Waker>) {
        let mut inner = self.inner.lock();
        inner.bytes += u64::from(delivery.bytes) + DELIVERY_BYTES;
        inner.deliveries.push(delivery);
        inner.full = inner.bytes >= bytes_max;
        (inner.full, inner.waker.take())
    }

    /// Moves all deliveries into `into`. Pending while there is none; `None` once closed.
    #[inline]
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        into: &mut Vec<Delivery>,
    ) -> Poll<Option<TakenDeliveries>> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Poll::Ready(None);
        }
        if inner.deliveries.is_empty() {
            if !inner
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(context.waker()))
            {
                inner.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        into.append(&mut inner.deliveries);
        inner.bytes = 0;
        let was_full = std::mem::take(&mut inner.full);
        Poll::Ready(Some(TakenDeliveries { was_full }))
    }

    /// Drops all deliveries: the subscription was emptied.
    pub(crate) fn clear(&self) {
        drop(self.take_all());
    }

    /// Takes all deliveries.
    pub(crate) fn take_all(&self) -> Vec<Delivery> {
        let mut inner = self.inner.lock();
        inner.bytes = 0;
        inner.full = false;
        std::mem::take(&mut inner.deliveries)
    }

    /// Stores the waker that [`Self::take_waker`] returns.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut inner = self.inner.lock();
        if !inner.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            inner.waker = Some(waker.clone());
        }
    }

    pub(crate) fn take_waker(&self) -> Option<Waker> {
        self.inner.lock().waker.take()
    }

    /// Closes the outbox: no delivery follows. Returns the waker of the connection's task.
    pub(crate) fn close(&self) -> Option<Waker> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.deliveries.clear();
        inner.waker.take()
    }
}
