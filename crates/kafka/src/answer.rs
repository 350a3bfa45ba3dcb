//! Answers to control-plane requests: immediate or deferred.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use kafka_protocol::protocol::Encodable;
use parking_lot::Mutex;

use crate::context::{KafkaContext, Worker};

/// The body of an answer, without frame and header.
pub(crate) type Body = Vec<u8>;

/// A body that is not known yet.
pub(crate) type LaterBody = Pin<Box<dyn Future<Output = Body> + Send>>;

/// A handler's answer.
pub(crate) enum Answer {
    /// The body is known.
    Ready(Body),
    /// The body comes later. The answers to later requests wait for it, because the protocol keeps
    /// their order.
    Later(LaterBody),
}

/// Encodes an answer's body. The version was checked against [`crate::apis`] and all values come
/// from the broker itself, so an encoding error is a bug of the broker. It is logged, and the body
/// stays empty.
pub(crate) fn body(answer: &impl Encodable, version: i16) -> Body {
    let mut out = Vec::new();
    if let Err(error) = answer.encode(&mut out, version) {
        debug_assert!(false, "an answer cannot be encoded: {error}");
        tracing::error!(version, %error, "an answer cannot be encoded");
        out.clear();
    }
    out
}

/// Answers with the result of `job`, which may block: it runs on the thread of
/// [`KafkaContext::worker`].
pub(crate) fn later(context: &KafkaContext, job: impl FnOnce() -> Body + Send + 'static) -> Answer {
    later_on(&context.worker, job)
}

/// Answers with the result of `job`, which may take long: it runs on the thread of `worker`.
pub(crate) fn later_on(
    worker: &Arc<dyn Worker>,
    job: impl FnOnce() -> Body + Send + 'static,
) -> Answer {
    let (promise, reply) = promise();
    worker.run(Box::new(move || promise.keep(job())));
    Answer::Later(Box::pin(reply))
}

/// The value that a [`Promise`] sets and its [`Reply`] waits for.
struct PromiseSlot<T> {
    value: Option<T>,
    /// The promise was dropped: no value will come any more.
    broken: bool,
    waker: Option<Waker>,
}

/// The end that sets the value, at most once.
pub(crate) struct Promise<T> {
    slot: Arc<Mutex<PromiseSlot<T>>>,
}

/// The end that waits: a future of the value. Resolves to the default value if the promise is
/// dropped without [`Promise::keep`].
pub(crate) struct Reply<T> {
    slot: Arc<Mutex<PromiseSlot<T>>>,
}

/// A promise and its reply.
pub(crate) fn promise<T>() -> (Promise<T>, Reply<T>) {
    let slot = Arc::new(Mutex::new(PromiseSlot {
        value: None,
        broken: false,
        waker: None,
    }));
    (Promise { slot: slot.clone() }, Reply { slot })
}

impl<T> Promise<T> {
    /// Sets the value and wakes the reply.
    pub(crate) fn keep(self, value: T) {
        let mut slot = self.slot.lock();
        slot.value = Some(value);
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock();
        slot.broken = true;
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Default> Future for Reply<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.lock();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(value);
        }
        if slot.broken {
            return Poll::Ready(T::default());
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
impl<T: Default> Reply<T> {
    /// The value, if it is there.
    pub(crate) fn peek(&mut self) -> Option<T> {
        match Pin::new(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    /// The value, which must be there.
    #[track_caller]
    pub(crate) fn now(mut self) -> T {
        let value = self.peek();
        assert!(value.is_some(), "nothing was answered");
        value.unwrap_or_default()
    }
}
