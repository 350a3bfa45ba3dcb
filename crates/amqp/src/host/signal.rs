//! The signal that wakes the router.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::router::Inbox;

/// Wakes the router, tells it that topics may be gone, and that it is over.
#[derive(Default)]
pub(super) struct Signal {
    kicked: Mutex<bool>,
    changed: Condvar,
    inbox: Mutex<Inbox>,
    /// The broker's catalog has changed since the router looked.
    catalog: AtomicBool,
    closed: AtomicBool,
}

impl Signal {
    /// The router is to look again.
    pub(super) fn kick(&self) {
        *self.kicked.lock() = true;
        self.changed.notify_one();
    }

    /// Definitions of the broker have changed, perhaps by ourselves.
    pub(super) fn catalog_changed(&self) {
        // Once is enough until the router has looked.
        if !self.catalog.swap(true, Ordering::AcqRel) {
            self.kick();
        }
    }

    pub(super) fn has_catalog_changed(&self) -> bool {
        self.catalog.load(Ordering::Acquire)
    }

    /// The router looks now: what changes from here on is told anew.
    pub(super) fn look_at_catalog(&self) {
        self.catalog.store(false, Ordering::Release);
    }

    /// Hands something to the router; once it is closed, that is dropped.
    pub(super) fn hand(&self, give: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox.lock();
        if self.is_closed() {
            return;
        }
        give(&mut inbox);
        drop(inbox);
        self.kick();
    }

    /// Takes all that was handed to the router.
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

    /// Sleeps until `until_ms` or until it is kicked.
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
