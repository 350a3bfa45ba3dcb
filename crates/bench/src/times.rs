//! The times of a measurement: when it begins, and when its warm-up ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::plan::{Amount, Plan};

/// How often the end of the warm-up is checked while consumers empty a topic: they may end it at
/// any moment.
const LOOK_AT_FILLED: Duration = Duration::from_millis(2);

/// The end of a warm-up, which threads share.
#[derive(Debug, Clone)]
pub struct WarmUpEnd(Arc<End>);

#[derive(Debug)]
struct End {
    /// The time of the end, in nanoseconds of the measurement's clock.
    ns: AtomicU64,
    /// The warm-up also ends after this many more messages; `u64::MAX`: the number does not matter.
    messages_left: AtomicU64,
}

impl WarmUpEnd {
    /// A warm-up that ends at this time of the measurement's clock.
    pub(crate) fn at(ns: u64) -> WarmUpEnd {
        WarmUpEnd(Arc::new(End {
            ns: AtomicU64::new(ns),
            messages_left: AtomicU64::new(u64::MAX),
        }))
    }

    /// The time of the end, in nanoseconds of the measurement's clock.
    #[inline]
    pub(crate) fn ns(&self) -> u64 {
        self.0.ns.load(Ordering::Relaxed)
    }

    /// Has the warm-up also end when this many messages were received.
    fn or_after(&self, messages: u64) {
        self.0.messages_left.store(messages, Ordering::Relaxed);
    }

    /// Counts a received message. Returns when the warm-up ends, which is `now_ns` with the last
    /// message of the warm-up.
    #[inline]
    pub(crate) fn came(&self, now_ns: u64) -> u64 {
        let end_ns = self.ns();
        if now_ns < end_ns {
            self.came_within(now_ns, end_ns)
        } else {
            end_ns
        }
    }

    #[cold]
    fn came_within(&self, now_ns: u64, end_ns: u64) -> u64 {
        let End { ns, messages_left } = &*self.0;
        if messages_left.load(Ordering::Relaxed) == u64::MAX {
            return end_ns;
        }
        match messages_left.fetch_sub(1, Ordering::Relaxed) {
            0 | 1 => {
                ns.store(now_ns, Ordering::Relaxed);
                now_ns
            }
            _ => end_ns,
        }
    }
}

/// The times of one measurement, in nanoseconds of one clock.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    pub(crate) clock: Clock,
    /// When the first message is sent.
    pub(crate) start_ns: u64,
    /// Messages that were due before this do not count. If the topic was filled before the
    /// measurement, messages that were received before this do not count.
    pub(crate) warm_up_end: WarmUpEnd,
    /// Whether the topic was filled before the measurement.
    pub(crate) is_filled: bool,
}

impl Times {
    /// The times of a measurement that begins at `start_ns`.
    pub(crate) fn new(clock: Clock, start_ns: u64, plan: &Plan, is_filled: bool) -> Times {
        Times {
            clock,
            start_ns,
            warm_up_end: WarmUpEnd::at(start_ns + (plan.warm_up_s * 1e9) as u64),
            is_filled,
        }
    }

    /// For a topic that was filled with `put_in` messages. Consumers that are much faster than
    /// producers would empty it within the warm-up, so the warm-up ends after its share of them.
    pub(crate) fn with_messages(self, put_in: Option<u64>, plan: &Plan) -> Times {
        let share = match plan.amount {
            Amount::Seconds(seconds) => plan.warm_up_s / (plan.warm_up_s + seconds),
            Amount::Messages(_) => 0.0,
        };
        if let Some(put_in) = put_in {
            self.warm_up_end.or_after((put_in as f64 * share) as u64);
        }
        self
    }

    /// When the warm-up ends.
    pub(crate) fn measured_from_ns(&self) -> u64 {
        self.warm_up_end.ns()
    }

    /// The time from now until then; zero if it is past.
    pub(crate) fn until(&self, ns: u64) -> Duration {
        Duration::from_nanos(ns.saturating_sub(self.clock.now_ns()))
    }

    /// How long to wait until the next check of the measurement: not beyond the end of the warm-up,
    /// so that costs count from exactly then on.
    pub(crate) fn next_look(&self, most: Duration) -> Duration {
        let left = self.until(self.measured_from_ns());
        match self.is_filled {
            _ if left.is_zero() => most,
            true => left.min(LOOK_AT_FILLED),
            false => left.min(most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::outcome;

    const SECOND: u64 = 1_000_000_000;
    const LOOK: Duration = Duration::from_millis(50);

    fn plan(warm_up_s: f64, seconds: f64) -> Plan {
        Plan {
            warm_up_s,
            amount: Amount::Seconds(seconds),
            ..outcome("a", 1).plan
        }
    }

    #[test]
    fn the_end_of_the_warm_up_is_looked_at_when_it_is() {
        let plan = plan(1.0, 1.0);
        let clock = Clock::new();
        let times = Times::new(clock, clock.now_ns() + 60 * SECOND, &plan, false);
        assert_eq!(times.next_look(LOOK), LOOK);
        let times = Times::new(clock, 0, &plan, true);
        let left = times.next_look(Duration::MAX);
        assert!(left <= Duration::from_secs(1), "{left:?}");
        let begun = Clock::new().another(clock.to_unix_ns(0) - 5 * SECOND, 0);
        let times = Times::new(begun, 0, &plan, true);
        assert_eq!(times.next_look(LOOK), LOOK, "it was before");
    }

    #[test]
    fn a_warm_up_has_no_more_than_its_share_of_the_messages() {
        let plan = plan(1.0, 3.0);
        let times = Times::new(Clock::new(), SECOND, &plan, true).with_messages(Some(400), &plan);
        let end = &times.warm_up_end;
        (0..99).for_each(|more| assert_eq!(end.came(SECOND + more), 2 * SECOND));
        assert_eq!(end.came(SECOND + 700), SECOND + 700, "the hundredth");
        assert_eq!(end.came(SECOND + 800), SECOND + 700, "once");
        assert_eq!(times.measured_from_ns(), SECOND + 700);
        let slow = Times::new(Clock::new(), SECOND, &plan, true).with_messages(Some(400), &plan);
        assert_eq!(
            slow.warm_up_end.came(2 * SECOND),
            2 * SECOND,
            "its time was over before"
        );
        let other = Times::new(Clock::new(), SECOND, &plan, false).with_messages(None, &plan);
        (0..500).for_each(|_| assert_eq!(other.warm_up_end.came(SECOND), 2 * SECOND));
    }
}
