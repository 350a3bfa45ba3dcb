//! `cargo xtask test`: everything that shows that the broker works.

use std::process::Command;

use anyhow::Result;

use crate::clients::{self, Original, Wanted};
use crate::process::MYSELF;
use crate::workspace::{WORKSPACE_TESTS, Workspace, run};

/// Seconds that the tests of the workspace may take once they are built: the end of one that hangs,
/// on a machine that is ten times slower, too.
const WORKSPACE_SECONDS_MAX: u64 = 45 * 60;
/// Jobs side by side wait for most of their time: more than two at once keep two cores busy.
const AT_ONCE: usize = 4;

/// Runs all tests of the workspace, and beside them real third-party clients against our binary.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the client tests whose name contains this, and no others.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Only the tests of the workspace: needs nothing but Rust.
    #[arg(long, conflicts_with_all = ["only", "Original"])]
    no_clients: bool,
    /// How many groups of client tests run side by side.
    #[arg(long, value_name = "COUNT", default_value_t = AT_ONCE)]
    at_once: usize,
    #[command(flatten)]
    original: Original,
}

pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    let workspace_tests = if args.only.is_none() && args.original.is_none() {
        Some(workspace_tests(workspace)?)
    } else {
        None
    };
    match workspace_tests {
        Some(mut tests) if args.no_clients => {
            run(&mut tests)?;
            Ok(true)
        }
        workspace_tests => clients::run(
            workspace,
            Wanted {
                workspace_tests,
                only: args.only.clone(),
                original: args.original.clone(),
                at_once: args.at_once,
            },
        ),
    }
}

/// The command that runs the tests of the workspace, which are built now.
fn workspace_tests(workspace: &Workspace) -> Result<Command> {
    let cargo = workspace.cargo();
    run(workspace.cargo().args(WORKSPACE_TESTS).arg("--no-run"))?;
    let mut within = Command::new(MYSELF);
    within.current_dir(workspace.root());
    within.args(["within", "--seconds", &WORKSPACE_SECONDS_MAX.to_string()]);
    within.arg("--").arg(cargo.get_program());
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => within.env(name, value),
            None => within.env_remove(name),
        };
    }
    // A red run names all that is red.
    within.args(WORKSPACE_TESTS).arg("--no-fail-fast");
    Ok(within)
}
