//! Tooling: `cargo xtask COMMAND`. One file per command; none of it is part of the broker.

mod bench_peers;
mod broker;
mod clients;
mod fuzz;
mod http;
mod install;
mod kafka_server;
mod limit;
mod nsq;
mod nsqd_shim;
mod process;
mod rabbitmq_server;
mod rot;
mod suites;
mod test;
mod tidy;
mod wait;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Tooling of Cloverleaf.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Run all tests, and third-party clients against our binary.
    Test(test::Args),
    /// Check the house rules that a compiler does not check.
    Tidy,
    /// Measure against the original brokers with their own benchmark programs.
    BenchPeers(bench_peers::Args),
    /// Run a third-party client's own test suite against our binary.
    Suites(suites::Args),
    /// Play real clients that make mistakes, and healthy ones, and count what the doctor finds.
    Plays(clients::PlaysArgs),
    /// Kill the broker with -9 at random moments under load, and count what is missing.
    CrashLoop {
        /// How often to kill it.
        #[arg(long, default_value_t = 100)]
        rounds: u32,
        /// Which protocol the load speaks.
        #[arg(long, value_parser = ["nsq", "kafka", "amqp"], default_value = "nsq")]
        protocol: String,
    },
    /// Measure memory with 10 million messages waiting, and a restart with a 10 GB log.
    Limits,
    #[command(hide = true)]
    Group(clients::GroupArgs),
    #[command(hide = true)]
    Within(limit::Args),
    /// Run the fuzz targets (needs cargo-fuzz and a nightly toolchain).
    Fuzz(fuzz::Args),
}

fn main() -> ExitCode {
    match dispatch() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<bool> {
    if nsqd_shim::is_asked_for() {
        return nsqd_shim::main();
    }
    let workspace = Workspace::find()?;
    match Cli::parse().command {
        Cmd::Test(args) => test::main(&workspace, &args),
        Cmd::Tidy => tidy::main(&workspace),
        Cmd::BenchPeers(args) => bench_peers::main(&workspace, &args),
        Cmd::Suites(args) => suites::main(&workspace, &args),
        Cmd::Plays(args) => clients::plays(&workspace, &args),
        Cmd::CrashLoop { rounds, protocol } => match protocol.as_str() {
            "kafka" => clients::kafka_crash_rounds(&workspace, rounds),
            "amqp" => clients::amqp_crash_rounds(&workspace, rounds),
            _ => clients::crash_rounds(&workspace, rounds),
        },
        Cmd::Limits => clients::limits(&workspace),
        Cmd::Group(args) => clients::run_group(&workspace, &args),
        Cmd::Within(args) => limit::main(&args),
        Cmd::Fuzz(args) => fuzz::main(&workspace, &args),
    }
}
