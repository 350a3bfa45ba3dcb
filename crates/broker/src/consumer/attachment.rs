//! How consumers come and go, and what the subscription knows of each.

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
    /// As many consumers as the subscription allows are there.
    #[error("the subscription has {consumers_max} consumers, as many as it allows")]
    TooMany {
        /// The limit.
        consumers_max: u32,
    },
    /// An exclusive consumer is there, or this one wants to be alone and is not.
    #[error("the subscription is in exclusive use")]
    Exclusive,
    /// The subscription was deleted.
    #[error("the subscription was deleted")]
    Deleted,
}

impl Subscription {
    /// Attaches a consumer; it gets messages once its window is set.
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
            let holds = Box::new(HoldHistory::new(self.shared.lanes()));
            let record = |consumer: &mut ConsumerState| consumer.holds = Some(holds);
            state.consumers.change(slot, record);
        }
        Ok(Consumer::new(self.clone(), slot, outbox, auto_ack))
    }

    /// The last consumer has left, if `is_so`.
    pub(super) fn lost_last_consumer(self: &Arc<Self>, is_so: bool) {
        if is_so && self.is_ephemeral() {
            // Deleting touches files: not on the thread of a connection.
            self.shared.work.unused(self.clone());
        }
    }

    pub(crate) fn has_consumers(&self) -> bool {
        self.state.lock().consumers.counted() > 0
    }
}

impl Subscription {
    /// There is room again in a shared window for which this has waited.
    pub(crate) fn window_has_room(self: &Arc<Self>, window: &Arc<SharedWindow>) {
        self.change(|state| {
            if state.consumers.unpark(window) && window.wait(self) {
                state.consumers.window_freed(Some(window.clone()));
            }
        });
    }
}

impl ConsumerState {
    /// Waits for the shared window that alone keeps it from its messages; it is returned if it has
    /// room that nobody is told of.
    pub(crate) fn wait_for_shared(
        &self,
        subscription: &Arc<Subscription>,
    ) -> Option<Arc<SharedWindow>> {
        let shared = self.shared_window().filter(|_| self.own_room() > 0)?;
        shared.wait(subscription).then(|| shared.clone())
    }
}
