//! `docs/benchmarks/nsq.md` from the raw results: medians, and where they stand to the targets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use anyhow::Result;

use super::Peer;
use super::compare::write_section;
use super::machine::Machine;
use super::record::{Record, Results};
use super::rows::{Row, thousands};
use super::subject::Subject;

/// Writes the report of the newest run of each kind.
pub(super) fn write(results: &Results, path: &Path) -> Result<()> {
    let all = results.all()?;
    let mut text = String::from(
        "# NSQ: figures\n\n\
         Written by `cargo xtask bench-peers nsq`, `--disk64` and `--latency`; raw results: ",
    );
    writeln!(text, "{}.\n", results.links()?)?;
    text.push_str(
        "Subjects take turns; figures are medians. CPU is user and system time of the broker \
         process alone, per message: the figure that stays when the machine is noisy. Durability \
         is what an answer promises: `memory` is lost with the process, `kernel` survives kill -9, \
         `disk` a power failure.\n\n",
    );
    let (disk64, latency) = (
        newest(&all, &["disk64", "fdatasync"]),
        newest(&all, &["latency"]),
    );
    for run in comparisons(&all, &["pub", "sub"]) {
        throughput_section(&mut text, &rows_of(&all, &["pub", "sub"], run))?;
    }
    if !disk64.is_empty() {
        disk64_section(&mut text, &disk64)?;
    }
    if !latency.is_empty() {
        latency_section(&mut text, &latency)?;
    }
    write_section(&mut text, results, &all, Peer::Nsq)?;
    std::fs::write(path, text)?;
    println!("{}", path.display());
    Ok(())
}

/// Where a run was: not all ran on the same machine.
fn machine(text: &mut String, rows: &[Row<'_>]) -> Result<()> {
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let Machine {
        cpu,
        cores,
        memory_mb,
        kernel,
        file_system,
        go,
        rust,
        ..
    } = &row.first().machine;
    Ok(writeln!(
        text,
        "{cpu}, {cores} cores shared by broker and client, {} GB of memory, {kernel}, \
         {file_system}; everything over loopback. {go}; {rust}; NSQ 1.3.0.\n",
        memory_mb / 1000,
    )?)
}

/// Records of the newest run that has these kinds, grouped by what was measured.
fn newest<'a>(all: &'a [Record], kinds: &[&str]) -> Vec<Row<'a>> {
    let of_kind = all
        .iter()
        .filter(|record| kinds.contains(&record.kind.as_str()));
    match of_kind.map(|record| record.run).max() {
        Some(run) => rows_of(all, kinds, run),
        None => Vec::new(),
    }
}

/// The newest run of each set of subjects that took turns, the largest set first: figures of
/// different runs are not to be compared.
fn comparisons(all: &[Record], kinds: &[&str]) -> Vec<u64> {
    let mut subjects: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for record in all {
        if kinds.contains(&record.kind.as_str()) {
            subjects
                .entry(record.run)
                .or_default()
                .insert(&record.subject);
        }
    }
    let newest: BTreeMap<_, _> = subjects.into_iter().map(|(run, set)| (set, run)).collect();
    let mut newest: Vec<_> = newest.into_iter().collect();
    newest.sort_by_key(|(set, run)| (Reverse(set.len()), *run));
    newest.into_iter().map(|(_, run)| run).collect()
}

/// Records of one run with these kinds, grouped by what was measured.
fn rows_of<'a>(all: &'a [Record], kinds: &[&str], run: u64) -> Vec<Row<'a>> {
    let of_kind = all
        .iter()
        .filter(|record| kinds.contains(&record.kind.as_str()));
    let mut rows: Vec<Row<'a>> = Vec::new();
    let key = |r: &Record| {
        (
            r.kind.clone(),
            r.size_bytes,
            r.clients,
            r.topics,
            r.subject.clone(),
        )
    };
    for record in of_kind.filter(|record| record.run == run) {
        match rows.iter_mut().find(|row| key(row.first()) == key(record)) {
            Some(row) => row.records.push(record),
            None => rows.push(Row {
                records: vec![record],
            }),
        }
    }
    rows.sort_by_key(|row| {
        let r = row.first();
        (r.kind.clone(), r.size_bytes, r.clients, r.topics)
    });
    rows
}

fn throughput_section(text: &mut String, rows: &[Row<'_>]) -> Result<()> {
    let subjects: BTreeSet<&str> = rows.iter().map(|r| r.first().subject.as_str()).collect();
    let subjects: Vec<&str> = subjects.into_iter().collect();
    writeln!(text, "## Throughput: {}\n", subjects.join(" · "))?;
    let seconds = rows
        .first()
        .map_or(0.0, |row| row.median(|r| r.seconds))
        .round();
    writeln!(
        text,
        "bench_writer with batches of 200, then bench_reader; {seconds} s each.\n"
    )?;
    machine(text, rows)?;
    text.push_str(
        "\
         | | size | clients | subject | durability | messages/s | range | CPU µs | peak MB | \
         left | runs |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let r = row.first();
        let backlog = match r.backlog {
            Some(_) => thousands(row.median(|r| r.backlog.unwrap_or(0) as f64)),
            None => "–".to_owned(),
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {:.2} | {:.0} | {backlog} | {} |",
            r.kind,
            r.size_bytes,
            r.clients,
            r.subject,
            r.durability,
            thousands(row.rate()),
            row.range(),
            row.cpu_us(),
            row.median(|r| r.rss_peak_bytes as f64 / 1e6),
            row.records.len(),
        )?;
    }
    text.push_str(
        "\n\"left\" is the backlog after reading: with 0 the reader ran dry, and its rate is the \
         backlog's size over the time.\n\n### Against the targets\n\n\
         | | size | clients | what | is | target | |\n|---|---|---|---|---|---|---|\n",
    );
    for ours in rows
        .iter()
        .filter(|row| row.first().subject == Subject::Ours.name())
    {
        targets(text, rows, ours)?;
    }
    text.push('\n');
    Ok(())
}

fn targets(text: &mut String, rows: &[Row<'_>], ours: &Row<'_>) -> Result<()> {
    let o = ours.first();
    let other = |subject: Subject| {
        rows.iter().find(|row| {
            let r = row.first();
            r.subject == subject.name()
                && (&r.kind, r.size_bytes, r.clients) == (&o.kind, o.size_bytes, o.clients)
        })
    };
    let mut line = |what: &str, is: f64, target: f64, at_least: bool| -> Result<()> {
        let met = if at_least { is >= target } else { is <= target };
        let bound = if at_least { "≥" } else { "≤" };
        let mark = if met { "met" } else { "**missed**" };
        Ok(writeln!(
            text,
            "| {} | {} | {} | {what} | {is:.2} | {bound} {target:.2} | {mark} |",
            o.kind, o.size_bytes, o.clients
        )?)
    };
    let publishes = o.kind == "pub";
    if let Some(nsqd) = other(Subject::NsqdMemory) {
        let (rate, cpu) = if publishes {
            (2.0, 1.0 / 3.0)
        } else {
            (1.5, 0.4)
        };
        line("rate, of nsqd's", ours.rate() / nsqd.rate(), rate, true)?;
        line("CPU, of nsqd's", ours.cpu_us() / nsqd.cpu_us(), cpu, false)?;
    }
    if !publishes {
        return Ok(());
    }
    if let Some(nsqd) = other(Subject::NsqdFile) {
        line(
            "rate, of nsqd's with mem-queue-size=0",
            ours.rate() / nsqd.rate(),
            6.0,
            true,
        )?;
    }
    if let Some(floor) = other(Subject::Floor) {
        line(
            "rate, of the floor's",
            ours.rate() / floor.rate(),
            0.5,
            true,
        )?;
        line(
            "CPU, of the floor's",
            ours.cpu_us() / floor.cpu_us(),
            2.5,
            false,
        )?;
    }
    if let (Some(disk), 4) = (other(Subject::OursDisk), o.clients) {
        line(
            "rate with durability=disk, of our own",
            disk.rate() / ours.rate(),
            0.5,
            true,
        )?;
    }
    Ok(())
}

fn disk64_section(text: &mut String, rows: &[Row<'_>]) -> Result<()> {
    text.push_str("## Group commit\n\n");
    machine(text, rows)?;
    text.push_str(
        "64 connections of a client in Rust; each publishes one message of 100 \
         bytes and waits for the answer. The first rows are the disk itself: append 4 KiB to a \
         file whose size is set, fdatasync, and again.\n\n\
         | topics | subject | durability | messages/s | range | CPU µs | of fdatasync | target | \
         runs |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let disk = rows
        .iter()
        .find(|row| row.first().kind == "fdatasync")
        .map(Row::rate);
    for row in rows.iter().rev() {
        let r = row.first();
        let of_disk = disk.map_or_else(String::new, |disk| format!("{:.1}", row.rate() / disk));
        let target = if r.subject == Subject::OursDisk.name() {
            "≥ 8"
        } else {
            "–"
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.1} | {of_disk} | {target} | {} |",
            r.topics,
            r.subject,
            r.durability,
            thousands(row.rate()),
            row.range(),
            row.cpu_us(),
            row.records.len(),
        )?;
    }
    text.push('\n');
    Ok(())
}

fn latency_section(text: &mut String, rows: &[Row<'_>]) -> Result<()> {
    text.push_str("## Latency\n\n");
    machine(text, rows)?;
    text.push_str(
        "From the moment a message of 100 bytes is sent until a waiting consumer has \
         it; the next is sent when the first is answered and finished. Target: our median is at \
         most nsqd's.\n\n\
         | subject | durability | median µs | p99 µs | CPU µs | runs |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in rows {
        let r = row.first();
        writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {:.1} | {} |",
            r.subject,
            r.durability,
            row.median(|r| r.p50_us.unwrap_or(f64::NAN)),
            row.median(|r| r.p99_us.unwrap_or(f64::NAN)),
            row.cpu_us(),
            row.records.len(),
        )?;
    }
    text.push('\n');
    Ok(())
}
