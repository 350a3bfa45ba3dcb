//! The answer to every request in every state.

#![allow(clippy::unwrap_used)]

use super::group::GroupState;
use super::reply::{JoinRequest, MemberIdentity};
use super::tests::{World, join, protocol, who};
use crate::error_code::ErrorCode::{
    self, CoordinatorNotAvailable, GroupIdNotFound, IllegalGeneration, InconsistentGroupProtocol,
    MemberIdRequired, NonEmptyGroup, None as Fine, RebalanceInProgress, UnknownMemberId,
};

/// A group in this state, with the ids of its leader and its follower, and its generation. In the
/// states without members the ids are those of former members.
fn world(state: GroupState) -> (World, String, String, i32) {
    let (mut world, leader, follower) = World::stable();
    let generation = world.group.generation;
    match state {
        GroupState::Stable => {}
        GroupState::PreparingRebalance => drop(world.join("")),
        GroupState::CompletingRebalance => {
            let _waits = (world.join(&leader), world.join(&follower));
        }
        GroupState::Empty => drop(world.leave(&[&leader, &follower])),
        GroupState::Dead => {
            world.leave(&[&leader, &follower]);
            let at = world.at();
            world.group.delete(at).unwrap();
        }
    }
    assert_eq!(world.group.state(), state);
    let generation = match state {
        GroupState::CompletingRebalance => world.group.generation,
        _ => generation,
    };
    (world, leader, follower, generation)
}

const STATES: [GroupState; 5] = [
    GroupState::Empty,
    GroupState::PreparingRebalance,
    GroupState::CompletingRebalance,
    GroupState::Stable,
    GroupState::Dead,
];

/// The answer to a request in each of [`STATES`]; `None`: the request waits.
type Row = [Option<ErrorCode>; 5];

type SendRequest = fn(&mut World, &str, &str, i32) -> Option<ErrorCode>;

#[track_caller]
fn check(what: &str, ask: SendRequest, expected: Row) {
    for (state, expected) in STATES.into_iter().zip(expected) {
        let (mut world, leader, follower, generation) = world(state);
        let answer = ask(&mut world, &leader, &follower, generation);
        assert_eq!(answer, expected, "{what} in {state:?}");
    }
}

fn send(world: &mut World, join: JoinRequest) -> Option<ErrorCode> {
    world.send(join).peek().map(|joined| joined.error)
}

#[test]
fn join_group() {
    let new: SendRequest = |world, _, _, _| send(world, join(""));
    let dead = Some(CoordinatorNotAvailable);
    check("a new member", new, [Some(Fine), None, None, None, dead]);
    let needs_id: SendRequest = |world, _, _, _| {
        send(
            world,
            JoinRequest {
                needs_member_id: true,
                ..join("")
            },
        )
    };
    let again = Some(MemberIdRequired);
    check(
        "a new member, version 4",
        needs_id,
        [again, again, again, again, dead],
    );
    let unknown: SendRequest = |world, _, _, _| send(world, join("nobody"));
    let no = Some(UnknownMemberId);
    check("an unknown id", unknown, [no, no, no, no, dead]);
    let follower: SendRequest = |world, _, follower, _| send(world, join(follower));
    check(
        "the follower",
        follower,
        [no, None, Some(Fine), Some(Fine), dead],
    );
    let leader: SendRequest = |world, leader, _, _| send(world, join(leader));
    check("the leader", leader, [no, None, Some(Fine), None, dead]);
    let changed: SendRequest = |world, _, follower, _| {
        send(
            world,
            JoinRequest {
                protocols: vec![protocol("range", "other")],
                ..join(follower)
            },
        )
    };
    check("new metadata", changed, [no, None, None, None, dead]);
    let stranger: SendRequest = |world, _, _, _| {
        send(
            world,
            JoinRequest {
                protocol_type: "connect".to_owned(),
                ..join("")
            },
        )
    };
    let differs = Some(InconsistentGroupProtocol);
    check(
        "another type",
        stranger,
        [Some(Fine), differs, differs, differs, dead],
    );
    let nothing: SendRequest = |world, _, _, _| {
        send(
            world,
            JoinRequest {
                protocols: Vec::new(),
                ..join("")
            },
        )
    };
    check(
        "no protocol",
        nothing,
        [differs, differs, differs, differs, dead],
    );
}

#[test]
fn sync_group() {
    let dead = Some(CoordinatorNotAvailable);
    let no = Some(UnknownMemberId);
    let busy = Some(RebalanceInProgress);
    let follower: SendRequest = |world, _, follower, generation| {
        world
            .sync(follower, generation, &[])
            .peek()
            .map(|s| s.error)
    };
    check("the follower", follower, [no, busy, None, Some(Fine), dead]);
    let leader: SendRequest =
        |world, leader, _, generation| world.sync(leader, generation, &[]).peek().map(|s| s.error);
    check(
        "the leader",
        leader,
        [no, busy, Some(Fine), Some(Fine), dead],
    );
    let old: SendRequest = |world, _, follower, generation| {
        world
            .sync(follower, generation - 1, &[])
            .peek()
            .map(|s| s.error)
    };
    let late = Some(IllegalGeneration);
    check("an old generation", old, [no, late, late, late, dead]);
    let unknown: SendRequest = |world, _, _, generation| {
        world
            .sync("nobody", generation, &[])
            .peek()
            .map(|s| s.error)
    };
    check("an unknown id", unknown, [no, no, no, no, dead]);
}

#[test]
fn heartbeat() {
    let dead = Some(CoordinatorNotAvailable);
    let no = Some(UnknownMemberId);
    let busy = Some(RebalanceInProgress);
    let member: SendRequest =
        |world, _, follower, generation| Some(world.heartbeat(follower, generation));
    check("a member", member, [no, busy, Some(Fine), Some(Fine), dead]);
    let old: SendRequest =
        |world, _, follower, generation| Some(world.heartbeat(follower, generation - 1));
    let late = Some(IllegalGeneration);
    check("an old generation", old, [no, late, late, late, dead]);
    let unknown: SendRequest =
        |world, _, _, generation| Some(world.heartbeat("nobody", generation));
    check("an unknown id", unknown, [no, no, no, no, dead]);
}

#[test]
fn leave_group() {
    let dead = Some(CoordinatorNotAvailable);
    let no = Some(UnknownMemberId);
    let member: SendRequest = |world, _, follower, _| {
        let (at, limits) = (world.at(), world.limits.clone());
        let left = world.group.leave(&[(who(follower), None)], &limits, at);
        Some(left.map_or_else(|error| error, |errors| errors[0]))
    };
    check(
        "a member",
        member,
        [no, Some(Fine), Some(Fine), Some(Fine), dead],
    );
    let unknown: SendRequest = |world, _, _, _| {
        let (at, limits) = (world.at(), world.limits.clone());
        let left = world.group.leave(&[(who("nobody"), None)], &limits, at);
        Some(left.map_or_else(|error| error, |errors| errors[0]))
    };
    check("an unknown id", unknown, [no, no, no, no, dead]);
}

fn commit(world: &mut World, who: &MemberIdentity, generation: i32) -> Option<ErrorCode> {
    let at = world.at();
    let checked = world.group.check_commit(who, generation, at);
    Some(checked.err().unwrap_or(Fine))
}

#[test]
fn offset_commit() {
    let dead = Some(CoordinatorNotAvailable);
    let no = Some(UnknownMemberId);
    let fine = Some(Fine);
    let member: SendRequest =
        |world, _, follower, generation| commit(world, &who(follower), generation);
    let busy = Some(RebalanceInProgress);
    check("a member", member, [no, fine, busy, fine, dead]);
    let old: SendRequest =
        |world, _, follower, generation| commit(world, &who(follower), generation - 1);
    let late = Some(IllegalGeneration);
    check("an old generation", old, [no, late, late, late, dead]);
    let simple: SendRequest = |world, _, _, _| commit(world, &who(""), -1);
    check("no member at all", simple, [fine, no, no, no, dead]);
    let unknown: SendRequest = |world, _, _, generation| commit(world, &who("nobody"), generation);
    check("an unknown id", unknown, [no, no, no, no, dead]);
}

#[test]
fn admin_requests() {
    let delete: SendRequest = |world, _, _, _| {
        let at = world.at();
        Some(world.group.delete(at).err().unwrap_or(Fine))
    };
    let used = Some(NonEmptyGroup);
    let gone = Some(GroupIdNotFound);
    check("delete", delete, [Some(Fine), used, used, used, gone]);
    let offsets: SendRequest =
        |world, _, _, _| Some(world.group.check_delete_offsets().err().unwrap_or(Fine));
    let fine = Some(Fine);
    check("delete offsets", offsets, [fine, fine, fine, fine, gone]);
    let describe: SendRequest = |world, _, _, _| {
        let names = [
            "Empty",
            "PreparingRebalance",
            "CompletingRebalance",
            "Stable",
            "Dead",
        ];
        let state = world.group.state();
        let at = STATES.iter().position(|known| *known == state).unwrap();
        let described = world.group.describe();
        assert_eq!(described.state, names[at]);
        assert_eq!(described.protocol.is_empty(), state != GroupState::Stable);
        None
    };
    check("describe", describe, [None; 5]);
}
