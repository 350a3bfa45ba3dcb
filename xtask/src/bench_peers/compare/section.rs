//! The section of `docs/benchmarks/PEER.md` that lays what `cloverleaf bench` says beside what the
//! peer's own program says.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Result;

use super::super::Peer;
use super::super::record::{Record, Results};
use super::super::rows::{Row, newest, thousands};

/// Whose figures stand in the last columns.
struct Tool {
    name: &'static str,
    /// Our kinds of records, and those of the same thing by that tool.
    kinds: &'static [(&'static str, &'static str)],
}

impl Tool {
    fn of(peer: Peer) -> Self {
        match peer {
            Peer::Nsq => Self {
                name: "bench_writer, bench_reader",
                kinds: &[("bench-publish", "pub"), ("bench-consume", "sub")],
            },
            Peer::Kafka => Self {
                name: "rdkafka_performance, confluent-kafka",
                kinds: &[
                    ("bench-publish", "rdkafka-produce"),
                    ("bench-consume", "rdkafka-consume"),
                    ("bench-latency", "e2e"),
                ],
            },
            Peer::Amqp => Self {
                name: "PerfTest",
                kinds: &[("bench-both", "throughput"), ("bench-latency", "paced")],
            },
        }
    }

    /// What it has measured last of the same load.
    fn rows<'a>(&self, all: &'a [Record]) -> Vec<Row<'a>> {
        let kinds = self.kinds.iter();
        kinds
            .flat_map(|(_, theirs)| newest(all, &[*theirs], load))
            .collect()
    }

    fn beside<'r, 'a>(&self, ours: &Record, rows: &'r [Row<'a>]) -> Option<&'r Row<'a>> {
        let (_, kind) = self.kinds.iter().find(|(kind, _)| *kind == ours.kind)?;
        rows.iter().find(|row| {
            let r = row.first();
            r.kind == *kind && r.subject == ours.subject && load(r) == load(ours)
        })
    }
}

/// What was asked of a subject.
fn load(r: &Record) -> impl Ord + use<> {
    (
        r.size_bytes,
        r.clients,
        r.acks.clone(),
        r.partitions,
        r.queue.clone(),
        r.rate_asked,
    )
}

const KINDS: [&str; 4] = [
    "bench-publish",
    "bench-consume",
    "bench-both",
    "bench-latency",
];

/// Writes it, if there are such figures.
pub(crate) fn write(
    text: &mut String,
    results: &Results,
    all: &[Record],
    peer: Peer,
) -> Result<()> {
    let rows: Vec<Row<'_>> = KINDS
        .iter()
        .flat_map(|kind| newest(all, &[*kind], load))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let tool = Tool::of(peer);
    let theirs = tool.rows(all);
    writeln!(text, "## `cloverleaf bench`, beside {}\n", tool.name)?;
    let versions = rows.iter().flat_map(|row| &row.first().versions).flatten();
    let versions: BTreeSet<String> = versions
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let versions: Vec<String> = versions.into_iter().collect();
    writeln!(
        text,
        "`cargo xtask bench-peers {} --bench`: `cloverleaf bench compare` with the settings of \
         that program ({}); its pages: {}.\n",
        peer.name(),
        versions.join(", "),
        results.page_links()?,
    )?;
    text.push_str(
        "Without a rate (closed loop) latency is from the sending of a message; with one it is \
         from the time at which it was to be sent, and the column behind from the sending, which \
         is what other programs show. It ends with the answer where nobody consumes. Memory is \
         the most that was seen when it was looked at, 20 times a second. The last four columns \
         are what the other program said in its newest run of the same load: at another time of \
         the same machine.\n\n\
         | | size | clients | | asked/s | subject | durability | messages/s | range | p50 µs | \
         p99 µs | p99 µs from sending | CPU µs | client CPU µs | peak MB | lost | runs | \
         theirs: messages/s | CPU µs | p50 µs | p99 µs |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &rows {
        line(text, row, tool.beside(row.first(), &theirs))?;
    }
    text.push('\n');
    Ok(())
}

fn line(text: &mut String, row: &Row<'_>, theirs: Option<&Row<'_>>) -> Result<()> {
    let r = row.first();
    let setting = match (&r.acks, &r.queue) {
        (Some(acks), _) => format!("acks={acks}"),
        (None, Some(queue)) => queue.clone(),
        (None, None) => "–".to_owned(),
    };
    let asked = r.rate_asked.map(|rate| rate.to_string());
    let client_us = |r: &Record| Some(r.client_cpu_s? * 1e6 / r.messages as f64);
    let lost: Option<u64> = row.records.iter().map(|r| r.lost).sum();
    write!(
        text,
        "| {} | {} | {} | {setting} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2} | {} | {:.0} | \
         {} | {} |",
        r.kind,
        r.size_bytes,
        r.clients,
        asked.as_deref().unwrap_or("–"),
        r.subject,
        r.durability,
        thousands(row.rate()),
        row.range(),
        median(row, 0, |r| r.p50_us),
        median(row, 0, |r| r.p99_us),
        median(row, 0, |r| r.service_p99_us),
        row.cpu_us(),
        median(row, 2, client_us),
        row.median(|r| r.rss_peak_bytes as f64 / 1e6),
        lost.map_or_else(|| "–".to_owned(), |lost| lost.to_string()),
        row.records.len(),
    )?;
    match theirs {
        Some(theirs) => writeln!(
            text,
            " {} | {:.2} | {} | {} |",
            thousands(theirs.rate()),
            theirs.cpu_us(),
            median(theirs, 0, |r| r.p50_us),
            median(theirs, 0, |r| r.p99_us),
        )?,
        None => text.push_str(" – | – | – | – |\n"),
    }
    Ok(())
}

/// The median of what not every record has.
fn median(row: &Row<'_>, decimals: usize, value: impl Fn(&Record) -> Option<f64>) -> String {
    match value(row.first()) {
        Some(_) => format!(
            "{:.decimals$}",
            row.median(|r| value(r).unwrap_or(f64::NAN))
        ),
        None => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::machine;
    use super::*;

    fn record(results: &Results, kind: &str, subject: &str, messages: u64) -> Record {
        let mut record = results.blank(kind, subject, "kernel");
        (record.size_bytes, record.messages, record.seconds) = (100, messages, 1.0);
        (record.broker_cpu_s, record.rss_peak_bytes) = (0.001, 5_000_000);
        record
    }

    #[test]
    fn both_programs_stand_in_one_line() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let results = Results::open(folder.path(), "nsq", machine::describe(folder.path()))?;
        let mut large = record(&results, "bench-publish", "ours", 700);
        large.size_bytes = 200;
        let all = [
            record(&results, "bench-publish", "nsqd", 400),
            record(&results, "bench-publish", "ours", 500),
            large,
            record(&results, "pub", "nsqd", 300),
            record(&results, "pub", "ours", 600),
            // Of another load.
            record(&results, "sub", "ours", 900),
        ];
        let mut text = String::new();
        write(&mut text, &results, &all, Peer::Nsq)?;
        let end = |rate: u64, subject: &str| {
            let mut lines = text.lines().filter(|line| {
                line.contains(&format!("| {rate} |")) && line.contains(&format!("| {subject} |"))
            });
            let line = lines.next().unwrap_or_default();
            let cells: Vec<&str> = line.split(" | ").collect();
            cells[cells.len() - 4..].join(" ")
        };
        assert_eq!(end(400, "nsqd"), "300 3.33 – – |");
        assert_eq!(end(500, "ours"), "600 1.67 – – |");
        assert_eq!(end(700, "ours"), "– – – – |");
        let mut none = String::new();
        write(&mut none, &results, &all[3..], Peer::Nsq)?;
        assert_eq!(none, "", "no section where nothing was measured");
        Ok(())
    }
}
