//! Deleting topics: over any crash, no deleted topic returns, no topic loses messages without being
//! deleted, a new topic of the same name loses nothing, and no folder stays forever.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::common::World;
use cloverleaf_broker::TopicOptions;
use cloverleaf_log::{Durability, Read};
use uuid::Uuid;

/// The answers that a run got before the disk died.
#[derive(Debug, Default)]
struct AnswersGot {
    /// The deletion was answered, so it must survive a kill.
    deleted: bool,
    /// The deletion was synced, so it must survive a power loss.
    delete_synced: bool,
    /// The new topic's id.
    new: Option<Uuid>,
    /// The message in the new topic was answered in the class *disk*.
    new_synced: bool,
}

fn options() -> TopicOptions {
    let mut options = TopicOptions {
        partitions: 3,
        ..TopicOptions::default()
    };
    options.retention.consumed = false;
    options
}

/// Publishes to each partition. Returns whether all publishes were answered in the class *disk*.
fn publish(world: &World, topic: Uuid, text: &str) -> bool {
    let Some(topic) = world.broker.topic_by_id(topic) else {
        return false;
    };
    let mut all = true;
    for partition in 0..topic.partition_count() {
        let batch = world.batch(&[text]);
        let Ok(mut published) = topic.publish_to(partition, batch, Durability::Disk) else {
            return false;
        };
        world.log.step();
        let polled = Pin::new(&mut published).poll(&mut Context::from_waker(Waker::noop()));
        all &= matches!(polled, Poll::Ready(Ok(_)));
    }
    all
}

/// The number of batches in all partitions.
fn messages(world: &World, topic: Uuid) -> usize {
    let topic = world.broker.topic_by_id(topic).unwrap();
    let stored = |partition| {
        let log = topic.partition(partition).unwrap();
        match log.read(log.start_offset(), 1 << 20) {
            Read::Batches(batches) => batches.len(),
            Read::Cold(cold) => cold.run().unwrap().len(),
            Read::End => 0,
        }
    };
    (0..topic.partition_count()).map(stored).sum()
}

fn folders(world: &World) -> BTreeSet<String> {
    let entries = world.disk.mount().list("topics").unwrap();
    entries.into_iter().map(|entry| entry.name).collect()
}

/// Fills the journal, so that the housekeeping replaces it by a snapshot.
fn force_snapshot(world: &World) {
    for round in 0..12u8 {
        // It fails if the disk has died.
        let _ = world
            .broker
            .put_value("filler", Some(vec![round; 12 << 10]));
    }
    world.clock.advance(2_000);
    world.broker.tick();
}

/// The events between the deletion and the removal of the files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Sync,
    SyncAndSnapshot,
    /// The removal itself, then a snapshot before anything else syncs the folder.
    Removal,
}

fn run(world: &World, old: Uuid, between: Between) -> AnswersGot {
    let mut answers = AnswersGot::default();
    answers.deleted = world.broker.delete_topic("t").is_ok();
    answers.delete_synced =
        answers.deleted && between != Between::Nothing && world.broker.sync_definitions().is_ok();
    if !answers.deleted {
        return answers;
    }
    assert!(world.broker.topic_by_id(old).is_none());
    if between == Between::Removal {
        world.log.step();
    }
    if matches!(between, Between::SyncAndSnapshot | Between::Removal) {
        force_snapshot(world);
    }
    answers.new = world
        .broker
        .topic_or_create("t", options)
        .ok()
        .map(|t| t.id());
    let Some(new) = answers.new else {
        return answers;
    };
    assert_ne!(new, old);
    answers.new_synced = publish(world, new, "new");
    world.settle();
    force_snapshot(world);
    world.settle();
    answers
}

fn check(world: &World, old: Uuid, answers: &AnswersGot, power: bool) {
    let context = format!("{answers:?}, power {power}");
    let survives = if power {
        answers.delete_synced
    } else {
        answers.deleted
    };
    match world.broker.topic_by_id(old) {
        Some(_) => {
            assert!(!survives, "a deleted topic came back: {context}");
            assert_eq!(messages(world, old), 3, "half a deletion: {context}");
        }
        None => assert!(
            world
                .broker
                .topic("t")
                .is_none_or(|topic| topic.id() != old)
        ),
    }
    if let Some(new) = answers.new.filter(|_| answers.new_synced || !power) {
        let found = world.broker.topic("t").map(|topic| topic.id());
        assert_eq!(found, Some(new), "the new topic is lost: {context}");
        if answers.new_synced {
            assert_eq!(messages(world, new), 3, "{context}");
        }
    }
    // The next start removes files that a crash has left.
    world.settle();
    let is_known = world.broker.topic_by_id(old).is_some();
    let is_left = folders(world).contains(&old.to_string());
    assert!(
        is_known || !is_left,
        "its folder is never removed: {context}"
    );
}

fn crash_everywhere(between: Between) {
    let mut came_back = 0;
    for changes in 0.. {
        let mut survived = false;
        for power in [false, true] {
            let mut world = World::new();
            let old = world.broker.topic_or_create("t", options).unwrap().id();
            assert!(publish(&world, old, "old"));
            world.broker.sync_definitions().unwrap();
            world.disk.crash_after(changes);
            let answers = run(&world, old, between);
            survived = world.broker.sync_definitions().is_ok();
            if power {
                world.lose_power_and_restart(changes);
            } else {
                world.kill_and_restart();
            }
            came_back += u64::from(world.broker.topic_by_id(old).is_some());
            check(&world, old, &answers, power);
            // Once more: nothing that was removed is found again.
            world.lose_power_and_restart(changes + 1);
            check(&world, old, &answers, power);
        }
        if survived {
            assert!(changes > 20, "a run makes {changes} changes only");
            break;
        }
    }
    assert!(
        came_back > 0,
        "no crash has undone an unanswered deletion: the test covers too little"
    );
}

#[test]
fn a_crash_brings_no_deleted_topic_back_and_loses_no_new_one() {
    crash_everywhere(Between::Sync);
}

#[test]
fn a_crash_after_a_snapshot_before_the_removal_brings_no_topic_back() {
    crash_everywhere(Between::SyncAndSnapshot);
}

#[test]
fn the_journal_forgets_a_deletion_once_no_crash_can_bring_the_folder_back() {
    crash_everywhere(Between::Removal);
}

#[test]
fn no_file_is_removed_before_the_deletion_is_synced() {
    crash_everywhere(Between::Nothing);
}

#[test]
fn a_deletion_does_not_wait_for_the_removal_of_files() {
    let world = World::new();
    let old = world.broker.topic_or_create("t", options).unwrap().id();
    assert!(publish(&world, old, "old"));
    world.broker.delete_topic("t").unwrap();
    assert_eq!(folders(&world).len(), 1, "the files go later");
    assert_eq!(world.log.topics_being_removed(), [old]);
    world.log.step();
    assert!(folders(&world).is_empty());
    assert!(world.log.topics_being_removed().is_empty());
}

#[test]
fn many_topics_need_one_sync_of_their_folder() {
    let world = World::new();
    for number in 0..50 {
        let name = format!("t{number}");
        let id = world.broker.topic_or_create(&name, options).unwrap().id();
        assert!(publish(&world, id, "old"));
    }
    let before = world.disk.syncs();
    for topic in world.broker.topics() {
        world.broker.delete_topic(topic.name()).unwrap();
    }
    world.broker.sync_definitions().unwrap();
    world.log.step();
    assert!(folders(&world).is_empty());
    let syncs = world.disk.syncs() - before;
    assert!(syncs <= 3, "{syncs} syncs");
}
