//! `cloverleaf lab …`: its arguments, and how each command is run.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use cloverleaf_bench::Stop;
use cloverleaf_bench::command::{LinkArgs, duration};

use crate::broker::StartBroker;
use crate::distance::LabError;
use crate::run::RunArgs;
use crate::scenario::{Scenario, healthy, perform};

const RUN_EXAMPLES: &str = "\
The program finds the broker at the usual ports of 127.0.0.1 where nobody else has them, and by its
environment: CLOVERLEAF_KAFKA, CLOVERLEAF_AMQP_URL, CLOVERLEAF_NSQD, CLOVERLEAF_NSQD_HTTP,
CLOVERLEAF_NSQLOOKUPD, CLOVERLEAF_ADMIN_ADDRESS. With --rtt it is in a network of its own, from
which nothing else can be reached.

The exit status is 1 if the doctor has found something, 0 if not, and 2 if the program failed.

Examples:
  cloverleaf lab run --rtt 10ms --time 20s -- python3 producer.py
  cloverleaf lab run --rtt 1ms --set quick-ack=false -- ./producer     as other brokers answer
  cloverleaf lab run --rtt 10ms --json -- sh -c './consumer $CLOVERLEAF_AMQP_URL' > report.json";

/// What `cloverleaf lab` can do.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct LabArgs {
    #[command(subcommand)]
    command: Option<LabCommand>,
    /// The story to play, or several: --list names them
    #[arg(value_name = "STORY")]
    stories: Vec<String>,
    /// Name the stories
    #[arg(long)]
    list: bool,
    /// Play all of them, one after the other
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    link: LinkArgs,
    /// Measure for so long after the change; `healthy` is watched for so long
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Print what is told as JSON
    #[arg(long)]
    json: bool,
    /// Record what the doctor looks at, for tests of the doctor; of one story
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    record: Option<PathBuf>,
}

/// Commands beside the scenarios.
#[derive(Debug, Clone, Subcommand)]
pub enum LabCommand {
    /// Run a program beside a broker at a distance, and print what the doctor has found at its end
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
}

/// The meaning of the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabOutcome {
    /// Status 0: nothing was found, or each scenario went as expected.
    Good,
    /// Status 1: the doctor has found something, or a scenario did not go as expected.
    Found,
    /// Status 2: the program has failed, or the command could not be run.
    Failed,
}

/// How findings are printed.
#[derive(Debug, Clone, Copy)]
pub struct OutputPage {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether the terminal has colours.
    pub with_colours: bool,
}

/// How a scenario is to be run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScenarioOptions<'a> {
    /// The distance that the user has set in place of the scenario's own.
    pub(crate) link: &'a LinkArgs,
    /// Seconds to measure, in place of the scenario's own.
    pub(crate) seconds: Option<f64>,
    /// The file for a recording.
    pub(crate) record: Option<&'a Path>,
}

impl LabArgs {
    /// Whether the command may need network namespaces of the kernel.
    pub fn wants_networks(&self) -> bool {
        match &self.command {
            Some(LabCommand::Run(args)) => args.wants_networks(),
            None => !self.list,
        }
    }

    /// Runs the command with brokers that `start` starts, until it is done or `stop` is set.
    ///
    /// # Errors
    /// The system refuses something that the command needs, or an argument is wrong.
    pub fn run(
        &self,
        start: &StartBroker<'_>,
        stop: &Stop,
        page: &OutputPage,
    ) -> Result<LabOutcome, LabError> {
        match &self.command {
            Some(LabCommand::Run(args)) => args.run(start, stop, page),
            None if self.list => self.list(),
            None => self.play(start, stop, page),
        }
    }

    fn list(&self) -> Result<LabOutcome, LabError> {
        let mut text = String::new();
        text.push_str(&format!("{:<20}{}\n", healthy::NAME, healthy::TITLE));
        for story in Scenario::all() {
            text.push_str(&format!("{:<20}{}\n", story.name(), story.title));
        }
        print(&text)?;
        Ok(LabOutcome::Good)
    }

    fn play(
        &self,
        start: &StartBroker<'_>,
        stop: &Stop,
        page: &OutputPage,
    ) -> Result<LabOutcome, LabError> {
        let mut reports = Vec::new();
        for story in self.chosen()? {
            if stop.is_set() {
                break;
            }
            let options = ScenarioOptions {
                link: &self.link,
                seconds: self.time.map(|time| time.as_secs_f64()),
                record: self.record.as_deref(),
            };
            let one = match story {
                Some(story) => perform(story, options, start, stop)?,
                None => healthy::watch(options, start, stop)?,
            };
            if !self.json {
                print(&format!("{}\n", one.render(page)))?;
            }
            reports.push(one);
        }
        if self.json {
            let text = serde_json::to_string_pretty(&reports).map_err(io::Error::other);
            let text = text.map_err(|error| LabError::system("nothing can be written", error))?;
            print(&format!("{text}\n"))?;
        }
        Ok(if reports.iter().all(|one| one.is_good) {
            LabOutcome::Good
        } else {
            LabOutcome::Found
        })
    }

    /// The scenarios to run. `None` stands for the scenario of the healthy clients.
    fn chosen(&self) -> Result<Vec<Option<&'static Scenario>>, LabError> {
        let mut all: Vec<(&str, Option<&'static Scenario>)> = vec![(healthy::NAME, None)];
        let stories = Scenario::all().iter();
        all.extend(stories.map(|story| (story.name(), Some(story))));
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        let unknown = self.stories.iter().find(|it| !names.contains(&it.as_str()));
        if let Some(name) = unknown {
            return Err(LabError::Scenario(name.clone(), names.join(", ")));
        }
        let is_wanted = |name: &str| self.all || self.stories.iter().any(|it| it == name);
        let wanted = all.into_iter().filter(|(name, _)| is_wanted(name));
        Ok(wanted.map(|(_, story)| story).collect())
    }
}

fn print(text: &str) -> Result<(), LabError> {
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| LabError::system("nothing can be printed", error))
}
