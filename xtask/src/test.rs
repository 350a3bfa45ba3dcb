//! `cargo xtask test`: everything that shows that the broker works.

use std::path::PathBuf;

use anyhow::Result;

use crate::clients;
use crate::workspace::{Workspace, run};

/// Runs all tests of the workspace, then real third-party clients against the release binary.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the client tests whose name contains this, and no others.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Only the tests of the workspace: needs nothing but Rust.
    #[arg(long, conflicts_with = "only")]
    no_clients: bool,
    /// Run the client tests against this nsqd, which shows whether the tests are right.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "no_clients")]
    against_nsqd: Option<PathBuf>,
}

pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    if args.only.is_none() && args.against_nsqd.is_none() {
        run(workspace.cargo().args(["test", "--workspace"]))?;
    }
    if args.no_clients {
        return Ok(true);
    }
    clients::run(
        workspace,
        args.only.as_deref(),
        args.against_nsqd.as_deref(),
    )
}
