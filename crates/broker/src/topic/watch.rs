//! Lets readers by offset wait for messages: a watcher is notified of a partition's next write.
//!
//! It is like a one-shot epoll registration. A [`Watcher`] belongs to one waiting request and may
//! watch any number of partitions. A write checks one flag if no reader watches.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Below this many registrations a partition does not look for dropped watchers.
const SWEEP_MIN: usize = 8;

/// A waiting request: it is woken when one of the partitions that it watches has something to read.
#[derive(Debug, Default)]
pub struct Watcher {
    fired: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Watcher {
    /// A watcher that watches nothing yet: see [`crate::Topic::watch`].
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Ready when a watched partition was written to since this was last ready.
    ///
    /// It may be ready without anything to read, because partitions that were watched earlier still
    /// count. Read, and watch again.
    pub fn poll_fired(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.fired.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        {
            let mut waker = self.waker.lock();
            if !waker.as_ref().is_some_and(|w| w.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
        }
        // It may have fired before the waker was set.
        if self.fired.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn fire(&self) {
        if self.fired.swap(true, Ordering::AcqRel) {
            // It was fired and woken already, and has not been polled since.
            return;
        }
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }
}

/// A registration of a [`Watcher`] with a partition, until the partition fires it.
#[derive(Debug)]
pub struct Watch {
    watchers: Arc<Watchers>,
    round: u64,
}

impl Watch {
    /// Whether the watcher is still registered. If not, it was fired since, or is about to be. (A
    /// partition may fire for a write that was visible before the registration: a writer makes its
    /// write visible first and fires afterwards.) For a deleted topic the result means nothing:
    /// check the topic.
    pub fn is_registered(&self) -> bool {
        self.watchers.round.load(Ordering::SeqCst) == self.round
    }
}

/// The watchers of one partition.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// Whether `registrations` has a watcher. A write checks it.
    is_watched: AtomicBool,
    /// How often `registrations` was fired. Changes only under its lock.
    round: AtomicU64,
    registrations: Mutex<Registrations>,
}

#[derive(Debug, Default)]
struct Registrations {
    watchers: Vec<Weak<Watcher>>,
    /// At this length dropped watchers are removed.
    sweep_at: usize,
    /// The topic is deleted: new watchers fire at once.
    closed: bool,
}

impl Watchers {
    /// Adds a watcher, unless it is registered already.
    ///
    /// A read of the partition after this call is up to date, or the watcher will fire.
    pub(crate) fn add(self: &Arc<Self>, watcher: &Arc<Watcher>) -> Watch {
        let round;
        {
            let mut registrations = self.registrations.lock();
            round = self.round.load(Ordering::SeqCst);
            if registrations.closed {
                drop(registrations);
                watcher.fire();
                return self.watch_of(round);
            }
            let known = |other: &Weak<Watcher>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(watcher));
            if !registrations.watchers.iter().any(known) {
                if registrations.watchers.len() >= registrations.sweep_at.max(SWEEP_MIN) {
                    registrations
                        .watchers
                        .retain(|other| other.strong_count() > 0);
                    registrations.sweep_at = 2 * registrations.watchers.len();
                }
                registrations.watchers.push(Arc::downgrade(watcher));
            }
            self.is_watched.store(true, Ordering::SeqCst);
        }
        // Pairs with the fence in `fire`: either `fire` sees the flag, or the caller sees the
        // write.
        fence(Ordering::SeqCst);
        self.watch_of(round)
    }

    fn watch_of(self: &Arc<Self>, round: u64) -> Watch {
        let watchers = self.clone();
        Watch { watchers, round }
    }

    /// The partition has something new. One load if it has no watcher.
    pub(crate) fn fire(&self) {
        fence(Ordering::SeqCst);
        if !self.is_watched.load(Ordering::Relaxed) {
            return;
        }
        self.fire_all(false);
    }

    /// The topic was deleted: fires all watchers.
    pub(crate) fn close(&self) {
        self.fire_all(true);
    }

    fn fire_all(&self, close: bool) {
        let watchers = {
            let mut registrations = self.registrations.lock();
            self.is_watched.store(false, Ordering::SeqCst);
            self.round.fetch_add(1, Ordering::SeqCst);
            registrations.sweep_at = 0;
            registrations.closed |= close;
            std::mem::take(&mut registrations.watchers)
        };
        for watcher in watchers.iter().filter_map(Weak::upgrade) {
            watcher.fire();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_watcher_fires_once_for_writes_since_its_last_poll() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let (first, second): (Arc<Watchers>, Arc<Watchers>) = Default::default();
        let watcher = Watcher::new();
        let watch = first.add(&watcher);
        second.add(&watcher);
        first.add(&watcher);
        assert!(watch.is_registered());
        assert_eq!(first.registrations.lock().watchers.len(), 1);
        assert!(watcher.poll_fired(&mut context).is_pending());
        first.fire();
        assert!(!watch.is_registered());
        second.fire();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(watcher.poll_fired(&mut context).is_ready());
        assert!(watcher.poll_fired(&mut context).is_pending());
        // One shot: it watches nothing now.
        first.fire();
        assert!(watcher.poll_fired(&mut context).is_pending());
        first.add(&watcher);
        first.close();
        assert!(watcher.poll_fired(&mut context).is_ready());
        first.add(&watcher);
        assert!(watcher.poll_fired(&mut context).is_ready());
    }

    #[test]
    fn dropped_watchers_are_forgotten() {
        let watchers = Arc::new(Watchers::default());
        let stays = Watcher::new();
        watchers.add(&stays);
        for _ in 0..1_000 {
            watchers.add(&Watcher::new());
        }
        assert!(watchers.registrations.lock().watchers.len() <= SWEEP_MIN + 1);
        watchers.fire();
        assert!(stays.fired.load(Ordering::Relaxed));
    }
}
