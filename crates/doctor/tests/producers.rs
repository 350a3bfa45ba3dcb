//! Producers: what must be found, with which numbers, and who must be left in peace.

use crate::common::producers::{Producer, after, jitter, producer};
use crate::common::{Dice, MS, S, Who, World, about, fact};
use cloverleaf_doctor::{Bound, Confidence, Rule, Severity};
use cloverleaf_telemetry::Protocol;

const PYTHON: &str = "confluent-kafka-python";
const PYTHON_VERSION: &str = "1.7.0-rdkafka-1.7.0";

fn python() -> Who {
    Who::new(Protocol::Kafka, PYTHON, PYTHON_VERSION)
}

/// Messages of `producer` per second, if it does so for ten seconds.
fn rate_of(producer: Producer) -> f64 {
    let mut producer = producer;
    use crate::common::Model;
    let start_us = producer.start_us;
    producer.run(start_us + 10 * S);
    let seen = producer.probe.snapshot(|_| None);
    seen.counters.messages_in as f64 / 10.0
}

#[test]
fn a_producer_that_waits_for_each_answer_is_found_and_its_gain_is_right() {
    let mut world = World::new();
    let who = python();
    let one = producer(&mut world, &who);
    world.add(one);
    world.run(15);
    let finding = world.only(Rule::SyncProduce);
    let (second, _) = world.appeared[0];
    assert!(second <= 12, "appeared after {second} s");
    assert_eq!(
        (finding.severity, finding.confidence),
        (Severity::High, Confidence::High)
    );
    assert_eq!(finding.client.library, PYTHON);
    assert_eq!(finding.connections, 1);
    about(fact(&finding, "gap_us"), 10_050.0, 1.02);
    about(fact(&finding, "service_us"), 100.0, 1.1);
    about(finding.prediction.now, 1e6 / 10_150.0, 1.02);
    assert!(
        finding.changes[0].setting.contains("produce()"),
        "{:#?}",
        finding.changes
    );
    // The lab: the same client with as many in flight as was reckoned with.
    let mut fixed = producer(&mut World::new(), &who);
    fixed.in_flight = 10;
    about(finding.prediction.after, rate_of(fixed), 1.1);
    // It ends when the program does.
    world.stop();
    world.run(30);
    assert!(world.findings().is_empty());
    assert_eq!(world.appeared.len(), 1);
}

#[test]
fn waiting_for_the_disk_counts_as_well_as_waiting_for_the_network() {
    let world = after(15, &python().far(60), |one| one.service_us = 4 * MS);
    let finding = world.only(Rule::SyncProduce);
    about(fact(&finding, "service_us"), 4_000.0, 1.1);
    about(finding.prediction.now, 1e6 / 4_110.0, 1.05);
}

#[test]
fn a_producer_with_its_own_work_between_is_told_how_much_that_leaves() {
    let world = after(15, &python().far(5 * MS), |one| {
        one.think_us = jitter(1_300)
    });
    let finding = world.only(Rule::SyncProduce);
    // Its own 1.3 ms are the limit: 770 messages a second.
    about(finding.prediction.after, 770.0, 1.05);
    assert_eq!(finding.confidence, Confidence::Medium);
}

#[test]
fn several_connections_of_a_client_are_one_finding() {
    let mut world = World::new();
    for _ in 0..8 {
        let one = producer(&mut world, &python());
        world.add(one);
    }
    let other = producer(&mut world, &python().at([10, 0, 0, 2]));
    world.add(other);
    world.run(15);
    let findings = world.findings();
    let mut connections: Vec<u64> = findings.iter().map(|it| it.connections).collect();
    connections.sort_unstable();
    assert_eq!(connections, [1, 8]);
    assert_ne!(findings[0].id, findings[1].id);
}

#[test]
fn a_library_that_collects_while_the_program_waits_is_found() {
    let mut world = World::new();
    let who = Who::new(Protocol::Kafka, PYTHON, "2.3.0-rdkafka-2.3.0").far(2 * MS);
    let mut one = producer(&mut world, &who);
    one.linger_us = 5 * MS;
    world.add(one);
    world.run(15);
    let finding = world.only(Rule::Linger);
    about(fact(&finding, "record_age_us"), 6_500.0, 1.1);
    let change = &finding.changes[0];
    assert_eq!(
        (change.setting.as_str(), change.value.as_deref()),
        ("linger.ms", Some("0"))
    );
    let fixed = producer(&mut World::new(), &who);
    about(finding.prediction.after, rate_of(fixed), 1.3);
}

/// Its machine is slow to start the program, and threads wait for a processor at times: the one
/// that makes a message, and the one that sends it.
#[test]
fn who_lingers_on_a_busy_machine_is_found() {
    let world = after(20, &python().far(5 * MS), |one| {
        one.linger_us = 5 * MS;
        one.service_us = 4 * MS;
        let late = |seed: u64| -> crate::common::producers::Times {
            let mut dice = Dice(seed);
            Box::new(move |number| {
                let start_us = if number < 100 { 12 * MS } else { 0 };
                match dice.between(0, 4) {
                    0 => start_us + dice.between(0, 8 * MS),
                    _ => start_us + dice.between(0, 2 * MS),
                }
            })
        };
        (one.think_us, one.wander_us) = (late(1), late(2));
    });
    world.only(Rule::Linger);
}

#[test]
fn a_linger_that_is_shorter_than_the_round_trip_hides_the_waiting_behind_it() {
    let world = after(15, &python(), |one| one.linger_us = 5 * MS);
    let finding = world.only(Rule::Linger);
    about(finding.prediction.gain, 1.5, 1.05);
}

#[test]
fn nagle_is_found_with_the_quick_acknowledgement_and_without() {
    // With it the rest comes after a round trip; without it 40 ms later than that.
    let near = 900; // it looked like 1 ms to who measured it
    for (rtt_us, hole_us) in [
        (10 * MS, 10 * MS),
        (MS, 41 * MS),
        (10 * MS, 51 * MS),
        (near, near),
    ] {
        let mut world = World::new();
        let who = python().far(rtt_us);
        let mut one = producer(&mut world, &who);
        one.hole_us = hole_us;
        one.bytes = 2219;
        world.add(one);
        world.run(15);
        let finding = world.only(Rule::Nagle);
        about(fact(&finding, "receive_us"), hole_us as f64, 1.02);
        let change = &finding.changes[0];
        let expect = ("socket.nagle.disable", Some("true"));
        assert_eq!((change.setting.as_str(), change.value.as_deref()), expect);
        let fixed = producer(&mut World::new(), &who);
        about(finding.prediction.after, rate_of(fixed), 1.1);
    }
}

#[test]
fn seed_001_has_both_causes() {
    // confluent-kafka-python, flush() after each message, 1 ms to the broker, TLS.
    let world = after(15, &python().far(MS), |one| {
        one.hole_us = 41 * MS;
        one.linger_us = 20 * MS;
    });
    let mut rules = world.rules();
    rules.sort();
    assert_eq!(rules, [Rule::Linger, Rule::Nagle]);
}

#[test]
fn a_hole_that_looks_small_beside_the_lingering_is_told_too() {
    // The same on this broker, which acknowledges at once: the hole is a round trip.
    let world = after(15, &python().far(MS), |one| {
        one.hole_us = MS;
        one.linger_us = 5 * MS;
    });
    let findings = world.findings();
    let mut rules: Vec<Rule> = findings.iter().map(|it| it.rule).collect();
    rules.sort();
    assert_eq!(rules, [Rule::Linger, Rule::Nagle]);
    let nagle = findings.iter().find(|it| it.rule == Rule::Nagle).unwrap();
    about(nagle.prediction.gain, 7.2 / 6.2, 1.05);
    let text = &nagle.prediction.arithmetic;
    assert!(text.contains("without lingering, too, 1.2 ms"), "{text}");
    // Where the lingering is all, and would be without it.
    let world = after(15, &python().far(MS), |one| {
        one.hole_us = MS;
        one.service_us = 4 * MS;
        one.linger_us = 10 * MS;
    });
    world.only(Rule::Linger);
}

/// Requests come five at a time, as answers do.
fn in_bunches_of_five(world: &mut World, who: &Who) {
    let mut one = producer(world, who);
    one.in_flight = 5;
    one.messages = 100;
    one.bytes = 16_000;
    one.record_clock_us = Some(0);
    // All five answers come together, and so do the next five requests.
    one.service_us = 500;
    let mut dice = crate::common::Dice(1);
    one.think_us = Box::new(move |number| match number % 5 {
        0 => dice.between(50, 150),
        _ => 0,
    });
    world.add(one);
}

#[test]
fn requests_in_bunches_of_five_are_a_connection_at_its_limit() {
    let mut world = World::new();
    let who = Who::new(Protocol::Kafka, "apache-kafka-java", "3.7.0").far(20 * MS);
    in_bunches_of_five(&mut world, &who);
    world.run(15);
    let finding = world.only(Rule::OneConnection);
    about(fact(&finding, "in_flight"), 5.0, 1.05);
    about(finding.prediction.now, 5.0 * 100.0 * 1e6 / 20_600.0, 1.05);
    about(finding.prediction.gain, 4.0, 1.01);
    assert_eq!(finding.prediction.bound, Bound::AtMost);
}

#[test]
fn who_has_several_connections_at_their_limit_is_told_of_four_times_as_many() {
    let mut world = World::new();
    let who = Who::new(Protocol::Nsq, "unknown", "1").far(20 * MS);
    (0..3).for_each(|_| in_bunches_of_five(&mut world, &who));
    world.run(15);
    let finding = world.only(Rule::OneConnection);
    assert_eq!(finding.connections, 3);
    let change = finding
        .changes
        .iter()
        .find(|it| it.setting == "connections");
    let value = change.and_then(|it| it.value.clone());
    assert_eq!(value.as_deref(), Some("12"), "{:#?}", finding.changes);
}

#[test]
fn records_that_grow_old_in_the_client_are_a_connection_at_its_limit() {
    let mut world = World::new();
    let who = Who::new(Protocol::Kafka, "apache-kafka-java", "3.7.0").far(20 * MS);
    let mut one = producer(&mut world, &who);
    one.in_flight = 5;
    one.messages = 100;
    one.bytes = 16_000;
    one.think_us = Box::new(|_| 3 * MS);
    // They wait between 200 and 600 ms for their turn.
    let mut dice = crate::common::Dice(7);
    one.linger_us = 0;
    one.record_clock_us = None;
    let age = move || dice.between(200 * MS, 600 * MS) as i64;
    world.add(Aging {
        one,
        age: Box::new(age),
        seen: 0,
    });
    world.run(15);
    let finding = world.only(Rule::OneConnection);
    about(fact(&finding, "record_age_us"), 400_000.0, 1.2);
}

/// A producer whose records waited before it sent them.
struct Aging {
    one: Producer,
    age: Box<dyn FnMut() -> i64>,
    seen: u64,
}

impl crate::common::Model for Aging {
    fn run(&mut self, to_us: u64) {
        self.one.run(to_us);
        let publishes = self.one.probe.snapshot(|_| None).counters.publishes;
        for _ in self.seen..publishes {
            let age_us = (self.age)();
            self.one.probe.record_age(age_us);
        }
        self.seen = publishes;
    }
}

#[test]
fn one_message_per_request_back_to_back_are_tiny_batches() {
    let mut world = World::new();
    let who = Who::new(Protocol::Nsq, "go-nsq", "1.1.0").far(200);
    let mut one = producer(&mut world, &who);
    one.in_flight = 100;
    one.service_us = 400;
    one.think_us = Box::new(|_| 50);
    world.add(one);
    world.run(15);
    let finding = world.only(Rule::TinyBatches);
    about(fact(&finding, "messages_per_request"), 1.0, 1.001);
    // The broker does not sleep: 1 + 9, and with 200 together 1 + 9 / 200.
    about(finding.prediction.now, 10.0, 1.01);
    about(finding.prediction.gain, 9.6, 1.05);
    assert_eq!(finding.severity, Severity::Low, "nobody waits");
}

#[test]
fn tiny_batches_after_a_pause_share_what_the_pause_costs() {
    let world = after(15, &python(), |one| {
        one.in_flight = 1000;
        one.think_us = Box::new(|_| 5);
        one.due_us = Box::new(|number| number / 20 * 5 * MS);
    });
    let finding = world.only(Rule::TinyBatches);
    // 1 + 9 + 200 / 20, and with the 40 of 10 ms together 1 + 9 / 40 + 200 / 40.
    about(finding.prediction.now, 20.0, 1.1);
    about(finding.prediction.gain, 3.2, 1.1);
}

#[test]
fn requests_that_are_given_up_in_a_long_queue_are_too_many() {
    let mut world = World::new();
    let who = Who::new(Protocol::Kafka, "aiokafka", "0.10");
    for _ in 0..4 {
        // A connection on which somebody lost patience.
        let probe = world.connect(&who);
        probe.request(1, 100, world.now_us, world.now_us);
        world.run(1);
        drop(probe);
    }
    let mut one = producer(&mut world, &who);
    one.in_flight = 1000;
    one.think_us = Box::new(|_| 500);
    // Waiting requests are served one by one: the first at once, the later ones behind it.
    let start_us = world.now_us;
    one.service_us = MS;
    world.add(Crowded {
        one,
        backlog_us: 0,
        from_us: start_us,
    });
    world.run(20);
    let finding = world.only(Rule::TooManyInFlight);
    assert!(fact(&finding, "in_flight") > 100.0);
    assert!(finding.prediction.after < finding.prediction.now / 4.0);
}

/// A broker that needs longer and longer for this producer, up to half a second.
struct Crowded {
    one: Producer,
    backlog_us: u64,
    from_us: u64,
}

impl crate::common::Model for Crowded {
    fn run(&mut self, to_us: u64) {
        self.backlog_us = (to_us - self.from_us).clamp(3 * S, 8 * S) / 10 - 300 * MS;
        self.one.service_us = MS + self.backlog_us;
        self.one.run(to_us);
    }
}

mod healthy {
    use super::*;

    #[test]
    fn idle() {
        let mut world = World::new();
        let _probes: Vec<_> = (0..20).map(|_| world.connect(&python())).collect();
        world.run(600);
        world.silent();
    }

    #[test]
    fn steady_by_a_timer() {
        for period_us in [MS, 3 * MS, 9 * MS, 10 * MS, 12 * MS, 20 * MS, 100 * MS, S] {
            for clock_us in [0, -5 * S as i64, 300 * MS as i64] {
                after(60, &python(), |one| {
                    one.in_flight = 1000;
                    one.due_us = Box::new(move |number| number * period_us);
                    one.record_clock_us = Some(clock_us);
                })
                .silent();
            }
        }
    }

    #[test]
    fn steady_by_a_timer_and_waiting_for_the_answer() {
        for period_us in [20 * MS, 50 * MS, S] {
            after(60, &python(), |one| {
                one.due_us = Box::new(move |number| number * period_us)
            })
            .silent();
        }
    }

    #[test]
    fn steady_by_sleeping_and_near_to_the_round_trip_by_chance() {
        for sleep_us in [9_500, 10_300, 11_500] {
            after(60, &python(), |one| {
                one.in_flight = 1000;
                let mut dice = crate::common::Dice(sleep_us);
                one.think_us = Box::new(move |_| sleep_us + dice.between(50, 250));
                // One request in fifty is served late, and the next one comes nevertheless.
                let mut number = 0;
                one.late_us = Box::new(move |_| {
                    number += 1;
                    if number % 50 == 0 { 4 * MS } else { 0 }
                });
            })
            .silent();
        }
    }

    #[test]
    fn bursts() {
        for in_flight in [1, 5, 1000] {
            after(120, &python(), |one| {
                one.in_flight = in_flight;
                // Fifty messages every five seconds.
                one.due_us = Box::new(|number| number / 50 * 5 * S);
            })
            .silent();
        }
    }

    #[test]
    fn bound_by_its_own_work() {
        for think_us in [5 * MS, 30 * MS, 300 * MS] {
            after(60, &python(), |one| one.think_us = jitter(think_us)).silent();
        }
    }

    #[test]
    fn near() {
        after(60, &python().far(80), |_| ()).silent();
    }

    #[test]
    fn pipelined() {
        for (in_flight, think_us) in [(100, 700), (1000, 300), (50, MS)] {
            after(60, &python(), |one| {
                one.in_flight = in_flight;
                one.think_us = Box::new(move |_| think_us);
            })
            .silent();
        }
    }

    #[test]
    fn batches() {
        let mut world = World::new();
        let mut one = producer(&mut world, &python());
        one.in_flight = 5;
        one.messages = 500;
        one.bytes = 60_000;
        one.linger_us = 0;
        one.think_us = Box::new(|_| 5 * MS);
        world.add(one);
        let mut two = producer(
            &mut world,
            &Who::new(Protocol::Nsq, "go-nsq", "1.1.0").far(200),
        );
        two.in_flight = 20;
        two.messages = 200;
        two.bytes = 40_000;
        world.add(two);
        world.run(60);
        world.silent();
    }

    #[test]
    fn without_answers() {
        after(60, &python(), |one| {
            one.is_silent = true;
            one.in_flight = 1_000_000;
            one.think_us = Box::new(|_| MS);
        })
        .silent();
    }

    #[test]
    fn large_requests_take_a_round_trip_for_each_window_of_the_network() {
        after(60, &python(), |one| {
            one.in_flight = 5;
            one.think_us = Box::new(|_| 5 * MS);
            one.messages = 100;
            one.bytes = 100_000;
            one.hole_us = 10 * MS;
        })
        .silent();
    }

    #[test]
    fn a_lingering_library_that_does_collect() {
        after(60, &python(), |one| {
            one.in_flight = 5;
            one.linger_us = 0;
            one.messages = 40;
            one.bytes = 8_000;
            // A batch every 5 ms, of messages that came meanwhile.
            one.due_us = Box::new(|number| number * 5 * MS);
            one.record_clock_us = Some(5 * MS as i64);
        })
        .silent();
    }
    /// aiokafka: what the program makes while a request is on its way goes with the next one.
    #[test]
    fn a_library_with_one_request_in_flight_that_collects_meanwhile() {
        after(60, &Who::new(Protocol::Kafka, "", ""), |one| {
            one.messages = 2;
            one.think_us = jitter(2 * MS);
            one.record_clock_us = Some(6 * MS as i64);
            one.span_us = 5 * MS;
        })
        .silent();
    }
    /// kafka-go: the same, and its records get their times when they are sent.
    #[test]
    fn a_library_that_collects_meanwhile_and_stamps_when_it_sends() {
        after(60, &Who::new(Protocol::Kafka, "", ""), |one| {
            one.think_us = jitter(2 * MS);
            let mut dice = Dice(7);
            one.sizes = Some(Box::new(move |_| dice.between(2, 5)));
        })
        .silent();
    }
}
