//! Kafka's clients: programs that use the unmodified client libraries, each against a broker of
//! its own.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::disk::SmallDisk;
use super::{Context, Report, own_broker, toolchains};
use crate::broker::Kind;
use crate::install::{Clients, Tool};
use crate::workspace::Workspace;

/// Rounds in `cargo xtask test`; `cargo xtask crash-loop` makes more.
const CRASH_ROUNDS: u32 = 4;
/// More than caches and buffers take, and much less than is sent to the broker.
const RSS_BYTES_MAX: u64 = 300 << 20;

pub(super) fn confluent(context: &Context, report: &mut Report) -> Result<()> {
    for script in [
        "confluent_test.py",
        "confluent_groups_test.py",
        "confluent_admin_test.py",
    ] {
        context.run_programs(report, [python(context, script)])?;
    }
    Ok(())
}

pub(super) fn old_librdkafka(context: &Context, report: &mut Report) -> Result<()> {
    for script in ["confluent_test.py", "confluent_groups_test.py"] {
        let mut program = Command::new(context.clients.old_librdkafka_program());
        program.arg(source(context, "python").join(script));
        context.run_programs(report, [program])?;
    }
    Ok(())
}

pub(super) fn kafka_python(context: &Context, report: &mut Report) -> Result<()> {
    context.run_programs(report, [python(context, "kafka_python_test.py")])
}

pub(super) fn aiokafka(context: &Context, report: &mut Report) -> Result<()> {
    context.run_programs(report, [python(context, "aiokafka_test.py")])
}

pub(super) fn node(context: &Context, report: &mut Report) -> Result<()> {
    let script = source(context, "node").join("kafkajs_test.js");
    let node = toolchains::node(&context.clients.kafka_node_folder(), &script);
    context.run_programs(report, [node])
}

pub(super) fn go(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.clients().join("kafka-go-tests");
    toolchains::go_build(&source(context, "go"), &folder)?;
    for program in ["franzgo", "kafkago"] {
        context.run_programs(report, [Command::new(folder.join(program))])?;
    }
    Ok(())
}

pub(super) fn java(context: &Context, report: &mut Report) -> Result<()> {
    let jars = context.clients.kafka_jars()?;
    let classes = context.workspace.clients().join("kafka-java-tests");
    let test = source(context, "java").join("ClientTest.java");
    toolchains::javac(&jars, &[test], &classes)?;
    let java = toolchains::java(&[], &jars, &classes, "ClientTest")?;
    context.run_programs(report, [java])
}

pub(super) fn tools(context: &Context, report: &mut Report) -> Result<()> {
    let mut command = Command::new("python3");
    command.arg(source(context, "python").join("tools_test.py"));
    command.env("KAFKA_JARS", context.clients.kafka_jars()?);
    context.run_programs(report, [command])
}

/// Kafka clients on one side, NSQ clients on the other.
pub(super) fn cross(context: &Context, report: &mut Report) -> Result<()> {
    context.run_programs(report, [python(context, "cross_nsq_test.py")])
}

pub(super) fn crash(context: &Context, report: &mut Report) -> Result<()> {
    restarts(context, report, CRASH_ROUNDS)
}

/// `cargo xtask crash-loop --protocol kafka`.
pub(crate) fn crash_rounds(workspace: &Workspace, rounds: u32) -> Result<bool> {
    Clients::new(workspace).install(Tool::KafkaPython)?;
    let mut report = Report::new("crash-loop", false);
    restarts(&Context::ours(workspace)?, &mut report, rounds)?;
    Ok(report.is_good())
}

fn restarts(context: &Context, report: &mut Report, rounds: u32) -> Result<()> {
    let mut program = python(context, "crash_test.py");
    program.arg(rounds.to_string());
    own_broker::run_plain(context, report, program, |options| options.kafka)
}

/// An orderly restart.
pub(super) fn restart(context: &Context, report: &mut Report) -> Result<()> {
    let program = python(context, "restart_test.py");
    own_broker::run_plain(context, report, program, |options| options.kafka)
}

/// A broker that is killed and starts again as if the machine had lost power.
pub(super) fn power_loss(context: &Context, report: &mut Report) -> Result<()> {
    let program = python(context, "power_loss_test.py");
    own_broker::run_plain(context, report, program, |options| options.kafka)
}

fn python(context: &Context, script: &str) -> Command {
    let mut command = Command::new(context.clients.kafka_python_program());
    command.arg(source(context, "python").join(script));
    command
}

pub(super) fn hostile(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("kafka-hostile")?;
    let mut broker = context.plain_broker(folder.path())?;
    report.program(&mut context.with_addresses(python(context, "hostile_test.py"), &broker))?;
    if context.kind == Kind::Cloverleaf {
        report.check("memory is bounded", || {
            let peak = broker.process().usage()?.rss_peak_bytes;
            if peak > RSS_BYTES_MAX {
                bail!("{} MB of resident memory at the worst moment", peak >> 20);
            }
            Ok(())
        });
    }
    Ok(())
}

pub(super) fn many_topics(context: &Context, report: &mut Report) -> Result<()> {
    context.run_programs(report, [python(context, "many_topics_test.py")])
}

/// Compaction as a consumer sees it.
pub(super) fn compaction(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("kafka-compaction")?;
    let mut options = context.options(folder.path())?;
    options.more.push(match options.kind {
        Kind::Kafka => "log.cleaner.backoff.ms=200".into(),
        Kind::Cloverleaf | Kind::Nsqd | Kind::RabbitMq => "--compaction-interval=200ms".into(),
    });
    let mut broker = options.start()?;
    report.program(&mut context.with_addresses(python(context, "compaction_test.py"), &broker))?;
    report.check("nothing is taken for damaged", || {
        let log = broker.process().log();
        match log.lines().find(|line| line.contains("corrupt region")) {
            Some(line) => bail!("{line}"),
            None => Ok(()),
        }
    });
    Ok(())
}

pub(super) fn disk(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("kafka-disk")?;
    let Some(disk) = SmallDisk::for_group(report, folder.path())? else {
        return Ok(());
    };
    let broker = disk.options(context)?.start()?;
    let mut command = context.with_addresses(python(context, "disk_full_test.py"), &broker);
    report.program(command.env("BALLAST", disk.ballast()))
}

fn source(context: &Context, language: &str) -> PathBuf {
    context
        .workspace
        .client_tests()
        .join("kafka")
        .join(language)
}
