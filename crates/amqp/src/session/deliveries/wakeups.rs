//! Wake-ups per consumer, so that a connection with many consumers polls only those with
//! deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

/// The slots that were woken, and the connection's waker.
#[derive(Debug, Default)]
pub(super) struct ReadySlots {
    state: Mutex<WokenSlots>,
}

#[derive(Debug, Default)]
struct WokenSlots {
    slots: Vec<u32>,
    waker: Option<Waker>,
}

/// Wakes one slot.
#[derive(Debug)]
struct SlotWaker {
    slot: u32,
    /// The slot is among the woken ones already.
    is_queued: AtomicBool,
    ready: Arc<ReadySlots>,
}

/// The handle of one consumer: its waker, and the means to wake itself.
#[derive(Debug)]
pub(super) struct SlotSignal {
    inner: Arc<SlotWaker>,
    waker: Waker,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let waker = {
            let mut state = self.ready.state.lock();
            state.slots.push(self.slot);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl ReadySlots {
    /// The signal of a slot.
    pub(super) fn signal(self: &Arc<Self>, slot: u32) -> SlotSignal {
        let inner = Arc::new(SlotWaker {
            slot,
            is_queued: AtomicBool::new(false),
            ready: Arc::clone(self),
        });
        let waker = Waker::from(Arc::clone(&inner));
        SlotSignal { inner, waker }
    }

    /// Appends the woken slots to `into`. The context is woken when a further slot is.
    pub(super) fn take(&self, cx: &Context<'_>, into: &mut Vec<u32>) {
        let mut state = self.state.lock();
        into.append(&mut state.slots);
        if state.slots.capacity() > 64 {
            state.slots = Vec::new();
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }
}

impl SlotSignal {
    /// The context for polling the consumer. From now on a wake-up queues the slot again.
    pub(super) fn context(&self) -> Context<'_> {
        self.inner.is_queued.store(false, Ordering::Release);
        Context::from_waker(&self.waker)
    }

    /// Wakes the slot.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(std::sync::atomic::AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_slot_is_queued_once_until_it_is_polled() {
        let count = Arc::new(Count(0.into()));
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        let ready = Arc::new(ReadySlots::default());
        let (one, two) = (ready.signal(1), ready.signal(2));
        let mut slots = Vec::new();
        ready.take(&cx, &mut slots);
        assert!(slots.is_empty());
        one.wake();
        one.wake();
        two.wake();
        assert_eq!(
            count.0.load(Ordering::SeqCst),
            1,
            "one wake-up until the next `take`"
        );
        ready.take(&cx, &mut slots);
        assert_eq!(slots, [1, 2]);
        one.wake();
        slots.clear();
        ready.take(&cx, &mut slots);
        assert!(slots.is_empty(), "not polled since");
        one.context().waker().wake_by_ref();
        ready.take(&cx, &mut slots);
        assert_eq!(slots, [1]);
    }
}
