//! Purge of a queue: discards waiting messages only.

use std::sync::Arc;

use crate::subscription::Subscription;

impl Subscription {
    /// Discards all messages that wait for a consumer. Messages in flight stay with their
    /// consumers, and wait again if they are requeued ([`Subscription::discard_all`] discards them
    /// too). Returns the number of discarded messages.
    pub fn purge(self: &Arc<Self>) -> u64 {
        self.change(|state| {
            let count = state.log.depth(&state.ledger);
            for (partition, end) in (0u32..).zip(state.log.ends()) {
                while let Some(ready) = state.ledger.first_ready(partition) {
                    state.ledger.drop_ready(partition, ready.count);
                }
                state.ledger.skip_to(partition, end);
            }
            // No message that was never delivered waits any more.
            state.waiting_bytes.clear();
            count
        })
    }
}
