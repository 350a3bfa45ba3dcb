//! nagle: a client writes a request in several small pieces, and its kernel sends the second one
//! only when the first was acknowledged.
//!
//! ```text
//! client   head ──►           (waits)           ──► rest
//! broker        └─ ACK, at once or after 40 ms ─┘
//!               │◄── a round trip, + 40 ms ────►│      whatever the request's size
//! ```
//!
//! Source: RFC 896; Linux delays an acknowledgement that nothing else carries by at least 40 ms.

use cloverleaf_telemetry::HistogramSnapshot;

use crate::advice::Side;
use crate::finding::{Confidence, Fact, Measure, Prediction};
use crate::rules::rounds::Rounds;
use crate::rules::{EVENTS_MIN, GAIN_MIN, Patient, Rule, Sign, Variables, WAIT_US_MIN};
use crate::units::{bytes, number, percent, time};

/// Linux' shortest delay of an acknowledgement, and how late its timer may be.
const DELAYED_ACK_US: (f64, f64) = (36_000.0, 50_000.0);

/// Larger requests may take more than one window of the network.
const REQUEST_BYTES_MAX: u64 = 8 << 10;

/// How far the hole may be from a round trip.
const RTT_SLACK: (f64, f64) = (0.75, 1.4);

/// Share of the requests whose rest comes late.
const LATE_SHARE_MIN: f64 = 0.8;

pub(crate) fn see_produce(patient: &Patient<'_>, rounds: &Rounds) -> Option<Sign> {
    let histograms = &patient.short.flow.histograms;
    let receives = &histograms.request_receive_us;
    if !rounds.is_one_by_one() || histograms.split_request_bytes.quantile(0.9) > REQUEST_BYTES_MAX {
        return None;
    }
    let holes = Holes::of(receives, rounds.rtt_us)?;
    if holes.share < LATE_SHARE_MIN {
        return None;
    }
    let waited_us = rounds.receive_us;
    let prediction = rounds.without(waited_us, "request", "until its rest comes");
    if prediction.gain < GAIN_MIN {
        return None;
    }
    let mean_bytes = histograms.split_request_bytes.mean();
    let evidence = vec![
        Fact::new(
            "receive_us",
            waited_us,
            format!(
                "{} from the first byte of a request to its last",
                time(waited_us)
            ),
        ),
        Fact::new(
            "rtt_us",
            rounds.rtt_us,
            format!("a round trip takes {}", holes.explained(rounds.rtt_us)),
        ),
        Fact::new(
            "late_share",
            holes.share,
            format!(
                "{} of {} requests come so, though they have {}",
                percent(holes.share),
                rounds.count,
                bytes(mean_bytes)
            ),
        ),
    ];
    Some(Sign {
        rule: Rule::Nagle,
        side: Side::Producer,
        confidence: Confidence::High,
        cause: "The client's kernel sends the rest of each request only after the broker's has \
                acknowledged the beginning (Nagle's algorithm)."
            .to_owned(),
        evidence,
        window_us: patient.short.span_us,
        prediction,
        unseen: vec!["whether a proxy on the way holds the bytes back instead".to_owned()],
        variables: Variables::new(),
        place: None,
    })
}

/// On the consumer's side: of the acknowledgements that a client sends one after the other the
/// first comes at once, and all others together, late.
pub(crate) fn see_consume(patient: &Patient<'_>) -> Option<Sign> {
    let flow = &patient.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    let (gaps, latencies) = (&histograms.ack_gap_us, &histograms.ack_latency_us);
    let reads = gaps.count();
    if reads < EVENTS_MIN || counters.acks < 3 * reads / 2 {
        return None;
    }
    let rtt_us = patient.rtt_us()?;
    let holes = Holes::of(gaps, rtt_us)?;
    // Some acknowledgements need one round trip, and most of them one hole more.
    let quick_us = latencies.quantile(0.02) as f64;
    let late_us = latencies.quantile(0.75) as f64;
    let is_quick = quick_us <= rtt_us * RTT_SLACK.1 + WAIT_US_MIN;
    let hole_us = holes.length_us;
    let is_late = (late_us - quick_us - hole_us).abs() <= 0.3 * hole_us;
    // Every second gap is the hole, the others are the way to the next delivery.
    let short = gaps.count_at_most((hole_us / 2.0) as u64) as f64 / reads as f64;
    let is_delayed = hole_us > rtt_us * RTT_SLACK.1;
    if !is_quick || !is_late || (is_delayed && short + holes.share < LATE_SHARE_MIN) {
        return None;
    }
    let credit_used = window_share(patient);
    if credit_used < 0.5 {
        // It costs nothing: there are other messages to work on.
        return None;
    }
    let rate = patient.short.per_second(counters.acks);
    let mean_us = latencies.mean();
    let gain = mean_us / (mean_us - hole_us * holes.share).max(quick_us);
    let arithmetic = format!(
        "{} messages in flight per {} = {}/s; without the hole per {}",
        number(rate * mean_us / 1e6),
        time(mean_us),
        number(rate),
        time(mean_us / gain),
    );
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = Prediction::of_rate(measure, rate, rate * gain, arithmetic);
    if prediction.gain < GAIN_MIN {
        return None;
    }
    let evidence = vec![
        Fact::new(
            "ack_gap_us",
            hole_us,
            format!(
                "acknowledgements come {} apart, {} at a time",
                time(hole_us),
                number(counters.acks as f64 / reads as f64)
            ),
        ),
        Fact::new(
            "ack_latency_us",
            late_us,
            format!(
                "the first comes after {}, most after {}",
                time(quick_us),
                time(late_us)
            ),
        ),
        Fact::new(
            "rtt_us",
            rtt_us,
            format!("a round trip takes {}", holes.explained(rtt_us)),
        ),
    ];
    Some(Sign {
        rule: Rule::Nagle,
        side: Side::Consumer,
        confidence: Confidence::Medium,
        cause: "The client's kernel holds acknowledgements back until the broker's has \
                acknowledged the one before (Nagle's algorithm)."
            .to_owned(),
        evidence,
        window_us: patient.short.span_us,
        prediction,
        unseen: vec!["whether the program itself acknowledges in groups".to_owned()],
        variables: Variables::new(),
        place: patient.place(),
    })
}

/// Share of the window in which all credit was used up while messages waited.
pub(crate) fn window_share(patient: &Patient<'_>) -> f64 {
    let short_us = patient.short.flow.counters.no_credit_us;
    (short_us as f64 / patient.short.span_us.max(1) as f64).min(1.0)
}

/// Pauses of about the length that an acknowledgement takes.
struct Holes {
    /// Their share of all.
    share: f64,
    /// Their usual length.
    length_us: f64,
}

impl Holes {
    fn of(times: &HistogramSnapshot, rtt_us: f64) -> Option<Holes> {
        let count = times.count();
        if count < EVENTS_MIN {
            return None;
        }
        let within = |low: f64, high: f64| {
            (low >= WAIT_US_MIN).then(|| Holes {
                share: times.count_between(low as u64, high as u64) as f64 / count as f64,
                length_us: middle(times, low, high),
            })
        };
        let quick = within(rtt_us * RTT_SLACK.0, rtt_us * RTT_SLACK.1);
        let delayed = within(DELAYED_ACK_US.0 + rtt_us, DELAYED_ACK_US.1 + rtt_us);
        let best = quick.into_iter().chain(delayed);
        best.max_by(|a, b| a.share.total_cmp(&b.share))
            .filter(|holes| holes.share > 0.0)
    }

    fn explained(&self, rtt_us: f64) -> String {
        match self.length_us > rtt_us * RTT_SLACK.1 {
            true => format!("{}; a delayed acknowledgement 40 ms more", time(rtt_us)),
            false => time(rtt_us),
        }
    }
}

/// The median of the values between `low` and `high`.
fn middle(times: &HistogramSnapshot, low: f64, high: f64) -> f64 {
    let below = times.count_between(0, low as u64) as f64;
    let within = times.count_between(low as u64, high as u64) as f64;
    times.quantile((below + within / 2.0) / times.count().max(1) as f64) as f64
}
