//! SyncGroup, Heartbeat, LeaveGroup, and a group's part in OffsetCommit and admin requests.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::group::{CONSUMER_TYPE, ClockReading, Group, GroupLimits, GroupState};
use super::reply::{
    DescribedMember, GroupDescription, JoinAnswer, MemberIdentity, SyncAnswer, SyncRequest,
};
use super::store::{AfterWrite, RecordWrite};
use crate::answer::Promise;
use crate::error_code::ErrorCode;

impl Group {
    /// Handles a SyncGroup: a member asks for its assignment, and the leader sends all assignments.
    pub(crate) fn sync(
        &mut self,
        sync: SyncRequest,
        promise: Promise<SyncAnswer>,
        limits: &GroupLimits,
    ) {
        if let Err(error) = self.check_sync(&sync) {
            return promise.keep(SyncAnswer::refused(error));
        }
        let id = sync.member_id.clone();
        match self.state {
            GroupState::PreparingRebalance => {
                promise.keep(SyncAnswer::refused(ErrorCode::RebalanceInProgress));
            }
            GroupState::CompletingRebalance => {
                let is_leader = self.is_leader(&id);
                if is_leader && !self.fits(&sync, limits) {
                    return promise.keep(SyncAnswer::refused(ErrorCode::MessageTooLarge));
                }
                if let Some(member) = self.members.get_mut(&id) {
                    member.refuse_sync(ErrorCode::RebalanceInProgress);
                    member.syncing = Some(promise);
                }
                self.note_synced(&id);
                if is_leader {
                    self.keep_assignments(sync.assignments);
                }
            }
            GroupState::Stable => {
                self.note_synced(&id);
                promise.keep(self.synced(&id));
            }
            GroupState::Empty | GroupState::Dead => {
                promise.keep(SyncAnswer::refused(ErrorCode::UnknownMemberId));
            }
        }
    }

    fn check_sync(&self, sync: &SyncRequest) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(&sync.member_id, sync.instance.as_deref())?;
        if sync.generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        let differ = |sent: &Option<String>, known: &Option<String>| match (sent, known) {
            (Some(sent), Some(known)) => sent != known,
            _ => false,
        };
        if differ(&sync.protocol_type, &self.protocol_type)
            || differ(&sync.protocol, &self.protocol)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn fits(&self, sync: &SyncRequest, limits: &GroupLimits) -> bool {
        let before: usize = self.members.values().map(|m| m.assignment.len()).sum();
        self.bytes() - before + sync.assignments_bytes() <= limits.group_bytes_max
    }

    fn note_synced(&mut self, id: &str) {
        self.unsynced.remove(id);
        if self.unsynced.is_empty() {
            self.sync_due_ms = None;
        }
    }

    /// Writes the assignments to the journal before they are handed out, so that a member has the
    /// same one after a restart of the broker.
    fn keep_assignments(&mut self, assignments: Vec<(String, Bytes)>) {
        let mut assignments: BTreeMap<String, Bytes> = assignments.into_iter().collect();
        assignments.retain(|id, _| self.members.contains_key(id));
        let value = self.encode(Some(&assignments));
        let after_write = AfterWrite::Assignments {
            generation: self.generation,
            assignments,
        };
        self.pending_writes
            .push(RecordWrite::new(value, after_write));
    }

    fn synced(&self, id: &str) -> SyncAnswer {
        SyncAnswer {
            error: ErrorCode::None,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: self
                .members
                .get(id)
                .map(|m| m.assignment.clone())
                .unwrap_or_default(),
        }
    }

    /// Continues after a journal write: takes the step that has waited for it.
    pub(crate) fn record_written(
        &mut self,
        after_write: AfterWrite,
        outcome: Result<(), ErrorCode>,
        limits: &GroupLimits,
        at: ClockReading,
    ) {
        match after_write {
            AfterWrite::Nothing => {}
            // If members have joined or left meanwhile, the next rebalance answers the requests.
            AfterWrite::Assignments {
                generation,
                assignments,
            } => {
                if self.state == GroupState::CompletingRebalance && self.generation == generation {
                    match outcome {
                        Ok(()) => self.hand_out(&assignments, at),
                        Err(error) => {
                            self.fail_sync(error, at);
                            let reason = "the assignment cannot be written down";
                            self.rebalance(reason, limits, at);
                        }
                    }
                }
            }
            AfterWrite::Swap {
                generation,
                new_id,
                old,
                leader_before,
                skips_assignment,
            } => {
                if self.state != GroupState::Stable || self.generation != generation {
                    return;
                }
                if let Err(error) = outcome {
                    self.answer_join(&new_id, |_| JoinAnswer::refused("", error));
                    let old_id = old.id.clone();
                    self.change(&new_id, |member| {
                        member.protocols = old.protocols;
                        member.rebalance_timeout_ms = old.rebalance_timeout_ms;
                        member.session_timeout_ms = old.session_timeout_ms;
                    });
                    self.replace_id(&new_id, &old_id);
                    self.renew_session(&old_id, at);
                    return;
                }
                let mut joined = self.joined(&new_id);
                if skips_assignment {
                    joined.skip_assignment = self.is_leader(&new_id);
                } else {
                    // An older client cannot be told to skip the assignment. If it leads, it is
                    // told that its old id is the leader.
                    joined.members.clear();
                    joined.leader = leader_before;
                }
                self.answer_join(&new_id, |_| joined);
                self.renew_session(&new_id, at);
            }
        }
    }

    fn hand_out(&mut self, assignments: &BTreeMap<String, Bytes>, at: ClockReading) {
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let assignment = assignments.get(&id).cloned().unwrap_or_default();
            self.change(&id, |member| member.assignment = assignment);
            let synced = self.synced(&id);
            let member = self.members.get_mut(&id);
            if member.is_some_and(|member| member.answer_sync(|| synced)) {
                self.renew_session(&id, at);
            }
        }
        self.transition(GroupState::Stable, at);
    }

    /// Handles a Heartbeat.
    pub(crate) fn heartbeat(
        &mut self,
        who: &MemberIdentity,
        generation: i32,
        at: ClockReading,
    ) -> ErrorCode {
        if self.state == GroupState::Dead {
            return ErrorCode::CoordinatorNotAvailable;
        }
        if let Err(error) = self.check_member(&who.member_id, who.instance.as_deref()) {
            return error;
        }
        if generation != self.generation {
            return ErrorCode::IllegalGeneration;
        }
        match self.state {
            GroupState::Empty | GroupState::Dead => ErrorCode::UnknownMemberId,
            GroupState::PreparingRebalance => {
                self.renew_session(&who.member_id, at);
                ErrorCode::RebalanceInProgress
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                self.renew_session(&who.member_id, at);
                ErrorCode::None
            }
        }
    }

    /// Handles a LeaveGroup. Each member may give a reason.
    pub(crate) fn leave(
        &mut self,
        members: &[(MemberIdentity, Option<String>)],
        limits: &GroupLimits,
        at: ClockReading,
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let leave_one = |(who, reason): &(MemberIdentity, Option<String>)| {
            let left = self.leave_one(who);
            if left == ErrorCode::None {
                let reason = reason.as_deref().unwrap_or("not provided");
                let id = &who.member_id;
                tracing::info!(group = %self.name, member = %id, reason, "a member leaves");
            }
            left
        };
        let errors: Vec<ErrorCode> = members.iter().map(leave_one).collect();
        if errors.contains(&ErrorCode::None) {
            match self.state {
                GroupState::Stable | GroupState::CompletingRebalance => {
                    self.rebalance("members have left", limits, at);
                }
                GroupState::PreparingRebalance => self.complete_join_if_all_joined(at),
                GroupState::Empty | GroupState::Dead => {}
            }
        }
        Ok(errors)
    }

    fn leave_one(&mut self, who: &MemberIdentity) -> ErrorCode {
        if who.member_id.is_empty() {
            // An administrator removes a static member by its `group.instance.id`.
            let known = who
                .instance
                .as_ref()
                .and_then(|name| self.static_ids.get(name));
            return match known.cloned() {
                Some(id) => {
                    self.remove(&id);
                    ErrorCode::None
                }
                None => ErrorCode::UnknownMemberId,
            };
        }
        if !self.pending.contains_key(&who.member_id)
            && let Err(error) = self.check_member(&who.member_id, who.instance.as_deref())
        {
            return error;
        }
        self.remove(&who.member_id);
        ErrorCode::None
    }

    /// Checks whether the sender may commit offsets. A member's session timeout is restarted.
    pub(crate) fn check_commit(
        &mut self,
        who: &MemberIdentity,
        generation: i32,
        at: ClockReading,
    ) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if generation < 0 && self.state == GroupState::Empty {
            // A consumer that assigns its partitions itself, or a tool.
            return Ok(());
        }
        if generation < 0 && who.member_id.is_empty() && who.instance.is_none() {
            return match self.state {
                GroupState::Empty => Ok(()),
                _ => Err(ErrorCode::UnknownMemberId),
            };
        }
        self.check_member(&who.member_id, who.instance.as_deref())?;
        if generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        if self.state == GroupState::CompletingRebalance {
            // The member knows the generation from its JoinGroup, but must complete its SyncGroup
            // first.
            return Err(ErrorCode::RebalanceInProgress);
        }
        self.renew_session(&who.member_id, at);
        Ok(())
    }

    /// Checks whether a tool may delete offsets of the group.
    pub(crate) fn check_delete_offsets(&self) -> Result<(), ErrorCode> {
        match self.state {
            GroupState::Dead => Err(ErrorCode::GroupIdNotFound),
            GroupState::Empty => Ok(()),
            _ if self.protocol_type() == CONSUMER_TYPE => Ok(()),
            _ => Err(ErrorCode::NonEmptyGroup),
        }
    }

    /// Whether the group's consumers subscribe to this topic. If their subscriptions are not known,
    /// every topic counts.
    pub(crate) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.topics {
            Some(topics) => topics.contains(topic),
            None => self.protocol_type() == CONSUMER_TYPE,
        }
    }

    /// Marks the group as dead, if it has no members.
    pub(crate) fn delete(&mut self, at: ClockReading) -> Result<(), ErrorCode> {
        match self.state {
            GroupState::Dead => Err(ErrorCode::GroupIdNotFound),
            GroupState::Empty => {
                self.mark_dead(at);
                Ok(())
            }
            _ => Err(ErrorCode::NonEmptyGroup),
        }
    }

    /// Undoes [`Group::delete`], because the deletion could not be written to the journal.
    pub(crate) fn revive(&mut self) {
        if self.state == GroupState::Dead {
            self.state = GroupState::Empty;
        }
    }

    /// Whether the group may be deleted once it has no offsets.
    pub(crate) fn is_unused(&self) -> bool {
        self.state == GroupState::Empty && self.pending.is_empty()
    }

    /// Whether the group has never had members, but only committed offsets.
    pub(crate) fn is_simple(&self) -> bool {
        self.protocol_type.is_none() && self.is_unused()
    }

    /// Since when a committed offset is not in use, in milliseconds since 1970. `None`: it is in
    /// use.
    pub(crate) fn unused_since(&self, topic: Option<&str>, committed_ms: u64) -> Option<u64> {
        if self.is_simple() {
            return Some(committed_ms);
        }
        if topic.is_some_and(|topic| self.is_subscribed_to(topic)) {
            return None;
        }
        match self.state {
            GroupState::Empty => Some(self.since_unix_ms),
            GroupState::Stable if self.topics.is_some() => Some(committed_ms),
            _ => None,
        }
    }

    /// The group as DescribeGroups shows it.
    pub(crate) fn describe(&self) -> GroupDescription {
        let is_stable = self.state == GroupState::Stable;
        let protocol = self
            .protocol
            .clone()
            .filter(|_| is_stable)
            .unwrap_or_default();
        let members = self.members.values().map(|member| DescribedMember {
            id: member.id.clone(),
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            metadata: if is_stable {
                member.metadata(&protocol)
            } else {
                Bytes::new()
            },
            assignment: member.assignment.clone(),
        });
        GroupDescription {
            state: self.state.name(),
            protocol_type: self.protocol_type().to_owned(),
            members: members.collect(),
            protocol,
        }
    }
}
