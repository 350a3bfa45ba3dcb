//! Consumers: what must be found, with which numbers, and who must be left in peace.

use crate::common::consumers::{Taker, Takers};
use crate::common::{Dice, MS, S, Who, World, about, fact};
use cloverleaf_doctor::{Bound, Finding, Rule, Severity};
use cloverleaf_telemetry::Protocol;

fn pika() -> Who {
    Who::new(Protocol::Amqp, "Pika Python Client Library", "1.3.2")
}

fn taker(world: &mut World, who: &Who, credit: u64, pool: usize) -> Taker {
    let probe = world.connect(who);
    Taker::new(probe, who.rtt_us, credit, pool)
}

/// A world so many seconds after this client began to consume a long backlog, with one consumer
/// that has such workers.
fn after(
    seconds: u64,
    who: &Who,
    credit: u64,
    (workers, job_us): (usize, impl Fn(u64) -> u64 + 'static),
) -> World {
    let mut world = World::new();
    let one = taker(&mut world, who, credit, 0);
    let takers = Takers::new(vec![one], &[workers], Box::new(job_us), world.now_us);
    world.add(takers.with_backlog(10_000_000));
    world.run(seconds);
    world
}

/// Messages per second that one consumer with this credit gets done.
fn rate_with(credit: u64, job_us: u64) -> f64 {
    let world = after(10, &pika(), credit, (1, move |_| job_us));
    let counters = world.observation().snapshot.connections[0].counters;
    counters.acks as f64 / 10.0
}

#[test]
fn a_prefetch_of_one_over_a_long_way_is_too_small() {
    use Bound::{AtLeast, Exact};
    for (credit, job_us, bound) in [
        (1, 30, Exact),
        (1, 500, Exact),
        (4, 100, Exact),
        (10, 100, Exact),
        (40, 100, Exact),
        // Its own work is the limit then, of which it is known only how long it is at most.
        (1, 9_000, AtLeast),
    ] {
        let world = after(15, &pika(), credit, (1, move |_| job_us));
        let finding = world.only(Rule::WindowTooSmall);
        assert!(world.appeared[0].0 <= 12, "{}", world.appeared[0].0);
        assert_eq!(finding.topic.as_deref(), Some("q"));
        about(finding.prediction.now, rate_with(credit, job_us), 1.05);
        let value = finding.changes[0].value.clone().unwrap_or_default();
        let wanted: u64 = value
            .parse()
            .unwrap_or_else(|_| panic!("{:#?}", finding.changes));
        about(finding.prediction.after, rate_with(wanted, job_us), 1.5);
        assert_eq!(finding.prediction.bound, bound, "{:?}", finding.prediction);
    }
}

#[test]
fn the_credit_of_a_connection_is_shared_by_its_consumers() {
    let mut world = World::new();
    let mut one = taker(&mut world, &pika(), 10, 0);
    one.consumers = 10;
    let takers = Takers::new(vec![one], &[1], Box::new(|_| 30), world.now_us);
    world.add(takers.with_backlog(1_000_000));
    world.run(15);
    let finding = world.only(Rule::WindowTooSmall);
    assert_eq!(fact(&finding, "credit"), 10.0);
    assert_eq!(finding.changes[0].value.as_deref(), Some("10"));
}

/// A client with two connections whose messages all go to the same workers.
fn shared(workers: usize, burst: u64, job_us: u64, jobs: u64) -> World {
    let mut world = World::new();
    let who = Who {
        client_id: "internal_jobs",
        ..Who::new(Protocol::Amqp, "RabbitMQ", "3.10.0").far(300)
    };
    let members = vec![
        taker(&mut world, &who, 50, 0),
        taker(&mut world, &who, 50, 0),
    ];
    let waves = burst.div_ceil(workers as u64);
    let times = (0..jobs).map(move |at| (S + at * (waves * job_us + S), burst));
    let takers = Takers::new(members, &[workers], Box::new(move |_| job_us), world.now_us);
    world.add(takers.with_arrivals(times));
    world
}

#[test]
fn seed_003_two_messages_wait_for_one_worker() {
    // Two producers of a Broadway pipeline hand their messages to the same processor.
    let mut world = shared(1, 2, 22 * S, 10);
    world.run(160);
    let finding = world.only(Rule::Hoarding);
    // Five completions of 22 s, and the pauses between.
    let (second, _) = world.appeared[0];
    assert!(second <= 125, "appeared after {second} s");
    about(fact(&finding, "concurrency"), 1.0, 1.1);
    about(fact(&finding, "ack_latency_us"), 22e6, 1.1);
    about(finding.prediction.gain, 2.0, 1.01);
    assert_eq!(finding.severity, Severity::Medium);
}

#[test]
fn short_jobs_that_seldom_come_are_seen_by_their_waves_as_well() {
    // As Broadway 0.6 does it: two jobs of half a second, then a pause, again and again.
    let mut world = shared(1, 2, 500 * MS, 40);
    world.run(40);
    let finding = world.only(Rule::Hoarding);
    let (second, _) = world.appeared[0];
    assert!(second <= 30, "appeared after {second} s");
    about(finding.prediction.gain, 2.0, 1.01);
}

#[test]
fn waves_of_a_pool_are_hoarding_as_well() {
    let mut world = shared(5, 10, 4 * S, 20);
    world.run(60);
    let finding = world.only(Rule::Hoarding);
    about(fact(&finding, "concurrency"), 5.0, 1.3);
    // With a message less for each consumer, workers would have nothing to do.
    let [one, prefetch, ..] = &finding.changes[..] else {
        panic!("{finding:#?}");
    };
    assert_eq!(one.value.as_deref(), Some("1"), "{one:#?}");
    assert_eq!(prefetch.value.as_deref(), Some("100"), "{prefetch:#?}");
    assert_eq!(prefetch.now.as_deref(), Some("50"), "{prefetch:#?}");
    about(finding.prediction.gain, 2.0, 1.01);
}

#[test]
fn messages_in_one_hand_while_others_idle_are_hoarding() {
    let mut world = World::new();
    let who = Who::new(Protocol::Nsq, "pynsq", "0.9.1").far(300);
    let first = taker(&mut world, &who, 2_500, 0);
    let mut members = vec![first];
    for address in 2..6 {
        let other = who.clone().at([10, 0, 0, address]);
        members.push(taker(&mut world, &other, 100, address as usize - 1));
    }
    let start_us = world.now_us;
    let mut takers = Takers::new(members, &[1; 5], Box::new(|_| 50 * MS), start_us);
    takers.fills_first = true;
    world.add(takers.with_arrivals([(S, 2_000)]));
    world.run(30);
    let finding: Finding = world.only(Rule::Hoarding);
    assert!(world.appeared[0].0 <= 15, "{}", world.appeared[0].0);
    about(fact(&finding, "ack_gap_us"), 50_000.0, 1.1);
    assert_eq!(fact(&finding, "idle_consumers"), 4.0);
    // It has done 20 a second of 2,000, and holds the rest: those that are done with waited little.
    about(fact(&finding, "held"), 1_700.0, 1.1);
    about(finding.prediction.gain, 5.0, 1.01);
}

mod healthy {
    use super::*;

    /// A single consumer with a backlog.
    fn alone(credit: u64, workers: usize, job: impl Fn(u64) -> u64 + 'static) {
        after(120, &pika(), credit, (workers, job)).silent();
    }

    #[test]
    fn a_slow_worker() {
        for job_us in [30 * MS, 200 * MS, 5 * S] {
            for credit in [1, 2, 10, 100] {
                alone(credit, 1, move |_| job_us);
            }
        }
    }

    #[test]
    fn a_pool_of_slow_workers() {
        for credit in [8, 16, 64] {
            alone(credit, 8, |_| 100 * MS);
            alone(credit, 8, |number| 50 * MS + number * 7919 % (200 * MS));
        }
    }

    #[test]
    fn a_well_filled_window() {
        alone(200, 1, |_| 100);
        alone(1000, 4, |_| 50);
    }

    /// It works on a message for a hundredth of the round trip, and all the time.
    #[test]
    fn a_window_that_is_just_filled() {
        for credit in [104, 110, 130, 180] {
            alone(credit, 1, |_| 100);
            alone(credit, 1, |number| 50 + number * 7919 % 100);
        }
    }

    /// After so many messages it does something else, which takes its time: a commit, a collection
    /// of garbage. It is never idle.
    #[test]
    fn a_window_that_is_just_filled_and_work_that_stops_at_times() {
        for (every, pause_us) in [(4_000, 280), (400, 24), (500, 36), (1_000, 60)] {
            alone(110, 1, move |number| match number % every {
                0 => pause_us * MS,
                _ => 100,
            });
        }
    }

    #[test]
    fn a_short_way() {
        after(20, &pika().far(100), 1, (1, |_| 50)).silent();
    }

    #[test]
    fn an_empty_queue() {
        let mut world = World::new();
        let one = taker(&mut world, &pika(), 1, 0);
        let takers = Takers::new(vec![one], &[1], Box::new(|_| 2 * MS), world.now_us);
        world.add(takers.with_arrivals((0..2400).map(|at| (at * 50 * MS, 1))));
        world.run(120);
        world.silent();
    }

    #[test]
    fn bursts_for_a_single_worker_with_a_prefetch() {
        for job_us in [20 * MS, 300 * MS, 4 * S] {
            let mut world = World::new();
            let one = taker(&mut world, &pika().far(300), 20, 0);
            let times = (0..10).map(|at| (at * (10 * job_us + S), 8));
            let takers = Takers::new(vec![one], &[1], Box::new(move |_| job_us), world.now_us);
            world.add(takers.with_arrivals(times));
            world.run(300);
            world.silent();
        }
    }

    /// Processes on one machine, a worker and a connection each.
    fn processes(count: usize, credit: u64, job: impl Fn(u64) -> u64 + 'static, burst: u64) {
        let mut world = World::new();
        let who = pika().far(300);
        let members = (0..count).map(|at| taker(&mut world, &who, credit, at));
        let members = members.collect();
        let times = (0..200).map(move |at| (at * 6 * S, burst));
        let takers = Takers::new(members, &vec![1; count], Box::new(job), world.now_us);
        world.add(takers.with_arrivals(times));
        world.run(400);
        world.silent();
    }

    #[test]
    fn processes_with_a_worker_each() {
        for burst in [1, 2, 4, 8, 16] {
            processes(4, 10, |_| 2 * S, burst);
            processes(4, 1, |_| 700 * MS, burst);
            let varying = move |number| 300 * MS + Dice(burst ^ (number << 8)).roll() % (2 * S);
            processes(4, 5, varying, burst);
        }
    }

    #[test]
    fn processes_with_jobs_of_two_lengths() {
        for count in [2, 3, 8] {
            for job_us in [50 * MS, 700 * MS] {
                for burst in [1, 2, 5] {
                    let two = move |number| job_us * (1 + Dice(number << 7).roll() % 2);
                    processes(count, 1, two, burst);
                }
            }
        }
    }

    #[test]
    fn consumers_of_many_machines() {
        let mut world = World::new();
        let mut members = Vec::new();
        for number in 0..30u8 {
            let who = Who::new(Protocol::Nsq, "go-nsq", "1.1.0")
                .at([10, 0, 1, number])
                .far(2 * MS);
            members.push(taker(&mut world, &who, 50, number as usize));
        }
        let job = Box::new(|number: u64| 5 * MS + number * 7919 % (10 * MS));
        let takers = Takers::new(members, &[4; 30], job, world.now_us);
        world.add(takers.with_arrivals((0..60_000).map(|at| (at * 500, 1))));
        world.run(40);
        world.silent();
    }
}
