//! Jobs of seconds that come in groups: those that wait for each other inside the client, and
//! those that began together and take different times.

use crate::common::consumers::{Taker, Takers};
use crate::common::{Dice, MS, S, Who, World, about, fact};
use cloverleaf_doctor::{Finding, Rule};
use cloverleaf_telemetry::Protocol;

fn broadway() -> Who {
    Who {
        platform: "Erlang/OTP 25",
        ..Who::new(Protocol::Amqp, "RabbitMQ", "3.10.8").far(MS)
    }
}

fn pika() -> Who {
    Who::new(Protocol::Amqp, "Pika Python Client Library", "1.3.2").far(MS)
}

/// A group of jobs: after how long it comes, and how many they are.
type Groups = Vec<(u64, u64)>;

fn each(every_us: u64, jobs: u64, count: u64) -> Groups {
    (0..count)
        .map(|at| (S + 300 * MS + at * every_us, jobs))
        .collect()
}

/// Two producers that hand their messages to the same processors in these orders.
fn pipeline(orders: [Vec<usize>; 2], job: impl Fn(u64) -> u64 + 'static, groups: Groups) -> World {
    let mut world = World::new();
    let members = orders.map(|order| {
        let probe = world.connect(&broadway());
        let mut taker = Taker::new(probe, MS, 50, 0);
        taker.hands_to = order;
        taker
    });
    let takers = Takers::new(members.into(), &[25], Box::new(job), world.now_us);
    world.add(takers.with_arrivals(groups));
    world
}

/// As Broadway 0.6 does it: both in the same order.
fn alike() -> [Vec<usize>; 2] {
    [(0..25).collect(), (0..25).collect()]
}

/// As Broadway 1.2 does it: each in an order of its own.
fn shuffled(seed: u64) -> [Vec<usize>; 2] {
    [seed, seed + 1].map(|seed| {
        let mut dice = Dice(seed);
        let mut order: Vec<usize> = (0..25).collect();
        order.sort_by_cached_key(|_| dice.roll());
        order
    })
}

/// Found, after so many seconds at the latest, and never lost again.
#[track_caller]
fn stays(world: &mut World, within: u64, seconds: u64) -> Finding {
    world.run(within);
    let appeared = world.appeared.first().map(|(second, _)| *second);
    assert!(appeared.is_some(), "not found within {within} s");
    for _ in 0..seconds {
        world.run(1);
        world.only(Rule::Hoarding);
    }
    assert_eq!(world.appeared.len(), 1);
    world.only(Rule::Hoarding)
}

#[test]
fn two_jobs_of_a_pipeline_that_wait_for_each_other_are_found_after_five_and_stay_found() {
    let mut world = pipeline(alike(), |_| 8 * S, each(18 * S, 2, 30));
    // The fifth is done after 45.3 s.
    let finding = stays(&mut world, 53, 300);
    about(finding.prediction.gain, 2.0, 1.01);
    about(fact(&finding, "concurrency"), 1.0, 1.01);
    about(fact(&finding, "ack_latency_us"), 8e6, 1.02);
    assert_eq!(finding.connections, 2);
    let settings: Vec<&str> = finding
        .changes
        .iter()
        .map(|it| it.setting.as_str())
        .collect();
    assert_eq!(settings[0], "producer: [concurrency: …]");
}

#[test]
fn groups_of_which_a_half_waits_for_the_other_are_found() {
    for (every_us, jobs, job_us, within) in [
        (9 * S, 8, 3 * S, 30),
        (18 * S, 4, 8 * S, 45),
        (20 * S, 8, 8 * S, 50),
        (15 * S, 6, 3 * S, 35),
    ] {
        let mut world = pipeline(alike(), move |_| job_us, each(every_us, jobs, 30));
        let finding = stays(&mut world, within, 120);
        about(finding.prediction.gain, 2.0, 1.01);
        about(fact(&finding, "concurrency"), jobs as f64 / 2.0, 1.01);
    }
}

#[test]
fn groups_that_come_one_upon_the_other_are_found() {
    for (job_us, pause_us) in [
        (500, 202),
        (500, 400),
        (200, 1_000),
        (900, 300),
        (1_500, 200),
    ] {
        let groups = each((2 * job_us + pause_us) * MS, 2, 200);
        let mut world = pipeline(alike(), move |_| job_us * MS, groups);
        let finding = stays(&mut world, 45, 60);
        about(finding.prediction.gain, 2.0, 1.1);
    }
}

#[test]
fn groups_of_which_a_part_waits_are_found() {
    for seed in [10, 20, 30] {
        let mut world = pipeline(shuffled(seed), |_| 3 * S, each(12 * S, 25, 30));
        let finding = stays(&mut world, 40, 120);
        about(finding.prediction.gain, 2.0, 1.2);
    }
}

#[test]
fn jobs_that_are_not_quite_alike_are_found() {
    for seed in 1..6 {
        // As the seed's: 21.7, 23.5, 25.6 and 25.7 s.
        let job = move |number: u64| 8 * S + Dice(seed ^ number << 8).roll() % (MS * 800);
        let mut world = pipeline(alike(), job, each(20 * S, 2, 30));
        let finding = stays(&mut world, 60, 120);
        about(finding.prediction.gain, 2.0, 1.1);
    }
}

#[test]
fn groups_of_all_sizes_are_found() {
    let mut dice = Dice(9);
    // One that is alone goes to one producer's next processor, and not to the other's.
    let groups = (0..40).map(|at| (S + at * 12 * S, 2 * dice.between(1, 5)));
    let mut world = pipeline(alike(), |_| 4 * S, groups.collect());
    stays(&mut world, 60, 240);
}

#[test]
fn who_has_mended_it_is_left_in_peace() {
    // Each goes to a processor of its own from the sixth group on.
    let mut orders = alike();
    for (at, order) in orders.iter_mut().enumerate() {
        order.clear();
        order.extend([0; 6]);
        order.extend([at; 100]);
    }
    let mut world = pipeline(orders, |_| 8 * S, each(18 * S, 2, 30));
    world.run(60);
    world.only(Rule::Hoarding);
    world.run(5 * 18 + 40);
    assert!(world.findings().is_empty(), "{:#?}", world.findings());
    world.run(200);
    assert!(world.findings().is_empty(), "{:#?}", world.findings());
    assert_eq!(world.appeared.len(), 1);
}

#[test]
fn who_has_nothing_to_do_any_more_is_left_in_peace() {
    let mut world = pipeline(alike(), |_| 8 * S, each(18 * S, 2, 10));
    world.run(10 * 18);
    world.only(Rule::Hoarding);
    world.run(640);
    assert!(world.findings().is_empty(), "{:#?}", world.findings());
}

#[test]
fn any_library_whose_jobs_take_one_time_alone_and_twice_that_in_company_is_found() {
    let mut world = World::new();
    let members = vec![of(&mut world, &pika(), 0), of(&mut world, &pika(), 0)];
    let groups = (0..60).map(|at| (at * 7 * S, 1 + at % 2));
    let takers = Takers::new(members, &[1], Box::new(|_| 2 * S), world.now_us);
    world.add(takers.with_arrivals(groups));
    let finding = stays(&mut world, 120, 120);
    about(finding.prediction.gain, 1.5, 1.05);
}

fn of(world: &mut World, who: &Who, pool: usize) -> Taker {
    let probe = world.connect(who);
    Taker::new(probe, who.rtt_us, 10, pool)
}

/// Two consumers of one process with a thread for each job.
fn parallel(who: &Who, job: impl Fn(u64) -> u64 + 'static, groups: Groups) {
    let mut world = World::new();
    let members = vec![of(&mut world, who, 0), of(&mut world, who, 1)];
    let takers = Takers::new(members, &[100, 100], Box::new(job), world.now_us);
    world.add(takers.with_arrivals(groups));
    world.run(900);
    world.silent();
}

#[test]
fn a_short_job_and_one_of_twice_its_length_are_no_waves() {
    for rtt_us in [MS, 80 * MS] {
        let who = pika().far(rtt_us);
        parallel(&who, |at| 2 * S * (1 + at % 2), each(7 * S, 2, 130));
        parallel(&who, |at| 4 * S * (1 + at % 2), each(11 * S, 2, 80));
        parallel(&who, |at| 500 * MS * (1 + at % 2), each(3 * S, 2, 300));
        parallel(&who, |at| 300 * MS * (1 + at % 2), each(S, 2, 900));
        parallel(&who, |at| 2 * S * (1 + at % 3), each(9 * S, 3, 100));
    }
}

#[test]
fn jobs_of_one_two_or_three_seconds_are_no_waves() {
    for seed in 1..40u64 {
        for (who, rtt_us) in [(pika(), MS), (pika(), 20 * MS), (broadway(), MS)] {
            let mut dice = Dice(seed);
            let mut at_us = S;
            let groups = (0..250).map(|_| {
                at_us += dice.between(2 * S, 5 * S);
                (at_us, dice.between(1, 5))
            });
            let job = move |number: u64| S * (1 + Dice(seed << 32 ^ number).roll() % 3);
            parallel(&who.far(rtt_us), job, groups.collect());
        }
    }
}

#[test]
fn short_jobs_of_three_lengths_are_no_waves() {
    for seed in 1..10u64 {
        for job_us in [50 * MS, 200 * MS, 500 * MS] {
            let mut dice = Dice(seed);
            let mut at_us = S;
            let groups = (0..400).map(|_| {
                at_us += dice.between(3 * job_us, 8 * job_us);
                (at_us, dice.between(1, 5))
            });
            let job = move |number: u64| job_us * (1 + Dice(seed << 32 ^ number).roll() % 3);
            parallel(&pika(), job, groups.collect());
        }
    }
}

/// A pipeline that is as it should be, and has jobs of all lengths.
#[test]
fn jobs_of_all_lengths_are_no_waves() {
    for seed in 1..40u64 {
        for (low_us, high_us) in [(S, 3 * S), (3 * S, 10 * S), (8 * S, 20 * S)] {
            let length = move |number: u64| Dice(seed << 32 ^ number).between(low_us, high_us);
            let jobs = 2 + seed % 4;
            parallel(&broadway(), length, each(high_us + 3 * S, jobs, 60));
        }
    }
}

/// Consumers with one worker each, or some, and more messages than these: their own limit.
fn served_by_their_own(who: &Who, consumers: usize, workers: usize, groups: &Groups) {
    let mut world = World::new();
    let members = (0..consumers)
        .map(|pool| of(&mut world, who, pool))
        .collect();
    let pools = vec![workers; consumers];
    let takers = Takers::new(members, &pools, Box::new(|_| S), world.now_us);
    world.add(takers.with_arrivals(groups.iter().copied()));
    world.run(400);
    world.silent();
}

#[test]
fn consumers_with_workers_of_their_own_do_not_wait_for_each_other() {
    for who in [pika(), broadway()] {
        for (consumers, workers, jobs) in [(2, 1, 4), (3, 1, 12), (4, 1, 8), (2, 3, 12), (3, 2, 14)]
        {
            served_by_their_own(&who, consumers, workers, &each(9 * S, jobs, 40));
            let mut dice = Dice(jobs);
            let groups = (0..40).map(|at| (S + at * 9 * S, dice.between(1, jobs + 1)));
            served_by_their_own(&who, consumers, workers, &groups.collect());
        }
    }
}

/// Two consumers that share a pool of threads: its size is the limit.
#[test]
fn a_pool_that_all_consumers_share_is_its_own_limit() {
    for (workers, jobs) in [(3, 12), (2, 8), (4, 16)] {
        let mut world = World::new();
        let members = vec![of(&mut world, &pika(), 0), of(&mut world, &pika(), 0)];
        let takers = Takers::new(members, &[workers], Box::new(|_| S), world.now_us);
        world.add(takers.with_arrivals(each(9 * S, jobs, 40)));
        world.run(400);
        world.silent();
    }
}

/// The finding where two consumers hand the first messages of a group to the same worker.
fn to_one_worker(who: &Who, credit: u64, groups: Groups) -> Finding {
    let mut world = World::new();
    let members = [0, 0].map(|pool| {
        let probe = world.connect(who);
        Taker::new(probe, who.rtt_us, credit, pool)
    });
    let start_us = world.now_us;
    let mut takers = Takers::new(members.into(), &[1], Box::new(|_| 2 * S), start_us);
    takers.protocol = who.protocol;
    world.add(takers.with_arrivals(groups));
    stays(&mut world, 200, 200)
}

/// A group of so many jobs, and one that comes alone, in turns.
fn in_turns(count: u64, group: u64) -> Groups {
    let jobs = move |at: u64| if at.is_multiple_of(2) { 1 } else { group };
    (0..count).map(move |at| (at * 12 * S, jobs(at))).collect()
}

/// For consumers of all libraries: fewer messages for each of them leave workers idle.
#[test]
fn consumers_that_share_workers_are_to_be_one_whatever_their_library() {
    let amqp = [
        "aiormq",
        "Pika Python Client Library",
        "amqplib",
        "AMQP 0.9.1 Client",
        "Bunny",
        "lapin",
        "py-amqp",
        "nobody knows it",
    ];
    let amqp = amqp.map(|library| (Protocol::Amqp, library));
    let nsq = ["pynsq", "go-nsq", "nsqjs", "nobody knows it"];
    let all = amqp
        .into_iter()
        .chain(nsq.map(|library| (Protocol::Nsq, library)));
    for (protocol, library) in all {
        let who = Who::new(protocol, library, "1.0");
        let finding = to_one_worker(&who, 20, in_turns(60, 2));
        let [one, prefetch, broker, ..] = &finding.changes[..] else {
            panic!("{library}: {finding:#?}");
        };
        assert!(one.setting.starts_with("consumers of the "), "{one:#?}");
        assert_eq!(one.value.as_deref(), Some("1"));
        // As many as both have together, and what is said of now is not the library's default.
        assert_eq!(prefetch.value.as_deref(), Some("40"));
        assert_eq!(prefetch.now.as_deref(), Some("20"));
        assert_eq!(broker.value.as_deref(), Some("fill-first"));
        assert!(broker.say.contains("(now 20)"), "{}", broker.say);
    }
}

#[test]
fn who_may_have_any_number_of_messages_keeps_that() {
    let finding = to_one_worker(&pika(), u64::MAX, in_turns(60, 2));
    let prefetch = &finding.changes[1];
    let said = (prefetch.value.as_deref(), prefetch.now.as_deref());
    assert_eq!(said, (Some("0"), Some("no limit")));
}

#[test]
fn one_worker_that_has_the_messages_of_all_consumers_is_told_from_workers_with_lines() {
    let groups = || (0..20).map(|at| (at * 12 * S, 4)).collect();
    for library in ["lapin", "Pika Python Client Library"] {
        let finding = to_one_worker(&Who::new(Protocol::Amqp, library, "1.0"), 10, groups());
        let change = &finding.changes[0];
        let wanted = match library {
            "lapin" => "for_each_concurrent",
            _ => "messages that are worked on at once",
        };
        assert_eq!(change.setting, wanted);
        assert!(!change.say.contains("Take no more"), "{}", change.say);
    }
}
