//! `cargo xtask test`: everything that shows that the broker works.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::broker::Kind;
use crate::clients;
use crate::install::Clients;
use crate::limit;
use crate::workspace::{Workspace, run};

/// What the tests of the workspace may take once they are built: ten times what they take on two
/// cores. It is there for what hangs, and each test that can wait has a limit of its own.
const WORKSPACE_TIME_MAX: Duration = Duration::from_secs(60 * 60);

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
    /// Run the Kafka client tests against Apache Kafka, for the same reason.
    #[arg(long, conflicts_with_all = ["no_clients", "against_nsqd"])]
    against_kafka: bool,
    /// Run the AMQP client tests against RabbitMQ, for the same reason: a folder with a Debian that
    /// has the package rabbitmq-server (from debootstrap). Needs root.
    #[arg(long, value_name = "FOLDER")]
    #[arg(conflicts_with_all = ["no_clients", "against_nsqd", "against_kafka"])]
    against_rabbitmq: Option<PathBuf>,
}

pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<bool> {
    let original = match &args.against_nsqd {
        Some(nsqd) => Some((Kind::Nsqd, nsqd.clone())),
        None if args.against_kafka => Some((Kind::Kafka, Clients::new(workspace).kafka_jars()?)),
        None => args
            .against_rabbitmq
            .as_ref()
            .map(|folder| (Kind::RabbitMq, folder.clone())),
    };
    if args.only.is_none() && original.is_none() {
        let tests = ["test", "--profile", "ci", "--workspace"];
        run(workspace.cargo().args(tests).arg("--no-run"))?;
        limit::within("the tests of the workspace", WORKSPACE_TIME_MAX, || {
            run(workspace.cargo().args(tests))
        })?;
    }
    if args.no_clients {
        return Ok(true);
    }
    clients::run(workspace, args.only.as_deref(), original)
}
