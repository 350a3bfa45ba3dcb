//! Committed offsets, on the wire and in every version.

use cloverleaf_broker::{BrokerOptions, DurabilityMode};
use cloverleaf_kafka::KafkaOptions;
use cloverleaf_log::LogOptions;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest};

use crate::common::fetch::publish;
use crate::common::{World, no_delay, text};
use crate::groups_common::{
    ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, commit, committed, fetch_request,
    fetched, group, join, join_alone, leave, offset, settled, topic, versions,
};

const UNKNOWN_TOPIC: i16 = 3;

#[test]
fn offsets_are_committed_in_every_version() {
    for version in versions::<OffsetCommitRequest>() {
        let world = World::new();
        world.topic("t", 2);
        let mut peer = world.connect();
        assert_eq!(
            committed(&mut peer, version, &commit(version, "g", "t", 7)),
            0
        );
        let epoch = if version >= 6 { 0 } else { -1 };
        let answered = fetched(&mut peer, 9, "g", Some("t"));
        assert_eq!(answered, [("t".to_owned(), 7, epoch, "note".to_owned())]);
        let unknown = commit(version, "g", "no such topic", 7);
        assert_eq!(committed(&mut peer, version, &unknown), UNKNOWN_TOPIC);
    }
}

#[test]
fn offsets_are_fetched_in_every_version() {
    let world = World::new();
    world.topic("t", 1);
    world.topic("u", 1);
    let mut peer = world.connect();
    committed(&mut peer, 9, &commit(9, "g", "t", 5));
    for version in versions::<OffsetFetchRequest>() {
        let epoch = if version >= 5 { 0 } else { -1 };
        let expected = ("t".to_owned(), 5, epoch, "note".to_owned());
        let some = fetched(&mut peer, version, "g", Some("t"));
        assert_eq!(some, std::slice::from_ref(&expected));
        let none = ("u".to_owned(), -1, -1, String::new());
        assert_eq!(fetched(&mut peer, version, "g", Some("u")), [none]);
        let stranger = ("t".to_owned(), -1, -1, String::new());
        assert_eq!(fetched(&mut peer, version, "nobody", Some("t")), [stranger]);
        if version >= 2 {
            assert_eq!(fetched(&mut peer, version, "g", None), [expected]);
        }
    }
}

#[test]
fn offsets_of_several_groups_are_fetched_at_once() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    committed(&mut peer, 9, &commit(9, "a", "t", 1));
    committed(&mut peer, 9, &commit(9, "b", "t", 2));
    let all = |name: &str| {
        OffsetFetchRequestGroup::default()
            .with_group_id(group(name))
            .with_topics(None)
    };
    let request = OffsetFetchRequest::default()
        .with_groups(vec![all("b"), all("a"), all("c"), all("a")])
        .with_require_stable(true);
    let response = peer.call(9, &request);
    let answered: Vec<(String, Vec<i64>)> = response
        .groups
        .iter()
        .map(|group| {
            let partitions = group.topics.iter().flat_map(|topic| &topic.partitions);
            let offsets = partitions.map(|partition| partition.committed_offset);
            (group.group_id.to_string(), offsets.collect())
        })
        .collect();
    let expected = [("b", vec![2]), ("a", vec![1]), ("c", vec![])];
    assert_eq!(
        answered,
        expected.map(|(name, offsets)| (name.to_owned(), offsets))
    );
}

#[test]
fn a_fetch_after_a_queued_commit_returns_its_offset() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let commit_id = peer.send(9, &commit(9, "g", "t", 3));
    let fetch_id = peer.send(9, &fetch_request(9, "g", Some("t")));
    peer.poll();
    peer.expect_nothing();
    peer.pump();
    let answer = peer.expect::<OffsetCommitRequest>(9, commit_id);
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    let answered = peer.expect::<OffsetFetchRequest>(9, fetch_id);
    assert_eq!(
        answered.groups[0].topics[0].partitions[0].committed_offset,
        3
    );
}

#[test]
fn members_commit_and_others_do_not() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let joined = join_alone(&mut peer, 9, "g");
    let mut by_member = commit(9, "g", "t", 1);
    by_member.member_id = joined.member_id.clone();
    by_member.generation_id_or_member_epoch = joined.generation_id;
    assert_eq!(committed(&mut peer, 9, &by_member), REBALANCE_IN_PROGRESS);
    let member = joined.member_id.to_string();
    crate::groups_common::sync(&mut peer, 5, "g", &joined, &[(&member, "all")]);
    assert_eq!(committed(&mut peer, 9, &by_member), 0);
    by_member.generation_id_or_member_epoch += 1;
    assert_eq!(committed(&mut peer, 9, &by_member), ILLEGAL_GENERATION);
    assert_eq!(
        committed(&mut peer, 9, &commit(9, "g", "t", 9)),
        UNKNOWN_MEMBER_ID
    );
    let mut nowhere = by_member.clone();
    nowhere.group_id = group("nowhere");
    assert_eq!(committed(&mut peer, 8, &nowhere), ILLEGAL_GENERATION);
    assert_eq!(committed(&mut peer, 9, &nowhere), 69);
    assert_eq!(offset(&mut peer, "g", "t"), 1);
    leave(&mut peer, 5, "g", &joined.member_id);
    assert_eq!(committed(&mut peer, 9, &commit(9, "g", "t", 9)), 0);
    assert_eq!(offset(&mut peer, "g", "t"), 9);
}

#[test]
fn each_partition_has_its_own_outcome() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let mut request = commit(9, "g", "t", 4);
    let good = request.topics[0].partitions[0].clone();
    let partitions = &mut request.topics[0].partitions;
    partitions.push(good.clone().with_partition_index(1));
    partitions.push(good.clone().with_partition_index(-1));
    let long = "x".repeat(4_097);
    partitions.push(good.clone().with_committed_metadata(Some(text(&long))));
    partitions.push(good.clone().with_committed_offset(-5));
    partitions.push(good.with_committed_metadata(None));
    let response = peer.call(9, &request);
    let partitions = &response.topics[0].partitions;
    let errors: Vec<i16> = partitions
        .iter()
        .map(|partition| partition.error_code)
        .collect();
    assert_eq!(errors, [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC, 12, 0, 0]);
    let answered = fetched(&mut peer, 9, "g", Some("t"));
    assert_eq!(answered[0].3, "", "the last one counts");
}

#[test]
fn a_negative_offset_deletes_the_committed_one() {
    let none = |name: &str| (name.to_owned(), -1, -1, String::new());
    for version in versions::<OffsetCommitRequest>() {
        let world = World::new();
        world.topic("t", 1);
        world.topic("u", 1);
        let mut peer = world.connect();
        for name in ["t", "u"] {
            committed(&mut peer, version, &commit(version, "g", name, 7));
        }
        // kafkajs commits these to reset an offset: -1 for the latest, -2 for the earliest.
        for offset in [-1, -2] {
            let mut request = commit(version, "g", "t", offset);
            request.topics.extend(commit(version, "g", "u", 9).topics);
            let response = peer.call(version, &request);
            for topic in &response.topics {
                assert_eq!(topic.partitions[0].error_code, 0);
            }
            assert_eq!(fetched(&mut peer, 9, "g", Some("t")), [none("t")]);
            assert_eq!(fetched(&mut peer, 9, "g", Some("u"))[0].1, 9);
        }
        assert_eq!(fetched(&mut peer, 9, "g", None).len(), 1);
        let request = commit(version, "stranger", "t", -1);
        assert_eq!(committed(&mut peer, version, &request), 0);
        assert_eq!(fetched(&mut peer, 9, "stranger", Some("t")), [none("t")]);
    }
}

#[test]
fn offsets_are_deleted_with_their_topic() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    committed(&mut peer, 9, &commit(9, "g", "t", 4));
    world.broker.delete_topic("t").unwrap();
    assert_eq!(offset(&mut peer, "g", "t"), -1);
    world.topic("t", 1);
    assert_eq!(
        offset(&mut peer, "g", "t"),
        -1,
        "another topic of the same name"
    );
    assert!(fetched(&mut peer, 9, "g", None).is_empty());
}

#[test]
fn offsets_of_unsubscribed_topics_can_be_deleted() {
    let world = World::new();
    world.topic("t", 1);
    world.topic("u", 1);
    let mut peer = world.connect();
    committed(&mut peer, 9, &commit(9, "g", "t", 1));
    committed(&mut peer, 9, &commit(9, "g", "u", 2));
    settled(&mut peer, "g");
    let of = |name: &str, partitions: &[i32]| {
        let partition =
            |index: &i32| OffsetDeleteRequestPartition::default().with_partition_index(*index);
        OffsetDeleteRequestTopic::default()
            .with_name(topic(name))
            .with_partitions(partitions.iter().map(partition).collect())
    };
    let request = OffsetDeleteRequest::default()
        .with_group_id(group("g"))
        .with_topics(vec![of("t", &[0]), of("u", &[0, 9]), of("none", &[0])]);
    let response = peer.call(0, &request);
    assert_eq!(response.error_code, 0);
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    let errors: Vec<i16> = partitions.map(|partition| partition.error_code).collect();
    assert_eq!(errors, [86, 0, UNKNOWN_TOPIC, UNKNOWN_TOPIC]);
    assert_eq!(offset(&mut peer, "g", "t"), 1);
    assert_eq!(offset(&mut peer, "g", "u"), -1);
    let nobody = request.with_group_id(group("nobody"));
    assert_eq!(peer.call(0, &nobody).error_code, 69);
}

#[test]
fn offsets_of_unused_groups_expire() {
    let world = World::with(KafkaOptions {
        offsets_retention_ms: 600_000,
        ..no_delay()
    });
    world.topic("t", 1);
    let mut peer = world.connect();
    let mut member = world.connect();
    committed(&mut peer, 9, &commit(9, "simple", "t", 1));
    let joined = settled(&mut member, "used");
    let mut request = commit(9, "used", "t", 2);
    request.member_id = joined.member_id.clone();
    request.generation_id_or_member_epoch = joined.generation_id;
    committed(&mut member, 9, &request);
    for _ in 0..70 {
        peer.advance(9_000);
        assert_eq!(
            crate::groups_common::heartbeat(&mut member, "used", &joined),
            0
        );
    }
    peer.advance(60_000);
    assert_eq!(offset(&mut peer, "simple", "t"), -1);
    assert_eq!(offset(&mut peer, "used", "t"), 2, "its topic is subscribed");
    peer.advance(10_000);
    peer.advance(500_000);
    assert_eq!(
        offset(&mut peer, "used", "t"),
        2,
        "its members have not been gone so long"
    );
    peer.advance(200_000);
    assert_eq!(offset(&mut peer, "used", "t"), -1);
    peer.advance(60_000);
    assert!(world.broker.kept_under("kafka-group/").is_empty());
    let answered = peer.call(9, &join(9, "used", &joined.member_id));
    assert_eq!(answered.error_code, UNKNOWN_MEMBER_ID);
}

/// A world with this durability mode.
fn durable(durability: DurabilityMode) -> World {
    let options = BrokerOptions {
        durability,
        ..BrokerOptions::default()
    };
    let world = World::build(no_delay(), LogOptions::default(), options);
    world.topic("t", 1);
    world
}

#[test]
fn a_commit_waits_for_the_sync_in_the_mode_disk() {
    for (durability, waits) in [
        (DurabilityMode::Protocol, false),
        (DurabilityMode::Kernel, false),
        (DurabilityMode::Disk, true),
    ] {
        let world = durable(durability);
        let mut peer = world.connect();
        let id = peer.send(9, &commit(9, "g", "t", 8));
        peer.poll();
        peer.expect_nothing();
        world.work();
        peer.poll();
        if waits {
            peer.expect_nothing();
            world.log.step();
            peer.poll();
        }
        let answer = peer.expect::<OffsetCommitRequest>(9, id);
        assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    }
}

#[test]
fn a_commit_that_was_synced_survives_power_loss() {
    for seed in 0..20 {
        let world = durable(DurabilityMode::Disk);
        publish(&world.topic("t", 1), 0, &["m"; 8]);
        world.settle();
        let mut peer = world.connect();
        assert_eq!(committed(&mut peer, 9, &commit(9, "g", "t", 8)), 0);
        drop(peer);
        let disk = world.disk.clone();
        disk.power_loss(seed);
        drop(world);
        let (kafka, log) = (no_delay(), LogOptions::default());
        let world = World::on(disk, kafka, log, BrokerOptions::default());
        assert_eq!(offset(&mut world.connect(), "g", "t"), 8);
    }
}
