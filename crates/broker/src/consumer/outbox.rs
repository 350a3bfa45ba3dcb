//! The mailbox between a subscription and one consumer's connection.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::message::Delivery;

/// The cost of a delivery beside its records, in bytes, about.
const DELIVERY_BYTES: u64 = 128;

/// Deliveries that the consumer's connection has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    deliveries: Vec<Delivery>,
    bytes: u64,
    /// The subscription stopped because of `bytes`.
    full: bool,
    closed: bool,
    waker: Option<Waker>,
}

/// The state of the outbox when its connection took the deliveries.
pub(crate) struct Taken {
    /// The subscription waits to hear that there is room again.
    pub(crate) was_full: bool,
}

impl Outbox {
    /// Adds a delivery. Says whether the outbox now holds `bytes_max` or more, and whom to wake.
    pub(crate) fn push(&self, delivery: Delivery, bytes_max: u64) -> (bool, Option<Waker>) {
        let mut inner = self.inner.lock();
        inner.bytes += u64::from(delivery.bytes) + DELIVERY_BYTES;
        inner.deliveries.push(delivery);
        inner.full = inner.bytes >= bytes_max;
        (inner.full, inner.waker.take())
    }

    /// Moves all deliveries into `into`; pending while there is none, `None` once closed.
    #[inline]
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        into: &mut Vec<Delivery>,
    ) -> Poll<Option<Taken>> {
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
        Poll::Ready(Some(Taken { was_full }))
    }

    /// Throws away what is waiting: the subscription was emptied.
    pub(crate) fn clear(&self) {
        drop(self.take_all());
    }

    /// Takes out what is waiting.
    pub(crate) fn take_all(&self) -> Vec<Delivery> {
        let mut inner = self.inner.lock();
        inner.bytes = 0;
        inner.full = false;
        std::mem::take(&mut inner.deliveries)
    }

    /// Remembers whom to wake with [`Self::take_waker`].
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut inner = self.inner.lock();
        if !inner.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            inner.waker = Some(waker.clone());
        }
    }

    pub(crate) fn take_waker(&self) -> Option<Waker> {
        self.inner.lock().waker.take()
    }

    /// Nothing more will come. Returns whom to wake.
    pub(crate) fn close(&self) -> Option<Waker> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.deliveries.clear();
        inner.waker.take()
    }
}
