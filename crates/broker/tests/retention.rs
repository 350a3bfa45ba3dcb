//! Retention: which messages are deleted and which stay, by consumption, age and compaction.

use crate::common::{World, ack_all, consumer, receive};
use cloverleaf_broker::Clock;
use cloverleaf_broker::{Compaction, Retention, TopicOptions};
use cloverleaf_log::{BatchBuilder, Codec, Durability, Read};

fn publish(world: &World, codec: Codec, pairs: &[(&str, Option<&str>)]) {
    let now_ms = i64::try_from(world.clock.now_us() / 1_000).unwrap();
    let mut builder = BatchBuilder::with_capacity(64, now_ms);
    for (key, value) in pairs {
        builder.push(Some(key.as_bytes()), value.map(str::as_bytes), &[]);
    }
    let batch = builder.finish().compress(codec).unwrap();
    drop(
        world
            .topic("t")
            .publish_to(0, batch, Durability::Kernel)
            .unwrap(),
    );
    world.log.step();
}

fn change(world: &World, change: impl FnOnce(&mut TopicOptions)) {
    world.topic("t").set_options(change).unwrap();
}

/// Makes each batch a segment of its own, and turns off retention by age and consumption.
fn small_segments(options: &mut TopicOptions) {
    options.segment_bytes = Some(1);
    options.retention = Retention::default();
}

fn segments(world: &World) -> usize {
    world.topic("t").partitions()[0].status().segments
}

/// Offset, key and value of every stored message.
fn stored(world: &World) -> Vec<(u64, String, Option<String>)> {
    let log = world.topic("t").partitions()[0].clone();
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        let batches = match log.read(from, 1 << 20) {
            Read::Batches(batches) => batches,
            Read::Cold(read) => read.run().unwrap(),
            Read::End => return found,
        };
        for batch in batches {
            from = batch.end_offset();
            let batch = batch.inflate(1 << 20).unwrap();
            let mut records = batch.records();
            while let Some((offset, record)) = records.next_record().unwrap() {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                found.push((offset, text(record.key.unwrap()), record.value.map(text)));
            }
        }
    }
}

#[test]
fn a_reader_keeps_consumed_messages_for_a_time() {
    let world = World::new();
    let consumer = consumer(&world.subscription("t", "s"), 100);
    change(&world, |options| options.segment_bytes = Some(1));
    world.topic("t").note_reader();
    for _ in 0..4 {
        publish(&world, Codec::None, &[("k", Some("v"))]);
    }
    ack_all(&consumer, &receive(&consumer).unwrap());
    world.advance(2_000);
    let before = segments(&world);
    assert!(before >= 4, "{before}");
    world.advance(24 * 3_600_000);
    world.advance(2_000);
    assert!(segments(&world) < before);
}

#[test]
fn a_reader_keeps_the_messages_of_the_last_subscription() {
    for has_reader in [false, true] {
        let world = World::new();
        drop(world.subscription("t", "s"));
        if has_reader {
            world.topic("t").note_reader();
        }
        publish(&world, Codec::None, &[("k", Some("v"))]);
        assert!(world.topic("t").delete_subscription("s").unwrap());
        assert_eq!(stored(&world).len(), usize::from(has_reader));
    }
}

#[test]
fn a_change_of_retention_takes_effect() {
    let world = World::new();
    change(&world, small_segments);
    for _ in 0..4 {
        publish(&world, Codec::None, &[("k", Some("v"))]);
    }
    world.advance(60_000);
    assert!(segments(&world) >= 4);
    change(&world, |options| options.retention.ms = Some(30_000));
    world.advance(2_000);
    world.advance(2_000);
    assert_eq!(world.topic("t").partitions()[0].start_offset(), 4);
}

#[test]
fn compaction_leaves_the_newest_of_each_key() {
    for codec in [Codec::None, Codec::Zstd] {
        let mut world = World::new();
        change(&world, small_segments);
        change(&world, |options| {
            options.compaction = Some(Compaction::default())
        });
        for round in 0..5 {
            let value = round.to_string();
            publish(&world, codec, &[("a", Some(&value)), ("b", Some(&value))]);
        }
        publish(&world, codec, &[("b", None), ("c", Some("5"))]);
        // The newest segments are never compacted.
        publish(&world, codec, &[("end", Some("5"))]);
        publish(&world, codec, &[("end", Some("6"))]);
        world.advance(20_000);
        world.advance(20_000);
        let found = stored(&world);
        let of = |key: &str| found.iter().filter(|(_, k, _)| k == key).count();
        assert_eq!((of("a"), of("c")), (1, 1), "{found:?}");
        assert!(
            found
                .iter()
                .any(|(_, key, value)| key == "a" && value.as_deref() == Some("4"))
        );
        // A subscription gets the remaining messages in order, and has none waiting afterwards.
        let last = found.len();
        world.kill_and_restart();
        assert_eq!(stored(&world), found);
        let subscription = world.subscription("t", "s");
        let consumer = consumer(&subscription, 100);
        world.settle();
        let mut deliveries = Vec::new();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while consumer
            .poll_deliveries(&mut context, &mut deliveries)
            .is_ready()
        {}
        let came: u32 = deliveries.iter().map(|delivery| delivery.count).sum();
        assert_eq!(came as usize, last);
        assert_eq!(subscription.stats().depth, 0);
    }
}
