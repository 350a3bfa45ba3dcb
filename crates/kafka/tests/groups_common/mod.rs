//! Requests about groups, and members that make them.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
    SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::Request;

use crate::common::{Peer, text};

pub const SESSION_MS: i32 = 10_000;

pub const MEMBER_ID_REQUIRED: i16 = 79;
pub const UNKNOWN_MEMBER_ID: i16 = 25;
pub const ILLEGAL_GENERATION: i16 = 22;
pub const REBALANCE_IN_PROGRESS: i16 = 27;

/// The versions of a request that are served.
pub fn versions<R: Request>() -> std::ops::RangeInclusive<i16> {
    let known = cloverleaf_kafka::apis::find(R::KEY).unwrap();
    known.min..=known.max
}

pub fn group(name: &str) -> GroupId {
    GroupId(text(name))
}

pub fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

/// The metadata of a consumer that subscribes to a topic.
pub fn subscription(topic: &str) -> Bytes {
    let mut bytes = vec![0, 0, 0, 0, 0, 1, 0, topic.len() as u8];
    bytes.extend_from_slice(topic.as_bytes());
    bytes.extend_from_slice(&[0xff; 4]);
    bytes.into()
}

pub fn join(version: i16, name: &str, member: &str) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(subscription("t"));
    let mut request = JoinGroupRequest::default()
        .with_group_id(group(name))
        .with_session_timeout_ms(SESSION_MS)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request.rebalance_timeout_ms = 30_000;
    }
    if version >= 8 {
        request.reason = Some(text("a test"));
    }
    request
}

/// Joins a group that has no other members, with as many requests as the version needs.
pub fn join_alone(peer: &mut Peer<'_>, version: i16, name: &str) -> JoinGroupResponse {
    let mut joined = peer.call(version, &join(version, name, ""));
    if version >= 4 {
        assert_eq!(joined.error_code, MEMBER_ID_REQUIRED);
        joined = peer.call(version, &join(version, name, &joined.member_id));
    }
    assert_eq!(joined.error_code, 0);
    joined
}

pub fn sync(
    peer: &mut Peer<'_>,
    version: i16,
    name: &str,
    joined: &JoinGroupResponse,
    gives: &[(&str, &str)],
) -> SyncGroupResponse {
    peer.call(version, &sync_request(version, name, joined, gives))
}

pub fn sync_request(
    version: i16,
    name: &str,
    joined: &JoinGroupResponse,
    gives: &[(&str, &str)],
) -> SyncGroupRequest {
    let assignments = gives.iter().map(|(member, what)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(Bytes::copy_from_slice(what.as_bytes()))
    });
    let mut request = SyncGroupRequest::default()
        .with_group_id(group(name))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(assignments.collect());
    if version >= 5 {
        request.protocol_type = Some(text("consumer"));
        request.protocol_name = Some(text("range"));
    }
    request
}

/// The only member of a stable group.
pub fn settled(peer: &mut Peer<'_>, name: &str) -> JoinGroupResponse {
    let joined = join_alone(peer, 9, name);
    let member = joined.member_id.to_string();
    let synced = sync(peer, 5, name, &joined, &[(&member, "all")]);
    assert_eq!(
        (synced.error_code, &synced.assignment[..]),
        (0, &b"all"[..])
    );
    joined
}

pub fn heartbeat(peer: &mut Peer<'_>, name: &str, joined: &JoinGroupResponse) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group(name))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone());
    peer.call(4, &request).error_code
}

pub fn leave(peer: &mut Peer<'_>, version: i16, name: &str, member: &str) -> LeaveGroupResponse {
    peer.call(version, &leave_request(version, name, member))
}

pub fn leave_request(version: i16, name: &str, member: &str) -> LeaveGroupRequest {
    let mut request = LeaveGroupRequest::default().with_group_id(group(name));
    if version >= 3 {
        let mut one = MemberIdentity::default().with_member_id(text(member));
        if version >= 5 {
            one.reason = Some(text("done"));
        }
        request.members = vec![one];
    } else {
        request.member_id = text(member);
    }
    request
}

/// A commit for partition 0, from a client that is not a member.
pub fn commit(version: i16, name: &str, in_topic: &str, offset: i64) -> OffsetCommitRequest {
    let mut partition = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text("note")));
    if version >= 6 {
        partition.committed_leader_epoch = 0;
    }
    let one = OffsetCommitRequestTopic::default()
        .with_name(topic(in_topic))
        .with_partitions(vec![partition]);
    OffsetCommitRequest::default()
        .with_group_id(group(name))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![one])
}

/// The error of the first partition of a commit.
pub fn committed(peer: &mut Peer<'_>, version: i16, request: &OffsetCommitRequest) -> i16 {
    peer.call(version, request).topics[0].partitions[0].error_code
}

/// An OffsetFetch for partition 0 of a topic, or for all offsets of the group.
pub fn fetch_request(version: i16, name: &str, of: Option<&str>) -> OffsetFetchRequest {
    if version < 8 {
        let topics = of.map(|of| {
            vec![
                OffsetFetchRequestTopic::default()
                    .with_name(topic(of))
                    .with_partition_indexes(vec![0]),
            ]
        });
        return OffsetFetchRequest::default()
            .with_group_id(group(name))
            .with_topics(topics);
    }
    let topics = of.map(|of| {
        vec![
            OffsetFetchRequestTopics::default()
                .with_name(topic(of))
                .with_partition_indexes(vec![0]),
        ]
    });
    let one = OffsetFetchRequestGroup::default()
        .with_group_id(group(name))
        .with_topics(topics);
    OffsetFetchRequest::default().with_groups(vec![one])
}

/// Topic, offset, leader epoch and metadata of each committed offset.
pub fn fetched(
    peer: &mut Peer<'_>,
    version: i16,
    name: &str,
    of: Option<&str>,
) -> Vec<(String, i64, i32, String)> {
    let response = peer.call(version, &fetch_request(version, name, of));
    let mut all = Vec::new();
    assert_eq!(response.error_code, 0);
    for one in &response.topics {
        for partition in &one.partitions {
            assert_eq!(partition.error_code, 0);
            all.push((
                one.name.to_string(),
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.metadata.as_ref().unwrap().to_string(),
            ));
        }
    }
    for one in response.groups.iter().flat_map(|group| &group.topics) {
        for partition in &one.partitions {
            assert_eq!(partition.error_code, 0);
            all.push((
                one.name.to_string(),
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.metadata.as_ref().unwrap().to_string(),
            ));
        }
    }
    all
}

/// The committed offset of partition 0; -1: none.
pub fn offset(peer: &mut Peer<'_>, name: &str, of: &str) -> i64 {
    fetched(peer, 9, name, Some(of))[0].1
}
