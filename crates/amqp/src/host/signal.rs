//! The signal with which other threads wake the router.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::router::RouterInbox;

/// Wakes the router, hands work to it, and notifies it of changes in the catalog and of its end.
#[derive(Default)]
pub(super) struct RouterSignal {
    is_woken: Mutex<bool>,
    changed: Condvar,
    inbox: Mutex<RouterInbox>,
    /// The broker's catalog has changed since the router's last check.
    catalog_has_changed: AtomicBool,
    closed: AtomicBool,
}

impl RouterSignal {
    /// Wakes the router.
    pub(super) fn wake_router(&self) {
        *self.is_woken.lock() = true;
        self.changed.notify_one();
    }

    /// Notes a change of the broker's catalog, perhaps by this virtual host itself.
    pub(super) fn catalog_changed(&self) {
        // Wakes the router once for all changes until its next check.
        if !self.catalog_has_changed.swap(true, Ordering::AcqRel) {
            self.wake_router();
        }
    }

    pub(super) fn has_catalog_changed(&self) -> bool {
        self.catalog_has_changed.load(Ordering::Acquire)
    }

    /// Begins a check of the catalog: later changes are noted again.
    pub(super) fn begin_catalog_check(&self) {
        self.catalog_has_changed.store(false, Ordering::Release);
    }

    /// Hands work to the router. Once the router is closed, the work is dropped.
    pub(super) fn give_work(&self, work: impl FnOnce(&mut RouterInbox)) {
        let mut inbox = self.inbox.lock();
        if self.is_closed() {
            return;
        }
        work(&mut inbox);
        drop(inbox);
        self.wake_router();
    }

    /// Takes all work handed to the router.
    pub(super) fn take_inbox(&self) -> RouterInbox {
        std::mem::take(&mut *self.inbox.lock())
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.take_inbox());
        self.wake_router();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Sleeps until `until_ms`, or until the router is woken.
    pub(super) fn wait(&self, now_ms: u64, until_ms: u64) {
        let mut is_woken = self.is_woken.lock();
        if !*is_woken && until_ms > now_ms {
            let timeout = Duration::from_millis(until_ms - now_ms);
            self.changed.wait_for(&mut is_woken, timeout);
        }
        *is_woken = false;
    }
}

impl Wake for RouterSignal {
    fn wake(self: Arc<Self>) {
        self.wake_router();
    }
}
