//! Groups and offsets survive the broker: a kill at any time, a restart in the middle of a
//! rebalance, a journal that cannot be written.

use cloverleaf_broker::BrokerOptions;
use cloverleaf_log::LogOptions;
use kafka_protocol::messages::{DescribeGroupsRequest, JoinGroupRequest, SyncGroupRequest};

use crate::common::{Peer, World, no_delay};
use crate::groups_common::{
    ILLEGAL_GENERATION, SESSION_MS, UNKNOWN_MEMBER_ID, commit, committed, group, heartbeat, join,
    leave, offset, settled, sync, sync_request,
};

/// Kills the broker like `kill -9`, and starts it again. The journal is as the kernel has it.
fn restart(world: World) -> World {
    let disk = world.disk.clone();
    disk.kill();
    drop(world);
    World::on(
        disk,
        no_delay(),
        LogOptions::default(),
        BrokerOptions::default(),
    )
}

fn state(peer: &mut Peer<'_>, name: &str) -> String {
    let request = DescribeGroupsRequest::default().with_groups(vec![group(name)]);
    peer.call(5, &request).groups[0].group_state.to_string()
}

#[test]
fn a_stable_group_goes_on_after_a_kill_without_a_rebalance() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let joined = settled(&mut peer, "g");
    let mut request = commit(9, "g", "t", 5);
    request.member_id = joined.member_id.clone();
    request.generation_id_or_member_epoch = joined.generation_id;
    assert_eq!(committed(&mut peer, 9, &request), 0);
    drop(peer);

    let world = restart(world);
    let mut peer = world.connect();
    assert_eq!(state(&mut peer, "g"), "Stable");
    peer.advance(SESSION_MS as u64 - 1);
    assert_eq!(heartbeat(&mut peer, "g", &joined), 0);
    assert_eq!(offset(&mut peer, "g", "t"), 5);
    assert_eq!(committed(&mut peer, 9, &request), 0);
    let synced = sync(&mut peer, 5, "g", &joined, &[]);
    assert_eq!(&synced.assignment[..], b"all");
    peer.advance(SESSION_MS as u64);
    assert_eq!(state(&mut peer, "g"), "Empty", "its session ends as ever");
    drop(peer);

    let world = restart(world);
    let mut peer = world.connect();
    assert_eq!(state(&mut peer, "g"), "Empty");
    assert_eq!(heartbeat(&mut peer, "g", &joined), UNKNOWN_MEMBER_ID);
    let again = settled(&mut peer, "g");
    assert!(
        again.generation_id > joined.generation_id,
        "generations are not used twice"
    );
}

#[test]
fn a_kill_in_the_middle_of_a_rebalance_goes_back_to_the_generation_before() {
    let world = World::new();
    let (mut one, mut two) = (world.connect(), world.connect());
    let old = settled(&mut one, "g");
    let told = two.call(9, &join(9, "g", ""));
    let asked = two.send(9, &join(9, "g", &told.member_id));
    two.pump();
    let first = one.call(9, &join(9, "g", &old.member_id));
    two.pump();
    let second = two.expect::<JoinGroupRequest>(9, asked);
    let _waits = two.send(5, &sync_request(5, "g", &second, &[]));
    two.pump();
    drop((one, two));

    let world = restart(world);
    let (mut one, mut two) = (world.connect(), world.connect());
    assert_eq!(heartbeat(&mut one, "g", &first), ILLEGAL_GENERATION);
    assert_eq!(heartbeat(&mut two, "g", &second), UNKNOWN_MEMBER_ID);
    // Both rejoin, as clients do.
    let told = two.call(9, &join(9, "g", ""));
    let asked = two.send(9, &join(9, "g", &told.member_id));
    two.pump();
    let first = one.call(9, &join(9, "g", &old.member_id));
    two.pump();
    let second = two.expect::<JoinGroupRequest>(9, asked);
    let waits = two.send(5, &sync_request(5, "g", &second, &[]));
    let gives = [(&*first.member_id, "a"), (&*second.member_id, "b")];
    assert_eq!(&sync(&mut one, 5, "g", &first, &gives).assignment[..], b"a");
    two.pump();
    let synced = two.expect::<SyncGroupRequest>(5, waits);
    assert_eq!(&synced.assignment[..], b"b");
}

#[test]
fn deleted_groups_stay_deleted() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let joined = settled(&mut peer, "g");
    leave(&mut peer, 5, "g", &joined.member_id);
    committed(&mut peer, 9, &commit(9, "g", "t", 5));
    let delete = kafka_protocol::messages::DeleteGroupsRequest::default()
        .with_groups_names(vec![group("g")]);
    assert_eq!(peer.call(2, &delete).results[0].error_code, 0);
    committed(&mut peer, 9, &commit(9, "simple", "t", 6));
    drop(peer);
    let world = restart(world);
    let mut peer = world.connect();
    assert_eq!(state(&mut peer, "g"), "Dead");
    assert_eq!(offset(&mut peer, "g", "t"), -1);
    assert_eq!(state(&mut peer, "simple"), "Empty");
    assert_eq!(offset(&mut peer, "simple", "t"), 6);
}

#[test]
fn a_group_that_cannot_be_read_is_left_out() {
    let world = World::new();
    let mut peer = world.connect();
    settled(&mut peer, "good");
    world
        .broker
        .put_value("kafka-group/bad", Some(vec![9, 9]))
        .unwrap();
    drop(peer);
    let world = restart(world);
    let mut peer = world.connect();
    assert_eq!(state(&mut peer, "good"), "Stable");
    assert_eq!(state(&mut peer, "bad"), "Dead");
}

#[test]
fn kills_at_any_time_lose_no_commit_that_was_answered() {
    let mut world = World::new();
    world.topic("t", 1);
    let mut answered = 0;
    for round in 0..60i64 {
        let mut peer = world.connect();
        assert!(offset(&mut peer, "g", "t") >= answered - 1);
        for step in 0..=round % 4 {
            let next = round * 10 + step;
            assert_eq!(committed(&mut peer, 9, &commit(9, "g", "t", next)), 0);
            answered = next;
        }
        // One more commit, whose answer no client awaits.
        peer.send(9, &commit(9, "g", "t", answered + 1));
        drop(peer);
        world = restart(world);
        let mut peer = world.connect();
        let found = offset(&mut peer, "g", "t");
        assert!(
            (answered..=answered + 1).contains(&found),
            "{found}, not {answered}"
        );
        drop(peer);
    }
}
