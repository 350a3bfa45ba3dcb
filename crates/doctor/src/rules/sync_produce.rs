//! sync-produce: each request is sent after the answer to the one before, so most of the time is
//! spent on the network.

use cloverleaf_telemetry::Batching;

use crate::finding::{Bound, Confidence, Measure};
use crate::rules::follows::Follows;
use crate::rules::rounds::Rounds;
use crate::rules::{ConnectionView, Sign, WAIT_US_MIN, worthwhile};
use crate::templates::TEMPLATES;

/// Maximum requests in flight that are advised: enough for ten times the rate, and so few that
/// memory and timeouts are no concern.
const IN_FLIGHT_ADVISED: f64 = 10.0;

/// Minimum share of the time spent waiting. Below it something else is the limit, such as the
/// network's bandwidth.
const WAITING_SHARE_MIN: f64 = 0.5;

/// A client that does more than this share of the waiting on its own may sleep between requests
/// rather than wait for answers, by chance about as long.
const THINK_SHARE_SURE: f64 = 0.1;

/// Records are younger than this, in microseconds, if the producer's clock agrees with the
/// broker's.
const CLOCK_AGE_US_MIN: f64 = 2_000_000.0;

/// Tolerance for timestamps of records, which are whole milliseconds.
const AGE_SLACK_US: f64 = 2_000.0;

/// More messages per request than this are a batch.
const ONE_MESSAGE_MAX: f64 = 1.2;

/// Minimum time that a client takes for a request, in microseconds.
const THINK_US_MIN: f64 = 20.0;

pub(crate) fn see(view: &ConnectionView<'_>, rounds: &Rounds) -> Option<Sign> {
    let (wait_us, think_us) = (rounds.wait_us(), rounds.think_us());
    if !rounds.is_one_by_one() || wait_us < WAIT_US_MIN {
        return None;
    }
    let cycle_us = rounds.cycle_us();
    // Requests arrive one after the other: while one is being received, no other can be.
    let own_us = (think_us + rounds.receive_us).max(THINK_US_MIN);
    let share = wait_us / cycle_us;
    if share < WAITING_SHARE_MIN || !Rounds::is_waiting(view) {
        return None;
    }
    // If a client does more than wait, its requests have to follow the answers demonstrably.
    let follows = if rounds.is_all_waiting() {
        None
    } else {
        Some(Follows::clearly(view)?)
    };
    // A program that waits produces a record after the answer to the last one. Older records were
    // produced while the library lingered or waited, so the program does not wait. But no library
    // keeps records for as long as the difference between wrong clocks. A record that the library
    // keeps until the answer comes was produced without waiting for that answer.
    let kept_us = if follows.is_some() { 0.0 } else { think_us };
    let oldest_us = kept_us + rounds.rtt_us / 2.0 + rounds.receive_us + AGE_SLACK_US;
    let ages = &view.short.flow.histograms.record_age_us;
    let is_older = !ages.is_empty() && ages.quantile(0.5) as f64 > oldest_us;
    let is_another_clock = ages.quantile(0.05) as f64 > CLOCK_AGE_US_MIN;
    if is_older && !is_another_clock {
        return None;
    }
    let sizes = &view.short.flow.histograms.request_messages;
    let is_varied = sizes.quantile(0.9) > sizes.quantile(0.1);
    if rounds.messages > ONE_MESSAGE_MAX && (is_older || is_varied) {
        // The library has one request in flight, and batches the messages that the program produces
        // meanwhile.
        return None;
    }
    let in_flight = (cycle_us / own_us).ceil().clamp(2.0, IN_FLIGHT_ADVISED);
    let after = rounds.messages * (in_flight * 1e6 / cycle_us).min(1e6 / own_us);
    // A library that need not wait batches messages, if the protocol allows it, which costs less
    // per message. But a library with a single request in flight sends at most one batch per round.
    let counters = &view.short.flow.counters;
    let request_bytes = counters.published_bytes as f64 / counters.publishes as f64;
    let together_bytes = in_flight * request_bytes;
    let bound = match view.protocol.traits().batching {
        Batching::UpTo { bytes } if together_bytes > f64::from(bytes) => Bound::AtMost,
        Batching::UpTo { .. } | Batching::Anything => Bound::AtLeast,
        Batching::Nothing => Bound::Exact,
    };
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = worthwhile(measure, rounds.rate(), after)?.bounded(bound);
    let may_sleep = think_us > THINK_SHARE_SURE * wait_us;
    let confidence = match rounds.in_flight_max {
        _ if is_older || may_sleep => Confidence::Medium,
        // Requests for metadata and heartbeats may come in between.
        0..=3 => Confidence::High,
        _ => Confidence::Medium,
    };
    let numbers = [
        ("rounds", rounds.count as f64),
        ("in_flight", rounds.requests),
        ("wanted", in_flight),
        ("cycle_us", cycle_us),
        ("own_us", own_us),
        ("gap_us", rounds.gap_us),
        ("rtt_us", rounds.rtt_us),
        ("service_us", rounds.service_us),
        ("waiting_share", share),
    ];
    let template = &TEMPLATES.sync_produce;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers)
        .with("follows_answers", follows.map(|it| it.slope))
        .with("follows_error", follows.map(|it| it.error))
        .with("follows_rounds", follows.map(|it| it.rounds as f64))
        .when("records_ahead", counters.records_ahead > 0)
        .with(
            "together_bytes",
            (bound == Bound::AtMost).then_some(together_bytes),
        )
        .when("is_older", is_older)
        .when("may_sleep", may_sleep && follows.is_none())
        .advise([("in_flight", in_flight)]);
    Some(Sign { confidence, ..sign })
}
