//! How much memory the broker takes, and how much of a large log it reads at its start.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Context, Report};
use crate::broker::Broker;
use crate::nsq::{Connection, Frame, multi_publish_command};
use crate::wait;
use crate::workspace::Workspace;

const IDLE_BYTES_MAX: u64 = 24 << 20;
const CONNECTIONS: usize = 5000;
const CONNECTION_RSS_BYTES_MAX: u64 = 16 << 10;
const BACKLOG_RSS_BYTES_MAX: u64 = 200 << 20;
/// Bytes that a start may read, whatever the size of the log: the last segment, and indexes.
const RESTART_READ_BYTES_MAX: u64 = (64 + 32) << 20;
/// A million messages of a kilobyte: a log of 1 GB.
const BACKLOG_MESSAGES: usize = 1_000_000;
/// Ten million: a log of 10 GB, too much for every run.
const LIMIT_MESSAGES: usize = 10_000_000;
/// Body bytes of a message in the backlog.
const BODY_BYTES: usize = 1000;
const BATCH: usize = 1000;
/// Batches in flight before an answer is read.
const WINDOW: usize = 8;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    measure(context, report, BACKLOG_MESSAGES)
}

/// `cargo xtask limits`.
pub(crate) fn limits(workspace: &Workspace) -> Result<bool> {
    let mut report = Report::new("limits", false);
    measure(&Context::ours(workspace)?, &mut report, LIMIT_MESSAGES)?;
    Ok(report.is_good())
}

fn measure(context: &Context, report: &mut Report, messages: usize) -> Result<()> {
    let folder = context.workspace.temp_folder("memory")?;
    let mut broker = context.options(folder.path())?.start()?;
    report.check("idle", || {
        let own = broker.process().usage()?.own_bytes;
        within("idle", own, IDLE_BYTES_MAX)
    });
    report.check("5,000 idle connections", || connections(&mut broker));
    report.check(&format!("a backlog of {messages} messages"), || {
        broker.create("backlog", "ch")?;
        publish(broker.tcp(), messages)?;
        let depth = broker.depth("backlog", "ch")?;
        if depth != messages as u64 {
            bail!("a depth of {depth}");
        }
        within(
            "with the backlog",
            broker.process().usage()?.rss_peak_bytes,
            BACKLOG_RSS_BYTES_MAX,
        )
    });
    report.check("restart with that log", || {
        broker.process().kill()?;
        let start = Instant::now();
        broker = broker.options().start()?;
        let took = start.elapsed();
        let read = broker.process().bytes_read()?;
        println!(
            "        serving after {} ms, {} KB read",
            took.as_millis(),
            read >> 10
        );
        if read > RESTART_READ_BYTES_MAX {
            bail!("{} MB read before it served", read >> 20);
        }
        let mut consumer = Connection::consumer(broker.tcp(), "backlog", "ch", 1)?;
        if consumer.message()?.body != body(0) {
            bail!("the first message is another");
        }
        within(
            "after the restart",
            broker.process().usage()?.rss_peak_bytes,
            BACKLOG_RSS_BYTES_MAX,
        )
    });
    Ok(())
}

fn within(what: &str, bytes: u64, most: u64) -> Result<()> {
    println!(
        "        {what}: {:.1} MB of resident memory",
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes > most {
        bail!(
            "{} KB of resident memory where {} are allowed",
            bytes >> 10,
            most >> 10
        );
    }
    Ok(())
}

fn connections(broker: &mut Broker) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    let before = broker.process().usage()?.rss_bytes;
    let mut open = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::open(broker.tcp())?;
        connection.ask(b"IDENTIFY\n\0\0\0\x02{}")?;
        open.push(connection);
    }
    let after = broker.process().usage()?.rss_bytes;
    drop(open);
    let each = after.saturating_sub(before) / CONNECTIONS as u64;
    println!("        {each} bytes of resident memory each");
    if each > CONNECTION_RSS_BYTES_MAX {
        bail!("{each} bytes of resident memory each");
    }
    wait::until("the connections are gone", wait::HANG, || {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", broker.process().pid()))?.count() < 200)
    })
}

fn body(n: usize) -> Vec<u8> {
    format!("{n:0BODY_BYTES$}").into_bytes()
}

fn publish(address: SocketAddr, messages: usize) -> Result<()> {
    let mut connection = Connection::open(address)?;
    let mut pending = 0;
    let answer = |connection: &mut Connection| match connection.frame()? {
        Frame::Response(_) => Ok(()),
        other => bail!("{other:?} to a MPUB"),
    };
    for first in (0..messages).step_by(BATCH) {
        let bodies: Vec<Vec<u8>> = (first..first + BATCH).map(body).collect();
        connection.send(&multi_publish_command("backlog", &bodies))?;
        pending += 1;
        if pending == WINDOW {
            answer(&mut connection)?;
            pending -= 1;
        }
    }
    (0..pending).try_for_each(|_| answer(&mut connection))
}
