//! fetch-rhythm: messages are fetched by a timer, while more of them wait.
//!
//! A consumer that processes each fetch before the next one is regular too. The size of a fetch
//! distinguishes the two: work on more messages takes longer, a timer does not.

use crate::finding::{Bound, Measure};
use crate::rules::{ConnectionView, Sign, extremes, worthwhile};
use crate::templates::TEMPLATES;

/// Minimum share of the observations in which messages waited.
const WAITING_MIN: f64 = 0.9;

/// Minimum pause of a timer, in microseconds.
const PAUSE_US_MIN: f64 = 50_000.0;

/// A pause is at least this many times as long as a fetch.
const PAUSE_FACTOR_MIN: f64 = 10.0;

/// Steps that are compared.
const STEPS: usize = 7;
const STEPS_MIN: usize = 4;

/// Maximum ratio of the pauses of different steps, and minimum ratio of the sizes of their fetches.
const PAUSE_SPREAD_MAX: f64 = 1.02;
const MESSAGES_SPREAD_MIN: f64 = 1.15;

pub(crate) fn see(view: &ConnectionView<'_>) -> Option<Sign> {
    let queue = view.queue?;
    if queue.waiting_share() < WAITING_MIN {
        return None;
    }
    let rtt_us = view.rtt_us().unwrap_or_default();
    let flow = &view.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    if counters.publishes > 0 || counters.acks > 0 {
        return None;
    }
    let pause_us = histograms.request_gap_us.mean();
    let fetch_us = rtt_us + histograms.service_us.mean();
    if pause_us < PAUSE_US_MIN || pause_us < PAUSE_FACTOR_MIN * fetch_us {
        return None;
    }
    let steps: Vec<(f64, f64)> = view
        .history
        .steps(STEPS)
        .iter()
        .filter(|step| step.flow.histograms.request_gap_us.count() > 0)
        .map(|step| {
            let fetches = step.flow.histograms.request_gap_us.count();
            let messages = step.flow.counters.messages_out as f64 / fetches as f64;
            (step.flow.histograms.request_gap_us.mean(), messages)
        })
        .collect();
    let spread = |of: fn(&(f64, f64)) -> f64| {
        let extremes = extremes(steps.iter().map(of));
        extremes.map_or(0.0, |(least, most)| most / least.max(1e-9))
    };
    let (pauses, messages) = (spread(|it| it.0), spread(|it| it.1));
    if steps.len() < STEPS_MIN || pauses > PAUSE_SPREAD_MAX || messages < MESSAGES_SPREAD_MIN {
        return None;
    }
    let per_fetch = counters.messages_out as f64 / histograms.request_gap_us.count().max(1) as f64;
    let rate = view.short.per_second(counters.messages_out);
    let after = per_fetch * 1e6 / fetch_us.max(1_000.0);
    let measure = Measure::ConnectionMessagesPerSecond;
    // The pause includes the client's own work, which cannot be separated from it.
    let prediction = worthwhile(measure, rate, after)?.bounded(Bound::AtMost);
    let numbers = [
        ("gap_us", pause_us),
        ("messages_spread", messages),
        ("waiting_share", queue.waiting_share()),
        ("per_fetch", per_fetch),
        ("cycle_us", pause_us + fetch_us),
        ("fetch_us", fetch_us),
    ];
    let template = &TEMPLATES.fetch_rhythm;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers);
    Some(sign.at(view.place()))
}
