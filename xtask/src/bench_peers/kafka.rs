//! Kafka's ProducerPerformance (`kafka-producer-perf-test.sh`), ConsumerPerformance and
//! EndToEndLatency.

use std::path::Path;

use anyhow::Result;

use super::Subject;
use super::program::{Figures, Load, Program, before, behind};
use crate::broker::{Broker, Kind};
use crate::install::{Clients, Tool};
use crate::kafka_server::java;
use crate::workspace::output;

/// As Kafka's scripts start their tools.
const JVM_OPTIONS: &[&str] = &["-Xmx512M"];
const BYTES_PER_SECOND: u64 = 50_000_000;
/// EndToEndLatency sends one at a time.
const SINGLE_RECORDS: u64 = 2000;

pub(super) fn subjects(clients: &Clients, ours: &Path) -> Result<Vec<Subject>> {
    clients.install(Tool::Java)?;
    Ok(vec![
        Subject {
            name: String::from("Apache Kafka 4.3.1"),
            kind: Kind::Kafka,
            binary: clients.kafka_jars()?,
            flags: &[],
            // Its acks=all on one node is the page cache of that node.
            durability: |_| "kernel",
        },
        Subject {
            name: String::from("ours"),
            kind: Kind::Cloverleaf,
            binary: ours.to_owned(),
            flags: &[],
            durability: |acks| if acks == "all" { "disk" } else { "kernel" },
        },
    ])
}

/// The producer with its own batches of 16 KiB and 5 ms of waiting, the consumer on what it has
/// written, then one record at a time.
pub(super) fn programs(clients: &Clients, broker: &Broker, load: &Load) -> Result<Vec<Program>> {
    let jars = clients.kafka_jars()?;
    let tool = |class: &str, topic: &str, more: &[&str]| {
        let mut command = java(
            &jars,
            JVM_OPTIONS,
            &format!("org.apache.kafka.tools.{class}"),
        );
        command.args(["--bootstrap-server", &broker.kafka().to_string()]);
        command.args(["--topic", topic]).args(more);
        command
    };
    let single = format!("{}-single", load.topic);
    let partitions = load.partitions.to_string();
    for (topic, partitions) in [(&load.topic, partitions.as_str()), (&single, "1")] {
        let create = [
            "--create",
            "--replication-factor",
            "1",
            "--partitions",
            partitions,
        ];
        output(&mut tool("TopicCommand", topic, &create))?;
    }
    let seconds = u64::from(load.seconds);
    let records = match load.rate {
        Some(rate) => u64::from(rate) * seconds,
        None => BYTES_PER_SECOND * seconds / u64::from(load.size_bytes.max(1)),
    };
    let (records, singles) = (records.to_string(), SINGLE_RECORDS.to_string());
    let size = load.size_bytes.to_string();
    let rate = load
        .rate
        .map_or_else(|| "-1".to_owned(), |rate| rate.to_string());
    let acks = format!("acks={}", load.setting);
    let program = |name: &'static str, topic: &str, records: &str, more: &[&str], read| Program {
        name,
        command: tool(name, topic, &[&["--num-records", records], more].concat()),
        read,
    };
    Ok(vec![
        program(
            "ProducerPerformance",
            &load.topic,
            &records,
            &[
                "--record-size",
                &size,
                "--throughput",
                &rate,
                "--command-property",
                &acks,
            ],
            producer_performance,
        ),
        program(
            "ConsumerPerformance",
            &load.topic,
            &records,
            &[],
            consumer_performance,
        ),
        program(
            "EndToEndLatency",
            &single,
            &singles,
            &["--record-size", &size, "--producer-acks", &load.setting],
            end_to_end_latency,
        ),
    ])
}

/// Reads `N records sent, R records/sec (...) ..., A ms 50th, ..., B ms 99th, ...`.
fn producer_performance(text: &str) -> Option<Figures> {
    let line = text.lines().rfind(|line| line.contains("ms 50th"))?;
    let messages: u64 = before(line, " records sent")?;
    let rate: f64 = before(line, " records/sec")?;
    Some(Figures {
        messages,
        seconds: messages as f64 / rate,
        p50_us: Some(before::<f64>(line, " ms 50th")? * 1000.0),
        p99_us: Some(before::<f64>(line, " ms 99th")? * 1000.0),
    })
}

/// Reads the last line of a table: the fifth column is the number of records, the eighth the
/// milliseconds without the rebalance, because joining a group costs whole seconds in some brokers.
fn consumer_performance(text: &str) -> Option<Figures> {
    let mut lines = text
        .lines()
        .map(|line| line.split(", ").collect::<Vec<_>>());
    let fields = lines.rfind(|fields| fields.len() >= 10)?;
    Some(Figures {
        messages: fields[4].parse().ok()?,
        seconds: fields[7].parse::<f64>().ok()? / 1000.0,
        ..Figures::default()
    })
}

/// Reads `Avg latency: 1.2345 ms` and `Percentiles: 50th = 1, 99th = 2, ...`, in whole
/// milliseconds.
fn end_to_end_latency(text: &str) -> Option<Figures> {
    let mean_ms: f64 = behind(text, "Avg latency: ")?;
    Some(Figures {
        messages: SINGLE_RECORDS,
        seconds: mean_ms * SINGLE_RECORDS as f64 / 1000.0,
        p50_us: Some(behind::<f64>(text, ": 50th = ")? * 1000.0),
        p99_us: Some(behind::<f64>(text, ", 99th = ")? * 1000.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_print_is_read() {
        let line = "100000 records sent, 50000.0 records/sec (15.28 MB/sec), 1355.04 ms avg \
                    latency, 2380.00 ms max latency, 12 ms 50th, 2303 ms 95th, 23 ms 99th, 2 ms \
                    99.9th.\n";
        let figures = |messages, seconds, p50_us, p99_us| {
            Some(Figures {
                messages,
                seconds,
                p50_us,
                p99_us,
            })
        };
        let expected = figures(100_000, 2.0, Some(12_000.0), Some(23_000.0));
        assert_eq!(producer_performance(line), expected);
        let table = "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, \
                     nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n\
                     2026-11-20 17:58:20:095, 2026-11-20 17:58:26:917, 390.6, 57.2, 400000, \
                     58633.8, 1133, 5000, 68.6, 70311.1\n";
        assert_eq!(
            consumer_performance(table),
            figures(400_000, 5.0, None, None)
        );
        let text = "0\t158.607786\n1000\t0.631636\nAvg latency: 0.5 ms\n\
                    Percentiles: 50th = 1, 99th = 103, 99.9th = 176\n";
        let expected = figures(SINGLE_RECORDS, 1.0, Some(1000.0), Some(103_000.0));
        assert_eq!(end_to_end_latency(text), expected);
        assert_eq!(producer_performance("Exception"), None);
    }
}
