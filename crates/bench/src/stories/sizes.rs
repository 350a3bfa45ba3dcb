//! Seed 002: throughput and latency of four message sizes.

use cloverleaf_telemetry::Protocol;

use super::play::{StoryRun, plan, rate, shown};
use super::seed::sizes::{
    BATCH_MESSAGES, CONCURRENCY, LATENCY_LINES, LATENCY_MS, MESSAGES, RATES, SIZES_BYTES,
};
use super::{StoryScript, StoryTable};
use crate::command::{BenchError, Opened};
use crate::outcome::Kind;
use crate::plan::{Amount, Plan};
use crate::schedule::Arrivals;
use crate::words;

/// Seconds of a measurement in a short story.
const SHORT_S: f64 = 1.0;
const LATENCY_S: f64 = 2.0;
/// The seed does not say for how long it measured latency.
const LATENCY_FULL_S: f64 = 30.0;
/// Messages per second while latency is measured: far below what a broker can do.
const RATE: f64 = 1_000.0;
/// Minimum, median and percentiles of the seed's table.
const QUANTILES: [(&str, f64); 5] = [
    ("minimum", 0.0),
    ("median", 0.5),
    ("p75", 0.75),
    ("p95", 0.95),
    ("p99", 0.99),
];

const LESSON: &str = "\
What to learn: throughput and latency are two questions. The first is asked with batches and \
as much in flight as there is room for, and then messages wait for each other: their latency \
says nothing. The second is asked at a rate far below that, one message at a time, from the \
moment at which each was to be sent to the moment at which a consumer has it. In the seed's \
table p99 lies less than a tenth above p75: where there is no tail, the slow moments were not \
counted. And its 0.68 ms between Ohio, Tokyo or São Paulo and Frankfurt is less than light \
takes, so it is not the whole way that was measured. A figure is worth as much as what is said \
of how it was made.";

pub(super) const SCRIPT: StoryScript = StoryScript {
    seed: "002",
    title: "message sizes: throughput and latency",
    lesson: LESSON,
    protocols: &[Protocol::Kafka, Protocol::Nsq],
    play,
};

fn play(play: &mut StoryRun<'_, '_>) -> Result<(), BenchError> {
    let all = play.open_all()?;
    throughput(play, &all)?;
    latency(play, &all)
}

fn throughput(play: &mut StoryRun<'_, '_>, all: &[Opened]) -> Result<(), BenchError> {
    let mut columns = vec!["bytes".to_owned()];
    for opened in all {
        columns.push(format!("{}, published", opened.label));
        columns.push("consumed".to_owned());
    }
    columns.push("the seed".to_owned());
    let title =
        format!("Messages per second, {CONCURRENCY} connections, batches of {BATCH_MESSAGES}");
    let table = StoryTable::new(&title, &columns);
    let sizes = SIZES_BYTES.into_iter().zip(RATES);
    play.rows(table, sizes, |play, (size_bytes, theirs)| {
        let mut row = vec![words::count(size_bytes as u64)];
        for opened in all {
            let amount = play.amount(SHORT_S, Amount::Messages(MESSAGES));
            let plan = Plan {
                producers: CONCURRENCY,
                consumers: CONCURRENCY,
                batch_messages: BATCH_MESSAGES,
                in_flight: 2 * BATCH_MESSAGES,
                ..plan(size_bytes, amount)
            };
            for kind in [Kind::Produce, Kind::Consume] {
                let what = format!("{size_bytes} bytes, {}", words::kind(kind));
                row.push(rate(&play.measure(opened, kind, plan.clone(), &what)?));
            }
        }
        let theirs = theirs.map(|figure| figure.cited());
        row.push(theirs.unwrap_or_else(|| "in a chart only".to_owned()));
        Ok(row)
    })
}

fn latency(play: &mut StoryRun<'_, '_>, all: &[Opened]) -> Result<(), BenchError> {
    let mut columns = vec!["bytes", ""];
    columns.extend(QUANTILES.map(|(name, _)| name));
    let title = format!(
        "From the moment at which a message was to be sent to its consumer, at {}",
        words::rate(RATE)
    );
    let mut table = StoryTable::new(&title, &columns);
    for (size_bytes, theirs_ms) in SIZES_BYTES.into_iter().zip(LATENCY_MS) {
        if play.is_stopped() {
            break;
        }
        for opened in all {
            let amount = play.amount(LATENCY_S, Amount::Seconds(LATENCY_FULL_S));
            let plan = Plan {
                arrivals: Arrivals::Constant { rate: RATE },
                ..plan(size_bytes, amount)
            };
            let what = format!("{size_bytes} bytes, latency");
            let outcome = play.measure(opened, Kind::EndToEnd, plan, &what)?;
            let mut row = vec![words::count(size_bytes as u64), opened.label.clone()];
            for (_, quantile) in QUANTILES {
                row.push(shown(&outcome, |stats| {
                    let ns = match quantile {
                        0.0 => stats.response.min_ns(),
                        _ => stats.response.quantile_ns(quantile),
                    };
                    words::time(ns as f64)
                }));
            }
            table.add(row);
        }
        let mut row = vec![
            words::count(size_bytes as u64),
            format!("the seed ({LATENCY_LINES})"),
        ];
        row.extend(theirs_ms.map(|ms| words::time(ms * 1e6)));
        table.add(row);
    }
    play.table(table);
    Ok(())
}
