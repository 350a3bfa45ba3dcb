//! Acknowledgements that come two round trips after the delivery: held back by the client's
//! kernel, or by work that takes one of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::common::producers::{Times, jitter};
use crate::common::{MS, Model, S, Who, World, about};
use cloverleaf_doctor::{Bound, Consumer, Queue, Rule};
use cloverleaf_telemetry::{Probe, Protocol};

const RTT_US: u64 = 40 * MS;

/// How a program works on messages.
enum Work {
    /// On each at once, for so long.
    Each(Times),
    /// On all that are there together, and then on those that came meanwhile. It acknowledges each
    /// by itself.
    Bulk(Times),
}

/// An event; the number of a message is when it was delivered, and which it was.
enum Event {
    Published(u64),
    Reaches(Vec<Message>),
    Done(Vec<Message>),
    Comes(Vec<Message>),
    Acknowledged,
}

#[derive(Clone, Copy)]
struct Message {
    number: u64,
    delivered_us: u64,
}

/// A consumer at a distance, with its kernel.
struct Far {
    probe: Probe,
    credit: u64,
    /// Its kernel has one small packet on the way at a time.
    has_nagle: bool,
    /// Acknowledgements that it makes at once are one packet.
    writes_once: bool,
    work: Work,
    known_every: Option<u64>,
    backlog: u64,
    in_flight: u64,
    number: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: Vec<Option<Event>>,
    /// Messages that wait for a bulk to end; `None`: there is none.
    waiting: Option<Vec<Message>>,
    /// Acknowledgements that the kernel holds back; `None`: nothing is on the way.
    held: Option<Vec<Message>>,
}

impl Far {
    fn at(&mut self, at_us: u64, event: Event) {
        self.events.push(Reverse((at_us, self.what.len() as u64)));
        self.what.push(Some(event));
    }

    fn deliver(&mut self, now_us: u64) {
        let count = self.backlog.min(self.credit - self.in_flight);
        if count > 0 {
            self.backlog -= count;
            self.in_flight += count;
            let first = self.number;
            self.number += count;
            self.probe.delivered(count, 0);
            let message = |number| Message {
                number,
                delivered_us: now_us,
            };
            let messages = (first..self.number).map(message).collect();
            self.at(now_us + RTT_US / 2, Event::Reaches(messages));
        }
        self.probe.credit_used(self.in_flight, now_us);
        if self.backlog > 0 {
            self.probe.no_credit_begins(now_us)
        } else {
            self.probe.no_credit_ends(now_us)
        }
    }

    fn begin_bulk(&mut self, now_us: u64, messages: Vec<Message>) {
        let Work::Bulk(takes_us) = &mut self.work else {
            return;
        };
        let done_us = now_us + takes_us(messages[0].number);
        self.waiting = Some(Vec::new());
        self.at(done_us, Event::Done(messages));
    }

    /// The program acknowledges these.
    fn acknowledge(&mut self, now_us: u64, messages: Vec<Message>) {
        if self.has_nagle {
            match &mut self.held {
                Some(held) => held.extend(messages),
                None => {
                    // The first goes, if it is written by itself.
                    let first = if self.writes_once { messages.len() } else { 1 };
                    self.held = Some(messages[first..].to_vec());
                    self.at(
                        now_us + RTT_US / 2,
                        Event::Comes(messages[..first].to_vec()),
                    );
                }
            }
            return;
        }
        if self.writes_once {
            return self.at(now_us + RTT_US / 2, Event::Comes(messages));
        }
        for (place, message) in messages.into_iter().enumerate() {
            let sent_us = now_us + 30 * place as u64;
            self.at(sent_us + RTT_US / 2, Event::Comes(vec![message]));
        }
    }

    /// They reach the program.
    fn reached(&mut self, now_us: u64, messages: Vec<Message>) {
        let is_known = |it: &Message| self.known_every.is_some_and(|n| it.number % n == n - 1);
        let (known, messages): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_known);
        if !known.is_empty() {
            self.acknowledge(now_us, known);
        }
        if messages.is_empty() {
            return;
        }
        match (&mut self.work, &mut self.waiting) {
            (Work::Each(takes_us), _) => {
                let mut done: Vec<(u64, Vec<Message>)> = Vec::new();
                for message in messages {
                    let at_us = now_us + takes_us(message.number);
                    match done.iter_mut().find(|it| it.0 == at_us) {
                        Some(same) => same.1.push(message),
                        None => done.push((at_us, vec![message])),
                    }
                }
                for (at_us, messages) in done {
                    self.at(at_us, Event::Done(messages));
                }
            }
            (Work::Bulk(_), Some(waiting)) => waiting.extend(messages),
            (Work::Bulk(_), None) => self.begin_bulk(now_us, messages),
        }
    }

    fn happen(&mut self, now_us: u64, event: Event) {
        match event {
            Event::Published(count) => {
                self.backlog += count;
                self.deliver(now_us);
            }
            Event::Reaches(messages) => self.reached(now_us, messages),
            Event::Done(messages) => {
                self.acknowledge(now_us, messages);
                let waiting = self.waiting.take().filter(|it| !it.is_empty());
                if let Some(waiting) = waiting {
                    self.begin_bulk(now_us, waiting);
                }
            }
            Event::Comes(messages) => {
                for message in &messages {
                    self.probe.acked_many(1, now_us - message.delivered_us);
                }
                self.in_flight -= messages.len() as u64;
                self.probe.acks(messages.len() as u64, 0, now_us);
                self.probe.credit_used(self.in_flight, now_us);
                self.deliver(now_us + 50);
                // With the delivery, if there is one.
                self.at(now_us + 50 + RTT_US / 2, Event::Acknowledged);
            }
            Event::Acknowledged => {
                let held = self.held.take().filter(|it| !it.is_empty());
                if let Some(held) = held {
                    self.held = Some(Vec::new());
                    self.at(now_us + RTT_US / 2, Event::Comes(held));
                }
            }
        }
    }
}

impl Model for Far {
    fn run(&mut self, to_us: u64) {
        while let Some(Reverse((at_us, which))) = self.events.peek().copied() {
            if at_us > to_us {
                break;
            }
            self.events.pop();
            if let Some(event) = self.what[which as usize].take() {
                self.happen(at_us, event);
            }
        }
    }

    fn queues(&self) -> Vec<Queue> {
        vec![Queue {
            topic: "q".to_owned(),
            name: "q".to_owned(),
            protocol: Protocol::Amqp,
            backlog: self.backlog,
            deadline_us_max: None,
            consumers: vec![Consumer {
                connection: self.probe.id(),
                credit: self.credit,
                in_flight: self.in_flight,
                deadline_us: None,
            }],
            partitions: Vec::new(),
        }]
    }
}

/// The properties of a program.
struct Program {
    credit: u64,
    has_nagle: bool,
    writes_once: bool,
    work: Work,
    /// One of so many needs no work.
    known_every: Option<u64>,
    /// So many messages each so many microseconds; 0: all at the beginning.
    bursts: (u64, u64),
    /// So many of them come a little before the others, which makes two groups of them.
    ahead: u64,
}

/// A program whose acknowledgements are held back, while a million messages wait.
fn nagle(credit: u64, work_us: Times) -> Program {
    Program {
        credit,
        has_nagle: true,
        writes_once: false,
        work: Work::Each(work_us),
        known_every: None,
        bursts: (1_000_000, 0),
        ahead: 0,
    }
}

/// A program whose acknowledgements go at once.
fn well(work: Work) -> Program {
    Program {
        has_nagle: false,
        work,
        ..nagle(10, always(0))
    }
}

fn always(us: u64) -> Times {
    Box::new(move |_| us)
}

fn watched(program: Program) -> World {
    let mut world = World::new();
    let who = Who::new(Protocol::Amqp, "amqplib", "2.3.1").far(RTT_US);
    let probe = world.connect(&who);
    probe.credit_granted(program.credit);
    let mut far = Far {
        probe,
        credit: program.credit,
        has_nagle: program.has_nagle,
        writes_once: program.writes_once,
        work: program.work,
        known_every: program.known_every,
        backlog: 0,
        in_flight: 0,
        number: 0,
        events: BinaryHeap::new(),
        what: Vec::new(),
        waiting: None,
        held: None,
    };
    let (count, every_us) = program.bursts;
    let bursts = (30 * S).checked_div(every_us).unwrap_or(1);
    for burst in 0..bursts {
        let at_us = world.now_us + burst * every_us;
        far.at(at_us, Event::Published(program.ahead));
        far.at(at_us + 5 * MS, Event::Published(count - program.ahead));
    }
    world.add(far);
    world.run(30);
    world
}

#[test]
fn two_groups_that_take_turns_are_found() {
    for (credit, work_us) in [
        (10, always(0)),
        (3, always(100)),
        (50, always(0)),
        // A little work on each, now more and now less.
        (10, jitter(4 * MS)),
    ] {
        let world = watched(nagle(credit, work_us));
        let finding = world.only(Rule::Nagle);
        about(finding.prediction.gain, 2.0, 1.15);
        assert_eq!(finding.changes[0].setting, "noDelay");
        assert!(finding.unseen.iter().any(|it| it.contains("less work")));
        assert!(world.appeared.iter().all(|(second, _)| *second <= 15));
    }
}

#[test]
fn bursts_that_are_worked_off_are_found() {
    for (count, every_us) in [(200, 2 * S), (100, S)] {
        let bursts = (count, every_us);
        let world = watched(Program {
            bursts,
            ..nagle(10, always(0))
        });
        let finding = world.only(Rule::Nagle);
        // More than there are cannot be worked on.
        assert_eq!(finding.prediction.bound, Bound::AtMost);
    }
}

/// Its first message took longer, and so nothing tells it from a program whose work takes a round
/// trip, until there is a pause.
#[test]
fn a_cold_start_hides_it_until_there_is_a_pause() {
    let cold = || -> Times {
        let mut warm = jitter(MS);
        Box::new(move |number| match number {
            0..10 => 30 * MS,
            number => warm(number),
        })
    };
    watched(nagle(10, cold())).silent();
    watched(Program {
        bursts: (200, 2 * S),
        ..nagle(10, cold())
    })
    .only(Rule::Nagle);
}

mod healthy {
    use super::*;

    /// At most more messages at a time would help.
    #[track_caller]
    fn is_not_held_back(world: &World) {
        let others = world.appeared.iter();
        let others: Vec<_> = others
            .filter(|(_, it)| it.rule != Rule::WindowTooSmall)
            .collect();
        assert!(others.is_empty(), "{others:#?}");
    }

    /// A round trip, and what the database takes: sometimes the same to the microsecond.
    fn calls() -> [fn() -> Times; 4] {
        let some: [fn() -> Times; 4] = [
            || always(RTT_US),
            || always(RTT_US + 50),
            || {
                let mut more = jitter(2 * MS);
                Box::new(move |number| RTT_US + more(number))
            },
            || {
                let mut more = jitter(300);
                Box::new(move |number| RTT_US - 500 + more(number))
            },
        ];
        some
    }

    #[test]
    fn work_that_calls_a_database_as_far_away() {
        for call in calls() {
            for writes_once in [false, true] {
                for bursts in [(1_000_000, 0), (100, S)] {
                    is_not_held_back(&watched(Program {
                        writes_once,
                        bursts,
                        ..well(Work::Each(call()))
                    }));
                }
            }
        }
    }

    /// With one call for all that are there its acknowledgements come in groups that take turns,
    /// a round trip apart, each two round trips after its delivery.
    #[test]
    fn work_that_calls_such_a_database_for_many_at_a_time() {
        for call in calls() {
            for writes_once in [false, true] {
                for bursts in [(1_000_000, 0), (100, S), (35, S / 2)] {
                    for ahead in [0, 1, 5] {
                        is_not_held_back(&watched(Program {
                            writes_once,
                            bursts,
                            ahead,
                            ..well(Work::Bulk(call()))
                        }));
                    }
                }
            }
        }
    }

    /// Where it knows the answer for some of them.
    #[test]
    fn work_that_need_not_call_the_database_for_each() {
        for call in calls() {
            for every in [3, 7, 30] {
                for ahead in [0, 1, 5] {
                    for writes_once in [false, true] {
                        for work in [Work::Each(call()), Work::Bulk(call())] {
                            is_not_held_back(&watched(Program {
                                writes_once,
                                ahead,
                                known_every: Some(every),
                                ..well(work)
                            }));
                        }
                    }
                }
            }
        }
    }

    /// It may be well to turn Nagle's algorithm off, but nobody can see it.
    #[test]
    fn work_that_calls_a_database_behind_a_kernel_that_holds_back() {
        for call in calls() {
            is_not_held_back(&watched(nagle(10, call())));
        }
    }

    #[test]
    fn who_is_not_held_back_has_too_small_a_window_at_most() {
        for writes_once in [false, true] {
            let world = watched(Program {
                writes_once,
                ..well(Work::Each(always(0)))
            });
            assert_eq!(world.rules(), [Rule::WindowTooSmall]);
        }
    }

    /// A library that collects acknowledgements by a clock.
    #[test]
    fn who_acknowledges_by_a_clock() {
        for clock_us in [RTT_US / 2, RTT_US, 2 * RTT_US] {
            // The first of a group is there at once, and waits for the clock with the others.
            let mut program = well(Work::Bulk(always(clock_us)));
            program.writes_once = true;
            let world = watched(program);
            is_not_held_back(&world);
        }
    }
}
