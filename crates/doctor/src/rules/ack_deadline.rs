//! ack-deadline: work takes longer than the acknowledgement deadline, so it is done twice.
//!
//! Timeouts alone may mean a consumer that hangs. Work that takes too long shows in
//! acknowledgements that do come, but late.

use cloverleaf_telemetry::HistogramSnapshot;

use crate::finding::{Bound, Measure, Prediction};
use crate::queues::QueueHistory;
use crate::rules::{ConnectionView, GAIN_MIN, LONG_US, Sign};
use crate::templates::TEMPLATES;

/// Minimum late acknowledgements for a sign.
const LATE_MIN: u64 = 3;

/// Factor by which a longer deadline is advised, if the broker has not recorded how late the
/// acknowledgements were.
const DEADLINE_FACTOR: f64 = 3.0;

/// The advised deadline covers this share of the recorded messages, times a margin.
const IN_TIME_SHARE: f64 = 0.95;
const ROOM: f64 = 1.25;

/// Share of the observations with waiting messages, from which consumers always have enough to do.
const WAITING_MIN: f64 = 0.9;

pub(crate) fn see(view: &ConnectionView<'_>) -> Option<Sign> {
    if view.totals.acks_late < LATE_MIN {
        // The most frequent case, and cheaper than computing the window of a minute.
        return None;
    }
    let window = view.history.window(view.now_us, LONG_US);
    let counters = &window.flow.counters;
    let (late, timeouts) = (counters.acks_late, counters.timeouts);
    // Redeliveries are the cost. Without them a client only acknowledges messages twice.
    if late < LATE_MIN || timeouts < LATE_MIN {
        return None;
    }
    let done = counters.acks + late;
    let all = done as f64 / counters.acks.max(1) as f64;
    if all < GAIN_MIN {
        return None;
    }
    let queue = view.queue.map(|queue| &queue.queue);
    // The deadline of its own consumers: others of the queue may have asked for another one.
    let consumers = queue.map_or(&[][..], |queue| &queue.consumers);
    let own = consumers
        .iter()
        .filter(|it| it.connection == view.connection);
    let deadline_us = own.filter_map(|it| it.deadline_us).min();
    let deadline_us = deadline_us.map(|us| us as f64);
    let longest_us = queue.and_then(|queue| queue.deadline_us_max);
    let longest_us = longest_us.map_or(f64::INFINITY, |us| us as f64);
    let ages = &window.flow.histograms.overdue_ack_us;
    let longer = deadline_us.map(|us| Longer::of(us, longest_us, ages));
    let acks = counters.acks.max(1) as f64;
    // The gain of the longer deadline. If even the longest has none, fewer messages in flight may
    // bring the whole gain.
    let in_time = longer.as_ref().and_then(|it| it.in_time);
    let in_time = in_time.map(|share| counters.acks as f64 + late as f64 * share);
    let in_time = in_time.filter(|it| *it >= GAIN_MIN * acks);
    let wanted = in_time.unwrap_or(done as f64);
    let has_queue = |it: &QueueHistory| it.waiting_share() >= WAITING_MIN;
    let always_waits = view.queue.is_some_and(has_queue);
    let bound = match in_time {
        Some(_) if always_waits => Bound::Exact,
        _ => Bound::AtMost,
    };
    let rate = window.per_second(counters.acks);
    let after = wanted * 1e6 / window.span_us.max(1) as f64;
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = Prediction {
        // Also correct if none was in time.
        gain: wanted / acks,
        ..Prediction::new(measure, rate, after).bounded(bound)
    };
    let overdue_us = |share| (!ages.is_empty()).then(|| ages.quantile(share) as f64);
    let redeliveries = Some(counters.redeliveries as f64).filter(|it| *it > 0.0);
    let share = longer.as_ref().and_then(|it| it.in_time);
    let is_too_short = share.is_some_and(|share| share < IN_TIME_SHARE);
    let numbers = [
        ("acks", counters.acks as f64),
        ("done", done as f64),
        ("timeouts", timeouts as f64),
        ("late_acks", late as f64),
        ("late_share", late as f64 / done as f64),
        ("rest_share", 1.0 - IN_TIME_SHARE),
    ];
    let mut sign = Sign::new(&TEMPLATES.ack_deadline, prediction, window.span_us, numbers)
        .with("in_time", in_time)
        .when("is_all", in_time.is_none())
        .when("always_waits", always_waits)
        .with("deadline_us", deadline_us)
        .with("overdue_half_us", overdue_us(0.5))
        .with("overdue_ack_us", overdue_us(IN_TIME_SHARE))
        .with("redeliveries", redeliveries)
        .when("is_first_try", longer.is_some() && share.is_none())
        .with("longest_us", is_too_short.then_some(longest_us))
        .advise([("credit", 1.0)])
        .at(view.place());
    if let Some(longer) = longer {
        let advised = [
            ("deadline_s", longer.us / 1e6),
            ("deadline_ms", longer.us / 1e3),
        ];
        sign = sign.with("longer_us", longer.us).advise(advised);
    }
    Some(sign)
}

/// A longer deadline.
struct Longer {
    us: f64,
    /// Share of the late acknowledgements that would come in time then, if known.
    in_time: Option<f64>,
}

impl Longer {
    /// A longer deadline than `deadline_us`, at most `longest_us`, for acknowledgements that took
    /// `ages`.
    fn of(deadline_us: f64, longest_us: f64, ages: &HistogramSnapshot) -> Longer {
        let is_known = ages.count() >= LATE_MIN;
        let wanted_us = if is_known {
            ROOM * ages.quantile(IN_TIME_SHARE) as f64
        } else {
            DEADLINE_FACTOR * deadline_us
        };
        // Whole seconds, as some libraries require, if that is not less than the current deadline.
        let us = (wanted_us.max(deadline_us) / 1e6).ceil() * 1e6;
        let us = us.min(longest_us.max(deadline_us));
        let whole_us = (us / 1e6).floor() * 1e6;
        let us = if whole_us >= deadline_us {
            whole_us
        } else {
            us
        };
        let in_time = ages.count_at_most(us as u64) as f64 / ages.count().max(1) as f64;
        Longer {
            us,
            in_time: is_known.then_some(in_time),
        }
    }
}
