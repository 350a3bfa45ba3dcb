//! Purges a queue: throws away the messages that wait, and only those.

use std::sync::Arc;

use crate::subscription::Subscription;

impl Subscription {
    /// Forgets all messages that wait for a consumer. Those that consumers hold stay theirs, and
    /// come back when they are given back ([`Subscription::empty`] forgets them too). Says how many
    /// were forgotten.
    pub fn purge(self: &Arc<Self>) -> u64 {
        self.change(|state| {
            let count = state.log.depth(&state.ledger);
            for (partition, end) in (0u32..).zip(state.log.ends()) {
                while let Some(ready) = state.ledger.first_ready(partition) {
                    state.ledger.drop_ready(partition, ready.count);
                }
                state.ledger.skip_to(partition, end);
            }
            // Nothing waits any more that was never delivered.
            state.waiting_bytes.clear();
            count
        })
    }
}
