//! `docs/benchmarks/amqp.md` from the raw results: medians, and where they stand to the targets.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use super::super::Peer;
use super::super::compare::write_section;
use super::super::record::{Record, Results};
use super::super::rows::{Row, newest, thousands};
use super::targets;

/// What makes a measurement a different one.
pub(super) fn key(r: &Record) -> impl PartialEq + Ord + use<> {
    (
        r.kind.clone(),
        r.client.clone(),
        r.queue.clone(),
        r.size_bytes,
        r.clients,
        r.rate_asked,
    )
}

const INTRODUCTION: &str = "\
Subjects take turns on queues of their own; figures are medians of the runs. CPU is user and \
system time of all processes of the broker, per message received: the figure that stays when the \
machine is noisy. CPU % is of one core, where the machine has more; `other` is what neither \
broker nor client used, and should be next to nothing. Peak memory is the most that \
was resident during the measurement, of all processes of the broker.\n\
\n\
`disk` is synced before the confirm; `kernel` at best survives kill -9: confirms of RabbitMQ's \
classic queue do not wait for a sync, those of its quorum queue do. `memory` is gone with the \
process, `none` has no confirms. Our queues are the same whichever type is asked for.\n\
\n\
`classic` and `quorum`: durable queue, persistent messages, at most 500 of a producer \
unconfirmed, prefetch 200, each message acknowledged. `transient`: a queue that is not durable, \
no confirms, automatic acknowledgements. PerfTest runs for three seconds before it is measured, \
because its JVM compiles; latencies are the medians of its figures for each second, and the last \
column is its p99 over the whole run, with the start. A publisher without a limit outruns the \
consumers of quorum and transient queues: latency there is the length of the queue, and `sent` is \
more than `received`.\n\
\n";

/// Writes the report of the newest run of each kind.
pub(crate) fn write(results: &Results, path: &Path) -> Result<()> {
    let all = results.all()?;
    if all.is_empty() {
        return Ok(());
    }
    let mut text =
        String::from("# AMQP: figures\n\nWritten by `cargo xtask bench-peers amqp`; raw results: ");
    writeln!(text, "{}.\n", results.links()?)?;
    if let Some(record) = all.last() {
        let m = &record.machine;
        writeln!(
            text,
            "{}, {} cores shared by broker and clients, {} GB of memory, {}, {}; everything over \
             loopback. PerfTest 2.22.1 on {}; pika 1.4.4, aio-pika 10.2.1; {}. All brokers with \
             their defaults.\n",
            m.cpu,
            m.cores,
            m.memory_mb / 1000,
            m.kernel,
            m.file_system,
            m.java,
            m.rust
        )?;
    }
    text.push_str(INTRODUCTION);
    for (kind, title) in [
        ("throughput", "As fast as PerfTest can"),
        ("latency", "At half of RabbitMQ's maximum"),
        ("paced", "At 1,000 messages per second"),
    ] {
        let rows = newest(&all, &[kind], key);
        if !rows.is_empty() {
            writeln!(text, "## {title}\n")?;
            perf_test(&mut text, &rows)?;
            targets::write(&mut text, &rows)?;
        }
    }
    let rows = newest(&all, &["confirm", "fdatasync"], key);
    if rows.iter().any(|row| row.first().kind == "confirm") {
        text.push_str(
            "## One publisher that waits for each confirm\n\n\
             The row fdatasync is the disk alone: an append, fdatasync, and again.\n\n",
        );
        confirm(&mut text, &rows)?;
        targets::write(&mut text, &rows)?;
    }
    write_section(&mut text, results, &all, Peer::Amqp)?;
    std::fs::write(path, text)?;
    println!("{}", path.display());
    Ok(())
}

/// The median of what not every record has.
fn median(row: &Row<'_>, value: fn(&Record) -> Option<f64>) -> String {
    match value(row.first()) {
        Some(_) => format!("{:.0}", row.median(|r| value(r).unwrap_or(f64::NAN))),
        None => "–".to_owned(),
    }
}

fn perf_test(text: &mut String, rows: &[Row<'_>]) -> Result<()> {
    text.push_str(
        "| queue | size | producers, consumers | asked/s | subject | durability | received/s | \
         range | sent/s | p50 µs | p99 µs | confirm p50 µs | confirm p99 µs | CPU µs | broker CPU \
         % | client CPU % | other CPU % | peak MB | runs | p99 µs of all |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let r = row.first();
        let asked = match r.rate_asked {
            Some(rate) => rate.to_string(),
            None => "–".to_owned(),
        };
        let sent = row.median(|r| r.sent.map_or(f64::NAN, |sent| sent as f64) / r.seconds);
        writeln!(
            text,
            "| {} | {} | {} | {asked} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2} | \
             {:.1} | {:.0} | {:.0} | {:.0} | {} | {} |",
            r.queue.as_deref().unwrap_or("–"),
            r.size_bytes,
            r.clients,
            r.subject,
            r.durability,
            thousands(row.rate()),
            row.range(),
            thousands(sent),
            median(row, |r| r.p50_us),
            median(row, |r| r.p99_us),
            median(row, |r| r.confirm_p50_us),
            median(row, |r| r.confirm_p99_us),
            row.cpu_us(),
            row.median(Record::broker_percent),
            row.median(Record::client_percent),
            row.median(Record::foreign_percent),
            row.median(|r| r.rss_peak_bytes as f64 / 1e6),
            row.records.len(),
            median(row, |r| r.whole_p99_us),
        )?;
    }
    Ok(())
}

fn confirm(text: &mut String, rows: &[Row<'_>]) -> Result<()> {
    text.push_str(
        "| client | queue | size | subject | durability | messages/s | range | p50 µs | p99 µs | \
         CPU µs | broker CPU % | client CPU % | other CPU % | runs |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let r = row.first();
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} | {:.0} | {} | {} | {} |",
            r.client.as_deref().unwrap_or(&r.kind),
            r.queue.as_deref().unwrap_or("–"),
            r.size_bytes,
            r.subject,
            r.durability,
            thousands(row.rate()),
            row.range(),
            median(row, |r| r.p50_us),
            median(row, |r| r.p99_us),
            row.cpu_us(),
            row.median(Record::broker_percent),
            median(row, |r| r.client_cpu_s.map(|_| r.client_percent())),
            median(row, |r| r.foreign_cpu_s.map(|_| r.foreign_percent())),
            row.records.len(),
        )?;
    }
    Ok(())
}
