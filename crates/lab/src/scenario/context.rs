//! The surroundings of a client in a scenario: where the broker is, when to end, and the meter that
//! counts its work.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cloverleaf_bench::Stop;

use crate::broker::Addresses;

/// A client, while it works.
#[derive(Debug)]
pub(crate) struct ClientContext {
    /// Where it reaches the broker.
    pub(crate) addresses: Addresses,
    /// When to end.
    pub(crate) stop: Stop,
    /// The meter of its work.
    pub(crate) meter: WorkMeter,
    /// A name for topics and queues that nobody else has.
    pub(crate) name: String,
    /// The certificate of the authority that signed the broker's, if it has one: PEM.
    pub(crate) authority: Option<String>,
}

impl ClientContext {
    /// The same for one of several clients.
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
    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.is_set()
    }
}

/// The work of clients, all together.
#[derive(Debug)]
pub(crate) struct WorkMeter {
    begun: Instant,
    seen: Mutex<WorkState>,
}

#[derive(Debug, Default)]
struct WorkState {
    count: WorkDone,
    /// Messages in somebody's hands, and since when there are any.
    held: u64,
    held_since: Option<Instant>,
}

/// The work done until some moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct WorkDone {
    /// Messages that were published and answered, or worked on and acknowledged.
    pub(crate) done: u64,
    /// How long they took, all together, in seconds.
    pub(crate) taken_s: f64,
    /// How long the clock ran, in seconds.
    pub(crate) at_s: f64,
    /// How long there was any message in hand, in seconds.
    pub(crate) busy_s: f64,
    /// CPU time that the broker took for it, in seconds, where that was asked for.
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

    /// A message is done, which took so long.
    pub(crate) fn done(&self, took: Duration) {
        self.with(|seen| {
            seen.count.done += 1;
            seen.count.taken_s += took.as_secs_f64();
        });
    }

    /// A message has come into somebody's hands.
    pub(crate) fn took(&self) {
        self.with(|seen| {
            seen.held += 1;
            seen.held_since.get_or_insert_with(Instant::now);
        });
    }

    /// One that was taken is done.
    pub(crate) fn gave(&self, took: Duration) {
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
    /// The work done after an earlier moment.
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

    /// Messages per second of those in which there was work.
    pub(crate) fn per_busy_second(&self) -> f64 {
        if self.busy_s > 0.0 {
            self.done as f64 / self.busy_s
        } else {
            self.per_second()
        }
    }

    /// Microseconds of the broker's CPU time for one.
    pub(crate) fn cost_us(&self) -> f64 {
        self.cpu_s * 1e6 / self.done.max(1) as f64
    }

    /// Microseconds for one.
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
        meter.took();
        meter.took();
        meter.gave(Duration::ZERO);
        assert!(meter.with(|seen| seen.held_since.is_some()));
        meter.gave(Duration::ZERO);
        assert!(meter.with(|seen| seen.held_since.is_none()));
        let count = meter.count();
        assert_eq!(count.done, 2);
        assert!(count.busy_s <= count.at_s);
    }
}
