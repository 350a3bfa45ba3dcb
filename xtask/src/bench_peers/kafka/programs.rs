//! The clients that measure, and what they print.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::super::Bench;
use super::super::record::Record;
use super::Cell;
use crate::kafka_server::java;
use crate::workspace::output;

/// As Kafka's scripts start their tools.
const JVM_OPTIONS: &[&str] = &["-Xmx512M"];

/// What a client says it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    messages: u64,
    seconds: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    mean_us: Option<f64>,
}

impl Outcome {
    pub(super) fn write_to(self, record: &mut Record) {
        record.messages = self.messages;
        record.seconds = self.seconds;
        record.p50_us = self.p50_us;
        record.p99_us = self.p99_us;
        record.mean_us = self.mean_us;
    }
}

pub(super) struct Programs<'a> {
    bench: &'a Bench,
    jars: PathBuf,
    rdkafka_performance: PathBuf,
}

impl<'a> Programs<'a> {
    pub(super) fn new(bench: &'a Bench) -> Result<Self> {
        Ok(Self {
            bench,
            jars: bench.clients.kafka_jars()?,
            rdkafka_performance: bench.clients.rdkafka_performance()?,
        })
    }

    pub(super) fn python(&self) -> PathBuf {
        self.bench.clients.kafka_python_program()
    }

    pub(super) fn old_python(&self) -> PathBuf {
        self.bench.clients.old_librdkafka_program()
    }

    pub(super) fn create(&self, address: SocketAddr, topic: &str, partitions: u32) -> Result<()> {
        let mut command = self.client(self.python(), address, "create", topic);
        output(command.arg(format!("--partitions={partitions}"))).map(drop)
    }

    pub(super) fn delete(&self, address: SocketAddr, topic: &str) -> Result<()> {
        output(&mut self.client(self.python(), address, "delete", topic)).map(drop)
    }

    fn client(&self, python: PathBuf, address: SocketAddr, mode: &str, topic: &str) -> Command {
        let mut command = Command::new(python);
        let script = self.bench.client_tests.join("kafka/python/bench_client.py");
        command.arg(script).arg(address.to_string()).arg(mode);
        command.arg(format!("--topic={topic}"));
        command
    }

    pub(super) fn bench_client(
        &self,
        python: PathBuf,
        address: SocketAddr,
        mode: &str,
        topic: &str,
        cell: &Cell,
        flags: &[&str],
    ) -> Result<Outcome> {
        let mut command = self.client(python, address, mode, topic);
        command.arg(format!("--messages={}", cell.messages));
        command.arg(format!("--size={}", cell.size_bytes));
        command.arg(format!("--acks={}", cell.acks)).args(flags);
        let text = output(&mut command)?;
        let line = text.lines().last().unwrap_or_default();
        let found: serde_json::Value = serde_json::from_str(line).context(text.clone())?;
        let rate = found["rate"].as_f64().context("no rate")?;
        Ok(Outcome {
            messages: cell.messages,
            seconds: cell.messages as f64 / rate,
            p50_us: found["p50_us"].as_f64(),
            p99_us: found["p99_us"].as_f64(),
            mean_us: found["mean_us"].as_f64(),
        })
    }

    fn tool(&self, class: &str, address: SocketAddr, topic: &str, cell: &Cell) -> Command {
        let class = format!("org.apache.kafka.tools.{class}");
        let mut command = java(&self.jars, JVM_OPTIONS, &class);
        command.args(["--bootstrap-server", &address.to_string()]);
        command.args([
            "--topic",
            topic,
            "--num-records",
            &cell.messages.to_string(),
        ]);
        command
    }

    /// With its own batches of 16 KiB and 5 ms of waiting.
    pub(super) fn producer_performance(
        &self,
        address: SocketAddr,
        topic: &str,
        cell: &Cell,
    ) -> Result<Outcome> {
        let mut command = self.tool("ProducerPerformance", address, topic, cell);
        command.args(["--record-size", &cell.size_bytes.to_string()]);
        command.args(["--throughput", "-1", "--command-property"]);
        command.arg(format!("acks={}", cell.acks));
        let text = output(&mut command)?;
        producer_performance(&text).with_context(|| format!("no result in {text}"))
    }

    pub(super) fn consumer_performance(
        &self,
        address: SocketAddr,
        topic: &str,
        cell: &Cell,
    ) -> Result<Outcome> {
        let mut command = self.tool("ConsumerPerformance", address, topic, cell);
        let text = output(command.args(["--timeout", "30000"]))?;
        consumer_performance(&text).with_context(|| format!("no result in {text}"))
    }

    pub(super) fn end_to_end_latency(
        &self,
        address: SocketAddr,
        topic: &str,
        cell: &Cell,
    ) -> Result<Outcome> {
        let mut command = self.tool("EndToEndLatency", address, topic, cell);
        command.args(["--producer-acks", &cell.acks]);
        let text = output(command.args(["--record-size", &cell.size_bytes.to_string()]))?;
        let mean_us = end_to_end_latency(&text).with_context(|| format!("no result in {text}"))?;
        Ok(Outcome {
            messages: cell.messages,
            seconds: mean_us * cell.messages as f64 / 1e6,
            mean_us: Some(mean_us),
            ..Outcome::default()
        })
    }

    pub(super) fn rdkafka_produce(
        &self,
        address: SocketAddr,
        topic: &str,
        cell: &Cell,
    ) -> Result<Outcome> {
        let acks = cell.acks.replace("all", "-1");
        let size = cell.size_bytes.to_string();
        self.rdkafka(address, topic, cell, &["-P", "-s", &size, "-a", &acks])
    }

    pub(super) fn rdkafka_consume(
        &self,
        address: SocketAddr,
        topic: &str,
        cell: &Cell,
    ) -> Result<Outcome> {
        let flags = ["-C", "-p", "0", "-o", "beginning"];
        self.rdkafka(address, topic, cell, &flags)
    }

    fn rdkafka(
        &self,
        address: SocketAddr,
        topic: &str,
        cell: &Cell,
        flags: &[&str],
    ) -> Result<Outcome> {
        let mut command = Command::new(&self.rdkafka_performance);
        command.args(flags).args(["-t", topic, "-q"]);
        command.args(["-c", &cell.messages.to_string()]);
        let text = output(command.args(["-b", &address.to_string()]))?;
        rdkafka_performance(&text).with_context(|| format!("no result in {text}"))
    }
}

/// Reads `N records sent, R records/sec (...) ..., A ms 50th, ..., B ms 99th, ...`.
fn producer_performance(text: &str) -> Option<Outcome> {
    let line = text.lines().rfind(|line| line.contains("ms 50th"))?;
    let messages: u64 = line.split(' ').next()?.parse().ok()?;
    let rate: f64 = before(line, " records/sec")?;
    Some(Outcome {
        messages,
        seconds: messages as f64 / rate,
        p50_us: Some(before::<f64>(line, " ms 50th")? * 1000.0),
        p99_us: Some(before::<f64>(line, " ms 99th")? * 1000.0),
        mean_us: None,
    })
}

/// Reads the last line of a table: the fifth column is the number of records, the sixth the rate.
fn consumer_performance(text: &str) -> Option<Outcome> {
    let line = text.lines().rfind(|line| line.split(", ").count() >= 10)?;
    let fields: Vec<&str> = line.split(", ").collect();
    let messages: u64 = fields[4].parse().ok()?;
    // Without the time of the rebalance: joining a group costs whole seconds in some brokers.
    let fetch_ms: f64 = fields[7].parse().ok()?;
    Some(Outcome {
        messages,
        seconds: fetch_ms / 1000.0,
        ..Outcome::default()
    })
}

/// Reads `Avg latency: 1.2345 ms`, in microseconds.
fn end_to_end_latency(text: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once("Avg latency: ")?;
    let ms: f64 = rest.split(' ').next()?.parse().ok()?;
    Some(ms * 1000.0)
}

/// Reads `% N messages produced (...) ... in Mms: ...` or `% N messages consumed in Mms: ...`.
fn rdkafka_performance(text: &str) -> Option<Outcome> {
    let line = text.lines().rfind(|line| {
        line.contains(" messages produced ")
            || line.contains(" messages (") && line.contains("consumed in ")
    })?;
    let messages = line.strip_prefix("% ")?.split(' ').next()?.parse().ok()?;
    let ms: f64 = before(line, "ms: ")?;
    Some(Outcome {
        messages,
        seconds: ms / 1000.0,
        ..Outcome::default()
    })
}

/// The number just before some words.
fn before<T: std::str::FromStr>(line: &str, words: &str) -> Option<T> {
    let (head, _) = line.split_once(words)?;
    head.rsplit([' ', ',']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_programs_print_is_read() {
        let line = "100000 records sent, 50000.0 records/sec (15.28 MB/sec), 1355.04 ms avg \
                    latency, 2380.00 ms max latency, 12 ms 50th, 2303 ms 95th, 23 ms 99th, 2 ms \
                    99.9th.\n";
        assert_eq!(
            producer_performance(line),
            Some(Outcome {
                messages: 100_000,
                seconds: 2.0,
                p50_us: Some(12_000.0),
                p99_us: Some(23_000.0),
                mean_us: None
            })
        );
        let outcome = |messages, seconds| {
            Some(Outcome {
                messages,
                seconds,
                ..Outcome::default()
            })
        };
        let line = "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, \
                    nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n\
                    2026-11-20 17:58:20:095, 2026-11-20 17:58:26:917, 390.6, 57.2, 400000, \
                    58633.8, 1133, 5000, 68.6, 70311.1\n";
        assert_eq!(consumer_performance(line), outcome(400_000, 5.0));
        let line = "% 200000 messages produced (204800000 bytes), 200000 delivered (offset 399999, \
                    0 failed) in 1500ms: 116305 msgs/s and 119.10 MB/s, 51 produce failures\n";
        assert_eq!(rdkafka_performance(line), outcome(200_000, 1.5));
        let line = "% 400000 messages (409600000 bytes) consumed in 2000ms: 200820 msgs/s\n";
        assert_eq!(rdkafka_performance(line), outcome(400_000, 2.0));
        assert_eq!(end_to_end_latency("Avg latency: 1.5 ms\n"), Some(1500.0));
        assert_eq!(producer_performance("Exception"), None);
    }
}
