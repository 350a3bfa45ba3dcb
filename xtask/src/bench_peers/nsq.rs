//! NSQ's bench_writer and bench_reader, as its own bench.sh runs them.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::Subject;
use super::program::{Figures, Load, Program, before};
use crate::broker::{Broker, Kind};
use crate::install::{Clients, Tool};

pub(super) const CHANNEL: &str = "ch";

pub(super) fn subjects(clients: &Clients, ours: &Path) -> Result<Vec<Subject>> {
    clients.install(Tool::Go)?;
    let nsqd = clients.nsq_program("nsqd");
    let subject = |name: &str, kind, flags, durability| Subject {
        name: name.to_owned(),
        kind,
        binary: if kind == Kind::Nsqd { &nsqd } else { ours }.to_owned(),
        flags,
        durability,
    };
    Ok(vec![
        subject(
            "nsqd, memory queue of 1 M",
            Kind::Nsqd,
            &["--mem-queue-size=1000000"],
            |_| "memory",
        ),
        subject(
            "nsqd, mem-queue-size=0",
            Kind::Nsqd,
            &["--mem-queue-size=0"],
            |_| "kernel",
        ),
        subject(
            "nsqd, and sync-every=1",
            Kind::Nsqd,
            &["--mem-queue-size=0", "--sync-every=1"],
            |_| "disk",
        ),
        subject("ours", Kind::Cloverleaf, &[], |_| "kernel"),
        subject(
            "ours, durability=disk",
            Kind::Cloverleaf,
            &["--durability=disk"],
            |_| "disk",
        ),
    ])
}

/// Publishes batches of 200, then reads what there is.
pub(crate) fn programs(clients: &Clients, broker: &Broker, load: &Load) -> Result<Vec<Program>> {
    broker.create(&load.topic, CHANNEL)?;
    let program = |name: &'static str, flag: &str| {
        // Both programs open as many connections as Go has processors.
        let mut command = Command::new("env");
        command.arg(format!("GOMAXPROCS={}", load.clients));
        command.arg(clients.nsq_program(name)).arg(flag);
        command.arg(format!("--nsqd-tcp-address={}", broker.tcp()));
        command.arg(format!("--topic={}", load.topic));
        command.arg(format!("--size={}", load.size_bytes));
        command.arg(format!("--runfor={}s", load.seconds));
        Program {
            name,
            command,
            read,
        }
    };
    Ok(vec![
        program("bench_writer", "--batch-size=200"),
        program("bench_reader", "--channel=ch"),
    ])
}

/// Reads `... duration: 10.00123s - 12.3mb/s - 456.7ops/s - 8.9us/op`.
fn read(text: &str) -> Option<Figures> {
    let (_, rest) = text.rsplit_once("duration: ")?;
    let seconds = go_seconds(rest.split(" - ").next()?)?;
    let rate: f64 = before(rest, "ops/s")?;
    Some(Figures {
        messages: (rate * seconds).round() as u64,
        seconds,
        ..Figures::default()
    })
}

/// A duration as Go prints it: `1m2.5s`, `10.1s`, `500ms`.
fn go_seconds(text: &str) -> Option<f64> {
    if let Some(ms) = text.strip_suffix("ms") {
        return Some(ms.parse::<f64>().ok()? / 1000.0);
    }
    let (minutes, seconds) = text.split_once('m').unwrap_or(("0", text));
    Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.strip_suffix('s')?.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_bench_program_is_read() {
        let line = "[bench_writer] 2026/01/02 03:04:05 duration: 1m0.5s - 9.5mb/s - 50.000ops/s - \
                    20us/op\n";
        let figures = Figures {
            messages: 3025,
            seconds: 60.5,
            ..Figures::default()
        };
        assert_eq!(read(line), Some(figures));
        assert_eq!(go_seconds("250ms"), Some(0.25));
        assert_eq!(read("panic: no"), None);
    }
}
