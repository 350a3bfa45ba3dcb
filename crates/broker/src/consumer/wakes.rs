//! The tasks and shared windows to notify once the subscription's lock is released.

use std::sync::Arc;
use std::task::Waker;

use crate::consumer::shared_window::{self, SharedWindow};

/// Notifications collected under the lock and sent without it.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    wakers: Vec<Waker>,
    /// Windows with released slots: their waiters dispatch.
    windows: Vec<Arc<SharedWindow>>,
}

impl Wakes {
    #[inline]
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }

    /// Adds a shared window that has released slots.
    #[inline]
    pub(crate) fn add_window(&mut self, window: Option<Arc<SharedWindow>>) {
        self.windows.extend(window);
    }

    /// As [`Self::add_window`], without repeating the last window.
    pub(crate) fn add_window_once(&mut self, window: Arc<SharedWindow>) {
        let is_last = |last: &Arc<SharedWindow>| Arc::ptr_eq(last, &window);
        if !self.windows.last().is_some_and(is_last) {
            self.windows.push(window);
        }
    }

    /// Sends all notifications. The caller holds no lock.
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
