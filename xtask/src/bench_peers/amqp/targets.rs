//! What issue and design ask for, and what is.

use std::fmt::Write;

use anyhow::Result;

use super::super::record::Record;
use super::super::rows::Row;
use super::report::key;
use super::subject::OURS;

/// From this part of what the client could do with a broker that costs nothing, it is the limit.
const CLIENT_LIMIT: f64 = 0.8;

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A table of targets for our rows among these, and how many of them are met.
pub(super) fn write(text: &mut String, rows: &[Row<'_>]) -> Result<()> {
    let mut table = Table::default();
    for ours in rows.iter().filter(|row| row.first().subject == OURS) {
        paced(&mut table, ours)?;
        let same =
            |row: &&Row<'_>| row.first().subject != OURS && key(row.first()) == key(ours.first());
        for other in rows.iter().filter(same) {
            compare(&mut table, ours, other)?;
        }
    }
    if table.lines.is_empty() {
        text.push('\n');
        return Ok(());
    }
    writeln!(
        text,
        "\n### Against the targets: {} of {} met\n",
        table.met, table.all
    )?;
    text.push_str(
        "| | queue | size | producers, consumers | what | is | target | |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    text.push_str(&table.lines);
    text.push('\n');
    Ok(())
}

#[derive(Default)]
struct Table {
    lines: String,
    all: u32,
    met: u32,
}

impl Table {
    fn line(&mut self, ours: &Record, what: &str, is: f64, bound: Bound) -> Result<()> {
        let (met, sign, target) = match bound {
            Bound::AtLeast(target) => (is >= target, "≥", target),
            Bound::AtMost(target) => (is <= target, "≤", target),
        };
        self.all += 1;
        self.met += u32::from(met);
        let mark = if met { "met" } else { "**missed**" };
        Ok(writeln!(
            self.lines,
            "| {} | {} | {} | {} | {what} | {is:.2} | {sign} {target:.2} | {mark} |",
            ours.client.as_deref().unwrap_or(&ours.kind),
            ours.queue.as_deref().unwrap_or("–"),
            ours.size_bytes,
            ours.clients,
        )?)
    }
}

/// Targets that are no comparison.
fn paced(table: &mut Table, ours: &Row<'_>) -> Result<()> {
    let r = ours.first();
    if r.kind != "paced" {
        return Ok(());
    }
    let most = match r.queue.as_deref() {
        Some("transient") => 3.0,
        _ => 15.0,
    };
    let is = ours.median(Record::broker_percent);
    table.line(r, "broker CPU, % of a core", is, Bound::AtMost(most))
}

fn compare(table: &mut Table, ours: &Row<'_>, other: &Row<'_>) -> Result<()> {
    use Bound::{AtLeast, AtMost};
    let r = ours.first();
    let whose = format!(
        "of {}'s",
        other.first().subject.split(',').next().unwrap_or_default()
    );
    let ratio = |value: fn(&Record) -> f64| ours.median(value) / other.median(value);
    let p50 = || ratio(|r| r.p50_us.unwrap_or(f64::NAN));
    match r.kind.as_str() {
        "throughput" => {
            let rate = ours.rate() / other.rate();
            let of_limit = ours.median(client_share);
            // One of the two is enough.
            if rate >= 5.0 || of_limit < CLIENT_LIMIT {
                table.line(r, &format!("rate, {whose}"), rate, AtLeast(5.0))?;
            } else {
                let what = format!(
                    "rate, of what the client could if the broker cost nothing ({rate:.2} {whose})"
                );
                table.line(r, &what, of_limit, AtLeast(CLIENT_LIMIT))?;
            }
            table.line(
                r,
                &format!("CPU, {whose}"),
                ratio(Record::cpu_us),
                AtMost(0.1),
            )?;
            let memory = ratio(|r| r.rss_peak_bytes as f64);
            table.line(
                r,
                &format!("peak memory, {whose}"),
                memory,
                AtMost(1.0 / 3.0),
            )
        }
        "latency" => {
            table.line(r, &format!("median, {whose}"), p50(), AtMost(0.25))?;
            let p99 = ratio(|r| r.p99_us.unwrap_or(f64::NAN));
            table.line(r, &format!("p99, {whose}"), p99, AtMost(0.25))?;
            table.line(
                r,
                &format!("CPU, {whose}"),
                ratio(Record::cpu_us),
                AtMost(0.1),
            )
        }
        "confirm" => {
            let most = match r.queue.as_deref() {
                Some("classic") => 0.7,
                Some("quorum") => 0.65,
                _ => 0.85,
            };
            table.line(r, &format!("median, {whose}"), p50(), AtMost(most))
        }
        _ => Ok(()),
    }
}

/// The rate as a part of what the client could do if it had all cores for itself.
fn client_share(r: &Record) -> f64 {
    r.client_percent() / (100.0 * f64::from(r.machine.cores))
}

#[cfg(test)]
mod tests {
    use super::super::super::machine;
    use super::super::super::record::Results;
    use super::*;

    /// Our row and RabbitMQ's, with so many messages in ten seconds.
    fn table(kind: &str, queue: &str, change: fn(&mut Record, bool)) -> Result<String> {
        let folder = tempfile::tempdir()?;
        let mut machine = machine::describe(folder.path());
        machine.cores = 2;
        let results = Results::open(folder.path(), "amqp", machine)?;
        let mut records = Vec::new();
        for is_ours in [true, false] {
            let name = if is_ours {
                OURS
            } else {
                "RabbitMQ 4.0.5, OTP 27"
            };
            let mut record = results.blank(kind, name, "disk");
            record.queue = Some(queue.to_owned());
            record.seconds = 10.0;
            record.messages = 1_000_000;
            record.broker_cpu_s = if is_ours { 1.0 } else { 10.0 };
            record.rss_peak_bytes = if is_ours { 100 } else { 301 };
            record.client_cpu_s = Some(10.0);
            record.p50_us = Some(if is_ours { 66.0 } else { 100.0 });
            record.p99_us = Some(if is_ours { 24.0 } else { 100.0 });
            change(&mut record, is_ours);
            records.push(record);
        }
        let rows: Vec<Row<'_>> = records
            .iter()
            .map(|record| Row {
                records: vec![record],
            })
            .collect();
        let mut text = String::new();
        write(&mut text, &rows)?;
        Ok(text)
    }

    #[test]
    fn the_rate_counts_where_the_client_has_room() -> Result<()> {
        let text = table("throughput", "classic", |_, _| ())?;
        assert!(text.contains("2 of 3 met"), "{text}");
        assert!(text.contains("rate, of RabbitMQ 4.0.5's | 1.00 | ≥ 5.00 | **missed**"));
        assert!(text.contains("CPU, of RabbitMQ 4.0.5's | 0.10 | ≤ 0.10 | met"));
        let text = table("throughput", "classic", |record, _| {
            record.client_cpu_s = Some(16.0);
        })?;
        assert!(
            text.contains("3 of 3 met") && text.contains("| 0.80 | ≥ 0.80 | met"),
            "{text}"
        );
        Ok(())
    }

    #[test]
    fn latency_and_pace_have_their_bounds() -> Result<()> {
        let text = table("latency", "quorum", |_, _| ())?;
        assert!(text.contains("median, of RabbitMQ 4.0.5's | 0.66 | ≤ 0.25 | **missed**"));
        assert!(
            text.contains("p99, of RabbitMQ 4.0.5's | 0.24 | ≤ 0.25 | met"),
            "{text}"
        );
        let text = table("paced", "classic", |_, _| ())?;
        assert!(
            text.contains("broker CPU, % of a core | 10.00 | ≤ 15.00 | met"),
            "{text}"
        );
        let text = table("paced", "transient", |_, _| ())?;
        assert!(text.contains("| 10.00 | ≤ 3.00 | **missed**"), "{text}");
        Ok(())
    }

    #[test]
    fn a_confirm_has_a_bound_for_each_kind_of_queue() -> Result<()> {
        for (queue, bound, mark) in [
            ("classic", "0.70", "met"),
            ("quorum", "0.65", "**missed**"),
            ("transient", "0.85", "met"),
        ] {
            let text = table("confirm", queue, |_, _| ())?;
            let line = format!("| 0.66 | ≤ {bound} | {mark} |");
            assert!(text.contains(&line), "{text}");
        }
        Ok(())
    }

    #[test]
    fn another_cell_is_not_compared() -> Result<()> {
        let text = table("throughput", "classic", |record, is_ours| {
            record.size_bytes = if is_ours { 100 } else { 1024 };
        })?;
        assert_eq!(text, "\n");
        Ok(())
    }
}
