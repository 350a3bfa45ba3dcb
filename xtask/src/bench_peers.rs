//! `cargo xtask bench-peers nsq`: NSQ's own bench_writer and bench_reader, unmodified, against us,
//! nsqd and a floor, in turns; and what those two do not measure (`--disk64`, `--latency`).
//!
//! `cargo xtask bench-peers kafka`: Kafka's own and librdkafka's benchmark programs, against us,
//! Apache Kafka and a floor.
//!
//! `cargo xtask bench-peers amqp`: RabbitMQ's PerfTest, pika and aio-pika against us and RabbitMQ.
//!
//! With `--bench` each of them is measured by `cloverleaf bench compare`, to lay its figures beside
//! those of the other programs.
//!
//! Raw results are appended to `docs/benchmarks/PEER-DATE.jsonl`, one JSON object per measurement;
//! `docs/benchmarks/PEER.md` is written anew from the newest of each kind.

mod amqp;
mod compare;
mod disk64;
mod kafka;
mod latency;
mod machine;
mod record;
mod report;
mod rows;
mod subject;
mod throughput;

pub(crate) use self::compare::measured;
use std::net::SocketAddr;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

use crate::install::{Clients, Tool};
use crate::workspace::{Workspace, run, tail};

/// Measure against the original brokers with their own benchmark programs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which original.
    peer: Peer,
    /// Repetitions; medians are reported.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Message sizes in bytes (default: 100,200 for NSQ, 100,512,1024,5120 for Kafka,
    /// 100,1024,5120 for AMQP).
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u32>,
    /// Numbers of connections (NSQ), of producers and of consumers (AMQP).
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    clients: Vec<u32>,
    /// Seconds of publishing, and of reading (NSQ, AMQP, --bench). Fewer than 10 flatter nsqd's
    /// memory queue.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Only these subjects, by their name (`ours`) or a part of it (`floor`, `memory`, ...).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// One short run of one size and one client; results go to the target folder.
    #[arg(long)]
    quick: bool,
    /// What to measure. Kafka: java, rdkafka, sync, sync-tls, end-to-end, end-to-end-tool, cold
    /// (default: all but cold). AMQP: throughput, latency, paced, confirm (default: all). With
    /// --bench: throughput, latency (default: both).
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<String>,
    /// What producers ask for (Kafka).
    #[arg(long, value_delimiter = ',', default_value = "1,all")]
    acks: Vec<String>,
    /// Numbers of partitions (Kafka).
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    partitions: Vec<u32>,
    /// Messages per second of the end-to-end measurement (Kafka) and of latency (--bench)
    /// (default: 1000,20000; for AMQP 1000,10000).
    #[arg(long, value_delimiter = ',')]
    rates: Vec<u32>,
    /// Gigabytes of the cold read (Kafka).
    #[arg(long, default_value_t = 10)]
    cold_gb: u64,
    /// RabbitMQ (AMQP): a folder with a Debian that has the package rabbitmq-server, or the name of
    /// a Debian release to install by debootstrap. The first one's maximum sets the rates at which
    /// latency is measured. Needs root.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "FOLDER",
        default_value = "trixie"
    )]
    rabbitmq: Vec<String>,
    /// 64 connections that each publish one message and wait, synced to disk (NSQ).
    #[arg(long)]
    disk64: bool,
    /// From publish to delivery, one message at a time (NSQ).
    #[arg(long, conflicts_with = "disk64")]
    latency: bool,
    /// By `cloverleaf bench compare`: throughput of several sizes, and latency at fixed rates.
    #[arg(long, conflicts_with_all = ["disk64", "latency"])]
    bench: bool,
    /// Where the brokers keep their data, all on this one disk (default: the target folder).
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    Nsq,
    Kafka,
    Amqp,
}

impl Peer {
    /// The first word of the names of its files.
    fn name(self) -> &'static str {
        match self {
            Self::Nsq => "nsq",
            Self::Kafka => "kafka",
            Self::Amqp => "amqp",
        }
    }
}

impl Args {
    /// What was asked to be measured, or these.
    fn kinds_or<K: ValueEnum + Clone>(&self, defaults: &[K]) -> Result<Vec<K>> {
        if self.kinds.is_empty() {
            return Ok(defaults.to_vec());
        }
        let kinds = self.kinds.iter().map(|name| K::from_str(name, false));
        let kinds: Result<Vec<K>, String> = kinds.collect();
        kinds.map_err(|error| anyhow!("--kinds: {error}"))
    }
}

/// What a measurement needs.
struct Bench {
    clients: Clients,
    binary: PathBuf,
    /// A folder of its own for each measurement lies below this one.
    data: PathBuf,
    results: record::Results,
    /// Sources of the clients that measure.
    client_tests: PathBuf,
}

pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    if cfg!(debug_assertions) {
        return Err(run_optimised(workspace)?.into());
    }
    let clients = Clients::new(workspace);
    match args.peer {
        peer if args.bench => compare::install(&clients, peer)?,
        Peer::Nsq => clients.install(Tool::Go)?,
        Peer::Kafka => kafka::install(&clients)?,
        Peer::Amqp => amqp::install(&clients)?,
    }
    let data = args
        .data_dir
        .clone()
        .unwrap_or_else(|| workspace.target().join("bench-data"));
    std::fs::create_dir_all(&data)?;
    let folder = if args.quick {
        workspace.target().to_path_buf()
    } else {
        workspace.root().join("docs/benchmarks")
    };
    let bench = Bench {
        clients,
        // It measures, too.
        binary: if args.bench || args.only.is_empty() || args.includes_name("ours", &[]) {
            workspace.release_binary()?
        } else {
            PathBuf::new()
        },
        data: data.canonicalize()?,
        results: record::Results::open(&folder, args.peer.name(), machine::describe(&data))?,
        client_tests: workspace.client_tests(),
    };
    let measured = match args.peer {
        _ if args.bench => compare::measure(&bench, args),
        Peer::Nsq => nsq(&bench, args).map(|()| true),
        Peer::Kafka => kafka::measure(&bench, args).map(|()| true),
        Peer::Amqp => amqp::measure(&bench, args),
    };
    // Also of what was measured before an error.
    let report = folder.join(args.peer.name()).with_extension("md");
    match args.peer {
        Peer::Nsq => report::write(&bench.results, &report)?,
        Peer::Kafka => kafka::write_report(&bench.results, &report)?,
        Peer::Amqp => amqp::write_report(&bench.results, &report)?,
    }
    measured
}

fn nsq(bench: &Bench, args: &Args) -> Result<()> {
    if args.disk64 {
        disk64::measure(bench, args)
    } else if args.latency {
        latency::measure(bench, args)
    } else {
        throughput::measure(bench, args)
    }
}

/// The floor and our own clients would measure the compiler's settings: start again, optimised.
fn run_optimised(workspace: &Workspace) -> Result<std::io::Error> {
    run(workspace
        .cargo()
        .args(["build", "--release", "--quiet", "--package", "xtask"]))?;
    let program = workspace.target().join("release/xtask");
    Ok(Command::new(program)
        .args(std::env::args_os().skip(1))
        .exec())
}

/// What bench_writer or bench_reader is asked to do.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) size_bytes: u32,
    pub(crate) clients: u32,
    pub(crate) seconds: u32,
}

/// What it says it has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
}

/// Runs bench_writer with batches of 200, as NSQ's bench.sh does.
pub(crate) fn writer(
    clients: &Clients,
    address: SocketAddr,
    topic: &str,
    load: Load,
) -> Result<Outcome> {
    let mut command = Command::new(clients.nsq_program("bench_writer"));
    command.arg("--batch-size=200");
    bench_program(command, address, topic, load)
}

/// Runs bench_reader on the channel `ch`.
pub(crate) fn reader(
    clients: &Clients,
    address: SocketAddr,
    topic: &str,
    load: Load,
) -> Result<Outcome> {
    let mut command = Command::new(clients.nsq_program("bench_reader"));
    command.arg("--channel=ch");
    bench_program(command, address, topic, load)
}

fn bench_program(
    mut command: Command,
    address: SocketAddr,
    topic: &str,
    load: Load,
) -> Result<Outcome> {
    // Both programs open as many connections as Go has processors.
    command.env("GOMAXPROCS", load.clients.to_string());
    command
        .arg(format!("--nsqd-tcp-address={address}"))
        .arg(format!("--topic={topic}"));
    command.arg(format!("--size={}", load.size_bytes));
    command.arg(format!("--runfor={}s", load.seconds));
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("cannot start the bench program")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!(
            "{:?}: {}\n{}",
            command.get_program(),
            output.status,
            tail(&text, 20)
        );
    }
    parse(&text).with_context(|| format!("no result in {text}"))
}

/// Reads `... duration: 10.00123s - 12.3mb/s - 456.7ops/s - 8.9us/op`.
fn parse(text: &str) -> Option<Outcome> {
    let (_, rest) = text.rsplit_once("duration: ")?;
    let mut fields = rest.split(" - ");
    let seconds = go_seconds(fields.next()?)?;
    let rate: f64 = fields.nth(1)?.strip_suffix("ops/s")?.parse().ok()?;
    Some(Outcome {
        messages: (rate * seconds).round() as u64,
        seconds,
    })
}

/// A duration as Go prints it: `1m2.5s`, `10.1s`, `500ms`.
fn go_seconds(text: &str) -> Option<f64> {
    if let Some(ms) = text.strip_suffix("ms") {
        return Some(ms.parse::<f64>().ok()? / 1000.0);
    }
    let (minutes, seconds) = text.split_once('m').unwrap_or(("0", text));
    Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.strip_suffix('s')?.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn each_peer_has_kinds_of_its_own() -> Result<()> {
        let line = |text: &str| <Line as clap::Parser>::try_parse_from(text.split(' '));
        let kafka = line("x kafka --kinds sync-tls,cold")?.args;
        let found = kafka.kinds_or::<kafka::Kind>(&[])?;
        assert_eq!(found, [kafka::Kind::SyncTls, kafka::Kind::Cold]);
        assert!(kafka.kinds_or::<amqp::Kind>(&[]).is_err());
        let amqp = line("x amqp --kinds paced")?.args;
        assert_eq!(amqp.kinds_or::<amqp::Kind>(&[])?, [amqp::Kind::Paced]);
        assert_eq!(amqp.rabbitmq, ["trixie"]);
        let all = line("x amqp")?.args;
        assert_eq!(all.kinds_or(&[amqp::Kind::Confirm])?, [amqp::Kind::Confirm]);
        Ok(())
    }

    #[test]
    fn the_line_of_a_bench_program_is_read() {
        let line = "[bench_writer] 2026/01/02 03:04:05 duration: 1m0.5s - 9.5mb/s - 50.000ops/s - \
                    20us/op\n";
        assert_eq!(
            parse(line),
            Some(Outcome {
                messages: 3025,
                seconds: 60.5
            })
        );
        assert_eq!(go_seconds("250ms"), Some(0.25));
        assert_eq!(parse("panic: no"), None);
    }
}
