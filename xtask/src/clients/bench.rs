//! bench_writer, bench_reader and `cloverleaf bench` run, and what they print is understood; what
//! they measure is `cargo xtask bench-peers`.

use std::process::Command;

use anyhow::{Result, bail};

use super::{Context, Report};
use crate::bench_peers::{Load, measured, reader, writer};
use crate::broker::{Broker, Kind};

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("bench")?;
    let mut broker = context.options(folder.path())?.start()?;
    broker.create("bench", "ch")?;
    let load = Load {
        size_bytes: 200,
        clients: 2,
        seconds: 1,
    };
    report.check("bench_writer", || {
        let result = writer(&context.clients, broker.tcp(), "bench", load)?;
        if result.messages == 0 {
            bail!("it published nothing");
        }
        Ok(())
    });
    report.check("bench_reader", || {
        let before = broker.depth("bench", "ch")?;
        let result = reader(&context.clients, broker.tcp(), "bench", load)?;
        if result.messages == 0 || broker.depth("bench", "ch")? >= before {
            bail!("it read {} of {before} messages", result.messages);
        }
        Ok(())
    });
    // It is in our binary, not in the original's.
    if context.kind == Kind::Cloverleaf {
        report.check("cloverleaf bench compare", || compare(context, &mut broker));
    }
    Ok(())
}

/// One broker under two names.
fn compare(context: &Context, broker: &mut Broker) -> Result<()> {
    let mut command = Command::new(&context.binary);
    command.args(["bench", "compare", "--json", "--what=producer,latency"]);
    command.args(["--rate=5000", "--count=2000", "--runs=1"]);
    let (tcp, http, pid) = (broker.tcp(), broker.http(), broker.process().pid());
    for name in ["one, x=0", "two"] {
        command.arg(format!("--url={name}=nsq://{tcp}?http={http}&pid={pid}"));
    }
    let measured = measured(command)?;
    let names: Vec<&str> = measured.runs().map(|(name, _)| name).collect();
    if !measured.is_good() || names != ["one, x=0", "two", "one, x=0", "two"] {
        bail!("it has measured {names:?}: {measured:#?}");
    }
    Ok(())
}
