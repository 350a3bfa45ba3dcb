//! Connections with more than a thousand rounds a second, of which the telemetry watches some:
//! the doctor finds what it found, and is silent where it was.

use cloverleaf_doctor::Rule;
use cloverleaf_telemetry::Protocol;

use crate::common::producers::{Producer, Times, jitter};
use crate::common::{Dice, MS, Model, S, Who, World, about, fact};

fn kafka() -> Who {
    Who::new(Protocol::Kafka, "librdkafka", "2.6.0")
}

fn nsq() -> Who {
    Who::new(Protocol::Nsq, "go-nsq", "1.1.0")
}

fn producer(world: &mut World, who: &Who) -> Producer {
    let probe = world.connect(who);
    Producer::new(probe, world.now_us, who.rtt_us)
}

/// By a clock, with as much jitter.
fn every(period_us: u64, jitter_us: u64) -> Times {
    let mut dice = Dice(period_us);
    Box::new(move |number| number * period_us + dice.between(0, jitter_us.max(1)))
}

#[test]
fn tiny_batches_in_bunches_are_found() {
    let mut world = World::new();
    let mut one = producer(&mut world, &nsq().far(200));
    // Five at a time, and then the answers: three thousand rounds a second.
    one.in_flight = 100;
    one.service_us = 20;
    one.due_us = Box::new(|number| number / 5 * 330);
    one.think_us = Box::new(|_| 2);
    world.add(one);
    world.run(15);
    let finding = world.only(Rule::TinyBatches);
    about(fact(&finding, "requests_per_second"), 15_000.0, 1.05);
}

#[test]
fn one_request_after_the_other_is_no_row_however_fast() {
    for rtt_us in [80, 200, 500, 900] {
        let mut world = World::new();
        let mut one = producer(&mut world, &nsq().far(rtt_us));
        one.service_us = 30;
        world.add(one);
        let mut one = producer(&mut world, &kafka().far(rtt_us).at([10, 0, 0, 2]));
        one.service_us = 30;
        one.record_clock_us = Some(0);
        world.add(one);
        world.run(40);
        world.silent();
    }
}

#[test]
fn fast_timers_are_left_alone() {
    for (period_us, jitter_us, rtt_us) in [
        (300, 20, 250),
        (500, 0, 2 * MS),
        (700, 300, 10 * MS),
        (900, 100, MS),
        (950, 5, 900),
    ] {
        for who in [nsq(), kafka()] {
            let mut world = World::new();
            let mut one = producer(&mut world, &who.far(rtt_us));
            one.in_flight = 200;
            one.service_us = 30;
            one.due_us = every(period_us, jitter_us);
            one.think_us = Box::new(|_| 0);
            one.record_clock_us = Some(0);
            world.add(one);
            world.run(60);
            world.silent();
        }
    }
}

/// When a client that was busy gets its other habits.
const BUSY_US: u64 = 30 * S;

/// Gives a producer other habits.
type Habits = Box<dyn FnOnce(&mut Producer)>;

/// A client that is busy by a clock, as if it were near, and has other habits later.
struct Turns {
    one: Producer,
    then: Option<Habits>,
}

impl Model for Turns {
    fn run(&mut self, to_us: u64) {
        if to_us > self.one.start_us + BUSY_US
            && let Some(then) = self.then.take()
        {
            self.one.in_flight = 1;
            self.one.due_us = Box::new(|_| 0);
            self.one.think_us = jitter(50);
            then(&mut self.one);
        }
        self.one.run(to_us);
    }
}

fn world_of_turns(then: impl FnOnce(&mut Producer) + 'static) -> World {
    let mut world = World::new();
    let mut one = producer(&mut world, &kafka());
    one.in_flight = 100;
    one.service_us = 60;
    one.due_us = every(400, 30);
    one.think_us = Box::new(|_| 0);
    one.record_clock_us = Some(0);
    world.add(Turns {
        one,
        then: Some(Box::new(then)),
    });
    world
}

#[test]
fn who_was_busy_and_waits_now_is_found_as_soon_as_anybody() {
    let mut world = world_of_turns(|_| {});
    world.run(30);
    world.silent();
    world.run(15);
    let finding = world.only(Rule::SyncProduce);
    about(fact(&finding, "gap_us"), 10_050.0, 1.1);
}

#[test]
fn nagle_and_linger_of_who_was_busy_are_found() {
    let mut world = world_of_turns(|one| one.hole_us = 10 * MS);
    world.run(45);
    assert!(world.rules().contains(&Rule::Nagle), "{:?}", world.rules());
    let mut world = world_of_turns(|one| one.linger_us = 30 * MS);
    world.run(50);
    assert!(world.rules().contains(&Rule::Linger), "{:?}", world.rules());
}
