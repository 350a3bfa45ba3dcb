//! The client tests: real third-party programs, and hostile ones, against the real binary.

mod admin;
mod amqp;
mod bench;
mod crash;
mod disk;
mod doctor;
mod golang;
mod groups;
mod hostile;
mod kafka;
mod kafka_reach;
mod lookup;
mod memory;
mod own_broker;
mod scripts;
mod sync_order;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::broker::{Broker, Kind, Options};
use crate::install::Clients;
use crate::limit;
use crate::workspace::{Workspace, tail};
use groups::{GROUPS, Group};

pub(crate) use amqp::crash_rounds as amqp_crash_rounds;
pub(crate) use crash::crash_rounds;
pub(crate) use doctor::{PlaysArgs, plays};
pub(crate) use kafka::crash_rounds as kafka_crash_rounds;
pub(crate) use memory::limits;

/// What one group may take: several times what the longest takes on two cores.
const GROUP_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// What it may take to download and compile what one group needs.
const INSTALL_TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// Checks, each with its group, that may be left out in CI: `python-snappy` is compiled code, which
/// is not to be had for each Python, and other libraries' checks cover Snappy.
const SKIPS_IN_CI: &[(&str, &str)] = &[("nsq/python", "snappy"), ("nsq/python", "tls_and_snappy")];

/// What every group gets.
pub(crate) struct Context {
    pub(crate) workspace: Workspace,
    pub(crate) clients: Clients,
    pub(crate) kind: Kind,
    pub(crate) binary: PathBuf,
    /// In CI a test that cannot run has failed.
    pub(crate) ci: bool,
}

impl Context {
    /// Context with our own binary, which is built when it has to be.
    pub(crate) fn ours(workspace: &Workspace) -> Result<Self> {
        let binary = workspace.test_binary()?;
        Ok(Self::new(workspace, Kind::Cloverleaf, binary))
    }

    /// Context with Apache Kafka, which is installed when it has to be.
    pub(crate) fn original_kafka(workspace: &Workspace) -> Result<Self> {
        let jars = Clients::new(workspace).kafka_jars()?;
        Ok(Self::new(workspace, Kind::Kafka, jars))
    }

    fn new(workspace: &Workspace, kind: Kind, binary: PathBuf) -> Self {
        Self {
            workspace: workspace.clone(),
            clients: Clients::new(workspace),
            kind,
            binary,
            ci: std::env::var_os("CI").is_some_and(|value| value == "true"),
        }
    }

    /// Options of a broker with its data in `folder`.
    pub(crate) fn options(&self, folder: &Path) -> Result<Options> {
        Options::new(self.kind, &self.binary, &folder.join("data"))
    }

    /// The broker that most groups use: nothing but defaults, with TLS.
    fn plain_broker(&self, folder: &Path) -> Result<Broker> {
        let mut options = self.options(folder)?;
        options.tls = Some(self.tls_files());
        options.start()
    }

    /// A certificate and its key.
    fn tls_files(&self) -> (PathBuf, PathBuf) {
        let tls = self.workspace.client_tests().join("tls");
        (tls.join("server.pem"), tls.join("server.key"))
    }

    /// The certificate of who has signed the broker's.
    fn tls_authority(&self) -> PathBuf {
        self.workspace.client_tests().join("tls/ca.pem")
    }

    /// Tells a program the broker's addresses in its environment.
    fn with_addresses(&self, mut command: Command, broker: &Broker) -> Command {
        command
            .env("NSQ_TCP", broker.tcp().to_string())
            .env("NSQ_HTTP", broker.http().to_string())
            .env("NSQ_TLS_CA", self.tls_authority())
            .env("KAFKA", broker.kafka().to_string())
            .env("KAFKA_TLS", broker.kafka_tls().to_string())
            .env("KAFKA_TLS_CA", self.tls_authority())
            .env("AMQP", broker.amqp().to_string())
            .env("AMQP_TLS", broker.amqp_tls().to_string())
            .env("AMQP_TLS_CA", self.tls_authority())
            .env("ADMIN", broker.admin().to_string());
        if self.kind == Kind::RabbitMq {
            command.env("AMQP_ORIGINAL", "1");
        }
        command
    }
}

/// What came of the single checks.
#[derive(Default)]
pub(crate) struct Report {
    passed: usize,
    failed: Vec<String>,
    group: &'static str,
    /// A check that leaves itself out has failed.
    skips_fail: bool,
}

impl Report {
    /// Runs one check and prints what came of it.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        let start = Instant::now();
        let result = check();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("ok      {}: {name} ({seconds:.1} s)", self.group);
            }
            Err(error) => self.fail(name, &format!("{error:#}")),
        }
    }

    /// Records what another program has found to be right.
    fn pass(&mut self, name: &str) {
        self.passed += 1;
        println!("ok      {}: {name}", self.group);
    }

    /// Records a failure.
    pub(crate) fn fail(&mut self, name: &str, why: &str) {
        println!("FAILED  {}: {name}: {why}", self.group);
        self.failed.push(format!("{}: {name}", self.group));
    }

    /// Records that a check has left itself out, as `NAME: WHY`. True when that is a failure.
    fn skip(&mut self, rest: &str) -> bool {
        let (name, why) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
        let is_failure = self.skips_fail && !SKIPS_IN_CI.contains(&(self.group, name));
        if is_failure {
            self.fail(name, &format!("{why}, and this is CI"));
        } else {
            println!("SKIPPED {}: ****** {rest} ******", self.group);
        }
        is_failure
    }

    /// Runs a program that prints `ok NAME`, `not ok NAME: WHY` or `skip NAME: WHY` for each of
    /// its checks.
    fn program(&mut self, command: &mut Command) -> Result<()> {
        let output = command
            .stdin(Stdio::null())
            .output()
            .context("cannot start the program")?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let mut checks = 0;
        for line in stdout.lines() {
            if let Some(name) = line.strip_prefix("ok ") {
                self.pass(name);
            } else if let Some(rest) = line.strip_prefix("not ok ") {
                let (name, why) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
                self.fail(name, why);
            } else if let Some(rest) = line.strip_prefix("skip ") {
                if !self.skip(rest) {
                    continue;
                }
            } else {
                continue;
            }
            checks += 1;
        }
        if checks == 0 {
            bail!(
                "it printed no result\n{}{}",
                tail(&stdout, 30),
                tail(&stderr, 30)
            );
        }
        // A program ends with 1 when a check has failed; what it died of is on stderr.
        if !output.status.success() {
            self.fail("exit", &format!("{}\n{}", output.status, tail(&stderr, 30)));
        }
        Ok(())
    }
}

/// Runs the groups whose name contains `only`, or all, against `original` if that is given and else
/// against our release binary. True when nothing failed.
pub(crate) fn run(
    workspace: &Workspace,
    only: Option<&str>,
    original: Option<(Kind, PathBuf)>,
) -> Result<bool> {
    let context = match original {
        Some((kind, binary)) => Context::new(workspace, kind, binary),
        None => Context::ours(workspace)?,
    };
    let mut report = Report {
        // Some checks mean nothing to an original.
        skips_fail: context.ci && context.kind == Kind::Cloverleaf,
        ..Report::default()
    };
    let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
    let chosen: Vec<&Group> = GROUPS
        .iter()
        .filter(|group| only.is_none_or(|only| group.name.contains(only)))
        .filter(|group| context.kind == Kind::Cloverleaf || group.original == Some(context.kind))
        .collect();
    if chosen.is_empty() {
        bail!("no client test is named so; there are {}", names());
    }
    let mut chosen = chosen.into_iter();
    while let Some(group) = chosen.next() {
        report.group = group.name;
        if let Some(program) = group.needs.iter().find_map(|tool| tool.missing()) {
            if context.ci {
                report.fail("start", &format!("{program} is missing, and this is CI"));
            } else {
                println!("SKIPPED {}: ****** {program} IS MISSING ******", group.name);
                *skipped.entry(program).or_default() += 1;
            }
            continue;
        }
        let installed = limit::within("the installation of clients", INSTALL_TIME_MAX, || {
            let mut tools = group.needs.iter();
            tools.try_for_each(|tool| context.clients.install(*tool))
        });
        // The installation has a limit of its own.
        let start = Instant::now();
        let result = installed.and_then(|()| {
            limit::within(group.name, GROUP_TIME_MAX, || {
                (group.run)(&context, &mut report)
            })
        });
        if let Err(error) = result {
            report.fail("run", &format!("{error:#}"));
        }
        if start.elapsed() >= GROUP_TIME_MAX {
            // The others would hang for as long each.
            for left in chosen.by_ref() {
                report.group = left.name;
                report.fail("start", "no more groups are run after one that hangs");
            }
        }
    }
    Ok(finish(&report, &skipped))
}

fn finish(report: &Report, skipped: &BTreeMap<&str, usize>) -> bool {
    for name in &report.failed {
        println!("failed: {name}");
    }
    for (program, groups) in skipped {
        println!("{groups} skipped because {program} is missing");
    }
    println!("{} passed, {} failed", report.passed, report.failed.len());
    report.failed.is_empty()
}

fn names() -> String {
    GROUPS
        .iter()
        .map(|group| group.name)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has failed in a program of the group `nsq/python` that prints these lines.
    fn failed(lines: &str, skips_fail: bool) -> Vec<String> {
        let mut report = Report {
            group: "nsq/python",
            skips_fail,
            ..Report::default()
        };
        let printed = report.program(Command::new("printf").args(["%s", lines]));
        assert!(printed.is_ok(), "{printed:?}");
        report.failed
    }

    #[test]
    fn in_ci_a_check_that_leaves_itself_out_has_failed() {
        let lines = "ok one\nskip snappy: not installed\nskip two: no TLS address\n";
        assert_eq!(failed(lines, true), ["nsq/python: two"]);
        assert_eq!(failed(lines, false), [""; 0]);
    }
}
