//! SyncGroup, Heartbeat, LeaveGroup, and a group's part in OffsetCommit and admin requests.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::group::{At, CONSUMER_TYPE, Group, Limits, State};
use super::reply::{DescribedMember, Description, Identity, Joined, Sync, Synced};
use super::store::{Effect, Ticket};
use crate::answer::Promise;
use crate::error_code::ErrorCode;

impl Group {
    /// Handles a SyncGroup: a member asks for its assignment, and the leader sends all assignments.
    pub(crate) fn sync(&mut self, sync: Sync, promise: Promise<Synced>, limits: &Limits) {
        if let Err(error) = self.check_sync(&sync) {
            return promise.keep(Synced::refused(error));
        }
        let id = sync.member_id.clone();
        match self.state {
            State::PreparingRebalance => {
                promise.keep(Synced::refused(ErrorCode::RebalanceInProgress));
            }
            State::CompletingRebalance => {
                let is_leader = self.is_leader(&id);
                if is_leader && !self.fits(&sync, limits) {
                    return promise.keep(Synced::refused(ErrorCode::MessageTooLarge));
                }
                if let Some(member) = self.members.get_mut(&id) {
                    member.refuse_sync(ErrorCode::RebalanceInProgress);
                    member.syncing = Some(promise);
                }
                self.has_synced(&id);
                if is_leader {
                    self.keep_assignments(sync.assignments);
                }
            }
            State::Stable => {
                self.has_synced(&id);
                promise.keep(self.synced(&id));
            }
            State::Empty | State::Dead => {
                promise.keep(Synced::refused(ErrorCode::UnknownMemberId));
            }
        }
    }

    fn check_sync(&self, sync: &Sync) -> Result<(), ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(&sync.member_id, sync.instance.as_deref())?;
        if sync.generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        let differ = |told: &Option<String>, known: &Option<String>| match (told, known) {
            (Some(told), Some(known)) => told != known,
            _ => false,
        };
        if differ(&sync.protocol_type, &self.protocol_type)
            || differ(&sync.protocol, &self.protocol)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn fits(&self, sync: &Sync, limits: &Limits) -> bool {
        let before: usize = self.members.values().map(|m| m.assignment.len()).sum();
        self.bytes() - before + sync.assignments_bytes() <= limits.group_bytes_max
    }

    fn has_synced(&mut self, id: &str) {
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
        let ticket = Ticket::Assignments {
            generation: self.generation,
            assignments,
        };
        self.effects.push(Effect::keep(value, ticket));
    }

    fn synced(&self, id: &str) -> Synced {
        Synced {
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
    pub(crate) fn stored(
        &mut self,
        ticket: Ticket,
        outcome: Result<(), ErrorCode>,
        limits: &Limits,
        at: At,
    ) {
        match ticket {
            Ticket::Nothing => {}
            // If members have joined or left meanwhile, the next rebalance answers the requests.
            Ticket::Assignments {
                generation,
                assignments,
            } => {
                if self.state == State::CompletingRebalance && self.generation == generation {
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
            Ticket::Swap {
                generation,
                new_id,
                old,
                leader_before,
                skips_assignment,
            } => {
                if self.state != State::Stable || self.generation != generation {
                    return;
                }
                if let Err(error) = outcome {
                    self.answer_join(&new_id, |_| Joined::refused("", error));
                    let old_id = old.id.clone();
                    self.change(&new_id, |member| {
                        member.protocols = old.protocols;
                        member.rebalance_timeout_ms = old.rebalance_timeout_ms;
                        member.session_timeout_ms = old.session_timeout_ms;
                    });
                    self.swap(&new_id, &old_id);
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

    fn hand_out(&mut self, assignments: &BTreeMap<String, Bytes>, at: At) {
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
        self.transition(State::Stable, at);
    }

    /// Handles a Heartbeat.
    pub(crate) fn heartbeat(&mut self, who: &Identity, generation: i32, at: At) -> ErrorCode {
        if self.state == State::Dead {
            return ErrorCode::CoordinatorNotAvailable;
        }
        if let Err(error) = self.check_member(&who.member_id, who.instance.as_deref()) {
            return error;
        }
        if generation != self.generation {
            return ErrorCode::IllegalGeneration;
        }
        match self.state {
            State::Empty | State::Dead => ErrorCode::UnknownMemberId,
            State::PreparingRebalance => {
                self.renew_session(&who.member_id, at);
                ErrorCode::RebalanceInProgress
            }
            State::CompletingRebalance | State::Stable => {
                self.renew_session(&who.member_id, at);
                ErrorCode::None
            }
        }
    }

    /// Handles a LeaveGroup. Each member has a reason.
    pub(crate) fn leave(
        &mut self,
        members: &[(Identity, Option<String>)],
        limits: &Limits,
        at: At,
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let leave_one = |(who, reason): &(Identity, Option<String>)| {
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
                State::Stable | State::CompletingRebalance => {
                    self.rebalance("members have left", limits, at);
                }
                State::PreparingRebalance => self.complete_join_if_all_joined(at),
                State::Empty | State::Dead => {}
            }
        }
        Ok(errors)
    }

    fn leave_one(&mut self, who: &Identity) -> ErrorCode {
        if who.member_id.is_empty() {
            // An administrator removes a static member by its `group.instance.id`.
            let known = who
                .instance
                .as_ref()
                .and_then(|name| self.statics.get(name));
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
        who: &Identity,
        generation: i32,
        at: At,
    ) -> Result<(), ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if generation < 0 && self.state == State::Empty {
            // A consumer that assigns its partitions itself, or a tool.
            return Ok(());
        }
        if generation < 0 && who.member_id.is_empty() && who.instance.is_none() {
            return match self.state {
                State::Empty => Ok(()),
                _ => Err(ErrorCode::UnknownMemberId),
            };
        }
        self.check_member(&who.member_id, who.instance.as_deref())?;
        if generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        if self.state == State::CompletingRebalance {
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
            State::Dead => Err(ErrorCode::GroupIdNotFound),
            State::Empty => Ok(()),
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
    pub(crate) fn delete(&mut self, at: At) -> Result<(), ErrorCode> {
        match self.state {
            State::Dead => Err(ErrorCode::GroupIdNotFound),
            State::Empty => {
                self.bury(at);
                Ok(())
            }
            _ => Err(ErrorCode::NonEmptyGroup),
        }
    }

    /// Undoes [`Group::delete`], because the deletion could not be written to the journal.
    pub(crate) fn revive(&mut self) {
        if self.state == State::Dead {
            self.state = State::Empty;
        }
    }

    /// Whether the group may be deleted once it has no offsets.
    pub(crate) fn is_unused(&self) -> bool {
        self.state == State::Empty && self.pending.is_empty()
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
            State::Empty => Some(self.since_unix_ms),
            State::Stable if self.topics.is_some() => Some(committed_ms),
            _ => None,
        }
    }

    /// The group as DescribeGroups shows it.
    pub(crate) fn describe(&self) -> Description {
        let is_stable = self.state == State::Stable;
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
        Description {
            state: self.state.name(),
            protocol_type: self.protocol_type().to_owned(),
            members: members.collect(),
            protocol,
        }
    }
}
