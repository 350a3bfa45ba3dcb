//! Calls for protocols that keep state here: when it is synced, what time it is, what there is at
//! the start, and whether it is over.

use std::sync::Arc;

use cloverleaf_log::Pending;

use crate::broker::{Broker, CatalogError};
use crate::topic::Topic;

impl Broker {
    /// A future that is ready once all state that was written so far ([`Broker::commit_offsets`],
    /// [`Broker::keep`]) is synced, so that no power loss takes it back. One group commit serves
    /// all who wait.
    ///
    /// # Errors
    /// The journal has failed.
    pub fn state_synced(&self) -> Result<Pending, CatalogError> {
        let journal = self.shared.log.journal();
        // Nothing is appended: the position is that of the last entry.
        match journal.append(&[]) {
            Ok(position) => Ok(journal.wait_synced(position)),
            Err(error) => Err(CatalogError::Log {
                reason: error.to_string(),
            }),
        }
    }

    /// Milliseconds since the Unix epoch, by the broker's clock: what committed offsets are stamped
    /// with.
    pub fn now_ms(&self) -> u64 {
        self.shared.clock.now_ms()
    }

    /// The same in microseconds.
    pub fn now_us(&self) -> u64 {
        self.shared.clock.now_us()
    }

    /// All topics, those too that users do not see, in no order.
    pub fn all_topics(&self) -> Vec<Arc<Topic>> {
        self.shared.all_topics()
    }

    /// Whether [`Broker::close`] has begun: topics that are gone then were not deleted.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}
