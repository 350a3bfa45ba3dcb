//! ack-deadline: work takes longer than a message may be held, so it is done twice.
//!
//! Deadlines that pass alone may be a consumer that hangs. Work that takes too long shows in
//! acknowledgements that come, but late.

use cloverleaf_telemetry::HistogramSnapshot;

use crate::advice::{Picture, Side};
use crate::finding::{Bound, Confidence, Fact, Measure, Prediction};
use crate::queues::QueueHistory;
use crate::rules::{GAIN_MIN, LONG_US, Patient, Rule, Sign, Variables};
use crate::units::{messages, number, percent, time};

/// Late acknowledgements that make a rule of it.
const LATE_MIN: u64 = 3;

/// So many times the deadline is a first try, where the broker does not remember how late the
/// acknowledgements were.
const DEADLINE_FACTOR: f64 = 3.0;

/// Share of the remembered messages that is to be in time, and a factor above the time of those.
const IN_TIME_SHARE: f64 = 0.95;
const ROOM: f64 = 1.25;

/// Share of the looks at which messages waited, where there is always enough to do.
const WAITING_MIN: f64 = 0.9;

pub(crate) fn see(patient: &Patient<'_>) -> Option<Sign> {
    if patient.totals.acks_late < LATE_MIN {
        // Mostly so, and cheaper than to look at a whole minute.
        return None;
    }
    let window = patient.history.window(patient.now_us, LONG_US);
    let counters = &window.flow.counters;
    let (late, timeouts) = (counters.acks_late, counters.timeouts);
    // Redeliveries are what it costs: without them somebody only acknowledges twice.
    if late < LATE_MIN || timeouts < LATE_MIN {
        return None;
    }
    let done = counters.acks + late;
    let all = done as f64 / counters.acks.max(1) as f64;
    if all < GAIN_MIN {
        return None;
    }
    let queue = patient.queue.map(|queue| &queue.queue);
    // Its own: others of the queue may have asked for another one.
    let consumers = queue.map_or(&[][..], |queue| &queue.consumers);
    let own = consumers
        .iter()
        .filter(|it| it.connection == patient.connection);
    let deadline_us = own.filter_map(|it| it.deadline_us).min();
    let deadline_us = deadline_us.map(|us| us as f64);
    let longest_us = queue.and_then(|queue| queue.deadline_us_max);
    let longest_us = longest_us.map_or(f64::INFINITY, |us| us as f64);
    let ages = &window.flow.histograms.overdue_ack_us;
    let longer = deadline_us.map(|us| Longer::of(us, longest_us, ages));
    let acks = counters.acks.max(1) as f64;
    // The gain of the longer deadline; where even the longest brings none, fewer messages at a time
    // may bring all there is.
    let in_time = longer.as_ref().and_then(|it| it.in_time);
    let in_time = in_time.map(|share| counters.acks as f64 + late as f64 * share);
    let in_time = in_time.filter(|it| *it >= GAIN_MIN * acks);
    let wanted = in_time.unwrap_or(done as f64);
    let has_queue = |it: &QueueHistory| it.waiting_share() >= WAITING_MIN;
    let always_waits = patient.queue.is_some_and(has_queue);
    let bound = match in_time {
        Some(_) if always_waits => Bound::Exact,
        _ => Bound::AtMost,
    };
    let rate = window.per_second(counters.acks);
    let after = wanted * 1e6 / window.span_us.max(1) as f64;
    let then = match (in_time, &longer) {
        (Some(in_time), Some(longer)) => {
            format!("{} of them within {}", number(in_time), time(longer.us))
        }
        _ => "all of them".to_owned(),
    };
    let arithmetic = format!(
        "{} of {} pieces of work were done in time and count = {}/s; {then} = {}/s{}",
        number(counters.acks as f64),
        number(done as f64),
        number(rate),
        number(after),
        if always_waits {
            ""
        } else {
            ", if as many messages come"
        }
    );
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = Prediction::of_rate(measure, rate, after, arithmetic);
    let prediction = Prediction {
        // Also where none at all was in time.
        gain: wanted / acks,
        ..prediction.bounded(bound)
    };
    let mut evidence = vec![
        Fact::new(
            "timeouts",
            timeouts as f64,
            format!(
                "{} deliveries were not acknowledged in time{}",
                number(timeouts as f64),
                deadline_us.map_or(String::new(), |us| format!(", which is {}", time(us)))
            ),
        ),
        Fact::new(
            "late_acks",
            late as f64,
            format!(
                "{} acknowledgements came too late: {} of the work counts for nothing",
                number(late as f64),
                percent(late as f64 / done as f64)
            ),
        ),
    ];
    if !ages.is_empty() {
        let (half_us, most_us) = (ages.quantile(0.5), ages.quantile(IN_TIME_SHARE));
        evidence.push(Fact::new(
            "overdue_ack_us",
            most_us as f64,
            format!(
                "{} from delivery to a late acknowledgement on the median, {} at most, but for {}",
                time(half_us as f64),
                time(most_us as f64),
                percent(1.0 - IN_TIME_SHARE)
            ),
        ));
    }
    if counters.redeliveries > 0 {
        evidence.push(Fact::new(
            "redeliveries",
            counters.redeliveries as f64,
            format!("{} came here again", messages(counters.redeliveries as f64)),
        ));
    }
    let mut variables = Variables::new();
    let mut unseen = vec!["how long of it a message has waited in the client".to_owned()];
    if let Some(longer) = &longer {
        variables.insert("deadline_s", longer.us / 1e6);
        variables.insert("deadline_ms", longer.us / 1e3);
        unseen.extend(longer.unseen());
    }
    variables.insert("credit", 1.0);
    Some(Sign {
        picture: Picture::Usual,
        rule: Rule::AckDeadline,
        side: Side::Consumer,
        confidence: Confidence::High,
        cause: "The consumer's work takes longer than it may hold a message, so messages go to \
                others, too, and are worked on again."
            .to_owned(),
        evidence,
        window_us: window.span_us,
        prediction,
        unseen,
        variables,
        place: patient.place(),
    })
}

/// A longer deadline.
struct Longer {
    us: f64,
    /// The longest that there may be.
    longest_us: f64,
    /// Share of the late acknowledgements that come in time then, if that is known.
    in_time: Option<f64>,
}

impl Longer {
    /// Instead of this one, no longer than that, for acknowledgements that took so long.
    fn of(deadline_us: f64, longest_us: f64, ages: &HistogramSnapshot) -> Longer {
        let is_known = ages.count() >= LATE_MIN;
        let wanted_us = if is_known {
            ROOM * ages.quantile(IN_TIME_SHARE) as f64
        } else {
            DEADLINE_FACTOR * deadline_us
        };
        // Whole seconds, as some libraries want them, if that is not less than now.
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
            longest_us,
            in_time: is_known.then_some(in_time),
        }
    }

    fn unseen(&self) -> Option<String> {
        match self.in_time {
            None => Some(
                "how late the acknowledgements were: the longer deadline is a first try".to_owned(),
            ),
            Some(share) if share < IN_TIME_SHARE => Some(format!(
                "how to do the rest in time: this broker allows no deadline longer than {}",
                time(self.longest_us)
            )),
            Some(_) => None,
        }
    }
}
