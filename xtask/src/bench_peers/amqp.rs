//! The measurements against RabbitMQ. All subjects run all the time and are measured in turns,
//! each on a queue of its own that is deleted afterwards.

mod intervals;
mod programs;
mod report;
mod subject;
mod targets;

use std::collections::BTreeMap;

use anyhow::Result;
use clap::ValueEnum;

use self::programs::{Outcome, Programs};
use self::subject::{Started, Subject};
use super::record::Record;
use super::{Args, Bench, machine};
use crate::install::{Clients, Tool};

pub(super) use report::write as write_report;
pub(super) use subject::candidates;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// PerfTest as fast as it can.
    Throughput,
    /// PerfTest at half of RabbitMQ's maximum, which is measured first.
    Latency,
    /// PerfTest at 1,000 messages per second.
    Paced,
    /// One publisher that waits for each confirm, with pika and aio-pika.
    Confirm,
}

const KINDS: &[Kind] = &[Kind::Throughput, Kind::Latency, Kind::Paced, Kind::Confirm];
const SIZES: &[u32] = &[100, 1024, 5120];
/// The size of messages where neither throughput nor latency under load is measured.
const SMALL_BYTES: u32 = 100;
/// Messages per second of the measurement of a broker with little to do.
const PACE: u32 = 1000;
const CONFIRM_MESSAGES: u64 = 5000;
const CONFIRM_CLIENTS: &[&str] = &["pika", "aio-pika"];

/// The queue, and what its users ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    /// Durable, persistent messages, confirms, acknowledgements.
    Classic,
    /// The same with a queue of the type quorum.
    Quorum,
    /// Transient messages; PerfTest wants neither confirms nor acknowledgements.
    Transient,
}

impl Queue {
    const ALL: [Self; 3] = [Self::Classic, Self::Quorum, Self::Transient];

    fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
            Self::Transient => "transient",
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    queue: Queue,
    size_bytes: u32,
    /// So many producers, and as many consumers.
    clients: u32,
    /// Messages per second of all producers together; `None`: as many as they can.
    rate: Option<u32>,
}

pub(super) fn install(clients: &Clients) -> Result<()> {
    clients.install(Tool::AmqpPython)?;
    clients.perf_test_jars().map(drop)
}

/// A measurement that fails is told and left out; the others go on. `false`: one has failed.
pub(super) fn measure(bench: &Bench, args: &Args) -> Result<bool> {
    let kinds = args.kinds_or(KINDS)?;
    let all = subject::all(bench, args)?;
    let names: Vec<&str> = all.iter().map(Subject::name).collect();
    let included = all.iter().filter(|s| args.includes_name(s.name(), &names));
    let folder = tempfile::tempdir_in(&bench.data)?;
    let mut turns = Turns {
        bench,
        args,
        programs: Programs::new(bench, args)?,
        started: Vec::new(),
        queues: 0,
        failures: 0,
        received: BTreeMap::new(),
    };
    for (at, subject) in included.enumerate() {
        let folder = folder.path().join(at.to_string());
        turns.started.push(Started::new(subject, bench, &folder)?);
    }
    turns.warm_up()?;
    let runs = if args.quick { 1 } else { args.runs };
    // Kind by kind: rates come from the medians of the throughput.
    for kind in kinds {
        for run in 1..=runs {
            println!("{kind:?}, run {run} of {runs}");
            turns.kind(kind)?;
        }
    }
    if turns.failures > 0 {
        println!("{} measurements have failed", turns.failures);
    }
    Ok(turns.failures == 0)
}

struct Turns<'a> {
    bench: &'a Bench,
    args: &'a Args,
    programs: Programs<'a>,
    started: Vec<Started>,
    queues: u32,
    failures: u32,
    /// What the first RabbitMQ has delivered per second, for each cell and run.
    received: BTreeMap<Cell, Vec<f64>>,
}

impl Turns<'_> {
    fn warm_up(&mut self) -> Result<()> {
        let cell = Cell {
            queue: Queue::Classic,
            size_bytes: 512,
            clients: 1,
            rate: None,
        };
        for started in &mut self.started {
            self.programs.perf_test(started, "warm-up", &cell)?;
            self.programs.delete(started, "warm-up")?;
        }
        Ok(())
    }

    fn kind(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Throughput => self.each_cell(|turns, cell| turns.throughput(cell)),
            Kind::Latency => self.each_cell(|turns, cell| turns.latency(cell)),
            Kind::Paced => self.paced(),
            Kind::Confirm => self.confirm(),
        }
    }

    fn each_cell(&mut self, measure: impl Fn(&mut Self, Cell) -> Result<()>) -> Result<()> {
        let (sizes, clients) = (self.args.sizes_or(SIZES), &self.args.clients);
        let (sizes, clients) = match self.args.quick {
            true => (&sizes[..1], &clients[..1]),
            false => (&sizes[..], &clients[..]),
        };
        for queue in Queue::ALL {
            for size_bytes in sizes.iter().copied() {
                for clients in clients.iter().copied() {
                    let cell = Cell {
                        queue,
                        size_bytes,
                        clients,
                        rate: None,
                    };
                    measure(self, cell)?;
                }
            }
        }
        Ok(())
    }

    fn throughput(&mut self, cell: Cell) -> Result<()> {
        for at in 0..self.started.len() {
            self.maximum(at, "throughput", cell)?;
        }
        Ok(())
    }

    fn maximum(&mut self, at: usize, kind: &str, cell: Cell) -> Result<()> {
        let record = self.perf_test(at, kind, &cell)?;
        if let (Some(record), true) = (record, self.reference() == Some(at)) {
            self.received.entry(cell).or_default().push(record.rate());
        }
        Ok(())
    }

    /// Whose maximum sets the rates.
    fn reference(&self) -> Option<usize> {
        self.started.iter().position(|s| !s.subject().is_ours())
    }

    fn latency(&mut self, cell: Cell) -> Result<()> {
        let Some(reference) = self.reference() else {
            println!("no RabbitMQ, no half of its maximum: latency is not measured");
            return Ok(());
        };
        if !self.received.contains_key(&cell) {
            self.maximum(reference, "maximum", cell)?;
        }
        let Some(mut rates) = self.received.get(&cell).cloned() else {
            println!("{cell:?}: RabbitMQ's maximum is not known: latency is not measured");
            return Ok(());
        };
        let half = median(&mut rates) / 2.0;
        // PerfTest is told the rate of one producer.
        let each = (half / f64::from(cell.clients)).floor().max(1.0) as u32;
        let cell = Cell {
            rate: Some(each * cell.clients),
            ..cell
        };
        for at in 0..self.started.len() {
            self.perf_test(at, "latency", &cell)?;
        }
        Ok(())
    }

    fn paced(&mut self) -> Result<()> {
        let all = Queue::ALL.into_iter();
        for queue in all.filter(|queue| !self.args.quick || *queue != Queue::Quorum) {
            let cell = Cell {
                queue,
                size_bytes: SMALL_BYTES,
                clients: 1,
                rate: Some(PACE),
            };
            for at in 0..self.started.len() {
                self.perf_test(at, "paced", &cell)?;
            }
        }
        Ok(())
    }

    fn perf_test(&mut self, at: usize, kind: &str, cell: &Cell) -> Result<Option<Record>> {
        let has_confirms = cell.queue != Queue::Transient;
        self.turn(at, kind, cell, has_confirms, |programs, started, queue| {
            let outcome = programs.perf_test(started, queue, cell)?;
            programs.delete(started, queue)?;
            Ok(outcome)
        })
    }

    fn confirm(&mut self) -> Result<()> {
        super::disk64::fdatasync(self.bench)?;
        let messages = match self.args.quick {
            true => CONFIRM_MESSAGES / 10,
            false => CONFIRM_MESSAGES,
        };
        for client in CONFIRM_CLIENTS {
            for queue in Queue::ALL {
                let cell = Cell {
                    queue,
                    size_bytes: SMALL_BYTES,
                    clients: 1,
                    rate: None,
                };
                for at in 0..self.started.len() {
                    self.turn(at, "confirm", &cell, true, |programs, started, queue| {
                        programs.bench_client(started, client, queue, &cell, messages)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Runs a client and writes down what it and the broker did. `None`: the client has failed.
    fn turn(
        &mut self,
        at: usize,
        kind: &str,
        cell: &Cell,
        has_confirms: bool,
        client: impl FnOnce(&Programs<'_>, &mut Started, &str) -> Result<Outcome>,
    ) -> Result<Option<Record>> {
        self.queues += 1;
        let queue = format!("bench-{}", self.queues);
        // What an earlier turn has left to write is not this one's load.
        rustix::fs::sync();
        if !self.args.quick {
            machine::wait_quiet()?;
        }
        let started = &mut self.started[at];
        let subject = started.subject();
        let durability = subject.durability(cell.queue, has_confirms);
        let results = &self.bench.results;
        let mut record = results.blank(kind, subject.name(), durability);
        record.queue = Some(cell.queue.name().to_owned());
        record.size_bytes = cell.size_bytes;
        record.clients = cell.clients;
        record.rate_asked = cell.rate;
        started.forget_peak()?;
        match client(&self.programs, started, &queue) {
            Ok(outcome) => outcome.write_to(&mut record),
            Err(error) => {
                started.check_alive()?;
                println!("FAILED {kind} {} {cell:?}: {error:#}", record.subject);
                // It may not have been made, or be gone already.
                let _ = self.programs.delete(started, &queue);
                self.failures += 1;
                return Ok(None);
            }
        }
        record.rss_peak_bytes = started.usage()?.rss_peak_bytes;
        results.add(&record)?;
        Ok(Some(record))
    }
}

/// The middle one, the lower of the two middle ones if there are two.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}
