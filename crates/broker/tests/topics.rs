//! Topics that change while they are in use, and values that protocols keep in the broker.

use std::task::{Context, Poll, Waker};

use crate::common::{World, bodies, consumer};
use cloverleaf_broker::{
    BrokerOptions, CatalogError, Committed, PartitionStatus, TopicOptions, Watcher,
};
use cloverleaf_log::Durability;
use uuid::Uuid;

fn has_fired(watcher: &Watcher) -> bool {
    watcher.poll_fired(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

fn publish_to(world: &World, partition: u32, body: &str) {
    let topic = world.topic("t");
    let batch = world.batch(&[body]);
    let published = topic.publish_to(partition, batch, Durability::Kernel);
    drop(published.unwrap());
    world.log.step();
}

fn committed(group: &str, topic: Uuid, partition: u32, offset: u64) -> Committed {
    Committed {
        group: group.to_owned(),
        topic,
        partition,
        offset,
        leader_epoch: -1,
        metadata: String::new(),
        committed_ms: 7,
    }
}

#[test]
fn a_partition_reports_its_status_and_identity() {
    let world = World::new();
    let topic = world.topic("t");
    topic.add_partitions(2).unwrap();
    let [first, second] = [0, 1].map(|it| topic.partition(it).unwrap());
    for body in ["a", "b", "c"] {
        publish_to(&world, 0, body);
    }
    publish_to(&world, 1, "d");
    topic.delete_records(0, 1).unwrap();
    let batch_bytes = world.batch(&["a"]).bytes().len() as u64;
    let status = PartitionStatus {
        start_offset: 1,
        written_end: 3,
        synced_end: 3,
        stored_bytes: 3 * batch_bytes,
        segments: 1,
    };
    assert_eq!(first.status(), status);
    assert_eq!(
        (first.stored_bytes(), second.stored_bytes()),
        (3 * batch_bytes, batch_bytes)
    );
    assert_eq!(topic.stored_bytes(), 4 * batch_bytes);
    // A message that was just written is not synced yet.
    let published = topic.publish_to(0, world.batch(&["e"]), Durability::Kernel);
    drop(published.unwrap());
    let ends = (first.status().written_end, first.status().synced_end);
    assert_eq!(ends, (4, 3));
    // Two handles of a partition are equal; a new topic of the same name has other partitions.
    assert_eq!(*topic.partitions(), [first.clone(), second.clone()]);
    assert_ne!(first, second);
    world.broker.delete_topic("t").unwrap();
    assert_ne!(world.topic("t").partition(0), Some(first));
}

#[test]
fn partitions_are_added_while_the_topic_is_in_use() {
    let mut world = World::new();
    let subscription = world.subscription("t", "s");
    let before = consumer(&subscription, 100);
    let topic = world.topic("t");
    topic.add_partitions(3).unwrap();
    assert_eq!(topic.partition_count(), 3);
    publish_to(&world, 2, "two");
    publish_to(&world, 0, "zero");
    assert_eq!(bodies(&before), ["two", "zero"]);
    let refused = topic.add_partitions(3).unwrap_err();
    let (partitions, current) = (3, 3);
    assert_eq!(
        refused,
        CatalogError::PartitionsOnlyGrow {
            partitions,
            current
        }
    );
    assert!(topic.add_partitions(5_000).is_err());
    drop((before, subscription, topic));
    world.settle();
    world.kill_and_restart();
    assert_eq!(world.topic("t").partition_count(), 3);
    publish_to(&world, 1, "one");
    let subscription = world.subscription("t", "s");
    let mut came = bodies(&consumer(&subscription, 100));
    came.sort();
    assert_eq!(came, ["one", "two", "zero"]);
}

#[test]
fn a_paused_topic_holds_back_new_partitions_too() {
    let world = World::new();
    let consumer = consumer(&world.subscription("t", "s"), 100);
    let topic = world.topic("t");
    topic.pause().unwrap();
    topic.add_partitions(2).unwrap();
    publish_to(&world, 1, "held");
    assert_eq!(bodies(&consumer), [""; 0]);
    assert_eq!(topic.depth(), 1);
    topic.unpause().unwrap();
    assert_eq!(bodies(&consumer), ["held"]);
}

#[test]
fn options_change_and_survive() {
    let mut world = World::new();
    let change = |options: &mut TopicOptions| {
        options.retention.ms = Some(5);
        options.partitions = 9;
        options
            .settings
            .insert("retention.ms".to_owned(), "5".to_owned());
    };
    world.topic("t").set_options(change).unwrap();
    let check = |world: &World| {
        let options = world.topic("t").options();
        assert_eq!(options.retention.ms, Some(5));
        assert_eq!(options.partitions, 1);
        assert_eq!(options.settings["retention.ms"], "5");
    };
    check(&world);
    world.kill_and_restart();
    check(&world);
}

#[test]
fn deleted_records_stay_deleted() {
    let mut world = World::new();
    let waiting = consumer(&world.subscription("t", "s"), 0);
    world.publish("t", &["0", "1", "2", "3"]);
    let topic = world.topic("t");
    assert_eq!(topic.delete_records(0, 2).unwrap(), 2);
    assert_eq!(topic.delete_records(0, 1).unwrap(), 2);
    assert!(topic.delete_records(0, 5).is_err());
    assert!(topic.delete_records(1, 0).is_err());
    assert_eq!(world.subscription("t", "s").stats().depth, 2);
    waiting.set_window(10);
    assert_eq!(bodies(&waiting), ["2", "3"]);
    drop(waiting);
    world.settle();
    world.kill_and_restart();
    assert_eq!(world.topic("t").partitions()[0].start_offset(), 2);
    let again = consumer(&world.subscription("t", "s"), 10);
    assert_eq!(bodies(&again), ["2", "3"]);
    assert_eq!(world.topic("t").delete_records(0, 4).unwrap(), 4);
    drop(again);
    world.kill_and_restart();
    world.publish("t", &["4"]);
    assert_eq!(world.topic("t").partitions()[0].start_offset(), 4);
}

#[test]
fn a_watcher_fires_for_writes_and_for_the_deletion() {
    let world = World::new();
    let topic = world.topic("t");
    topic.add_partitions(2).unwrap();
    let watcher = Watcher::new();
    topic.watch(1, &watcher);
    topic.watch(7, &watcher);
    publish_to(&world, 0, "elsewhere");
    assert!(!has_fired(&watcher));
    publish_to(&world, 1, "here");
    assert!(has_fired(&watcher));
    topic.watch(0, &watcher);
    // Watchers stay when partitions are added.
    topic.add_partitions(3).unwrap();
    publish_to(&world, 0, "again");
    assert!(has_fired(&watcher));
    topic.watch(2, &watcher);
    assert!(!has_fired(&watcher));
    world.broker.delete_topic("t").unwrap();
    assert!(has_fired(&watcher));
    topic.watch(2, &watcher);
    assert!(has_fired(&watcher));
}

#[test]
fn a_reader_adds_a_minimum_to_consumed_retention_once() {
    let world = World::new();
    let topic = world.topic("t");
    topic.note_reader();
    let generation = world.broker.generation();
    assert_eq!(topic.options().retention.min_ms, Some(24 * 3_600_000));
    topic.note_reader();
    assert_eq!(world.broker.generation(), generation);
}

#[test]
fn protocols_keep_values() {
    let mut world = World::new();
    let cluster = world.broker.cluster_id();
    assert_eq!(world.broker.starts(), 1);
    world.broker.put_value("a/1", Some(vec![1])).unwrap();
    world.broker.put_value("a/2", Some(vec![2])).unwrap();
    world.broker.put_value("b", Some(Vec::new())).unwrap();
    world.broker.put_value("a/1", None).unwrap();
    for starts in 2..5 {
        world.kill_and_restart();
        assert_eq!(world.broker.starts(), starts);
        assert_eq!(world.broker.cluster_id(), cluster);
        assert_eq!(world.broker.value("a/1"), None);
        assert_eq!(world.broker.value("b"), Some(Vec::new()));
        assert_eq!(world.broker.kept_under("a/"), [("a/2".to_owned(), vec![2])]);
    }
}

#[test]
fn committed_offsets_are_kept_deleted_and_forgotten_with_their_topic() {
    let mut world = World::new();
    let (first, second) = (world.topic("t").id(), world.topic("u").id());
    let offsets = vec![
        committed("g", first, 0, 3),
        committed("g", second, 0, 4),
        committed("h", first, 0, 5),
        committed("h", Uuid::from_u128(1), 0, 5),
        committed("nothing", Uuid::from_u128(1), 0, 5),
    ];
    world.broker.commit_offsets(offsets).unwrap();
    world
        .broker
        .delete_offsets("g", &[(second, 0), (second, 1)])
        .unwrap();
    let check = |world: &World| {
        assert_eq!(world.broker.groups_with_offsets(), ["g", "h"]);
        let expected = committed("g", first, 0, 3);
        let found = world.broker.committed_offset("g", first, 0);
        assert_eq!(found.as_ref(), Some(&expected));
        assert_eq!(world.broker.committed_offsets("g"), [expected]);
        assert_eq!(world.broker.committed_offsets("h").len(), 1);
    };
    check(&world);
    world.kill_and_restart();
    check(&world);
    assert!(world.broker.delete_group("g").unwrap());
    assert!(!world.broker.delete_group("g").unwrap());
    world.broker.delete_topic("t").unwrap();
    assert_eq!(world.broker.groups_with_offsets(), [""; 0]);
    world.kill_and_restart();
    assert_eq!(world.broker.groups_with_offsets(), [""; 0]);
}

#[test]
fn the_limit_of_partitions_holds_over_all_topics() {
    let mut world = World::with(BrokerOptions {
        partitions_max: 5,
        ..BrokerOptions::default()
    });
    let make = |world: &World, name: &str, partitions| {
        let options = || TopicOptions {
            partitions,
            ..TopicOptions::default()
        };
        world.broker.topic_or_create(name, options).map(drop)
    };
    make(&world, "a", 3).unwrap();
    let refused = make(&world, "b", 3).unwrap_err();
    assert!(matches!(
        refused,
        CatalogError::PartitionsFull {
            partitions: 3,
            current: 3,
            partitions_max: 5
        }
    ));
    make(&world, "b", 1).unwrap();
    for _ in 0..2 {
        let topic = world.topic("a");
        let refused = topic.add_partitions(5).unwrap_err();
        assert!(matches!(refused, CatalogError::PartitionsFull { .. }));
        assert_eq!(topic.partition_count(), 3);
        drop(topic);
        world.kill_and_restart();
    }
    world.topic("a").add_partitions(4).unwrap();
    make(&world, "c", 1).unwrap_err();
    // An existing topic is found, and a deleted one frees its partitions.
    make(&world, "a", 4).unwrap();
    world.broker.delete_topic("a").unwrap();
    make(&world, "c", 4).unwrap();
}
