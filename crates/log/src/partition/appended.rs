//! The promise of an append, and how its caller hears that the promise is kept.

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

/// One place to wait for the end of a write or a sync.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// The kernel has the batch, and a sync is waited for.
    is_written: AtomicBool,
    state: Mutex<WaiterState>,
}

#[derive(Debug, Default)]
struct WaiterState {
    outcome: Option<Result<(), AppendError>>,
    waker: Option<Waker>,
}

impl Waiter {
    /// Tells the outcome; only the first one counts. Call it with no lock held.
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

/// A future that is ready once the promise of a durability class holds, with an error if it cannot
/// be kept. The work goes on whether or not anybody polls or keeps it.
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

    /// Whether polling would give the outcome at once.
    pub fn is_ready(&self) -> bool {
        self.waiter.as_ref().is_none_or(|waiter| waiter.is_ready())
    }

    /// While it waits for a sync: whether the kernel has what is to be synced.
    pub fn is_written(&self) -> bool {
        let waiter = self.waiter.as_ref();
        waiter.is_none_or(|waiter| waiter.is_written.load(Acquire))
    }

    /// Blocks this thread until the outcome is known. For programs without a runtime.
    ///
    /// # Errors
    /// The promise cannot be kept.
    pub fn wait(mut self) -> Result<(), AppendError> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
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

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A batch that has its offsets. Ready (as a future) once it is as durable as was asked.
#[derive(Debug)]
#[must_use = "an append is acknowledged only when this is ready"]
pub struct Appended {
    /// Offset of the first record.
    pub base: Offset,
    /// Offset after the last record.
    pub end: Offset,
    /// Whether the batch had been stored before (an idempotent producer has sent it again): the
    /// offsets are those of then, and nothing was appended.
    pub is_duplicate: bool,
    /// Highest timestamp of the batch as it is stored, in milliseconds since 1970.
    pub timestamp_ms: i64,
    pub(crate) pending: Pending,
}

impl Appended {
    /// Whether polling would give the outcome at once.
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

/// Outcomes that are told once all locks are released.
#[derive(Default)]
pub(crate) struct Completions {
    list: Vec<(Arc<Waiter>, Result<(), AppendError>)>,
}

impl Completions {
    pub(crate) fn add(&mut self, waiter: Arc<Waiter>, outcome: Result<(), AppendError>) {
        self.list.push((waiter, outcome));
    }

    pub(crate) fn tell(self) {
        for (waiter, outcome) in self.list {
            waiter.complete(outcome);
        }
    }
}
