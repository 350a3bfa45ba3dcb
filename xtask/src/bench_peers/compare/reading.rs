//! The figures that `cloverleaf bench --json` prints, and the records that they become.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::super::record::{Record, Results};
use super::loads::Load;

/// Notes that begin so tell of something that went wrong.
const BAD_NOTES: [&str; 8] = [
    "CUT SHORT",
    "FAILED",
    "LOST",
    "ERRORS",
    "NO ANSWER",
    "DAMAGED",
    "OUT OF ORDER",
    "Rows are missing",
];

/// All that one call has measured.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    is_good: bool,
    notes: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    label: String,
    runs: Vec<Run>,
}

/// One measurement.
#[derive(Debug, Deserialize)]
pub(crate) struct Run {
    kind: String,
    durability: String,
    versions: BTreeMap<String, String>,
    settings: Settings,
    produced: Option<Side>,
    consumed: Option<Side>,
    findings: Option<Findings>,
    usage: Costs,
    cut: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Settings {
    size_bytes: u32,
}

#[derive(Debug, Deserialize)]
struct Side {
    messages: u64,
    sent: u64,
    messages_per_s: f64,
    response_us: Option<Times>,
    service_us: Option<Times>,
    generator_lag_us: Option<Times>,
}

/// Quantiles in microseconds, as far as there was enough for them.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Times {
    p50: Option<f64>,
    p99: Option<f64>,
    mean: f64,
}

#[derive(Debug, Deserialize)]
struct Findings {
    lost: u64,
    out_of_order: u64,
}

#[derive(Debug, Deserialize)]
struct Costs {
    client_cpu_s: f64,
    broker_cpu_s: Option<f64>,
    broker_rss_bytes: Option<u64>,
}

impl Measured {
    /// Reads what was printed.
    pub(crate) fn read(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("it has printed no figures, or others")
    }

    /// Whether nothing was lost, out of order, cut short or missing.
    pub(crate) fn is_good(&self) -> bool {
        self.is_good && self.runs().all(|(_, run)| run.costs().is_ok())
    }

    /// Each measurement with the name of its subject.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&str, &Run)> {
        let rows = self.rows.iter();
        rows.flat_map(|row| row.runs.iter().map(|run| (row.label.as_str(), run)))
    }

    /// What went wrong, in sentences.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &str> {
        let is_bad = |note: &&str| BAD_NOTES.iter().any(|start| note.starts_with(start));
        self.notes.iter().map(String::as_str).filter(is_bad)
    }
}

impl Run {
    /// The side that it is about: the consumers' if there is one.
    fn main(&self) -> Result<&Side> {
        let side = self.consumed.as_ref().or(self.produced.as_ref());
        side.context("nothing was measured")
    }

    /// CPU seconds and memory of the broker: without these a measurement says too little.
    pub(crate) fn costs(&self) -> Result<(f64, u64)> {
        let usage = &self.usage;
        let both = usage.broker_cpu_s.zip(usage.broker_rss_bytes);
        both.context("CPU time and memory of the broker were not seen")
    }

    /// Its figures as a record. One that was cut short is none.
    pub(super) fn record(&self, results: &Results, name: &str, load: &Load) -> Result<Record> {
        if let Some(reason) = &self.cut {
            bail!("{reason}");
        }
        let main = self.main()?;
        let kind = match (self.kind.as_str(), load.rate) {
            ("produce", _) => "bench-publish",
            ("consume", _) => "bench-consume",
            ("end-to-end", None) => "bench-both",
            ("end-to-end", Some(_)) => "bench-latency",
            (other, _) => bail!("what is {other}?"),
        };
        let mut record = results.blank(kind, name, &self.durability);
        (record.broker_cpu_s, record.rss_peak_bytes) = self.costs()?;
        record.client_cpu_s = Some(self.usage.client_cpu_s);
        record.size_bytes = self.settings.size_bytes;
        record.clients = load.clients;
        record.acks.clone_from(&load.acks);
        record.partitions = load.partitions;
        record.queue = load.queue.map(str::to_owned);
        record.rate_asked = load.rate;
        record.messages = main.messages;
        if main.messages_per_s <= 0.0 {
            bail!("it has no rate");
        }
        // So that its rate is the one that was printed: without what came when nobody sent.
        record.seconds = main.messages as f64 / main.messages_per_s;
        let produced = self.produced.as_ref();
        record.sent = produced
            .filter(|_| self.consumed.is_some())
            .map(|it| it.sent);
        if let Some(times) = main.response_us {
            record.p50_us = times.p50;
            record.p99_us = times.p99;
            record.mean_us = Some(times.mean);
        }
        // Where there is a rate, those are from when a message was to be sent; these from when it
        // was.
        let service = main.service_us.filter(|_| load.rate.is_some());
        record.service_p50_us = service.and_then(|times| times.p50);
        record.service_p99_us = service.and_then(|times| times.p99);
        let lag = produced.and_then(|side| side.generator_lag_us);
        record.lag_p99_us = lag.and_then(|times| times.p99);
        if let Some(findings) = &self.findings {
            record.lost = Some(findings.lost);
            record.out_of_order = Some(findings.out_of_order);
        }
        record.versions = Some(self.versions.clone());
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::machine;
    use super::*;

    /// As `cloverleaf bench compare --what latency --json` prints it, cut down.
    const PRINTED: &str = r#"{
        "title": "theirs, ours", "is_good": false,
        "notes": ["LOST: ours: 3 messages were acknowledged.", "Closed loop: no time."],
        "rows": [{
            "label": "nsqd, mem-queue-size=0", "variations": {}, "messages_per_s": 999.0,
            "runs": [{
                "url": "nsq://127.0.0.1:1", "versions": {"NSQ broker": "1.3.0"},
                "durability": "kernel", "kind": "end-to-end",
                "settings": {"size_bytes": 100, "producers": 1},
                "produced": {"messages": 1000, "sent": 1001, "messages_per_s": 1000.0,
                    "response_us": {"p50": 5.0, "p99": 6.0, "mean": 5.5, "p99.9": 9},
                    "service_us": {"p50": 4.0, "p99": null, "mean": 4.5},
                    "generator_lag_us": {"p50": 1.0, "p99": 2.0, "mean": 1.5}},
                "consumed": {"messages": 997, "sent": 0, "messages_per_s": 498.5,
                    "response_us": {"p50": 50.0, "p99": 60.0, "mean": 55.0},
                    "service_us": {"p50": 40.0, "p99": 45.0, "mean": 42.0},
                    "generator_lag_us": null},
                "findings": {"lost": 3, "duplicates": 0, "out_of_order": 0, "unread": 0},
                "usage": {"wall_s": 2.0, "client_cpu_s": 0.5, "proxy_cpu_s": 0.0,
                    "broker_cpu_s": 0.25, "broker_rss_bytes": 4096},
                "cut": null
            }]
        }]
    }"#;

    fn load(rate: Option<u32>) -> Load {
        Load {
            clients: 1,
            rate,
            ..Load::default()
        }
    }

    fn results(folder: &Path) -> Result<Results> {
        Results::open(folder, "nsq", machine::describe(folder))
    }

    #[test]
    fn a_printed_run_becomes_a_record() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let results = results(folder.path())?;
        let measured = Measured::read(PRINTED)?;
        assert!(!measured.is_good());
        let failures: Vec<&str> = measured.failures().collect();
        assert_eq!(failures, ["LOST: ours: 3 messages were acknowledged."]);
        let (name, run) = measured.runs().next().context("there is one")?;
        let record = run.record(&results, name, &load(Some(1000)))?;
        assert_eq!(record.kind, "bench-latency");
        assert_eq!(record.subject, "nsqd, mem-queue-size=0");
        assert_eq!((record.messages, record.seconds), (997, 2.0));
        assert_eq!((record.sent, record.lost), (Some(1001), Some(3)));
        assert_eq!((record.p50_us, record.p99_us), (Some(50.0), Some(60.0)));
        assert_eq!(
            (record.service_p99_us, record.lag_p99_us),
            (Some(45.0), Some(2.0))
        );
        assert_eq!((record.broker_cpu_s, record.rss_peak_bytes), (0.25, 4096));
        let both = run.record(&results, name, &load(None))?;
        assert_eq!(
            (both.kind.as_str(), both.service_p99_us),
            ("bench-both", None)
        );
        results.add(&record)?;
        let read = results.all()?;
        let versions = read[0].versions.as_ref().context("they are kept")?;
        assert_eq!(versions["NSQ broker"], "1.3.0");
        Ok(())
    }

    #[test]
    fn what_is_not_whole_is_no_record() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let results = results(folder.path())?;
        for (whole, part, why) in [
            ("\"cut\": null", "\"cut\": \"it went away\"", "it went away"),
            (
                "\"broker_cpu_s\": 0.25",
                "\"broker_cpu_s\": null",
                "were not seen",
            ),
            (
                "\"broker_rss_bytes\": 4096",
                "\"broker_rss_bytes\": null",
                "were not seen",
            ),
        ] {
            let text = PRINTED.replace(whole, part);
            let measured =
                Measured::read(&text.replace("\"is_good\": false", "\"is_good\": true"))?;
            let (name, run) = measured.runs().next().context("there is one")?;
            let error = run
                .record(&results, name, &load(None))
                .err()
                .context(part)?;
            assert!(error.to_string().contains(why), "{error}");
            let sees_costs = !why.contains("seen");
            assert_eq!(measured.is_good(), sees_costs, "{part}");
        }
        assert!(Measured::read("error: no").is_err());
        assert!(Measured::read(&PRINTED.replace("\"usage\"", "\"used\"")).is_err());
        Ok(())
    }
}
