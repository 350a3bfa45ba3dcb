//! Produce: every version against the library's client side, and every reason to be refused.

use crate::common::fetch::{FetchCall, parts};
use crate::common::{World, batch, text};
use bytes::Bytes;
use cloverleaf_kafka::error_code::ErrorCode;
use cloverleaf_log::{Batch, BatchBuilder, Codec, Read};
use cloverleaf_session::Session as _;
use kafka_protocol::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, ProduceResponse};
use kafka_protocol::messages::{ApiVersionsRequest, TopicName};
use uuid::Uuid;

fn request_of(
    version: i16,
    world: &World,
    acks: i16,
    parts: &[(&str, i32, Bytes)],
) -> ProduceRequest {
    let topics = parts.iter().map(|(name, index, records)| {
        let data = PartitionProduceData::default()
            .with_index(*index)
            .with_records(Some(records.clone()));
        let topic = TopicProduceData::default().with_partition_data(vec![data]);
        if version >= 13 {
            topic.with_topic_id(world.broker.topic(name).map_or(Uuid::max(), |t| t.id()))
        } else {
            topic.with_name(TopicName(text(name)))
        }
    });
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(1000)
        .with_topic_data(topics.collect())
}

fn only(response: &ProduceResponse) -> &PartitionProduceResponse {
    assert_eq!(response.responses.len(), 1);
    assert_eq!(response.responses[0].partition_responses.len(), 1);
    &response.responses[0].partition_responses[0]
}

#[track_caller]
fn refused(records: impl Into<Bytes>, version: i16, expected: ErrorCode) {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let request = request_of(version, &world, 1, &[("t", 0, records.into())]);
    let response = peer.call(version, &request);
    let partition = only(&response);
    assert_eq!(partition.error_code, expected.code());
    assert_eq!(
        (partition.base_offset, partition.log_append_time_ms),
        (-1, -1)
    );
    assert_eq!(
        topic.partition(0).unwrap().next_offset(),
        0,
        "nothing is stored"
    );
}

/// Changes a batch, and recomputes its checksum.
fn changed(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = batch(&["a", "b"]).bytes().to_vec();
    change(&mut bytes);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes
}

#[test]
fn every_version_stores_and_answers() {
    for version in 3..=13 {
        for acks in [1, -1] {
            let world = World::new();
            let topic = world.topic("t", 2);
            let mut peer = world.connect();
            let parts = [
                ("t", 1, batch(&["a", "b"]).bytes().clone()),
                ("t", 0, batch(&["c"]).bytes().clone()),
            ];
            for round in 0..2 {
                let request = request_of(version, &world, acks, &parts);
                let response = peer.call(version, &request);
                let told: Vec<_> = response
                    .responses
                    .iter()
                    .flat_map(|topic| &topic.partition_responses)
                    .map(|it| (it.index, it.error_code, it.base_offset))
                    .collect();
                assert_eq!(told, [(1, 0, 2 * round), (0, 0, round)]);
                let named = &response.responses[0];
                if version >= 13 {
                    assert_eq!(named.topic_id, topic.id())
                } else {
                    assert_eq!(named.name.0.as_str(), "t")
                }
                let start = if version >= 5 { 0 } else { -1 };
                assert_eq!(named.partition_responses[0].log_start_offset, start);
            }
            let Read::Batches(batches) = topic.partition(1).unwrap().read(2, 1000) else {
                panic!("it is stored");
            };
            assert_eq!(batches[0].bytes()[8..], parts[0].2[8..], "as it came");
        }
    }
}

#[test]
fn one_request_answers_for_each_of_its_partitions() {
    let world = World::new();
    world.topic("t", 1);
    let mut peer = world.connect();
    let good = batch(&["a"]).bytes().clone();
    let parts = [
        ("t", 0, good.clone()),
        ("missing", 0, good.clone()),
        ("t", 7, good.clone()),
        ("t", -1, good.clone()),
        ("t", 0, Bytes::new()),
    ];
    for (version, unknown) in [(9, 3), (13, 100)] {
        let response = peer.call(version, &request_of(version, &world, 1, &parts));
        let codes: Vec<_> = response
            .responses
            .iter()
            .map(|topic| topic.partition_responses[0].error_code)
            .collect();
        assert_eq!(codes, [0, unknown, 3, 3, 87], "version {version}");
    }
}

#[test]
fn batches_that_kafka_refuses_are_refused_with_its_codes() {
    let two = [
        batch(&["a"]).bytes().to_vec(),
        batch(&["b"]).bytes().to_vec(),
    ]
    .concat();
    refused(two, 9, ErrorCode::InvalidRecord);
    refused(vec![], 9, ErrorCode::InvalidRecord);
    refused(vec![0; 10], 9, ErrorCode::CorruptMessage);
    refused(changed(|b| b[16] = 1), 9, ErrorCode::InvalidRecord);
    refused(changed(|b| b[22] |= 0x20), 9, ErrorCode::InvalidRecord);
    refused(changed(|b| b[22] |= 0x10), 9, ErrorCode::InvalidTxnState);
    refused(
        changed(|b| b[22] |= 0x04),
        6,
        ErrorCode::UnsupportedCompressionType,
    );
    refused(
        changed(|b| b[22] |= 0x07),
        9,
        ErrorCode::UnsupportedCompressionType,
    );
    refused(changed(|b| b[60] = 7), 9, ErrorCode::InvalidRecord);
    let mut corrupt = batch(&["a"]).bytes().to_vec();
    *corrupt.last_mut().unwrap() ^= 1;
    refused(corrupt, 9, ErrorCode::CorruptMessage);
    let mut cut = batch(&["abcdef"]).bytes().to_vec();
    cut.pop();
    refused(cut, 9, ErrorCode::CorruptMessage);
    let large = batch(&["x".repeat(1_100_000).as_str()]);
    refused(large.bytes().clone(), 9, ErrorCode::MessageTooLarge);
}

#[test]
fn a_topic_may_allow_more_than_the_default() {
    let world = World::new();
    let topic = world.topic("t", 1);
    topic
        .set_options(|options| options.batch_bytes_max = Some(2_000_000))
        .unwrap();
    let large = batch(&["x".repeat(1_100_000).as_str()]);
    let request = request_of(9, &world, 1, &[("t", 0, large.bytes().clone())]);
    assert_eq!(only(&world.connect().call(9, &request)).error_code, 0);
}

#[test]
fn acks_must_be_valid() {
    let world = World::new();
    world.topic("t", 1);
    let request = request_of(9, &world, 2, &[("t", 0, batch(&["a"]).bytes().clone())]);
    let response = world.connect().call(9, &request);
    assert_eq!(
        only(&response).error_code,
        ErrorCode::InvalidRequiredAcks.code()
    );
    assert_eq!(
        world
            .broker
            .topic("t")
            .unwrap()
            .partition(0)
            .unwrap()
            .next_offset(),
        0
    );
}

#[test]
fn topics_with_invalid_names_are_unknown() {
    let world = World::new();
    let topic = world.topic("t#ephemeral", 1);
    for (version, error) in [
        (12, ErrorCode::UnknownTopicOrPartition),
        (13, ErrorCode::UnknownTopicId),
    ] {
        let part = [("t#ephemeral", 0, batch(&["a"]).bytes().clone())];
        let mut peer = world.connect();
        let produced = peer.call(version, &request_of(version, &world, 1, &part));
        assert_eq!(only(&produced).error_code, error.code());
        let fetched = FetchCall::new(version)
            .of(&topic, &[(0, 0)])
            .call(&mut peer);
        assert_eq!(parts(&fetched)[0].error_code, error.code());
    }
    assert_eq!(topic.partition(0).unwrap().next_offset(), 0);
}

#[test]
fn acks_0_is_not_answered_and_an_error_closes() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let good = batch(&["a"]).bytes().clone();
    peer.send(9, &request_of(9, &world, 0, &[("t", 0, good.clone())]));
    peer.pump();
    peer.expect_nothing();
    assert_eq!(topic.partition(0).unwrap().written_end(), 1);
    // The next request is answered, and no answer comes before its own.
    peer.call(
        3,
        &ApiVersionsRequest::default()
            .with_client_software_name(text("a"))
            .with_client_software_version(text("1")),
    );
    peer.send(9, &request_of(9, &world, 0, &[("missing", 0, good)]));
    peer.pump();
    peer.expect_closed("acks=0");
}

#[test]
fn acks_all_waits_for_the_sync_and_holds_up_no_request() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let part = [("t", 0, batch(&["a"]).bytes().clone())];
    let first = peer.send(9, &request_of(9, &world, -1, &part));
    let second = peer.send(9, &request_of(9, &world, 1, &part));
    peer.poll();
    peer.expect_nothing();
    assert_eq!(
        topic.partition(0).unwrap().written_end(),
        2,
        "both are stored already"
    );
    assert_eq!(topic.partition(0).unwrap().status().synced_end, 0);
    peer.pump();
    assert_eq!(
        only(&peer.expect::<ProduceRequest>(9, first)).base_offset,
        0
    );
    assert_eq!(
        only(&peer.expect::<ProduceRequest>(9, second)).base_offset,
        1
    );
    assert!(topic.partition(0).unwrap().status().synced_end >= 1);
}

#[test]
fn a_topic_may_set_and_bound_timestamps_and_require_keys() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let mut send = |batch: Batch| {
        let request = request_of(9, &world, 1, &[("t", 0, batch.bytes().clone())]);
        let response = peer.call(9, &request);
        let told = only(&response);
        (told.error_code, told.log_append_time_ms)
    };
    topic
        .set_options(|options| options.append_time = true)
        .unwrap();
    world.clock.advance(5_000);
    assert_eq!(
        send(batch(&["a"])),
        (0, crate::common::START_MS as i64 + 5_000)
    );
    topic
        .set_options(|options| {
            options.append_time = false;
            options.timestamp_before_max_ms = Some(1_000);
        })
        .unwrap();
    assert_eq!(send(batch(&["a"])).0, ErrorCode::InvalidTimestamp.code());
    topic
        .set_options(|options| {
            options.timestamp_before_max_ms = None;
            options.compaction = Some(Default::default());
        })
        .unwrap();
    assert_eq!(send(batch(&["a"])).0, ErrorCode::InvalidRecord.code());
    assert_eq!(topic.partition(0).unwrap().next_offset(), 1);
}

/// KIP-467: librdkafka fails these records, and the others with an error that says they were not
/// invalid.
#[test]
fn records_without_a_key_are_named() {
    let world = World::new();
    let topic = world.topic("t", 1);
    topic
        .set_options(|options| options.compaction = Some(Default::default()))
        .unwrap();
    let mut peer = world.connect();
    let mut builder = BatchBuilder::with_capacity(64, 4);
    for key in [Some(b"a".as_slice()), None, Some(b"b"), None] {
        builder.push(key, Some(b"v"), &[]);
    }
    let records = builder.finish().bytes().clone();
    for version in [7, 8, 9, 13] {
        let request = request_of(version, &world, 1, &[("t", 0, records.clone())]);
        let response = peer.call(version, &request);
        let told = only(&response);
        assert_eq!(told.error_code, ErrorCode::InvalidRecord.code());
        let named: Vec<i32> = told.record_errors.iter().map(|it| it.batch_index).collect();
        let expected: &[i32] = if version >= 8 { &[1, 3] } else { &[] };
        assert_eq!(named, expected, "version {version}");
    }
    assert_eq!(topic.partition(0).unwrap().next_offset(), 0);
}

/// KIP-467 again: the error code is that of the timestamp, if one record is refused for its
/// timestamp.
#[test]
fn records_with_invalid_timestamps_are_named() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let hour_ms = 3_600_000;
    topic
        .set_options(|options| {
            options.timestamp_before_max_ms = Some(hour_ms);
            options.timestamp_after_max_ms = Some(hour_ms);
        })
        .unwrap();
    let mut peer = world.connect();
    let now_ms = crate::common::START_MS as i64;
    let (old_ms, young_ms) = (now_ms - 3_600_001, now_ms + 3_600_001);
    let keyed = |records: &[(Option<&[u8]>, i64)]| {
        let mut builder = BatchBuilder::with_capacity(64, records[0].1);
        for (key, at_ms) in records {
            builder.push_at(*at_ms, *key, Some(b"v"), &[]);
        }
        builder.finish()
    };
    let mut check = |batch: &Batch, code: ErrorCode, expected: &[i32]| {
        for version in [7, 8, 9, 13] {
            let request = request_of(version, &world, 1, &[("t", 0, batch.bytes().clone())]);
            let response = peer.call(version, &request);
            let told = only(&response);
            assert_eq!(told.error_code, code.code());
            let named: Vec<i32> = told.record_errors.iter().map(|it| it.batch_index).collect();
            let expected = if version >= 8 { expected } else { &[] };
            assert_eq!(named, expected, "version {version}");
        }
    };
    let key: Option<&[u8]> = Some(b"k");
    let times = [now_ms, old_ms, -1, young_ms, now_ms].map(|at_ms| (key, at_ms));
    check(&keyed(&times), ErrorCode::InvalidTimestamp, &[1, 3]);
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let compressed = keyed(&times).compress(codec).unwrap();
        check(&compressed, ErrorCode::InvalidTimestamp, &[1, 3]);
    }
    topic
        .set_options(|options| options.compaction = Some(Default::default()))
        .unwrap();
    let mixed = keyed(&[
        (None, young_ms),
        (key, now_ms),
        (key, old_ms),
        (None, now_ms),
    ]);
    check(&mixed, ErrorCode::InvalidTimestamp, &[0, 2, 3]);
    let compressed = mixed.compress(Codec::Lz4).unwrap();
    check(&compressed, ErrorCode::InvalidTimestamp, &[0, 2, 3]);
    let without = keyed(&[(None, now_ms), (key, now_ms), (None, now_ms)]);
    check(&without, ErrorCode::InvalidRecord, &[0, 2]);
    assert_eq!(topic.partition(0).unwrap().next_offset(), 0);
}

fn sequenced(values: &[&str], epoch: i16, sequence: i32) -> Batch {
    let mut builder = BatchBuilder::with_capacity(64, crate::common::START_MS as i64);
    for value in values {
        builder.push(None, Some(value.as_bytes()), &[]);
    }
    builder.with_producer(77, epoch, sequence).finish()
}

#[test]
fn a_duplicate_batch_gets_its_old_offset() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let mut send = |batch: Batch| {
        let request = request_of(9, &world, -1, &[("t", 0, batch.bytes().clone())]);
        let response = peer.call(9, &request);
        let told = only(&response);
        (told.error_code, told.base_offset)
    };
    assert_eq!(send(sequenced(&["a", "b"], 0, 0)), (0, 0));
    assert_eq!(send(sequenced(&["c"], 0, 2)), (0, 2));
    assert_eq!(send(sequenced(&["a", "b"], 0, 0)), (0, 0), "again");
    assert_eq!(
        send(sequenced(&["d"], 0, 4)).0,
        ErrorCode::OutOfOrderSequenceNumber.code()
    );
    assert_eq!(send(sequenced(&["d"], 1, 0)), (0, 3), "a new epoch");
    assert_eq!(
        send(sequenced(&["e"], 0, 3)).0,
        ErrorCode::InvalidProducerEpoch.code()
    );
    assert_eq!(topic.partition(0).unwrap().next_offset(), 4);
}

#[test]
fn a_used_up_write_budget_holds_produce_back() {
    let world = World::with_small_write_budget();
    world.topic("t", 1);
    let mut peer = world.connect();
    let part = [("t", 0, batch(&["a"]).bytes().clone())];
    let first = peer.send(9, &request_of(9, &world, 1, &part));
    let second = peer.send(9, &request_of(9, &world, 1, &part));
    assert!(!peer.session.wants_input());
    peer.pump();
    assert_eq!(
        only(&peer.expect::<ProduceRequest>(9, first)).base_offset,
        0
    );
    assert_eq!(
        only(&peer.expect::<ProduceRequest>(9, second)).base_offset,
        1
    );
    assert!(peer.session.wants_input());
}
