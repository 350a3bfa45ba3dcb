//! Requests of tools about groups, on the wire and in every version: FindCoordinator,
//! DescribeGroups, ListGroups, DeleteGroups.

use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, ListGroupsRequest,
};

use crate::common::{Peer, World, text};
use crate::groups_common::{
    commit, committed, fetched, group, join_alone, leave, settled, subscription, versions,
};

#[test]
fn the_coordinator_is_found_in_every_version() {
    let world = World::new();
    let mut peer = world.connect();
    for version in versions::<FindCoordinatorRequest>() {
        let request = |key_type: i8| {
            let mut request = FindCoordinatorRequest::default();
            if version >= 1 {
                request.key_type = key_type;
            }
            if version >= 4 {
                request.coordinator_keys = vec![text("g"), text("h")];
            } else {
                request.key = text("g");
            }
            request
        };
        let found = peer.call(version, &request(0));
        if version >= 4 {
            let keys: Vec<&str> = found.coordinators.iter().map(|one| &*one.key).collect();
            assert_eq!(keys, ["g", "h"]);
            let one = &found.coordinators[1];
            assert_eq!((one.error_code, one.node_id.0, one.port), (0, 1, 9092));
            assert_eq!(&*one.host, "127.0.0.1");
        } else {
            assert_eq!(
                (found.error_code, found.node_id.0, found.port),
                (0, 1, 9092)
            );
            assert_eq!(&*found.host, "127.0.0.1");
        }
        if version >= 1 {
            let refused = peer.call(version, &request(1));
            let (error, message) = match version {
                4.. => {
                    let one = &refused.coordinators[1];
                    (one.error_code, one.error_message.clone())
                }
                _ => (refused.error_code, refused.error_message),
            };
            assert_eq!(error, 53, "librdkafka tries again after other errors");
            assert!(message.unwrap().contains("transactional.id"));
        }
    }
}

#[test]
fn groups_are_described_in_every_version() {
    let world = World::new();
    let mut peer = world.connect();
    let joined = settled(&mut peer, "g");
    join_alone(&mut peer, 9, "joining");
    for version in versions::<DescribeGroupsRequest>() {
        let names = ["g", "joining", "nobody", "g"];
        let mut request = DescribeGroupsRequest::default()
            .with_groups(names.iter().map(|name| group(name)).collect());
        request.include_authorized_operations = version >= 3;
        let described = peer.call(version, &request);
        assert_eq!(described.groups.len(), 3, "each once");
        let one = &described.groups[0];
        assert_eq!((one.error_code, &*one.group_state), (0, "Stable"));
        assert_eq!(
            (&*one.protocol_type, &*one.protocol_data),
            ("consumer", "range")
        );
        let member = &one.members[0];
        assert_eq!(member.member_id, joined.member_id);
        assert_eq!(
            (&*member.client_id, &*member.client_host),
            ("a-test", "/127.0.0.1")
        );
        assert_eq!(member.member_metadata, subscription("t"));
        assert_eq!(&member.member_assignment[..], b"all");
        assert_eq!(one.authorized_operations == i32::MIN, version < 3);
        let two = &described.groups[1];
        assert_eq!(&*two.group_state, "CompletingRebalance");
        assert!(two.protocol_data.is_empty() && two.members[0].member_metadata.is_empty());
        let three = &described.groups[2];
        assert_eq!(&*three.group_state, "Dead");
        assert_eq!(three.error_code, if version >= 6 { 69 } else { 0 });
    }
}

fn listed(peer: &mut Peer<'_>, version: i16, states: &[&str], types: &[&str]) -> Vec<String> {
    let texts = |names: &[&str]| names.iter().map(|name| text(name)).collect();
    let request = ListGroupsRequest::default()
        .with_states_filter(texts(states))
        .with_types_filter(texts(types));
    let response = peer.call(version, &request);
    assert_eq!(response.error_code, 0);
    let names = response
        .groups
        .iter()
        .map(|group| group.group_id.to_string());
    names.collect()
}

#[test]
fn groups_are_listed_in_every_version_and_filtered() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    settled(&mut peer, "stable");
    committed(&mut peer, 9, &commit(9, "empty", "t", 1));
    for version in versions::<ListGroupsRequest>() {
        assert_eq!(listed(&mut peer, version, &[], &[]), ["empty", "stable"]);
    }
    assert_eq!(listed(&mut peer, 4, &["stable"], &[]), ["stable"]);
    assert_eq!(listed(&mut peer, 4, &["Empty", "Dead"], &[]), ["empty"]);
    assert_eq!(listed(&mut peer, 5, &[], &["Classic"]), ["empty", "stable"]);
    assert!(listed(&mut peer, 5, &[], &["consumer"]).is_empty());
    let all = peer.call(5, &ListGroupsRequest::default());
    let one = &all.groups[1];
    assert_eq!((&*one.group_state, &*one.group_type), ("Stable", "classic"));
    assert_eq!(&*one.protocol_type, "consumer");
}

#[test]
fn groups_without_members_are_deleted_in_every_version() {
    for version in versions::<DeleteGroupsRequest>() {
        let world = World::new();
        world.topic("t", 1);
        let mut peer = world.connect();
        let joined = settled(&mut peer, "used");
        committed(&mut peer, 9, &commit(9, "free", "t", 1));
        let delete = |peer: &mut Peer<'_>| -> Vec<i16> {
            let names = ["used", "free", "nobody"];
            let request = DeleteGroupsRequest::default()
                .with_groups_names(names.iter().map(|name| group(name)).collect());
            let response = peer.call(version, &request);
            response
                .results
                .iter()
                .map(|result| result.error_code)
                .collect()
        };
        assert_eq!(delete(&mut peer), [68, 0, 69]);
        assert!(fetched(&mut peer, 9, "free", None).is_empty());
        leave(&mut peer, 5, "used", &joined.member_id);
        assert_eq!(delete(&mut peer), [0, 69, 69]);
        assert!(listed(&mut peer, 5, &[], &[]).is_empty());
        assert!(world.broker.kept_under("kafka-group/").is_empty());
        settled(&mut peer, "used");
    }
}
