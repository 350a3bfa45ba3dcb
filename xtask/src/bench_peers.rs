//! `cargo xtask bench-peers PEER`: the original's own benchmark programs, unmodified, against the
//! original and against us, in turns.
//!
//! Each measurement has a broker of its own on an empty folder. Raw results are appended to
//! `docs/benchmarks/PEER-DATE.jsonl`, one JSON object per measurement; medians are printed.
//! `--bench` has `cloverleaf bench compare` measure the same brokers.

mod amqp;
mod kafka;
mod nsq;
mod program;
mod results;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;

use self::program::Program;
use self::results::{Record, Results};
use crate::broker::{Broker, Kind, Options};
use crate::install::Clients;
use crate::process::{machine_time, tree};
use crate::wait;
use crate::workspace::{Workspace, run};

pub(crate) use self::nsq::programs as nsq_programs;
pub(crate) use self::program::Load;

/// Busier than this, figures are no good.
const BUSY_MAX: f64 = 0.08;
/// How long to wait for a quiet second before measuring all the same.
const QUIET_SECONDS_MAX: u32 = 20;
/// Seconds that a JVM or Erlang needs before it shows what it can.
const WARM_UP_SECONDS: u32 = 5;
const TOPIC: &str = "bench";

/// Measure with the original brokers' own benchmark programs, against the originals and us.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The original: nsqd, Apache Kafka or RabbitMQ.
    #[arg(value_enum)]
    peer: Peer,
    /// Repetitions; medians are printed.
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: u32,
    /// Message sizes.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES",
        default_value = "100,1024"
    )]
    sizes: Vec<u32>,
    /// Connections (NSQ); producers, and as many consumers (AMQP). Kafka's programs have one each.
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1")]
    clients: Vec<u32>,
    /// Seconds of publishing, and of reading. Kafka's programs get as many records as make 50 MB
    /// per second.
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u32,
    /// Publish so many messages per second, all clients together (Kafka, AMQP; default: as many as
    /// the program can).
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// The acknowledgements that producers ask for (Kafka).
    #[arg(long, value_delimiter = ',', default_value = "1,all")]
    acks: Vec<String>,
    /// Partitions of the topic (Kafka).
    #[arg(long, value_name = "N", default_value_t = 1)]
    partitions: u32,
    /// Kinds of queues (AMQP): classic and quorum have persistent messages, confirms and
    /// acknowledgements, transient has none of them.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = ["classic", "quorum", "transient"],
        default_value = "classic,quorum,transient"
    )]
    queues: Vec<String>,
    /// RabbitMQ: a folder with a Debian that has the package rabbitmq-server, or the name of a
    /// Debian release to install by debootstrap. Needs root.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "FOLDER",
        default_value = "trixie"
    )]
    rabbitmq: Vec<String>,
    /// Only the brokers that have this in their name: ours, memory, Kafka, ...
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,
    /// One run of two seconds, without waiting for a quiet machine; results go to the target
    /// folder.
    #[arg(long)]
    quick: bool,
    /// The disk on which all brokers keep their data (default: the target folder).
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// Start the brokers, all at once, and let `cloverleaf bench compare` measure them, with the
    /// arguments behind `--`.
    #[arg(long)]
    bench: bool,
    /// Options for the URL of each broker (--bench): queue=quorum, linger.ms=50, ...
    #[arg(long, value_delimiter = ',', value_name = "OPTION", requires = "bench")]
    options: Vec<String>,
    /// Arguments of `cloverleaf bench compare`.
    #[arg(last = true, requires = "bench")]
    arguments: Vec<String>,
}

/// Whose programs measure.
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

    /// The original first: it is what others are compared to.
    fn subjects(self, clients: &Clients, args: &Args, ours: &Path) -> Result<Vec<Subject>> {
        let mut subjects = match self {
            Self::Nsq => nsq::subjects(clients, ours)?,
            Self::Kafka => kafka::subjects(clients, ours)?,
            Self::Amqp => amqp::subjects(clients, args, ours)?,
        };
        let is_asked = |name: &str| args.only.iter().any(|part| name.contains(part));
        subjects.retain(|subject| args.only.is_empty() || is_asked(&subject.name));
        if subjects.is_empty() {
            bail!("no broker has in its name what --only asks for");
        }
        Ok(subjects)
    }

    /// The variants of each size and number of clients.
    fn settings(self, args: &Args) -> &[String] {
        match self {
            Self::Nsq => &[],
            Self::Kafka => &args.acks,
            Self::Amqp => &args.queues,
        }
    }

    /// The programs that measure a load, in order.
    fn programs(self, clients: &Clients, broker: &Broker, load: &Load) -> Result<Vec<Program>> {
        match self {
            Self::Nsq => nsq::programs(clients, broker, load),
            Self::Kafka => kafka::programs(clients, broker, load),
            Self::Amqp => Ok(vec![amqp::perf_test(clients, broker, load)?]),
        }
    }

    /// The broker for `cloverleaf bench`; it has one option at least.
    fn url(self, broker: &Broker) -> String {
        match self {
            Self::Nsq => format!("nsq://{}?http={}", broker.tcp(), broker.http()),
            Self::Kafka => format!("kafka://{}?client=librdkafka", broker.kafka()),
            Self::Amqp => format!("amqp://guest:guest@{}?prefetch=200", broker.amqp()),
        }
    }
}

/// A broker with the settings that make it comparable.
struct Subject {
    name: String,
    kind: Kind,
    binary: PathBuf,
    flags: &'static [&'static str],
    /// Durability of a publish once it is answered, by the load's setting: `memory` is lost with
    /// the process, `kernel` survives kill -9, `disk` a power failure.
    durability: fn(&str) -> &'static str,
}

impl Subject {
    /// Starts it on an empty folder.
    fn start(&self, folder: &Path) -> Result<Broker> {
        let mut options = Options::new(self.kind, &self.binary, &folder.join("data"))?;
        options.more = self.flags.iter().map(ToString::to_string).collect();
        options.start()
    }
}

pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    let clients = Clients::new(workspace);
    let subjects = args
        .peer
        .subjects(&clients, args, &workspace.release_binary()?)?;
    let data = args.data_dir.clone();
    let data = data.unwrap_or_else(|| workspace.target().join("bench-data"));
    std::fs::create_dir_all(&data)?;
    let data = data.canonicalize()?;
    if args.bench {
        return compare(workspace, args, &subjects, &data);
    }
    let folder = if args.quick {
        workspace.target().to_path_buf()
    } else {
        workspace.root().join("docs/benchmarks")
    };
    let mut bench = Bench {
        args,
        clients,
        results: Results::new(&folder, args.peer.name(), &data)?,
        data,
        failures: 0,
    };
    let runs = if args.quick { 1 } else { args.runs };
    for run in 1..=runs {
        println!("run {run} of {runs}");
        for load in loads(args) {
            for subject in &subjects {
                bench.measure(subject, &load);
            }
        }
    }
    print!("\n{}", bench.results.table());
    Ok(bench.failures == 0)
}

fn loads(args: &Args) -> Vec<Load> {
    let mut loads = Vec::new();
    let none = [String::new()];
    let settings = match args.peer.settings(args) {
        [] => &none,
        settings => settings,
    };
    // Kafka's programs have one connection.
    let clients = match args.peer {
        Peer::Kafka => &[1],
        Peer::Nsq | Peer::Amqp => args.clients.as_slice(),
    };
    for setting in settings {
        for size_bytes in args.sizes.iter().copied() {
            for clients in clients.iter().copied() {
                loads.push(Load {
                    topic: TOPIC.to_owned(),
                    size_bytes,
                    clients,
                    seconds: if args.quick { 2 } else { args.seconds },
                    rate: args.rate,
                    partitions: args.partitions,
                    setting: setting.clone(),
                });
            }
        }
    }
    loads
}

struct Bench<'a> {
    args: &'a Args,
    clients: Clients,
    results: Results,
    /// A folder of its own for each measurement lies below this one.
    data: PathBuf,
    failures: u32,
}

impl Bench<'_> {
    /// A measurement that fails is told and left out; the others go on.
    fn measure(&mut self, subject: &Subject, load: &Load) {
        if let Err(error) = self.try_measure(subject, load) {
            println!("FAILED {} {load:?}: {error:#}", subject.name);
            self.failures += 1;
        }
    }

    fn try_measure(&mut self, subject: &Subject, load: &Load) -> Result<()> {
        let peer = self.args.peer;
        let folder = tempfile::tempdir_in(&self.data)?;
        let mut broker = subject.start(folder.path())?;
        if peer != Peer::Nsq {
            let warm_up = Load {
                topic: String::from("warm-up"),
                seconds: load.seconds.min(WARM_UP_SECONDS),
                rate: None,
                ..load.clone()
            };
            for program in peer.programs(&self.clients, &broker, &warm_up)? {
                program.run()?;
            }
        }
        for program in peer.programs(&self.clients, &broker, load)? {
            // The programs before have left something to write, which is not this one's load.
            rustix::fs::sync();
            if !self.args.quick {
                wait_quiet()?;
            }
            let name = program.name;
            let pid = broker.process().pid();
            let before = Used::now(pid)?;
            let figures = program.run()?;
            let used = Used::now(pid)?;
            let backlog = match peer {
                Peer::Nsq => Some(broker.depth(&load.topic, nsq::CHANNEL)?),
                Peer::Kafka | Peer::Amqp => None,
            };
            self.results.add(Record {
                program: name,
                subject: subject.name.clone(),
                durability: (subject.durability)(&load.setting),
                load: load.clone(),
                figures,
                broker_cpu_s: used.broker_s - before.broker_s,
                client_cpu_s: used.client_s - before.client_s,
                // The clocks of processes and machine tick apart.
                foreign_cpu_s: (used.foreign_s() - before.foreign_s()).max(0.0),
                rss_peak_bytes: used.rss_peak_bytes,
                backlog,
            })?;
        }
        Ok(())
    }
}

/// Seconds of CPU since something began.
struct Used {
    /// Of all processes of the broker.
    broker_s: f64,
    /// Of all programs that have measured and ended.
    client_s: f64,
    /// Of the whole machine.
    all_s: f64,
    rss_peak_bytes: u64,
}

impl Used {
    fn now(broker: u32) -> Result<Self> {
        let usage = tree::usage(broker)?;
        let (idle_s, all_s) = machine_time()?;
        Ok(Self {
            broker_s: usage.cpu_s,
            client_s: tree::ended_cpu_s()?,
            all_s: all_s - idle_s,
            rss_peak_bytes: usage.rss_peak_bytes,
        })
    }

    /// CPU time that neither broker nor client has used: a measurement in which it is large is
    /// spoilt.
    fn foreign_s(&self) -> f64 {
        self.all_s - self.broker_s - self.client_s
    }
}

/// Waits for a second in which the machine does nothing else.
fn wait_quiet() -> Result<()> {
    for _ in 0..QUIET_SECONDS_MAX {
        let (idle, all) = machine_time()?;
        wait::pass(Duration::from_secs(1));
        let (idle_now, all_now) = machine_time()?;
        if idle_now - idle >= (all_now - all) * (1.0 - BUSY_MAX) {
            return Ok(());
        }
    }
    println!("the machine is not quiet; measuring all the same");
    Ok(())
}

/// Starts all brokers and hands them to `cloverleaf bench compare`.
fn compare(workspace: &Workspace, args: &Args, subjects: &[Subject], data: &Path) -> Result<bool> {
    let folder = tempfile::tempdir_in(data)?;
    let mut command = Command::new(workspace.release_binary()?);
    command.args(["bench", "compare"]).args(&args.arguments);
    let mut brokers = Vec::new();
    for (at, subject) in subjects.iter().enumerate() {
        let broker = subject.start(&folder.path().join(at.to_string()))?;
        let options: String = args.options.iter().map(|it| format!("&{it}")).collect();
        let url = args.peer.url(&broker) + &options;
        command.arg(format!("--url={}={url}", subject.name));
        brokers.push(broker);
    }
    run(&mut command).map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> clap::error::Result<Args> {
        let line = <Line as clap::Parser>::try_parse_from(line.split(' '));
        line.map(|line| line.args)
    }

    #[test]
    fn each_peer_has_loads_of_its_own() -> Result<()> {
        let options = "--sizes 100 --clients 1,4 --acks all --queues quorum,classic --rate 7";
        for (peer, expected) in [
            ("nsq", &[("", 1), ("", 4)][..]),
            ("kafka", &[("all", 1)]),
            (
                "amqp",
                &[("quorum", 1), ("quorum", 4), ("classic", 1), ("classic", 4)],
            ),
        ] {
            let loads = loads(&args(&format!("x {peer} {options}"))?);
            let found: Vec<(&str, u32)> = loads
                .iter()
                .map(|load| (load.setting.as_str(), load.clients))
                .collect();
            assert_eq!(found, expected, "{peer}");
            assert!(loads.iter().all(|load| load.rate == Some(7)));
        }
        assert!(args("x amqp --queues lazy").is_err());
        Ok(())
    }

    #[test]
    fn arguments_of_compare_come_with_bench_only() -> Result<()> {
        let args_of = args("x amqp --bench --options queue=quorum -- --what latency")?;
        assert_eq!(args_of.arguments, ["--what", "latency"]);
        assert_eq!(args_of.options, ["queue=quorum"]);
        assert!(args("x amqp -- --what latency").is_err());
        Ok(())
    }
}
