//! pynsq and nsqjs: scripts that use the unmodified client library.

use std::process::Command;

use anyhow::Result;

use super::{Context, Report, toolchains};
use crate::broker::free_addresses;

pub(super) fn python(context: &Context, report: &mut Report) -> Result<()> {
    let script = context
        .workspace
        .client_tests()
        .join("nsq/python/pynsq_test.py");
    let mut command = Command::new(context.clients.python_program());
    command.arg(script);
    with_two_brokers(context, report, command)
}

pub(super) fn node(context: &Context, report: &mut Report) -> Result<()> {
    let script = context
        .workspace
        .client_tests()
        .join("nsq/node/nsqjs_test.js");
    let node = toolchains::node(&context.clients.node_folder(), &script);
    with_two_brokers(context, report, node)
}

/// A plain broker, and one that asks an authentication server, which the script itself serves.
fn with_two_brokers(context: &Context, report: &mut Report, command: Command) -> Result<()> {
    let folder = context.workspace.temp_folder("scripts")?;
    let plain = context.plain_broker(folder.path())?;
    let [auth] = free_addresses()?;
    let mut options = context.options(&folder.path().join("auth"))?;
    options.auth_http = Some(auth);
    let asking = options.start()?;
    let mut command = context.with_addresses(command, &plain);
    command
        .env("NSQ_AUTH_HTTP", auth.to_string())
        .env("NSQ_AUTH_TCP", asking.tcp().to_string());
    report.program(&mut command)
}
