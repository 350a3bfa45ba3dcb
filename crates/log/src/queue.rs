//! A queue of work for a thread.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::Mutex;

use crate::condvar::Condvar;

/// A queue of work. Its thread takes all queued items at once, which forms the groups of group
/// commit. Threads that share a queue take one item at a time ([`Queue::wait_one`]).
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

struct QueueState<T> {
    items: VecDeque<T>,
    stopped: bool,
}

/// The result of [`Queue::wait`].
pub(crate) enum QueueWait<T> {
    /// All queued items; empty if the deadline has passed.
    Items(Vec<T>),
    /// The queue was stopped and is empty.
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

    /// Adds an item; returns it as an error if the queue was stopped.
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

    /// Takes all queued items without waiting.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.state.lock().items).into()
    }

    /// Waits for items, at most until the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> QueueWait<T> {
        let mut state = self.state.lock();
        while state.items.is_empty() {
            if state.stopped {
                return QueueWait::Stopped;
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
        QueueWait::Items(std::mem::take(&mut state.items).into())
    }

    /// Waits for an item and takes the oldest one; `None` once the queue is stopped and empty.
    pub(crate) fn wait_one(&self) -> Option<T> {
        let mut state = self.state.lock();
        while state.items.is_empty() && !state.stopped {
            self.changed.wait(&mut state);
        }
        state.items.pop_front()
    }

    /// Whether the queue refuses further items.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Refuses further items. Queued ones can still be taken.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}
