//! Groups and committed offsets when the machine's clock was set back between two runs. Within a
//! run nothing can set the broker's clock: it is monotonic.

use cloverleaf_broker::BrokerOptions;
use cloverleaf_kafka::KafkaOptions;
use cloverleaf_log::LogOptions;
use kafka_protocol::messages::{DescribeGroupsRequest, JoinGroupRequest};

use crate::common::fetch::publish;
use crate::common::{Peer, World, no_delay};
use crate::groups_common::{
    REBALANCE_IN_PROGRESS, SESSION_MS, UNKNOWN_MEMBER_ID, commit, committed, group, heartbeat,
    join, leave, offset, settled, sync,
};

const DAY_MS: u64 = 24 * 3_600_000;
const RETENTION_MS: u64 = 600_000;

fn options() -> KafkaOptions {
    KafkaOptions {
        offsets_retention_ms: RETENTION_MS,
        ..no_delay()
    }
}

/// A broker whose clock is ten days ahead of the clock in the next run.
fn ahead() -> World {
    let world = World::with(options());
    world.clock.advance(10 * DAY_MS);
    publish(&world.topic("t", 1), 0, &["m"; 5]);
    world
}

/// Kills the broker and starts it again with the clock set back.
fn restart_set_back(world: World) -> World {
    let disk = world.disk.clone();
    disk.kill();
    drop(world);
    World::on(
        disk,
        options(),
        LogOptions::default(),
        BrokerOptions::default(),
    )
}

fn state(peer: &mut Peer<'_>, name: &str) -> String {
    let request = DescribeGroupsRequest::default().with_groups(vec![group(name)]);
    peer.call(5, &request).groups[0].group_state.to_string()
}

#[test]
fn session_and_rebalance_timeouts_are_unchanged() {
    let world = ahead();
    let mut peer = world.connect();
    let joined = settled(&mut peer, "g");
    drop(peer);

    let world = restart_set_back(world);
    let (mut one, mut two) = (world.connect(), world.connect());
    assert_eq!(state(&mut one, "g"), "Stable");
    one.advance(SESSION_MS as u64 - 1);
    assert_eq!(heartbeat(&mut one, "g", &joined), 0);
    one.advance(SESSION_MS as u64 - 1);
    assert_eq!(heartbeat(&mut one, "g", &joined), 0);

    // A second member waits for the first one, but not longer than the session timeout of the
    // first.
    let answered = two.call(9, &join(9, "g", ""));
    let id = two.send(9, &join(9, "g", &answered.member_id));
    two.pump();
    two.expect_nothing();
    assert_eq!(heartbeat(&mut one, "g", &joined), REBALANCE_IN_PROGRESS);
    two.advance(SESSION_MS as u64 - 1);
    two.expect_nothing();
    two.advance(1);
    let alone = two.expect::<JoinGroupRequest>(9, id);
    assert_eq!((alone.error_code, alone.members.len()), (0, 1));
    assert!(alone.generation_id > joined.generation_id);
    let member = alone.member_id.to_string();
    let synced = sync(&mut two, 5, "g", &alone, &[(&member, "all")]);
    assert_eq!(&synced.assignment[..], b"all");
    assert_eq!(heartbeat(&mut one, "g", &joined), UNKNOWN_MEMBER_ID);
    two.advance(SESSION_MS as u64);
    assert_eq!(state(&mut two, "g"), "Empty");
}

#[test]
fn committed_offsets_expire_late_and_never_early() {
    let world = ahead();
    let mut peer = world.connect();
    assert_eq!(committed(&mut peer, 9, &commit(9, "simple", "t", 3)), 0);
    let joined = settled(&mut peer, "left");
    let mut request = commit(9, "left", "t", 4);
    request.member_id = joined.member_id.clone();
    request.generation_id_or_member_epoch = joined.generation_id;
    assert_eq!(committed(&mut peer, 9, &request), 0);
    leave(&mut peer, 5, "left", &joined.member_id);
    drop(peer);

    let world = restart_set_back(world);
    let mut peer = world.connect();
    let offsets = |peer: &mut Peer<'_>| [offset(peer, "simple", "t"), offset(peer, "left", "t")];
    assert_eq!(committed(&mut peer, 9, &commit(9, "new", "t", 5)), 0);
    peer.advance(RETENTION_MS + 60_000);
    assert_eq!(offset(&mut peer, "new", "t"), -1, "it was committed now");
    assert_eq!(offsets(&mut peer), [3, 4]);
    peer.advance(10 * DAY_MS - 120_000);
    assert_eq!(offsets(&mut peer), [3, 4], "as old as they say they are");
    peer.advance(120_000);
    assert_eq!(offsets(&mut peer), [-1, -1]);
}
