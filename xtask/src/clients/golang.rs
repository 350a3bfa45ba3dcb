//! go-nsq: programs with many producers and consumers, and the library's own test suite.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{Context, Report, toolchains};
use crate::broker::Kind;
use crate::suites;
use crate::workspace::output;

/// Builds the programs in `tests/clients/nsq/go` and returns the path of one.
pub(super) fn build(context: &Context, name: &str) -> Result<PathBuf> {
    let folder = context.workspace.clients().join("go-tests");
    toolchains::go_build(&context.workspace.client_tests().join("nsq/go"), &folder)?;
    Ok(folder.join(name))
}

pub(super) fn program(context: &Context, report: &mut Report) -> Result<()> {
    report.check("the account that the programs keep", || {
        let mut go = Command::new("go");
        go.current_dir(context.workspace.client_tests().join("nsq/go"));
        output(go.args(["test", "./ledger"])).map(drop)
    });
    let mut program = Command::new(build(context, "manyclients")?);
    if context.kind == Kind::Cloverleaf {
        program.arg("-ordered");
    }
    context.run_programs(report, [program])
}

pub(super) fn suite(context: &Context, report: &mut Report) -> Result<()> {
    let result = suites::go_nsq(context)?;
    for name in &result.passed {
        report.pass(name);
    }
    for name in &result.failed {
        report.fail(name, &result.log.display().to_string());
    }
    Ok(())
}
