//! JoinGroup: members join and rejoin.

use uuid::Uuid;

use super::group::{ClockReading, Group, GroupLimits, GroupState};
use super::member::Member;
use super::reply::{JoinAnswer, JoinRequest};
use super::store::{AfterWrite, RecordWrite};
use crate::answer::Promise;
use crate::error_code::ErrorCode;

impl Group {
    /// Handles a JoinGroup.
    pub(crate) fn join(
        &mut self,
        join: JoinRequest,
        promise: Promise<JoinAnswer>,
        limits: &GroupLimits,
        at: ClockReading,
    ) {
        if let Err((member_id, error)) = self.check_join(&join, limits) {
            promise.keep(JoinAnswer::refused(&member_id, error));
            return;
        }
        if join.member_id.is_empty() {
            self.join_new(join, promise, limits, at);
        } else if self.pending.contains_key(&join.member_id) {
            let id = join.member_id.clone();
            self.add_and_rebalance(join, id, promise, limits, at);
        } else {
            self.join_again(join, promise, limits, at);
        }
    }

    /// Checks a JoinGroup. The error comes with the member id that the answer returns to the
    /// client.
    fn check_join(
        &mut self,
        join: &JoinRequest,
        limits: &GroupLimits,
    ) -> Result<(), (String, ErrorCode)> {
        let id = &join.member_id;
        if !self.accepts_member(id, limits) {
            self.remove(id);
            return Err((String::new(), ErrorCode::GroupMaxSizeReached));
        }
        let before = self.members.get(id).map_or(0, Member::bytes);
        if join.bytes() > limits.member_bytes_max
            || self.bytes() - before + join.bytes() > limits.group_bytes_max
        {
            return Err((id.clone(), ErrorCode::MessageTooLarge));
        }
        if self.state == GroupState::Dead {
            return Err((id.clone(), ErrorCode::CoordinatorNotAvailable));
        }
        let names = join.protocols.iter().map(|protocol| protocol.name.as_str());
        if !self.supports(&join.protocol_type, names) {
            return Err((id.clone(), ErrorCode::InconsistentGroupProtocol));
        }
        if self.pending.contains_key(id) {
            // Only dynamic members get pending ids, so a static one cannot have this id.
            return match join.instance {
                Some(_) => Err((id.clone(), ErrorCode::UnknownMemberId)),
                None => Ok(()),
            };
        }
        if !id.is_empty() {
            self.check_member(id, join.instance.as_deref())
                .map_err(|error| (id.clone(), error))?;
        }
        Ok(())
    }

    fn accepts_member(&self, id: &str, limits: &GroupLimits) -> bool {
        let is_pending_full = id.is_empty() && self.pending.len() >= limits.members_max;
        match self.state {
            GroupState::Empty | GroupState::Dead => !is_pending_full,
            // Accepts members that wait in a JoinGroup already, and others up to the limit. If the
            // limit was lowered, the members that rejoin last are removed.
            GroupState::PreparingRebalance => {
                let waits = self.members.get(id).is_some_and(|m| m.joining.is_some());
                waits || (!is_pending_full && self.joining() < limits.members_max)
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                let has_room = !is_pending_full && self.members.len() < limits.members_max;
                self.members.contains_key(id) || has_room
            }
        }
    }

    fn join_new(
        &mut self,
        join: JoinRequest,
        promise: Promise<JoinAnswer>,
        limits: &GroupLimits,
        at: ClockReading,
    ) {
        let prefix = join.instance.as_deref().unwrap_or(&join.client_id);
        let id = format!("{prefix}-{}", Uuid::new_v4());
        let known = join
            .instance
            .as_ref()
            .and_then(|name| self.static_ids.get(name));
        if let Some(old) = known.cloned() {
            self.replace(join, &old, id, promise, limits, at);
        } else if join.instance.is_none() && join.needs_member_id {
            tracing::debug!(group = %self.name, member = %id, "a member is to come again");
            self.add_pending(id.clone(), at.ms.saturating_add(join.session_timeout_ms));
            promise.keep(JoinAnswer::refused(&id, ErrorCode::MemberIdRequired));
        } else {
            self.add_and_rebalance(join, id, promise, limits, at);
        }
    }

    fn add_and_rebalance(
        &mut self,
        join: JoinRequest,
        id: String,
        promise: Promise<JoinAnswer>,
        limits: &GroupLimits,
        at: ClockReading,
    ) {
        let reason = format!("member {id} joins, its reason: {}", join.reason());
        if self.state == GroupState::PreparingRebalance && self.previous == GroupState::Empty {
            self.new_member_added = true;
        }
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type);
        }
        let due_ms = at.ms.saturating_add(limits.new_member_timeout_ms);
        let member = Member {
            id,
            instance: join.instance,
            client_id: join.client_id,
            client_host: join.client_host,
            rebalance_timeout_ms: join.rebalance_timeout_ms,
            session_timeout_ms: join.session_timeout_ms,
            protocols: join.protocols,
            assignment: bytes::Bytes::new(),
            is_new: true,
            session_due_ms: Some(due_ms),
            joining: None,
            syncing: None,
        };
        self.note_timeout(due_ms);
        self.add(member, Some(promise));
        self.rebalance(&reason, limits, at);
    }

    /// Handles the JoinGroup of a known member.
    fn join_again(
        &mut self,
        join: JoinRequest,
        promise: Promise<JoinAnswer>,
        limits: &GroupLimits,
        at: ClockReading,
    ) {
        let id = join.member_id.clone();
        let Some(member) = self.members.get(&id) else {
            return promise.keep(JoinAnswer::refused(&id, ErrorCode::UnknownMemberId));
        };
        let is_unchanged = member.protocols == join.protocols;
        let reason = match self.state {
            GroupState::PreparingRebalance => "member joins again",
            // The member may have missed the answer to its JoinGroup, or is a follower that rejoins
            // without a change. It gets the current generation again.
            GroupState::CompletingRebalance if is_unchanged => {
                return promise.keep(self.joined(&id));
            }
            GroupState::Stable if is_unchanged && !self.is_leader(&id) => {
                let mut joined = self.joined(&id);
                joined.members.clear();
                return promise.keep(joined);
            }
            // A leader that rejoins may know of changes that its metadata does not show, such as
            // new partitions.
            GroupState::Stable if self.is_leader(&id) => "the leader joins again",
            GroupState::CompletingRebalance | GroupState::Stable => "a member's metadata changed",
            GroupState::Empty | GroupState::Dead => {
                return promise.keep(JoinAnswer::refused(&id, ErrorCode::UnknownMemberId));
            }
        };
        let reason = format!("{reason}: {id}, its reason: {}", join.reason());
        self.update(&id, join, promise);
        self.rebalance(&reason, limits, at);
    }

    fn update(&mut self, id: &str, join: JoinRequest, promise: Promise<JoinAnswer>) {
        self.change(id, |member| {
            member.protocols = join.protocols;
            member.rebalance_timeout_ms = join.rebalance_timeout_ms;
            member.session_timeout_ms = join.session_timeout_ms;
        });
        self.wait_in_join(id, promise);
    }

    /// A static member has restarted: it gets a new id, and keeps its place and its assignment.
    fn replace(
        &mut self,
        join: JoinRequest,
        old_id: &str,
        new_id: String,
        promise: Promise<JoinAnswer>,
        limits: &GroupLimits,
        at: ClockReading,
    ) {
        tracing::info!(
            group = %self.name, old = %old_id, new = %new_id, "a static member has restarted"
        );
        let leader_before = self.leader.clone().unwrap_or_default();
        let skips_assignment = join.skips_assignment;
        let reason = join.reason().to_owned();
        let Some(old) = self.replace_id(old_id, &new_id) else {
            return promise.keep(JoinAnswer::refused("", ErrorCode::UnknownMemberId));
        };
        self.update(&new_id, join, promise);
        self.renew_session(&new_id, at);
        match self.state {
            GroupState::Stable if self.select_protocol() == self.protocol => {
                let after_write = AfterWrite::Swap {
                    generation: self.generation,
                    new_id,
                    old,
                    leader_before,
                    skips_assignment,
                };
                let value = self.encode(None);
                self.pending_writes
                    .push(RecordWrite::new(value, after_write));
            }
            GroupState::Stable => {
                let reason = format!("a static member changes the protocol, its reason: {reason}");
                self.rebalance(&reason, limits, at);
            }
            // The leader may know the old id only, and its assignment would not reach the new one.
            GroupState::CompletingRebalance => {
                let reason = format!("a static member has restarted, its reason: {reason}");
                self.prepare(&reason, limits, at);
            }
            GroupState::PreparingRebalance | GroupState::Empty | GroupState::Dead => {
                self.complete_join_if_all_joined(at);
            }
        }
    }

    /// Gives a static member a new id. Waiting requests of the old id are answered with
    /// FENCED_INSTANCE_ID. Returns the former values, which are needed to undo the change.
    pub(super) fn replace_id(&mut self, old_id: &str, new_id: &str) -> Option<Box<FormerMember>> {
        self.answer_join(old_id, |id| {
            JoinAnswer::refused(id, ErrorCode::FencedInstanceId)
        });
        let mut member = self.detach(old_id)?;
        member.refuse_sync(ErrorCode::FencedInstanceId);
        let former = FormerMember {
            id: old_id.to_owned(),
            protocols: member.protocols.clone(),
            rebalance_timeout_ms: member.rebalance_timeout_ms,
            session_timeout_ms: member.session_timeout_ms,
        };
        if self.is_leader(old_id) {
            self.leader = Some(new_id.to_owned());
        }
        if self.unsynced.remove(old_id) {
            self.unsynced.insert(new_id.to_owned());
        }
        member.id = new_id.to_owned();
        member.is_new = false;
        self.add(member, None);
        Some(Box::new(former))
    }
}

/// A static member as it was before it restarted.
#[derive(Debug)]
pub(crate) struct FormerMember {
    pub(super) id: String,
    pub(super) protocols: Vec<super::member::GroupProtocol>,
    pub(super) rebalance_timeout_ms: u64,
    pub(super) session_timeout_ms: u64,
}
