//! One group: its members and the state of its rebalance.
//!
//! ```text
//!          first member joins                all have joined, or time is up
//!   Empty ───────────────────► Preparing ─────────────────────────► Completing
//!     ▲                        Rebalance                            Rebalance
//!     │   no member is left     │  ▲ ▲                                │   │
//!     └─────────────────────────┘  │ └── a member joins, leaves, dies ─┘   │ the leader's
//!                                  └──────────────────────── Stable ◄──────┘ assignment is kept
//!   Dead: deleted while empty. A request that has found it before is refused, and its client looks
//!   up the coordinator again.
//! ```
//!
//! The rules are those of Kafka's classic group coordinator (`ClassicGroup`,
//! `GroupMetadataManager`). This file has the state and the membership; `join`, `rebalance` and
//! `requests` have the effects of requests and timeouts. The state machine is pure: time is passed
//! in, answers go through promises, and records for the journal are left in `pending_writes`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::member::Member;
use super::reply::{JoinAnswer, JoinedMember, SyncAnswer};
use super::store::RecordWrite;
use super::subscription;
use crate::answer::Promise;
use crate::error_code::ErrorCode;

/// The protocol type of consumers. The broker decodes the topics in their metadata.
pub(crate) const CONSUMER_TYPE: &str = "consumer";

/// The limits of all groups.
#[derive(Debug, Clone)]
pub(crate) struct GroupLimits {
    /// Maximum number of members of a group. Also the maximum number of its pending member ids: ids
    /// that were assigned (KIP-394) to clients that have not rejoined with them yet.
    pub(crate) members_max: usize,
    /// How long the first rebalance of an empty group waits for more members, in milliseconds.
    pub(crate) initial_delay_ms: u64,
    /// Maximum bytes of one member: ids, protocols and their metadata.
    pub(crate) member_bytes_max: usize,
    /// Maximum bytes of a whole group, which must fit an entry of the journal.
    pub(crate) group_bytes_max: usize,
    /// How long the JoinGroup of a new member may wait, in milliseconds. The member does not know
    /// its id, so it cannot send heartbeats, and its connection may be gone (Kafka:
    /// `NewMemberJoinTimeoutMs`).
    pub(crate) new_member_timeout_ms: u64,
}

/// Two clocks, read once per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockReading {
    /// Monotonic, in milliseconds: for timeouts.
    pub(crate) ms: u64,
    /// Milliseconds since 1970, for times that are stored.
    pub(crate) unix_ms: u64,
}

/// The state of a group, as in Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupState {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
    Dead,
}

impl GroupState {
    /// The name that tools show.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }

    fn may_become(self, next: Self) -> bool {
        use GroupState::{CompletingRebalance, Dead, Empty, PreparingRebalance, Stable};
        match next {
            Empty | CompletingRebalance => self == PreparingRebalance,
            PreparingRebalance => matches!(self, Stable | CompletingRebalance | Empty),
            Stable => self == CompletingRebalance,
            Dead => true,
        }
    }
}

/// The timer that ends the join phase at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JoinTimer {
    pub(super) due_ms: u64,
    /// In the first rebalance of an empty group: the length of the current delay, and how much
    /// longer the join phase may still be extended while members keep joining, both in milliseconds
    /// (Kafka: `InitialDelayedJoin`).
    pub(super) initial: Option<(u64, u64)>,
}

/// A group.
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    pub(super) state: GroupState,
    pub(super) previous: GroupState,
    /// When the state was reached, milliseconds since 1970.
    pub(super) since_unix_ms: u64,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) generation: i32,
    pub(super) leader: Option<String>,
    pub(super) members: BTreeMap<String, Member>,
    /// Member ids of static members, by `group.instance.id`.
    pub(super) static_ids: BTreeMap<String, String>,
    /// Pending member ids, which were assigned (KIP-394) to clients that have not rejoined yet, and
    /// the time in milliseconds at which each expires.
    pub(super) pending: BTreeMap<String, u64>,
    /// Members of this generation that have not sent their SyncGroup.
    pub(super) unsynced: BTreeSet<String>,
    /// Number of members that support each protocol.
    supported: BTreeMap<String, usize>,
    /// Number of members that wait in a JoinGroup.
    joining: usize,
    /// Topics that the members of this generation subscribe to; `None`: not known.
    pub(super) topics: Option<BTreeSet<String>>,
    pub(super) new_member_added: bool,
    pub(super) join_timer: Option<JoinTimer>,
    pub(super) sync_due_ms: Option<u64>,
    /// Records to be written to the journal, in this order.
    pub(super) pending_writes: Vec<RecordWrite>,
    /// The journal has a record of the group.
    pub(super) is_stored: bool,
    /// A lower bound of the next timeout, in milliseconds; `u64::MAX`: none.
    pub(super) due_hint_ms: u64,
    bytes: usize,
}

impl Group {
    /// An empty group.
    pub(crate) fn new(name: Arc<str>, unix_ms: u64) -> Self {
        Self {
            bytes: name.len() * 2 + GROUP_BYTES,
            name,
            state: GroupState::Empty,
            previous: GroupState::Dead,
            since_unix_ms: unix_ms,
            protocol_type: None,
            protocol: None,
            generation: 0,
            leader: None,
            members: BTreeMap::new(),
            static_ids: BTreeMap::new(),
            pending: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            supported: BTreeMap::new(),
            joining: 0,
            topics: None,
            new_member_added: false,
            join_timer: None,
            sync_due_ms: None,
            pending_writes: Vec::new(),
            is_stored: false,
            due_hint_ms: u64::MAX,
        }
    }

    /// The current state.
    pub(crate) fn state(&self) -> GroupState {
        self.state
    }

    /// The protocol type of its members, mostly `consumer`; empty if it never had members.
    pub(crate) fn protocol_type(&self) -> &str {
        self.protocol_type.as_deref().unwrap_or_default()
    }

    /// Approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn transition(&mut self, next: GroupState, at: ClockReading) {
        debug_assert!(self.state.may_become(next), "{:?} → {next:?}", self.state);
        self.previous = self.state;
        self.state = next;
        self.since_unix_ms = at.unix_ms;
    }

    /// Notes that a timeout is due at `due_ms`.
    pub(super) fn note_timeout(&mut self, due_ms: u64) {
        self.due_hint_ms = self.due_hint_ms.min(due_ms);
    }

    /// Restarts the member's session timeout.
    pub(super) fn renew_session(&mut self, id: &str, at: ClockReading) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        let due_ms = at.ms.saturating_add(member.session_timeout_ms);
        member.session_due_ms = Some(due_ms);
        self.note_timeout(due_ms);
    }

    /// Adds a member, and the JoinGroup in which it waits.
    pub(super) fn add(&mut self, mut member: Member, promise: Option<Promise<JoinAnswer>>) {
        if let Some(instance) = &member.instance {
            self.static_ids.insert(instance.clone(), member.id.clone());
        }
        if self.leader.is_none() {
            self.leader = Some(member.id.clone());
        }
        self.forget_pending(&member.id);
        self.count_protocols(&member, true);
        self.bytes += member.bytes();
        self.joining += usize::from(promise.is_some());
        member.joining = promise;
        self.members.insert(member.id.clone(), member);
    }

    /// Removes a member or a pending id. Its waiting requests are answered with UNKNOWN_MEMBER_ID.
    pub(super) fn remove(&mut self, id: &str) {
        self.answer_join(id, |_| JoinAnswer::refused("", ErrorCode::UnknownMemberId));
        if let Some(mut member) = self.members.remove(id) {
            member.refuse_sync(ErrorCode::UnknownMemberId);
            self.bytes -= member.bytes();
            self.count_protocols(&member, false);
            if let Some(instance) = &member.instance {
                self.static_ids.remove(instance);
            }
        }
        if self.leader.as_deref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
        self.unsynced.remove(id);
        self.forget_pending(id);
    }

    /// Removes a member without answering its requests, to replace it by another one.
    pub(super) fn detach(&mut self, id: &str) -> Option<Member> {
        let member = self.members.remove(id)?;
        debug_assert!(member.joining.is_none());
        self.bytes -= member.bytes();
        self.count_protocols(&member, false);
        Some(member)
    }

    /// Changes a member and updates the counts.
    pub(super) fn change(&mut self, id: &str, change: impl FnOnce(&mut Member)) {
        let Some(mut member) = self.members.remove(id) else {
            return;
        };
        self.bytes -= member.bytes();
        self.count_protocols(&member, false);
        change(&mut member);
        self.count_protocols(&member, true);
        self.bytes += member.bytes();
        self.members.insert(id.to_owned(), member);
    }

    fn count_protocols(&mut self, member: &Member, more: bool) {
        for protocol in &member.protocols {
            let count = self.supported.entry(protocol.name.clone()).or_default();
            if more {
                *count += 1;
            } else {
                *count -= 1;
            }
            if *count == 0 {
                self.supported.remove(&protocol.name);
            }
        }
    }

    /// Makes the member wait in this JoinGroup. An earlier one of the same member is answered with
    /// REBALANCE_IN_PROGRESS.
    pub(super) fn wait_in_join(&mut self, id: &str, promise: Promise<JoinAnswer>) {
        self.answer_join(id, |id| {
            JoinAnswer::refused(id, ErrorCode::RebalanceInProgress)
        });
        if let Some(member) = self.members.get_mut(id) {
            member.joining = Some(promise);
            self.joining += 1;
        }
    }

    /// Answers the JoinGroup in which the member waits. Returns whether there was one.
    pub(super) fn answer_join(
        &mut self,
        id: &str,
        joined: impl FnOnce(&str) -> JoinAnswer,
    ) -> bool {
        let Some(promise) = self.members.get_mut(id).and_then(|m| m.joining.take()) else {
            return false;
        };
        self.joining -= 1;
        promise.keep(joined(id));
        true
    }

    /// Answers all requests that wait for other members with COORDINATOR_NOT_AVAILABLE, so that the
    /// clients retry.
    pub(super) fn end_waits(&mut self) {
        let ids: Vec<_> = self.members.keys().cloned().collect();
        for id in ids {
            let error = ErrorCode::CoordinatorNotAvailable;
            self.answer_join(&id, |id| JoinAnswer::refused(id, error));
            if let Some(promise) = self.members.get_mut(&id).and_then(|m| m.syncing.take()) {
                promise.keep(SyncAnswer::refused(error));
            }
        }
    }

    pub(super) fn add_pending(&mut self, id: String, due_ms: u64) {
        self.bytes += id.len() + PENDING_BYTES;
        self.pending.insert(id, due_ms);
        self.note_timeout(due_ms);
    }

    pub(super) fn forget_pending(&mut self, id: &str) {
        if self.pending.remove(id).is_some() {
            self.bytes -= id.len() + PENDING_BYTES;
        }
    }

    /// Counts a member's bytes as [`Group::add`] does.
    #[cfg(test)]
    pub(super) fn bytes_for_test(&mut self, member: &Member) {
        self.bytes += member.bytes();
    }

    pub(super) fn joining(&self) -> usize {
        self.joining
    }

    pub(super) fn all_joined(&self) -> bool {
        self.members.len() == self.joining && self.pending.is_empty()
    }

    pub(super) fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// How long a rebalance waits, in milliseconds: the longest rebalance timeout of all members.
    pub(super) fn rebalance_timeout_ms(&self) -> u64 {
        let timeouts = self.members.values().map(|m| m.rebalance_timeout_ms);
        timeouts.max().unwrap_or(0)
    }

    /// Whether a member with this protocol type and these protocols could be in the group.
    pub(super) fn supports<'a>(
        &self,
        protocol_type: &str,
        mut protocols: impl Iterator<Item = &'a str>,
    ) -> bool {
        if self.state == GroupState::Empty {
            return !protocol_type.is_empty() && protocols.next().is_some();
        }
        let known = |name: &str| self.supported.get(name).copied().unwrap_or(0);
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.any(|name| known(name) == self.members.len())
    }

    /// The protocol that all members support and most of them prefer.
    pub(super) fn select_protocol(&self) -> Option<String> {
        let is_candidate = |name: &str| self.supported.get(name) == Some(&self.members.len());
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let mut names = member.protocols.iter().map(|p| p.name.as_str());
            if let Some(vote) = names.find(|name| is_candidate(name)) {
                *votes.entry(vote).or_default() += 1;
            }
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(name, _)| name.to_owned())
    }

    /// Checks that `id` is a member, and the current one of its `group.instance.id`, if it has one.
    pub(super) fn check_member(&self, id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.static_ids.get(instance) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(current) if current != id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(id) {
            Ok(())
        } else {
            Err(ErrorCode::UnknownMemberId)
        }
    }

    /// The answer to a JoinGroup, with the current generation.
    pub(super) fn joined(&self, id: &str) -> JoinAnswer {
        JoinAnswer {
            error: ErrorCode::None,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            member_id: id.to_owned(),
            members: if self.is_leader(id) {
                self.member_list()
            } else {
                Vec::new()
            },
        }
    }

    fn member_list(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        self.members
            .values()
            .map(|member| JoinedMember {
                id: member.id.clone(),
                instance: member.instance.clone(),
                metadata: member.metadata(protocol),
            })
            .collect()
    }

    /// Decodes the topics that the members subscribe to from their metadata.
    pub(super) fn find_topics(&self) -> Option<BTreeSet<String>> {
        if self.protocol_type.as_deref() != Some(CONSUMER_TYPE) {
            return None;
        }
        let mut topics = BTreeSet::new();
        let Some(protocol) = &self.protocol else {
            return self.members.is_empty().then_some(topics);
        };
        for member in self.members.values() {
            topics.extend(subscription::topics(&member.metadata(protocol))?);
        }
        Some(topics)
    }
}

/// Bytes of a group, apart from its name and members.
const GROUP_BYTES: usize = 512;

/// Bytes of a pending id, apart from its text.
const PENDING_BYTES: usize = 64;
