//! The `cloverleaf` binary: parses the command line and runs the command.

mod args;
mod client;
mod doctor;
mod doctor_page_text;
mod doctor_pages;
mod logging;
mod serve;
mod subscription;
mod table;
mod tail;
mod timeline;
mod topic;
mod workbench;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, FromArgMatches};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if workbench::is_workbench_command(&words) {
        return workbench::start(&words);
    }
    cloverleaf_program::main(args::command(), run)
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
        Some(("doctor", matches)) => return doctor::run(matches),
        _ => std::io::stdout().write_all(cloverleaf_server::options_markdown().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
