//! Producers that send by a clock or at their leisure, near to the round trip by chance: nobody
//! waits for anybody. And those that do wait, however regular they are.

use crate::common::producers::{Producer, jitter};
use crate::common::{Dice, MS, S, Who, World};
use cloverleaf_doctor::{Confidence, Rule};
use cloverleaf_telemetry::Protocol;

fn producer(world: &mut World, who: &Who) -> Producer {
    let probe = world.connect(who);
    let mut producer = Producer::new(probe, world.now_us, who.rtt_us);
    if who.protocol == Protocol::Kafka {
        producer.record_clock_us = Some(0);
    }
    producer
}

fn kafka() -> Who {
    Who::new(Protocol::Kafka, "librdkafka", "2.3.0")
}

fn nsq() -> Who {
    Who::new(Protocol::Nsq, "go-nsq", "1.1.0")
}

/// From nothing to so many microseconds, never the same.
fn up_to(us: u64, seed: u64) -> crate::common::producers::Times {
    let mut dice = Dice(seed);
    Box::new(move |_| dice.between(0, us + 1))
}

/// A timer with this period, in a world with this round trip.
fn by_a_timer(who: &Who, period_us: u64, jitter_us: u64, linger_us: u64, in_flight: usize) {
    let mut world = World::new();
    let mut one = producer(&mut world, who);
    one.in_flight = in_flight;
    one.think_us = Box::new(|_| 20);
    one.due_us = Box::new(move |number| number * period_us);
    one.wander_us = up_to(jitter_us, period_us ^ (jitter_us << 20));
    one.linger_us = linger_us;
    world.add(one);
    world.run(60);
    if let Some((second, finding)) = world.appeared.first() {
        panic!(
            "{} after {second} s: {period_us} us by the clock, {jitter_us} us of jitter, \
             {linger_us} us of linger, a round trip of {} us: {:#?}",
            finding.rule, who.rtt_us, finding.evidence
        );
    }
}

#[test]
fn a_timer_near_the_round_trip_is_nobody_who_waits() {
    for rtt_us in [2 * MS, 5 * MS, 10 * MS, 20 * MS, 40 * MS, 80 * MS, 150 * MS] {
        for percent in [101, 105, 110, 120, 125, 133] {
            for jitter_us in [0, 30, 100, 300, rtt_us / 10] {
                let period_us = rtt_us * percent / 100;
                for (who, in_flight) in [(kafka(), 1000), (nsq(), 1)] {
                    // With one request in flight nobody is faster than this.
                    if in_flight > 1 || period_us > rtt_us + jitter_us + 150 {
                        by_a_timer(&who.far(rtt_us), period_us, jitter_us, 0, in_flight);
                    }
                }
            }
        }
    }
}

#[test]
fn a_timer_a_little_longer_than_the_linger_is_nobody_who_waits() {
    let cases = [
        (5 * MS, [5_500, 6_000, 6_500]),
        (100 * MS, [110 * MS, 120 * MS, 130 * MS]),
    ];
    for (linger_us, periods_us) in cases {
        for period_us in periods_us {
            for rtt_us in [200, 500, MS, 2 * MS] {
                for jitter_us in [0, 50, 200] {
                    by_a_timer(&kafka().far(rtt_us), period_us, jitter_us, linger_us, 1000);
                }
            }
        }
    }
}

/// Bursts of a few requests by the clock.
#[test]
fn bursts_by_a_timer_near_the_round_trip_are_no_connection_at_its_limit() {
    for rtt_us in [5 * MS, 10 * MS, 40 * MS] {
        for (burst, percent) in [(2, 103), (5, 110), (5, 130), (20, 120), (32, 105)] {
            for jitter_us in [0, 100, 300] {
                let period_us = rtt_us * percent / 100;
                if burst * S / period_us > 1_500 {
                    // Those are tiny batches.
                    continue;
                }
                let mut world = World::new();
                let mut one = producer(&mut world, &kafka().far(rtt_us));
                one.in_flight = 1000;
                one.think_us = Box::new(|_| 0);
                one.due_us = Box::new(move |number| number / burst * period_us);
                let mut dice = Dice(period_us);
                let mut late_us = 0;
                one.wander_us = Box::new(move |number| {
                    if number % burst == 0 {
                        late_us = dice.between(0, jitter_us + 1);
                    }
                    late_us
                });
                world.add(one);
                world.run(60);
                world.silent();
            }
        }
    }
}

/// A timer becomes another one: what is a clock before and after is one.
#[test]
fn a_program_that_changes_its_timer() {
    for (first_us, then_us) in [
        (400, 12 * MS),
        (3 * MS, 12 * MS),
        (12 * MS, 30 * MS),
        (30 * MS, 12 * MS),
    ] {
        let mut world = World::new();
        let mut one = producer(&mut world, &kafka());
        one.in_flight = 1000;
        one.think_us = Box::new(|_| 0);
        let before = 30 * S / first_us;
        one.due_us = Box::new(move |number| {
            if number < before {
                number * first_us
            } else {
                30 * S + (number - before) * then_us
            }
        });
        one.wander_us = up_to(100, first_us);
        world.add(one);
        world.run(90);
        world.silent();
    }
}

/// A program that sleeps a fixed time, and whose library collects for a while: the records are
/// older than those of one who waits could be.
#[test]
fn records_that_are_older_than_the_answer_were_not_waited_for() {
    let mut world = World::new();
    let mut one = producer(&mut world, &kafka());
    one.in_flight = 1000;
    let mut dice = Dice(5);
    one.think_us = Box::new(move |_| 11 * MS + dice.between(0, 500));
    one.record_clock_us = Some(8 * MS as i64);
    world.add(one);
    world.run(60);
    world.silent();
}

/// A program that works on each message, and waits for each answer; its clock is behind by about
/// as long as the work takes.
#[test]
fn work_that_varies_is_no_lingering() {
    for (low_us, high_us, clock_us) in [
        (5 * MS, 15 * MS, 10 * MS),
        (0, 20 * MS, 10 * MS),
        (10 * MS, 40 * MS, 22 * MS),
    ] {
        let mut world = World::new();
        let mut one = producer(&mut world, &kafka().far(5 * MS));
        let mut dice = Dice(low_us);
        one.think_us = Box::new(move |_| dice.between(low_us, high_us));
        one.record_clock_us = Some(clock_us as i64);
        world.add(one);
        world.run(60);
        world.silent();
    }
}

#[test]
fn who_waits_is_found_within_fifteen_seconds_however_regular() {
    // Few rounds take longer to be told from a clock's.
    for (rtt_us, within) in [(2 * MS, 15), (10 * MS, 15), (40 * MS, 15), (80 * MS, 40)] {
        for own_us in [20, 100, rtt_us / 12, MS.min(rtt_us / 5)] {
            for wander_us in [10, 50, 500, rtt_us / 10] {
                for (seed, who) in [kafka(), nsq()].into_iter().enumerate() {
                    let mut world = World::new();
                    let mut one = producer(&mut world, &who.far(rtt_us));
                    one.think_us = jitter(own_us);
                    // The answer waits for delays on the way.
                    one.late_us = up_to(wander_us, rtt_us ^ wander_us ^ (seed as u64) << 9);
                    world.add(one);
                    world.run(within);
                    let second = world.appeared.first().map(|(second, _)| *second);
                    assert!(
                        second.is_some_and(|second| second <= within),
                        "{second:?} s, a round trip of {rtt_us} us, own {own_us}, {wander_us}"
                    );
                    let finding = world.only(Rule::SyncProduce);
                    if own_us > rtt_us / 9 {
                        assert_eq!(finding.confidence, Confidence::Medium);
                    }
                }
            }
        }
    }
}

/// Its own clock is wrong, and it does wait.
#[test]
fn who_waits_is_found_with_a_clock_that_is_wrong() {
    for clock_us in [-(60 * S as i64), 60 * S as i64] {
        let mut world = World::new();
        let mut one = producer(&mut world, &kafka());
        one.record_clock_us = Some(clock_us);
        world.add(one);
        world.run(15);
        let finding = world.only(Rule::SyncProduce);
        assert!(finding.unseen.len() >= 2, "{:#?}", finding.unseen);
    }
}

/// One request at a time over a link that is full: a thousand kilobytes at 100 Mbit/s.
#[test]
fn a_full_link_is_not_waited_for() {
    for (rtt_us, receive_us) in [(2 * MS, 80 * MS), (10 * MS, 80 * MS), (10 * MS, 12 * MS)] {
        let mut world = World::new();
        let mut one = producer(&mut world, &nsq().far(rtt_us));
        one.bytes = 1_000_000;
        one.hole_us = receive_us;
        one.late_us = up_to(200, 1);
        world.add(one);
        world.run(60);
        world.silent();
    }
}

/// Where a part of the time is spent on bytes, more requests in flight do not save it.
#[test]
fn the_time_that_the_bytes_take_stays() {
    let mut world = World::new();
    let mut one = producer(&mut world, &nsq().far(10 * MS));
    one.bytes = 30_000;
    one.hole_us = 3 * MS;
    one.late_us = up_to(200, 1);
    world.add(one);
    world.run(20);
    let finding = world.only(Rule::SyncProduce);
    crate::common::about(finding.prediction.after, 1e6 / 3_050.0, 1.05);
}

/// A producer whose records are of all ages between these.
struct Aging {
    one: Producer,
    ages: Dice,
    between_us: (u64, u64),
    seen: u64,
}

impl crate::common::Model for Aging {
    fn run(&mut self, to_us: u64) {
        self.one.run(to_us);
        let publishes = self.one.probe.snapshot(|_| None).counters.publishes;
        for _ in self.seen..publishes {
            let age_us = self.ages.between(self.between_us.0, self.between_us.1);
            self.one.probe.record_age(age_us as i64);
        }
        self.seen = publishes;
    }
}

/// Requests at their leisure, with records of such ages.
fn aging(rtt_us: u64, between_us: (u64, u64), hole_us: u64) {
    let mut world = World::new();
    let mut one = producer(&mut world, &kafka().far(rtt_us));
    one.record_clock_us = None;
    one.in_flight = 1000;
    one.messages = 50;
    one.bytes = 20_000;
    one.hole_us = hole_us;
    // Fifty partitions with a linger of 50 ms: a request per millisecond.
    one.think_us = jitter(MS);
    world.add(Aging {
        one,
        ages: Dice(3),
        between_us,
        seen: 0,
    });
    world.run(60);
    world.silent();
}

#[test]
fn records_that_a_library_keeps_for_a_while_do_not_wait_for_their_turn() {
    for rtt_us in [5 * MS, 10 * MS] {
        for linger_us in [50 * MS, 100 * MS] {
            aging(rtt_us, (linger_us, linger_us + 8 * MS), 0);
            aging(rtt_us, (linger_us, linger_us * 3 / 2), 0);
        }
    }
    // A relay that keeps the times of the source.
    aging(10 * MS, (30 * S, 31 * S), 0);
}

/// A full link: the bytes come in all the time, and records wait for longer and less long.
#[test]
fn records_that_wait_for_the_bandwidth_do_not_wait_for_their_turn() {
    aging(20 * MS, (100 * MS, 400 * MS), 9 * MS);
}

/// A shipper of logs, or of a database's changes, gives its records the times of the events.
#[test]
fn records_with_times_of_their_own_wait_for_nothing() {
    for (rtt_us, rest_us, messages) in [
        (20 * MS, (2 * MS, 12 * MS), (1, 4)),
        (80 * MS, (10 * MS, 80 * MS), (1, 40)),
        (20 * MS, (5 * MS, 6 * MS), (1, 1)),
        (20 * MS, (MS, 40 * MS), (20, 20)),
    ] {
        let mut world = World::new();
        let mut one = producer(&mut world, &kafka().far(rtt_us));
        one.in_flight = 1000;
        let mut dice = Dice(11);
        one.think_us = Box::new(move |_| dice.between(rest_us.0, rest_us.1));
        let mut dice = Dice(12);
        one.sizes = Some(Box::new(move |_| dice.between(messages.0, messages.1 + 1)));
        one.record_clock_us = None;
        world.add(Aging {
            one,
            ages: Dice(13),
            between_us: (100 * MS, 10 * S),
            seen: 0,
        });
        world.run(60);
        world.silent();
    }
}
