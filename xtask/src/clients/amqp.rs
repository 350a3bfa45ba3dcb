//! AMQP's clients: programs that use the unmodified client libraries.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::disk::SmallDisk;
use super::{Context, Report, own_broker, toolchains};
use crate::broker::Kind;
use crate::install::{Clients, Tool};
use crate::workspace::Workspace;

/// Rounds in `cargo xtask test`; `cargo xtask crash-loop` makes more.
const CRASH_ROUNDS: u32 = 5;
/// More than caches, buffers and incomplete messages take (128 MiB, and beside them one message of
/// 128 MiB), with memory that the allocator keeps. Much less than is sent to the broker.
const HOSTILE_RSS_BYTES_MAX: u64 = 400 << 20;
/// Messages of the backlog in `cargo xtask test`.
const BACKLOG_MESSAGES: u64 = 1_000_000;
/// Memory that the broker may take with a backlog: caches and buffers, and a few bytes for each
/// unacknowledged message.
const BACKLOG_RSS_BYTES_MAX: u64 = 96 << 20;
const HELD_BYTES_MAX: u64 = 8;
/// Memory that 10,000 queues may add to an idle broker.
const QUEUES_RSS_BYTES_MAX: u64 = 100 << 20;

pub(super) fn pika(context: &Context, report: &mut Report) -> Result<()> {
    let scripts = [
        "exchanges_test.py",
        "queues_test.py",
        "dead_letters_test.py",
        "consuming_test.py",
        "publishing_test.py",
        "connections_test.py",
    ];
    python_scripts(context, report, &scripts)
}

pub(super) fn aio_pika(context: &Context, report: &mut Report) -> Result<()> {
    python_scripts(context, report, &["aio_pika_test.py"])
}

pub(super) fn celery(context: &Context, report: &mut Report) -> Result<()> {
    python_scripts(context, report, &["celery_test.py"])
}

/// A consumer that behaves as Broadway does.
pub(super) fn broadway(context: &Context, report: &mut Report) -> Result<()> {
    python_scripts(context, report, &["broadway_test.py"])
}

/// AMQP clients on one side, Kafka or NSQ clients on the other.
pub(super) fn cross(context: &Context, report: &mut Report) -> Result<()> {
    python_scripts(context, report, &["cross_test.py"])
}

fn python_scripts(context: &Context, report: &mut Report, scripts: &[&str]) -> Result<()> {
    context.run_programs(report, scripts.iter().map(|it| python(context, it)))
}

fn python(context: &Context, script: &str) -> Command {
    let mut command = Command::new(context.clients.amqp_python_program());
    command.arg(source(context, "python").join(script));
    command
}

pub(super) fn node(context: &Context, report: &mut Report) -> Result<()> {
    let script = source(context, "node").join("amqplib_test.js");
    let node = toolchains::node(&context.clients.amqp_node_folder(), &script);
    context.run_programs(report, [node])
}

pub(super) fn go(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.clients().join("amqp-go-tests");
    toolchains::go_build(&source(context, "go"), &folder)?;
    context.run_programs(report, [Command::new(folder.join("amqp"))])
}

pub(super) fn java(context: &Context, report: &mut Report) -> Result<()> {
    let jars = context.clients.amqp_jars()?;
    let classes = context.workspace.clients().join("amqp-java-tests");
    let test = source(context, "java").join("ClientTest.java");
    toolchains::javac(&jars, &[test], &classes)?;
    let java = toolchains::java(&[], &jars, &classes, "ClientTest")?;
    context.run_programs(report, [java])
}

pub(super) fn crash(context: &Context, report: &mut Report) -> Result<()> {
    crash_loop(context, report, CRASH_ROUNDS)
}

/// `cargo xtask crash-loop --protocol amqp`.
pub(crate) fn crash_rounds(workspace: &Workspace, rounds: u32) -> Result<bool> {
    Clients::new(workspace).install(Tool::AmqpPython)?;
    let mut report = Report::new("crash-loop", false);
    crash_loop(&Context::ours(workspace)?, &mut report, rounds)?;
    Ok(report.is_good())
}

fn crash_loop(context: &Context, report: &mut Report, rounds: u32) -> Result<()> {
    let mut program = python(context, "crash_test.py");
    program.arg(rounds.to_string());
    own_broker::run_plain(context, report, program, |options| options.amqp)
}

pub(super) fn restart(context: &Context, report: &mut Report) -> Result<()> {
    let program = python(context, "restart_test.py");
    own_broker::run_plain(context, report, program, |options| options.amqp)
}

/// A full disk: connections are blocked and unblocked, and no confirmed message is lost.
pub(super) fn disk(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("amqp-disk")?;
    let Some(disk) = SmallDisk::for_group(report, folder.path())? else {
        return Ok(());
    };
    let mut program = python(context, "disk_full_test.py");
    program.env("BALLAST", disk.ballast());
    let options = disk.options(context)?;
    own_broker::run(report, program, &options, options.amqp)
}

pub(super) fn hostile(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("amqp-hostile")?;
    let mut options = context.options(folder.path())?;
    // So that the hostile clients can begin contents of 128 MB.
    options.more.push(match options.kind {
        Kind::RabbitMq => "max_message_size = 134217728".to_owned(),
        _ => "--amqp-message-bytes-max=128MiB".to_owned(),
    });
    let mut broker = options.start()?;
    report.program(&mut context.with_addresses(python(context, "hostile_test.py"), &broker))?;
    if context.kind == Kind::Cloverleaf {
        report.check("memory is bounded", || {
            let peak = broker.process().usage()?.rss_peak_bytes;
            println!("        {} MB at the worst moment", peak >> 20);
            if peak > HOSTILE_RSS_BYTES_MAX {
                bail!("{} MB of resident memory at the worst moment", peak >> 20);
            }
            Ok(())
        });
    }
    Ok(())
}

pub(super) fn many_queues(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("amqp-many-queues")?;
    let mut broker = context.plain_broker(folder.path())?;
    let before = broker.process().usage()?.rss_bytes;
    let mut program = python(context, "many_queues_test.py");
    program.env("BROKER_PID", broker.process().pid().to_string());
    report.program(&mut context.with_addresses(program, &broker))?;
    if context.kind == Kind::Cloverleaf {
        report.check("memory of 10,000 queues", || {
            let used = broker.process().usage()?.rss_peak_bytes - before;
            println!("        {} MB", used >> 20);
            if used > QUEUES_RSS_BYTES_MAX {
                bail!("{} MB", used >> 20);
            }
            Ok(())
        });
    }
    Ok(())
}

/// A backlog that one consumer holds unacknowledged. `MESSAGES` sets its size; ten million messages
/// take about a minute.
pub(super) fn backlog(context: &Context, report: &mut Report) -> Result<()> {
    let messages = match std::env::var("MESSAGES") {
        Ok(messages) => messages.parse()?,
        Err(_) => BACKLOG_MESSAGES,
    };
    let folder = context.workspace.temp_folder("amqp-backlog")?;
    let mut broker = context.plain_broker(folder.path())?;
    let mut program = python(context, "backlog_test.py");
    program.env("MESSAGES", messages.to_string());
    report.program(&mut context.with_addresses(program, &broker))?;
    if context.kind == Kind::Cloverleaf {
        report.check("memory of a backlog that is held", || {
            let peak = broker.process().usage()?.rss_peak_bytes;
            println!("        {} MB for {messages} messages", peak >> 20);
            if peak > BACKLOG_RSS_BYTES_MAX + messages * HELD_BYTES_MAX {
                bail!("{} MB for {messages} messages", peak >> 20);
            }
            Ok(())
        });
    }
    Ok(())
}

fn source(context: &Context, language: &str) -> PathBuf {
    context.workspace.client_tests().join("amqp").join(language)
}
