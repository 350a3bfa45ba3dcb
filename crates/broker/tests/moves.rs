//! Messages that the broker moves between topics (dead letters and delayed messages), over crashes:
//! a kill duplicates only those of the last progress interval, and no power loss loses one.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{World, ack_all, consumer, receive};
use cloverleaf_broker::{Consumer, SubscriptionOptions};
use cloverleaf_log::{Durability, OpenMode};

const MESSAGES: u64 = 60;
/// One message moves per millisecond, and progress is written every ten milliseconds.
const TWICE_MAX: usize = 11;
/// Milliseconds between syncs of the disk.
const SYNC_MS: u64 = 40;

#[derive(Clone, Copy, Debug)]
enum MoveKind {
    Dead,
    Delayed,
}

/// A broker with synced messages that must move to "to". For dead letters, the returned consumer
/// has all of them in flight.
fn world(kind: MoveKind) -> (World, Option<Consumer>) {
    let world = World::new();
    let options = SubscriptionOptions {
        dead_letter: Some("to".to_owned()),
        ..SubscriptionOptions::default()
    };
    let from = world.subscription_with("from", "s", options);
    world.subscription("to", "s");
    for number in 0..MESSAGES {
        match kind {
            MoveKind::Dead => world.publish("from", &[&number.to_string()]),
            MoveKind::Delayed => {
                let batch = world.batch(&[&number.to_string()]);
                let delayed = world.topic("to");
                let delayed = delayed.publish_delayed(&batch, 1 + number, Durability::Disk);
                drop(delayed.unwrap());
            }
        }
    }
    let holder = matches!(kind, MoveKind::Dead).then(|| consumer(&from, u32::MAX));
    world.log.sync_all().unwrap();
    world.broker.tick();
    (world, holder)
}

/// Moves one message per millisecond, until the disk dies after `changes`. With `reads`, a consumer
/// of "to" acknowledges each message at once. Returns the offsets at which each body was read.
fn move_all(world: &World, holder: Option<Consumer>, changes: u64, reads: bool) -> Places {
    world.disk.crash_after(changes);
    let mut places = Places::new();
    let reader = reads.then(|| consumer(&world.subscription("to", "s"), u32::MAX));
    let mut held = holder.iter().flat_map(|it| receive(it).unwrap());
    let mut held = held.by_ref().collect::<Vec<_>>().into_iter();
    for ms in 1..MESSAGES + 20 {
        world.clock.advance(1);
        if let (Some(holder), Some(got)) = (&holder, held.next()) {
            holder.reject(got.id).unwrap();
        }
        world.broker.tick();
        if let Some(reader) = &reader {
            read(reader, &mut places);
        }
        if ms % SYNC_MS == 0 {
            world.log.step();
        }
    }
    places
}

type Places = BTreeMap<String, BTreeSet<u64>>;

fn read(reader: &Consumer, places: &mut Places) {
    let got = receive(reader).unwrap();
    ack_all(reader, &got);
    for got in got {
        places.entry(got.body).or_default().insert(got.id.offset);
    }
}

/// Lets every message arrive. Dead letters that were not rejected yet are rejected now.
fn finish(world: &World, places: &mut Places) {
    let from = world.subscription("from", "s");
    let (from, to) = (consumer(&from, u32::MAX), world.subscription("to", "s"));
    let to = consumer(&to, u32::MAX);
    for _ in 0..4 {
        world.advance(2_000);
        for got in receive(&from).unwrap() {
            from.reject(got.id).unwrap();
        }
        read(&to, places);
    }
    assert_eq!(places.len() as u64, MESSAGES, "some are lost");
}

fn twice(places: &Places) -> usize {
    places.values().filter(|offsets| offsets.len() > 1).count()
}

#[test]
fn a_kill_duplicates_few_moved_messages() {
    for kind in [MoveKind::Dead, MoveKind::Delayed] {
        let mut most = 0;
        for changes in (0..).step_by(3) {
            let (mut world, holder) = world(kind);
            let mut places = move_all(&world, holder, changes, true);
            let is_over = places.len() as u64 == MESSAGES;
            world.kill_and_restart();
            finish(&world, &mut places);
            let count = twice(&places);
            assert!(count <= TWICE_MAX, "{kind:?}: {count} after {changes}");
            most = most.max(count);
            if is_over {
                break;
            }
        }
        assert!(most > 0, "no kill was in time");
    }
}

#[test]
fn a_power_loss_loses_no_moved_message() {
    for kind in [MoveKind::Dead, MoveKind::Delayed] {
        for changes in (0..120).step_by(3) {
            for seed in 0..4 {
                let (mut world, holder) = world(kind);
                let mut places = move_all(&world, holder, changes, false);
                // A message that a start after a kill counts as moved must survive the next power
                // loss.
                if seed % 2 == 1 {
                    world.kill_and_restart();
                    world.broker.tick();
                }
                world.lose_power_and_restart(seed);
                // A power loss forgets moves that were not synced; a kill in the next boot must not
                // restore them.
                if seed >= 2 {
                    world.kill_and_restart();
                }
                finish(&world, &mut places);
            }
        }
    }
}

/// If the newest messages of the destination may be lost without a power loss, moves to it do not
/// count.
#[test]
fn messages_moved_into_a_file_that_was_cut_move_again() {
    for kind in [MoveKind::Dead, MoveKind::Delayed] {
        let (mut world, holder) = world(kind);
        move_all(&world, holder, u64::MAX, false);
        let to = world.topic("to").id();
        let path = format!("topics/{to}/0/{:020}.log", 0);
        world.disk.kill();
        let file = world.disk.mount().open(&path, OpenMode::Existing).unwrap();
        file.set_len(0).unwrap();
        drop(file);
        world.kill_and_restart();
        // They do not count at a later start either, which finds nothing in doubt.
        world.publish("to", &["other"]);
        world.kill_and_restart();
        let mut places = Places::new();
        for _ in 0..4 {
            world.advance(2_000);
            let to = consumer(&world.subscription("to", "s"), u32::MAX);
            read(&to, &mut places);
        }
        let from = consumer(&world.subscription("from", "s"), u32::MAX);
        assert!(places.remove("other").is_some());
        let again = places.len() + receive(&from).unwrap().len();
        // All messages since the last sync.
        assert_eq!(again as u64, MESSAGES - SYNC_MS, "{kind:?}");
    }
}

/// The log's writer may finish after the last tick: the messages moved then are acknowledged before
/// the orderly shutdown ends.
#[test]
fn an_orderly_shutdown_duplicates_no_moved_message() {
    for kind in [MoveKind::Dead, MoveKind::Delayed] {
        let (mut world, holder) = world(kind);
        world.log_options.inline_writes = false;
        world.restart();
        drop(holder);
        let from = consumer(&world.subscription("from", "s"), u32::MAX);
        world.clock.advance(MESSAGES + 1);
        for got in receive(&from).unwrap() {
            from.reject(got.id).unwrap();
        }
        world.restart();
        let mut places = Places::new();
        finish(&world, &mut places);
        assert_eq!(twice(&places), 0, "{kind:?}");
    }
}

/// A moved message is not moved again even if messages delivered before it are still in flight.
#[test]
fn a_message_moved_ahead_of_others_does_not_move_again() {
    let (mut world, holder) = world(MoveKind::Dead);
    let holder = holder.unwrap();
    let last = receive(&holder).unwrap().pop().unwrap();
    holder.reject(last.id).unwrap();
    world.advance(20);
    drop(holder);
    world.kill_and_restart();
    let from = consumer(&world.subscription("from", "s"), u32::MAX);
    let again = receive(&from).unwrap();
    assert_eq!(again.len() as u64, MESSAGES - 1);
    assert!(
        again.iter().all(|got| got.id != last.id),
        "{last:?} is back"
    );
}
