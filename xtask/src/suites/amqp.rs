//! The suites of AMQP's clients.

use std::process::Command;

use anyhow::Result;

use super::{SuiteResult, run_suite};
use crate::clients::Context;
use crate::install::Tool;

/// Those that tell RabbitMQ's management plug-in to cut a connection.
const NEED_MANAGEMENT: &str = "TestConnectionRecovery";

/// amqp091-go's tests with a broker. Those that want `rabbitmqctl` skip themselves.
pub(super) fn amqp091_go(context: &Context) -> Result<SuiteResult> {
    context.clients.install(Tool::AmqpGo)?;
    let source = context.clients.amqp091_go_source()?;
    let folder = context.workspace.temp_folder("amqp091-go")?;
    let broker = context.options(folder.path())?.start()?;
    let mut test = Command::new("go");
    test.current_dir(source).args(["test", "-v", "-count=1"]);
    test.args(["-tags", "integration", "-timeout", "8m"]);
    test.args(["-skip", NEED_MANAGEMENT, "."]);
    test.env("AMQP_URL", format!("amqp://guest:guest@{}/", broker.amqp()));
    let log = context.workspace.target().join("amqp091-go-suite.log");
    run_suite(&mut test, &log, "--- PASS: ", "--- FAIL: ")
}
