//! The figures of a measurement, each as a function from an [`Outcome`], for medians and spreads.
//!
//! `None`: this measurement has no such figure.

use crate::histogram::Histogram;
use crate::outcome::{Kind, Outcome, Row};
use crate::recorder::ClientStats;

/// A function that returns a figure of a measurement.
pub type Figure = Box<dyn Fn(&Outcome) -> Option<f64>>;

/// A function that returns the histogram of times of a measurement, if it has one.
pub type Times = fn(&Outcome) -> Option<&Histogram>;

/// Minimum of messages beyond a percentile. With fewer, the percentile depends on chance.
const BEYOND_MIN: f64 = 10.0;

/// A figure of all runs of a row.
pub enum Summary {
    /// The median of the runs.
    Median(Figure),
    /// These times of all runs together, at this share, in nanoseconds; 1: the longest of all.
    Share(Times, f64),
}

impl Summary {
    /// The median of the runs.
    pub fn median(figure: impl Fn(&Outcome) -> Option<f64> + 'static) -> Summary {
        Summary::Median(Box::new(figure))
    }

    /// The figure. `None`: no run has it, or too few messages say it ([`share_ns`]).
    pub fn of(&self, row: &Row) -> Option<f64> {
        match self {
            Summary::Median(figure) => row.median(figure),
            Summary::Share(times, share) => share_ns(&together(row, times), *share),
        }
    }

    /// The least and the greatest of the single runs, where there are several.
    pub fn spread(&self, row: &Row) -> Option<(f64, f64)> {
        let of_run = |run: &Outcome| match self {
            Summary::Median(figure) => figure(run),
            Summary::Share(times, share) => share_ns(times(run)?, *share),
        };
        let several = row.counted().filter_map(of_run).count() > 1;
        row.spread(of_run).filter(|_| several)
    }
}

/// The time at this share in nanoseconds; 1: the longest. `None`: fewer than ten messages lie
/// beyond it, so that it is the longest, or next to it, whatever its name.
pub fn share_ns(times: &Histogram, share: f64) -> Option<f64> {
    let beyond = times.len() as f64 * (1.0 - share);
    // 1 - 0.99 is a little more than 0.01, and others less.
    let is_known = share >= 1.0 || beyond >= BEYOND_MIN - 1e-6;
    (is_known && !times.is_empty()).then(|| times.quantile_ns(share) as f64)
}

/// Response times of the side that a title speaks of.
pub fn response(outcome: &Outcome) -> Option<&Histogram> {
    timed(outcome).map(|stats| &stats.response)
}

/// Service times of the side that a title speaks of.
pub fn service(outcome: &Outcome) -> Option<&Histogram> {
    timed(outcome).map(|stats| &stats.service)
}

/// A producer without acknowledgements has no latency: only the time in which the kernel accepts a
/// message is known.
fn timed(outcome: &Outcome) -> Option<&ClientStats> {
    let has_times = outcome.kind != Kind::Produce || outcome.has_acks();
    measured(outcome).filter(|_| has_times)
}

/// Messages per second.
pub fn rate(outcome: &Outcome) -> Option<f64> {
    measured(outcome).map(ClientStats::rate)
}

/// Bytes per second.
pub fn byte_rate(outcome: &Outcome) -> Option<f64> {
    measured(outcome).map(ClientStats::byte_rate)
}

/// The generator's own lateness, in an open loop.
pub fn lag(outcome: &Outcome) -> Option<&Histogram> {
    let lag = &outcome.produced.as_ref()?.lag;
    let is_open = crate::words::asked(&outcome.plan.arrivals).is_some();
    (is_open && !lag.is_empty()).then_some(lag)
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
pub fn measured(outcome: &Outcome) -> Option<&ClientStats> {
    outcome.main().filter(|stats| stats.messages > 0)
}

/// The times of all runs of a row that count, added up.
pub fn together(row: &Row, times: &Times) -> Histogram {
    let mut all = Histogram::new();
    for run in row.counted().filter_map(times) {
        all.add(run);
    }
    all
}

/// The run whose rate is the row's median: what stands for all where only one can be drawn.
pub fn typical(row: &Row) -> Option<&Outcome> {
    let median = row.median(rate)?;
    row.counted().find(|run| rate(run) == Some(median))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::outcome;

    /// A run with these latencies: milliseconds, and the number of messages that took them.
    fn run(times: &[(u64, u64)]) -> Outcome {
        let mut run = outcome("a", 1);
        if let Some(stats) = &mut run.consumed {
            stats.response = Histogram::new();
            for (ms, count) in times {
                stats.response.record_n(ms * 1_000_000, *count);
            }
        }
        run
    }

    fn row(runs: Vec<Outcome>) -> Row {
        Row {
            variations: Vec::new(),
            runs,
        }
    }

    fn ms(ns: Option<f64>) -> Option<u64> {
        ns.map(|ns| (ns / 1e6).round() as u64)
    }

    #[test]
    fn who_is_not_answered_has_no_latency() {
        let mut run = outcome("a", 1);
        run.kind = Kind::Produce;
        run.produced = run.consumed.take();
        assert!(response(&run).is_some() && service(&run).is_some());
        run.subject.promise = crate::driver::Promise::None;
        assert!(response(&run).is_none() && service(&run).is_none());
        assert!(rate(&run).is_some());
    }

    #[test]
    fn percentiles_and_the_longest_are_those_of_all_runs() {
        let row = row(vec![
            run(&[(1, 1_000)]),
            run(&[(1, 998), (2, 2)]),
            run(&[(1, 900), (5, 100)]),
        ]);
        let max = Summary::Share(response, 1.0);
        assert_eq!(ms(max.of(&row)), Some(5), "not the median of the longest");
        assert_eq!(
            max.spread(&row)
                .map(|(least, most)| (ms(Some(least)), ms(Some(most)))),
            Some((Some(1), Some(5)))
        );
        // One in thirty took long: no run alone has that.
        let p95 = |row: &Row| ms(Summary::Share(response, 0.95).of(row));
        let p99 = |row: &Row| ms(Summary::Share(response, 0.99).of(row));
        assert_eq!((p95(&row), p99(&row)), (Some(1), Some(5)));
    }

    #[test]
    fn a_percentile_needs_ten_messages_beyond_it() {
        let p99 = |count| {
            ms(share_ns(
                &together(&row(vec![run(&[(1, count)])]), &(response as Times)),
                0.99,
            ))
        };
        assert_eq!((p99(999), p99(1_000)), (None, Some(1)));
        let few = row(vec![run(&[(3, 1)])]);
        assert_eq!(ms(Summary::Share(response, 1.0).of(&few)), Some(3));
        assert_eq!(Summary::Share(response, 0.5).of(&few), None);
        assert_eq!(Summary::Share(response, 1.0).of(&row(vec![run(&[])])), None);
        // Two runs with half of what it takes are enough together, and no spread.
        let two = row(vec![run(&[(1, 500)]), run(&[(1, 500)])]);
        let p99 = Summary::Share(response, 0.99);
        assert_eq!((ms(p99.of(&two)), p99.spread(&two)), (Some(1), None));
    }

    #[test]
    fn runs_that_were_cut_short_count_only_if_there_are_no_others() {
        let cut = |messages| {
            let mut cut = run(&[(90, 1_000)]);
            cut.cut = Some("it went away".to_owned());
            if let Some(stats) = &mut cut.consumed {
                stats.messages = messages;
            }
            cut
        };
        let good = row(vec![cut(10), run(&[(1, 1_000)]), cut(0)]);
        assert_eq!(
            (good.median(rate), good.spread(rate)),
            (Some(1_000.0), Some((1_000.0, 1_000.0)))
        );
        assert_eq!(ms(Summary::Share(response, 1.0).of(&good)), Some(1));
        assert_eq!(row(vec![cut(10), cut(0)]).median(rate), Some(10.0));
    }
}
