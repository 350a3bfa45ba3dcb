//! The surroundings of a client in a scenario: where the broker is, when to end, and the meter that
//! counts its work.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cloverleaf_bench::Stop;

use crate::broker::Addresses;

/// What a client knows of the scenario that it is in.
#[derive(Debug)]
pub(crate) struct ClientContext {
    /// The addresses at which it reaches the broker.
    pub(crate) addresses: Addresses,
    /// Set when the client has to end.
    pub(crate) stop: Stop,
    /// The meter of its work.
    pub(crate) meter: WorkMeter,
    /// A unique name for the client's topics and queues.
    pub(crate) name: String,
    /// The certificate of the authority that signed the broker's, if it has one: PEM.
    pub(crate) authority: Option<String>,
}

impl ClientContext {
    /// The context of one of several clients of the scenario, with a meter of its own.
    pub(crate) fn of(&self, client: &str) -> ClientContext {
        ClientContext {
            addresses: self.addresses,
            stop: self.stop.clone(),
            meter: WorkMeter::new(),
            name: format!("{}-{client}", self.name),
            authority: self.authority.clone(),
        }
    }

    /// Whether the scenario goes on.
    pub(crate) fn is_running(&self) -> bool {
        !self.stop.is_set()
    }
}

/// Counts the messages that a client has done, and the time that they took.
#[derive(Debug)]
pub(crate) struct WorkMeter {
    begun: Instant,
    seen: Mutex<WorkState>,
}

#[derive(Debug, Default)]
struct WorkState {
    count: WorkDone,
    /// Messages that are delivered and not acknowledged.
    held: u64,
    /// Since when at least one message is held.
    held_since: Option<Instant>,
}

/// The work done until some moment, or between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct WorkDone {
    /// Messages that were published and answered, or worked on and acknowledged.
    pub(crate) done: u64,
    /// The sum of the times that they took, in seconds.
    pub(crate) taken_s: f64,
    /// Seconds since the meter was made, or between the two moments.
    pub(crate) at_s: f64,
    /// Seconds in which at least one message was held.
    pub(crate) busy_s: f64,
    /// CPU time of the broker's threads, in seconds; 0 where it was not measured.
    pub(crate) cpu_s: f64,
}

impl WorkMeter {
    pub(crate) fn new() -> WorkMeter {
        WorkMeter {
            begun: Instant::now(),
            seen: Mutex::default(),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut WorkState) -> T) -> T {
        work(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A message is done, and took this long.
    pub(crate) fn done(&self, took: Duration) {
        self.with(|seen| {
            seen.count.done += 1;
            seen.count.taken_s += took.as_secs_f64();
        });
    }

    /// A message was delivered and is held from now on.
    pub(crate) fn delivered(&self) {
        self.with(|seen| {
            seen.held += 1;
            seen.held_since.get_or_insert_with(Instant::now);
        });
    }

    /// A held message is done, and was held this long.
    pub(crate) fn acknowledged(&self, took: Duration) {
        self.with(|seen| {
            seen.count.done += 1;
            seen.count.taken_s += took.as_secs_f64();
            seen.held = seen.held.saturating_sub(1);
            if seen.held == 0
                && let Some(since) = seen.held_since.take()
            {
                seen.count.busy_s += since.elapsed().as_secs_f64();
            }
        });
    }

    /// The work done until now.
    pub(crate) fn count(&self) -> WorkDone {
        self.with(|seen| {
            let going_on = seen.held_since.map_or(Duration::ZERO, |it| it.elapsed());
            WorkDone {
                at_s: self.begun.elapsed().as_secs_f64(),
                busy_s: seen.count.busy_s + going_on.as_secs_f64(),
                ..seen.count
            }
        })
    }
}

impl WorkDone {
    /// The work done since an earlier moment.
    pub(crate) fn since(&self, earlier: &WorkDone) -> WorkDone {
        WorkDone {
            done: self.done.saturating_sub(earlier.done),
            taken_s: self.taken_s - earlier.taken_s,
            at_s: self.at_s - earlier.at_s,
            busy_s: self.busy_s - earlier.busy_s,
            cpu_s: 0.0,
        }
    }

    /// Messages per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.at_s.max(1e-9)
    }

    /// Messages per second of the time in which at least one was held.
    pub(crate) fn per_busy_second(&self) -> f64 {
        if self.busy_s > 0.0 {
            self.done as f64 / self.busy_s
        } else {
            self.per_second()
        }
    }

    /// Microseconds of the broker's CPU time for a message.
    pub(crate) fn cost_us(&self) -> f64 {
        self.cpu_s * 1e6 / self.done.max(1) as f64
    }

    /// Mean time of a message, in microseconds.
    pub(crate) fn mean_us(&self) -> f64 {
        self.taken_s * 1e6 / self.done.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_work_is_no_work() {
        let before = WorkDone {
            done: 4,
            taken_s: 1.0,
            at_s: 2.0,
            busy_s: 0.5,
            cpu_s: 0.0,
        };
        let after = WorkDone {
            done: 24,
            taken_s: 2.0,
            at_s: 12.0,
            busy_s: 2.5,
            cpu_s: 0.0,
        };
        let count = after.since(&before);
        assert_eq!((count.per_second(), count.per_busy_second()), (2.0, 10.0));
        assert_eq!(count.mean_us(), 50_000.0);
    }

    #[test]
    fn work_begins_with_the_first_message_and_ends_with_the_last() {
        let meter = WorkMeter::new();
        meter.delivered();
        meter.delivered();
        meter.acknowledged(Duration::ZERO);
        assert!(meter.with(|seen| seen.held_since.is_some()));
        meter.acknowledged(Duration::ZERO);
        assert!(meter.with(|seen| seen.held_since.is_none()));
        let count = meter.count();
        assert_eq!(count.done, 2);
        assert!(count.busy_s <= count.at_s);
    }
}
