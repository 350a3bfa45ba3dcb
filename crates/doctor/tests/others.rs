//! Connections that come and go, groups and their partitions, fetches by the clock.

use crate::common::{Dice, MS, Model, S, Who, World, about, fact};
use cloverleaf_doctor::{Bound, Consumer, Partition, Queue, Rule};
use cloverleaf_telemetry::{Probe, Protocol};

/// One message, on a connection of its own: so many requests, of which the last is the message.
fn one_message(probe: &Probe, requests: u64, at_us: u64, rtt_us: u64) {
    let mut at_us = at_us;
    for number in 1..=requests {
        at_us += rtt_us;
        let messages = u64::from(number == requests);
        probe.read(100, at_us);
        probe.request(messages, 100, at_us, at_us);
        probe.answered(1, at_us + 50);
    }
}

#[test]
fn a_connection_for_each_message_is_found() {
    let mut world = World::new();
    let who = Who::new(Protocol::Amqp, "Pika Python Client Library", "1.3.2");
    for _ in 0..30 {
        for _ in 0..10 {
            let probe = world.connect(&who);
            // The protocol's greeting comes first.
            one_message(&probe, 5, world.now_us + 20 * MS, 10 * MS);
        }
        world.run(1);
    }
    let finding = world.only(Rule::Churn);
    assert!(world.appeared[0].0 <= 15, "{}", world.appeared[0].0);
    about(fact(&finding, "messages_per_connection"), 1.0, 1.01);
    // Seven round trips, and two that are not seen, against one.
    about(finding.prediction.now, 90.0 * MS as f64, 1.05);
    about(finding.prediction.after, 10.0 * MS as f64, 1.05);
}

/// Publishers over HTTP that connect for each message: so many a second, so far away.
fn over_http(rate: u64, rtt_us: u64, messages: u64, closed_after_us: u64) -> World {
    let mut world = World::new();
    let who = Who::new(Protocol::Http, "python-requests", "2.32.3").far(rtt_us);
    for _ in 0..30 {
        for _ in 0..rate {
            let probe = world.connect(&who);
            probe.round_trip_at_accept(rtt_us as u32);
            // The request comes with the end of the handshake.
            let at_us = world.now_us + 80;
            probe.read(300, at_us);
            probe.request(messages, 200, at_us, at_us);
            probe.answered(1, at_us + 100);
            // Something may come before it is closed.
            probe.read(1, at_us + closed_after_us);
        }
        world.run(1);
    }
    world
}

#[test]
fn a_connection_for_each_message_over_http_is_found() {
    for (rate, rtt_us) in [(20, 20 * MS), (200, 2 * MS), (10, 40 * MS)] {
        let world = over_http(rate, rtt_us, 1, 150);
        let finding = world.only(Rule::Churn);
        assert!(world.appeared[0].0 <= 15, "{}", world.appeared[0].0);
        // A round trip for the handshake, and one for the message.
        about(finding.prediction.gain, 2.0, 1.08);
        about(finding.prediction.now, 2.0 * rtt_us as f64, 1.08);
        assert_eq!(finding.changes[0].setting, "requests.Session()");
        assert_eq!(finding.changes.len(), 1);
    }
}

#[test]
fn a_channel_for_each_message_is_found() {
    let mut world = World::new();
    let who = Who::new(Protocol::Amqp, "Pika Python Client Library", "1.3.2");
    let probe = world.connect(&who);
    let mut at_us = world.now_us;
    for _ in 0..15 {
        while at_us + 40 * MS < world.now_us + S {
            probe.channel_opened();
            // Open, confirm.select, publish, close.
            for messages in [0, 0, 1, 0] {
                at_us += 10 * MS;
                probe.request(messages, 100, at_us, at_us);
                probe.answered(1, at_us + 50);
            }
        }
        world.run(1);
    }
    let finding = world.only(Rule::Churn);
    about(finding.prediction.gain, 4.0, 1.05);
}

/// A group of one topic: the partitions of each member, and how fast things come and go.
struct Group {
    probes: Vec<Probe>,
    /// Messages per second that come in and that are worked on, for each partition.
    rates: Vec<(u64, u64)>,
    /// After so many seconds the first of them hang.
    hang: (u64, usize),
    seconds: u64,
    now_us: u64,
}

impl Group {
    /// Seconds in which the consumer of a partition did something.
    fn worked(&self, partition: usize) -> u64 {
        if partition < self.hang.1 {
            self.seconds.min(self.hang.0)
        } else {
            self.seconds
        }
    }
}

impl Model for Group {
    fn run(&mut self, to_us: u64) {
        self.seconds += 1;
        self.now_us = to_us;
        for (at, (probe, (_, work))) in self.probes.iter().zip(&self.rates).enumerate() {
            if self.worked(at) < self.seconds {
                continue;
            }
            probe.request(0, 0, to_us - 100, to_us - 100);
            probe.fetched(*work);
            probe.answered(1, to_us);
        }
    }

    fn queues(&self) -> Vec<Queue> {
        let partition = |(at, (come, work)): (usize, &(u64, u64))| Partition {
            partition: at as u32,
            published: come * self.seconds,
            lag: come * self.seconds - work.min(come) * self.worked(at),
            connection: self.probes.get(at).map(|probe| probe.id()),
        };
        let partitions: Vec<_> = self.rates.iter().enumerate().map(partition).collect();
        let consumer = |probe: &Probe| Consumer {
            connection: probe.id(),
            credit: u64::MAX,
            in_flight: 0,
            deadline_us: None,
        };
        vec![Queue {
            topic: "orders".to_owned(),
            name: "billing".to_owned(),
            protocol: Protocol::Kafka,
            backlog: partitions.iter().map(|it| it.lag).sum(),
            deadline_us_max: None,
            consumers: self.probes.iter().map(consumer).collect(),
            partitions,
        }]
    }
}

fn group(members: usize, rates: &[(u64, u64)], seconds: u64) -> World {
    group_that_hangs(members, rates, (0, 0), seconds)
}

fn group_that_hangs(
    members: usize,
    rates: &[(u64, u64)],
    hang: (u64, usize),
    seconds: u64,
) -> World {
    let mut world = World::new();
    let who = Who::new(Protocol::Kafka, "apache-kafka-java", "3.7.0");
    let probes = (0..members).map(|_| world.connect(&who)).collect();
    world.add(Group {
        probes,
        rates: rates.to_vec(),
        hang,
        seconds: 0,
        now_us: 0,
    });
    world.run(seconds);
    world
}

#[test]
fn more_members_than_partitions_are_found_while_the_lag_grows() {
    let world = group(6, &[(400, 100), (400, 100)], 40);
    let finding = world.only(Rule::Partitions);
    assert_eq!(finding.subscription.as_deref(), Some("billing"));
    about(finding.prediction.now, 200.0, 1.05);
    // Six at a hundred each.
    about(finding.prediction.after, 600.0, 1.05);
}

#[test]
fn a_partition_that_has_most_of_the_messages_is_found() {
    let world = group(4, &[(900, 300), (10, 10), (10, 10), (10, 10)], 40);
    let finding = world.only(Rule::Partitions);
    about(fact(&finding, "share"), 900.0 / 930.0, 1.01);
    about(finding.prediction.now, 330.0, 1.05);
    about(finding.prediction.after, 930.0, 1.05);
}

#[test]
fn groups_that_keep_up_or_have_partitions_for_all_are_left_alone() {
    group(6, &[(100, 100), (100, 100)], 60).silent();
    group(4, &[(900, 900), (10, 10), (10, 10), (10, 10)], 60).silent();
    // All are at their limit.
    group(2, &[(400, 100), (400, 100)], 60).silent();
    group(1, &[(400, 100), (400, 100)], 60).silent();
}

#[test]
fn members_that_hang_are_no_lack_of_partitions() {
    for second in 20..32 {
        let rates = [(100, 100); 3];
        group_that_hangs(4, &rates, (second, 1), second + 40).silent();
        group_that_hangs(3, &rates[..2], (second, 1), second + 40).silent();
        // Of five two.
        let rates = [(100, 100); 5];
        group_that_hangs(6, &rates, (second, 2), second + 40).silent();
    }
    // One hangs, and the others have too much to do nevertheless.
    let world = group_that_hangs(4, &[(400, 100); 3], (20, 1), 60);
    world.only(Rule::Partitions);
}

/// A consumer that fetches, then pauses.
struct Fetcher {
    probe: Probe,
    at_us: u64,
    number: u64,
    /// The messages that a fetch brings, and how long the pause behind it is.
    habit: Box<dyn FnMut(u64) -> (u64, u64)>,
}

impl Model for Fetcher {
    fn run(&mut self, to_us: u64) {
        while self.at_us < to_us {
            let (messages, pause_us) = (self.habit)(self.number);
            self.number += 1;
            self.probe.request(0, 0, self.at_us, self.at_us);
            self.probe.fetched(messages);
            self.probe.answered(1, self.at_us + 300);
            self.at_us += 300 + pause_us;
        }
    }

    fn queues(&self) -> Vec<Queue> {
        vec![Queue {
            topic: "t".to_owned(),
            name: "g".to_owned(),
            protocol: Protocol::Kafka,
            backlog: 10_000,
            deadline_us_max: None,
            consumers: vec![Consumer {
                connection: self.probe.id(),
                credit: u64::MAX,
                in_flight: 0,
                deadline_us: None,
            }],
            partitions: Vec::new(),
        }]
    }
}

fn fetcher(habit: impl FnMut(u64) -> (u64, u64) + 'static) -> World {
    let mut world = World::new();
    let who = Who::new(Protocol::Kafka, "librdkafka", "2.3.0").far(MS);
    let probe = world.connect(&who);
    let at_us = world.now_us;
    world.add(Fetcher {
        probe,
        at_us,
        number: 0,
        habit: Box::new(habit),
    });
    world.run(30);
    world
}

#[test]
fn fetches_by_the_clock_are_found_while_messages_wait() {
    let mut dice = Dice(11);
    let world = fetcher(move |_| (dice.between(100, 1_500), S));
    let finding = world.only(Rule::FetchRhythm);
    about(fact(&finding, "gap_us"), 1e6, 1.01);
    assert!(finding.prediction.gain > 10.0);
    // The client's own work is within the pause.
    assert_eq!(finding.prediction.bound, Bound::AtMost);
}

#[test]
fn fetches_that_wait_for_the_work_are_left_alone() {
    // Two milliseconds for each message.
    fetcher(|number| {
        let messages = 300 + number * 97 % 200;
        (messages, messages * 2 * MS)
    })
    .silent();
    // Always as many, so it may be work.
    fetcher(|_| (500, S)).silent();
    let mut dice = Dice(3);
    fetcher(move |_| (dice.between(1, 500), dice.between(100 * MS, 900 * MS))).silent();
    // No pause to speak of.
    fetcher(|_| (500, 5 * MS)).silent();
}

/// A consumer whose kernel holds acknowledgements back: of ten that it makes, the first goes at
/// once, the others when the broker's kernel has acknowledged it.
struct HeldBack {
    probe: Probe,
    at_us: u64,
    rtt_us: u64,
    hole_us: u64,
}

impl Model for HeldBack {
    fn run(&mut self, to_us: u64) {
        while self.at_us < to_us {
            let first_us = self.at_us + self.rtt_us;
            let rest_us = first_us + self.hole_us;
            self.probe.delivered(10, 0);
            self.probe.credit_used(10, self.at_us);
            self.probe.no_credit_begins(self.at_us);
            self.probe.acked_many(1, self.rtt_us);
            self.probe.acks(1, 0, first_us);
            self.probe.acked_many(9, self.rtt_us + self.hole_us);
            self.probe.acks(9, 0, rest_us);
            self.at_us = rest_us;
        }
    }
}

#[test]
fn acknowledgements_that_nagle_holds_back_are_found() {
    for (rtt_us, hole_us) in [(MS, 41 * MS), (10 * MS, 10 * MS)] {
        let mut world = World::new();
        let who = Who::new(Protocol::Amqp, "Pika Python Client Library", "0.9").far(rtt_us);
        let probe = world.connect(&who);
        probe.credit_granted(10);
        let at_us = world.now_us;
        world.add(HeldBack {
            probe,
            at_us,
            rtt_us,
            hole_us,
        });
        world.run(15);
        let finding = world.only(Rule::Nagle);
        about(fact(&finding, "ack_gap_us"), hole_us as f64, 1.1);
        assert!(
            finding.prediction.gain >= 1.3,
            "{}",
            finding.prediction.gain
        );
    }
}

mod healthy {
    use super::*;

    #[test]
    fn connections_that_stay_for_a_while() {
        let mut world = World::new();
        let who = Who::new(Protocol::Kafka, "apache-kafka-java", "3.7.0");
        for second in 0..120 {
            // A program that starts now and then and publishes some messages.
            if second % 5 == 0 {
                let probe = world.connect(&who);
                let now_us = world.now_us;
                probe.requests(10, 1000, 10_000, now_us, now_us);
                probe.answered(10, now_us + 100);
            }
            // A health check that only connects.
            drop(world.connect(&who.clone().at([10, 0, 0, 9])));
            world.run(1);
        }
        world.silent();
    }

    #[test]
    fn who_only_looks_over_http() {
        for rate in [2, 20, 200] {
            over_http(rate, 20 * MS, 0, 150).silent();
        }
    }

    /// Connections that are kept for the next message, which comes too late.
    #[test]
    fn who_publishes_too_seldom_over_http_to_keep_a_connection() {
        over_http(2, 20 * MS, 1, 5 * S).silent();
    }

    /// A page now and then, a timer's script, a broker that is near, many messages at a time.
    #[test]
    fn who_publishes_over_http_and_loses_little() {
        for (rate, rtt_us, messages) in [
            (1, 100 * MS, 1),
            (5, 20 * MS, 1),
            (50, 2 * MS, 1),
            (200, 500, 1),
            (20, 20 * MS, 100),
        ] {
            over_http(rate, rtt_us, messages, 150).silent();
        }
    }

    /// Two health checks a second, and a message every few seconds, all with the same name.
    #[test]
    fn health_checks_beside_a_message_now_and_then() {
        let mut world = World::new();
        let who = Who::new(Protocol::Amqp, "Pika Python Client Library", "1.3.2");
        for second in 0..60 {
            for _ in 0..2 {
                let check = world.connect(&who);
                for at in 1..=5 {
                    let at_us = world.now_us + at * 10 * MS;
                    check.request(0, 0, at_us, at_us);
                    check.answered(1, at_us + 50);
                }
            }
            if second % 10 == 0 {
                one_message(&world.connect(&who), 5, world.now_us, 10 * MS);
            }
            world.run(1);
        }
        world.silent();
    }

    #[test]
    fn behind_tls_the_handshake_is_no_request() {
        let mut world = World::new();
        let who = Who::new(Protocol::Kafka, "apache-kafka-java", "3.7.0").far(5 * MS);
        let probe = world.connect(&who);
        let mut at_us = world.now_us;
        let mut dice = Dice(1);
        for _ in 0..120 {
            // A record of TLS ends within a request at times; its rest comes right behind it.
            while at_us < world.now_us + S {
                probe.read(1400, at_us);
                probe.read_ended_inside_frame();
                let whole_us = at_us + dice.between(10, 200);
                probe.read(400, whole_us);
                probe.request(20, 1800, at_us, whole_us);
                probe.answered(1, whole_us + 150);
                at_us += dice.between(MS, 20 * MS);
            }
            world.run(1);
        }
        world.silent();
    }
}
