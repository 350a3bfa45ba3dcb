//! Work that takes longer than a message may be held: what is advised, and what is predicted.

use crate::common::producers::Times;
use crate::common::{MS, Model, S, Who, World, about, fact};
use cloverleaf_doctor::{Bound, Consumer, Finding, Queue, Rule};
use cloverleaf_telemetry::{Probe, Protocol};

#[test]
fn work_that_takes_longer_than_the_deadline_is_found() {
    let mut world = World::new();
    let who = Who::new(Protocol::Nsq, "go-nsq", "1.1.0");
    let probe = world.connect(&who);
    probe.credit_granted(5);
    for second in 0..60 {
        if second % 2 == 0 {
            probe.delivered(1, u64::from(second > 10));
            probe.timed_out(1);
            probe.late_ack();
        }
        if second % 10 == 0 {
            probe.delivered(1, 0);
            probe.acked_many(1, 50 * S);
            probe.acks(1, 0, world.now_us);
        }
        world.run(1);
    }
    let finding = world.only(Rule::AckDeadline);
    about(fact(&finding, "late_acks"), 30.0, 1.1);
    about(finding.prediction.gain, 36.0 / 6.0, 1.2);
    // The broker cannot know how late they were, nor whether more would come.
    assert_eq!(finding.prediction.bound, Bound::AtMost);
}

/// A consumer of a queue with a deadline, which acknowledges two messages a second: one in time,
/// and one so long after its delivery.
struct TooLate {
    probe: Probe,
    number: u64,
    at_us: u64,
    held_us: Times,
    /// The one of now, and the longest.
    deadline_us: u64,
    deadline_us_max: u64,
    backlog: u64,
}

impl Model for TooLate {
    fn run(&mut self, to_us: u64) {
        while self.at_us < to_us {
            self.at_us += S;
            self.number += 1;
            self.probe.delivered(2, 1);
            self.probe.acked_many(1, 300 * MS);
            self.probe.acks(1, 0, self.at_us);
            self.probe.timed_out(1);
            self.probe.late_ack();
            self.probe.overdue_ack((self.held_us)(self.number));
        }
    }

    fn queues(&self) -> Vec<Queue> {
        vec![Queue {
            topic: "q".to_owned(),
            name: "q".to_owned(),
            protocol: Protocol::Nsq,
            backlog: self.backlog,
            deadline_us_max: Some(self.deadline_us_max),
            // Another one has asked for a shorter time.
            consumers: vec![
                Consumer {
                    connection: self.probe.id(),
                    credit: 10,
                    in_flight: 2,
                    deadline_us: Some(self.deadline_us),
                },
                Consumer {
                    connection: 0,
                    credit: 10,
                    in_flight: 2,
                    deadline_us: Some(500 * MS),
                },
            ],
            partitions: Vec::new(),
        }]
    }
}

fn too_late(held_us: Times, deadline_us_max: u64, backlog: u64) -> Finding {
    too_late_by(held_us, (S, deadline_us_max), backlog)
}

/// With the deadline of now and the longest.
fn too_late_by(held_us: Times, deadlines: (u64, u64), backlog: u64) -> Finding {
    let (deadline_us, deadline_us_max) = deadlines;
    let mut world = World::new();
    let who = Who::new(Protocol::Nsq, "go-nsq", "1.1.0");
    let probe = world.connect(&who);
    let at_us = world.now_us;
    world.add(TooLate {
        probe,
        number: 0,
        at_us,
        held_us,
        deadline_us,
        deadline_us_max,
        backlog,
    });
    world.run(30);
    world.only(Rule::AckDeadline)
}

#[test]
fn the_deadline_that_is_advised_is_one_that_the_work_keeps() {
    let finding = too_late(Box::new(|_| 3 * S), 900 * S, 1_000);
    assert_eq!(finding.changes[0].value.as_deref(), Some("4"));
    assert_eq!(finding.prediction.bound, Bound::Exact);
    about(finding.prediction.gain, 2.0, 1.01);
    about(finding.prediction.after, 2.0, 1.1);
    about(fact(&finding, "overdue_ack_us"), 3e6, 1.07);
    // Where no messages wait, as many may never come.
    let finding = too_late(Box::new(|_| 3 * S), 900 * S, 0);
    assert_eq!(finding.prediction.bound, Bound::AtMost);
}

#[test]
fn no_deadline_is_advised_that_the_broker_does_not_allow() {
    // Half of them take 2 s, the others 60 s.
    let held = || Box::new(|number: u64| S * [2, 60][(number % 2) as usize]);
    let finding = too_late(held(), 5 * S, 1_000);
    assert_eq!(finding.changes[0].value.as_deref(), Some("5"));
    about(finding.prediction.gain, 1.5, 1.05);
    let unseen = finding.unseen.join(" ");
    assert!(unseen.contains("no deadline longer than 5.0 s"), "{unseen}");
    // None of them can be in time: that is not predicted.
    let finding = too_late(Box::new(|_| 60 * S), 5 * S, 1_000);
    assert_eq!(finding.prediction.bound, Bound::AtMost);
    assert!(finding.prediction.arithmetic.contains("all of them"));
}

#[test]
fn the_deadline_is_the_consumers_own_and_never_shortened() {
    let advised = |finding: &Finding| finding.changes[0].value.clone();
    // The text names its own deadline, not the one of another consumer.
    let finding = too_late_by(Box::new(|_| 3_500 * MS), (1_500 * MS, 900 * S), 1_000);
    assert_eq!(advised(&finding).as_deref(), Some("5"));
    let text = &finding.evidence[0].text;
    assert!(text.ends_with("which is 1.5 s"), "{text}");
    // No whole second is left between the one of now and the longest.
    let finding = too_late_by(Box::new(|_| 4 * S), (1_500 * MS, 1_900 * MS), 1_000);
    assert_eq!(advised(&finding).as_deref(), Some("1.9"));
    // Nothing longer is allowed.
    let finding = too_late_by(Box::new(|_| 4 * S), (1_500 * MS, 1_500 * MS), 1_000);
    assert_eq!(advised(&finding).as_deref(), Some("1.5"));
    // The prediction is for the advised value: of 5.5 s only 5 are.
    let held = || Box::new(|number: u64| [4 * S, 5_300 * MS][(number % 2) as usize]);
    let finding = too_late_by(held(), (1_500 * MS, 5_500 * MS), 1_000);
    assert_eq!(advised(&finding).as_deref(), Some("5"));
    about(finding.prediction.gain, 1.5, 1.02);
}
