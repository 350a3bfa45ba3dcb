//! bench_writer, bench_reader and `cloverleaf bench` run, and their output can be parsed. What they
//! measure is the matter of `cargo xtask bench-peers`.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{Context, Report};
use crate::bench_peers::{Load, nsq_programs};
use crate::broker::{Broker, Kind};
use crate::workspace::output;

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("bench")?;
    let mut broker = context.options(folder.path())?.start()?;
    let load = Load {
        topic: String::from("bench"),
        size_bytes: 200,
        clients: 2,
        seconds: 1,
        ..Load::default()
    };
    for program in nsq_programs(&context.clients, &broker, &load)? {
        report.check(program.name, || {
            let (name, before) = (program.name, broker.depth("bench", "ch")?);
            let figures = program.run()?;
            let after = broker.depth("bench", "ch")?;
            let is_right = if name == "bench_writer" {
                after > before
            } else {
                after < before
            };
            if !is_right {
                bail!("{figures:?}: {before} messages before, {after} after");
            }
            Ok(())
        });
    }
    // `bench` is a command of our binary alone.
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
    let measured = output(&mut command)?;
    let measured: Value = serde_json::from_str(&measured)?;
    let rows = measured["rows"].as_array().context("no rows")?;
    let names: Vec<&Value> = rows.iter().map(|row| &row["label"]).collect();
    let costs = |row: &Value| {
        let usage = &row["runs"][0]["usage"];
        usage["broker_cpu_s"].is_number() && usage["broker_rss_bytes"].is_number()
    };
    let is_good = measured["is_good"] == true && rows.iter().all(costs);
    if !is_good || names != ["one, x=0", "two", "one, x=0", "two"] {
        bail!("it has measured {names:?}: {measured:#}");
    }
    Ok(())
}
