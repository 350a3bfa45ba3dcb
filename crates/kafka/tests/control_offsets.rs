//! Offsets through Kafka: ListOffsets, OffsetForLeaderEpoch, DeleteRecords, in every version.

use bytes::{Buf as _, Bytes};
use cloverleaf_broker::TopicOptions;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, DescribeLogDirsRequest, ListOffsetsRequest, ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
};
use kafka_protocol::protocol::{Decodable as _, Request};

use crate::control_world::{World, frame_of, name, versions};

fn at(index: i32, timestamp: i64) -> ListOffsetsPartition {
    ListOffsetsPartition::default()
        .with_partition_index(index)
        .with_timestamp(timestamp)
}

fn offsets_of(topic: &str, partitions: Vec<ListOffsetsPartition>) -> ListOffsetsRequest {
    let topic = ListOffsetsTopic::default()
        .with_name(name(topic))
        .with_partitions(partitions);
    ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_topics(vec![topic])
}

/// Error, offset, timestamp and leader epoch.
fn look_up(world: &World, version: i16, partition: ListOffsetsPartition) -> (i16, i64, i64, i32) {
    let response = world.ask(version, &offsets_of("t", vec![partition]));
    let found = &response.topics[0].partitions[0];
    (
        found.error_code,
        found.offset,
        found.timestamp,
        found.leader_epoch,
    )
}

fn with_messages() -> World {
    let world = World::new();
    world.foreign_topic("t");
    world.publish("t", &[1_000, 2_000]);
    world.publish("t", &[5_000, 4_000]);
    world
}

#[test]
fn offsets_are_found_by_position_and_by_timestamp_in_every_version() {
    let world = with_messages();
    for version in versions::<ListOffsetsRequest>() {
        let epoch = if version >= 4 { 0 } else { -1 };
        let ask = |timestamp| look_up(&world, version, at(0, timestamp));
        assert_eq!(ask(-2), (0, 0, -1, epoch), "version {version}");
        assert_eq!(ask(-1), (0, 4, -1, epoch));
        assert_eq!(ask(0), (0, 0, 1_000, epoch));
        assert_eq!(ask(1_001), (0, 1, 2_000, epoch));
        assert_eq!(ask(2_001), (0, 2, 5_000, epoch));
        assert_eq!(ask(5_001), (0, -1, -1, -1), "nothing is that young");
        let unsupported = (35, -1, -1, -1);
        let expected = |since, found| if version >= since { found } else { unsupported };
        assert_eq!(ask(-3), expected(7, (0, 2, 5_000, 0)));
        assert_eq!(ask(-4), expected(8, (0, 0, -1, 0)));
        assert_eq!(ask(-5), expected(9, (0, -1, -1, -1)));
        assert_eq!(ask(-6), unsupported);
        assert_eq!(look_up(&world, version, at(1, -1)).0, 3);
        assert_eq!(look_up(&world, version, at(-1, -1)).0, 3);
    }
}

#[test]
fn an_empty_partition_begins_where_it_ends() {
    let world = World::new();
    world.foreign_topic("t");
    assert_eq!(look_up(&world, 10, at(0, -2)), (0, 0, -1, 0));
    assert_eq!(look_up(&world, 10, at(0, -1)), (0, 0, -1, 0));
    assert_eq!(look_up(&world, 10, at(0, -3)), (0, -1, -1, -1));
    assert_eq!(look_up(&world, 10, at(0, 0)), (0, -1, -1, -1));
}

#[test]
fn an_unknown_leader_epoch_is_refused() {
    let world = with_messages();
    assert_eq!(
        look_up(&world, 10, at(0, -1).with_current_leader_epoch(0)).0,
        0
    );
    assert_eq!(
        look_up(&world, 10, at(0, -1).with_current_leader_epoch(1)).0,
        75
    );
    let twice = offsets_of("t", vec![at(0, -1), at(0, -2)]);
    let response = world.ask(10, &twice);
    let codes: Vec<i16> = response.topics[0]
        .partitions
        .iter()
        .map(|p| p.error_code)
        .collect();
    assert_eq!(
        codes,
        [42, 42],
        "Kafka refuses a partition that is named twice"
    );
}

#[test]
fn the_only_epoch_ends_at_the_log_end() {
    let world = with_messages();
    for version in versions::<OffsetForLeaderEpochRequest>() {
        let ask = |index, current, epoch| {
            let partition = OffsetForLeaderPartition::default()
                .with_partition(index)
                .with_current_leader_epoch(current)
                .with_leader_epoch(epoch);
            let topic = OffsetForLeaderTopic::default()
                .with_topic(name("t"))
                .with_partitions(vec![partition]);
            let request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
            let response = world.ask(version, &request);
            let found = &response.topics[0].partitions[0];
            assert_eq!(found.partition, index);
            (found.error_code, found.leader_epoch, found.end_offset)
        };
        assert_eq!(ask(0, -1, 0), (0, 0, 4), "version {version}");
        assert_eq!(ask(0, 0, 0), (0, 0, 4));
        assert_eq!(ask(0, 0, 3), (0, -1, -1), "there never was such an epoch");
        assert_eq!(ask(0, 2, 0), (75, -1, -1));
        assert_eq!(ask(7, 0, 0), (3, -1, -1));
    }
}

/// Deletes the records of a partition before an offset; returns error code and new log start
/// offset.
fn delete(world: &World, version: i16, topic: &str, index: i32, before: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(index)
        .with_offset(before);
    let topic = DeleteRecordsTopic::default()
        .with_name(name(topic))
        .with_partitions(vec![partition]);
    let response = world.ask(
        version,
        &DeleteRecordsRequest::default().with_topics(vec![topic]),
    );
    let deleted = &response.topics[0].partitions[0];
    (deleted.error_code, deleted.low_watermark)
}

#[test]
fn records_are_deleted_up_to_an_offset() {
    for version in versions::<DeleteRecordsRequest>() {
        let mut world = with_messages();
        assert_eq!(
            delete(&world, version, "t", 0, 1),
            (0, 1),
            "version {version}"
        );
        assert_eq!(look_up(&world, 5, at(0, -2)).1, 1);
        assert_eq!(delete(&world, version, "t", 0, 0), (0, 1), "never back");
        assert_eq!(
            delete(&world, version, "t", 0, 5),
            (1, -1),
            "beyond the end"
        );
        assert_eq!(delete(&world, version, "t", 0, -2), (1, -1));
        assert_eq!(delete(&world, version, "t", 3, 0), (3, -1));
        assert_eq!(delete(&world, version, "nowhere", 0, 0), (3, -1));
        assert_eq!(delete(&world, version, "t", 0, -1), (0, 4), "all of them");
        world.kill_and_restart();
        assert_eq!(look_up(&world, 5, at(0, -2)).1, 4, "it is kept");
        assert_eq!(look_up(&world, 5, at(0, -1)).1, 4);
    }
}

#[test]
fn records_of_a_topic_that_is_only_compacted_are_not_deleted() {
    let world = World::new();
    let options = || TopicOptions {
        compaction: Some(cloverleaf_broker::Compaction::default()),
        retention: cloverleaf_broker::Retention::default(),
        ..TopicOptions::default()
    };
    world.broker.topic_or_create("t", options).unwrap();
    assert_eq!(delete(&world, 2, "t", 0, -1), (44, -1));
}

#[test]
fn log_dirs_report_real_sizes() {
    let world = with_messages();
    world.foreign_topic("empty");
    let size = i64::try_from(world.topic("t").partitions()[0].stored_bytes()).unwrap();
    assert!(size > 122);
    for version in versions::<DescribeLogDirsRequest>() {
        let all = DescribeLogDirsRequest::default().with_topics(None);
        let response = world.ask(version, &all);
        assert_eq!(response.results.len(), 1);
        let result = &response.results[0];
        assert_eq!(result.log_dir.as_str(), "cloverleaf-data");
        let space = match version {
            4.. => (1 << 41, 1 << 40),
            _ => (-1, -1),
        };
        assert_eq!((result.total_bytes, result.usable_bytes), space);
        let topics = &response.results[0].topics;
        let sizes: Vec<(String, i64)> = topics
            .iter()
            .map(|topic| (topic.name.to_string(), topic.partitions[0].partition_size))
            .collect();
        assert_eq!(sizes, [("empty".to_owned(), 0), ("t".to_owned(), size)]);

        let topic = |topic: &str, partitions| {
            kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic::default()
                .with_topic(name(topic))
                .with_partitions(partitions)
        };
        let some = vec![topic("t", vec![0, 0, 9]), topic("nowhere", vec![0])];
        let request = DescribeLogDirsRequest::default().with_topics(Some(some));
        let response = world.ask(version, &request);
        let topics = &response.results[0].topics;
        assert_eq!((topics.len(), topics[0].partitions.len()), (1, 1));
    }
}

/// Sends a request in a version that the library does not know, with the body of the newest version
/// that it knows.
fn ask_beyond<R: Request>(world: &World, version: i16, request: &R) -> Bytes {
    let mut body = Vec::new();
    request.encode(&mut body, R::VERSIONS.max).unwrap();
    let mut answer = world.send(&frame_of(R::KEY, version, true, &body)).unwrap();
    // Size, correlation id, tagged fields.
    answer.advance(9);
    answer
}

#[test]
fn versions_of_kafka_4_3_are_answered() {
    let world = with_messages();
    // -6 asks for the first message that is not in tiered storage yet. There is no tiered storage.
    for (timestamp, offset) in [(-6, -1), (-5, -1), (-1, 4), (-7, -1)] {
        let request = offsets_of("t", vec![at(0, timestamp)]);
        let mut answer = ask_beyond(&world, 11, &request);
        let response = ListOffsetsResponse::decode(&mut answer, 10).unwrap();
        let found = &response.topics[0].partitions[0];
        let error = if timestamp == -7 { 35 } else { 0 };
        assert_eq!((found.error_code, found.offset), (error, offset));
    }

    let request = DescribeLogDirsRequest::default().with_topics(Some(Vec::new()));
    let before = ask_beyond(&world, 4, &request);
    let answer = ask_beyond(&world, 5, &request);
    // Version 5 adds one byte before the tagged fields of folder and answer: the folder is not
    // cordoned.
    let (whole, end) = before.split_at(before.len() - 2);
    assert_eq!(answer, [whole, &[0], end].concat());
}
