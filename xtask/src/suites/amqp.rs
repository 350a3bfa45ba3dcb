//! The suites of AMQP's clients.

use std::process::Command;

use anyhow::Result;

use super::{SuiteResult, run_suite};
use crate::clients::Context;
use crate::install::Tool;

/// Those that tell RabbitMQ's management plug-in to cut a connection.
const NEED_MANAGEMENT: &str = "TestConnectionRecovery";

/// How many of Watermill's tests run at once, as in its own Makefile.
const WATERMILL_PARALLEL: &str = "20";

/// Watermill-amqp's tests: seven kinds of publishers and subscribers on amqp091-go.
pub(super) fn watermill_amqp(context: &Context) -> Result<SuiteResult> {
    context.clients.install(Tool::AmqpGo)?;
    let source = context.clients.watermill_amqp_source()?;
    let folder = context.workspace.temp_folder("watermill-amqp")?;
    let broker = context.options(folder.path())?.start()?;
    let mut test = Command::new("go");
    test.current_dir(source).args(["test", "-v", "-count=1"]);
    test.args(["-parallel", WATERMILL_PARALLEL, "-timeout", "8m"]);
    test.arg("./pkg/amqp");
    let uri = format!("amqp://guest:guest@{}/", broker.amqp());
    test.env("WATERMILL_TEST_AMQP_URI", uri);
    let log = context.workspace.target().join("watermill-amqp-suite.log");
    run_suite(&mut test, &log, "--- PASS: ", "--- FAIL: ")
}

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
