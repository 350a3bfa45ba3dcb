//! Calls for protocols that keep state in the journal: syncs, the broker's time, all topics, and
//! whether the broker is closed.

use std::sync::Arc;

use cloverleaf_log::Pending;

use crate::broker::{Broker, CatalogError};
use crate::topic::Topic;

impl Broker {
    /// A future that is ready once all state written so far ([`Broker::commit_offsets`],
    /// [`Broker::put_value`]) is synced, so that a power loss does not lose it. One group commit
    /// serves all waiting callers.
    ///
    /// # Errors
    /// The journal has failed.
    pub fn state_synced(&self) -> Result<Pending, CatalogError> {
        let journal = self.shared.log.journal();
        // An empty append returns the position of the last entry.
        match journal.append(&[]) {
            Ok(position) => Ok(journal.wait_synced(position)),
            Err(error) => Err(CatalogError::Log {
                reason: error.to_string(),
            }),
        }
    }

    /// Milliseconds since the Unix epoch, by the broker's clock. Committed offsets are stamped with
    /// it.
    pub fn now_ms(&self) -> u64 {
        self.shared.clock.now_ms()
    }

    /// Microseconds since the Unix epoch, by the broker's clock.
    pub fn now_us(&self) -> u64 {
        self.shared.clock.now_us()
    }

    /// All topics, including hidden ones, in no particular order.
    pub fn all_topics(&self) -> Vec<Arc<Topic>> {
        self.shared.all_topics()
    }

    /// Whether [`Broker::close`] has begun. A topic that is gone after that was not deleted.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}
