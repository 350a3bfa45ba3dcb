//! The measurements against Apache Kafka. All subjects run all the time and are measured in turns,
//! each on a topic of its own that is deleted afterwards.

mod cold;
mod programs;
mod report;
mod subject;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use clap::ValueEnum;

use self::programs::Programs;
use self::subject::{Started, Subject};
use super::record::Record;
use super::{Args, Bench, machine};
use crate::install::{Clients, Tool};

pub(super) use report::write as write_report;
pub(super) use subject::candidates;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// ProducerPerformance, then ConsumerPerformance on what it has written.
    Java,
    /// rdkafka_performance, producing and consuming.
    Rdkafka,
    /// `produce` and `flush` for each message, with confluent-kafka.
    Sync,
    /// The same over TLS, old and new librdkafka, with Nagle's algorithm on and off.
    SyncTls,
    /// Age of a message when it is consumed, at fixed rates, with confluent-kafka.
    EndToEnd,
    /// Kafka's EndToEndLatency.
    EndToEndTool,
    /// A consumer reads a log that is in no cache, beside `cat` to a socket.
    Cold,
}

const DEFAULT_KINDS: &[Kind] = &[
    Kind::Java,
    Kind::Rdkafka,
    Kind::Sync,
    Kind::SyncTls,
    Kind::EndToEnd,
    Kind::EndToEndTool,
];
const SIZES: &[u32] = &[100, 512, 1024, 5120];
/// The size of messages where latency is measured.
const SMALL_BYTES: u32 = 100;
const SYNC_MESSAGES: u64 = 5000;
const END_TO_END_SECONDS: u64 = 10;
const RATES: &[u32] = &[1000, 20_000];
/// What a JVM needs before it shows what it can; the others get the same.
const WARM_UP_MESSAGES: u64 = 1_000_000;

pub(super) fn install(clients: &Clients) -> Result<()> {
    clients.install(Tool::Java)?;
    clients.install(Tool::KafkaPython)?;
    clients.install(Tool::OldLibrdkafka)?;
    clients.rdkafka_performance().map(drop)
}

/// One cell of the table.
#[derive(Clone, Debug)]
struct Cell {
    size_bytes: u32,
    acks: String,
    partitions: u32,
    messages: u64,
}

pub(super) fn measure(bench: &Bench, args: &Args) -> Result<()> {
    let kinds = args.kinds_or(DEFAULT_KINDS)?;
    let subjects: Vec<Subject> = Subject::ALL
        .into_iter()
        .filter(|s| args.includes_name(s.name(), &Subject::ALL.map(Subject::name)))
        .collect();
    let runs = if args.quick { 1 } else { args.runs };
    let measures_hot = kinds.iter().any(|kind| *kind != Kind::Cold);
    if measures_hot {
        let folder = tempfile::tempdir_in(&bench.data)?;
        let mut turns = Turns {
            bench,
            args,
            programs: Programs::new(bench)?,
            started: Vec::new(),
            topics: 0,
        };
        for subject in &subjects {
            let started = Started::new(*subject, bench, &folder.path().join(subject.short()))?;
            turns.started.push(started);
        }
        turns.warm_up()?;
        for run in 1..=runs {
            println!("run {run} of {runs}");
            for kind in &kinds {
                turns.kind(*kind)?;
            }
        }
    }
    if kinds.contains(&Kind::Cold) {
        for run in 1..=runs {
            println!("cold run {run} of {runs}");
            cold::measure(bench, args, &subjects)?;
        }
    }
    Ok(())
}

struct Turns<'a> {
    bench: &'a Bench,
    args: &'a Args,
    programs: Programs<'a>,
    started: Vec<Started>,
    topics: u32,
}

impl Turns<'_> {
    fn warm_up(&mut self) -> Result<()> {
        let cell = Cell {
            size_bytes: 512,
            acks: "all".to_owned(),
            partitions: 1,
            messages: self.count(WARM_UP_MESSAGES),
        };
        for started in &mut self.started {
            let topic = "warm-up";
            let address = started.kafka();
            if started.subject() == Subject::Floor {
                continue;
            }
            self.programs.create(address, topic, 1)?;
            self.programs.producer_performance(address, topic, &cell)?;
            self.programs.consumer_performance(address, topic, &cell)?;
            self.programs.delete(address, topic)?;
        }
        Ok(())
    }

    /// Fewer of them for a quick run.
    fn count(&self, messages: u64) -> u64 {
        if self.args.quick {
            messages / 10
        } else {
            messages
        }
    }

    fn kind(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Java => self.cells(&self.args.partitions, |turns, at, topic, cell| {
                turns.java(at, topic, cell)
            }),
            Kind::Rdkafka => self.cells(&[1], |turns, at, topic, cell| {
                turns.rdkafka(at, topic, cell)
            }),
            Kind::Sync => {
                super::disk64::fdatasync(self.bench)?;
                self.small(SYNC_MESSAGES, true, |turns, at, topic, cell| {
                    turns.sync(at, topic, cell)
                })?;
                self.sync_without_broker()
            }
            Kind::SyncTls => self.small(SYNC_MESSAGES / 5, false, |turns, at, topic, cell| {
                turns.sync_tls(at, topic, cell)
            }),
            Kind::EndToEnd => self.small(END_TO_END_SECONDS, false, |turns, at, topic, cell| {
                turns.end_to_end(at, topic, cell)
            }),
            Kind::EndToEndTool => self.small(10_000, false, |turns, at, topic, cell| {
                turns.end_to_end_tool(at, topic, cell)
            }),
            Kind::Cold => Ok(()),
        }
    }

    /// Each size, number of partitions and `acks`, and in it each subject.
    fn cells(
        &mut self,
        partitions: &[u32],
        measure: impl Fn(&mut Self, usize, &str, &Cell) -> Result<()>,
    ) -> Result<()> {
        let sizes = self.args.sizes_or(SIZES);
        let sizes = if self.args.quick { &sizes[..1] } else { &sizes };
        for size_bytes in sizes.iter().copied() {
            for partitions in partitions.iter().copied() {
                for acks in &self.args.acks {
                    let cell = Cell {
                        size_bytes,
                        acks: acks.clone(),
                        partitions,
                        messages: self.count(messages(size_bytes)),
                    };
                    self.turn(true, &cell, &measure)?;
                }
            }
        }
        Ok(())
    }

    /// Each `acks` with small messages and one partition, and in it each subject.
    fn small(
        &mut self,
        messages: u64,
        with_floor: bool,
        measure: impl Fn(&mut Self, usize, &str, &Cell) -> Result<()>,
    ) -> Result<()> {
        for acks in &self.args.acks {
            let cell = Cell {
                size_bytes: SMALL_BYTES,
                acks: acks.clone(),
                partitions: 1,
                messages: self.count(messages).max(1),
            };
            self.turn(with_floor, &cell, &measure)?;
        }
        Ok(())
    }

    fn turn(
        &mut self,
        with_floor: bool,
        cell: &Cell,
        measure: impl Fn(&mut Self, usize, &str, &Cell) -> Result<()>,
    ) -> Result<()> {
        for at in 0..self.started.len() {
            let subject = self.started[at].subject();
            if subject == Subject::Floor && !with_floor {
                continue;
            }
            self.topics += 1;
            let topic = format!("bench-{}", self.topics);
            self.started[at].set_partitions(self.bench, cell.partitions)?;
            let address = self.started[at].kafka();
            if subject != Subject::Floor {
                self.programs.create(address, &topic, cell.partitions)?;
            }
            // What an earlier turn has left to write is not this one's load.
            rustix::fs::sync();
            machine::wait_quiet()?;
            measure(self, at, &topic, cell)?;
            if subject != Subject::Floor {
                self.programs.delete(address, &topic)?;
            }
        }
        Ok(())
    }

    /// Runs a client and writes down what it and the broker did.
    fn record(
        &mut self,
        at: usize,
        kind: &str,
        cell: &Cell,
        more: impl FnOnce(&mut Record),
        client: impl FnOnce(&Programs<'_>, std::net::SocketAddr) -> Result<programs::Outcome>,
    ) -> Result<()> {
        let started = &mut self.started[at];
        let subject = started.subject();
        let durability = subject.durability(&cell.acks);
        let mut record = self.bench.results.blank(kind, subject.name(), durability);
        record.size_bytes = cell.size_bytes;
        record.acks = Some(cell.acks.clone());
        record.partitions = Some(cell.partitions);
        more(&mut record);
        let before = started.usage()?;
        let outcome = client(&self.programs, started.kafka())?;
        let after = started.usage()?;
        outcome.write_to(&mut record);
        record.broker_cpu_s = after.cpu_s - before.cpu_s;
        record.rss_peak_bytes = after.rss_peak_bytes;
        self.bench.results.add(&record)
    }

    fn java(&mut self, at: usize, topic: &str, cell: &Cell) -> Result<()> {
        self.record(
            at,
            "produce",
            cell,
            |_| (),
            |programs, address| programs.producer_performance(address, topic, cell),
        )?;
        if self.started[at].subject() == Subject::Floor {
            return Ok(());
        }
        self.record(
            at,
            "consume",
            cell,
            |_| (),
            |programs, address| programs.consumer_performance(address, topic, cell),
        )
    }

    fn rdkafka(&mut self, at: usize, topic: &str, cell: &Cell) -> Result<()> {
        self.record(
            at,
            "rdkafka-produce",
            cell,
            |_| (),
            |programs, address| programs.rdkafka_produce(address, topic, cell),
        )?;
        if self.started[at].subject() == Subject::Floor {
            return Ok(());
        }
        self.record(
            at,
            "rdkafka-consume",
            cell,
            |_| (),
            |programs, address| programs.rdkafka_consume(address, topic, cell),
        )
    }

    fn sync(&mut self, at: usize, topic: &str, cell: &Cell) -> Result<()> {
        self.record(
            at,
            "sync",
            cell,
            |_| (),
            |programs, address| {
                let python = programs.python();
                programs.bench_client(python, address, "sync", topic, cell, &[])
            },
        )
    }

    /// The same loop with the broker that librdkafka has in the client's own process: what the
    /// client alone costs.
    fn sync_without_broker(&self) -> Result<()> {
        let results = &self.bench.results;
        let mut record = results.blank("sync", "librdkafka's mock broker", "memory");
        let cell = Cell {
            size_bytes: SMALL_BYTES,
            acks: "1".to_owned(),
            partitions: 1,
            messages: self.count(SYNC_MESSAGES).max(1),
        };
        machine::wait_quiet()?;
        let python = self.programs.python();
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let outcome =
            self.programs
                .bench_client(python, nobody, "sync", "mock", &cell, &["--mock"])?;
        record.size_bytes = cell.size_bytes;
        record.acks = Some(cell.acks);
        record.partitions = Some(cell.partitions);
        outcome.write_to(&mut record);
        results.add(&record)
    }

    fn sync_tls(&mut self, at: usize, topic: &str, cell: &Cell) -> Result<()> {
        let tls = self.started[at].kafka_tls();
        let authority = self.bench.client_tests.join("tls/ca.pem");
        let authority = format!("--tls-ca={}", authority.display());
        let pythons = [
            ("librdkafka 2", self.programs.python()),
            ("librdkafka 1.9", self.programs.old_python()),
        ];
        for (library, python) in pythons {
            for nagle in [false, true] {
                let mut flags = vec![authority.as_str()];
                if nagle {
                    flags.push("--nagle");
                }
                let client = format!("{library}, Nagle {}", if nagle { "on" } else { "off" });
                let more = |record: &mut Record| record.client = Some(client);
                self.record(at, "sync-tls", cell, more, |programs, _| {
                    programs.bench_client(python.clone(), tls, "sync", topic, cell, &flags)
                })?;
            }
        }
        Ok(())
    }

    fn end_to_end(&mut self, at: usize, topic: &str, cell: &Cell) -> Result<()> {
        for rate in self.args.rates_or(RATES) {
            let mut cell = cell.clone();
            cell.messages *= u64::from(rate);
            let more = |record: &mut Record| record.rate_asked = Some(rate);
            let flag = format!("--rate={rate}");
            // Its own topic: the reader begins at the start.
            let topic = format!("{topic}-{rate}");
            let address = self.started[at].kafka();
            self.programs.create(address, &topic, 1)?;
            self.record(at, "e2e", &cell, more, |programs, address| {
                let python = programs.python();
                programs.bench_client(python, address, "e2e", &topic, &cell, &[&flag])
            })?;
            self.programs.delete(address, &topic)?;
        }
        Ok(())
    }

    fn end_to_end_tool(&mut self, at: usize, topic: &str, cell: &Cell) -> Result<()> {
        self.record(
            at,
            "e2e-tool",
            cell,
            |_| (),
            |programs, address| programs.end_to_end_latency(address, topic, cell),
        )
    }
}

/// Enough for some seconds.
fn messages(size_bytes: u32) -> u64 {
    match size_bytes {
        0..=200 => 2_500_000,
        201..=600 => 1_500_000,
        601..=2000 => 700_000,
        _ => 150_000,
    }
}
