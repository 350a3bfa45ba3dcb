//! Which messages are flagged as redelivered after a restart: all that a consumer may have seen,
//! and few others.

use crate::common::{World, consumer, receive, take};
use cloverleaf_broker::SubscriptionOptions;

fn flags(world: &World) -> Vec<(String, bool)> {
    let consumer = consumer(&world.subscription("t", "s"), u32::MAX);
    let got = receive(&consumer).unwrap().into_iter();
    got.map(|got| (got.body, got.redelivered)).collect()
}

fn expected(again: &[&str], new: &[&str]) -> Vec<(String, bool)> {
    let pair = |again: bool| move |body: &&str| ((*body).to_owned(), again);
    again
        .iter()
        .map(pair(true))
        .chain(new.iter().map(pair(false)))
        .collect()
}

/// Five messages, of which a consumer has received two and acknowledged none.
fn two_seen() -> World {
    let world = World::new();
    let subscription = world.subscription("t", "s");
    world.publish("t", &["1", "2", "3", "4", "5"]);
    let first = consumer(&subscription, 2);
    assert_eq!(receive(&first).unwrap().len(), 2);
    world
}

#[test]
fn a_kill_right_after_a_delivery_does_not_hide_it() {
    let mut world = two_seen();
    // Nothing was written to the journal since, not even the progress of the last ten milliseconds.
    world.kill_and_restart();
    let flags = flags(&world);
    assert!(flags[..2].iter().all(|(_, again)| *again), "{flags:?}");
    // For the other messages either flag is correct.
    assert_eq!(flags.len(), 5);
    // Messages published now are new, however far ahead the journal's mark was.
    world.publish("t", &["6", "7"]);
    let consumer = consumer(&world.subscription("t", "s"), u32::MAX);
    let got = receive(&consumer).unwrap();
    let new: Vec<_> = got.iter().filter(|got| got.id.offset >= 5).collect();
    assert!(new.iter().all(|got| !got.redelivered), "{new:?}");
    drop(consumer);
    // After a second kill the first process's mark does not apply to them either.
    world.kill_and_restart();
    world.publish("t", &["8"]);
    let last = self::flags(&world).pop().unwrap();
    assert_eq!(last, ("8".to_owned(), false));
}

#[test]
fn a_mark_of_an_earlier_process_does_not_cover_later_messages() {
    let mut world = World::new();
    let subscription = world.subscription("t", "s");
    world.publish("t", &["1"]);
    assert_eq!(receive(&consumer(&subscription, 1)).unwrap().len(), 1);
    world.kill_and_restart();
    world.publish("t", &["2", "3"]);
    world.advance(20);
    // The second process has delivered nothing.
    world.kill_and_restart();
    assert_eq!(flags(&world), expected(&["1"], &["2", "3"]));
}

#[test]
fn a_kill_while_delivery_is_idle_leaves_the_exact_mark() {
    let mut world = two_seen();
    for _ in 0..3 {
        world.advance(5_000);
    }
    world.kill_and_restart();
    assert_eq!(flags(&world), expected(&["1", "2"], &["3", "4", "5"]));
    // The exact offset also survives in a snapshot of the journal.
    for _ in 0..3 {
        world.advance(5_000);
    }
    for n in 0..40_000 {
        world
            .broker
            .put_value("k", Some(vec![n as u8; 100]))
            .unwrap();
        if n % 100 == 0 {
            world.advance(1_000);
        }
    }
    world.kill_and_restart();
    let all = flags(&world);
    assert_eq!(all, expected(&["1", "2", "3", "4", "5"], &[]));
}

#[test]
fn an_orderly_restart_knows_the_exact_mark() {
    let mut world = two_seen();
    world.restart();
    assert_eq!(flags(&world), expected(&["1", "2"], &["3", "4", "5"]));
}

#[test]
fn after_a_power_loss_all_that_is_left_may_have_been_delivered() {
    for seed in 0..20 {
        let mut world = two_seen();
        world.log.sync_all().unwrap();
        world.lose_power_and_restart(seed);
        world.publish("t", &["new"]);
        let all = expected(&["1", "2", "3", "4", "5"], &["new"]);
        assert_eq!(flags(&world), all);
    }
}

#[test]
fn messages_left_in_an_outbox_were_not_delivered() {
    let mut world = World::new();
    let subscription = world.subscription("t", "s");
    world.publish("t", &["1", "2", "3"]);
    let first = consumer(&subscription, 2);
    drop(first);
    let pull = cloverleaf_broker::ConsumerOptions {
        pull: true,
        ..Default::default()
    };
    let pull = subscription.attach(pull).unwrap();
    let got = take(&pull).unwrap().unwrap();
    assert!(!got.redelivered);
    assert_eq!(got.attempts, 1);
    pull.nack(got.id, 0).unwrap();
    drop(pull);
    assert_eq!(flags(&world), expected(&["1"], &["2", "3"]));
    world.restart();
    // The journal cannot tell which of them only reached an outbox.
    assert_eq!(flags(&world).len(), 3);
}

/// Attempts and marks together: a delivery that never left the outbox does not count as an attempt.
#[test]
fn a_limit_of_deliveries_counts_only_received_ones() {
    let world = World::new();
    let options = SubscriptionOptions {
        attempts_max: 2,
        ..SubscriptionOptions::default()
    };
    let subscription = world.subscription_with("t", "s", options);
    world.publish("t", &["1"]);
    for _ in 0..5 {
        drop(consumer(&subscription, 1));
    }
    assert_eq!(flags(&world), expected(&[], &["1"]));
    assert_eq!(flags(&world), expected(&["1"], &[]));
    assert_eq!(flags(&world), []);
    world.settle();
    assert_eq!(subscription.stats().dead_lettered, 1);
}
