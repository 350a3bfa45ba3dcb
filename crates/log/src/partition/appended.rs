//! The result of an append: the offsets, and a future for the durability that was asked for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use parking_lot::Mutex;

use crate::batch::Offset;
use crate::error::AppendError;

/// The shared state of a [`Pending`]: completed by the thread that writes or syncs.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// Whether the batch is written, so that only the sync is missing.
    is_written: AtomicBool,
    state: Mutex<WaiterState>,
}

#[derive(Debug, Default)]
struct WaiterState {
    outcome: Option<Result<(), AppendError>>,
    waker: Option<Waker>,
}

impl Waiter {
    /// Sets the outcome and wakes the task; later calls have no effect. The caller must hold no
    /// lock.
    pub(crate) fn complete(&self, outcome: Result<(), AppendError>) {
        let mut state = self.state.lock();
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn note_written(&self) {
        self.is_written.store(true, Release);
    }

    fn is_ready(&self) -> bool {
        self.state.lock().outcome.is_some()
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<(), AppendError>> {
        let mut state = self.state.lock();
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            empty => *empty = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

/// A future that is ready once the batch is as durable as its class asks, or with an error if it
/// cannot be. The write and the sync go on even if the future is dropped.
#[derive(Debug)]
#[must_use = "an append is acknowledged only when this is ready"]
pub struct Pending {
    waiter: Option<Arc<Waiter>>,
}

impl Pending {
    pub(crate) fn ready() -> Pending {
        Pending { waiter: None }
    }

    pub(crate) fn waiting(waiter: Arc<Waiter>) -> Pending {
        Pending {
            waiter: Some(waiter),
        }
    }

    /// Whether the outcome is known, so that a poll returns it.
    pub fn is_ready(&self) -> bool {
        self.waiter.as_ref().is_none_or(|waiter| waiter.is_ready())
    }

    /// In the class *disk*: whether the batch is written, even if it is not synced yet.
    pub fn is_written(&self) -> bool {
        let waiter = self.waiter.as_ref();
        waiter.is_none_or(|waiter| waiter.is_written.load(Acquire))
    }

    /// Blocks this thread until the outcome is known. For programs without a runtime.
    ///
    /// # Errors
    /// The batch could not be written or synced.
    pub fn wait(mut self) -> Result<(), AppendError> {
        let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut context) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl Future for Pending {
    type Output = Result<(), AppendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.waiter {
            None => Poll::Ready(Ok(())),
            Some(waiter) => waiter.poll(context),
        }
    }
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An append whose offsets are assigned. As a future, it is ready once the batch is as durable as
/// was asked.
#[derive(Debug)]
#[must_use = "an append is acknowledged only when this is ready"]
pub struct Appended {
    /// Offset of the first record.
    pub base: Offset,
    /// Offset after the last record.
    pub end: Offset,
    /// Whether the batch is a duplicate, which an idempotent producer has sent again: the offsets
    /// are those of the stored batch, and nothing was appended.
    pub is_duplicate: bool,
    /// Highest timestamp of the stored batch, in milliseconds since 1970.
    pub timestamp_ms: i64,
    pub(crate) pending: Pending,
}

impl Appended {
    /// Whether the outcome is known, so that a poll returns it.
    pub fn is_ready(&self) -> bool {
        self.pending.is_ready()
    }

    /// As [`Pending::is_written`].
    pub fn is_written(&self) -> bool {
        self.pending.is_written()
    }

    /// Blocks this thread until the outcome is known. For programs without a runtime.
    ///
    /// # Errors
    /// The batch could not be written or synced.
    pub fn wait(self) -> Result<(), AppendError> {
        self.pending.wait()
    }
}

impl Future for Appended {
    type Output = Result<(), AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.pending).poll(context)
    }
}

/// Waiters with their outcomes, to be completed once all locks are released.
#[derive(Default)]
pub(crate) struct Completions {
    list: Vec<(Arc<Waiter>, Result<(), AppendError>)>,
}

impl Completions {
    pub(crate) fn add(&mut self, waiter: Arc<Waiter>, outcome: Result<(), AppendError>) {
        self.list.push((waiter, outcome));
    }

    pub(crate) fn complete_all(self) {
        for (waiter, outcome) in self.list {
            waiter.complete(outcome);
        }
    }
}
