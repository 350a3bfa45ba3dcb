//! After a power loss, offsets continue far above the highest one that may have been used. The gap
//! appears only with the next message: until then every reader can reach the end.

use crate::common::{World, ack_all, bodies, consumer, poll, reached, receive};
use cloverleaf_broker::{Committed, Partition, StartAt, SubscriptionOptions, TopicOptions};
use cloverleaf_log::{Durability, Offset};

const GAP: u64 = 1 << 24;

fn log(world: &World) -> Partition {
    world.topic("t").partition(0).unwrap()
}

/// Publishes messages that a power loss may lose.
fn publish_unsynced(world: &World, bodies: &[&str]) {
    let published = world
        .topic("t")
        .publish(world.batch(bodies), Durability::Kernel);
    assert!(matches!(poll(published.unwrap()), Some(Ok(()))));
}

fn committed(world: &World, group: &str, offset: Offset) {
    let committed = Committed {
        group: group.to_owned(),
        topic: world.topic("t").id(),
        partition: 0,
        offset,
        leader_epoch: -1,
        metadata: String::new(),
        committed_ms: 1,
    };
    world.broker.commit_offsets(vec![committed]).unwrap();
}

/// A group's lag: the distance from its committed offset to the end.
fn lag(world: &World, group: &str) -> i128 {
    let id = world.topic("t").id();
    let committed = world.broker.committed_offset(group, id, 0).unwrap();
    let log = log(world);
    let place = log.skip_hole(committed.offset);
    assert_eq!(
        log.lag_from(committed.offset),
        log.written_end().saturating_sub(place).min(log.lag_from(0))
    );
    i128::from(log.written_end()) - i128::from(place)
}

fn starting_at(start: StartAt) -> SubscriptionOptions {
    SubscriptionOptions {
        start,
        ..SubscriptionOptions::default()
    }
}

/// A topic with ten synced messages: `all` has consumed and committed ten, `some` five. The tests
/// add messages that the power loss takes.
fn with_readers() -> World {
    let world = World::new();
    let change = |options: &mut TopicOptions| options.retention.consumed = false;
    world.topic("t").set_options(change).unwrap();
    let readers = ["all", "some"].map(|name| world.subscription("t", name));
    world.publish("t", &["m"; 10]);
    for (subscription, count) in readers.iter().zip([10, 5]) {
        let reader = consumer(subscription, count);
        ack_all(&reader, &receive(&reader).unwrap());
    }
    committed(&world, "all", 10);
    committed(&world, "some", 5);
    world.settle();
    world.log.sync_all().unwrap();
    world
}

#[test]
fn readers_reach_the_end_without_a_new_message() {
    let mut world = with_readers();
    for seed in 0..20 {
        // These are read and committed, and lost with the power in at least some of the runs.
        let seen = log(&world).next_offset() + 3;
        committed(&world, "lost", seen);
        world.log.sync_all().unwrap();
        publish_unsynced(&world, &["gone"; 3]);
        assert_eq!(log(&world).written_end(), seen);
        world.lose_power_and_restart(seed);
        for again in 0..3 {
            let log = log(&world);
            assert_eq!(reached(&log), log.written_end(), "seed {seed}");
            assert!(log.written_end() <= seen && log.start_offset() <= log.written_end());
            assert!(log.next_offset() >= seen + GAP);
            assert_eq!(lag(&world, "lost"), 0);
            let waits = |name| world.subscription("t", name).stats().depth;
            let unread = log.lag_from(10);
            assert_eq!(waits("all"), unread);
            assert_eq!(waits("some"), unread + 5);
            match again {
                0 => world.restart(),
                _ => world.kill_and_restart(),
            }
        }
    }
}

#[test]
fn the_gap_is_left_once_and_is_no_backlog() {
    let mut world = with_readers();
    world.lose_power_and_restart(1);
    let next = log(&world).next_offset();
    assert_eq!(next, 10 + GAP);
    for _ in 0..3 {
        world.restart();
        world.kill_and_restart();
    }
    assert_eq!(log(&world).next_offset(), next);
    assert_eq!((lag(&world, "all"), lag(&world, "some")), (0, 5));
    for (name, start) in [("new", StartAt::Latest), ("old", StartAt::Earliest)] {
        world.subscription_with("t", name, starting_at(start));
    }
    world.publish("t", &["n"]);
    assert_eq!(log(&world).written_end(), next + 1);
    for _ in 0..2 {
        let expected = [("all", 1), ("some", 6), ("new", 1), ("old", 11)];
        for (name, count) in expected {
            assert_eq!(world.subscription("t", name).stats().depth, count, "{name}");
        }
        assert_eq!((lag(&world, "all"), log(&world).lag_from(5)), (1, 6));
        world.restart();
    }
    for (name, count) in [("all", 1), ("some", 6), ("new", 1), ("old", 11)] {
        let reader = consumer(&world.subscription("t", name), 100);
        world.settle();
        assert_eq!(bodies(&reader).len(), count, "{name}");
    }
}

#[test]
fn an_empty_partition_ends_where_it_begins() {
    for by_retention in [true, false] {
        let mut world = with_readers();
        if !by_retention {
            world.topic("t").delete_records(0, 10).unwrap();
        }
        world.lose_power_and_restart(1);
        if by_retention {
            // Consumed messages below the gap are deleted.
            let log = world
                .log
                .opened_partition(world.topic("t").id(), 0)
                .unwrap();
            log.seal_active();
            world.log.step();
            let all: Vec<Offset> = log.segments().iter().map(|it| it.base).collect();
            log.drop_segments(&all).unwrap();
        } else {
            let next = log(&world).next_offset();
            // The highest offset that a client may have seen.
            assert_eq!(world.topic("t").delete_records(0, next).unwrap(), 10);
            assert!(world.topic("t").delete_records(0, next + 1).is_err());
        }
        for _ in 0..2 {
            let log = log(&world);
            assert_eq!((log.start_offset(), log.written_end()), (10, 10));
            assert_eq!((lag(&world, "all"), log.lag_from(0)), (0, 0));
            assert_eq!(world.topic("t").depth(), 0);
            world.restart();
        }
        world.publish("t", &["n"]);
        let log = log(&world);
        // A reader that was at the end has missed nothing.
        assert_eq!((log.skip_hole(10), log.lag_from(0)), (10 + GAP, 1));
        assert_eq!(reached(&log), 11 + GAP);
    }
}

/// Messages seen between two power losses may be lost; their offsets are not used again.
#[test]
fn each_power_loss_leaves_a_gap_above_the_one_before() {
    for seed in 0..20 {
        let mut world = World::new();
        let mut seen = 0;
        for round in 0..4 {
            // The topic survives; its messages may not.
            world.topic("t");
            world.broker.sync_definitions().unwrap();
            publish_unsynced(&world, &["m"; 3]);
            let log = log(&world);
            assert!(round == 0 || log.written_end() >= seen + GAP, "seed {seed}");
            seen = log.written_end();
            world.lose_power_and_restart(seed * 100 + round);
        }
    }
}

#[test]
fn messages_held_back_by_a_paused_topic_are_no_gap() {
    let mut world = with_readers();
    world.topic("t").pause().unwrap();
    world.broker.sync_definitions().unwrap();
    world.lose_power_and_restart(1);
    world.publish("t", &["n"; 2]);
    assert_eq!(world.topic("t").depth(), 2);
    world.topic("t").unpause().unwrap();
    assert_eq!(world.subscription("t", "all").stats().depth, 2);
    let published = world.batch(&["o"]);
    let published = world.topic("t").publish(published, Durability::Disk);
    drop(published.unwrap());
    world.settle();
    assert_eq!(world.subscription("t", "some").stats().depth, 8);
}

/// A requeued or delayed message that the power loss has taken waits no longer.
#[test]
fn requeued_messages_that_a_power_loss_has_taken_wait_no_longer() {
    let mut lost = 0;
    for seed in 0..40 {
        let mut world = with_readers();
        publish_unsynced(&world, &["gone"; 3]);
        let reader = consumer(&world.subscription("t", "all"), 3);
        for (number, got) in receive(&reader).unwrap().iter().enumerate() {
            let delay_ms = [0, 60_000][number % 2];
            reader.nack(got.id, delay_ms).unwrap();
        }
        world.clock.advance(20);
        world.broker.tick();
        world.broker.sync_definitions().unwrap();
        world.lose_power_and_restart(seed);
        for _ in 0..2 {
            let held = log(&world).lag_from(10);
            lost += 3 - held;
            let stats = world.subscription("t", "all").stats();
            assert_eq!(stats.depth + stats.delayed, held, "seed {seed}");
            world.kill_and_restart();
        }
        world.publish("t", &["n"]);
        assert!(log(&world).written_end() > 13 + GAP);
    }
    assert!(lost > 0);
}

/// The second power loss takes the progress that had passed the gap of the first one.
#[test]
fn a_gap_before_the_first_message_is_no_backlog_after_the_next_loss() {
    for seed in 0..20 {
        let mut world = World::new();
        world.subscription("t", "s");
        world.broker.sync_definitions().unwrap();
        world.lose_power_and_restart(seed);
        let published = world
            .topic("t")
            .publish(world.batch(&["m"]), Durability::Disk);
        world.log.step_commit();
        assert!(matches!(poll(published.unwrap()), Some(Ok(()))));
        world.lose_power_and_restart(seed);
        assert_eq!(world.subscription("t", "s").stats().depth, 1, "seed {seed}");
        let delayed = world.topic("t");
        let delayed = delayed.publish_delayed(&world.batch(&["d"]), 1, Durability::Kernel);
        delayed.unwrap();
    }
}
