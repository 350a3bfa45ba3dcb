//! Fetch of batches in files: by the reader thread, with read-ahead, and across gaps in the
//! offsets.

use crate::common::fetch::{FetchCall, parts, publish, results};
use crate::common::{World, batches};
use cloverleaf_kafka::error_code::ErrorCode;
use cloverleaf_log::{LogOptions, SimDisk};
use cloverleaf_session::Session as _;
use kafka_protocol::messages::fetch_request::FetchRequest;

/// A broker that keeps no batches in memory.
fn without_batches_in_memory(disk: &SimDisk) -> World {
    let log = LogOptions {
        tail_bytes_max: 0,
        ..Default::default()
    };
    World::on(disk.clone(), Default::default(), log, Default::default())
}

/// Drops the segments from the page cache.
fn evict_segments(world: &World) {
    world.faults.set(|faults| {
        faults.uncached = true;
        faults.only = ".log".to_owned();
    });
}

#[test]
fn cold_data_is_read_by_the_reader_thread_and_ahead() {
    for is_cached in [true, false] {
        let world = without_batches_in_memory(&SimDisk::new());
        let topic = world.topic("t", 2);
        let value = "x".repeat(10_000);
        for _ in 0..50 {
            publish(&topic, 0, &[&value]);
        }
        publish(&topic, 1, &["b"]);
        world.settle();
        if !is_cached {
            evict_segments(&world);
        }
        let mut peer = world.connect();
        let (mut at, mut rounds) = (0, 0);
        while at < 50 {
            let ask = FetchCall::new(12).of(&topic, &[(0, at), (1, 0)]);
            let ask = ask.limits(1, 1 << 20, 100_000);
            let id = ask.send(&mut peer);
            peer.poll();
            if !is_cached {
                peer.expect_nothing();
            }
            peer.pump();
            let response = peer.expect::<FetchRequest>(12, id);
            let records = parts(&response)[0].records.clone().unwrap();
            assert!(records.len() <= 100_000);
            at = batches(&records).last().unwrap().end_offset() as i64;
            assert_eq!(results(&response)[1].2, ["b"]);
            rounds += 1;
        }
        assert_eq!(rounds, 6);
        // Each range of both partitions is read once, although it is read ahead.
        let reads = world.broker.log_metrics().cold_reads;
        assert_eq!(reads, if is_cached { 0 } else { 12 });
    }
}

#[test]
fn cached_data_is_returned_although_the_disk_has_more() {
    let world = without_batches_in_memory(&SimDisk::new());
    let topic = world.topic("t", 1);
    let small = topic.set_options(|options| options.segment_bytes = Some(1 << 20));
    small.unwrap();
    let value = "x".repeat(300_000);
    for _ in 0..20 {
        publish(&topic, 0, &[&value]);
    }
    world.settle();
    // Only the first segment is in the page cache.
    world.faults.set(|faults| {
        faults.uncached = true;
        faults.only = "3.log".to_owned();
    });
    let ask = FetchCall::new(12).of(&topic, &[(0, 0)]);
    let ask = ask.limits(5 << 20, 6 << 20, 6 << 20);
    let response = ask.call(&mut world.connect());
    assert_eq!(results(&response)[0].2.len(), 3);
}

#[test]
fn a_failed_read_is_reported_and_others_go_on() {
    let world = without_batches_in_memory(&SimDisk::new());
    let (bad, good) = (world.topic("bad", 1), world.topic("good", 1));
    publish(&bad, 0, &["a"]);
    publish(&good, 0, &["b"]);
    world.settle();
    world.faults.set(|faults| {
        faults.uncached = true;
        faults.broken_reads = true;
        faults.only = bad.id().to_string();
    });
    let mut peer = world.connect();
    let ask = FetchCall::new(13).of(&bad, &[(0, 0)]).of(&good, &[(0, 0)]);
    let response = ask.call(&mut peer);
    assert_eq!(results(&response)[1].2, ["b"]);
    let error = parts(&response)[0].error_code;
    assert!(
        [0, ErrorCode::KafkaStorageError.code()].contains(&error),
        "{error}"
    );
    assert!(results(&response)[0].2.is_empty());
}

#[test]
fn a_connection_may_end_while_the_disk_is_read() {
    let world = without_batches_in_memory(&SimDisk::new());
    let topic = world.topic("t", 1);
    publish(&topic, 0, &["a"]);
    world.settle();
    evict_segments(&world);
    let mut peer = world.connect();
    FetchCall::new(12).of(&topic, &[(0, 0)]).send(&mut peer);
    peer.poll();
    peer.expect_nothing();
    peer.session.end_of_input(&[], world.now());
    peer.feed(&[]);
    peer.poll();
    assert!(peer.session.is_ended());
    drop(peer);
    world.settle();
}

#[test]
fn a_wait_crosses_a_gap_in_the_offsets() {
    for is_cached in [true, false] {
        let disk = SimDisk::new();
        let before = without_batches_in_memory(&disk);
        publish(&before.topic("t", 1), 0, &["a"]);
        before.settle();
        disk.power_loss(7);
        drop(before);
        let world = without_batches_in_memory(&disk);
        let topic = world.topic("t", 1);
        let log = topic.partition(0).unwrap();
        assert_eq!(log.written_end(), 1, "everybody reaches the end");
        assert!(
            log.next_offset() > 1 << 20,
            "offsets go on higher after a power loss"
        );
        if !is_cached {
            evict_segments(&world);
        }
        let mut peer = world.connect();
        let ask = FetchCall::new(12).of(&topic, &[(0, 1)]);
        assert_eq!(results(&ask.empty(&mut peer)), [(0, 0, vec![])]);
        let id = ask.send(&mut peer);
        peer.pump();
        peer.expect_nothing();
        publish(&topic, 0, &["b"]);
        peer.pump();
        assert_eq!(results(&peer.expect::<FetchRequest>(12, id))[0].2, ["b"]);
    }
}
