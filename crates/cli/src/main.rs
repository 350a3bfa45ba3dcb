//! The `cloverleaf` binary: reads the command line and does what it says.

mod allocator;
mod args;
mod bench;
mod client;
mod doctor;
mod doctor_page_text;
mod doctor_pages;
mod embedded;
mod lab;
mod logging;
mod panics;
mod serve;
mod subscription;
mod table;
mod tail;
mod terminal;
mod timeline;
mod topic;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ContextValue;
use clap::{ArgMatches, FromArgMatches};
use cloverleaf_bench::command::{BenchCommand, without_secret};
use cloverleaf_lab::LabArgs;

fn main() -> ExitCode {
    allocator::give_back_soon();
    let matches = match args::command().try_get_matches() {
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

fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    match matches.subcommand() {
        Some(("serve", matches)) => serve::run(matches)?,
        Some(("topic", matches)) => topic::run(
            &client::Client::from_matches(matches),
            &topic::TopicCommand::from_arg_matches(matches)?,
        )?,
        Some(("subscription", matches)) => subscription::run(
            &client::Client::from_matches(matches),
            &subscription::SubscriptionCommand::from_arg_matches(matches)?,
        )?,
        Some(("tail", matches)) => tail::run(
            &client::Client::from_matches(matches),
            &tail::TailArgs::from_arg_matches(matches)?,
        )?,
        Some(("timeline", matches)) => timeline::run(
            &client::Client::from_matches(matches),
            &timeline::TimelineArgs::from_arg_matches(matches)?,
        )?,
        Some(("bench", matches)) => {
            let is_good = bench::run(&BenchCommand::from_arg_matches(matches)?)?;
            return Ok(match is_good {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            });
        }
        Some(("doctor", matches)) => return doctor::run(matches),
        Some(("lab", matches)) => return lab::run(&LabArgs::from_arg_matches(matches)?),
        _ => std::io::stdout().write_all(cloverleaf_server::options_markdown().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What is wrong with the command line may be a URL with a password, which is not repeated.
fn without_secrets(mut error: clap::Error) -> clap::Error {
    let texts = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(text) => Some((kind, without_secret(text))),
        _ => None,
    });
    for (kind, text) in texts.collect::<Vec<_>>() {
        error.insert(kind, ContextValue::String(text));
    }
    error
}

/// `cloverleaf … | head` is no error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
