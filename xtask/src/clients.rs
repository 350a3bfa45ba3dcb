//! The client tests: real third-party programs, and hostile ones, against the real binary.

mod admin;
mod amqp;
mod bench;
mod crash;
mod disk;
mod doctor;
mod golang;
mod groups;
mod hostile;
mod kafka;
mod kafka_reach;
mod lookup;
mod memory;
mod own_broker;
mod report;
mod scripts;
mod side_by_side;
mod sync_order;
mod toolchains;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::broker::{Broker, Kind, Options};
use crate::install::Clients;
use crate::limit;
use crate::workspace::Workspace;
use groups::GROUPS;
use report::Report;

pub(crate) use amqp::crash_rounds as amqp_crash_rounds;
pub(crate) use crash::crash_rounds;
pub(crate) use doctor::{PlaysArgs, plays};
pub(crate) use kafka::crash_rounds as kafka_crash_rounds;
pub(crate) use memory::limits;
pub(crate) use side_by_side::{Wanted, run};

/// A group that runs longer hangs, even on a machine that is ten times slower.
const GROUP_TIME_MAX: Duration = Duration::from_secs(45 * 60);

/// The context that every group gets.
pub(crate) struct Context {
    pub(crate) workspace: Workspace,
    pub(crate) clients: Clients,
    pub(crate) kind: Kind,
    pub(crate) binary: PathBuf,
    /// Whether this is CI, where a test that cannot run has failed.
    pub(crate) ci: bool,
}

impl Context {
    /// Context with our own binary, which is built when it has to be.
    pub(crate) fn ours(workspace: &Workspace) -> Result<Self> {
        let binary = workspace.test_binary()?;
        Ok(Self::new(workspace, Kind::Cloverleaf, binary))
    }

    /// Context with our own binary, or with an original.
    pub(crate) fn with(workspace: &Workspace, original: &Original) -> Result<Self> {
        Ok(match original.program(workspace)? {
            Some((kind, binary)) => Self::new(workspace, kind, binary),
            None => Self::ours(workspace)?,
        })
    }

    fn new(workspace: &Workspace, kind: Kind, binary: PathBuf) -> Self {
        Self {
            workspace: workspace.clone(),
            clients: Clients::new(workspace),
            kind,
            binary,
            ci: std::env::var_os("CI").is_some_and(|value| value == "true"),
        }
    }

    /// Options of a broker with its data in `folder`.
    pub(crate) fn options(&self, folder: &Path) -> Result<Options> {
        Options::new(self.kind, &self.binary, &folder.join("data"))
    }

    /// Starts the broker that most groups use: default options, and TLS.
    fn plain_broker(&self, folder: &Path) -> Result<Broker> {
        let mut options = self.options(folder)?;
        options.tls = Some(self.tls_files());
        options.start()
    }

    /// Runs programs one after the other with one plain broker, whose addresses are in their
    /// environment.
    fn run_programs(
        &self,
        report: &mut Report,
        programs: impl IntoIterator<Item = Command>,
    ) -> Result<()> {
        let folder = self.workspace.temp_folder("clients")?;
        let broker = self.plain_broker(folder.path())?;
        let mut programs = programs.into_iter();
        programs.try_for_each(|it| report.program(&mut self.with_addresses(it, &broker)))
    }

    /// A certificate and its key.
    fn tls_files(&self) -> (PathBuf, PathBuf) {
        let tls = self.workspace.client_tests().join("tls");
        (tls.join("server.pem"), tls.join("server.key"))
    }

    /// The certificate of the authority that has signed the broker's.
    fn tls_authority(&self) -> PathBuf {
        self.workspace.client_tests().join("tls/ca.pem")
    }

    /// Adds the broker's addresses to a program's environment.
    fn with_addresses(&self, mut command: Command, broker: &Broker) -> Command {
        command
            .env("NSQ_TCP", broker.tcp().to_string())
            .env("NSQ_HTTP", broker.http().to_string())
            .env("NSQ_TLS_CA", self.tls_authority())
            .env("KAFKA", broker.kafka().to_string())
            .env("KAFKA_TLS", broker.kafka_tls().to_string())
            .env("KAFKA_TLS_CA", self.tls_authority())
            .env("AMQP", broker.amqp().to_string())
            .env("AMQP_TLS", broker.amqp_tls().to_string())
            .env("AMQP_TLS_CA", self.tls_authority())
            .env("ADMIN", broker.admin().to_string());
        if self.kind == Kind::RabbitMq {
            command.env("AMQP_ORIGINAL", "1");
        }
        command
    }
}

/// The original that client tests run against in place of our own binary, which shows whether the
/// tests are right.
#[derive(Clone, Default, clap::Args)]
#[group(multiple = false)]
pub(crate) struct Original {
    /// Run the client tests against this nsqd, which shows whether the tests are right.
    #[arg(long, value_name = "PROGRAM")]
    against_nsqd: Option<PathBuf>,
    /// Run the Kafka client tests against Apache Kafka, for the same reason.
    #[arg(long)]
    against_kafka: bool,
    /// Run the AMQP client tests against RabbitMQ, for the same reason: a folder with a Debian that
    /// has the package rabbitmq-server (from debootstrap). Needs root.
    #[arg(long, value_name = "FOLDER")]
    against_rabbitmq: Option<PathBuf>,
}

impl Original {
    /// Apache Kafka.
    pub(crate) fn kafka() -> Self {
        Self {
            against_kafka: true,
            ..Self::default()
        }
    }

    /// Whether no original is set, so that the tests run against our own binary.
    pub(crate) fn is_none(&self) -> bool {
        self.against_nsqd.is_none() && !self.against_kafka && self.against_rabbitmq.is_none()
    }

    /// The kind of the original and its program. Kafka is installed if it is missing.
    fn program(&self, workspace: &Workspace) -> Result<Option<(Kind, PathBuf)>> {
        Ok(if let Some(nsqd) = &self.against_nsqd {
            Some((Kind::Nsqd, nsqd.clone()))
        } else if let Some(debian) = &self.against_rabbitmq {
            Some((Kind::RabbitMq, debian.clone()))
        } else if self.against_kafka {
            Some((Kind::Kafka, Clients::new(workspace).kafka_jars()?))
        } else {
            None
        })
    }

    /// As arguments for another process.
    fn arguments(&self) -> Vec<String> {
        let path = |name: &str, path: &Option<PathBuf>| {
            let path = path.as_ref();
            path.map(|it| format!("--against-{name}={}", it.display()))
        };
        let kafka = self.against_kafka.then(|| "--against-kafka".to_owned());
        let paths = [
            path("nsqd", &self.against_nsqd),
            path("rabbitmq", &self.against_rabbitmq),
            kafka,
        ];
        paths.into_iter().flatten().collect()
    }
}

/// One group, alone in its process; what `cargo xtask test` starts side by side.
#[derive(clap::Args)]
pub(crate) struct GroupArgs {
    name: String,
    #[command(flatten)]
    original: Original,
}

/// Runs one group. True when nothing failed.
pub(crate) fn run_group(workspace: &Workspace, args: &GroupArgs) -> Result<bool> {
    let group = GROUPS.iter().find(|group| group.name == args.name);
    let group = group.with_context(|| format!("no group is named {}", args.name))?;
    let context = Context::with(workspace, &args.original)?;
    let clients = &context.clients;
    // Some checks mean nothing to an original.
    let skips_fail = context.ci && context.kind == Kind::Cloverleaf;
    let mut report = Report::new(group.name, skips_fail);
    let result = limit::within(group.name, GROUP_TIME_MAX, || {
        let mut tools = group.needs.iter();
        tools.try_for_each(|tool| clients.install(*tool))?;
        (group.run)(&context, &mut report)
    });
    if let Err(error) = result {
        report.fail("run", &format!("{error:#}"));
    }
    Ok(report.is_good())
}
