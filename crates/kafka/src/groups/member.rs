//! One member of a group, and what it waits for.

use bytes::Bytes;

use super::reply::{Joined, Synced};
use crate::answer::Promise;
use crate::error_code::ErrorCode;

/// A way of assigning partitions that a member knows, with the member's own data for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Protocol {
    /// Its name, such as `range` or `cooperative-sticky`.
    pub(crate) name: String,
    /// Opaque to the broker: for consumers, the topics they subscribe to and more.
    pub(crate) metadata: Bytes,
}

/// A member of a group. Times are milliseconds of a monotonic clock.
pub(crate) struct Member {
    /// Given by us, known to this member alone.
    pub(crate) id: String,
    /// The name of a static member (`group.instance.id`), which survives its restarts.
    pub(crate) instance: Option<String>,
    /// The client's name for itself.
    pub(crate) client_id: String,
    /// Its address.
    pub(crate) client_host: String,
    /// How long a rebalance waits for this member.
    pub(crate) rebalance_timeout_ms: u64,
    /// How long it may be silent.
    pub(crate) session_timeout_ms: u64,
    /// The protocols that it knows, in its own order of preference.
    pub(crate) protocols: Vec<Protocol>,
    /// The assignment that the leader gave it.
    pub(crate) assignment: Bytes,
    /// It does not know its own id yet, so it cannot send heartbeats.
    pub(crate) is_new: bool,
    /// When it counts as dead. `None`: not before something else happens.
    pub(crate) session_due_ms: Option<u64>,
    /// The JoinGroup that waits for the rebalance. Set through [`super::group::Group`], which
    /// counts them.
    pub(super) joining: Option<Promise<Joined>>,
    /// The SyncGroup that waits for the leader.
    pub(super) syncing: Option<Promise<Synced>>,
}

impl Member {
    /// The bytes that it occupies in memory, roughly, and in the journal.
    pub(super) fn bytes(&self) -> usize {
        let own = self.id.len() * 2 + self.client_id.len() + self.client_host.len();
        let instance = self.instance.as_ref().map_or(0, |name| name.len() * 2);
        own + instance + protocols_bytes(&self.protocols) + self.assignment.len() + MEMBER_BYTES
    }

    /// A member that waits for an answer need not send heartbeats; a new one cannot, and is bounded
    /// by a timeout of its own.
    pub(super) fn has_satisfied_heartbeat(&self) -> bool {
        !self.is_new && (self.joining.is_some() || self.syncing.is_some())
    }

    /// Its data for a protocol.
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols
            .iter()
            .find(|known| known.name == protocol)
            .map(|known| known.metadata.clone())
            .unwrap_or_default()
    }

    /// The SyncGroup is answered, if there is one.
    pub(super) fn answer_sync(&mut self, synced: impl FnOnce() -> Synced) -> bool {
        match self.syncing.take() {
            Some(promise) => {
                promise.keep(synced());
                true
            }
            None => false,
        }
    }

    /// The SyncGroup fails, if there is one.
    pub(super) fn refuse_sync(&mut self, error: ErrorCode) -> bool {
        self.answer_sync(|| Synced::refused(error))
    }
}

/// The bytes that a member costs beside its strings.
pub(super) const MEMBER_BYTES: usize = 256;

/// The bytes that these occupy.
pub(super) fn protocols_bytes(protocols: &[Protocol]) -> usize {
    let one = |protocol: &Protocol| protocol.name.len() + protocol.metadata.len() + 64;
    protocols.iter().map(one).sum()
}
