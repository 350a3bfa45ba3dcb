//! Producers of all habits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use cloverleaf_telemetry::{Probe, Protocol};

use super::{Dice, Model, Who, World};

/// When the client makes its message number so many at the earliest, or how long it works on it.
pub type Times = Box<dyn FnMut(u64) -> u64>;

/// About so many microseconds, never quite the same.
pub fn jitter(us: u64) -> Times {
    let mut dice = Dice(us);
    Box::new(move |_| dice.between(us * 3 / 5, us * 7 / 5))
}

/// A producer of this client in this world.
pub fn producer(world: &mut World, who: &Who) -> Producer {
    let probe = world.connect(who);
    let mut producer = Producer::new(probe, world.now_us, who.rtt_us);
    producer.record_clock_us = (who.protocol == Protocol::Kafka).then_some(0);
    producer
}

/// A world so many seconds after this client began to publish, with these habits.
pub fn after(seconds: u64, who: &Who, habits: impl FnOnce(&mut Producer)) -> World {
    let mut world = World::new();
    let mut one = producer(&mut world, who);
    habits(&mut one);
    world.add(one);
    world.run(seconds);
    world
}

/// A producer: makes a request, sends it, waits for answers as its habits are.
pub struct Producer {
    pub probe: Probe,
    pub start_us: u64,
    pub rtt_us: u64,
    pub service_us: u64,
    /// How much later a request is answered than that.
    pub late_us: Times,
    /// Requests that it has on the way at most.
    pub in_flight: usize,
    /// The time that it takes before each request, once it may send.
    pub think_us: Times,
    /// When it has its messages at the earliest, from its start on.
    pub due_us: Times,
    /// How long its library collects.
    pub linger_us: u64,
    /// How much later than that a request is on its way, where it is not the client's fault.
    pub wander_us: Times,
    /// How much later the rest of a request comes.
    pub hole_us: u64,
    pub messages: u64,
    /// Messages of each request, where they are not always as many.
    pub sizes: Option<Times>,
    pub bytes: u64,
    /// Whether its records bear their times, and how wrong its clock is.
    pub record_clock_us: Option<i64>,
    /// How far apart the times of a batch's first and last record are.
    pub span_us: u64,
    /// It wants no answers.
    pub is_silent: bool,
    number: u64,
    last_sent_us: u64,
    answers_us: VecDeque<u64>,
    last_answer_us: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Head,
    /// The whole request is there, after its head came; so old is its first record.
    Whole {
        head_us: u64,
        age_us: i64,
    },
    Answer,
}

impl Producer {
    pub fn new(probe: Probe, start_us: u64, rtt_us: u64) -> Producer {
        Producer {
            probe,
            start_us,
            rtt_us,
            service_us: 100,
            late_us: Box::new(|_| 0),
            in_flight: 1,
            think_us: jitter(50),
            due_us: Box::new(|_| 0),
            linger_us: 0,
            wander_us: Box::new(|_| 0),
            hole_us: 0,
            messages: 1,
            sizes: None,
            bytes: 200,
            record_clock_us: None,
            span_us: 0,
            is_silent: false,
            number: 0,
            last_sent_us: start_us,
            answers_us: VecDeque::new(),
            last_answer_us: 0,
            events: BinaryHeap::new(),
        }
    }

    /// Plans the next request. Its times are known at once: nothing else uses the connection.
    fn plan(&mut self) {
        let (number, half_us) = (self.number, self.rtt_us / 2);
        self.number += 1;
        let mut free_us = self.last_sent_us;
        while self.answers_us.len() >= self.in_flight {
            let answered_us = self.answers_us.pop_front().unwrap_or_default();
            free_us = free_us.max(answered_us + half_us);
        }
        let due_us = self.start_us + (self.due_us)(number);
        let made_us = free_us.max(due_us) + (self.think_us)(number);
        let sent_us = made_us + self.linger_us;
        self.last_sent_us = sent_us;
        let head_us = sent_us + half_us + (self.wander_us)(number);
        let whole_us = head_us + self.hole_us;
        let served_us = whole_us + self.service_us + (self.late_us)(number);
        let answer_us = served_us.max(self.last_answer_us);
        self.last_answer_us = answer_us;
        let age_us = (whole_us - made_us) as i64 + self.record_clock_us.unwrap_or_default();
        // Records bear whole milliseconds.
        let age_us = age_us + (made_us % 1000) as i64;
        self.answers_us.push_back(answer_us);
        let order = number * 3;
        let mut push = |at_us, order, event| self.events.push(Reverse((at_us, order, event)));
        if self.hole_us > 0 {
            push(head_us, order, Event::Head);
        }
        push(whole_us, order + 1, Event::Whole { head_us, age_us });
        push(answer_us, order + 2, Event::Answer);
    }

    fn happen(&mut self, at_us: u64, event: Event) {
        match event {
            Event::Head => {
                self.probe.read(40, at_us);
                self.probe.read_ended_inside_frame();
            }
            Event::Whole { head_us, age_us } => {
                self.probe.read(self.bytes as usize, at_us);
                let messages = match &mut self.sizes {
                    Some(sizes) => sizes(head_us),
                    None => self.messages,
                };
                self.probe.request(messages, self.bytes, head_us, at_us);
                if self.is_silent {
                    self.probe.unanswered(1);
                }
                if self.record_clock_us.is_some() {
                    self.probe.record_age(age_us);
                    self.probe.batches(1, self.span_us);
                }
            }
            Event::Answer if self.is_silent => {}
            Event::Answer => {
                self.probe.wrote(50);
                self.probe.answered(1, at_us);
            }
        }
    }
}

impl Model for Producer {
    fn run(&mut self, to_us: u64) {
        while self.last_sent_us < to_us {
            self.plan();
        }
        while self.events.peek().is_some_and(|next| next.0.0 <= to_us) {
            if let Some(Reverse((at_us, _, event))) = self.events.pop() {
                self.happen(at_us, event);
            }
        }
    }
}
