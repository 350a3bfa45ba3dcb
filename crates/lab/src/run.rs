//! `cloverleaf lab run -- COMMAND…`: a program of the user's own beside a broker that is some
//! milliseconds away, and the doctor's findings about it.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use cloverleaf_bench::Stop;
use cloverleaf_bench::command::{LinkArgs, duration};
use cloverleaf_doctor::{Detail, Query, Report, findings_text};
use serde::Serialize;

use crate::broker::{BrokerListener, BrokerOptions, StartBroker};
use crate::command::{LabOutcome, OutputPage};
use crate::distance::{DistantBroker, LabError};
use crate::process::ClientProcess;

/// Less than this is too short for most findings.
const WATCHED_MIN: Duration = Duration::from_secs(15);

/// What to run, and how far from the broker.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// End the program after this time, if it has not ended by itself
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Set an option of the broker, by its name on the command line of `serve`: quick-ack=false
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// All that the doctor knows of each finding
    #[arg(long)]
    details: bool,
    /// Print the doctor's report as JSON, and what the program prints to standard error
    #[arg(long)]
    json: bool,
    /// Record what the doctor looks at, for tests of the doctor
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The program, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How the program ended.
#[derive(Debug, Serialize)]
struct ProgramRun {
    /// The distance in words, and what made it.
    distance: String,
    /// The round trip as TCP saw it, in microseconds; 0 where the kernel did not make the distance.
    rtt_us: u64,
    /// How long the program ran, in microseconds.
    ran_us: u64,
    /// Its exit status; `None` when a signal ended it.
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// The lab has ended it, because `--time` was over or the user pressed Ctrl-C.
    is_told: bool,
}

impl ProgramRun {
    fn is_good(&self) -> bool {
        self.is_told || self.exit_code == Some(0)
    }
}

/// The doctor's report and the end of the program, as they are printed with `--json`.
#[derive(Serialize)]
struct RunAnswer<'a> {
    #[serde(flatten)]
    report: &'a Report,
    run: &'a ProgramRun,
}

impl RunArgs {
    /// Whether the run may need network namespaces of the kernel.
    pub(crate) fn wants_networks(&self) -> bool {
        !self.link.link().is_none()
    }

    /// Runs the program, and prints what the doctor has found.
    pub(crate) fn run(
        &self,
        start: &StartBroker<'_>,
        stop: &Stop,
        page: &OutputPage,
    ) -> Result<LabOutcome, LabError> {
        let set = self.set.iter().map(|text| setting(text));
        let wanted = BrokerOptions {
            settings: set.collect::<Result<_, _>>()?,
            record: self.record.clone(),
            ..BrokerOptions::default()
        };
        let broker = DistantBroker::open(&self.link, &wanted, start)?;
        let note = broker.note();
        let reached = broker.reached();
        eprintln!("The broker is {note}");
        eprintln!(
            "Kafka {}, AMQP {}, NSQ {}, admin {}; see the environment, CLOVERLEAF_*.",
            reached.text(BrokerListener::Kafka),
            reached.text(BrokerListener::Amqp),
            reached.text(BrokerListener::Nsq),
            reached.text(BrokerListener::Admin)
        );
        let mut program = self.begin(&broker)?;
        let begun = Instant::now();
        let (status, is_told) = program.wait(self.time, stop)?;
        // Before processes that the program left behind are killed: connections that break then
        // are no finding.
        let report = broker.report(&Query {
            since_us: Some(u64::MAX),
            client: None,
        })?;
        drop(program);
        let run = ProgramRun {
            distance: note,
            rtt_us: broker.rtt().map_or(0, |rtt| rtt.as_micros() as u64),
            ran_us: begun.elapsed().as_micros() as u64,
            exit_code: status.code(),
            signal: status.signal(),
            is_told,
        };
        self.print(&report, &run, page)?;
        Ok(match report.findings.is_empty() {
            _ if !run.is_good() => LabOutcome::Failed,
            false => LabOutcome::Found,
            true => LabOutcome::Good,
        })
    }

    fn begin(&self, broker: &DistantBroker) -> Result<ClientProcess, LabError> {
        let what = format!("{} cannot be run", self.command.join(" "));
        let failed = |error| LabError::system(&what, error);
        let (name, args) = match self.command.split_first() {
            Some(it) => it,
            None => return Err(failed(io::ErrorKind::InvalidInput.into())),
        };
        let mut command = Command::new(name);
        command
            .args(args)
            .envs(broker.reached().variables())
            .stdin(Stdio::null());
        if self.json {
            let errors = io::stderr().as_fd().try_clone_to_owned();
            command.stdout(errors.map_err(failed)?);
        }
        let process = broker.at_client(|| ClientProcess::start(&mut command));
        process.flatten().map_err(failed)
    }

    fn print(&self, report: &Report, run: &ProgramRun, page: &OutputPage) -> Result<(), LabError> {
        let mut out = io::stdout().lock();
        let text = if self.json {
            let answer = RunAnswer { report, run };
            let text = serde_json::to_string_pretty(&answer).map_err(io::Error::other);
            text.map_err(|error| LabError::system("the report cannot be written", error))?
        } else {
            let more = "cloverleaf lab run --details";
            let detail = if self.details {
                Detail::Full
            } else {
                Detail::Short { more }
            };
            findings_text(report, page.width, page.with_colours, detail)
        };
        let written = writeln!(out, "{}", text.trim_end());
        written.map_err(|error| LabError::system("the report cannot be printed", error))?;
        if !run.is_good() {
            eprintln!("The program failed: {}.", ended(run));
        }
        if Duration::from_micros(report.watched_us) < WATCHED_MIN && report.findings.is_empty() {
            eprintln!("It ran for less than 15 seconds: too short for most findings.");
        }
        Ok(())
    }
}

fn ended(run: &ProgramRun) -> String {
    match (run.exit_code, run.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "its end is not known".to_owned(),
    }
}

fn setting(text: &str) -> Result<(String, String), LabError> {
    let parts = text.split_once('=');
    let (name, value) = parts.ok_or_else(|| LabError::Setting(text.to_owned()))?;
    Ok((name.trim_start_matches("--").to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn options_of_the_broker_are_names_and_values() {
        let quick = setting("--quick-ack=false").unwrap();
        assert_eq!(quick, ("quick-ack".to_owned(), "false".to_owned()));
        let error = setting("quick-ack").unwrap_err().to_string();
        assert!(error.contains("write NAME=VALUE"), "{error}");
    }
}
