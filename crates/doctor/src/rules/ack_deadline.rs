//! ack-deadline: work takes longer than a message may be held, so it is done twice.
//!
//! Deadlines that pass alone may be a consumer that hangs. What tells work that takes too long is
//! that the acknowledgements come, but late.

use crate::advice::Side;
use crate::finding::{Confidence, Fact, Measure, Prediction};
use crate::rules::{GAIN_MIN, LONG_US, Patient, Rule, Sign, Variables};
use crate::units::{number, percent, time};

/// Late acknowledgements that make a rule of it.
const LATE_MIN: u64 = 3;

/// So many times the deadline is a first try: how long the work takes is not known from here.
const DEADLINE_FACTOR: f64 = 3.0;

/// A broker of NSQ lets no client have a longer one, unless it is told otherwise.
const DEADLINE_US_MAX: f64 = 900_000_000.0;

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
    let (rate, after) = (window.per_second(counters.acks), window.per_second(done));
    let gain = done as f64 / counters.acks.max(1) as f64;
    if gain < GAIN_MIN {
        return None;
    }
    let deadline_us = patient.queue.and_then(|queue| queue.queue.deadline_us);
    let deadline_us = deadline_us.map(|us| us as f64);
    let arithmetic = format!(
        "{} of {} pieces of work were done in time and count = {}/s; all of them, at best = {}/s",
        number(counters.acks as f64),
        number(done as f64),
        number(rate),
        number(after)
    );
    let mut prediction = Prediction::of_rate(
        Measure::ConnectionMessagesPerSecond,
        rate,
        after,
        arithmetic,
    );
    prediction.gain = gain;
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
    if counters.redeliveries > 0 {
        evidence.push(Fact::new(
            "redeliveries",
            counters.redeliveries as f64,
            format!(
                "{} messages came here again",
                number(counters.redeliveries as f64)
            ),
        ));
    }
    let mut variables = Variables::new();
    if let Some(us) = deadline_us {
        let longer_us = (DEADLINE_FACTOR * us).min(DEADLINE_US_MAX.max(us));
        variables.insert("deadline_s", (longer_us / 1e6).ceil());
        variables.insert("deadline_ms", (longer_us / 1e3).ceil());
    }
    variables.insert("credit", 1.0);
    Some(Sign {
        rule: Rule::AckDeadline,
        side: Side::Consumer,
        confidence: Confidence::High,
        cause: "The consumer's work takes longer than it may hold a message, so messages go to \
                others, too, and are worked on again."
            .to_owned(),
        evidence,
        window_us: window.span_us,
        prediction,
        unseen: vec![
            "how long the work takes: a longer deadline is a first try, and a message may have \
             waited in the client before"
                .to_owned(),
        ],
        variables,
        place: patient.place(),
    })
}
