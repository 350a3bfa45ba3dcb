//! linger: the library holds each message back for a while, to send it together with others, and
//! the program waits for the answer before it makes another one.
//!
//! A client with a timer has the same constant gap, and where its library lingers for about as long
//! as the timer takes, its records are as old, too. It is told by its clock: see
//! [`Rounds::is_waiting`].

use crate::rules::rounds::{RTT_SLACK, Rounds};
use crate::rules::{ConnectionView, GAIN_MIN, Sign, WAIT_US_MIN};
use crate::templates::TEMPLATES;

/// Longer ones are not lingering but something else.
const LINGER_US_MAX: f64 = 1_000_000.0;

/// Records bear whole milliseconds: on the mean they are half of one younger than they look.
const AGE_ROUNDING_US: f64 = 500.0;

/// Least share of the lingering in the client's time. The rest is the program's own work, and what
/// a busy machine adds: with a third of a core, Kafka's Java client had 0.71 to 0.81.
const LINGER_SHARE_MIN: f64 = 0.65;

/// No library lingers for longer than from an answer to the next request. It may look so: age and
/// gap are a sixteenth off each, with the round trip that is in them.
const LINGER_SHARE_MAX: f64 = 1.25;

/// How far off any of these times may look at least, in microseconds: the clock of records.
const MATCH_US: f64 = 1_000.0;

/// More messages per request than this, and the wait does bring them together.
const MESSAGES_MAX: f64 = 1.5;

/// A library's timer is never early, so half of the gaps are at most so many times as long as one
/// tenth of them, without the round trip. Work is: 1.7 times, where it takes from 5 to 15 ms.
const SPREAD_MAX: f64 = 1.35;

/// On a busy machine some are late. Three quarters of the gaps, with the round trip, are at most so
/// many times as long as one tenth.
const LATE_MAX: f64 = 1.5;

pub(crate) fn see(view: &ConnectionView<'_>, rounds: &Rounds) -> Option<Sign> {
    let histograms = &view.short.flow.histograms;
    let ages = &histograms.record_age_us;
    if !rounds.is_one_by_one() || rounds.messages > MESSAGES_MAX || ages.count() < rounds.count / 2
    {
        return None;
    }
    let gap_us = |share| histograms.request_gap_us.quantile(share) as f64;
    let (low_us, high_us) = (gap_us(0.1), gap_us(0.75));
    // The mean has the start of the program, too, and whatever happened once: no more than the
    // middle one, which is as exact as its bucket.
    let think_us = rounds.gap_us.min(gap_us(0.5) / RTT_SLACK) - rounds.rtt_us;
    let is_regular = think_us <= SPREAD_MAX * (low_us - rounds.rtt_us) + MATCH_US
        && high_us <= LATE_MAX * low_us + MATCH_US;
    let age_us = ages.quantile(0.5) as f64;
    // The way here takes half of the round trip, and then the rest of the request may come late.
    let way_us = rounds.rtt_us / 2.0 + rounds.receive_us;
    let linger_us = age_us - way_us - AGE_ROUNDING_US;
    let least_us = (LINGER_SHARE_MIN * think_us).min(think_us - MATCH_US);
    let most_us = (LINGER_SHARE_MAX * think_us).max(think_us + MATCH_US);
    if !is_regular
        || !(least_us..=most_us).contains(&linger_us)
        || think_us.min(linger_us) < WAIT_US_MIN
        || think_us > LINGER_US_MAX
    {
        return None;
    }
    if !Rounds::is_waiting(view) {
        return None;
    }
    let waited_us = think_us.min(linger_us);
    let prediction = rounds.without(waited_us);
    if prediction.gain < GAIN_MIN {
        return None;
    }
    let numbers = [
        ("record_age_us", age_us),
        ("gap_us", rounds.gap_us),
        ("messages_per_request", rounds.messages),
        ("waited_us", waited_us),
        ("cycle_us", rounds.cycle_us()),
        ("rest_us", rounds.cycle_us() - waited_us),
        ("rtt_us", rounds.rtt_us),
    ];
    let sign = Sign::new(&TEMPLATES.linger, prediction, view.short.span_us, numbers);
    Some(sign.advise([("linger_ms", 0.0)]))
}
