//! bench_writer and then bench_reader against each subject in turn.

use anyhow::Result;

use super::subject::Subject;
use super::{Args, Bench, Load, machine, reader, writer};

/// nsqd with a sync per message does a thousand a second: more time shows nothing more.
const SYNC_SECONDS_MAX: u32 = 3;

pub(super) fn measure(bench: &Bench, args: &Args) -> Result<()> {
    let (runs, seconds) = if args.quick {
        (1, 2)
    } else {
        (args.runs, args.seconds)
    };
    let all = args.sizes_or(&[100, 200]);
    let sizes = if args.quick { &all[..1] } else { &all[..] };
    let clients = if args.quick {
        &args.clients[..1]
    } else {
        &args.clients[..]
    };
    for run in 1..=runs {
        println!("run {run} of {runs}");
        for size_bytes in sizes.iter().copied() {
            for clients in clients.iter().copied() {
                let load = Load {
                    size_bytes,
                    clients,
                    seconds,
                };
                for subject in Subject::ALL.into_iter().filter(|s| args.includes(*s)) {
                    one(bench, subject, load)?;
                }
            }
        }
    }
    Ok(())
}

impl Args {
    pub(super) fn includes(&self, subject: Subject) -> bool {
        self.includes_name(subject.name(), &Subject::ALL.map(Subject::name))
    }

    /// A whole name means that subject, a part of names all that have it.
    pub(super) fn includes_name(&self, subject: &str, all: &[&str]) -> bool {
        self.only.is_empty()
            || self
                .only
                .iter()
                .any(|part| match all.contains(&part.as_str()) {
                    true => part == subject,
                    false => subject.contains(part),
                })
    }

    /// The sizes asked for, or these.
    pub(super) fn sizes_or(&self, defaults: &[u32]) -> Vec<u32> {
        match self.sizes.is_empty() {
            true => defaults.to_vec(),
            false => self.sizes.clone(),
        }
    }

    /// The rates asked for, or these.
    pub(super) fn rates_or(&self, defaults: &[u32]) -> Vec<u32> {
        match self.rates.is_empty() {
            true => defaults.to_vec(),
            false => self.rates.clone(),
        }
    }
}

fn one(bench: &Bench, subject: Subject, mut load: Load) -> Result<()> {
    machine::wait_quiet()?;
    if subject == Subject::NsqdSync {
        load.seconds = load.seconds.min(SYNC_SECONDS_MAX);
    }
    let folder = tempfile::tempdir_in(&bench.data)?;
    let mut running = subject.start(bench, folder.path())?;
    if let Some(broker) = running.broker() {
        broker.create("bench", "ch")?;
    }
    let mut record = bench
        .results
        .blank("pub", subject.name(), subject.durability());
    record.size_bytes = load.size_bytes;
    record.clients = load.clients;
    let before = running.usage()?;
    let outcome = writer(&bench.clients, running.tcp(), "bench", load)?;
    let after = running.usage()?;
    record.messages = outcome.messages;
    record.seconds = outcome.seconds;
    record.broker_cpu_s = after.cpu_s - before.cpu_s;
    record.rss_peak_bytes = after.rss_peak_bytes;
    bench.results.add(&record)?;
    // The floor has nothing to read, and a thousand messages are read before the clock ticks.
    if subject == Subject::NsqdSync || running.broker().is_none() {
        return Ok(());
    }
    let before = running.usage()?;
    let outcome = reader(&bench.clients, running.tcp(), "bench", load)?;
    let after = running.usage()?;
    record.kind = "sub".to_owned();
    record.messages = outcome.messages;
    record.seconds = outcome.seconds;
    record.broker_cpu_s = after.cpu_s - before.cpu_s;
    record.rss_peak_bytes = after.rss_peak_bytes;
    record.backlog = running
        .broker()
        .map(|broker| broker.depth("bench", "ch"))
        .transpose()?;
    bench.results.add(&record)
}
