//! A queue and its consumers, with workers that may be shared.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use cloverleaf_doctor::{Consumer, Queue};
use cloverleaf_telemetry::{Probe, Protocol};

use super::producers::Times;
use super::{Model, UNIX_US};

/// A consumer of the queue.
pub struct Taker {
    pub probe: Probe,
    pub rtt_us: u64,
    pub credit: u64,
    /// The workers that its messages go to.
    pub pool: usize,
    /// Consumers that share its connection, and its credit.
    pub consumers: u64,
    /// The order in which it hands its messages to the workers, whether or not they are free; if
    /// empty, each goes to the one that is free first.
    pub hands_to: Vec<usize>,
    handed: usize,
    in_flight: u64,
    last_ack: u64,
}

impl Taker {
    pub fn new(probe: Probe, rtt_us: u64, credit: u64, pool: usize) -> Taker {
        probe.credit_granted(credit);
        Taker {
            probe,
            rtt_us,
            credit,
            pool,
            consumers: 1,
            hands_to: Vec::new(),
            handed: 0,
            in_flight: 0,
            last_ack: 0,
        }
    }
}

/// Workers with one line of messages before them.
struct Pool {
    /// When each of them is free.
    free_us: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// So many messages come into the queue.
    Publish { count: u64 },
    /// A taker has done with a message.
    Ack {
        taker: usize,
        message: u64,
        delivered_us: u64,
    },
}

pub struct Takers {
    pub name: &'static str,
    pub protocol: Protocol,
    pub takers: Vec<Taker>,
    /// How long the work on a message takes.
    pub job_us: Times,
    /// Gives all to the first with credit, not to the one with fewest.
    pub fills_first: bool,
    pools: Vec<Pool>,
    backlog: u64,
    delivered: u64,
    jobs: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    now_us: u64,
    arrivals: VecDeque<(u64, u64)>,
}

impl Takers {
    /// A queue with takers and pools of so many workers each.
    pub fn new(takers: Vec<Taker>, workers: &[usize], job_us: Times, now_us: u64) -> Takers {
        let pool = |count: &usize| Pool {
            free_us: vec![0; *count],
        };
        Takers {
            name: "q",
            protocol: Protocol::Amqp,
            takers,
            job_us,
            fills_first: false,
            pools: workers.iter().map(pool).collect(),
            backlog: 0,
            delivered: 0,
            jobs: 0,
            events: BinaryHeap::new(),
            order: 0,
            now_us,
            arrivals: VecDeque::new(),
        }
    }

    /// Messages wait from the beginning.
    pub fn with_backlog(mut self, count: u64) -> Takers {
        self.publish(self.now_us, count);
        self
    }

    /// Messages come at these times after the beginning.
    pub fn with_arrivals(mut self, times: impl IntoIterator<Item = (u64, u64)>) -> Takers {
        for (after_us, count) in times {
            self.publish(self.now_us + after_us, count);
        }
        self
    }

    fn publish(&mut self, at_us: u64, count: u64) {
        self.push(at_us, Event::Publish { count });
    }

    fn push(&mut self, at_us: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at_us, self.order, event)));
    }

    fn deliver(&mut self, now_us: u64) {
        let mut came = vec![0; self.takers.len()];
        while self.backlog > 0 {
            let free = self.takers.iter().enumerate();
            let free = free.filter(|(_, taker)| taker.in_flight < taker.credit);
            let chosen = if self.fills_first {
                free.map(|(at, _)| at).next()
            } else {
                free.min_by_key(|(_, it)| it.in_flight).map(|(at, _)| at)
            };
            let Some(chosen) = chosen else { break };
            self.backlog -= 1;
            self.delivered += 1;
            came[chosen] += 1;
            let (message, job) = (self.delivered, self.jobs);
            self.jobs += 1;
            let taker = &mut self.takers[chosen];
            taker.in_flight += 1;
            let here_us = now_us + taker.rtt_us / 2;
            let back_us = taker.rtt_us - taker.rtt_us / 2;
            let free_us = &mut self.pools[taker.pool].free_us;
            let worker = match taker
                .hands_to
                .get(taker.handed % taker.hands_to.len().max(1))
            {
                Some(worker) => &mut free_us[*worker],
                None => free_us.iter_mut().min().unwrap(),
            };
            taker.handed += 1;
            *worker = here_us.max(*worker) + (self.job_us)(job);
            let ack_us = *worker + back_us;
            let ack = Event::Ack {
                taker: chosen,
                message,
                delivered_us: now_us,
            };
            self.push(ack_us, ack);
        }
        for (taker, came) in self.takers.iter().zip(came) {
            if came > 0 {
                taker.probe.delivered(came, 0);
            }
            taker.probe.credit_used(taker.in_flight, now_us);
            if taker.in_flight >= taker.credit && self.backlog > 0 {
                taker.probe.no_credit_begins(now_us)
            } else {
                taker.probe.no_credit_ends(now_us)
            }
        }
    }

    fn happen(&mut self, at_us: u64, event: Event) {
        match event {
            Event::Publish { count } => self.backlog += count,
            Event::Ack {
                taker,
                message,
                delivered_us,
            } => {
                let taker = &mut self.takers[taker];
                taker.in_flight -= 1;
                let (now_us, then_us) = (UNIX_US + at_us, UNIX_US + delivered_us);
                taker.probe.acked_many(1, now_us - then_us);
                let in_order = u64::from(message >= taker.last_ack);
                taker.last_ack = message;
                taker.probe.acks(in_order, 1 - in_order, at_us);
                taker.probe.credit_used(taker.in_flight, at_us);
            }
        }
        self.deliver(at_us);
    }
}

impl Model for Takers {
    fn run(&mut self, to_us: u64) {
        self.now_us = to_us;
        while self.events.peek().is_some_and(|next| next.0.0 <= to_us) {
            if let Some(Reverse((at_us, _, event))) = self.events.pop() {
                self.happen(at_us, event);
            }
        }
    }

    fn queues(&self) -> Vec<Queue> {
        vec![Queue {
            topic: self.name.to_owned(),
            name: self.name.to_owned(),
            protocol: self.protocol,
            backlog: self.backlog,
            deadline_us_max: None,
            consumers: self
                .takers
                .iter()
                .flat_map(|taker| {
                    (0..taker.consumers).map(|_| Consumer {
                        connection: taker.probe.id(),
                        credit: taker.credit / taker.consumers,
                        in_flight: taker.in_flight / taker.consumers,
                        deadline_us: None,
                    })
                })
                .collect(),
            partitions: Vec::new(),
        }]
    }
}
