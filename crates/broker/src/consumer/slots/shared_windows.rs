//! Windows shared with consumers of other subscriptions: registering as a waiter, and reacting to
//! released slots.

use std::sync::Arc;

use crate::consumer::shared_window::SharedWindow;
use crate::consumer::slots::Consumers;
use crate::subscription::Subscription;

impl Consumers {
    /// A shared window has free slots: its waiters will be notified.
    #[inline]
    pub(crate) fn window_released(&mut self, window: Option<Arc<SharedWindow>>) {
        let Some(window) = window else { return };
        self.unpark(&window);
        self.wakes.add_window_once(window);
    }

    /// Releases the consumers parked at a shared window. Returns `true` if some stay parked.
    pub(crate) fn unpark(&mut self, window: &Arc<SharedWindow>) -> bool {
        let ranking = self.ranking.as_deref_mut();
        ranking.is_some_and(|it| it.unpark(window, &mut self.slots, self.last_served))
    }

    /// The shared window against which a consumer's messages count.
    #[inline]
    pub(crate) fn charged_window_of(&self, slot: u32) -> Option<Arc<SharedWindow>> {
        self.get(slot)?.charged_window().cloned()
    }

    /// Registers the subscription with each full shared window that is all that stops a consumer.
    pub(crate) fn wait_for_shared_windows(&mut self, subscription: &Arc<Subscription>) {
        if self.succession.is_some() {
            // Only the active consumer gets messages, so only its window matters.
            let active = self.active();
            let active = active.and_then(|slot| self.get(slot));
            let released =
                active.and_then(|consumer| consumer.wait_for_shared_window(subscription));
            self.wakes.add_window(released);
        } else if self.ranking.is_none() {
            // With a ranking, `choose` has parked and registered them already.
            for consumer in self.slots.iter().flatten() {
                let released = consumer.wait_for_shared_window(subscription);
                self.wakes.add_window(released);
            }
        }
    }
}
