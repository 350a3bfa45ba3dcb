//! Windows that consumers share with those of other subscriptions: waiting for room in one, and
//! hearing of it.

use std::sync::Arc;

use crate::consumer::shared_window::SharedWindow;
use crate::consumer::slots::Consumers;
use crate::subscription::Subscription;

impl Consumers {
    /// A shared window has new room: its waiters are to hear of it.
    #[inline]
    pub(crate) fn window_freed(&mut self, window: Option<Arc<SharedWindow>>) {
        let Some(window) = window else { return };
        self.unpark(&window);
        self.wakes.add_window_once(window);
    }

    /// The waiters for room in a shared window have their turn again. `true`: not all of them.
    pub(crate) fn unpark(&mut self, window: &Arc<SharedWindow>) -> bool {
        let ranking = self.ranking.as_deref_mut();
        ranking.is_some_and(|it| it.unpark(window, &mut self.slots, self.last_served))
    }

    /// The window in which a consumer's messages take places.
    #[inline]
    pub(crate) fn places_of(&self, slot: u32) -> Option<Arc<SharedWindow>> {
        self.get(slot)?.places().cloned()
    }

    /// Leaves the subscription's name with each shared window that is all that keeps a consumer
    /// from its messages.
    pub(crate) fn wait_for_shared_windows(&mut self, subscription: &Arc<Subscription>) {
        if self.line.is_some() {
            // The others get nothing, whatever room they have.
            let active = self.active();
            let active = active.and_then(|slot| self.get(slot));
            let freed = active.and_then(|consumer| consumer.wait_for_shared(subscription));
            self.wakes.add_window(freed);
        } else if self.ranking.is_none() {
            // Many were parked as they were found.
            for consumer in self.slots.iter().flatten() {
                let freed = consumer.wait_for_shared(subscription);
                self.wakes.add_window(freed);
            }
        }
    }
}
