//! One member of a group, and the requests in which it waits.

use bytes::Bytes;

use super::reply::{JoinAnswer, SyncAnswer};
use crate::answer::Promise;
use crate::error_code::ErrorCode;

/// An assignment protocol that a member supports, with the member's metadata for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupProtocol {
    /// Its name, such as `range` or `cooperative-sticky`.
    pub(crate) name: String,
    /// For consumers, the topics that they subscribe to and more. Opaque to the coordinator
    /// otherwise.
    pub(crate) metadata: Bytes,
}

/// A member of a group. Times are milliseconds of a monotonic clock.
pub(crate) struct Member {
    /// The member id, which the broker assigned.
    pub(crate) id: String,
    /// The `group.instance.id` of a static member, which survives its restarts.
    pub(crate) instance: Option<String>,
    /// The client's `client.id`.
    pub(crate) client_id: String,
    /// The client's address, after a slash.
    pub(crate) client_host: String,
    /// How long a rebalance waits for this member, in milliseconds.
    pub(crate) rebalance_timeout_ms: u64,
    /// How long it may send no heartbeat, in milliseconds.
    pub(crate) session_timeout_ms: u64,
    /// The protocols that it supports, in its order of preference.
    pub(crate) protocols: Vec<GroupProtocol>,
    /// Its assignment, which the leader made.
    pub(crate) assignment: Bytes,
    /// The member does not know its id yet, so it cannot send heartbeats.
    pub(crate) is_new: bool,
    /// When its session expires, in milliseconds. `None`: the timeout is not running, because the
    /// member waits for an answer or was just loaded.
    pub(crate) session_due_ms: Option<u64>,
    /// The JoinGroup that waits for the rebalance. Only [`super::group::Group`] sets it, because it
    /// counts them.
    pub(super) joining: Option<Promise<JoinAnswer>>,
    /// The SyncGroup that waits for the leader.
    pub(super) syncing: Option<Promise<SyncAnswer>>,
}

impl Member {
    /// Approximate bytes in memory and in the journal.
    pub(super) fn bytes(&self) -> usize {
        let own = self.id.len() * 2 + self.client_id.len() + self.client_host.len();
        let instance = self.instance.as_ref().map_or(0, |name| name.len() * 2);
        own + instance + protocols_bytes(&self.protocols) + self.assignment.len() + MEMBER_BYTES
    }

    /// Whether the member is alive without heartbeats, because it waits for an answer. A new member
    /// is excepted: it has a timeout of its own.
    pub(super) fn has_satisfied_heartbeat(&self) -> bool {
        !self.is_new && (self.joining.is_some() || self.syncing.is_some())
    }

    /// Its metadata for a protocol.
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols
            .iter()
            .find(|known| known.name == protocol)
            .map(|known| known.metadata.clone())
            .unwrap_or_default()
    }

    /// Answers the waiting SyncGroup. Returns whether there was one.
    pub(super) fn answer_sync(&mut self, synced: impl FnOnce() -> SyncAnswer) -> bool {
        match self.syncing.take() {
            Some(promise) => {
                promise.keep(synced());
                true
            }
            None => false,
        }
    }

    /// Answers the waiting SyncGroup with an error. Returns whether there was one.
    pub(super) fn refuse_sync(&mut self, error: ErrorCode) -> bool {
        self.answer_sync(|| SyncAnswer::refused(error))
    }
}

/// Bytes of a member, apart from its strings.
pub(super) const MEMBER_BYTES: usize = 256;

/// Approximate bytes of these protocols.
pub(super) fn protocols_bytes(protocols: &[GroupProtocol]) -> usize {
    let one = |protocol: &GroupProtocol| protocol.name.len() + protocol.metadata.len() + 64;
    protocols.iter().map(one).sum()
}
