//! Malformed requests about groups, and requests that exceed limits.

use bytes::Bytes;
use cloverleaf_kafka::apis::{self, Api};
use cloverleaf_session::Session as _;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, HeartbeatRequest,
    ListGroupsRequest, OffsetDeleteRequest,
};
use kafka_protocol::protocol::Request;
use proptest::prelude::*;

use crate::common::{World, frame, text};
use crate::groups_common::{
    commit, fetch_request, group, join, leave_request, sync_request, versions,
};

const GROUPS: &[Api] = &[
    Api::OffsetCommit,
    Api::OffsetFetch,
    Api::FindCoordinator,
    Api::JoinGroup,
    Api::Heartbeat,
    Api::LeaveGroup,
    Api::SyncGroup,
    Api::DescribeGroups,
    Api::ListGroups,
    Api::DeleteGroups,
    Api::OffsetDelete,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_bodies_never_panic(body in prop::collection::vec(any::<u8>(), 0..120)) {
        let world = World::new();
        for api in GROUPS {
            let known = apis::find(*api as i16).unwrap();
            for version in known.min..=known.max {
                let mut request = (*api as i16).to_be_bytes().to_vec();
                request.extend_from_slice(&version.to_be_bytes());
                request.extend_from_slice(&[0, 0, 0, 1, 0xff, 0xff]);
                if known.is_flexible(version) {
                    request.push(0);
                }
                request.extend_from_slice(&body);
                let mut peer = world.connect();
                peer.feed(&(request.len() as u32).to_be_bytes());
                peer.feed(&request);
                peer.pump();
            }
        }
    }
}

/// Cuts a request off at each of its bytes: each of these requests closes the connection.
fn cut<R: Request>(version: i16, request: &R) {
    let world = World::new();
    let whole = frame(version, request, 1);
    // Size, key, version, correlation id, client id, tagged fields.
    let head = 20 + usize::from(R::header_version(version) > 1);
    for end in head..whole.len() {
        let mut part = whole[..end].to_vec();
        part[..4].copy_from_slice(&(end as u32 - 4).to_be_bytes());
        let mut peer = world.connect();
        peer.feed(&part);
        peer.pump();
        assert!(peer.session.is_ended(), "{} {version}, {end} bytes", R::KEY);
    }
}

#[test]
fn a_request_that_is_cut_off_closes_the_connection() {
    let joined = kafka_protocol::messages::JoinGroupResponse::default().with_member_id(text("m"));
    let name = || group("g");
    versions::<kafka_protocol::messages::JoinGroupRequest>()
        .for_each(|v| cut(v, &join(v, "g", "")));
    versions::<kafka_protocol::messages::SyncGroupRequest>()
        .for_each(|v| cut(v, &sync_request(v, "g", &joined, &[("m", "all")])));
    versions::<HeartbeatRequest>()
        .for_each(|v| cut(v, &HeartbeatRequest::default().with_group_id(name())));
    versions::<kafka_protocol::messages::LeaveGroupRequest>()
        .for_each(|v| cut(v, &leave_request(v, "g", "m")));
    versions::<kafka_protocol::messages::OffsetCommitRequest>()
        .for_each(|v| cut(v, &commit(v, "g", "t", 1)));
    versions::<kafka_protocol::messages::OffsetFetchRequest>()
        .for_each(|v| cut(v, &fetch_request(v, "g", Some("t"))));
    versions::<OffsetDeleteRequest>()
        .for_each(|v| cut(v, &OffsetDeleteRequest::default().with_group_id(name())));
    versions::<DescribeGroupsRequest>().for_each(|v| {
        cut(
            v,
            &DescribeGroupsRequest::default().with_groups(vec![name()]),
        )
    });
    versions::<ListGroupsRequest>().for_each(|v| cut(v, &ListGroupsRequest::default()));
    versions::<DeleteGroupsRequest>().for_each(|v| {
        cut(
            v,
            &DeleteGroupsRequest::default().with_groups_names(vec![name()]),
        )
    });
    versions::<FindCoordinatorRequest>().for_each(|v| cut(v, &FindCoordinatorRequest::default()));
}

#[test]
fn a_member_with_too_much_metadata_is_refused() {
    let world = World::new();
    let mut peer = world.connect();
    let mut large = join(9, "g", "");
    large.protocols[0].metadata = Bytes::from(vec![0; 2 << 20]);
    assert_eq!(peer.call(9, &large).error_code, 10);
    let joined = crate::groups_common::join_alone(&mut peer, 9, "g");
    let member = joined.member_id.to_string();
    let seven = "x".repeat(7 << 20);
    let request = sync_request(5, "g", &joined, &[(&member, &seven)]);
    assert_eq!(peer.call(5, &request).error_code, 0, "seven megabytes fit");
}

#[test]
fn all_groups_together_have_a_limit() {
    let world = World::new();
    let mut peer = world.connect();
    let mut refused = 0;
    for n in 0..300 {
        let mut large = join(3, &format!("g{n}"), "");
        large.protocols[0].metadata = Bytes::from(vec![0; 1 << 20 >> 1]);
        large.protocols.push(
            kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol::default()
                .with_name(text("other"))
                .with_metadata(Bytes::from(vec![0; (1 << 20 >> 1) - 2_000])),
        );
        match peer.call(3, &large).error_code {
            0 => assert_eq!(refused, 0),
            81 => refused += 1,
            error => panic!("{error}"),
        }
    }
    assert!(
        (40..=50).contains(&refused),
        "{refused} of 300 MB, 256 MB may be"
    );
}

#[test]
fn assignments_count_too() {
    let world = World::new();
    let mut peer = world.connect();
    let seven = "x".repeat(7 << 20);
    let (mut kept, mut refused) = (0, 0);
    for n in 0..40 {
        let name = format!("g{n}");
        let joined = crate::groups_common::join_alone(&mut peer, 9, &name);
        let member = joined.member_id.to_string();
        let request = sync_request(5, &name, &joined, &[(&member, &seven)]);
        match peer.call(5, &request).error_code {
            0 => kept += 1,
            81 => refused += 1,
            error => panic!("{error}"),
        }
    }
    assert_eq!((kept, refused), (36, 4), "256 MB may be");
}
