//! A producer that waits for answers: the parts of its time.
//!
//! ```text
//! broker   ──answer─┐                    ┌─first byte … last byte──┐ answer
//!                   │◄────── gap ───────►│◄────── receive ────────►│◄ service ►│
//! client            └─► think, send ─────┘
//!                   gap = round trip + what the client does meanwhile (think)
//! ```
//!
//! A round begins with a publishing request that came while nothing was in flight. The broker's
//! count of requests in flight does not show whether a client waits: if the service is short, each
//! request of a pipelining client arrives after the answer to the one before. A client waits if its
//! requests never come sooner after an answer than a round trip.

use cloverleaf_telemetry::Counters;

use crate::finding::{Measure, Prediction};
use crate::rules::{ConnectionView, EVENTS_MIN};

/// How much shorter than the minimum round trip a gap may appear: the middle of a histogram's
/// bucket is at most a sixteenth off.
pub(super) const RTT_SLACK: f64 = 0.92;

/// One in this many requests may come sooner: metadata, heartbeats. A client with a timer whose
/// period is by chance close to the round trip exceeds this as soon as some requests are served
/// late.
const SOONER_SHARE: u64 = 200;

/// A client that spends more than this share of the waiting on other things has a period of its
/// own: work, a timer, a library that lingers.
const THINK_SHARE_MAX: f64 = 0.35;

/// A client that spends more than this on other things, as a share of the waiting and in
/// microseconds, may also be one that sleeps between two messages and does not wait: at the broker
/// both look the same. Programs hardly ever sleep for less.
const THINK_SHARE_SURE: f64 = 0.15;
const THINK_US_SURE: f64 = 1_500.0;

/// Minimum and maximum steps that are examined to distinguish a timer from a client that waits.
const PACE_STEPS_MIN: usize = 3;
const PACE_STEPS: usize = 12;

/// From this many steps on, two adjacent ones may be left out as outliers.
const PACE_STEPS_MANY: usize = 8;

/// Steps whose mean rounds differ by more than this factor show a change of the program's
/// behaviour.
const HABIT_TIMES: f64 = 1.5;

/// If a client waits, the means of steps differ by 0.89 times the difference between consecutive
/// rounds, scaled by the rounds in a step. This much is enough.
const WAITING_SPREAD_MIN: f64 = 0.1;

/// With a timer they differ by 0.72 times that, and by less the more rounds a step has. A larger
/// spread than this is no timer's.
const CLOCK_SPREAD_MAX: f64 = 2.2;

/// Share of the publishing requests on a connection that only publishes. The others are metadata
/// and heartbeats.
const PUBLISHING_SHARE_MIN: f64 = 0.9;

/// Means over the window, times in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) count: u64,
    /// Publishing requests per round.
    pub(crate) requests: f64,
    /// Messages per publishing request.
    pub(crate) messages: f64,
    pub(crate) gap_us: f64,
    pub(crate) receive_us: f64,
    pub(crate) service_us: f64,
    pub(crate) rtt_us: f64,
    /// The maximum number of requests that was ever in flight.
    pub(crate) in_flight_max: u64,
}

impl Rounds {
    /// The rounds of a connection, if every request of it waits for an answer.
    pub(crate) fn of(view: &ConnectionView<'_>) -> Option<Rounds> {
        let flow = &view.short.flow;
        let (counters, histograms) = (&flow.counters, &flow.histograms);
        let gaps = &histograms.request_gap_us;
        let count = gaps.count();
        let rtt_us = view.rtt_us()?;
        let publishes = counters.publishes as f64;
        if count < EVENTS_MIN
            || counters.requests_silent > 0
            || publishes < PUBLISHING_SHARE_MIN * counters.requests as f64
            || gaps.count_between(0, (RTT_SLACK * rtt_us) as u64) > count / SOONER_SHARE
        {
            return None;
        }
        Some(Rounds {
            count,
            requests: publishes / count as f64,
            messages: counters.messages_in as f64 / publishes,
            gap_us: gaps.mean(),
            receive_us: histograms.request_receive_us.mean(),
            service_us: histograms.service_us.mean(),
            rtt_us,
            in_flight_max: view.gauges.requests_in_flight_max,
        })
    }

    /// Whether requests follow answers, rather than a timer.
    ///
    /// ```text
    /// clock    |----|----|-----|---|----|----|     delays do not add up
    /// waiting  |----|----|-----|----|----|----|    each delay shifts all later ones
    /// ```
    ///
    /// In both cases rounds differ because of the network and the machine. But with a timer a late
    /// request is followed by a shorter round: over many rounds the differences cancel out, and the
    /// means of steps are much closer to each other than independent rounds would give. For a
    /// client that waits, they are as far apart as independent rounds give, or farther. Neither the
    /// regularity of the rounds nor the timer's period matters.
    pub(crate) fn is_waiting(view: &ConnectionView<'_>) -> bool {
        let steps = view.history.steps(PACE_STEPS);
        let counters = steps.iter().map(|step| step.flow.counters);
        let steps: Vec<_> = counters.filter(|it| it.rounds > 0).collect();
        let steps = of_one_habit(&steps);
        // If a request comes before the answer to the last, a round is twice as long, and requests
        // that come in bunches make one round. So a timer may show in the rounds or in the
        // requests.
        let by_rounds = steps.iter().map(|it| (it.rounds_us, it.rounds));
        let by_requests = steps.iter().map(|it| (it.rounds_us, it.publishes));
        let rounds: u64 = steps.iter().map(|it| it.rounds).sum();
        let changes_us: u64 = steps.iter().map(|it| it.round_changes_us).sum();
        if steps.len() < PACE_STEPS_MIN {
            return false;
        }
        // At least 1, because times are whole microseconds.
        let change_us = (changes_us as f64 / rounds as f64).max(1.0);
        let per_step = rounds as f64 / steps.len() as f64;
        let least = WAITING_SPREAD_MIN.max(CLOCK_SPREAD_MAX / per_step.sqrt()) * change_us;
        let publishes: u64 = steps.iter().map(|it| it.publishes).sum();
        let requests = publishes as f64 / rounds as f64;
        let is_wide = |sums: Vec<(u64, u64)>, per_round: f64| {
            spread(&sums, per_round).is_some_and(|spread| spread > least)
        };
        is_wide(by_rounds.collect(), 1.0) && is_wide(by_requests.collect(), requests)
    }

    /// Whether there is never more than one request in flight.
    pub(crate) fn is_one_by_one(&self) -> bool {
        // A few requests of other kinds come in between.
        self.requests < 1.05
    }

    /// Whether the client does so little besides waiting that it certainly waits.
    pub(crate) fn is_all_waiting(&self) -> bool {
        let sure_us = (THINK_SHARE_SURE * self.wait_us()).max(THINK_US_SURE);
        self.think_us() <= sure_us.min(THINK_SHARE_MAX * self.wait_us())
    }

    /// Microseconds from a request to the next.
    pub(crate) fn cycle_us(&self) -> f64 {
        self.gap_us + self.receive_us + self.service_us
    }

    /// The part of the cycle that the network and the broker take.
    pub(crate) fn wait_us(&self) -> f64 {
        self.rtt_us + self.service_us
    }

    /// The part of the cycle that the client takes: its own work, a timer, a library that lingers.
    pub(crate) fn think_us(&self) -> f64 {
        (self.gap_us - self.rtt_us).max(0.0)
    }

    /// The prediction, if this part of each round need not be waited for any more.
    pub(crate) fn without(&self, waited_us: f64) -> Prediction {
        let cycle_us = self.cycle_us();
        let after = self.rate() * cycle_us / (cycle_us - waited_us).max(1.0);
        Prediction::new(Measure::ConnectionMessagesPerSecond, self.rate(), after)
    }

    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        self.requests * self.messages * 1e6 / self.cycle_us().max(1.0)
    }
}

/// The latest of these steps (oldest first), back to one whose rounds were of another length: a
/// change of the timer's period must not count as irregularity.
fn of_one_habit(steps: &[Counters]) -> &[Counters] {
    let mean_us = |step: &Counters| step.rounds_us as f64 / step.rounds as f64;
    let Some(latest) = steps.last() else {
        return steps;
    };
    let is_other = |step: &Counters| {
        let times = mean_us(step) / mean_us(latest).max(1.0);
        !(1.0 / HABIT_TIMES..=HABIT_TIMES).contains(&times)
    };
    // The step after it may have rounds of both lengths.
    let first = steps.iter().rposition(is_other).map_or(0, |it| it + 2);
    &steps[first.min(steps.len())..]
}

/// The standard deviation of the means of steps, times the square root of the rounds in a step. A
/// step is a sum of times and a count of events, of which `per_round` make a round.
fn spread(steps: &[(u64, u64)], per_round: f64) -> Option<f64> {
    let all = deviation(steps.iter(), per_round)?;
    if steps.len() < PACE_STEPS_MANY {
        return Some(all);
    }
    let without = (0..steps.len() - 1).filter_map(|left_out| {
        let kept = steps.iter().enumerate();
        let kept = kept.filter(|(at, _)| *at != left_out && *at != left_out + 1);
        deviation(kept.map(|(_, step)| step), per_round)
    });
    without.min_by(f64::total_cmp)
}

fn deviation<'a>(
    steps: impl Iterator<Item = &'a (u64, u64)> + Clone,
    per_round: f64,
) -> Option<f64> {
    let count: u64 = steps.clone().map(|step| step.1).sum();
    let sum_us: u64 = steps.clone().map(|step| step.0).sum();
    let mean_us = sum_us as f64 / count as f64;
    let squares = steps.clone().filter(|step| step.1 > 0).map(|step| {
        let off_us = (step.0 as f64 / step.1 as f64 - mean_us) * per_round;
        step.1 as f64 / per_round * off_us * off_us
    });
    let degrees = steps.count().checked_sub(1).filter(|it| *it > 0)?;
    Some((squares.sum::<f64>() / degrees as f64).sqrt())
}
