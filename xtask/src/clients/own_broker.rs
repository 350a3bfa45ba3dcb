//! Programs that start and end the broker themselves, because they test its restarts.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;

use super::{Context, Report};
use crate::broker::{Kind, Options};

/// Runs `program` with the arguments `ADDRESS -- BROKER...`: the address on which the broker will
/// listen, and the command that starts it.
pub(super) fn run(
    report: &mut Report,
    mut program: Command,
    options: &Options,
    address: SocketAddr,
) -> Result<()> {
    options.prepare()?;
    let broker = options.command();
    if options.kind == Kind::RabbitMq {
        program.env("AMQP_ORIGINAL", "1");
    }
    program
        .args([&address.to_string(), "--"])
        .arg(broker.get_program())
        .args(broker.get_args());
    report.program(&mut program)
}

/// Runs `program` with a broker that has default options and an empty folder.
pub(super) fn run_plain(
    context: &Context,
    report: &mut Report,
    program: Command,
    address: impl FnOnce(&Options) -> SocketAddr,
) -> Result<()> {
    let folder = context.workspace.temp_folder("restarts")?;
    let options = context.options(folder.path())?;
    let address = address(&options);
    run(report, program, &options, address)
}
