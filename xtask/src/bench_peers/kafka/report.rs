//! `docs/benchmarks/kafka.md` from the raw results: medians, and where they stand to the targets.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use super::super::Peer;
use super::super::compare::write_section;
use super::super::record::{Record, Results};
use super::super::rows::{Row, newest, thousands};
use super::subject::Subject;

/// What makes a measurement a different one.
fn key(r: &Record) -> impl PartialEq + Ord + use<> {
    (
        r.kind.clone(),
        r.size_bytes,
        r.partitions,
        r.acks.clone(),
        r.rate_asked,
        r.client.clone(),
    )
}

/// Writes the report of the newest run of each kind.
pub(crate) fn write(results: &Results, path: &Path) -> Result<()> {
    let all = results.all()?;
    let mut text = String::from(
        "# Kafka: figures\n\nWritten by `cargo xtask bench-peers kafka`; raw results: ",
    );
    writeln!(text, "{}.\n", results.links()?)?;
    if let Some(record) = all.last() {
        let m = &record.machine;
        writeln!(
            text,
            "{}, {} cores shared by broker and client, {} GB of memory, {}, {}; everything over \
             loopback. {}; {}; Apache Kafka 4.3.1 in KRaft mode, -Xmx1G.\n",
            m.cpu,
            m.cores,
            m.memory_mb / 1000,
            m.kernel,
            m.file_system,
            m.java,
            m.rust
        )?;
    }
    text.push_str(
        "Subjects take turns on topics of their own; figures are medians. CPU is user and system \
         time of the broker process alone, per message: the figure that stays when the machine is \
         noisy. `disk` is synced before the answer, `kernel` survives kill -9 only: Kafka's \
         acks=all on one node is `kernel`. Memory is the most that was resident since the start. \
         librdkafka's mock broker runs in the client's process: its row is what the client alone \
         costs. The row fdatasync is the disk alone: an append, fdatasync, and again.\n\
         \n",
    );
    let sections = [
        (
            &["produce", "consume"][..],
            "ProducerPerformance, ConsumerPerformance",
        ),
        (
            &["rdkafka-produce", "rdkafka-consume"],
            "rdkafka_performance",
        ),
        (
            &["sync", "fdatasync"],
            "produce and flush for each message (confluent-kafka)",
        ),
        (&["sync-tls"], "The same over TLS"),
        (
            &["e2e"],
            "Age of a message when it is consumed (confluent-kafka)",
        ),
        (&["e2e-tool"], "EndToEndLatency"),
        (
            &["cat", "cold-read"],
            "A cold log, and `cat` of its files to a socket",
        ),
    ];
    for (kinds, title) in sections {
        let rows = newest(&all, kinds, key);
        if !rows.is_empty() {
            section(&mut text, title, &rows)?;
        }
    }
    write_section(&mut text, results, &all, Peer::Kafka)?;
    std::fs::write(path, text)?;
    println!("{}", path.display());
    Ok(())
}

fn section(text: &mut String, title: &str, rows: &[Row<'_>]) -> Result<()> {
    writeln!(
        text,
        "## {title}\n\n\
         | | size | partitions | acks | | subject | durability | messages/s | range | p50 µs | \
         p99 µs | CPU µs | peak MB | runs |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for row in rows {
        let r = row.first();
        let client = match (&r.client, r.rate_asked) {
            (Some(client), _) => client.clone(),
            (None, Some(rate)) => format!("{rate}/s"),
            (None, None) => String::new(),
        };
        let us = |value: fn(&Record) -> Option<f64>| match value(r) {
            Some(_) => format!("{:.0}", row.median(|r| value(r).unwrap_or(f64::NAN))),
            None => "–".to_owned(),
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {client} | {} | {} | {} | {} | {} | {} | {:.2} | {:.0} | {} |",
            r.kind,
            r.size_bytes,
            r.partitions.unwrap_or(1),
            r.acks.as_deref().unwrap_or("–"),
            r.subject,
            r.durability,
            thousands(row.rate()),
            row.range(),
            us(|r| r.p50_us.or(r.mean_us)),
            us(|r| r.p99_us),
            row.cpu_us(),
            row.median(|r| r.rss_peak_bytes as f64 / 1e6),
            row.records.len(),
        )?;
    }
    let mut targets = String::new();
    for ours in rows
        .iter()
        .filter(|row| row.first().subject == Subject::Ours.name())
    {
        compare(&mut targets, rows, ours)?;
    }
    if !targets.is_empty() {
        text.push_str(
            "\n### Against the targets\n\n\
             | | size | partitions | acks | what | is | target | |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        text.push_str(&targets);
    }
    text.push('\n');
    Ok(())
}

/// A row of the table of targets.
struct Target<'a> {
    ours: &'a Record,
    text: &'a mut String,
}

impl Target<'_> {
    fn line(&mut self, what: &str, is: f64, bound: Bound) -> Result<()> {
        let (met, sign, target) = match bound {
            Bound::AtLeast(target) => (is >= target, "≥", target),
            Bound::AtMost(target) => (is <= target, "≤", target),
        };
        let mark = if met { "met" } else { "**missed**" };
        let r = self.ours;
        Ok(writeln!(
            self.text,
            "| {} | {} | {} | {} | {what} | {is:.2} | {sign} {target:.2} | {mark} |",
            r.kind,
            r.size_bytes,
            r.partitions.unwrap_or(1),
            r.acks.as_deref().unwrap_or("–"),
        )?)
    }
}

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

fn compare(text: &mut String, rows: &[Row<'_>], ours: &Row<'_>) -> Result<()> {
    use Bound::{AtLeast, AtMost};
    let r = ours.first();
    let of = |subject: Subject| {
        rows.iter()
            .find(|row| row.first().subject == subject.name() && key(row.first()) == key(r))
    };
    let p50 = |row: &Row<'_>| row.median(|r| r.p50_us.or(r.mean_us).unwrap_or(f64::NAN));
    let p99 = |row: &Row<'_>| row.median(|r| r.p99_us.unwrap_or(f64::NAN));
    let mut target = Target { ours: r, text };
    let (kafka, floor) = (of(Subject::Kafka), of(Subject::Floor));
    match (r.kind.as_str(), kafka) {
        ("produce" | "rdkafka-produce", Some(kafka)) => {
            let of_kafka = ours.cpu_us() / kafka.cpu_us();
            let of_floor = floor.map_or(f64::INFINITY, |floor| ours.cpu_us() / floor.cpu_us());
            // One of the two is enough.
            if of_kafka > 1.0 / 3.0 && of_floor.is_finite() {
                target.line("CPU, of the floor's", of_floor, AtMost(1.5))?;
            }
            if of_kafka <= 1.0 / 3.0 || of_floor > 1.5 {
                target.line("CPU, of Kafka's", of_kafka, AtMost(1.0 / 3.0))?;
            }
            let broker_bound = r.kind == "rdkafka-produce" && r.size_bytes >= 1024;
            let rate = if broker_bound { 1.5 } else { 1.0 };
            target.line(
                "rate, of Kafka's",
                ours.rate() / kafka.rate(),
                AtLeast(rate),
            )?;
            let peak = ours.median(|r| r.rss_peak_bytes as f64 / 1e6);
            target.line("peak memory, MB", peak, AtMost(150.0))
        }
        ("consume" | "rdkafka-consume", Some(kafka)) => target.line(
            "CPU, of Kafka's",
            ours.cpu_us() / kafka.cpu_us(),
            AtMost(1.0),
        ),
        ("sync", Some(kafka)) if r.acks.as_deref() == Some("1") => {
            target.line("median, of Kafka's", p50(ours) / p50(kafka), AtMost(0.85))
        }
        ("sync", Some(kafka)) => {
            let Some(disk) = rows.iter().find(|row| row.first().kind == "fdatasync") else {
                return Ok(());
            };
            target.line(
                "median above Kafka's, in µs (one fdatasync)",
                p50(ours) - p50(kafka),
                AtMost(1e6 / disk.rate()),
            )
        }
        ("sync-tls", _) => {
            let client = r.client.as_deref().unwrap_or_default();
            let Some(library) = client.strip_suffix("Nagle on") else {
                return Ok(());
            };
            let other = format!("{library}Nagle off");
            let without = rows.iter().find(|row| {
                let o = row.first();
                o.subject == r.subject && o.client.as_ref() == Some(&other) && o.acks == r.acks
            });
            let Some(without) = without else {
                return Ok(());
            };
            let what = format!("{client}: median, of with it off");
            target.line(&what, p50(ours) / p50(without), AtMost(1.2))
        }
        ("e2e", Some(kafka)) => {
            let rate = r.rate_asked.unwrap_or(0);
            let what = format!("{rate}/s: median, of Kafka's");
            target.line(&what, p50(ours) / p50(kafka), AtMost(0.7))?;
            let what = format!("{rate}/s: p99, of Kafka's");
            target.line(&what, p99(ours) / p99(kafka), AtMost(0.7))
        }
        ("e2e-tool", Some(kafka)) => {
            target.line("mean, of Kafka's", p50(ours) / p50(kafka), AtMost(0.7))
        }
        ("cold-read", _) => {
            let cat = rows
                .iter()
                .find(|row| row.first().kind == "cat" && row.first().subject == r.subject);
            cat.map_or(Ok(()), |cat| {
                target.line("speed, of cat's", ours.rate() / cat.rate(), AtLeast(0.8))
            })
        }
        _ => Ok(()),
    }
}
