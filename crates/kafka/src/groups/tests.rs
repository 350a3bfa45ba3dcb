//! Single scenarios, on the pure state machine: no journal, no socket, no clock.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;

use super::group::{ClockReading, Group, GroupLimits, GroupState};
use super::member::GroupProtocol;
use super::reply::{JoinAnswer, JoinRequest, MemberIdentity, SyncAnswer, SyncRequest};
use crate::answer::{Reply, promise};
use crate::error_code::ErrorCode;

pub(super) const LIMITS: GroupLimits = GroupLimits {
    members_max: 4,
    initial_delay_ms: 0,
    member_bytes_max: 10_000,
    group_bytes_max: 100_000,
    new_member_timeout_ms: 300_000,
};

pub(super) const SESSION_MS: u64 = 10_000;
pub(super) const REBALANCE_MS: u64 = 30_000;

/// A group with a clock, whose writes succeed at once unless the test holds them back.
pub(super) struct World {
    pub(super) group: Group,
    pub(super) limits: GroupLimits,
    pub(super) ms: u64,
    /// The outcome of writes; `None`: they wait.
    pub(super) writes: Option<Result<(), ErrorCode>>,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            group: Group::new("g".into(), 0),
            limits: LIMITS,
            ms: 1_000,
            writes: Some(Ok(())),
        }
    }

    pub(super) fn at(&self) -> ClockReading {
        ClockReading {
            ms: self.ms,
            unix_ms: 1_700_000_000_000 + self.ms,
        }
    }

    /// Completes the waiting writes.
    pub(super) fn write(&mut self) {
        while let Some(outcome) = self.writes {
            if self.group.pending_writes.is_empty() {
                return;
            }
            let record_write = self.group.pending_writes.remove(0);
            let again = Group::decode("g".into(), &record_write.value);
            assert!(again.is_ok(), "{:?}", again.err());
            let at = self.at();
            self.group
                .record_written(record_write.after_write, outcome, &self.limits, at);
        }
    }

    pub(super) fn advance(&mut self, ms: u64) {
        self.ms += ms;
        loop {
            let at = self.at();
            let due_ms = self.group.expire(&self.limits, at);
            self.write();
            if due_ms > self.ms {
                return;
            }
        }
    }

    pub(super) fn send(&mut self, join: JoinRequest) -> Reply<JoinAnswer> {
        let (promise, reply) = promise();
        let at = self.at();
        self.group.join(join, promise, &self.limits, at);
        self.write();
        reply
    }

    /// Sends a JoinGroup with this id. An empty id joins at once, as before version 4.
    pub(super) fn join(&mut self, id: &str) -> Reply<JoinAnswer> {
        self.send(join(id))
    }

    pub(super) fn sync(
        &mut self,
        id: &str,
        generation: i32,
        gives: &[(&str, &str)],
    ) -> Reply<SyncAnswer> {
        let (promise, reply) = promise();
        let assignments = gives
            .iter()
            .map(|(id, what)| ((*id).to_owned(), Bytes::copy_from_slice(what.as_bytes())));
        let sync = SyncRequest {
            member_id: id.to_owned(),
            instance: None,
            generation,
            protocol_type: None,
            protocol: None,
            assignments: assignments.collect(),
        };
        self.group.sync(sync, promise, &self.limits);
        self.write();
        reply
    }

    pub(super) fn heartbeat(&mut self, id: &str, generation: i32) -> ErrorCode {
        let at = self.at();
        self.group.heartbeat(&who(id), generation, at)
    }

    pub(super) fn leave(&mut self, ids: &[&str]) -> Vec<ErrorCode> {
        let members: Vec<_> = ids.iter().map(|id| (who(id), None)).collect();
        let at = self.at();
        let left = self.group.leave(&members, &self.limits, at);
        self.write();
        left.unwrap()
    }

    /// A stable group of two members, with the ids of its leader and its follower.
    pub(super) fn stable() -> (Self, String, String) {
        let mut world = Self::new();
        let leader = world.join("");
        let leader = leader.now().member_id;
        let follower = world.join("");
        let again = world.join(&leader);
        let follower = follower.now().member_id;
        let generation = again.now().generation;
        let waits = world.sync(&follower, generation, &[]);
        let gives = [(&*leader, "0"), (&*follower, "1")];
        assert_eq!(
            world.sync(&leader, generation, &gives).now().assignment,
            "0"
        );
        assert_eq!(waits.now().assignment, "1");
        assert_eq!(world.group.state(), GroupState::Stable);
        (world, leader, follower)
    }
}

pub(super) fn who(id: &str) -> MemberIdentity {
    MemberIdentity {
        member_id: id.to_owned(),
        instance: None,
    }
}

pub(super) fn join(id: &str) -> JoinRequest {
    JoinRequest {
        member_id: id.to_owned(),
        instance: None,
        client_id: "c".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: REBALANCE_MS,
        protocol_type: "consumer".to_owned(),
        protocols: vec![protocol("range", "")],
        reason: None,
        needs_member_id: false,
        skips_assignment: false,
    }
}

pub(super) fn protocol(name: &str, metadata: &str) -> GroupProtocol {
    GroupProtocol {
        name: name.to_owned(),
        metadata: Bytes::copy_from_slice(metadata.as_bytes()),
    }
}

fn static_join(instance: &str) -> JoinRequest {
    JoinRequest {
        instance: Some(instance.to_owned()),
        ..join("")
    }
}

#[test]
fn a_member_alone_leads_its_first_generation() {
    let mut world = World::new();
    let joined = world.join("").now();
    assert_eq!((joined.error, joined.generation), (ErrorCode::None, 1));
    assert_eq!(joined.leader, joined.member_id);
    assert_eq!(joined.protocol.as_deref(), Some("range"));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(world.group.state(), GroupState::CompletingRebalance);
}

#[test]
fn a_member_id_is_required_and_expires_if_no_client_rejoins_with_it() {
    let mut world = World::new();
    let first = JoinRequest {
        needs_member_id: true,
        ..join("")
    };
    let answered = world.send(first.clone()).now();
    assert_eq!(answered.error, ErrorCode::MemberIdRequired);
    assert_eq!(world.group.state(), GroupState::Empty);
    let joined = world.join(&answered.member_id).now();
    assert_eq!(joined.error, ErrorCode::None);
    let lost = world.send(first).now().member_id;
    // The rebalance waits for the pending id, but not longer than the session timeout.
    let mut again = world.join(&joined.member_id);
    let changed = JoinRequest {
        protocols: vec![protocol("range", "new")],
        ..join(&joined.member_id)
    };
    assert_eq!(again.peek().unwrap().error, ErrorCode::None);
    let mut waits = world.send(changed);
    assert!(waits.peek().is_none());
    world.advance(SESSION_MS - 1);
    assert!(waits.peek().is_none());
    world.advance(1);
    assert_eq!(waits.now().generation, 2);
    let late = world.join(&lost).now();
    assert_eq!(late.error, ErrorCode::UnknownMemberId);
}

#[test]
fn the_protocol_is_the_one_that_all_support_and_most_prefer() {
    let mut world = World::new();
    let with = |id: &str, names: &[&str]| JoinRequest {
        protocols: names.iter().map(|name| protocol(name, name)).collect(),
        ..join(id)
    };
    let a = world.send(with("", &["x", "a", "b"])).now().member_id;
    let b = world.send(with("", &["b", "a"]));
    let a_again = world.send(with(&a, &["x", "a", "b"]));
    let b = b.now().member_id;
    a_again.now();
    let c = world.send(with("", &["b", "a", "y"]));
    let (again_a, again_b) = (
        world.send(with(&a, &["x", "a", "b"])),
        world.send(with(&b, &["b", "a"])),
    );
    let answered = again_a.now();
    assert_eq!(
        answered.protocol.as_deref(),
        Some("b"),
        "two of three prefer b"
    );
    assert!(answered.members.iter().all(|member| member.metadata == "b"));
    assert!(
        again_b.now().members.is_empty(),
        "a follower is not told the members"
    );
    c.now();
    let stranger = world.send(with("", &["z"])).now();
    assert_eq!(stranger.error, ErrorCode::InconsistentGroupProtocol);
}

#[test]
fn a_member_whose_session_expires_is_removed_and_the_others_rebalance() {
    let (mut world, leader, follower) = World::stable();
    world.advance(SESSION_MS / 2);
    assert_eq!(world.heartbeat(&leader, 1 + 1), ErrorCode::None);
    world.advance(SESSION_MS / 2);
    assert_eq!(world.group.state(), GroupState::PreparingRebalance);
    let heard = world.heartbeat(&leader, 2);
    assert_eq!(heard, ErrorCode::RebalanceInProgress);
    assert_eq!(world.heartbeat(&follower, 2), ErrorCode::UnknownMemberId);
    let joined = world.join(&leader).now();
    assert_eq!((joined.generation, joined.members.len()), (3, 1));
}

#[test]
fn a_member_that_does_not_rejoin_delays_the_others_up_to_the_rebalance_timeout() {
    let (mut world, leader, follower) = World::stable();
    let mut waits = world.join("");
    let mut follower_waits = world.join(&follower);
    for _ in 0..5 {
        world.advance(REBALANCE_MS / 5 - 1);
        // It sends heartbeats, but does not rejoin.
        assert_eq!(world.heartbeat(&leader, 2), ErrorCode::RebalanceInProgress);
    }
    assert!(waits.peek().is_none() && follower_waits.peek().is_none());
    world.advance(5);
    let answered = [follower_waits.now(), waits.now()];
    assert!(answered.iter().all(|joined| joined.generation == 3));
    let elected: Vec<&JoinAnswer> = answered
        .iter()
        .filter(|joined| joined.leader == joined.member_id)
        .collect();
    assert_eq!(
        elected.len(),
        1,
        "the leader was not there: another one leads"
    );
    assert_eq!(elected[0].members.len(), 2);
    assert_eq!(world.heartbeat(&leader, 2), ErrorCode::UnknownMemberId);
}

#[test]
fn a_leader_that_never_syncs_is_removed() {
    let (mut world, leader, follower) = World::stable();
    let joined = (world.join(&leader), world.join(&follower));
    let generation = joined.0.now().generation;
    let mut synced = world.sync(&follower, generation, &[]);
    for _ in 0..4 {
        assert!(synced.peek().is_none());
        world.advance(REBALANCE_MS / 4);
        world.heartbeat(&leader, generation);
    }
    let answered = synced.peek().unwrap();
    assert_eq!(answered.error, ErrorCode::RebalanceInProgress);
    assert_eq!(
        world.heartbeat(&leader, generation),
        ErrorCode::UnknownMemberId
    );
    let alone = world.join(&follower).now();
    assert_eq!((&alone.leader, alone.members.len()), (&follower, 1));
}

#[test]
fn a_leader_that_crashes_between_join_and_sync_is_removed_after_its_session() {
    let (mut world, leader, follower) = World::stable();
    let joined = (world.join(&leader), world.join(&follower));
    let generation = joined.0.now().generation;
    let synced = world.sync(&follower, generation, &[]);
    world.advance(SESSION_MS);
    assert_eq!(synced.now().error, ErrorCode::RebalanceInProgress);
    assert_eq!(world.join(&follower).now().members.len(), 1);
}

#[test]
fn a_new_member_whose_connection_is_gone_does_not_stay_for_ever() {
    let (mut world, leader, _) = World::stable();
    let mut lost = world.join("");
    let mut waits = world.join(&leader);
    for _ in 0..40 {
        world.advance(SESSION_MS - 1);
        world.heartbeat(&leader, world.group.generation);
        if let Some(joined) = waits.peek() {
            drop(world.sync(&leader, joined.generation, &[]));
            waits = world.join(&leader);
        }
    }
    assert!(lost.peek().is_some());
    assert_eq!(world.group.describe().members.len(), 1);
}

#[test]
fn the_first_members_wait_for_more() {
    let mut world = World::new();
    world.limits.initial_delay_ms = 3_000;
    let mut first = world.join("");
    world.advance(2_000);
    let mut second = world.join("");
    world.advance(1_000);
    assert!(first.peek().is_none(), "somebody came: others may follow");
    world.advance(3_000);
    let (first, second) = (first.peek().unwrap(), second.peek().unwrap());
    assert_eq!((first.generation, second.generation), (1, 1));
    assert_eq!(first.members.len() + second.members.len(), 2);
}

#[test]
fn a_static_member_restarts_without_a_rebalance() {
    let mut world = World::new();
    let old = world.send(static_join("i")).now();
    let synced = world.sync(&old.member_id, 1, &[(&old.member_id, "mine")]);
    assert_eq!(synced.now().assignment, "mine");
    let again = world.send(JoinRequest {
        skips_assignment: true,
        ..static_join("i")
    });
    let again = again.now();
    assert_eq!((again.error, again.generation), (ErrorCode::None, 1));
    assert!(again.skip_assignment, "it leads, and need not assign anew");
    assert_ne!(again.member_id, old.member_id);
    assert_eq!(world.group.state(), GroupState::Stable);
    assert_eq!(
        world.sync(&again.member_id, 1, &[]).now().assignment,
        "mine"
    );
    let at = world.at();
    let fenced = MemberIdentity {
        instance: Some("i".to_owned()),
        ..who(&old.member_id)
    };
    let heard = world.group.heartbeat(&fenced, 1, at);
    assert_eq!(heard, ErrorCode::FencedInstanceId);
    // An older client cannot be told to skip the assignment: it is told that its old id is the
    // leader.
    let older = world.send(static_join("i")).now();
    assert_eq!(older.leader, again.member_id);
    assert!(older.members.is_empty());
}

#[test]
fn a_static_member_whose_protocol_changes_the_groups_rebalances() {
    let mut world = World::new();
    let with = |names: [&str; 2]| JoinRequest {
        protocols: names.iter().map(|name| protocol(name, "")).collect(),
        ..static_join("i")
    };
    let id = world.send(with(["range", "sticky"])).now().member_id;
    world.sync(&id, 1, &[]).now();
    let changed = world.send(with(["sticky", "range"]));
    let changed = changed.now();
    assert_eq!((changed.error, changed.generation), (ErrorCode::None, 2));
}

#[test]
fn a_static_member_that_is_replaced_while_it_waits_is_fenced() {
    let (mut world, leader, _) = World::stable();
    let mut first = world.send(static_join("i"));
    assert!(first.peek().is_none());
    let mut second = world.send(static_join("i"));
    assert_eq!(first.peek().unwrap().error, ErrorCode::FencedInstanceId);
    drop(world.join(&leader));
    world.advance(SESSION_MS);
    assert_eq!(second.peek().unwrap().error, ErrorCode::None);
}

#[test]
fn a_static_members_swap_that_cannot_be_written_is_undone() {
    let mut world = World::new();
    let old = world.send(static_join("i")).now().member_id;
    world.sync(&old, 1, &[(&old, "mine")]).now();
    world.writes = Some(Err(ErrorCode::NotCoordinator));
    let refused = world.send(static_join("i")).now();
    assert_eq!(refused.error, ErrorCode::NotCoordinator);
    assert_eq!(world.heartbeat(&old, 1), ErrorCode::None);
    assert_eq!(world.sync(&old, 1, &[]).now().assignment, "mine");
}

#[test]
fn assignments_that_cannot_be_written_are_not_handed_out() {
    let (mut world, leader, follower) = World::stable();
    let joined = (world.join(&leader), world.join(&follower));
    let generation = joined.0.now().generation;
    world.writes = Some(Err(ErrorCode::NotCoordinator));
    let waits = world.sync(&follower, generation, &[]);
    let synced = world.sync(&leader, generation, &[(&leader, "x")]).now();
    assert_eq!(synced.error, ErrorCode::NotCoordinator);
    assert_eq!(waits.now().error, ErrorCode::NotCoordinator);
    assert_eq!(world.group.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_rebalance_while_assignments_are_written_wins() {
    let (mut world, leader, follower) = World::stable();
    let joined = (world.join(&leader), world.join(&follower));
    let generation = joined.0.now().generation;
    world.writes = None;
    let mut synced = world.sync(&leader, generation, &[(&leader, "x")]);
    assert!(synced.peek().is_none());
    let third = world.join("");
    assert_eq!(synced.peek().unwrap().error, ErrorCode::RebalanceInProgress);
    world.writes = Some(Ok(()));
    world.write();
    assert_eq!(world.group.state(), GroupState::PreparingRebalance);
    let _waits = (third, world.join(&leader), world.join(&follower));
    assert_eq!(world.group.state(), GroupState::CompletingRebalance);
}

#[test]
fn members_beyond_the_limit_are_refused() {
    let mut world = World::new();
    let mut ids = vec![world.join("").now().member_id];
    for _ in 1..world.limits.members_max {
        let new = world.join("");
        let again: Vec<_> = ids.iter().map(|id| world.join(id)).collect();
        drop(again);
        ids.push(new.now().member_id);
    }
    let refused = world.join("").now();
    assert_eq!(refused.error, ErrorCode::GroupMaxSizeReached);
    let asking = JoinRequest {
        needs_member_id: true,
        ..join("")
    };
    let refused = world.send(asking.clone()).now();
    assert_eq!(refused.error, ErrorCode::GroupMaxSizeReached);
    let mut empty = World::new();
    for _ in 0..empty.limits.members_max {
        let answered = empty.send(asking.clone()).now();
        assert_eq!(answered.error, ErrorCode::MemberIdRequired);
    }
    let refused = empty.send(asking).now();
    assert_eq!(refused.error, ErrorCode::GroupMaxSizeReached);
    let large = "x".repeat(empty.limits.member_bytes_max);
    let large = JoinRequest {
        protocols: vec![protocol("range", &large)],
        ..join("")
    };
    let refused = World::new().send(large).now();
    assert_eq!(refused.error, ErrorCode::MessageTooLarge);
}

#[test]
fn many_leave_at_once_with_one_rebalance() {
    let (mut world, leader, follower) = World::stable();
    let static_member = world.send(static_join("i"));
    let _waits = (world.join(&leader), world.join(&follower));
    static_member.now();
    let by_name = MemberIdentity {
        member_id: String::new(),
        instance: Some("i".to_owned()),
    };
    let at = world.at();
    let leaving = [
        (who(&follower), Some("bye".to_owned())),
        (who("nobody"), None),
        (by_name.clone(), None),
        (by_name, None),
    ];
    let limits = world.limits.clone();
    let left = world.group.leave(&leaving, &limits, at).unwrap();
    use ErrorCode::{None as Fine, UnknownMemberId};
    assert_eq!(left, [Fine, UnknownMemberId, Fine, UnknownMemberId]);
    assert_eq!(world.group.state(), GroupState::PreparingRebalance);
    assert_eq!(world.join(&leader).now().generation, 4);
}

#[test]
fn a_commit_restarts_the_session_timeout() {
    let (mut world, leader, follower) = World::stable();
    for _ in 0..3 {
        world.advance(SESSION_MS - 1);
        world.heartbeat(&follower, 2);
        let at = world.at();
        assert_eq!(world.group.check_commit(&who(&leader), 2, at), Ok(()));
    }
    assert_eq!(world.group.state(), GroupState::Stable);
}

#[test]
fn offsets_of_subscribed_topics_are_in_use() {
    let mut world = World::new();
    assert!(world.group.is_simple());
    assert_eq!(world.group.unused_since(Some("t"), 7), Some(7));
    let metadata = "\0\0\0\0\0\u{1}\0\u{1}t";
    let joined = world.send(JoinRequest {
        protocols: vec![protocol("range", metadata)],
        ..join("")
    });
    let id = joined.now().member_id;
    assert_eq!(
        world.group.unused_since(Some("other"), 7),
        None,
        "not stable yet"
    );
    world.sync(&id, 1, &[]).now();
    assert!(world.group.is_subscribed_to("t"));
    assert_eq!(world.group.unused_since(Some("t"), 7), None);
    assert_eq!(world.group.unused_since(Some("other"), 7), Some(7));
    world.leave(&[&id]);
    let emptied = world.at().unix_ms;
    assert_eq!(world.group.unused_since(Some("t"), 7), Some(emptied));
}

#[test]
fn a_loaded_group_gives_its_members_a_full_session() {
    let (mut world, leader, follower) = World::stable();
    let stored = world.group.encode(None);
    world.group = Group::decode("g".into(), &stored).unwrap();
    world.ms += 1_000_000;
    let at = world.at();
    world.group.start_sessions(at);
    world.advance(SESSION_MS - 1);
    assert_eq!(world.group.state(), GroupState::Stable);
    assert_eq!(world.heartbeat(&leader, 2), ErrorCode::None);
    assert_eq!(world.sync(&leader, 2, &[]).now().assignment, "0");
    world.advance(1);
    assert_eq!(world.group.state(), GroupState::PreparingRebalance);
    assert_eq!(world.heartbeat(&follower, 2), ErrorCode::UnknownMemberId);
}
