//! The `cloverleaf-workbench` binary, which `cloverleaf bench` and `cloverleaf lab` start. It runs
//! brokers in its own process where the user names none.
//!
//! It is a program of its own, so that the broker can be built without client libraries.

mod bench;
mod embedded;
mod lab;
mod stop;

use std::process::ExitCode;

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _, Subcommand as _};
use cloverleaf_bench::command::BenchCommand;
use cloverleaf_lab::LabArgs;
use cloverleaf_program::{BENCH, LAB, VERSION, WORKBENCH};

const BENCH_EXAMPLES: &str = "\
Without --url a broker is started in this process, on a temporary folder.

Examples:
  cloverleaf bench producer
  cloverleaf bench end-to-end --url nsq://127.0.0.1:4150 --rate 50k
  cloverleaf bench latency --protocol kafka --acks all
  cloverleaf bench consumer --message-size 128,1024 --runs 3 --json figures.json

The exit status is 1 if a message was lost or came out of order, or if the broker went away. Ctrl-C
ends a measurement and prints what was measured until then; a second one ends at once.";

fn main() -> ExitCode {
    cloverleaf_program::main(command(), run)
}

fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    match matches.subcommand() {
        Some(("bench", matches)) => bench::run(&BenchCommand::from_arg_matches(matches)?),
        Some((_, matches)) => lab::run(&LabArgs::from_arg_matches(matches)?),
        None => Ok(ExitCode::FAILURE),
    }
}

/// The whole command line. Help and errors name `cloverleaf`, the program that the user has called.
fn command() -> Command {
    // `about` comes last: it replaces the derived descriptions, which are those of the types.
    let bench = BenchCommand::augment_subcommands(Command::new(BENCH.name))
        .about(BENCH.about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(BENCH_EXAMPLES);
    let lab = LabArgs::augment_args(Command::new(LAB.name)).about(LAB.about);
    Command::new(WORKBENCH)
        .bin_name("cloverleaf")
        .version(VERSION)
        .about("The part of cloverleaf that measures brokers and plays slow clients")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(bench)
        .subcommand(lab)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }
}
