//! linger: the library holds each message back for a while, to send it together with others, and
//! the program waits for the answer before it makes another one.
//!
//! A client with a timer has the same constant gap, and where its library lingers for about as long
//! as the timer takes, its records are as old, too. It is told by its clock: see
//! [`Rounds::is_waiting`].

use crate::advice::Side;
use crate::finding::{Confidence, Fact};
use crate::rules::rounds::Rounds;
use crate::rules::{GAIN_MIN, Patient, Rule, Sign, Variables, WAIT_US_MIN};
use crate::units::{messages, time};

/// Longer ones are not lingering but something else.
const LINGER_US_MAX: f64 = 1_000_000.0;

/// Records bear whole milliseconds: on the mean they are half of one younger than they look.
const AGE_ROUNDING_US: f64 = 500.0;

/// How far age and gap may be apart: a share of the gap, or so many microseconds.
const MATCH_SHARE: f64 = 0.25;
const MATCH_US: f64 = 1_000.0;

/// More messages per request than this, and the wait does bring them together.
const MESSAGES_MAX: f64 = 1.5;

/// A library's timer is more regular than this: nine tenths of the gaps to one tenth.
const SPREAD_MAX: f64 = 1.5;

pub(crate) fn see(patient: &Patient<'_>, rounds: &Rounds) -> Option<Sign> {
    let histograms = &patient.short.flow.histograms;
    let ages = &histograms.record_age_us;
    if !rounds.is_one_by_one() || rounds.messages > MESSAGES_MAX || ages.count() < rounds.count / 2
    {
        return None;
    }
    let gaps = &histograms.request_gap_us;
    let (low_us, high_us) = (gaps.quantile(0.1) as f64, gaps.quantile(0.9) as f64);
    let age_us = ages.quantile(0.5) as f64;
    let think_us = rounds.think_us();
    // The way here takes half of the round trip, and then the rest of the request may come late.
    let way_us = rounds.rtt_us / 2.0 + rounds.receive_us;
    let linger_us = age_us - way_us - AGE_ROUNDING_US;
    let is_match = (linger_us - think_us).abs() <= (MATCH_SHARE * think_us).max(MATCH_US);
    if !is_match
        || think_us.min(linger_us) < WAIT_US_MIN
        || think_us > LINGER_US_MAX
        || high_us > SPREAD_MAX * low_us + MATCH_US
    {
        return None;
    }
    if !Rounds::is_waiting(patient) {
        return None;
    }
    let waited_us = think_us.min(linger_us);
    let prediction = rounds.without(waited_us, "message", "of waiting for others");
    if prediction.gain < GAIN_MIN {
        return None;
    }
    let evidence = vec![
        Fact::new(
            "record_age_us",
            age_us,
            format!("a record is {} old when it arrives", time(age_us)),
        ),
        Fact::new(
            "gap_us",
            rounds.gap_us,
            format!(
                "{} from an answer to the next request, always about the same; the round trip \
                 takes {}",
                time(rounds.gap_us),
                time(rounds.rtt_us)
            ),
        ),
        Fact::new(
            "messages_per_request",
            rounds.messages,
            format!("{} per request: no others come", messages(rounds.messages)),
        ),
    ];
    Some(Sign {
        rule: Rule::Linger,
        side: Side::Producer,
        confidence: Confidence::Medium,
        cause: format!(
            "The client's library holds each message back for {} to send it with others, and the \
             program sends no other until this one is answered.",
            time(waited_us)
        ),
        evidence,
        window_us: patient.short.span_us,
        prediction,
        unseen: vec![
            "whether the program sleeps for a fixed time between two messages, by chance about as \
             long, and does not wait for answers"
                .to_owned(),
            "whether the clocks agree: a time stamped early by the program looks the same"
                .to_owned(),
        ],
        variables: Variables::from([("linger_ms", 0.0)]),
        place: None,
    })
}
