//! The source of a producer's messages: which it has to send, and when.

use crate::clock::Clock;
use crate::payload::{Payloads, Stamp};
use crate::plan::Plan;
use crate::schedule::{Random, Schedule};

/// A message that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Its number among the messages of its producer, from 0 on.
    pub sequence: u64,
    /// When it was due, in nanoseconds of the measurement's clock.
    pub intended_ns: u64,
    /// When it was sent, in nanoseconds of the same clock.
    pub sent_ns: u64,
    /// Its key, if messages have keys.
    pub key: Option<u64>,
    /// Whether it belongs to the measurement and not to the warm-up.
    pub is_measured: bool,
}

/// What a producer has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Send this message.
    Send(Message),
    /// Wait until this time, in nanoseconds of the measurement's clock.
    At(u64),
    /// Send no more messages.
    Done,
}

/// The messages of one producer.
#[derive(Debug, Clone)]
pub struct MessageSource {
    clock: Clock,
    producer: u32,
    run: u32,
    schedule: Schedule,
    payloads: Payloads,
    keys: u64,
    random: Random,
    sequence: u64,
    /// Messages of the measurement that remain to be sent; `u64::MAX`: the end is a time.
    left: u64,
    start_ns: u64,
    measured_from_ns: u64,
    end_ns: u64,
    /// When the next message is due; `None`: in a closed loop.
    due_ns: Option<u64>,
}

impl MessageSource {
    /// The messages of the producer with this number, from `start_ns` on.
    pub fn new(plan: &Plan, producer: u32, clock: Clock, start_ns: u64) -> MessageSource {
        let seconds = |seconds: f64| start_ns.saturating_add((seconds * 1e9) as u64);
        let seed = plan.seed ^ u64::from(producer).wrapping_mul(0x9e37_79b9);
        let mut schedule = Schedule::new(plan.arrivals, producer, plan.producers, plan.seed);
        let due_ns = schedule.next_ns().map(|ns| start_ns.saturating_add(ns));
        MessageSource {
            clock,
            producer,
            run: plan.run,
            schedule,
            payloads: Payloads::new(&plan.payload, plan.size_bytes, seed),
            keys: plan.keys,
            random: Random(seed),
            sequence: 0,
            left: plan.share(producer).unwrap_or(u64::MAX),
            start_ns,
            measured_from_ns: seconds(plan.warm_up_s),
            end_ns: plan.end_s().map_or(u64::MAX, seconds),
            due_ns,
        }
    }

    /// The measurement's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Bytes of each message.
    pub fn size_bytes(&self) -> usize {
        self.payloads.size_bytes()
    }

    /// Whether this is an open loop: the schedule does not wait for the broker.
    pub fn is_open(&self) -> bool {
        !self.schedule.is_closed()
    }

    /// The next step. The caller has to send a message that this returns.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> Next {
        let intended_ns = match self.due_ns {
            Some(due_ns) => due_ns,
            None => now_ns.max(self.start_ns),
        };
        if self.left == 0 || intended_ns >= self.end_ns {
            return Next::Done;
        }
        if intended_ns > now_ns {
            return Next::At(intended_ns);
        }
        if self.due_ns.is_some() {
            let next_ns = self.schedule.next_ns();
            self.due_ns = next_ns.map(|ns| self.start_ns.saturating_add(ns));
        }
        let is_measured = intended_ns >= self.measured_from_ns;
        if is_measured && self.left != u64::MAX {
            self.left -= 1;
        }
        let sequence = self.sequence;
        self.sequence += 1;
        Next::Send(Message {
            sequence,
            intended_ns,
            sent_ns: now_ns,
            key: (self.keys > 0).then(|| self.random.next() % self.keys),
            is_measured,
        })
    }

    /// Appends the bytes of a message to `out`.
    #[inline]
    pub fn push(&mut self, message: &Message, out: &mut Vec<u8>) {
        let lag_us = message.sent_ns.saturating_sub(message.intended_ns) / 1_000;
        let stamp = Stamp {
            run: self.run,
            producer: self.producer,
            sequence: message.sequence,
            intended_unix_ns: self.clock.to_unix_ns(message.intended_ns),
            lag_us: u32::try_from(lag_us).unwrap_or(u32::MAX),
        };
        self.payloads.push(&stamp, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::PayloadKind;
    use crate::plan::{Acks, Amount};
    use crate::schedule::Arrivals;

    fn plan(amount: Amount, arrivals: Arrivals) -> Plan {
        Plan {
            run: 1,
            topic: "t".to_owned(),
            producers: 2,
            consumers: 0,
            size_bytes: 100,
            payload: PayloadKind::Random,
            amount,
            warm_up_s: 1.0,
            arrivals,
            batch_messages: 1,
            in_flight: 1,
            acks: Acks::One,
            partitions: 1,
            keys: 0,
            seed: 1,
        }
    }

    #[test]
    fn the_warm_up_is_not_counted() {
        let plan = plan(Amount::Messages(5), Arrivals::Closed);
        let mut source = MessageSource::new(&plan, 0, Clock::new(), 0);
        let second = 1_000_000_000;
        let mut measured = 0;
        for now_ns in [0, second / 2, second, second + 1, second + 2, second + 3] {
            match source.next(now_ns) {
                Next::Send(message) => measured += u32::from(message.is_measured),
                Next::Done => break,
                Next::At(_) => unreachable!("a closed loop waits for nothing"),
            }
        }
        // Three of five are this producer's.
        assert_eq!((measured, source.next(second + 9)), (3, Next::Done));
        assert_eq!(source.sequence, 5);
    }

    #[test]
    fn what_is_late_keeps_the_time_at_which_it_was_due() {
        let plan = plan(Amount::Seconds(1.0), Arrivals::Constant { rate: 2_000.0 });
        let mut source = MessageSource::new(&plan, 1, Clock::new(), 100);
        assert_eq!(source.next(100), Next::At(500_100));
        // A pause of a tenth of a second: a hundred messages are due, each since its own time.
        let now_ns = 100_000_100;
        let mut due = Vec::new();
        while let Next::Send(message) = source.next(now_ns) {
            due.push(now_ns - message.intended_ns);
        }
        assert_eq!(due.len(), 100);
        assert_eq!(due[..2], [99_500_000, 98_500_000]);
        assert_eq!(source.next(now_ns), Next::At(100_500_100));
        let end_ns = 3_000_000_000;
        let rest = std::iter::from_fn(|| Some(source.next(end_ns)).filter(|it| *it != Next::Done));
        assert_eq!(rest.count(), 1_900);
    }
}
