//! For protocols that keep state here: when it is synced, and what time it is.

use cloverleaf_log::Pending;

use crate::broker::{Broker, CatalogError};

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
}
