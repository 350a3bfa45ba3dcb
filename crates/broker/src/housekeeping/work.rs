//! The work queues of the housekeeping thread. Subscriptions add themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::subscription::Subscription;

/// The queues. Their mutex is held for a push only, and no other lock is taken under it.
#[derive(Default)]
pub(crate) struct HousekeepingWork {
    queues: Mutex<WorkQueues>,
    changed: Condvar,
}

#[derive(Default)]
struct WorkQueues {
    /// Subscriptions with progress that is only in memory.
    dirty: Vec<Arc<Subscription>>,
    /// Subscriptions with messages whose dead letters must be written.
    dead: Vec<Arc<Subscription>>,
    /// Ephemeral subscriptions that have lost their last consumer.
    unused: Vec<Arc<Subscription>>,
    /// Subscriptions to call at a time: by time (milliseconds since the epoch) and subscription id.
    due: BTreeMap<(u64, u64), Weak<Subscription>>,
    /// Set when the thread should check its queues at once.
    kicked: bool,
    /// Until when the thread sleeps, in milliseconds since the epoch; 0 while it works.
    sleeps_until_ms: u64,
    /// Set when the broker is closed: nobody takes work any more.
    is_closed: bool,
}

impl WorkQueues {
    /// Adds a subscription to one of the queues; returns whether it is the first one there. After
    /// the end of the broker it is dropped: queue and subscription would keep each other in memory.
    fn push(
        &mut self,
        queue: fn(&mut WorkQueues) -> &mut Vec<Arc<Subscription>>,
        subscription: Arc<Subscription>,
    ) -> bool {
        if self.is_closed {
            return false;
        }
        let queue = queue(self);
        queue.push(subscription);
        queue.len() == 1
    }
}

impl HousekeepingWork {
    pub(crate) fn dirty(&self, subscription: Arc<Subscription>) {
        let mut queues = self.queues.lock();
        // Wake the thread for the first one only: it then works every few milliseconds.
        if queues.push(|queues| &mut queues.dirty, subscription) {
            self.kick_locked(&mut queues);
        }
    }

    pub(crate) fn dead(&self, subscription: Arc<Subscription>) {
        let mut queues = self.queues.lock();
        queues.push(|queues| &mut queues.dead, subscription);
        self.kick_locked(&mut queues);
    }

    pub(crate) fn unused(&self, subscription: Arc<Subscription>) {
        let mut queues = self.queues.lock();
        queues.push(|queues| &mut queues.unused, subscription);
        self.kick_locked(&mut queues);
    }

    pub(crate) fn take_unused(&self) -> Vec<Arc<Subscription>> {
        std::mem::take(&mut self.queues.lock().unused)
    }

    pub(crate) fn due(&self, due_ms: u64, subscription: &Arc<Subscription>) {
        let mut queues = self.queues.lock();
        queues
            .due
            .insert((due_ms, subscription.id()), Arc::downgrade(subscription));
        if due_ms < queues.sleeps_until_ms {
            self.kick_locked(&mut queues);
        }
    }

    /// Takes no more work, and wakes the thread so that it ends.
    pub(crate) fn close(&self) {
        let mut queues = self.queues.lock();
        queues.is_closed = true;
        let left = [
            std::mem::take(&mut queues.dirty),
            std::mem::take(&mut queues.dead),
            std::mem::take(&mut queues.unused),
        ];
        self.kick_locked(&mut queues);
        drop(queues);
        drop(left);
    }

    pub(crate) fn kick(&self) {
        self.kick_locked(&mut self.queues.lock());
    }

    fn kick_locked(&self, queues: &mut WorkQueues) {
        queues.kicked = true;
        self.changed.notify_one();
    }

    pub(crate) fn take_dirty(&self) -> Vec<Arc<Subscription>> {
        std::mem::take(&mut self.queues.lock().dirty)
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.queues.lock().dirty.is_empty()
    }

    pub(crate) fn take_dead(&self) -> Vec<Arc<Subscription>> {
        std::mem::take(&mut self.queues.lock().dead)
    }

    /// Takes the subscriptions that are due.
    pub(crate) fn take_due(&self, now_ms: u64) -> Vec<Arc<Subscription>> {
        let mut queues = self.queues.lock();
        let later = queues.due.split_off(&(now_ms + 1, 0));
        let due = std::mem::replace(&mut queues.due, later);
        due.into_values()
            .filter_map(|subscription| subscription.upgrade())
            .collect()
    }

    pub(crate) fn first_due_ms(&self) -> Option<u64> {
        self.queues
            .lock()
            .due
            .first_key_value()
            .map(|((due_ms, _), _)| *due_ms)
    }

    /// Sleeps until `until_ms`, or until there is new work.
    pub(crate) fn wait(&self, now_ms: u64, until_ms: u64) {
        let mut queues = self.queues.lock();
        // Work that was added since `until_ms` was computed did not wake this thread: check again.
        let first = queues.due.first_key_value();
        let until_ms = first.map_or(until_ms, |((due_ms, _), _)| until_ms.min(*due_ms));
        if !queues.kicked && until_ms > now_ms {
            queues.sleeps_until_ms = until_ms;
            let timeout = Duration::from_millis(until_ms - now_ms);
            self.changed.wait_for(&mut queues, timeout);
            queues.sleeps_until_ms = 0;
        }
        queues.kicked = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_added_before_the_sleep_is_done_at_once() {
        let work = HousekeepingWork::default();
        // The state after a call of `due` between the thread's last check and its sleep.
        work.queues.lock().due.insert((10, 1), Weak::new());
        let start = Instant::now();
        work.wait(10, 120_010);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
