//! The signal with which other threads wake the router.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::router::Inbox;

/// Wakes the router, hands work to it, and tells it of changes in the catalog and of the end.
#[derive(Default)]
pub(super) struct Signal {
    kicked: Mutex<bool>,
    changed: Condvar,
    inbox: Mutex<Inbox>,
    /// The broker's catalog has changed since the router's last check.
    catalog: AtomicBool,
    closed: AtomicBool,
}

impl Signal {
    /// Wakes the router.
    pub(super) fn kick(&self) {
        *self.kicked.lock() = true;
        self.changed.notify_one();
    }

    /// Notes a change of the broker's catalog, perhaps by this virtual host itself.
    pub(super) fn catalog_changed(&self) {
        // Wakes the router once for all changes until its next check.
        if !self.catalog.swap(true, Ordering::AcqRel) {
            self.kick();
        }
    }

    pub(super) fn has_catalog_changed(&self) -> bool {
        self.catalog.load(Ordering::Acquire)
    }

    /// Begins a check of the catalog: later changes are noted again.
    pub(super) fn look_at_catalog(&self) {
        self.catalog.store(false, Ordering::Release);
    }

    /// Hands work to the router. Once the router is closed, the work is dropped.
    pub(super) fn hand(&self, give: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.lock();
        if self.is_closed() {
            return;
        }
        give(&mut inbox);
        drop(inbox);
        self.kick();
    }

    /// Takes all work handed to the router.
    pub(super) fn take_inbox(&self) -> Inbox {
        std::mem::take(&mut *self.inbox.lock())
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.take_inbox());
        self.kick();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Sleeps until `until_ms`, or until the router is woken.
    pub(super) fn wait(&self, now_ms: u64, until_ms: u64) {
        let mut kicked = self.kicked.lock();
        if !*kicked && until_ms > now_ms {
            let timeout = Duration::from_millis(until_ms - now_ms);
            self.changed.wait_for(&mut kicked, timeout);
        }
        *kicked = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.kick();
    }
}
