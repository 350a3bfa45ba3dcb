//! The figures of a measurement, each as a function from an [`Outcome`], for medians and spreads.
//!
//! `None`: this measurement has no such figure.

use crate::book::Tally;
use crate::histogram::Histogram;
use crate::outcome::{Outcome, Row};

/// One of them, with what it needs to know.
pub type Figure = Box<dyn Fn(&Outcome) -> Option<f64>>;

/// Messages per second.
pub fn rate(outcome: &Outcome) -> Option<f64> {
    measured(outcome).map(Tally::rate)
}

/// Bytes per second.
pub fn byte_rate(outcome: &Outcome) -> Option<f64> {
    measured(outcome).map(Tally::byte_rate)
}

/// Response time at this share in nanoseconds.
pub fn response_ns(share: f64) -> impl Fn(&Outcome) -> Option<f64> {
    move |outcome| Some(measured(outcome)?.response.quantile_ns(share) as f64)
}

/// How late the generator was at this share, in nanoseconds; in an open loop.
pub fn lag_ns(share: f64) -> impl Fn(&Outcome) -> Option<f64> {
    move |outcome| {
        let lag = &outcome.produced.as_ref()?.lag;
        let is_open = crate::words::asked(&outcome.plan.arrivals).is_some();
        (is_open && !lag.is_empty()).then(|| lag.quantile_ns(share) as f64)
    }
}

/// CPU time of the generator per message, in nanoseconds.
pub fn client_cpu_ns(outcome: &Outcome) -> Option<f64> {
    Some(outcome.client_us()? * 1e3)
}

/// CPU time of the broker per message, in nanoseconds.
pub fn broker_cpu_ns(outcome: &Outcome) -> Option<f64> {
    Some(outcome.broker_us()? * 1e3)
}

/// The most memory of the broker, in bytes.
pub fn memory_bytes(outcome: &Outcome) -> Option<f64> {
    outcome.usage.broker_rss_bytes.map(|bytes| bytes as f64)
}

/// The side that a title speaks of, if it has any message.
pub fn measured(outcome: &Outcome) -> Option<&Tally> {
    outcome.main().filter(|tally| tally.messages > 0)
}

/// The times of all runs of a row together.
pub fn together<'r>(row: &'r Row, times: impl Fn(&'r Tally) -> &'r Histogram) -> Histogram {
    let mut all = Histogram::new();
    for tally in row.runs.iter().filter_map(measured) {
        all.add(times(tally));
    }
    all
}

/// The run whose rate is the row's median: what stands for all where only one can be drawn.
pub fn typical(row: &Row) -> Option<&Outcome> {
    let median = row.median(rate)?;
    row.runs.iter().find(|run| rate(run) == Some(median))
}

/// Why runs of a row ended before their time, each reason once.
pub fn cuts(row: &Row) -> Vec<&str> {
    let mut cuts: Vec<&str> = row
        .runs
        .iter()
        .filter_map(|run| run.cut.as_deref())
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}
