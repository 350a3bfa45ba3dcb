//! The tasks and shared windows that hear of a change once the subscription's lock is free.

use std::sync::Arc;
use std::task::Waker;

use crate::consumer::shared_window::{self, SharedWindow};

/// Gathered under the lock, sent without it.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    wakers: Vec<Waker>,
    /// Windows with new room: their waiters look again.
    windows: Vec<Arc<SharedWindow>>,
}

impl Wakes {
    #[inline]
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// A shared window has new room.
    #[inline]
    pub(crate) fn add_window(&mut self, window: Option<Arc<SharedWindow>>) {
        self.windows.extend(window);
    }

    /// As [`Self::add_window`], once for several times in a row.
    pub(crate) fn add_window_once(&mut self, window: Arc<SharedWindow>) {
        let is_last = |last: &Arc<SharedWindow>| Arc::ptr_eq(last, &window);
        if !self.windows.last().is_some_and(is_last) {
            self.windows.push(window);
        }
    }

    /// Wakes all. The caller holds no lock.
    #[inline]
    pub(crate) fn send(self) {
        for waker in self.wakers {
            waker.wake();
        }
        if !self.windows.is_empty() {
            shared_window::serve(self.windows);
        }
    }
}
