//! too-many-in-flight: so many requests are on their way that they wait for each other, until the
//! client loses its patience. More of them bring nothing: the rate is what it is.
//!
//! Deep pipelines are no fault. They are one when somebody gives up waiting: a client that leaves
//! with requests that are not answered, or is answered with errors.

use crate::advice::Side;
use crate::finding::{Confidence, Fact, Prediction};
use crate::rules::{EVENTS_MIN, GAIN_MIN, LONG_US, Patient, Rule, Sign, Variables};
use crate::units::{number, time};

/// Requests in flight on the mean.
const IN_FLIGHT_MIN: f64 = 50.0;

/// How long a request waits at least.
const SERVICE_US_MIN: f64 = 100_000.0;

/// How many times more requests are in flight than the rate needs.
const EXCESS_MIN: f64 = 4.0;

/// Requests that were given up, or refused, in a minute.
const TROUBLE_MIN: u64 = 3;

/// Room for what is irregular, above rate × latency.
const ROOM: f64 = 2.0;

/// What is seen of a connection whose client has left `abandoned` requests unanswered lately.
pub(crate) fn see(patient: &Patient<'_>, abandoned: u64) -> Option<Sign> {
    let services = &patient.short.flow.histograms.service_us;
    let rtt_us = patient.rtt_us().unwrap_or_default();
    let publishes = patient.short.flow.counters.publishes;
    let service_us = services.mean();
    let rate = patient.short.per_second(publishes);
    let in_flight = rate * service_us / 1e6;
    if services.count() < EVENTS_MIN / 2
        || publishes < EVENTS_MIN
        || service_us < SERVICE_US_MIN
        || in_flight < IN_FLIGHT_MIN
    {
        return None;
    }
    let window = patient.history.window(patient.now_us, LONG_US);
    let trouble = abandoned + window.flow.counters.errors;
    if trouble < TROUBLE_MIN {
        return None;
    }
    // What a request takes that finds nobody before it.
    let alone_us = rtt_us + window.flow.histograms.service_us.quantile(0.01) as f64;
    let needed = (rate * alone_us / 1e6 * ROOM).ceil().max(1.0);
    if in_flight < EXCESS_MIN * needed {
        return None;
    }
    let after_us = (needed * 1e6 / rate).max(alone_us);
    let arithmetic = format!(
        "now {} in flight at {}/s = {} for each; with {} in flight at the same rate {}",
        number(in_flight),
        number(rate),
        time(service_us + rtt_us),
        number(needed),
        time(after_us)
    );
    let prediction = Prediction::of_time(service_us + rtt_us, after_us, arithmetic);
    if prediction.gain < GAIN_MIN {
        return None;
    }
    let evidence = vec![
        Fact::new(
            "in_flight",
            in_flight,
            format!("{} requests wait for an answer", number(in_flight)),
        ),
        Fact::new(
            "service_us",
            service_us,
            format!(
                "{} until a request is answered; {} when nothing is before it",
                time(service_us),
                time(alone_us)
            ),
        ),
        Fact::new(
            "abandoned",
            trouble as f64,
            format!(
                "{} requests were given up or refused",
                number(trouble as f64)
            ),
        ),
    ];
    Some(Sign {
        rule: Rule::TooManyInFlight,
        side: Side::Producer,
        confidence: Confidence::Medium,
        cause: "The producer has so many requests in flight that they wait for each other until \
                they time out."
            .to_owned(),
        evidence,
        window_us: patient.short.span_us,
        prediction,
        unseen: vec!["after how long the client gives a request up".to_owned()],
        variables: Variables::from([("in_flight", needed)]),
        place: None,
    })
}
