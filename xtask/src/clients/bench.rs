//! bench_writer and bench_reader run; what they measure is `cargo xtask bench-peers`.

use anyhow::{Result, bail};

use super::{Context, Report};
use crate::bench_peers::{Load, reader, writer};

pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let folder = context.workspace.temp_folder("bench")?;
    let broker = context.options(folder.path())?.start()?;
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
    Ok(())
}
