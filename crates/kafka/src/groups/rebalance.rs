//! The rebalance, its phases, and the timeouts of a group.

use super::group::{ClockReading, Group, GroupLimits, GroupState, JoinTimer};
use super::reply::JoinAnswer;
use super::store::{AfterWrite, RecordWrite};
use crate::error_code::ErrorCode;

/// Minimum time in milliseconds until a join phase that no member has joined is checked again.
/// Needed because members may have a rebalance timeout of 0.
const RETRY_MS_MIN: u64 = 100;

impl Group {
    /// Begins a rebalance, or continues the current one.
    pub(super) fn rebalance(&mut self, reason: &str, limits: &GroupLimits, at: ClockReading) {
        match self.state {
            GroupState::Empty | GroupState::CompletingRebalance | GroupState::Stable => {
                self.prepare(reason, limits, at);
            }
            GroupState::PreparingRebalance | GroupState::Dead => {
                self.complete_join_if_all_joined(at)
            }
        }
    }

    /// Begins a rebalance.
    pub(super) fn prepare(&mut self, reason: &str, limits: &GroupLimits, at: ClockReading) {
        if self.state == GroupState::CompletingRebalance {
            self.fail_sync(ErrorCode::RebalanceInProgress, at);
        }
        self.unsynced.clear();
        self.sync_due_ms = None;
        let is_initial = self.state == GroupState::Empty;
        tracing::info!(
            group = %self.name, state = self.state.name(), generation = self.generation, reason,
            "a rebalance begins"
        );
        self.transition(GroupState::PreparingRebalance, at);
        if !is_initial {
            self.complete_join_or_wait(at);
            return;
        }
        let delay_ms = limits.initial_delay_ms;
        if delay_ms == 0 {
            self.complete_join(at);
            return;
        }
        let remaining_ms = self.rebalance_timeout_ms().saturating_sub(delay_ms);
        self.set_join_timer(delay_ms, Some((delay_ms, remaining_ms)), at);
    }

    fn set_join_timer(&mut self, after_ms: u64, initial: Option<(u64, u64)>, at: ClockReading) {
        let due_ms = at.ms.saturating_add(after_ms);
        self.join_timer = Some(JoinTimer { due_ms, initial });
        self.note_timeout(due_ms);
    }

    fn complete_join_or_wait(&mut self, at: ClockReading) {
        if self.all_joined() {
            self.complete_join(at);
        } else {
            self.set_join_timer(self.rebalance_timeout_ms(), None, at);
        }
    }

    /// Ends the join phase once all members have joined. The first rebalance of an empty group is
    /// excepted: it waits for its delay.
    pub(super) fn complete_join_if_all_joined(&mut self, at: ClockReading) {
        let is_preparing = self.state == GroupState::PreparingRebalance;
        if is_preparing && self.previous != GroupState::Empty && self.all_joined() {
            self.complete_join(at);
        }
    }

    /// Ends the join phase: dynamic members that have not rejoined are removed; the others are the
    /// next generation.
    fn complete_join(&mut self, at: ClockReading) {
        debug_assert_eq!(self.state, GroupState::PreparingRebalance);
        self.join_timer = None;
        self.new_member_added = false;
        self.remove_absent();
        let has_leader = self.elect_leader();
        if !has_leader && !self.members.is_empty() {
            // Only static members are left, and none has rejoined. The phase goes on until one
            // rejoins or their sessions expire.
            let after_ms = self.rebalance_timeout_ms().max(RETRY_MS_MIN);
            self.set_join_timer(after_ms, None, at);
            return;
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.unsynced.clear();
        if self.members.is_empty() {
            self.protocol = None;
            self.topics = self.find_topics();
            self.transition(GroupState::Empty, at);
            tracing::info!(group = %self.name, generation = self.generation, "the group is empty");
            let value = self.encode(None);
            self.pending_writes
                .push(RecordWrite::new(value, AfterWrite::Nothing));
            return;
        }
        self.protocol = self.select_protocol();
        self.topics = self.find_topics();
        self.transition(GroupState::CompletingRebalance, at);
        tracing::info!(
            group = %self.name, generation = self.generation, members = self.members.len(),
            "the group has a new generation"
        );
        self.unsynced = self.members.keys().cloned().collect();
        for id in self.unsynced.clone() {
            let joined = self.joined(&id);
            self.answer_join(&id, |_| joined);
            self.renew_session(&id, at);
            if let Some(member) = self.members.get_mut(&id) {
                member.is_new = false;
            }
        }
        let due_ms = at.ms.saturating_add(self.rebalance_timeout_ms());
        self.sync_due_ms = Some(due_ms);
        self.note_timeout(due_ms);
    }

    fn remove_absent(&mut self) {
        let is_absent = |m: &&super::member::Member| m.joining.is_none() && m.instance.is_none();
        let absent = self.members.values().filter(is_absent);
        let absent: Vec<String> = absent.map(|member| member.id.clone()).collect();
        for id in absent {
            tracing::info!(group = %self.name, member = %id, "a member has not joined again");
            self.remove(&id);
        }
    }

    /// Elects a member that has joined if the leader has not. Returns whether there is a leader
    /// that has joined.
    fn elect_leader(&mut self) -> bool {
        let is_here = |id: &String| self.members.get(id).is_some_and(|m| m.joining.is_some());
        match &self.leader {
            None => false,
            Some(leader) if is_here(leader) => true,
            Some(_) => {
                let mut here = self.members.values().filter(|m| m.joining.is_some());
                let Some(elected) = here.next().map(|member| member.id.clone()) else {
                    return false;
                };
                self.leader = Some(elected);
                true
            }
        }
    }

    /// Answers all waiting SyncGroups with `error`, and drops all assignments.
    pub(super) fn fail_sync(&mut self, error: ErrorCode, at: ClockReading) {
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let mut was_waiting = false;
            self.change(&id, |member| {
                member.assignment = bytes::Bytes::new();
                was_waiting = member.refuse_sync(error);
            });
            if was_waiting {
                self.renew_session(&id, at);
            }
        }
    }

    /// Removes a member, and rebalances if the state requires it.
    pub(super) fn remove_and_rebalance(
        &mut self,
        id: &str,
        reason: &str,
        limits: &GroupLimits,
        at: ClockReading,
    ) {
        self.remove(id);
        match self.state {
            GroupState::Stable | GroupState::CompletingRebalance => {
                self.rebalance(reason, limits, at)
            }
            GroupState::PreparingRebalance if self.all_joined() => self.complete_join(at),
            GroupState::PreparingRebalance | GroupState::Empty | GroupState::Dead => {}
        }
    }

    /// Handles the timeouts that are due. Returns the time of the next one, in milliseconds;
    /// `u64::MAX`: none.
    pub(crate) fn expire(&mut self, limits: &GroupLimits, at: ClockReading) -> u64 {
        if self.state != GroupState::Dead {
            self.expire_pending(at);
            self.expire_sessions(limits, at);
            self.expire_join(at);
            self.expire_sync(limits, at);
        }
        self.due_hint_ms = self.next_due_ms();
        self.due_hint_ms
    }

    /// The time of the next timeout, in milliseconds; `u64::MAX`: none.
    pub(super) fn next_due_ms(&self) -> u64 {
        if self.state == GroupState::Dead {
            return u64::MAX;
        }
        let sessions = self.members.values().filter_map(|m| m.session_due_ms);
        sessions
            .chain(self.pending.values().copied())
            .chain(self.join_timer.map(|timer| timer.due_ms))
            .chain(self.sync_due_ms)
            .min()
            .unwrap_or(u64::MAX)
    }

    fn expire_pending(&mut self, at: ClockReading) {
        let late = self.pending.iter().filter(|(_, due_ms)| **due_ms <= at.ms);
        let late: Vec<String> = late.map(|(id, _)| id.clone()).collect();
        for id in late {
            self.forget_pending(&id);
            if self.state == GroupState::PreparingRebalance && self.all_joined() {
                self.complete_join(at);
            }
        }
    }

    fn expire_sessions(&mut self, limits: &GroupLimits, at: ClockReading) {
        let is_late = |due_ms: Option<u64>| due_ms.is_some_and(|due_ms| due_ms <= at.ms);
        let late = self.members.values().filter(|m| is_late(m.session_due_ms));
        let late: Vec<String> = late.map(|member| member.id.clone()).collect();
        for id in late {
            // The removal of another member may have removed this one or restarted its timeout.
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            if !is_late(member.session_due_ms) {
                continue;
            }
            if member.has_satisfied_heartbeat() {
                member.session_due_ms = None;
                continue;
            }
            tracing::info!(group = %self.name, member = %id, "a member is silent and is out");
            self.remove_and_rebalance(&id, "a member's session has ended", limits, at);
        }
    }

    fn expire_join(&mut self, at: ClockReading) {
        let Some(timer) = self.join_timer.filter(|timer| timer.due_ms <= at.ms) else {
            return;
        };
        match timer.initial {
            Some((delay_ms, remaining_ms)) if self.new_member_added && remaining_ms != 0 => {
                // A member has joined during the delay, and others may follow.
                self.new_member_added = false;
                let initial = (
                    delay_ms.min(remaining_ms),
                    remaining_ms.saturating_sub(delay_ms),
                );
                self.set_join_timer(initial.0, Some(initial), at);
            }
            _ => self.complete_join(at),
        }
    }

    fn expire_sync(&mut self, limits: &GroupLimits, at: ClockReading) {
        if self.sync_due_ms.is_none_or(|due_ms| due_ms > at.ms) {
            return;
        }
        self.sync_due_ms = None;
        if !matches!(
            self.state,
            GroupState::CompletingRebalance | GroupState::Stable
        ) {
            return;
        }
        let late: Vec<String> = self.unsynced.iter().cloned().collect();
        if late.is_empty() {
            return;
        }
        for id in &late {
            tracing::info!(group = %self.name, member = %id, "a member has not sent its SyncGroup");
            self.remove(id);
        }
        self.prepare("members have not sent their SyncGroup", limits, at);
    }

    /// Makes the group dead, because it is being deleted. Every waiting member is told to look up
    /// the coordinator again.
    pub(super) fn mark_dead(&mut self, at: ClockReading) {
        self.transition(GroupState::Dead, at);
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            self.answer_join(&id, |id| {
                JoinAnswer::refused(id, ErrorCode::CoordinatorNotAvailable)
            });
            self.remove(&id);
        }
    }
}
