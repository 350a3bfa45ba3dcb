//! The decoded requests of group members, and the answers to them.

use bytes::Bytes;

use super::member::{GroupProtocol, MEMBER_BYTES, protocols_bytes};
use crate::error_code::ErrorCode;

/// A JoinGroup.
#[derive(Debug, Clone)]
pub(crate) struct JoinRequest {
    /// Empty: the member does not have one yet.
    pub(crate) member_id: String,
    pub(crate) instance: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout_ms: u64,
    pub(crate) rebalance_timeout_ms: u64,
    pub(crate) protocol_type: String,
    pub(crate) protocols: Vec<GroupProtocol>,
    /// The client's reason for joining (KIP-800).
    pub(crate) reason: Option<String>,
    /// A member without an id is assigned one and has to rejoin with it (KIP-394, from version 4).
    pub(crate) needs_member_id: bool,
    /// The leader can be told to skip the assignment (KIP-814, from version 9).
    pub(crate) skips_assignment: bool,
}

impl JoinRequest {
    /// Approximate bytes of the member once it has joined.
    pub(super) fn bytes(&self) -> usize {
        let instance = self.instance.as_ref().map_or(0, |name| name.len() * 2);
        let strings = self.member_id.len() + self.client_id.len() * 2 + self.client_host.len();
        MEMBER_BYTES + instance + strings + protocols_bytes(&self.protocols)
    }

    pub(super) fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("not provided")
    }
}

/// The answer to a JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinAnswer {
    pub(crate) error: ErrorCode,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) leader: String,
    pub(crate) skip_assignment: bool,
    pub(crate) member_id: String,
    /// All members in the answer to the leader; none in the answers to the others.
    pub(crate) members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinedMember {
    pub(crate) id: String,
    pub(crate) instance: Option<String>,
    pub(crate) metadata: Bytes,
}

impl JoinAnswer {
    /// An answer with an error.
    pub(crate) fn refused(member_id: &str, error: ErrorCode) -> Self {
        Self {
            error,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: String::new(),
            skip_assignment: false,
            member_id: member_id.to_owned(),
            members: Vec::new(),
        }
    }
}

impl Default for JoinAnswer {
    /// The answer if the promise is dropped without one.
    fn default() -> Self {
        Self::refused("", ErrorCode::CoordinatorNotAvailable)
    }
}

/// A SyncGroup.
#[derive(Debug, Clone)]
pub(crate) struct SyncRequest {
    pub(crate) member_id: String,
    pub(crate) instance: Option<String>,
    pub(crate) generation: i32,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    /// By member id; ignored unless the sender is the leader.
    pub(crate) assignments: Vec<(String, Bytes)>,
}

impl SyncRequest {
    /// The bytes that the assignments will occupy.
    pub(super) fn assignments_bytes(&self) -> usize {
        self.assignments.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

/// The answer to a SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncAnswer {
    pub(crate) error: ErrorCode,
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) assignment: Bytes,
}

impl SyncAnswer {
    /// An answer with an error.
    pub(crate) fn refused(error: ErrorCode) -> Self {
        Self {
            error,
            protocol_type: None,
            protocol: None,
            assignment: Bytes::new(),
        }
    }
}

impl Default for SyncAnswer {
    /// The answer if the promise is dropped without one.
    fn default() -> Self {
        Self::refused(ErrorCode::CoordinatorNotAvailable)
    }
}

/// The sender of a Heartbeat, LeaveGroup or OffsetCommit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MemberIdentity {
    /// Empty: the sender does not know its id, or is not a member.
    pub(crate) member_id: String,
    pub(crate) instance: Option<String>,
}

/// A group as DescribeGroups shows it.
#[derive(Debug, Clone)]
pub(crate) struct GroupDescription {
    pub(crate) state: &'static str,
    pub(crate) protocol_type: String,
    /// The protocol in use; empty unless the group is stable.
    pub(crate) protocol: String,
    pub(crate) members: Vec<DescribedMember>,
}

/// A member as DescribeGroups shows it.
#[derive(Debug, Clone)]
pub(crate) struct DescribedMember {
    pub(crate) id: String,
    pub(crate) instance: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) metadata: Bytes,
    pub(crate) assignment: Bytes,
}
