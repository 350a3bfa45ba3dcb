//! From publish to delivery: one message at a time, published with a wait for the answer, to a
//! consumer that waits for it.

use std::time::Instant;

use anyhow::{Result, bail};
use hdrhistogram::Histogram;

use super::subject::Subject;
use super::{Args, Bench, machine};
use crate::nsq::{Connection, Frame, publish_command};

const MESSAGES: u64 = 20_000;
/// Not measured: connections, caches and the processor's clock settle.
const WARM_UP: u64 = 2000;
const BODY: &[u8] = &[b'x'; 100];

pub(super) fn measure(bench: &Bench, args: &Args) -> Result<()> {
    let (runs, messages) = if args.quick {
        (1, MESSAGES / 10)
    } else {
        (args.runs, MESSAGES)
    };
    for run in 1..=runs {
        println!("run {run} of {runs}");
        for subject in [Subject::Ours, Subject::NsqdMemory, Subject::OursDisk] {
            if args.includes(subject) {
                one(bench, subject, messages)?;
            }
        }
    }
    Ok(())
}

fn one(bench: &Bench, subject: Subject, messages: u64) -> Result<()> {
    machine::wait_quiet()?;
    let folder = tempfile::tempdir_in(&bench.data)?;
    let mut running = subject.start(bench, folder.path())?;
    let mut consumer = Connection::consumer(running.tcp(), "latency", "ch", 1)?;
    let mut producer = Connection::open(running.tcp())?;
    let command = publish_command("latency", BODY);
    let mut histogram = Histogram::<u64>::new(3)?;
    let mut before = running.usage()?;
    let mut start = Instant::now();
    for n in 0..WARM_UP + messages {
        if n == WARM_UP {
            before = running.usage()?;
            start = Instant::now();
        }
        let sent = Instant::now();
        producer.send(&command)?;
        let message = consumer.message()?;
        if n >= WARM_UP {
            histogram.record(u64::try_from(sent.elapsed().as_nanos())?)?;
        }
        consumer.finish(&message.id)?;
        match producer.frame()? {
            Frame::Response(_) => {}
            other => bail!("{other:?} to a PUB"),
        }
    }
    let after = running.usage()?;
    let mut record = bench
        .results
        .blank("latency", subject.name(), subject.durability());
    record.size_bytes = BODY.len() as u32;
    record.messages = messages;
    record.seconds = start.elapsed().as_secs_f64();
    record.broker_cpu_s = after.cpu_s - before.cpu_s;
    record.rss_peak_bytes = after.rss_peak_bytes;
    record.p50_us = Some(histogram.value_at_quantile(0.5) as f64 / 1000.0);
    record.p99_us = Some(histogram.value_at_quantile(0.99) as f64 / 1000.0);
    bench.results.add(&record)
}
