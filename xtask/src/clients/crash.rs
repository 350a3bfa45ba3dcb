//! Crashes and orderly stops under load. `tests/clients/nsq/go/restarts` checks that no message is
//! lost.

use std::process::Command;

use anyhow::Result;

use super::{Context, Report, golang};
use crate::broker::Kind;
use crate::install::{Clients, Tool};
use crate::workspace::Workspace;

/// Rounds in `cargo xtask test`; `cargo xtask crash-loop` makes more.
const ROUNDS: u32 = 5;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    restarts(context, report, "KILL", ROUNDS)
}

pub(super) fn drain(context: &Context, report: &mut Report) -> Result<()> {
    restarts(context, report, "TERM", ROUNDS)
}

/// `cargo xtask crash-loop`.
pub(crate) fn crash_rounds(workspace: &Workspace, rounds: u32) -> Result<bool> {
    Clients::new(workspace).install(Tool::Go)?;
    let mut report = Report::new("crash-loop", false);
    restarts(&Context::ours(workspace)?, &mut report, "KILL", rounds)?;
    Ok(report.is_good())
}

fn restarts(context: &Context, report: &mut Report, signal: &str, rounds: u32) -> Result<()> {
    let program = golang::build(context, "restarts")?;
    let folder = context.workspace.temp_folder("restarts")?;
    let options = context.options(folder.path())?;
    std::fs::create_dir_all(&options.data)?;
    let mut command = Command::new(program);
    command
        .env("NSQ_TCP", options.tcp.to_string())
        .env("NSQ_HTTP", options.http.to_string());
    command.args(["-signal", signal, "-rounds", &rounds.to_string()]);
    if context.kind == Kind::Cloverleaf {
        command.arg("-ordered");
    }
    let broker = options.command();
    command
        .arg("--")
        .arg(broker.get_program())
        .args(broker.get_args());
    report.program(&mut command)
}
