//! `--bench`: what `cloverleaf bench compare` says of the same brokers, beside what the peers' own
//! programs say: the same subjects, sizes, batches, windows and acknowledgements.
//!
//! All subjects run all the time. The program takes them in turns itself and begins each round with
//! another one; here its figures become records, and its page lies beside them.

mod loads;
mod reading;
mod section;

use std::any::Any;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use self::loads::Load;
use super::subject::Subject;
use super::{Args, Bench, Peer, amqp, kafka, machine};
use crate::install::{Clients, Tool};
use crate::process::tree;

pub(crate) use reading::Measured;
pub(super) use section::write as write_section;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// As fast as it goes.
    Throughput,
    /// At fixed rates, whatever the broker does.
    Latency,
}

const KINDS: &[Kind] = &[Kind::Throughput, Kind::Latency];
/// Not recorded: what is compiled while it runs (Java, Erlang) gets to what it can do.
const WARM_UP: &[&str] = &[
    "--what=end-to-end",
    "--duration=3s",
    "--warm-up=0",
    "--runs=1",
];

/// A broker that runs, and how our program reaches it.
pub(crate) struct Candidate {
    pub(crate) name: String,
    /// Without the options that a load adds; it has one at least.
    pub(crate) url: String,
    /// The first of its processes.
    pub(crate) pid: u32,
    /// Ends it when dropped.
    pub(crate) _running: Box<dyn Any>,
}

impl Candidate {
    /// As our program wants it: with a name, the options of this load, and all its processes.
    fn argument(&self, load: &Load, pids: &[u32]) -> String {
        let Self { name, url, .. } = self;
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let mut text = format!("--url={name}={url}&pid={}", pids.join(","));
        for option in &load.options {
            text.push('&');
            text.push_str(option);
        }
        text
    }
}

/// What the originals need to run.
pub(super) fn install(clients: &Clients, peer: Peer) -> Result<()> {
    match peer {
        Peer::Nsq => clients.install(Tool::Go),
        Peer::Kafka => clients.install(Tool::Java),
        // Installed by its release when it is started.
        Peer::Amqp => Ok(()),
    }
}

/// `false`: something was lost, cut short or left out; the rest is recorded.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<bool> {
    let kinds = args.kinds_or(KINDS)?;
    let folder = tempfile::tempdir_in(&bench.data)?;
    let candidates = match args.peer {
        Peer::Nsq => nsq(bench, args, folder.path())?,
        Peer::Kafka => kafka::candidates(bench, args, folder.path())?,
        Peer::Amqp => amqp::candidates(bench, args, folder.path())?,
    };
    if candidates.len() < 2 {
        bail!("--bench compares: --only has to leave two subjects at least");
    }
    let loads = loads::of(args, &kinds);
    let Some(first) = loads.first() else {
        bail!("nothing is to be measured");
    };
    let program = Program {
        bench,
        candidates: &candidates,
    };
    let warm_up = Load {
        flags: WARM_UP.iter().map(|flag| (*flag).to_owned()).collect(),
        ..first.clone()
    };
    program.run(&warm_up, None)?;
    let mut is_good = true;
    for load in &loads {
        println!("{}", load.name);
        rustix::fs::sync();
        if !args.quick {
            machine::wait_quiet()?;
        }
        is_good &= program.record(load, args)?;
    }
    Ok(is_good)
}

/// NSQ's subjects but the floor, which has no topics, and nsqd with a sync for each message, which
/// has its own measurement.
fn nsq(bench: &Bench, args: &Args, folder: &Path) -> Result<Vec<Candidate>> {
    // The first one is what the others are compared to.
    let subjects = [
        Subject::NsqdMemory,
        Subject::NsqdFile,
        Subject::Ours,
        Subject::OursDisk,
    ];
    let mut candidates = Vec::new();
    for (at, subject) in subjects.into_iter().enumerate() {
        if !args.includes(subject) {
            continue;
        }
        let folder = folder.join(at.to_string());
        std::fs::create_dir_all(&folder)?;
        let mut running = subject.start(bench, &folder)?;
        let http = running.broker().context("a floor")?.http();
        candidates.push(Candidate {
            name: subject.name().to_owned(),
            url: format!("nsq://{}?http={http}", running.tcp()),
            pid: running.pid(),
            _running: Box::new(running),
        });
    }
    Ok(candidates)
}

/// `cloverleaf bench compare` with these brokers.
struct Program<'a> {
    bench: &'a Bench,
    candidates: &'a [Candidate],
}

impl Program<'_> {
    /// Measures a load and records what was found.
    fn record(&self, load: &Load, args: &Args) -> Result<bool> {
        let results = &self.bench.results;
        let page = results.page(&load.name);
        let mut load = load.clone();
        let (runs, seconds) = match args.quick {
            true => (1, 2),
            false => (args.runs, args.seconds),
        };
        load.flags.push(format!("--runs={runs}"));
        load.flags.push(format!("--duration={seconds}s"));
        let measured = self.run(&load, Some(&page))?;
        for note in measured.failures() {
            println!("{note}");
        }
        for (name, run) in measured.runs() {
            match run.record(results, name, &load) {
                Ok(record) => results.add(&record)?,
                Err(error) => println!("LEFT OUT {} {name}: {error:#}", load.name),
            }
        }
        println!("{page}");
        Ok(measured.is_good())
    }

    /// Runs it; `page` is a file in the folder of the results.
    fn run(&self, load: &Load, page: Option<&str>) -> Result<Measured> {
        let mut command = Command::new(&self.bench.binary);
        // The page shows the command line: without places of this machine.
        command.arg0("cloverleaf");
        command.current_dir(self.bench.results.folder());
        command.args(["bench", "compare"]).args(&load.flags);
        for candidate in self.candidates {
            let pids = tree::lasting(candidate.pid)?;
            command.arg(candidate.argument(load, &pids));
        }
        command.arg("--json");
        if let Some(page) = page {
            command.arg(format!("--report={page}"));
        }
        measured(command)
    }
}

/// Runs `cloverleaf bench` with `--json` and reads what it prints. Its exit status says whether all
/// was well, and so do its figures.
pub(crate) fn measured(mut command: Command) -> Result<Measured> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cloverleaf bench")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let read = Measured::read(&text);
    read.with_context(|| format!("cloverleaf bench: {}\n{text}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_named_with_all_its_processes() {
        let candidate = Candidate {
            name: "RabbitMQ 4.0.5, OTP 27".to_owned(),
            url: "amqp://guest:guest@127.0.0.1:5?prefetch=200".to_owned(),
            pid: 7,
            _running: Box::new(()),
        };
        let load = Load {
            options: vec!["queue=classic".to_owned()],
            ..Load::default()
        };
        assert_eq!(
            candidate.argument(&load, &[7, 8]),
            "--url=RabbitMQ 4.0.5, OTP 27=amqp://guest:guest@127.0.0.1:5?prefetch=200&pid=7,8\
             &queue=classic"
        );
    }
}
