//! ListOffsets by timestamp: after the broker's clock was set back, and for data on the disk.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::{START_MS, World, text};
use cloverleaf_broker::{Clock as _, Topic};
use cloverleaf_log::{BatchBuilder, Codec, Durability, LogOptions, SimDisk};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse, TopicName};

const HOUR_MS: u64 = 3_600_000;

/// A broker that keeps no batches in memory.
fn without_batches_in_memory(disk: &SimDisk) -> World {
    let log = LogOptions {
        tail_bytes_max: 0,
        ..Default::default()
    };
    World::on(disk.clone(), Default::default(), log, Default::default())
}

fn since(timestamp_ms: i64) -> ListOffsetsRequest {
    let partition = ListOffsetsPartition::default()
        .with_partition_index(0)
        .with_timestamp(timestamp_ms);
    let topic = ListOffsetsTopic::default()
        .with_name(TopicName(text("t")))
        .with_partitions(vec![partition]);
    ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_topics(vec![topic])
}

/// Error, offset and timestamp.
fn found(response: &ListOffsetsResponse) -> (i16, i64, i64) {
    let found = &response.topics[0].partitions[0];
    (found.error_code, found.offset, found.timestamp)
}

/// Publishes a batch of two records with these timestamps; returns its append time if the topic has
/// one.
fn publish(world: &World, topic: &Arc<Topic>, times_ms: [i64; 2], codec: Codec) -> Option<i64> {
    let value = vec![b'v'; 10_000];
    let mut builder = BatchBuilder::with_capacity(21_000, times_ms[0]);
    for at_ms in times_ms {
        builder.push_at(at_ms, None, Some(&value), &[]);
    }
    let batch = builder.finish().compress(codec).unwrap();
    let published = topic.publish_to(0, batch, Durability::Kernel).unwrap();
    let append_time_ms = published.append_time_ms();
    drop(published);
    world.settle();
    append_time_ms
}

#[test]
fn append_times_that_go_back_are_found() {
    for codec in [Codec::None, Codec::Zstd] {
        let disk = SimDisk::new();
        let mut appended: Vec<i64> = Vec::new();
        // Each run begins an hour before the begin of the previous one, and lasts 50 minutes.
        for run in 0..3 {
            let world = without_batches_in_memory(&disk);
            world.clock.advance((5 - run) * HOUR_MS);
            let topic = world.topic("t", 1);
            topic
                .set_options(|options| {
                    options.append_time = true;
                    options.segment_bytes = Some(1 << 20);
                    options.retention.ms = Some(12 * HOUR_MS);
                })
                .unwrap();
            let begun_ms = world.clock.now_ms() as i64;
            for _ in 0..50 {
                world.clock.advance(60_000);
                let now_ms = world.clock.now_ms() as i64;
                // The producer's timestamps do not count.
                let stamped = publish(&world, &topic, [1, i64::MAX / 2], codec);
                assert_eq!(stamped, Some(now_ms), "the time as the broker has it");
                appended.extend([now_ms, now_ms]);
            }
            world.faults.set(|faults| {
                faults.uncached = true;
                faults.only = ".log".to_owned();
            });
            let mut peer = world.connect();
            let mut check = |asked_ms: i64| {
                let place = appended.iter().position(|its_ms| *its_ms >= asked_ms);
                let expected = place.map_or((0, -1, -1), |at| (0, at as i64, appended[at]));
                let response = peer.call(10, &since(asked_ms));
                assert_eq!(found(&response), expected, "run {run}, since {asked_ms}");
            };
            for minute in -70..200 {
                check(begun_ms + minute * 60_000 - 1);
                check(begun_ms + minute * 60_000);
            }
            check(0);
            let newest_ms = appended.iter().copied().max().unwrap();
            check(newest_ms);
            check(newest_ms + 1);
            // The largest timestamp is from before the clock was set back.
            let response = peer.call(10, &since(-3));
            assert_eq!(found(&response), (0, 98, newest_ms));
            drop(peer);
            drop((topic, world));
            disk.kill();
        }
    }
}

#[test]
fn a_lookup_in_cold_data_delays_no_other_connection() {
    let start_ms = START_MS as i64;
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4] {
        let world = without_batches_in_memory(&SimDisk::new());
        let topic = world.topic("t", 1);
        for batch in 0..100 {
            let first_ms = start_ms + batch * 20;
            publish(&world, &topic, [first_ms, first_ms + 10], codec);
        }
        world.lookups_hang.store(true, SeqCst);
        // A read on the thread that serves the connection would fail.
        world.faults.set(|faults| {
            faults.uncached = true;
            faults.broken_reads = true;
        });
        let (mut asks, mut other) = (world.connect(), world.connect());
        let id = asks.send(10, &since(start_ms + 1_231));
        asks.pump();
        asks.expect_nothing();
        assert_eq!(found(&other.call(10, &since(-1))), (0, 200, -1));
        world.faults.set(|faults| faults.broken_reads = false);
        world.lookups_hang.store(false, SeqCst);
        asks.pump();
        let response = asks.expect::<ListOffsetsRequest>(10, id);
        assert_eq!(found(&response), (0, 124, start_ms + 1_240), "{codec:?}");
        for (asked_ms, expected) in [(0, 0), (start_ms + 1_990, 199), (start_ms + 1_991, -1)] {
            let response = asks.call(10, &since(asked_ms));
            assert_eq!(found(&response).1, expected, "{codec:?} {asked_ms}");
        }
    }
}
