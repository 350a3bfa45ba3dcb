//! A report for programs: figures by name, no histograms.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::histogram::Histogram;
use crate::outcome::{Kind, Outcome, Report, Row};
use crate::payload::PayloadKind;
use crate::plan::Plan;
use crate::recorder::ClientStats;
use crate::table::{QUANTILES, latencies};
use crate::{figures, notes, words};

/// The report as JSON, indented.
pub fn text(report: &Report) -> String {
    format!("{:#}", value(report))
}

/// The report as JSON. Times are in microseconds.
pub fn value(report: &Report) -> Value {
    json!({
        "title": report.title,
        "command": report.command,
        "conditions": report.conditions,
        "is_good": report.is_good(),
        "notes": notes::of(report),
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn row(row: &Row) -> Value {
    let latencies = row.runs.first().map(latencies).unwrap_or_default();
    let latencies = latencies.into_iter();
    let latencies = latencies.map(|(name, of)| (name, times(&figures::together(row, &of))));
    let variations = row.variations.iter();
    let variations = variations.map(|it| (it.name.clone(), json!(it.value)));
    json!({
        "label": row.runs.first().map(|outcome| &outcome.subject.label),
        "variations": variations.collect::<Map<String, Value>>(),
        "messages_per_s": row.median(figures::rate),
        "messages_per_s_spread": row.spread(figures::rate),
        "latency_us": latencies.collect::<Map<String, Value>>(),
        "runs": row.runs.iter().map(outcome).collect::<Vec<_>>(),
    })
}

fn outcome(outcome: &Outcome) -> Value {
    let plan = &outcome.plan;
    let payload = match plan.payload {
        PayloadKind::Random => "random",
        PayloadKind::Compressible => "compressible",
        PayloadKind::File(_) => "file",
    };
    // A file may be large.
    let slim = Plan {
        payload: PayloadKind::Random,
        ..plan.clone()
    };
    let mut settings = json!(slim);
    settings["payload"] = json!(payload);
    let versions = outcome.subject.versions.iter().cloned();
    let versions: BTreeMap<String, String> = versions.collect();
    json!({
        "url": outcome.subject.url,
        "versions": versions,
        "durability": words::promise(outcome.subject.promise),
        "durability_is_claimed": outcome.subject.is_claimed,
        "kind": outcome.kind,
        "settings": settings,
        "started_unix_ms": outcome.started_unix_ms,
        "produced": outcome.produced.as_ref().map(|it| side(it, outcome.has_acks())),
        // The age of what was put in before is no latency.
        "consumed": outcome.consumed.as_ref().map(|it| side(it, outcome.kind != Kind::Consume)),
        "findings": outcome.findings,
        "usage": outcome.usage,
        "client_cpu_us_per_message": outcome.client_us(),
        "broker_cpu_us_per_message": outcome.broker_us(),
        "cut": outcome.cut,
        "remarks": outcome.remarks,
    })
}

fn side(stats: &ClientStats, has_latency: bool) -> Value {
    let seconds = stats.seconds.iter().map(|(at, second)| {
        json!({
            "second": at,
            "messages": second.messages,
            "bytes": second.bytes,
            "errors": second.errors,
            "response_us": has_latency.then(|| times(&second.response)),
        })
    });
    json!({
        "messages": stats.messages,
        "sent": stats.sent,
        "bytes": stats.bytes,
        "errors": stats.errors,
        "unanswered": stats.unanswered,
        "foreign": stats.foreign,
        "damaged": stats.damaged,
        "seconds_measured": stats.span_s(),
        "messages_per_s": stats.rate(),
        "while_producers_sent": stats.meanwhile,
        "response_us": has_latency.then(|| times(&stats.response)),
        "service_us": has_latency.then(|| times(&stats.service)),
        "generator_lag_us": times(&stats.lag),
        "busiest_thread": stats.busy,
        "seconds": seconds.collect::<Vec<_>>(),
    })
}

/// `null` where nothing was counted, or too little for a percentile.
fn times(histogram: &Histogram) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let us = |ns: u64| ns as f64 / 1e3;
    let shares = QUANTILES.into_iter();
    let mut all: Map<String, Value> = shares
        .map(|(name, share)| {
            let ns = figures::share_ns(histogram, share);
            (name.to_owned(), json!(ns.map(|ns| ns / 1e3)))
        })
        .collect();
    all.insert("min".to_owned(), json!(us(histogram.min_ns())));
    all.insert("mean".to_owned(), json!(histogram.mean_ns() / 1e3));
    all.insert("max".to_owned(), json!(us(histogram.max_ns())));
    all.insert("count".to_owned(), json!(histogram.len()));
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{outcome, report};

    #[test]
    fn programs_find_figures_by_name() {
        let mut run = outcome("a", 100);
        run.plan.payload = PayloadKind::File(vec![0; 1_000_000]);
        let rows = vec![Row {
            variations: Vec::new(),
            runs: vec![run],
        }];
        let text = text(&report(rows));
        assert!(
            text.len() < 20_000,
            "no file and no histogram: {}",
            text.len()
        );
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let run = &value["rows"][0]["runs"][0];
        assert_eq!(
            (&value["is_good"], &run["kind"]),
            (&json!(true), &json!("end-to-end"))
        );
        assert_eq!(run["settings"]["payload"], "file");
        assert_eq!(run["produced"]["messages_per_s"], 1_000.0);
        assert_eq!(run["client_cpu_us_per_message"], 200.0);
        let p99 = run["consumed"]["response_us"]["p99"]
            .as_f64()
            .unwrap_or(0.0);
        assert!((98_900.0..99_200.0).contains(&p99), "{p99}");
    }
}
