//! Fetch: every version against the library's client side, long polls, limits.

use std::collections::VecDeque;

use crate::common::fetch::{FetchCall, parts, publish, results, strings};
use crate::common::{Peer, World, batch, batches};
use cloverleaf_kafka::error_code::ErrorCode;
use cloverleaf_log::{Codec, Durability};
use cloverleaf_session::Session as _;
use kafka_protocol::messages::ApiVersionsRequest;
use kafka_protocol::messages::fetch_request::FetchRequest;

#[test]
fn every_version_reads_what_is_stored() {
    for version in 4..=18 {
        let world = World::new();
        let topic = world.topic("t", 2);
        publish(&topic, 0, &["a", "b"]);
        publish(&topic, 0, &["c"]);
        publish(&topic, 1, &["d"]);
        let mut peer = world.connect();
        let ask = FetchCall::new(version).of(&topic, &[(0, 1), (1, 1)]);
        let response = ask.call(&mut peer);
        assert_eq!(response.error_code, 0);
        let expect = [(0, 0, strings(&["a", "b", "c"])), (1, 0, vec![])];
        assert_eq!(results(&response), expect, "version {version}");
        let first = parts(&response)[0];
        assert_eq!((first.high_watermark, first.last_stable_offset), (3, 3));
        assert_eq!(first.aborted_transactions, None);
        assert_eq!(first.preferred_read_replica.0, -1);
        assert_eq!(first.log_start_offset, if version >= 5 { 0 } else { -1 });
        if version >= 13 {
            assert_eq!(response.responses[0].topic_id, topic.id())
        } else {
            assert_eq!(response.responses[0].topic.0.as_str(), "t")
        }
    }
}

#[test]
fn clients_before_zstd_are_refused_only_topics_of_that_type() {
    const UNSUPPORTED_COMPRESSION_TYPE: i16 = 76;
    let world = World::new();
    let topic = world.topic("t", 1);
    let zstd = batch(&["a", "b"]).compress(Codec::Zstd).unwrap();
    drop(topic.publish_to(0, zstd, Durability::Kernel).unwrap());
    publish(&topic, 0, &["c"]);
    let found = |version| {
        let ask = FetchCall::new(version).of(&topic, &[(0, 0)]);
        let response = ask.call(&mut world.connect());
        let found = parts(&response)[0];
        let batches = batches(&found.records.clone().unwrap());
        let codecs: Vec<Codec> = batches.iter().map(|it| it.codec()).collect();
        (found.error_code, codecs)
    };
    let both = (0, vec![Codec::Zstd, Codec::None]);
    for version in 4..=18 {
        assert_eq!(found(version), both, "version {version}");
    }
    let say = |kind: &str| {
        let kind = ("compression.type".to_owned(), kind.to_owned());
        let set = topic.set_options(|options| options.settings.extend([kind]));
        set.unwrap();
    };
    say("zstd");
    for version in 4..=9 {
        assert_eq!(found(version), (UNSUPPORTED_COMPRESSION_TYPE, vec![]));
    }
    assert_eq!(found(10), both);
    say("lz4");
    assert_eq!(found(9), both);
}

#[test]
fn large_batches_are_shared_and_arrive_whole() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let large = "x".repeat(100_000);
    for _ in 0..3 {
        publish(&topic, 0, &[&large]);
        publish(&topic, 0, &["small"]);
    }
    let response = FetchCall::new(12)
        .of(&topic, &[(0, 0)])
        .call(&mut world.connect());
    let found = &results(&response)[0].2;
    assert_eq!(found.len(), 6);
    assert!(found.iter().step_by(2).all(|value| *value == large));
}

#[test]
fn a_wait_ends_with_an_arrival_in_any_partition() {
    let world = World::new();
    let (one, two) = (world.topic("one", 3), world.topic("two", 1));
    for version in [4, 12, 18] {
        let mut peer = world.connect();
        let end = one.partition(1).unwrap().written_end() as i64;
        let ask = FetchCall::new(version)
            .of(&two, &[(0, 0)])
            .of(&one, &[(0, 0), (1, end)]);
        let id = ask.send(&mut peer);
        peer.pump();
        peer.expect_nothing();
        assert_eq!(peer.session.next_due_us(), world.now().us + 500_000);
        publish(&one, 1, &["now"]);
        peer.pump();
        let response = peer.expect::<FetchRequest>(version, id);
        let expect = [(0, 0, vec![]), (0, 0, vec![]), (1, 0, strings(&["now"]))];
        assert_eq!(results(&response), expect);
    }
}

#[test]
fn a_wait_ends_with_its_time_and_not_before() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let ask = FetchCall::new(12).of(&topic, &[(0, 0)]);
    let id = ask.send(&mut peer);
    peer.pump();
    peer.advance(499);
    peer.expect_nothing();
    peer.advance(1);
    assert_eq!(
        results(&peer.expect::<FetchRequest>(12, id)),
        [(0, 0, vec![])]
    );
    assert_eq!(peer.session.next_due_us(), u64::MAX);
}

#[test]
fn a_wait_for_many_bytes_counts_them() {
    let world = World::new();
    let topic = world.topic("t", 2);
    let mut peer = world.connect();
    let ask = FetchCall::new(12)
        .of(&topic, &[(0, 0), (1, 0)])
        .limits(290, 1 << 20, 1 << 20);
    let id = ask.send(&mut peer);
    for round in 0..4 {
        peer.pump();
        peer.expect_nothing();
        publish(&topic, round % 2, &["12345"]);
    }
    peer.pump();
    let response = peer.expect::<FetchRequest>(12, id);
    let found: usize = results(&response).iter().map(|it| it.2.len()).sum();
    assert_eq!(found, 4, "73 bytes each");
}

#[test]
fn a_wait_ends_when_a_partition_has_its_maximum_of_bytes() {
    let world = World::new();
    let topic = world.topic("t", 2);
    let size = batch(&["12345678901234567890"]).bytes().len() as i32;
    for _ in 0..10 {
        publish(&topic, 0, &["12345678901234567890"]);
    }
    // As if `fetch.min.bytes` were at or above `max.partition.fetch.bytes`.
    for partition_max_bytes in [1, 3 * size, 4 * size - 1] {
        let ask = FetchCall::new(12).of(&topic, &[(0, 0), (1, 0)]).limits(
            4 * size,
            1 << 20,
            partition_max_bytes,
        );
        let response = ask.call(&mut world.connect());
        assert!(!results(&response)[0].2.is_empty());
    }
}

#[test]
fn a_wait_ends_when_another_request_follows() {
    let world = World::new();
    let topic = world.topic("t", 1);
    publish(&topic, 0, &["a"]);
    let mut peer = world.connect();
    let ask = FetchCall::new(12).of(&topic, &[(0, 0)]);
    let ask = ask.limits(1 << 20, 1 << 20, 1 << 20);
    let first = ask.send(&mut peer);
    peer.pump();
    peer.expect_nothing();
    let second = peer.send(0, &ApiVersionsRequest::default());
    let third = ask.send(&mut peer);
    peer.pump();
    // The available records are returned, although they are less than `min_bytes`.
    assert_eq!(results(&peer.expect::<FetchRequest>(12, first))[0].2, ["a"]);
    peer.expect::<ApiVersionsRequest>(0, second);
    peer.expect_nothing();
    // The request ends the waits of all Fetches before it in the queue, also of one that has not
    // begun to wait.
    let fourth = ask.send(&mut peer);
    let fifth = peer.send(0, &ApiVersionsRequest::default());
    peer.pump();
    for id in [third, fourth] {
        assert_eq!(results(&peer.expect::<FetchRequest>(12, id))[0].2, ["a"]);
    }
    peer.expect::<ApiVersionsRequest>(0, fifth);
}

#[test]
fn later_fetches_do_not_end_a_wait() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let ask = FetchCall::new(12).of(&topic, &[(0, 0)]);
    let mut waiting: VecDeque<i32> = (0..3).map(|_| ask.send(&mut peer)).collect();
    // A client that always has three Fetches in flight sends one for each wait that ends; it does
    // not poll in a busy loop.
    for _ in 0..5 {
        peer.pump();
        peer.advance(499);
        peer.expect_nothing();
        peer.advance(1);
        let oldest = waiting.pop_front().unwrap();
        let response = peer.expect::<FetchRequest>(12, oldest);
        assert_eq!(results(&response), [(0, 0, vec![])]);
        peer.expect_nothing();
        waiting.push_back(ask.send(&mut peer));
    }
}

#[test]
fn limits_hold_except_for_the_first_batch() {
    let world = World::new();
    let topic = world.topic("t", 3);
    for partition in 0..3 {
        for _ in 0..3 {
            publish(&topic, partition, &["12345678901234567890"]);
        }
    }
    let size = batch(&["12345678901234567890"]).bytes().len() as i32;
    let all = [(0, 0), (1, 0), (2, 0)];
    let counts = |max_bytes, partition_max_bytes| -> Vec<usize> {
        let ask = FetchCall::new(12)
            .of(&topic, &all)
            .limits(1, max_bytes, partition_max_bytes);
        let response = ask.call(&mut world.connect());
        results(&response).iter().map(|it| it.2.len()).collect()
    };
    assert_eq!(counts(1, 1), [1, 0, 0], "the first batch whatever its size");
    assert_eq!(counts(1 << 20, 2 * size), [2, 2, 2]);
    assert_eq!(counts(4 * size, 1 << 20), [3, 1, 0]);
    assert_eq!(counts(4 * size + 1, 2 * size + 1), [2, 2, 0]);
    assert_eq!(counts(0, 0), [1, 0, 0]);
}

#[test]
fn errors_are_reported_at_once() {
    let world = World::new();
    let topic = world.topic("t", 1);
    publish(&topic, 0, &["a", "b"]);
    let mut peer = world.connect();
    let code = |peer: &mut Peer<'_>, ask: FetchCall| {
        let response = ask.call(peer);
        let part = parts(&response)[0].clone();
        assert_eq!((part.high_watermark, part.last_stable_offset), (-1, -1));
        part.error_code
    };
    for offset in [3, 99, -1, i64::MAX, i64::MIN] {
        let ask = FetchCall::new(12).of(&topic, &[(0, offset)]);
        assert_eq!(code(&mut peer, ask), ErrorCode::OffsetOutOfRange.code());
    }
    for partition in [1, -1, i32::MAX] {
        let ask = FetchCall::new(13).of(&topic, &[(partition, 0)]);
        assert_eq!(
            code(&mut peer, ask),
            ErrorCode::UnknownTopicOrPartition.code()
        );
    }
    for (epoch, error) in [
        (1, ErrorCode::UnknownLeaderEpoch),
        (-2, ErrorCode::FencedLeaderEpoch),
    ] {
        let mut ask = FetchCall::new(12).of(&topic, &[(0, 0)]);
        ask.request.topics[0].partitions[0].current_leader_epoch = epoch;
        assert_eq!(code(&mut peer, ask), error.code());
    }
    topic.delete_records(0, 2).unwrap();
    let ask = FetchCall::new(12).of(&topic, &[(0, 1)]);
    assert_eq!(code(&mut peer, ask), ErrorCode::OffsetOutOfRange.code());
    world.broker.delete_topic("t").unwrap();
    let ask = FetchCall::new(12).of(&topic, &[(0, 0)]);
    assert_eq!(
        code(&mut peer, ask),
        ErrorCode::UnknownTopicOrPartition.code()
    );
    let ask = FetchCall::new(13).of(&topic, &[(0, 0)]);
    assert_eq!(code(&mut peer, ask), ErrorCode::UnknownTopicId.code());
}

#[test]
fn a_topic_that_is_deleted_ends_the_wait() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let id = FetchCall::new(13).of(&topic, &[(0, 0)]).send(&mut peer);
    peer.pump();
    peer.expect_nothing();
    world.broker.delete_topic("t").unwrap();
    peer.pump();
    let response = peer.expect::<FetchRequest>(13, id);
    assert_eq!(
        parts(&response)[0].error_code,
        ErrorCode::UnknownTopicId.code()
    );
}

#[test]
fn a_topic_that_is_deleted_ends_the_wait_for_more_of_it() {
    let world = World::new();
    let topic = world.topic("t", 1);
    publish(&topic, 0, &["a"]);
    let mut peer = world.connect();
    let ask = FetchCall::new(13).of(&topic, &[(0, 0)]);
    let id = ask.limits(1000, 1 << 20, 1 << 20).send(&mut peer);
    peer.pump();
    peer.expect_nothing();
    world.broker.delete_topic("t").unwrap();
    peer.pump();
    let response = peer.expect::<FetchRequest>(13, id);
    let error = ErrorCode::UnknownTopicId.code();
    assert_eq!(parts(&response)[0].error_code, error);
}

#[test]
fn the_end_of_the_server_ends_a_wait() {
    let world = World::new();
    let topic = world.topic("t", 1);
    let mut peer = world.connect();
    let id = FetchCall::new(12).of(&topic, &[(0, 0)]).send(&mut peer);
    peer.pump();
    peer.session.drain();
    peer.feed(&[]);
    peer.pump();
    assert_eq!(
        results(&peer.expect::<FetchRequest>(12, id)),
        [(0, 0, vec![])]
    );
    assert!(peer.session.is_ended());
}
