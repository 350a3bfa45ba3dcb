//! Producers with one request in flight: those whose batches are full, and those that collect what
//! comes meanwhile.

use crate::common::producers::{Producer, jitter};
use crate::common::{Dice, MS, Who, World, about};
use cloverleaf_doctor::{Bound, Rule, Severity};
use cloverleaf_telemetry::Protocol;

/// aiokafka as fast as it can, 10 ms away: 148 messages of 100 bytes fill a batch of 16 KiB, which
/// waits for the answer to the one before. Most of a round is the way.
fn full(world: &mut World, client_id: &'static str) -> Producer {
    let who = Who {
        client_id,
        ..Who::new(Protocol::Kafka, "", "")
    };
    let probe = world.connect(&who);
    let mut one = Producer::new(probe, world.now_us, who.rtt_us);
    (one.messages, one.bytes) = (148, 16_277);
    one.think_us = jitter(2 * MS);
    one.record_clock_us = Some(12 * MS as i64);
    one
}

#[test]
fn a_full_batch_per_round_trip_is_told_its_size() {
    let mut world = World::new();
    let one = full(&mut world, "aiokafka-producer-1");
    world.add(one);
    world.run(15);
    let finding = world.only(Rule::OneConnection);
    let change = &finding.changes[0];
    assert_eq!(change.setting, "max_batch_size");
    assert_eq!(change.value.as_deref(), Some("262144"));
    assert_eq!(change.default.as_deref(), Some("16384"));
    // The way stays, the client's own 2 ms grow by as much as the batch.
    let prediction = &finding.prediction;
    about(prediction.now, 148.0 / 0.0122, 1.05);
    about(
        prediction.after,
        16.1 * 148.0 / (0.0101 + 16.1 * 0.002),
        1.1,
    );
    assert_eq!(prediction.bound, Bound::AtLeast);
    assert!(prediction.arithmetic.contains("no more than"));
    let other = |client_id| {
        let mut world = World::new();
        let one = full(&mut world, client_id);
        world.add(one);
        world.run(15);
        world.only(Rule::OneConnection).changes.clone()
    };
    let setting = &other("nobody knows it")[0].setting;
    assert_eq!(setting, "batch.size (or what the library calls it)");
}

#[test]
fn what_is_as_large_as_it_may_be_is_not_to_be_larger() {
    let mut world = World::new();
    let mut one = full(&mut world, "aiokafka-producer-1");
    (one.messages, one.bytes) = (4_800, 520_000);
    world.add(one);
    world.run(30);
    world.silent();
}

/// Ten of what has 6 KB are more than a batch of 16 KiB: whether they go together, only the library
/// knows. aiokafka brought 1.8 times as much where 8.5 were promised at least.
#[test]
fn large_messages_one_by_one_are_promised_up_to_ten_times_as_much() {
    for (bytes, bound, severity) in [
        (200, Bound::AtLeast, Severity::High),
        (6_000, Bound::AtMost, Severity::Medium),
    ] {
        let mut world = World::new();
        let mut one = full(&mut world, "aiokafka-producer-1");
        (one.messages, one.bytes) = (1, bytes);
        one.think_us = jitter(100);
        one.record_clock_us = Some(0);
        world.add(one);
        world.run(15);
        let finding = world.only(Rule::SyncProduce);
        let told = (finding.prediction.bound, finding.severity);
        assert_eq!(told, (bound, severity));
        let says = finding.unseen.iter().any(|it| it.contains("60 KB"));
        assert_eq!(says, bound == Bound::AtMost, "{:?}", finding.unseen);
    }
}

mod healthy {
    use super::*;

    #[track_caller]
    fn silent(change: impl Fn(&mut Producer)) {
        let mut world = World::new();
        let mut one = full(&mut world, "aiokafka-producer-1");
        change(&mut one);
        world.add(one);
        world.run(60);
        world.silent();
    }

    /// A message that it makes in the course of a round goes with the next request: it never waits.
    #[test]
    fn a_steady_program_whose_library_collects() {
        for span_us in [4 * MS, 8 * MS, 12 * MS] {
            silent(|one| one.span_us = span_us);
        }
    }

    #[test]
    fn batches_that_are_now_larger_and_now_smaller() {
        silent(|one| {
            let mut dice = Dice(5);
            one.sizes = Some(Box::new(move |_| dice.between(60, 148)));
        });
    }

    /// A change of the database, of long before.
    #[test]
    fn records_with_times_of_their_own() {
        silent(|one| one.record_clock_us = Some(90_000 * MS as i64));
    }

    #[test]
    fn lots_by_a_timer_whose_library_lingers() {
        for period_us in [13 * MS, 20 * MS, 40 * MS] {
            silent(|one| {
                one.in_flight = 1_000;
                one.think_us = Box::new(|_| 0);
                one.due_us = Box::new(move |number| number * period_us);
            });
        }
    }

    #[test]
    fn lots_by_a_program_that_sleeps_for_longer_than_a_round() {
        for sleep_us in [15 * MS, 18 * MS, 30 * MS] {
            silent(|one| {
                one.in_flight = 1_000;
                one.think_us = Box::new(move |number| sleep_us + number * 7919 % 200);
            });
        }
    }
}
