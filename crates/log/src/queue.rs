//! A list of work with a thread that waits for it.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::Mutex;

use crate::condvar::Condvar;

/// Work for a thread. Everything queued is taken at once, which is what makes groups, but where
/// several threads share it ([`Queue::wait_one`]).
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

struct QueueState<T> {
    items: VecDeque<T>,
    stopped: bool,
}

/// The result of [`Queue::wait`].
pub(crate) enum Queued<T> {
    /// Everything that was queued; empty when only the deadline has come.
    Items(Vec<T>),
    /// Nothing is queued and nothing will be.
    Stopped,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Queue<T> {
        let state = QueueState {
            items: VecDeque::new(),
            stopped: false,
        };
        Queue {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Adds work; returns it when the queue was stopped.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes what is there without waiting.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.state.lock().items).into()
    }

    /// Waits for work, at most until the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Queued<T> {
        let mut state = self.state.lock();
        while state.items.is_empty() {
            if state.stopped {
                return Queued::Stopped;
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        Queued::Items(std::mem::take(&mut state.items).into())
    }

    /// Waits for work and takes the oldest piece of it; `None` when there will be none.
    pub(crate) fn wait_one(&self) -> Option<T> {
        let mut state = self.state.lock();
        while state.items.is_empty() && !state.stopped {
            self.changed.wait(&mut state);
        }
        state.items.pop_front()
    }

    /// Whether further work is refused.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Refuses further work; what is queued is still done.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}
