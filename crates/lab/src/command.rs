//! `cloverleaf lab …`: arguments, and what becomes of them.

use clap::{Args, Subcommand};
use cloverleaf_bench::Stop;

use crate::broker::StartBroker;
use crate::place::LabError;
use crate::run::RunArgs;

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
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

/// What there is beside the stories.
#[derive(Debug, Clone, Subcommand)]
pub enum LabCommand {
    /// Run a program beside a broker at a distance, and print what the doctor has found at its end
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
}

/// What the exit status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is as it should be: 0.
    Good,
    /// The doctor has found something, or not what it should: 1.
    Found,
    /// What was run has failed: 2.
    Failed,
}

/// How findings are printed.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// Columns.
    pub width: usize,
    /// Whether the terminal has colours.
    pub with_colours: bool,
}

impl LabArgs {
    /// Whether it may need networks of the kernel's.
    pub fn wants_networks(&self) -> bool {
        match &self.command {
            LabCommand::Run(args) => args.wants_networks(),
        }
    }

    /// Does what they say, with brokers that `start` starts, until `stop` is set.
    ///
    /// # Errors
    /// The machine does not let it.
    pub fn run(
        &self,
        start: &StartBroker<'_>,
        stop: &Stop,
        page: &Page,
    ) -> Result<Outcome, LabError> {
        match &self.command {
            LabCommand::Run(args) => args.run(start, stop, page),
        }
    }
}
