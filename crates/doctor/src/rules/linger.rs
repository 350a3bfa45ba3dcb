//! linger: the library delays each message to batch it with others, but the program waits for the
//! answer before it produces another one.
//!
//! A client with a timer has the same constant gap. If its library lingers for about the timer's
//! period, its records are as old, too. [`Rounds::is_waiting`] distinguishes such a client.

use crate::rules::rounds::{RTT_SLACK, Rounds};
use crate::rules::{ConnectionView, GAIN_MIN, Sign, WAIT_US_MIN};
use crate::templates::TEMPLATES;

/// Longer delays are not lingering.
const LINGER_US_MAX: f64 = 1_000_000.0;

/// Timestamps of records are rounded down to milliseconds: on average a record is half of one
/// younger than it appears.
const AGE_ROUNDING_US: f64 = 500.0;

/// Minimum share of lingering in the client's time. The rest is the program's own work and delays
/// of a busy machine: with a third of a core, Kafka's Java client had 0.71 to 0.81.
const LINGER_SHARE_MIN: f64 = 0.65;

/// No library lingers for longer than the gap. It may appear so, because age and gap, including the
/// round trip in them, are each up to a sixteenth off.
const LINGER_SHARE_MAX: f64 = 1.25;

/// Minimum tolerance of any of these times, in microseconds: the resolution of the records'
/// timestamps.
const MATCH_US: f64 = 1_000.0;

/// With more messages per request than this, lingering does batch them.
const MESSAGES_MAX: f64 = 1.5;

/// Maximum ratio of the median gap to the lowest tenth, without the round trip. A library's timer
/// is never early. Work varies more: a ratio of 1.7, if it takes from 5 to 15 ms.
const SPREAD_MAX: f64 = 1.35;

/// On a busy machine some timers are late. Maximum ratio of the third quartile of gaps to the
/// lowest tenth, with the round trip.
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
    // The mean includes the start of the program and other single events, so it counts only up to
    // the median, which is as exact as its bucket.
    let think_us = rounds.gap_us.min(gap_us(0.5) / RTT_SLACK) - rounds.rtt_us;
    let is_regular = think_us <= SPREAD_MAX * (low_us - rounds.rtt_us) + MATCH_US
        && high_us <= LATE_MAX * low_us + MATCH_US;
    let age_us = ages.quantile(0.5) as f64;
    // The way to the broker takes half a round trip, and then the rest of the request may come
    // late.
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
