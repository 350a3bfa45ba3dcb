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

use crate::finding::{Bound, Measure};
use crate::rules::rounds::{self, Rounds};
use crate::rules::{ConnectionView, EVENTS_MIN, GAIN_MIN, LONG_US, Sign, WAIT_US_MIN, worthwhile};
use crate::templates::TEMPLATES;

/// How long Linux delays an acknowledgement, in microseconds: from a little less than its nominal
/// 40 ms to the delay with a late timer.
const DELAYED_ACK_US: (f64, f64) = (36_000.0, 50_000.0);

/// Minimum hole in a request, in microseconds. It is half of [`WAIT_US_MIN`], so that a round trip
/// of about 1 ms counts whether it is measured as 0.9 or 1.1 ms.
const HOLE_US_MIN: f64 = 500.0;

/// Larger requests may take more than one TCP congestion window.
pub(super) const REQUEST_BYTES_MAX: u64 = 8 << 10;

/// Tolerance of the hole, as a ratio to the round trip.
pub(super) const RTT_SLACK: (f64, f64) = (0.75, 1.4);

/// Minimum share of the requests whose rest comes late.
const LATE_SHARE_MIN: f64 = 0.8;

/// Maximum share of the reads that come sooner than a round trip after the one before. They occur
/// if acknowledgements fill a packet, or if our kernel acknowledges before the broker answers.
const SOONER_SHARE_MAX: f64 = 0.04;

/// Minimum share of the time with all credit used, from which the client always has work.
const CREDIT_USED_SURE: f64 = 0.9;

/// `lingering`: the factor that a client which lingers would gain by not lingering. Beside its
/// linger time the wait for the rest of a request may look small, so that wait is compared with
/// what remains of a round without the linger time.
pub(crate) fn see_produce(
    view: &ConnectionView<'_>,
    rounds: &Rounds,
    lingering: Option<f64>,
) -> Option<Sign> {
    let histograms = &view.short.flow.histograms;
    let receives = &histograms.request_receive_us;
    if !rounds.is_one_by_one() || histograms.split_request_bytes.quantile(0.9) > REQUEST_BYTES_MAX {
        return None;
    }
    let holes = Holes::of(receives, rounds.rtt_us, HOLE_US_MIN)?;
    if holes.share < LATE_SHARE_MIN {
        return None;
    }
    let waited_us = rounds.receive_us;
    let prediction = rounds.without(waited_us);
    let mut without_both_us = None;
    if let Some(gain) = lingering {
        let left_us = rounds.cycle_us() / gain;
        let without_us = left_us - waited_us;
        if without_us <= 0.0 || left_us / without_us < GAIN_MIN {
            return None;
        }
        without_both_us = Some(without_us);
    } else if prediction.gain < GAIN_MIN {
        return None;
    }
    // The gain may be larger: the rest of the time was measured while the client slept for 40 ms
    // per request, and a client that is woken up takes longer than one that stays busy.
    let prediction = prediction.bounded(Bound::AtLeast);
    let numbers = [
        ("receive_us", waited_us),
        ("rtt_us", rounds.rtt_us),
        ("late_share", holes.share),
        ("rounds", rounds.count as f64),
        ("request_bytes", histograms.split_request_bytes.mean()),
        ("cycle_us", rounds.cycle_us()),
        ("rest_us", rounds.cycle_us() - waited_us),
    ];
    let without_both = without_both_us.map(|us| rounds.rate() * rounds.cycle_us() / us);
    let template = &TEMPLATES.nagle_of_requests;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers)
        .with("without_both_us", without_both_us)
        .with("without_both", without_both)
        .when("is_delayed", holes.are_delayed(rounds.rtt_us));
    Some(sign)
}

/// On the consumer's side: when a client sends several acknowledgements, the first comes at once,
/// and all others together, late.
///
/// ```text
/// nothing in flight    ── 10 messages ──►                            held
///                      ◄── 1 ack ── a round trip later               9 acks
///                      ── 1 message ──►                              1 ack
///                      ◄── 9 acks ── another one later
///                      ── 9 messages ──►                             9 acks
///                      ◄── 1 ack ── …
/// ```
///
/// While messages keep coming, this continues: two groups take turns, and each acknowledgement
/// takes two round trips. It looks the same if each message needs a call to a database at the same
/// distance. Two facts distinguish the two:
/// - with Nagle's algorithm the kernel has one small packet in flight at a time, so two reads are
///   at least a round trip apart; calls to a database may end at any time;
/// - after a time with nothing in flight, the first acknowledgement has no other before it and is
///   not delayed. A call to a database takes its time then, too.
pub(crate) fn see_consume(view: &ConnectionView<'_>) -> Option<Sign> {
    let flow = &view.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    let (gaps, latencies) = (&histograms.ack_gap_us, &histograms.ack_latency_us);
    let reads = gaps.count();
    if reads < EVENTS_MIN || counters.acks < 3 * reads / 2 {
        return None;
    }
    let rtt_us = view.rtt_us()?;
    let holes = Holes::of(gaps, rtt_us, WAIT_US_MIN)?;
    // Some acknowledgements take one round trip, and most of them a hole in addition.
    let least_us = latencies.quantile(0.02) as f64;
    let late_us = latencies.quantile(0.75) as f64;
    let hole_us = holes.length_us;
    let quick_max_us = rtt_us * RTT_SLACK.1 + WAIT_US_MIN;
    let first_us = view
        .history
        .first_ack_us(view.now_us.saturating_sub(LONG_US));
    // If two groups take turns, only the first acknowledgement is quick.
    let is_by_turns = least_us > quick_max_us && holes.share >= LATE_SHARE_MIN;
    let first_us = first_us.filter(|_| is_by_turns);
    let quick_us = first_us.map_or(least_us, |us| us as f64);
    let is_quick = quick_us <= quick_max_us;
    let sooner = gaps.count_between(0, (rounds::RTT_SLACK * rtt_us) as u64);
    if sooner as f64 > 1.0 + SOONER_SHARE_MAX * reads as f64 {
        return None;
    }
    let is_late = (late_us - quick_us - hole_us).abs() <= 0.3 * hole_us;
    // Every second gap is the hole, the others are the time to the next delivery.
    let short = gaps.count_at_most((hole_us / 2.0) as u64) as f64 / reads as f64;
    let is_delayed = holes.are_delayed(rtt_us);
    if !is_quick || !is_late || (is_delayed && short + holes.share < LATE_SHARE_MIN) {
        return None;
    }
    let credit_used = window_share(view);
    if credit_used < 0.5 {
        // The delay costs nothing, because the client has other messages to work on.
        return None;
    }
    let rate = view.short.per_second(counters.acks);
    let mean_us = latencies.mean();
    let gain = mean_us / (mean_us - hole_us * holes.share).max(quick_us);
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = worthwhile(measure, rate, rate * gain)?;
    // If there is sometimes no message waiting, the rate is limited by publishing.
    let bound = if credit_used < CREDIT_USED_SURE {
        Bound::AtMost
    } else {
        Bound::Exact
    };
    let numbers = [
        ("ack_gap_us", hole_us),
        ("ack_latency_us", late_us),
        ("rtt_us", rtt_us),
        ("in_flight", rate * mean_us / 1e6),
        ("mean_us", mean_us),
        ("without_us", mean_us / gain),
        ("acks_per_read", counters.acks as f64 / reads as f64),
        ("quick_us", quick_us),
    ];
    let template = &TEMPLATES.nagle_of_acknowledgements;
    let prediction = prediction.bounded(bound);
    let sign = Sign::new(template, prediction, view.short.span_us, numbers)
        .when("is_delayed", is_delayed)
        .when("is_first_quick", first_us.is_some())
        .when("is_by_turns", is_by_turns)
        .at(view.place());
    Some(sign)
}

/// Share of the observed time in which all credit (RDY, prefetch) was used up while messages
/// waited.
pub(crate) fn window_share(view: &ConnectionView<'_>) -> f64 {
    let short_us = view.short.flow.counters.no_credit_us;
    (short_us as f64 / view.short.span_us.max(1) as f64).min(1.0)
}

/// Pauses of about the length that a TCP acknowledgement takes.
struct Holes {
    /// Their share of all pauses.
    share: f64,
    /// Their median length, in microseconds.
    length_us: f64,
}

impl Holes {
    fn of(times: &HistogramSnapshot, rtt_us: f64, least_us: f64) -> Option<Holes> {
        let count = times.count();
        if count < EVENTS_MIN {
            return None;
        }
        let within = |low: f64, high: f64| {
            (low >= least_us).then(|| Holes {
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

    /// Whether they include a delayed acknowledgement in addition to the round trip.
    fn are_delayed(&self, rtt_us: f64) -> bool {
        self.length_us > rtt_us * RTT_SLACK.1
    }
}

/// The median of the values between `low` and `high`.
fn middle(times: &HistogramSnapshot, low: f64, high: f64) -> f64 {
    let below = times.count_between(0, low as u64) as f64;
    let within = times.count_between(low as u64, high as u64) as f64;
    times.quantile((below + within / 2.0) / times.count().max(1) as f64) as f64
}
