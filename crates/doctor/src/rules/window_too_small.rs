//! window-too-small: the consumer's window (RDY, prefetch) is so small that its messages spend more
//! time on the network than in the client's work.
//!
//! A consumer that works on the messages of its window for longer than a round trip is limited by
//! its own work. The broker cannot see whether a larger window would help it.

use crate::finding::{Bound, Measure};
use crate::rules::nagle::window_share;
use crate::rules::{ConnectionView, EVENTS_MIN, Sign, WAIT_US_MIN, worthwhile};
use crate::templates::TEMPLATES;

/// Minimum share of the time in which the credit is used up while messages wait.
const USED_UP_MIN: f64 = 0.9;

/// Largest share of a message's time in flight that may be the client's work; the round trip is the
/// rest.
const WORK_SHARE_MAX: f64 = 0.5;

/// Factor by which more credit is advised, if the client's own work allows it.
const CREDIT_FACTOR: f64 = 10.0;

/// The work is taken as the limit if the rate that it allows is below this share of the rate that
/// the new credit allows.
const BY_WORK_SHARE: f64 = 0.9;

/// Minimum time that a client takes for a message, in microseconds.
const WORK_US_MIN: f64 = 20.0;

pub(crate) fn see(view: &ConnectionView<'_>) -> Option<Sign> {
    let flow = &view.short.flow;
    let (acks, latencies) = (flow.counters.acks, &flow.histograms.ack_latency_us);
    let credit = view.gauges.credit_granted as f64;
    let rtt_us = view.rtt_us()?;
    let used_up = window_share(view);
    let latency_us = latencies.mean();
    if acks < EVENTS_MIN
        || credit < 1.0
        || used_up < USED_UP_MIN
        || rtt_us < WAIT_US_MIN
        || latency_us * (1.0 - WORK_SHARE_MAX) > rtt_us
    {
        return None;
    }
    let work_us = work_us(view, latency_us, rtt_us);
    let rate = view.short.per_second(acks);
    // If credit and latency do not explain the rate, something else limits it.
    let explained = credit * 1e6 / latency_us.max(1.0);
    if !(0.6..=1.6).contains(&(rate / explained)) {
        return None;
    }
    let wanted = (credit * CREDIT_FACTOR).min((latency_us / work_us).ceil().max(credit + 1.0));
    let (by_credit, by_work) = (wanted * rate / credit, 1e6 / work_us);
    // The rate rises in proportion to the credit, until the client's work limits it. Only an upper
    // bound of the work is known, so the rate may rise further than computed.
    let bound = if by_work < BY_WORK_SHARE * by_credit {
        Bound::AtLeast
    } else {
        Bound::Exact
    };
    let after = by_credit.min(by_work).max(rate);
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = worthwhile(measure, rate, after)?.bounded(bound);
    // The connection's credit is the sum of its consumers' credits; the advice is for one consumer.
    let consumers = view.consumers.max(1) as f64;
    let numbers = [
        ("credit", credit),
        ("no_credit_share", used_up),
        ("ack_latency_us", latency_us),
        ("wanted", wanted),
        ("work_us", work_us),
        ("rtt_us", rtt_us),
    ];
    let template = &TEMPLATES.window_too_small;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers)
        .advise([
            ("credit", (wanted / consumers).ceil()),
            ("prefetch", (credit / consumers).ceil()),
        ])
        .at(view.place());
    Some(sign)
}

/// Upper bound of the client's work per message, in microseconds: the smaller of two bounds. The
/// work on a message is at most its latency minus the round trip. The work on all messages is at
/// most the observed time (not the consumer's window) minus the time in which the client waits for
/// the network, a round trip at a time.
///
/// ```text
/// acknowledgements   ||||||            ||||||            ||||||     six at a time
///                    work   round trip
/// ```
fn work_us(view: &ConnectionView<'_>, latency_us: f64, rtt_us: f64) -> f64 {
    let flow = &view.short.flow;
    let (acks, gaps) = (flow.counters.acks as f64, &flow.histograms.ack_gap_us);
    let on_one_us = (latency_us - rtt_us).max(0.0);
    let pause_us = (latency_us / 2.0) as u64;
    let pauses = gaps.count_between(pause_us + 1, u64::MAX) as f64;
    // A pause contains the work on the message that is acknowledged after it, which is not idle
    // time. A pause longer than a round trip contains other work of the client, so at most a round
    // trip of it is idle time.
    let idle_us = (gaps.sum_above(pause_us) - pauses * on_one_us).min(pauses * rtt_us);
    let busy_us = (view.short.span_us as f64 - idle_us).max(0.0);
    on_one_us.min(busy_us / acks).max(WORK_US_MIN)
}
