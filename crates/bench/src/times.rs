//! Since when something is done, and since when it counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::meanwhile::Mark;
use crate::plan::{Amount, Plan};

/// How often a topic that is emptied is looked at during the warm-up, which may end at any moment.
const LOOK_AT_FILLED: Duration = Duration::from_millis(2);

/// The end of a warm-up, which several threads look at.
#[derive(Debug, Clone, Default)]
pub struct WarmUpEnd(Arc<AtomicU64>);

impl WarmUpEnd {
    /// When it is, in nanoseconds of the measurement's clock.
    #[inline]
    pub(crate) fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ns(&self, ns: u64) {
        self.0.store(ns, Ordering::Relaxed);
    }
}

/// Since when something is done, by one clock.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    pub(crate) clock: Clock,
    /// The first message.
    pub(crate) start_ns: u64,
    /// What was to be sent before does not count; if the topic was filled before: what comes
    /// before.
    pub(crate) warm_up_end: WarmUpEnd,
    /// What is consumed was put in before.
    pub(crate) is_filled: bool,
    /// So many messages are the warm-up of a topic that was filled, however soon they come.
    warm_up_messages: Option<u64>,
}

impl Times {
    /// A measurement that begins then.
    pub(crate) fn new(clock: Clock, start_ns: u64, plan: &Plan, is_filled: bool) -> Times {
        let warm_up_end = WarmUpEnd::default();
        warm_up_end.set_ns(start_ns + (plan.warm_up_s * 1e9) as u64);
        Times {
            clock,
            start_ns,
            warm_up_end,
            is_filled,
            warm_up_messages: None,
        }
    }

    /// So many messages were put in before. Where consumers are much faster than who filled it,
    /// they would have them all within the warm-up: it ends with its share of the messages then.
    pub(crate) fn with_messages(self, put_in: Option<u64>, plan: &Plan) -> Times {
        let share = match plan.amount {
            Amount::Seconds(seconds) => plan.warm_up_s / (plan.warm_up_s + seconds),
            Amount::Messages(_) => 0.0,
        };
        Times {
            warm_up_messages: put_in.map(|put_in| (put_in as f64 * share) as u64),
            ..self
        }
    }

    /// When it begins to count.
    pub(crate) fn measured_from_ns(&self) -> u64 {
        self.warm_up_end.ns()
    }

    /// From now until then, if that is still to come.
    pub(crate) fn until(&self, ns: u64) -> Duration {
        Duration::from_nanos(ns.saturating_sub(self.clock.now_ns()))
    }

    /// How long to wait until the measurement is looked at again: not beyond the end of the
    /// warm-up, so that costs are counted from exactly then on.
    pub(crate) fn next_look(&self, most: Duration) -> Duration {
        let left = self.until(self.measured_from_ns());
        match self.warm_up_messages {
            _ if left.is_zero() => most,
            Some(_) => left.min(LOOK_AT_FILLED),
            None => left.min(most),
        }
    }

    /// Ends the warm-up if its messages have come before its time.
    pub(crate) fn look(&self, now: &Mark) {
        let is_warm = now.at_ns >= self.measured_from_ns();
        if !is_warm
            && self
                .warm_up_messages
                .is_some_and(|messages| now.came >= messages)
        {
            self.warm_up_end.set_ns(now.at_ns.max(self.start_ns));
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
        let now = |at_ns, came| Mark {
            at_ns,
            came,
            ..Mark::default()
        };
        let times = Times::new(Clock::new(), SECOND, &plan, true).with_messages(Some(400), &plan);
        times.look(&now(SECOND + 5, 99));
        assert_eq!(times.measured_from_ns(), 2 * SECOND);
        times.look(&now(SECOND + 9, 100));
        assert_eq!(times.measured_from_ns(), SECOND + 9);
        times.look(&now(SECOND + 90, 300));
        assert_eq!(times.measured_from_ns(), SECOND + 9, "once");
        let slow = Times::new(Clock::new(), SECOND, &plan, true).with_messages(Some(400), &plan);
        slow.look(&now(2 * SECOND, 300));
        assert_eq!(slow.measured_from_ns(), 2 * SECOND);
        let other = Times::new(Clock::new(), SECOND, &plan, false).with_messages(None, &plan);
        other.look(&now(SECOND + 9, 300));
        assert_eq!(other.measured_from_ns(), 2 * SECOND);
    }
}
