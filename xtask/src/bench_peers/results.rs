//! Raw results, one JSON object per measurement and line, and the table of their medians.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;

use super::program::{Figures, Load};
use crate::workspace::{output, today};

/// One measurement.
#[derive(Serialize)]
pub(super) struct Record {
    pub(super) program: &'static str,
    /// The broker.
    pub(super) subject: String,
    pub(super) durability: &'static str,
    #[serde(flatten)]
    pub(super) load: Load,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// User and system time of all processes of the broker.
    pub(super) broker_cpu_s: f64,
    /// And of the program.
    pub(super) client_cpu_s: f64,
    /// CPU time of everything else on the machine: a measurement in which it is large is spoilt.
    pub(super) foreign_cpu_s: f64,
    pub(super) rss_peak_bytes: u64,
    /// Messages that are left (NSQ): 0 means that the reader ran dry, and its rate is the backlog
    /// over the time.
    pub(super) backlog: Option<u64>,
}

impl Record {
    fn rate(&self) -> f64 {
        self.figures.messages as f64 / self.figures.seconds
    }

    fn us_per_message(&self, cpu_s: f64) -> f64 {
        cpu_s * 1e6 / self.figures.messages as f64
    }
}

/// A record with the fields that stand before each record of a run.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970 at which the comparison was started.
    run: u64,
    machine: &'a str,
    #[serde(flatten)]
    record: &'a Record,
}

pub(super) struct Results {
    path: PathBuf,
    run: u64,
    machine: String,
    records: Vec<Record>,
}

impl Results {
    /// In `PEER-DATE.jsonl` of this folder, for brokers whose data lie in `data`.
    pub(super) fn new(folder: &Path, peer: &str, data: &Path) -> Result<Self> {
        Ok(Self {
            path: folder.join(format!("{peer}-{}.jsonl", today())),
            run: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            machine: machine(data)?,
            records: Vec::new(),
        })
    }

    /// Appends a record to the file and prints it.
    pub(super) fn add(&mut self, record: Record) -> Result<()> {
        let line = Line {
            run: self.run,
            machine: &self.machine,
            record: &record,
        };
        let line = serde_json::to_string(&line)?;
        let mut file = File::options().create(true).append(true).open(&self.path)?;
        writeln!(file, "{line}")?;
        let Load {
            size_bytes,
            clients,
            setting,
            ..
        } = &record.load;
        println!(
            "{:<19} {:<26} {setting:<9} {size_bytes:>4} B {clients} clients {:>9.0}/s",
            record.program,
            record.subject,
            record.rate(),
        );
        self.records.push(record);
        Ok(())
    }

    /// Medians of all runs, as Markdown.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{}; raw results: {}\n\n", self.machine, self.path.display());
        text.push_str(
            "| | size | clients | | broker | durability | messages/s | range | p50 µs | p99 µs | \
             broker CPU µs | client CPU µs | peak MB | left | runs |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let mut groups: Vec<Vec<&Record>> = Vec::new();
        for record in &self.records {
            let is_same = |group: &&mut Vec<&Record>| {
                let first = group[0];
                (first.program, &first.subject, &first.load)
                    == (record.program, &record.subject, &record.load)
            };
            match groups.iter_mut().find(is_same) {
                Some(group) => group.push(record),
                None => groups.push(vec![record]),
            }
        }
        for group in &groups {
            row(&mut text, group);
        }
        text
    }
}

fn row(text: &mut String, runs: &[&Record]) {
    let first = runs[0];
    let Load {
        size_bytes,
        clients,
        setting,
        ..
    } = &first.load;
    let median = |value: &dyn Fn(&Record) -> Option<f64>, decimals: usize| {
        let mut values: Vec<f64> = runs.iter().filter_map(|record| value(record)).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.get(values.len() / 2);
        middle.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}"))
    };
    let rates = || runs.iter().map(|record| record.rate());
    let _ = writeln!(
        text,
        "| {} | {size_bytes} | {clients} | {setting} | {} | {} | {} | {:.0} – {:.0} | {} | {} | \
         {} | {} | {} | {} | {} |",
        first.program,
        first.subject,
        first.durability,
        median(&|r| Some(r.rate()), 0),
        rates().fold(f64::INFINITY, f64::min),
        rates().fold(0.0, f64::max),
        median(&|r| r.figures.p50_us, 0),
        median(&|r| r.figures.p99_us, 0),
        median(&|r| Some(r.us_per_message(r.broker_cpu_s)), 2),
        median(&|r| Some(r.us_per_message(r.client_cpu_s)), 2),
        median(&|r| Some(r.rss_peak_bytes as f64 / 1e6), 0),
        median(&|r| r.backlog.map(|n| n as f64), 0),
        runs.len(),
    );
}

/// The machine, in words.
fn machine(data: &Path) -> Result<String> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let kernel = output(Command::new("uname").arg("-sr"))?;
    let disk = output(Command::new("df").arg("--output=fstype").arg(data))?;
    Ok(format!(
        "{}, {} cores shared by broker and client, {}, {}",
        model
            .unwrap_or("unknown")
            .trim_start_matches([' ', '\t', ':']),
        std::thread::available_parallelism().map_or(0, usize::from),
        kernel.trim(),
        disk.lines().last().unwrap_or("unknown"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_medians_of_what_is_alike() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut results = Results::new(folder.path(), "nsq", folder.path())?;
        for (messages, size_bytes) in [(300, 100), (100, 100), (900, 1024), (200, 100)] {
            results.add(Record {
                program: "bench_writer",
                subject: String::from("nsqd"),
                durability: "memory",
                load: Load {
                    size_bytes,
                    clients: 4,
                    ..Load::default()
                },
                figures: Figures {
                    messages,
                    seconds: 1.0,
                    ..Figures::default()
                },
                broker_cpu_s: 0.001,
                client_cpu_s: 0.002,
                foreign_cpu_s: 0.0,
                rss_peak_bytes: 5_000_000,
                backlog: Some(7),
            })?;
        }
        let table = results.table();
        let rows: Vec<&str> = table.lines().filter(|line| line.contains("nsqd")).collect();
        let small = "| bench_writer | 100 | 4 |  | nsqd | memory | 200 | 100 – 300 | – | – | 5.00 \
                     | 10.00 | 5 | 7 | 3 |";
        assert_eq!((rows.len(), rows[0]), (2, small));
        let raw = std::fs::read_to_string(&results.path)?;
        assert_eq!(raw.lines().count(), 4);
        let first: serde_json::Value = serde_json::from_str(raw.lines().next().unwrap_or(""))?;
        assert_eq!(
            (&first["messages"], &first["clients"]),
            (&300.into(), &4.into())
        );
        Ok(())
    }
}
