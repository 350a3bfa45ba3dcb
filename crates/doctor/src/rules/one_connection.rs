//! one-connection: the requests in flight on a connection are at their limit. Its rate is that
//! limit per round trip, even if the program could send more.
//!
//! The broker cannot see how many requests are on the network. It sees one of three: requests
//! come in bunches of always the same number, a round trip after the answers to the last bunch; or
//! records grow old in the client before they are sent, while the connection carries a few
//! requests per round trip; or the limit is one request, and each is a full batch (`full_batch`).

use cloverleaf_telemetry::HistogramSnapshot;

use crate::finding::{Bound, Measure};
use crate::rules::full_batch;
use crate::rules::rounds::Rounds;
use crate::rules::{ConnectionView, EVENTS_MIN, Sign, WAIT_US_MIN, extremes, worthwhile};
use crate::templates::{TEMPLATES, Template};

/// Minimum for more than a single request in flight, and the maximum of a plausible limit.
const IN_FLIGHT_MIN: f64 = 1.8;
const IN_FLIGHT_MAX: f64 = 32.0;

/// Maximum ratio of the bunches of different steps.
const BUNCH_SPREAD_MAX: f64 = 1.25;

/// Records older than this many round trips, and than this many microseconds, are queued in the
/// client.
const AGE_ROUND_TRIPS_MIN: f64 = 4.0;
const AGE_US_MIN: f64 = 50_000.0;

/// Minimum ratio of the oldest to the youngest age of queued records.
const AGE_SPREAD_MIN: f64 = 2.0;

/// While records are queued, each request has as many messages as allowed: at least this mean, and
/// a limited ratio of the largest tenth to the smallest. If sizes vary, no records are queued, and
/// the program sets old timestamps itself.
const FULL_MESSAGES_MIN: f64 = 2.0;
const FULL_SPREAD_MAX: f64 = 1.3;

/// Maximum share of the time in which a request is being received: above it, bandwidth is the
/// limit.
const RECEIVING_SHARE_MAX: f64 = 0.5;

/// Factor by which more requests in flight, or connections, are advised.
const FACTOR: f64 = 4.0;

pub(crate) fn see(view: &ConnectionView<'_>, rounds: Option<&Rounds>) -> Option<Sign> {
    rounds
        .and_then(|rounds| see_bunches(view, rounds))
        .or_else(|| rounds.and_then(|rounds| full_batch::see(view, rounds)))
        .or_else(|| see_old_records(view))
}

fn see_bunches(view: &ConnectionView<'_>, rounds: &Rounds) -> Option<Sign> {
    let (wait_us, think_us) = (rounds.wait_us(), rounds.think_us());
    if !(IN_FLIGHT_MIN..=IN_FLIGHT_MAX).contains(&rounds.requests)
        || wait_us < WAIT_US_MIN
        || !rounds.is_all_waiting()
        || !is_constant(view)
        || !Rounds::is_waiting(view)
    {
        return None;
    }
    let cycle_us = rounds.cycle_us();
    let factor = FACTOR.min(cycle_us / think_us.max(1.0));
    let limit = Limit {
        in_flight: rounds.requests,
        rate: rounds.rate(),
        cycle_us,
        rtt_us: rounds.rtt_us,
        factor,
    };
    let sign = limit.sign(&TEMPLATES.one_connection_bunches, view)?;
    Some(sign.with("gap_us", rounds.gap_us))
}

/// Whether each step had the same number of requests per round.
fn is_constant(view: &ConnectionView<'_>) -> bool {
    let per_round: Vec<f64> = view
        .history
        .steps(3)
        .iter()
        .filter(|step| step.flow.histograms.request_gap_us.count() > 0)
        .map(|step| {
            let rounds = step.flow.histograms.request_gap_us.count();
            step.flow.counters.publishes as f64 / rounds as f64
        })
        .collect();
    let extremes = extremes(per_round.iter().copied());
    per_round.len() >= 2 && extremes.is_some_and(|(least, most)| most <= BUNCH_SPREAD_MAX * least)
}

/// Whether each step had the same number of requests: a limit applies all the time.
fn is_steady(view: &ConnectionView<'_>) -> bool {
    let steps = view.history.steps(3);
    let rates = steps
        .iter()
        .map(|step| step.per_second(step.flow.counters.publishes));
    steps.len() >= 2
        && extremes(rates).is_some_and(|(least, most)| most <= BUNCH_SPREAD_MAX * least)
}

/// Whether requests have as many messages as allowed.
pub(super) fn are_full(sizes: &HistogramSnapshot) -> bool {
    sizes.mean() >= FULL_MESSAGES_MIN
        && sizes.quantile(0.9) as f64 <= FULL_SPREAD_MAX * sizes.quantile(0.1) as f64
}

fn see_old_records(view: &ConnectionView<'_>) -> Option<Sign> {
    let flow = &view.short.flow;
    let (ages, publishes) = (&flow.histograms.record_age_us, flow.counters.publishes);
    let rtt_us = view.rtt_us()?;
    let service_us = flow.histograms.service_us.mean();
    let cycle_us = rtt_us + service_us;
    let age_us = ages.quantile(0.5) as f64;
    let requests = view.short.per_second(publishes);
    let in_flight = requests * cycle_us / 1e6;
    let is_old = ages.count() >= EVENTS_MIN
        && age_us >= (AGE_ROUND_TRIPS_MIN * cycle_us).max(AGE_US_MIN)
        // Timestamps that the program sets, or that a wrong clock sets, have the same age for every
        // record, and so have records that a library lingers. Ages of queued records vary.
        && ages.quantile(0.95) as f64 >= AGE_SPREAD_MIN * ages.quantile(0.05) as f64
        && ages.quantile(0.5) < 120_000_000;
    let is_full = are_full(&flow.histograms.request_messages);
    // Requests that take most of the time to come in are limited by the network's bandwidth.
    let receives = &flow.histograms.request_receive_us;
    let receiving_us = receives.mean() * receives.count() as f64;
    if !is_old
        || !is_full
        || !is_steady(view)
        || receiving_us > RECEIVING_SHARE_MAX * view.short.span_us as f64
        || flow.counters.requests_silent > 0
        || cycle_us < WAIT_US_MIN
        || !(IN_FLIGHT_MIN..=IN_FLIGHT_MAX).contains(&in_flight)
    {
        return None;
    }
    let limit = Limit {
        in_flight,
        rate: view.short.per_second(flow.counters.messages_in),
        cycle_us,
        rtt_us,
        factor: FACTOR,
    };
    let sign = limit.sign(&TEMPLATES.one_connection_old_records, view)?;
    let sign = sign.with("record_age_us", age_us);
    Some(sign.with("requests", requests))
}

/// Requests in flight at their limit.
struct Limit {
    in_flight: f64,
    /// Messages per second.
    rate: f64,
    cycle_us: f64,
    rtt_us: f64,
    /// Factor by which more are advised.
    factor: f64,
}

impl Limit {
    fn sign(&self, template: &'static Template, view: &ConnectionView<'_>) -> Option<Sign> {
        let wanted = (self.in_flight * self.factor).ceil();
        let after = self.rate * wanted / self.in_flight;
        let measure = Measure::ConnectionMessagesPerSecond;
        // The broker cannot see whether the program has that much more to send.
        let prediction = worthwhile(measure, self.rate, after)?.bounded(Bound::AtMost);
        let numbers = [
            ("in_flight", self.in_flight),
            ("cycle_us", self.cycle_us),
            ("wanted", wanted),
            ("rtt_us", self.rtt_us),
        ];
        let connections = (self.factor * view.publishers as f64).ceil();
        let sign = Sign::new(template, prediction, view.short.span_us, numbers);
        Some(sign.advise([("in_flight", wanted), ("connections", connections)]))
    }
}
