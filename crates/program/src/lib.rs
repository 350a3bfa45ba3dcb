//! The process around each of the two programs, `cloverleaf` and `cloverleaf-workbench`: the
//! command line, the exit status, and the commands of the first that the second carries out.
//!
//! Architecture invariant: this crate knows nothing that only one of the two programs needs.

use std::process::ExitCode;

use clap::error::ContextValue;
use clap::{ArgMatches, Command};
use cloverleaf_page::secrets::masked;

/// The name of the program for measurements, and of its package.
pub const WORKBENCH: &str = "cloverleaf-workbench";
/// The version of both programs, which share a workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A command that `cloverleaf` leaves to the workbench.
pub struct WorkbenchCommand {
    /// Its word on the command line.
    pub name: &'static str,
    /// Its line in the help of both programs.
    pub about: &'static str,
}

/// The command that measures brokers.
pub const BENCH: WorkbenchCommand = WorkbenchCommand {
    name: "bench",
    about: "Measure this broker or another: throughput, latency, losses, order",
};
/// The command that plays slow clients.
pub const LAB: WorkbenchCommand = WorkbenchCommand {
    name: "lab",
    about: "Slow clients on purpose: what the doctor finds of them, or of a program of yours",
};

/// Parses the command line and calls `run` with it; errors are printed to standard error.
pub fn main(
    command: Command,
    run: impl FnOnce(&ArgMatches) -> anyhow::Result<ExitCode>,
) -> ExitCode {
    let matches = match command.try_get_matches() {
        Ok(matches) => matches,
        Err(error) => without_secrets(error).exit(),
    };
    match run(&matches) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cloverleaf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Hides passwords: the wrong part of a command line may be a URL with one.
fn without_secrets(mut error: clap::Error) -> clap::Error {
    let texts = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(text) => Some((kind, masked(text))),
        _ => None,
    });
    for (kind, text) in texts.collect::<Vec<_>>() {
        error.insert(kind, ContextValue::String(text));
    }
    error
}

/// Whether the reader has closed the pipe: `cloverleaf … | head` is not an error.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
