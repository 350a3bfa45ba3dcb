//! Compressed batches of Kafka producers, delivered message by message.

use crate::common::{World, ack_all, bodies, consumer, receive};
use cloverleaf_broker::{
    BrokerOptions, Compaction, DurabilityMode, PublishError, SubscriptionOptions, TopicOptions,
};
use cloverleaf_log::{Batch, BatchBuilder, Codec, Durability};

const CODECS: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

fn publish(world: &World, topic: &str, batch: &Batch, codec: Codec) {
    let batch = batch.compress(codec).unwrap();
    let published = world.topic(topic).publish_to(0, batch, Durability::Kernel);
    drop(published.unwrap());
    world.log.step();
}

/// A batch whose compressed bytes are invalid.
fn broken(world: &World) -> Batch {
    let batch = world.batch(&["never", "seen"]);
    let mut bytes = batch.compress(Codec::Zstd).unwrap().bytes().to_vec();
    bytes[61..65].copy_from_slice(&[0; 4]);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    Batch::parse(bytes.into()).unwrap()
}

#[test]
fn every_codec_reaches_every_subscription() {
    let world = World::new();
    let (a, b) = (world.subscription("t", "a"), world.subscription("t", "b"));
    let (a, b) = (consumer(&a, 100), consumer(&b, 3));
    let mut expected = Vec::new();
    for (n, codec) in (0..).zip(CODECS) {
        let all: Vec<String> = (0..3).map(|m| format!("{n}/{m}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        publish(&world, "t", &world.batch(&all), codec);
        expected.extend(all.iter().map(|body| (*body).to_owned()));
    }
    assert_eq!(world.topic("t").message_count(), 12);
    let got = receive(&a).unwrap();
    let came: Vec<&str> = got.iter().map(|got| got.body.as_str()).collect();
    assert_eq!(came, expected);
    ack_all(&a, &got);
    // The second consumer takes three at a time, and some of them twice.
    let mut came = Vec::new();
    while came.len() < 12 {
        let got = receive(&b).unwrap();
        assert_eq!(got.len(), 3);
        if got[1].attempts == 1 {
            b.nack(got[1].id, 0).unwrap();
            let again = receive(&b).unwrap();
            assert_eq!(
                (again[0].body.clone(), again[0].attempts),
                (got[1].body.clone(), 2)
            );
        }
        came.extend(got.iter().map(|got| got.body.clone()));
        ack_all(&b, &got);
    }
    assert_eq!(came, expected);
}

#[test]
fn filters_and_dead_letters_work_on_compressed_messages() {
    let world = World::new();
    let options = SubscriptionOptions {
        subjects: vec!["want".to_owned()],
        attempts_max: 1,
        dead_letter: Some("dead".to_owned()),
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("t", "s", options);
    let letters = consumer(&world.subscription("dead", "s"), 10);
    let consumer = consumer(&subscription, 10);
    let mut builder = BatchBuilder::with_capacity(64, 0);
    for (body, subject) in [("1", "want"), ("2", "other"), ("3", "want")] {
        let header: (&[u8], Option<&[u8]>) = (b"nats-subject", Some(subject.as_bytes()));
        builder.push(None, Some(body.as_bytes()), &[header]);
    }
    publish(&world, "t", &builder.finish(), Codec::Gzip);
    let got = receive(&consumer).unwrap();
    let came: Vec<&str> = got.iter().map(|got| got.body.as_str()).collect();
    assert_eq!(came, ["1", "3"]);
    consumer.reject(got[1].id).unwrap();
    world.settle();
    assert_eq!(bodies(&letters), ["3"]);
}

#[test]
fn batches_that_cannot_be_inflated_are_skipped_and_counted() {
    let options = BrokerOptions {
        inflated_batch_bytes_max: 4 << 20,
        ..BrokerOptions::default()
    };
    let world = World::with(options);
    let subscription = world.subscription("t", "s");
    let consumer = consumer(&subscription, 10);
    let published = world
        .topic("t")
        .publish_to(0, broken(&world), Durability::Kernel);
    drop(published.unwrap());
    let bomb = "x".repeat(5 << 20);
    publish(&world, "t", &world.batch(&[&bomb]), Codec::Zstd);
    publish(&world, "t", &world.batch(&["after"]), Codec::Zstd);
    world.settle();
    assert_eq!(bodies(&consumer), ["after"]);
    assert_eq!(world.broker.unreadable_batches(), 2);
    assert_eq!(subscription.stats().depth, 0);
}

#[test]
fn a_large_batch_is_inflated_on_another_thread() {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    let consumer = consumer(&subscription, 10);
    let large = "y".repeat(3 << 20);
    publish(&world, "t", &world.batch(&[&large, "small"]), Codec::Lz4);
    assert_eq!(receive(&consumer).unwrap().len(), 0);
    world.settle();
    let got = receive(&consumer).unwrap();
    assert_eq!(
        (got[0].body.len(), got[1].body.as_str()),
        (3 << 20, "small")
    );
}

#[test]
fn a_topic_checks_what_producers_send() {
    let world = World::new();
    let topic = world.topic("t");
    let publish = |batch: Batch| {
        let published = topic.publish_to(0, batch, Durability::Kernel);
        published.map(|published| published.append_time_ms())
    };
    let change = |change: fn(&mut TopicOptions)| topic.set_options(change).unwrap();
    change(|options| options.batch_bytes_max = Some(200));
    let large = "x".repeat(300);
    let refused = publish(world.batch(&[&large])).unwrap_err();
    assert!(matches!(
        refused,
        PublishError::TooLarge { bytes_max: 200, .. }
    ));
    change(|options| options.batch_bytes_max = None);
    assert_eq!(publish(world.batch(&[&large])).unwrap(), None);

    change(|options| {
        options.timestamp_before_max_ms = Some(1_000);
        options.timestamp_after_max_ms = Some(100);
    });
    let at = |delta: i64| {
        let now_ms = 1_700_000_000_000;
        let mut builder = BatchBuilder::with_capacity(64, now_ms);
        builder.push(Some(b"k"), Some(b"now"), &[]);
        builder.push_at(now_ms + delta, Some(b"k"), Some(b"then"), &[]);
        builder.push_at(now_ms, Some(b"k"), Some(b"now"), &[]);
        builder.finish()
    };
    for (delta, fits) in [
        (0, true),
        (-1_000, true),
        (-1_001, false),
        (100, true),
        (101, false),
    ] {
        let outcome = publish(at(delta));
        assert_eq!(outcome.is_ok(), fits, "{delta} {outcome:?}");
        let named = |outcome: Result<_, PublishError>| match outcome.unwrap_err() {
            PublishError::Timestamp { records, .. } => records,
            other => panic!("{other}"),
        };
        if !fits {
            assert_eq!(named(outcome), [1]);
        }
        if delta > 100 {
            let compressed = at(delta).compress(Codec::Zstd).unwrap();
            assert_eq!(named(publish(compressed)), [1]);
            // The header is valid and the records are garbage: no bad record can be listed.
            let mut bytes = at(delta).compress(Codec::Zstd).unwrap().bytes().to_vec();
            bytes[61..65].copy_from_slice(&[0; 4]);
            let crc = crc32c::crc32c(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
            let nonsense = publish(Batch::parse(bytes.into()).unwrap());
            assert!(named(nonsense).is_empty());
        }
    }

    change(|options| options.append_time = true);
    world.clock.advance(5);
    assert_eq!(publish(at(9_999)).unwrap(), Some(1_700_000_000_005));
    let stamped = at(0).stamp_append_time(1);
    let mut horizon = at(0).bytes().to_vec();
    horizon[22] |= 0x40;
    let crc = crc32c::crc32c(&horizon[21..]);
    horizon[17..21].copy_from_slice(&crc.to_be_bytes());
    for foreign in [stamped, Batch::parse(horizon.into()).unwrap()] {
        let outcome = publish(foreign);
        assert!(matches!(outcome, Err(PublishError::ForeignAppendTime)));
    }
    // A duplicate batch has the append time of the first one.
    let idempotent = || {
        let mut builder = BatchBuilder::with_capacity(64, 1).with_producer(7, 0, 0);
        builder.push(Some(b"k"), Some(b"v"), &[]);
        builder.finish()
    };
    for _ in 0..2 {
        assert_eq!(publish(idempotent()).unwrap(), Some(1_700_000_000_005));
        world.clock.advance(5);
    }

    change(|options| options.compaction = Some(Compaction::default()));
    assert!(publish(at(0)).is_ok());
    assert!(publish(at(0).compress(Codec::Snappy).unwrap()).is_ok());
    // All messages without a key are listed, so that a client can publish the others again.
    let mixed = || {
        let mut builder = BatchBuilder::with_capacity(64, 4);
        for key in [Some(b"a".as_slice()), None, Some(b"b"), None] {
            builder.push(key, Some(b"v"), &[]);
        }
        builder.finish()
    };
    for batch in [mixed(), mixed().compress(Codec::Snappy).unwrap()] {
        match publish(batch).unwrap_err() {
            PublishError::NoKey { records } => assert_eq!(records, [1, 3]),
            other => panic!("{other}"),
        }
    }
    assert!(matches!(
        publish(broken(&world)),
        Err(PublishError::Inflate(_))
    ));
    change(|options| options.durability = Some(DurabilityMode::Disk));
    assert_eq!(topic.durability(Durability::None), Durability::Disk);
}

#[test]
fn malformed_records_are_refused() {
    let world = World::new();
    let mut bytes = world.batch(&["first", "second"]).bytes().to_vec();
    let last = bytes.len() - 1;
    // The record announces a header that does not follow.
    bytes[last] = 2;
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    let batch = Batch::parse(bytes.into()).unwrap();
    let outcome = world.topic("t").publish_to(0, batch, Durability::Kernel);
    assert!(matches!(outcome, Err(PublishError::Batch(_))));
}
