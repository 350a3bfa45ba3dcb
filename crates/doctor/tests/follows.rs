//! Producers that do something between two messages: one that waits for answers meanwhile is told
//! by how the next request follows them, and one that does not is left in peace.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::producers::{Producer, Times, after, producer};
use crate::common::{Dice, MS, Model, S, Who, World, about, fact};
use cloverleaf_doctor::{Confidence, Rule};
use cloverleaf_telemetry::{Probe, Protocol};

/// Pictures of clients that do not wait, in [`who_does_not_wait_is_never_told`], so many in each of
/// so many worlds.
const WORLDS: u64 = 40;
const CLIENTS: u64 = 50;

fn kafka() -> Who {
    Who::new(Protocol::Kafka, "librdkafka", "2.3.0")
}

/// The time of a disk for a sync: so much at least and at most, and seldom far more.
fn disk(least_us: u64, most_us: u64, seed: u64) -> Times {
    let mut dice = Dice(seed);
    Box::new(move |_| match dice.between(0, 300) {
        0 => dice.between(most_us, 30 * MS),
        _ => dice.between(least_us, most_us),
    })
}

fn always(us: u64) -> Times {
    Box::new(move |_| us)
}

fn between(least_us: u64, most_us: u64, seed: u64) -> Times {
    let mut dice = Dice(seed);
    Box::new(move |_| dice.between(least_us, most_us))
}

/// A sleep of so long, and the machine is late.
fn sleep(us: u64, late_us: u64, seed: u64) -> Times {
    between(us, us + late_us, seed)
}

#[test]
fn who_waits_and_does_something_meanwhile_is_found() {
    let does = |own_us: u64| -> [(&str, Times); 3] {
        [
            ("works", between(own_us, own_us + 20, 1)),
            ("works more or less", between(own_us / 2, own_us * 3 / 2, 2)),
            ("sleeps", sleep(own_us, 150, 3)),
        ]
    };
    for protocol in [Protocol::Kafka, Protocol::Amqp] {
        for own_us in [2 * MS, 3 * MS, 5 * MS] {
            for (name, own) in does(own_us) {
                let mut world = World::new();
                let who = Who {
                    protocol,
                    ..kafka()
                };
                let mut one = producer(&mut world, &who);
                one.think_us = own;
                one.service_us = 0;
                one.late_us = disk(400, 2_400, own_us);
                world.add(one);
                world.run(60);
                let told = world.appeared.first().map(|(second, _)| *second);
                assert!(
                    told.is_some_and(|it| it <= 45),
                    "{name}, {own_us} us: {told:?}"
                );
                let finding = world.only(Rule::SyncProduce);
                about(fact(&finding, "follows_answers"), 1.0, 1.25);
                assert_eq!(finding.confidence, Confidence::Medium);
                assert!(finding.prediction.gain > 2.0, "{:?}", finding.prediction);
                let sleeps = "sleeps for a fixed time between two messages";
                assert!(!finding.unseen.iter().any(|it| it.contains(sleeps)));
            }
        }
    }
}

/// A client that waits and works gets no finding while nothing tells that it waits.
#[test]
fn who_is_answered_always_as_soon_tells_nothing() {
    for service_us in [0, 30, 400, 2 * MS] {
        after(90, &kafka(), |one| {
            one.think_us = between(2_500, 3_500, 1);
            one.service_us = service_us;
        })
        .silent();
    }
}

/// acks=1: what makes an answer late is a machine that is busy.
#[test]
fn who_does_not_wait_for_the_disk_tells_nothing() {
    after(90, &kafka(), |one| {
        one.think_us = between(2_500, 3_500, 1);
        one.service_us = 20;
        let mut dice = Dice(5);
        one.late_us = Box::new(move |_| match dice.between(0, 5) {
            0 => dice.between(0, 3 * MS),
            _ => 0,
        });
    })
    .silent();
}

/// Several messages are on their way, and each thread waits for its own.
#[test]
fn several_who_wait_and_work_on_one_connection_are_not_told_to_send_one_by_one() {
    for in_flight in 2..6 {
        for own_us in [3 * MS, 8 * MS, 40 * MS] {
            let world = after(90, &kafka(), |one| {
                one.in_flight = in_flight;
                one.think_us = between(own_us / 2, own_us * 3 / 2, 1);
                one.late_us = disk(400, 2_400, own_us);
            });
            let told = world.appeared.iter().map(|(_, finding)| finding.rule);
            assert!(!told.into_iter().any(|it| it == Rule::SyncProduce));
        }
    }
}

/// A wait for something beside the answer has a finding of its own.
#[test]
fn what_its_library_waits_for_is_told_instead() {
    let world = after(60, &kafka(), |one| {
        one.linger_us = 5 * MS;
        one.late_us = disk(400, 2_400, 7);
    });
    world.only(Rule::Linger);

    let world = after(60, &kafka(), |one| {
        one.hole_us = 10 * MS;
        one.bytes = 2_219;
        one.think_us = between(2_500, 3_500, 1);
        one.late_us = disk(400, 2_400, 7);
    });
    world.only(Rule::Nagle);
}

/// A client that waits for the answer, and then for the next stroke of a clock, is as fast as it
/// wants to be, also where an answer comes too late for the next stroke at times.
#[test]
fn who_waits_for_a_clock_as_well_is_left_in_peace() {
    for period_us in [15 * MS, 16 * MS, 18 * MS] {
        for late_us in [6 * MS, 12 * MS] {
            after(120, &kafka(), |one| {
                one.due_us = Box::new(move |number| number * period_us);
                let mut served = disk(400, 2_400, period_us);
                let mut dice = Dice(late_us);
                one.late_us = Box::new(move |number| match dice.between(0, 20) {
                    0 => dice.between(2 * MS, late_us),
                    _ => served(number),
                });
            })
            .silent();
        }
    }
}

/// How long a client that does not wait sleeps between two messages, of those that take longer than
/// a round trip with its service.
fn leisure(dice: &mut Dice, wait_us: u64) -> Times {
    // Nearer than this is told as what may be chance: hardly anybody sleeps for less.
    let more_us = (wait_us / 4).max(3_000);
    let base_us = wait_us + more_us + wait_us * dice.between(0, 70) / 100;
    let seed = dice.roll();
    let varies_us = base_us * dice.between(0, 60) / 100;
    match dice.between(0, 5) {
        0 => always(base_us),
        1 => sleep(base_us, dice.between(60, 600), seed),
        2 => between(base_us, base_us + varies_us, seed),
        // One of two, as long as it likes.
        3 => {
            let mut dice = Dice(seed);
            Box::new(move |_| base_us + dice.between(0, 2) * varies_us)
        }
        // Seldom much longer.
        _ => {
            let mut dice = Dice(seed);
            Box::new(move |_| match dice.between(0, 20) {
                0 => base_us + dice.between(0, 4 * varies_us),
                _ => base_us + dice.between(0, 200),
            })
        }
    }
}

/// A machine that is busy at times, for the client and for the broker.
fn in_bursts(own: Times, served: Times, much_us: u64, seed: u64) -> (Times, Times) {
    let is_busy = Rc::new(Cell::new(false));
    let (seen, mut dice) = (is_busy.clone(), Dice(seed));
    let (mut own, mut served) = (own, served);
    let mut late = Dice(seed ^ 1);
    let client: Times = Box::new(move |number| {
        if dice.between(0, 12) == 0 {
            is_busy.set(!is_busy.get());
        }
        let late_us = if is_busy.get() {
            dice.between(0, much_us)
        } else {
            0
        };
        own(number) + late_us
    });
    let broker: Times = Box::new(move |number| {
        let late_us = if seen.get() {
            late.between(0, much_us)
        } else {
            0
        };
        served(number) + late_us
    });
    (client, broker)
}

/// The disk is always busy for others: a sync that comes in between waits for the end of the
/// present one, and of the next one.
fn behind_others(least_us: u64, most_us: u64, came_us: Rc<Cell<u64>>, seed: u64) -> Times {
    let mut dice = Dice(seed);
    let mut end_us = 0;
    Box::new(move |_| {
        end_us = end_us.max(came_us.get().saturating_sub(S));
        while end_us <= came_us.get() {
            end_us += dice.between(least_us, most_us);
        }
        end_us + dice.between(least_us, most_us) - came_us.get()
    })
}

/// A client that sends without waiting: it sleeps for about as long as it would wait, or longer.
fn does_not_wait(world: &mut World, number: u64, dice: &mut Dice) -> Producer {
    let rtt_us = dice.between(2 * MS, 30 * MS);
    let who = Who {
        client_id: "",
        ..kafka().far(rtt_us).at([10, 1, 0, number as u8])
    };
    let mut one = producer(world, &who);
    one.in_flight = 1_000;
    one.service_us = 0;
    let least_us = dice.between(100, 2_000);
    let most_us = least_us + dice.between(200, 3_000);
    one.late_us = disk(least_us, most_us, dice.roll());
    let wait_us = rtt_us + (least_us + most_us) / 2;
    one.think_us = leisure(dice, wait_us);
    let is_by_clock = dice.between(0, 6) == 0;
    if is_by_clock {
        let period_us = wait_us * dice.between(120, 190) / 100;
        one.think_us = between(20, 40, dice.roll());
        one.due_us = Box::new(move |number| number * period_us);
    }
    if dice.between(0, 3) == 0 {
        one.wander_us = between(0, dice.between(50, 1_500), dice.roll());
    }
    match dice.between(0, if is_by_clock { 1 } else { 4 }) {
        0 => {
            let (own, served) = (one.think_us, one.late_us);
            let much_us = dice.between(500, 6_000);
            (one.think_us, one.late_us) = in_bursts(own, served, much_us, dice.roll());
        }
        1 => {
            let came_us = Rc::new(Cell::new(one.start_us + rtt_us / 2));
            let (mut own, mut wander) = (one.think_us, one.wander_us);
            let sent = came_us.clone();
            one.think_us = Box::new(move |number| {
                let own_us = own(number);
                sent.set(sent.get() + own_us);
                own_us
            });
            let late_us = Rc::new(Cell::new(0));
            let (came, late) = (Rc::new(Cell::new(0)), late_us.clone());
            let mut served = behind_others(least_us, most_us, came.clone(), dice.roll());
            one.wander_us = Box::new(move |number| {
                late.set(wander(number));
                late.get()
            });
            one.late_us = Box::new(move |number| {
                came.set(came_us.get() + late_us.get());
                served(number)
            });
        }
        _ => {}
    }
    one
}

/// The clients that were told that they wait, and why.
fn told_to_wait(world: &World, seed: u64) -> Vec<String> {
    let findings = world.appeared.iter().map(|(_, finding)| finding);
    let of_waiting = findings.filter(|it| it.rule == Rule::SyncProduce);
    let told = of_waiting.map(|it| {
        let facts: Vec<&str> = it.evidence.iter().map(|fact| fact.text.as_str()).collect();
        format!("{seed}: {} {}", it.client.address, facts.join("; "))
    });
    told.collect()
}

#[test]
fn who_does_not_wait_is_never_told() {
    let mut told = Vec::new();
    for seed in 0..WORLDS {
        let mut world = World::new();
        let mut dice = Dice(seed);
        for number in 0..CLIENTS {
            let one = does_not_wait(&mut world, number, &mut dice);
            world.add(one);
        }
        world.run(100);
        told.extend(told_to_wait(&world, seed));
    }
    assert!(
        told.is_empty(),
        "{} of {}: {told:#?}",
        told.len(),
        WORLDS * CLIENTS
    );
}

/// A program that makes a message when it likes, and whose library has one request in flight: what
/// is made meanwhile goes with the next one. Where an answer is late it is the library that waits.
struct Collects {
    probe: Probe,
    half_us: u64,
    served_us: Times,
    leisure_us: Times,
    /// When the next message is made, and when the answer to the last request is there.
    made_us: u64,
    free_us: u64,
    number: u64,
}

impl Model for Collects {
    fn run(&mut self, to_us: u64) {
        // A second is more than a request takes.
        while self.free_us.max(self.made_us) + S < to_us {
            let (first_us, sent_us) = (self.made_us, self.free_us.max(self.made_us) + 20);
            let mut messages = 0;
            let mut last_us = first_us;
            while self.made_us <= sent_us {
                last_us = self.made_us;
                messages += 1;
                self.number += 1;
                self.made_us += (self.leisure_us)(self.number);
            }
            let came_us = sent_us + self.half_us;
            self.probe.read(200, came_us);
            self.probe
                .request(messages, 200 * messages, came_us, came_us);
            let age_us = came_us - first_us + first_us % MS;
            self.probe.record_age(age_us as i64);
            self.probe.batches(1, (last_us - first_us) / MS * MS);
            let answer_us = came_us + (self.served_us)(self.number);
            self.probe.wrote(50);
            self.probe.answered(1, answer_us);
            self.free_us = answer_us + self.half_us;
        }
    }
}

#[test]
fn a_library_that_waits_where_its_program_does_not_is_never_told() {
    let mut told = Vec::new();
    for seed in 0..WORLDS / 2 {
        let mut world = World::new();
        let mut dice = Dice(seed);
        for number in 0..CLIENTS {
            let rtt_us = dice.between(2 * MS, 20 * MS);
            let who = kafka().far(rtt_us).at([10, 1, 0, number as u8]);
            let least_us = dice.between(100, 3_000);
            let most_us = least_us + dice.between(500, 12_000);
            let wait_us = rtt_us + (least_us + most_us) / 2;
            let own_us = wait_us * dice.between(90, 140) / 100;
            let (probe, now_us) = (world.connect(&who), world.now_us);
            world.add(Collects {
                probe,
                half_us: rtt_us / 2,
                served_us: between(least_us, most_us, dice.roll()),
                leisure_us: sleep(own_us, own_us * dice.between(1, 30) / 100, dice.roll()),
                made_us: now_us,
                free_us: now_us,
                number: 0,
            });
        }
        world.run(100);
        told.extend(told_to_wait(&world, seed));
    }
    // Where its own part is small a finding says that it may be chance.
    told.retain(|it| it.contains("comes 1 ms later"));
    assert!(told.is_empty(), "{}: {told:#?}", told.len());
}
