//! Members of groups, on the wire and in every version: JoinGroup, SyncGroup, Heartbeat,
//! LeaveGroup.

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest,
};

use crate::common::{World, no_delay, text};
use crate::groups_common::{
    ILLEGAL_GENERATION, MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, SESSION_MS, UNKNOWN_MEMBER_ID,
    group, heartbeat, join, join_alone, leave, settled, subscription, sync, sync_request, versions,
};
use cloverleaf_kafka::KafkaOptions;

#[test]
fn two_members_share_a_group_in_every_version_of_join_group() {
    for version in versions::<JoinGroupRequest>() {
        let world = World::new();
        let (mut one, mut two) = (world.connect(), world.connect());
        let first = join_alone(&mut one, version, "g");
        assert_eq!((first.generation_id, first.members.len()), (1, 1));
        assert_eq!(first.leader, first.member_id);
        assert_eq!(first.protocol_name.as_ref().unwrap(), &text("range"));
        assert_eq!(first.protocol_type.is_some(), version >= 7);
        assert_eq!(first.members[0].metadata, subscription("t"));

        let mut id = String::new();
        if version >= 4 {
            let answered = two.call(version, &join(version, "g", ""));
            assert_eq!(answered.error_code, MEMBER_ID_REQUIRED);
            id = answered.member_id.to_string();
        }
        let two_asked = two.send(version, &join(version, "g", &id));
        two.pump();
        two.expect_nothing();
        // The first member has not sent its SyncGroup. It need not, because its generation has
        // ended.
        let first = one.call(version, &join(version, "g", &first.member_id));
        two.pump();
        let second = two.expect::<JoinGroupRequest>(version, two_asked);
        assert_eq!((first.error_code, second.error_code), (0, 0));
        assert_eq!((first.generation_id, second.generation_id), (2, 2));
        assert_eq!((first.members.len(), second.members.len()), (2, 0));
        assert_eq!(second.leader, first.member_id);
        assert!(!first.skip_assignment && !second.skip_assignment);
    }
}

#[test]
fn assignments_reach_every_member_in_every_version_of_sync_group() {
    for version in versions::<SyncGroupRequest>() {
        let world = World::new();
        let (mut one, mut two) = (world.connect(), world.connect());
        let first = join_alone(&mut one, 3, "g");
        let asked = two.send(3, &join(3, "g", ""));
        two.pump();
        let first = one.call(3, &join(3, "g", &first.member_id));
        two.pump();
        let second = two.expect::<JoinGroupRequest>(3, asked);
        let waits = two.send(version, &sync_request(version, "g", &second, &[]));
        two.pump();
        two.expect_nothing();
        let gives = [(&*first.member_id, "a"), (&*second.member_id, "b")];
        let synced = sync(&mut one, version, "g", &first, &gives);
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"a"[..]));
        assert_eq!(synced.protocol_name.is_some(), version >= 5);
        two.pump();
        let synced = two.expect::<SyncGroupRequest>(version, waits);
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"b"[..]));
    }
}

#[test]
fn heartbeats_and_leaving_in_every_version() {
    for version in versions::<HeartbeatRequest>() {
        let world = World::new();
        let mut peer = world.connect();
        let joined = settled(&mut peer, "g");
        let mut request = HeartbeatRequest::default()
            .with_group_id(group("g"))
            .with_generation_id(joined.generation_id)
            .with_member_id(joined.member_id.clone());
        assert_eq!(peer.call(version, &request).error_code, 0);
        request.generation_id += 1;
        let error = peer.call(version, &request).error_code;
        assert_eq!(error, ILLEGAL_GENERATION);
        request.member_id = text("nobody");
        let error = peer.call(version, &request).error_code;
        assert_eq!(error, UNKNOWN_MEMBER_ID);
    }
    for version in versions::<LeaveGroupRequest>() {
        let world = World::new();
        let mut peer = world.connect();
        let joined = settled(&mut peer, "g");
        let outcome = |left: &kafka_protocol::messages::LeaveGroupResponse| match version {
            ..3 => left.error_code,
            _ => {
                assert_eq!(left.error_code, 0);
                left.members[0].error_code
            }
        };
        let left = leave(&mut peer, version, "g", "nobody");
        assert_eq!(outcome(&left), UNKNOWN_MEMBER_ID);
        let left = leave(&mut peer, version, "g", &joined.member_id);
        assert_eq!(outcome(&left), 0);
        assert_eq!(heartbeat(&mut peer, "g", &joined), UNKNOWN_MEMBER_ID);
        let left = leave(&mut peer, version, "no such group", &joined.member_id);
        assert_eq!(outcome(&left), UNKNOWN_MEMBER_ID);
    }
}

#[test]
fn a_member_whose_session_expires_is_removed() {
    let world = World::new();
    let (mut one, mut two) = (world.connect(), world.connect());
    let dead = settled(&mut one, "g");
    let answered = two.call(9, &join(9, "g", ""));
    let asked = two.send(9, &join(9, "g", &answered.member_id));
    two.pump();
    two.expect_nothing();
    two.advance(SESSION_MS as u64 - 1);
    two.expect_nothing();
    two.advance(1);
    let joined = two.expect::<JoinGroupRequest>(9, asked);
    assert_eq!((joined.error_code, joined.members.len()), (0, 1));
    assert_eq!(heartbeat(&mut one, "g", &dead), UNKNOWN_MEMBER_ID);
}

#[test]
fn a_static_member_rejoins_without_a_rebalance_and_fences_its_old_id() {
    let world = World::new();
    let mut peer = world.connect();
    let mut request = join(9, "g", "");
    request.group_instance_id = Some(text("i"));
    let first = peer.call(9, &request);
    assert_eq!(first.error_code, 0);
    assert_eq!(first.members[0].group_instance_id, Some(text("i")));
    let member = first.member_id.to_string();
    sync(&mut peer, 5, "g", &first, &[(&member, "mine")]);
    let again = peer.call(9, &request);
    assert_eq!(
        (again.error_code, again.generation_id),
        (0, first.generation_id)
    );
    assert!(again.skip_assignment);
    let synced = sync(&mut peer, 5, "g", &again, &[]);
    assert_eq!(&synced.assignment[..], b"mine");
    let fenced = HeartbeatRequest::default()
        .with_group_id(group("g"))
        .with_generation_id(first.generation_id)
        .with_member_id(first.member_id.clone())
        .with_group_instance_id(Some(text("i")));
    assert_eq!(peer.call(4, &fenced).error_code, 82);
    // An administrator removes it by its `group.instance.id`.
    let by_name = MemberIdentity::default().with_group_instance_id(Some(text("i")));
    let nobody = MemberIdentity::default().with_group_instance_id(Some(text("j")));
    let request = LeaveGroupRequest::default()
        .with_group_id(group("g"))
        .with_members(vec![by_name, nobody]);
    let left = peer.call(5, &request);
    let errors: Vec<i16> = left
        .members
        .iter()
        .map(|member| member.error_code)
        .collect();
    assert_eq!(errors, [0, UNKNOWN_MEMBER_ID]);
}

#[test]
fn a_cooperative_rebalance_is_two_in_a_row() {
    let world = World::new();
    let (mut one, mut two) = (world.connect(), world.connect());
    let first = settled(&mut one, "g");
    let answered = two.call(9, &join(9, "g", ""));
    let asked = two.send(9, &join(9, "g", &answered.member_id));
    two.pump();
    assert_eq!(heartbeat(&mut one, "g", &first), REBALANCE_IN_PROGRESS);
    let first = one.call(9, &join(9, "g", &first.member_id));
    two.pump();
    let second = two.expect::<JoinGroupRequest>(9, asked);
    // In the first rebalance the first member gives up a half, and the second member gets nothing
    // yet.
    let gives = [(&*first.member_id, "half"), (&*second.member_id, "")];
    sync(&mut one, 5, "g", &first, &gives);
    assert!(sync(&mut two, 5, "g", &second, &[]).assignment.is_empty());
    // After that the leader rejoins with new metadata, which begins the second rebalance.
    let mut again = join(9, "g", &first.member_id);
    again.protocols = vec![
        JoinGroupRequestProtocol::default()
            .with_name(text("range"))
            .with_metadata(subscription("u")),
    ];
    let asked = one.send(9, &again);
    one.pump();
    one.expect_nothing();
    assert_eq!(heartbeat(&mut two, "g", &second), REBALANCE_IN_PROGRESS);
    let second = two.call(9, &join(9, "g", &second.member_id));
    one.pump();
    let first = one.expect::<JoinGroupRequest>(9, asked);
    let gives = [
        (&*first.member_id, "half"),
        (&*second.member_id, "other half"),
    ];
    sync(&mut one, 5, "g", &first, &gives);
    let synced = sync(&mut two, 5, "g", &second, &[]);
    assert_eq!(&synced.assignment[..], b"other half");
}

#[test]
fn invalid_requests_are_refused() {
    let world = World::with(KafkaOptions {
        groups_max: 2,
        ..no_delay()
    });
    let mut peer = world.connect();
    let refused = |peer: &mut crate::common::Peer<'_>, request: &JoinGroupRequest| {
        let joined = peer.call(9, request);
        (joined.error_code, joined.generation_id)
    };
    assert_eq!(refused(&mut peer, &join(9, "", "")), (24, -1), "no name");
    let mut short = join(9, "g", "");
    short.session_timeout_ms = 5_999;
    assert_eq!(refused(&mut peer, &short), (26, -1), "session timeout");
    let mut mixed = join(9, "g", "");
    mixed.protocols.clear();
    assert_eq!(refused(&mut peer, &mixed), (23, -1), "no protocol");
    let unknown = join(9, "g", "nobody");
    assert_eq!(refused(&mut peer, &unknown), (UNKNOWN_MEMBER_ID, -1));
    settled(&mut peer, "a");
    assert_eq!(
        refused(&mut peer, &join(9, "b", "")),
        (81, -1),
        "too many groups"
    );
    let mut wrong = sync_request(5, "a", &settled_again(&mut peer), &[]);
    wrong.protocol_name = Some(text("sticky"));
    assert_eq!(peer.call(5, &wrong).error_code, 23);
}

fn settled_again(
    peer: &mut crate::common::Peer<'_>,
) -> kafka_protocol::messages::JoinGroupResponse {
    let described =
        kafka_protocol::messages::DescribeGroupsRequest::default().with_groups(vec![group("a")]);
    let described = peer.call(5, &described);
    let member = described.groups[0].members[0].member_id.clone();
    kafka_protocol::messages::JoinGroupResponse::default()
        .with_generation_id(1)
        .with_member_id(member)
}
