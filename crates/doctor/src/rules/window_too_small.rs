//! window-too-small: the consumer may have so few messages at a time that each of them is on its
//! way longer than it is worked on.
//!
//! A consumer that works on what it has for longer than the round trip takes is its own limit:
//! whether more messages at a time would help it, only it knows.

use crate::finding::{Bound, Measure};
use crate::rules::nagle::window_share;
use crate::rules::{ConnectionView, EVENTS_MIN, Sign, WAIT_US_MIN, worthwhile};
use crate::templates::TEMPLATES;

/// Share of the time in which all credit is used up while messages wait.
const USED_UP_MIN: f64 = 0.9;

/// Largest share of a message's time in flight that may be the client's work; the round trip is the
/// rest.
const WORK_SHARE_MAX: f64 = 0.5;

/// How many times more credit is advised, if the client's own work allows it.
const CREDIT_FACTOR: f64 = 10.0;

/// If the client's work allows less than this share of the rate that the new credit allows, the
/// work is the limit.
const BY_WORK_SHARE: f64 = 0.9;

/// No client takes less for a message, in microseconds.
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
    // Credit and latency have to explain the rate, or something else limits it.
    let explained = credit * 1e6 / latency_us.max(1.0);
    if !(0.6..=1.6).contains(&(rate / explained)) {
        return None;
    }
    let wanted = (credit * CREDIT_FACTOR).min((latency_us / work_us).ceil().max(credit + 1.0));
    let (by_credit, by_work) = (wanted * rate / credit, 1e6 / work_us);
    // Credit brings just so much. Where the client's work is the limit then, it is known from above
    // only: it may be less, and the rate more.
    let bound = if by_work < BY_WORK_SHARE * by_credit {
        Bound::AtLeast
    } else {
        Bound::Exact
    };
    let after = by_credit.min(by_work).max(rate);
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = worthwhile(measure, rate, after)?.bounded(bound);
    // The connection's credit is that of all its consumers together; advice is for one of them.
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

/// The time that the client takes for a message at most: it works on none of them for longer than
/// the round trip leaves, and on all of them for all the time but what it waits for the network, a
/// round trip at a time.
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
    // Before the first that comes after a pause it has worked on that one; and in what is longer
    // it has done something else, which is work as well.
    let idle_us = (gaps.sum_above(pause_us) - pauses * on_one_us).min(pauses * rtt_us);
    let busy_us = (view.short.span_us as f64 - idle_us).max(0.0);
    on_one_us.min(busy_us / acks).max(WORK_US_MIN)
}
