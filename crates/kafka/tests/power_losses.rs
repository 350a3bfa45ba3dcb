//! Offsets after a power loss: a client that compares its position with the end reaches the end
//! without a new message, even if it has read messages that were lost.

use cloverleaf_broker::BrokerOptions;
use cloverleaf_kafka::KafkaOptions;
use cloverleaf_log::LogOptions;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest,
};

use crate::common::fetch::{FetchCall, parts, publish, results, strings};
use crate::common::{Peer, World};
use crate::groups_common::{commit, committed, fetched, offset, topic};

const GAP: i64 = 1 << 24;

/// Three messages survive and two are lost. One group has read three messages, one all five, one
/// only the first.
fn after_a_power_loss() -> World {
    let lost = |seed| {
        let world = World::new();
        let t = world.topic("t", 1);
        publish(&t, 0, &["a", "b", "c"]);
        let mut peer = world.connect();
        for (name, offset) in [("caught up", 3), ("ahead", 5), ("behind", 1)] {
            assert_eq!(committed(&mut peer, 9, &commit(9, name, "t", offset)), 0);
        }
        drop(peer);
        world.log.sync_all().unwrap();
        publish(&t, 0, &["d", "e"]);
        world.disk.power_loss(seed);
        let world = restart(world.disk.clone());
        let end = world.topic("t", 1).partition(0).unwrap().written_end();
        (end == 3).then_some(world)
    };
    // Any part of the unsynced messages may survive.
    (0..100).find_map(lost).expect("it loses them sometimes")
}

fn restart(disk: cloverleaf_log::SimDisk) -> World {
    World::on(
        disk,
        KafkaOptions::default(),
        LogOptions::default(),
        BrokerOptions::default(),
    )
}

/// ListOffsets.
fn look_up(peer: &mut Peer<'_>, timestamp: i64) -> i64 {
    let partition = ListOffsetsPartition::default().with_timestamp(timestamp);
    let of = ListOffsetsTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_topics(vec![of]);
    peer.call(8, &request).topics[0].partitions[0].offset
}

/// OffsetForLeaderEpoch.
fn epoch_end(peer: &mut Peer<'_>) -> i64 {
    let of = OffsetForLeaderTopic::default()
        .with_topic(topic("t"))
        .with_partitions(vec![OffsetForLeaderPartition::default()]);
    let request = OffsetForLeaderEpochRequest::default().with_topics(vec![of]);
    peer.call(4, &request).topics[0].partitions[0].end_offset
}

/// DeleteRecords: error and new log start offset.
fn delete(peer: &mut Peer<'_>, before: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default().with_offset(before);
    let of = DeleteRecordsTopic::default()
        .with_name(topic("t"))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![of]);
    let result = &peer.call(2, &request).topics[0].partitions[0];
    (result.error_code, result.low_watermark)
}

fn ends(part: &PartitionData) -> (i16, i64, i64, i64) {
    let (error, start) = (part.error_code, part.log_start_offset);
    (error, start, part.high_watermark, part.last_stable_offset)
}

#[test]
fn every_client_is_at_the_end_after_a_power_loss() {
    let mut world = after_a_power_loss();
    for _ in 0..2 {
        let mut peer = world.connect();
        let t = world.topic("t", 1);
        let (earliest, latest) = (look_up(&mut peer, -2), look_up(&mut peer, -1));
        assert_eq!((earliest, latest), (0, 3));
        assert_eq!(look_up(&mut peer, -3), 0, "all have one timestamp");
        assert_eq!(epoch_end(&mut peer), 5 + GAP, "no position is truncated");
        let all = FetchCall::new(12).of(&t, &[(0, 0)]).call(&mut peer);
        assert_eq!(ends(parts(&all)[0]), (0, 0, 3, 3));
        for (name, expected) in [("caught up", 3), ("ahead", 3), ("behind", 1)] {
            assert_eq!(offset(&mut peer, name, "t"), expected, "{name}");
            assert_eq!(fetched(&mut peer, 7, name, None)[0].1, expected);
        }
        // A client that has survived waits at its position, which counts as the end.
        for position in [3, 5, 5 + GAP] {
            let response = FetchCall::new(12).of(&t, &[(0, position)]).empty(&mut peer);
            assert_eq!(ends(parts(&response)[0]), (0, 0, position, position));
        }
        let beyond = FetchCall::new(12).of(&t, &[(0, 6 + GAP)]).call(&mut peer);
        assert_eq!(results(&beyond), [(0, 1, vec![])]);
        drop(peer);
        world.disk.kill();
        world = restart(world.disk.clone());
    }
}

#[test]
fn the_next_message_reaches_every_client() {
    for empties in [false, true] {
        let world = after_a_power_loss();
        let t = world.topic("t", 1);
        let mut peer = world.connect();
        if empties {
            assert_eq!(delete(&mut peer, 6 + GAP), (1, -1));
            assert_eq!(delete(&mut peer, 5), (0, 3));
            assert_eq!(delete(&mut peer, -1), (0, 3));
        }
        let mut waiting = [3, 5].map(|position| {
            let mut peer = world.connect();
            let id = FetchCall::new(12).of(&t, &[(0, position)]).send(&mut peer);
            peer.pump();
            peer.expect_nothing();
            (peer, id)
        });
        publish(&t, 0, &["new"]);
        for (peer, id) in &mut waiting {
            peer.pump();
            let response = peer.expect::<FetchRequest>(12, *id);
            assert_eq!(results(&response), [(0, 0, strings(&["new"]))]);
            assert_eq!(parts(&response)[0].high_watermark, 6 + GAP);
        }
        let start = if empties { 3 } else { 0 };
        assert_eq!(look_up(&mut peer, -2), start);
        // The lag of a group that had read everything is the number of new messages. The lag of one
        // that had not includes the gap: clients subtract offsets.
        let latest = look_up(&mut peer, -1);
        for (name, lag) in [("caught up", 1), ("ahead", 1), ("behind", 5 + GAP)] {
            assert_eq!(latest - offset(&mut peer, name, "t"), lag, "{name}");
        }
        // A consumer reads across the gap.
        let response = FetchCall::new(12).of(&t, &[(0, start)]).call(&mut peer);
        let mut expected = strings(&["a", "b", "c", "new"]);
        expected.drain(..start as usize);
        let mut came = results(&response)[0].2.clone();
        while came.len() < expected.len() {
            let ask = FetchCall::new(12).of(&t, &[(0, 3)]);
            came.extend(results(&ask.call(&mut peer))[0].2.clone());
        }
        assert_eq!(came, expected);
    }
}
