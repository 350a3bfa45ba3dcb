//! Purges a queue: throws away the messages that wait, and only those.

use std::sync::Arc;

use crate::subscription::Subscription;

impl Subscription {
    /// Forgets all messages that wait for a consumer. Those that consumers hold stay theirs, and
    /// come back when they are given back ([`Subscription::empty`] forgets them too). Says how many
    /// were forgotten.
    pub fn purge(self: &Arc<Self>) -> u64 {
        self.change(|state| {
            let count = state.depth();
            for (partition, index) in (0u32..).zip(0..state.partitions.len()) {
                while let Some(ready) = state.ledger.first_ready(partition) {
                    state.ledger.drop_ready(partition, ready.count);
                }
                let end = state.visible_end(index);
                state.ledger.skip_to(partition, end);
            }
            // Nothing waits any more that was never delivered.
            state.bodies.clear();
            count
        })
    }
}
