//! The rebalance, its phases, and the timeouts of a group.

use super::group::{At, Group, JoinTimer, Limits, State};
use super::reply::Joined;
use super::store::{Effect, Ticket};
use crate::error_code::ErrorCode;

/// Minimum time in milliseconds until a join phase that no member has joined is checked again.
/// Needed because members may have a rebalance timeout of 0.
const RETRY_MS_MIN: u64 = 100;

impl Group {
    /// Begins a rebalance, or continues the current one.
    pub(super) fn rebalance(&mut self, reason: &str, limits: &Limits, at: At) {
        match self.state {
            State::Empty | State::CompletingRebalance | State::Stable => {
                self.prepare(reason, limits, at);
            }
            State::PreparingRebalance | State::Dead => self.complete_join_if_all_joined(at),
        }
    }

    /// Begins a rebalance.
    pub(super) fn prepare(&mut self, reason: &str, limits: &Limits, at: At) {
        if self.state == State::CompletingRebalance {
            self.fail_sync(ErrorCode::RebalanceInProgress, at);
        }
        self.unsynced.clear();
        self.sync_due_ms = None;
        let is_initial = self.state == State::Empty;
        tracing::info!(
            group = %self.name, state = self.state.name(), generation = self.generation, reason,
            "a rebalance begins"
        );
        self.transition(State::PreparingRebalance, at);
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

    fn set_join_timer(&mut self, after_ms: u64, initial: Option<(u64, u64)>, at: At) {
        let due_ms = at.ms.saturating_add(after_ms);
        self.join_timer = Some(JoinTimer { due_ms, initial });
        self.wake_by(due_ms);
    }

    fn complete_join_or_wait(&mut self, at: At) {
        if self.all_joined() {
            self.complete_join(at);
        } else {
            self.set_join_timer(self.rebalance_timeout_ms(), None, at);
        }
    }

    /// Ends the join phase once all members have joined. The first rebalance of an empty group is
    /// excepted: it waits for its delay.
    pub(super) fn complete_join_if_all_joined(&mut self, at: At) {
        let is_preparing = self.state == State::PreparingRebalance;
        if is_preparing && self.previous != State::Empty && self.all_joined() {
            self.complete_join(at);
        }
    }

    /// Ends the join phase: dynamic members that have not rejoined are removed; the others are the
    /// next generation.
    fn complete_join(&mut self, at: At) {
        debug_assert_eq!(self.state, State::PreparingRebalance);
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
            self.transition(State::Empty, at);
            tracing::info!(group = %self.name, generation = self.generation, "the group is empty");
            let value = self.encode(None);
            self.effects.push(Effect::keep(value, Ticket::Nothing));
            return;
        }
        self.protocol = self.select_protocol();
        self.topics = self.find_topics();
        self.transition(State::CompletingRebalance, at);
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
        self.wake_by(due_ms);
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
    pub(super) fn fail_sync(&mut self, error: ErrorCode, at: At) {
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
    pub(super) fn remove_and_rebalance(&mut self, id: &str, reason: &str, limits: &Limits, at: At) {
        self.remove(id);
        match self.state {
            State::Stable | State::CompletingRebalance => self.rebalance(reason, limits, at),
            State::PreparingRebalance if self.all_joined() => self.complete_join(at),
            State::PreparingRebalance | State::Empty | State::Dead => {}
        }
    }

    /// Handles the timeouts that are due. Returns the time of the next one, in milliseconds;
    /// `u64::MAX`: none.
    pub(crate) fn expire(&mut self, limits: &Limits, at: At) -> u64 {
        if self.state != State::Dead {
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
        if self.state == State::Dead {
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

    fn expire_pending(&mut self, at: At) {
        let late = self.pending.iter().filter(|(_, due_ms)| **due_ms <= at.ms);
        let late: Vec<String> = late.map(|(id, _)| id.clone()).collect();
        for id in late {
            self.forget_pending(&id);
            if self.state == State::PreparingRebalance && self.all_joined() {
                self.complete_join(at);
            }
        }
    }

    fn expire_sessions(&mut self, limits: &Limits, at: At) {
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

    fn expire_join(&mut self, at: At) {
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

    fn expire_sync(&mut self, limits: &Limits, at: At) {
        if self.sync_due_ms.is_none_or(|due_ms| due_ms > at.ms) {
            return;
        }
        self.sync_due_ms = None;
        if !matches!(self.state, State::CompletingRebalance | State::Stable) {
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
    pub(super) fn bury(&mut self, at: At) {
        self.transition(State::Dead, at);
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            self.answer_join(&id, |id| {
                Joined::refused(id, ErrorCode::CoordinatorNotAvailable)
            });
            self.remove(&id);
        }
    }
}
