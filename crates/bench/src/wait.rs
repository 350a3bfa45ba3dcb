//! Waiting for a callback of a client library or for a time, whichever comes first.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Lets its thread sleep until another thread wakes it, or until a timeout.
#[derive(Debug)]
pub(crate) struct Waiter {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Waiter {
    /// A waiter of this thread, which alone may call [`Waiter::wait`].
    pub(crate) fn here() -> Arc<Waiter> {
        Arc::new(Waiter {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        })
    }

    /// Wakes the thread. If it does not wait, its next wait ends at once.
    pub(crate) fn ring(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }

    /// Waits for [`Waiter::ring`], but not longer than this.
    pub(crate) fn wait(&self, most: Duration) {
        let end = Instant::now() + most;
        while !self.is_woken.swap(false, Ordering::AcqRel) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// Runs a future on this thread; `None`: it was not done in time.
pub(crate) fn block_on<F: Future>(future: F, most: Duration) -> Option<F::Output> {
    let waiter = Waiter::here();
    let waker = Waker::from(waiter.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let end = Instant::now() + most;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        waiter.wait(left);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_ring_ends_a_wait_also_if_it_comes_first() {
        let waiter = Waiter::here();
        waiter.ring();
        let long = Duration::from_secs(60);
        let begun = Instant::now();
        waiter.wait(long);
        let other = waiter.clone();
        let thread = thread::spawn(move || other.ring());
        waiter.wait(long);
        thread.join().unwrap();
        assert!(begun.elapsed() < long);
        waiter.wait(Duration::from_millis(1));
    }

    #[test]
    fn a_future_is_run_or_given_up() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let thread = thread::spawn(move || sender.send(5).unwrap());
        let got = block_on(receiver, Duration::from_secs(60));
        assert_eq!(got.unwrap().unwrap(), 5);
        thread.join().unwrap();
        let never = std::future::pending::<()>();
        assert!(block_on(never, Duration::from_millis(1)).is_none());
    }
}
