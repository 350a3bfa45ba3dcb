//! NSQ's own command line tools: to_nsq, nsq_to_file, nsq_tail, nsq_stat.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::{Context, Report};
use crate::broker::Broker;
use crate::process::Process;
use crate::wait;
use crate::workspace::output;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("tools")?;
    let broker = context.plain_broker(folder.path())?;
    report.check("to_nsq to nsq_to_file", || {
        to_file(context, &broker, folder.path())
    });
    report.check("to_nsq to nsq_tail", || tail(context, &broker));
    report.check("nsq_stat", || stat(context, &broker));
    Ok(())
}

/// Publishes lines with to_nsq.
fn publish(context: &Context, broker: &Broker, topic: &str, lines: &[String]) -> Result<()> {
    let mut to_nsq = Command::new(context.clients.nsq_program("to_nsq"));
    to_nsq
        .arg(format!("--nsqd-tcp-address={}", broker.tcp()))
        .arg(format!("--topic={topic}"));
    let mut child = to_nsq
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("to_nsq has no stdin")?;
    stdin.write_all((lines.join("\n") + "\n").as_bytes())?;
    drop(stdin);
    let ended = child.wait_with_output()?;
    if !ended.status.success() {
        bail!(
            "to_nsq: {}\n{}",
            ended.status,
            String::from_utf8_lossy(&ended.stderr)
        );
    }
    Ok(())
}

fn to_file(context: &Context, broker: &Broker, folder: &Path) -> Result<()> {
    let lines: Vec<String> = (0..5000).map(|n| format!("line {n}")).collect();
    publish(context, broker, "files", &lines)?;
    let out = folder.join("files");
    std::fs::create_dir_all(&out)?;
    let mut command = Command::new(context.clients.nsq_program("nsq_to_file"));
    command.args([
        "--topic=files",
        "--channel=archive",
        "--sync-interval=100ms",
    ]);
    command.arg(format!("--nsqd-tcp-address={}", broker.tcp()));
    command.arg(format!("--output-dir={}", out.display()));
    let mut process = Process::start(&mut command, &folder.join("nsq_to_file.out"))?;
    let written = || -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&out)? {
            found.extend(
                std::fs::read_to_string(entry?.path())?
                    .lines()
                    .map(str::to_owned),
            );
        }
        Ok(found)
    };
    wait::until("nsq_to_file has written all lines", wait::HANG, || {
        Ok(written()?.len() >= lines.len())
    })
    .with_context(|| process.log())?;
    process.terminate(wait::HANG)?;
    let (mut found, mut sent) = (written()?, lines);
    found.sort();
    sent.sort();
    if found != sent {
        bail!(
            "{} lines in the file, {} were sent, or others",
            found.len(),
            sent.len()
        );
    }
    Ok(())
}

fn tail(context: &Context, broker: &Broker) -> Result<()> {
    let lines: Vec<String> = (0..10).map(|n| format!("tail {n}")).collect();
    publish(context, broker, "tailed", &lines)?;
    let mut command = Command::new(context.clients.nsq_program("nsq_tail"));
    command.args(["--topic=tailed", "-n", "10"]);
    command.arg(format!("--nsqd-tcp-address={}", broker.tcp()));
    let mut found: Vec<String> = output(&mut command)?.lines().map(str::to_owned).collect();
    found.sort();
    if found != lines {
        bail!("nsq_tail printed {found:?}");
    }
    Ok(())
}

fn stat(context: &Context, broker: &Broker) -> Result<()> {
    broker.create("counted", "ch")?;
    publish(
        context,
        broker,
        "counted",
        &["one".to_owned(), "two".to_owned()],
    )?;
    let mut command = Command::new(context.clients.nsq_program("nsq_stat"));
    command.args([
        "--topic=counted",
        "--channel=ch",
        "--count=1",
        "--interval=1s",
    ]);
    command.arg(format!("--nsqd-http-address={}", broker.http()));
    let text = output(&mut command)?;
    // The last row: rates, then a bar, then the depth.
    let depth = text
        .lines()
        .last()
        .and_then(|row| row.split('|').nth(1)?.split_whitespace().next());
    if depth != Some("2") {
        bail!("nsq_stat printed\n{text}");
    }
    Ok(())
}
