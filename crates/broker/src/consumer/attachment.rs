//! Attaching and detaching consumers.

use std::sync::Arc;

use crate::consumer::Consumer;
use crate::consumer::holds::HoldHistory;
use crate::consumer::outbox::Outbox;
use crate::consumer::shared_window::SharedWindow;
use crate::consumer::state::ConsumerState;
use crate::options::ConsumerOptions;
use crate::subscription::Subscription;

/// Why a consumer cannot attach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The subscription has as many consumers as it allows.
    #[error("the subscription has {consumers_max} consumers, as many as it allows")]
    TooMany {
        /// The limit.
        consumers_max: u32,
    },
    /// Another consumer has exclusive use, or this one asks for it while others are attached.
    #[error("the subscription is in exclusive use")]
    Exclusive,
    /// The subscription was deleted.
    #[error("the subscription was deleted")]
    Deleted,
}

impl Subscription {
    /// Attaches a consumer. It gets messages once its window is set.
    pub fn attach(self: &Arc<Self>, options: ConsumerOptions) -> Result<Consumer, AttachError> {
        let outbox = Arc::new(Outbox::default());
        let mut state = self.state.lock();
        if state.closed {
            return Err(AttachError::Deleted);
        }
        if !options.pull {
            let count = state.consumers.counted();
            if state.consumers.has_exclusive() || (options.exclusive && count > 0) {
                return Err(AttachError::Exclusive);
            }
            let consumers_max = self.options().consumers_max;
            if consumers_max > 0 && count >= consumers_max as usize {
                return Err(AttachError::TooMany { consumers_max });
            }
        }
        let auto_ack = options.auto_ack;
        let is_recorded = options.connection > 0;
        let slot = state.consumers.attach(options, outbox.clone());
        if is_recorded {
            let holds = Box::new(HoldHistory::new(self.shared.hold_memory()));
            let record = |consumer: &mut ConsumerState| consumer.holds = Some(holds);
            state.consumers.change(slot, record);
        }
        Ok(Consumer::new(self.clone(), slot, outbox, auto_ack))
    }

    /// Called when a consumer has left. If it was the last one, has an ephemeral subscription
    /// deleted.
    pub(super) fn on_consumer_left(self: &Arc<Self>, was_last: bool) {
        if was_last && self.is_ephemeral() {
            // Deletion touches files, so the housekeeping thread does it, not the connection's
            // thread.
            self.shared.work.unused(self.clone());
        }
    }

    pub(crate) fn has_consumers(&self) -> bool {
        self.state.lock().consumers.counted() > 0
    }
}

impl Subscription {
    /// A shared window on which the subscription waits has free slots again: dispatches.
    pub(crate) fn window_has_free_slots(self: &Arc<Self>, window: &Arc<SharedWindow>) {
        self.change(|state| {
            if state.consumers.unpark(window) && window.register_waiter(self) {
                state.consumers.window_released(Some(window.clone()));
            }
        });
    }
}

impl ConsumerState {
    /// If a full shared window is all that stops this consumer, registers the subscription with
    /// that window. Returns the window if it has free slots by now, of which no waiter was
    /// notified.
    pub(crate) fn wait_for_shared_window(
        &self,
        subscription: &Arc<Subscription>,
    ) -> Option<Arc<SharedWindow>> {
        let shared = self.shared_window().filter(|_| self.own_free_slots() > 0)?;
        shared.register_waiter(subscription).then(|| shared.clone())
    }
}
