//! Raw results: one JSON object per measurement and line, appended and never changed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use crate::workspace::today;

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// Seconds since 1970 at which `bench-peers` was started: one number for one comparison.
    pub(super) run: u64,
    /// What was measured: `pub`, `disk64`, `produce`, `throughput`, ...
    pub(super) kind: String,
    /// Who was measured.
    pub(super) subject: String,
    /// What its answer to a producer promises: `memory`, `kernel` or `disk`.
    pub(super) durability: String,
    pub(super) size_bytes: u32,
    pub(super) clients: u32,
    pub(super) topics: u32,
    pub(super) messages: u64,
    pub(super) seconds: f64,
    /// User and system time of the broker, of all its processes.
    pub(super) broker_cpu_s: f64,
    pub(super) rss_peak_bytes: u64,
    /// Messages left in the channel after reading: 0 means that the reader ran dry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backlog: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) p50_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) p99_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mean_us: Option<f64>,
    /// What a Kafka producer asked for: `1` or `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) acks: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) partitions: Option<u32>,
    /// Messages per second that were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rate_asked: Option<u32>,
    /// Which client, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<String>,
    /// The kind of AMQP queue: `classic`, `quorum` or `transient`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<String>,
    /// Messages published, where `messages` are those received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sent: Option<u64>,
    /// User and system time of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_cpu_s: Option<f64>,
    /// What everything else on the machine used, the kernel's own work and its host's included: a
    /// measurement in which it is large is spoilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) foreign_cpu_s: Option<f64>,
    /// From publish to confirm, where `p50_us` is from publish to delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) confirm_p50_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) confirm_p99_us: Option<f64>,
    /// As `p99_us`, but with what came before the measured time: the start of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) whole_p99_us: Option<f64>,
    /// From when a message was sent, where `p50_us` is from when it was to be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) service_p50_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) service_p99_us: Option<f64>,
    /// How late the client was by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lag_p99_us: Option<f64>,
    /// Messages that were acknowledged and came to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) out_of_order: Option<u64>,
    /// Of client and broker, as they tell them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) versions: Option<BTreeMap<String, String>>,
    pub(super) machine: Machine,
}

impl Record {
    pub(super) fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }

    /// Broker CPU in microseconds per message.
    pub(super) fn cpu_us(&self) -> f64 {
        self.broker_cpu_s * 1e6 / self.messages as f64
    }

    /// Broker CPU in percent of one core.
    pub(super) fn broker_percent(&self) -> f64 {
        self.broker_cpu_s * 100.0 / self.seconds
    }

    /// Client CPU in percent of one core.
    pub(super) fn client_percent(&self) -> f64 {
        self.client_cpu_s.unwrap_or(f64::NAN) * 100.0 / self.seconds
    }

    /// What neither broker nor client used, in percent of one core.
    pub(super) fn foreign_percent(&self) -> f64 {
        self.foreign_cpu_s.unwrap_or(f64::NAN) * 100.0 / self.seconds
    }
}

/// The results of all days, a file for each.
pub(super) struct Results {
    folder: PathBuf,
    peer: String,
    run: u64,
    machine: Machine,
}

impl Results {
    /// `peer` is the first word of the file's name.
    pub(super) fn open(folder: &Path, peer: &str, machine: Machine) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(Self {
            folder: folder.to_owned(),
            peer: peer.to_owned(),
            run,
            machine,
        })
    }

    /// A record with everything but the figures.
    pub(super) fn blank(&self, kind: &str, subject: &str, durability: &str) -> Record {
        Record {
            run: self.run,
            kind: kind.to_owned(),
            subject: subject.to_owned(),
            durability: durability.to_owned(),
            size_bytes: 0,
            clients: 1,
            topics: 1,
            messages: 0,
            seconds: 0.0,
            broker_cpu_s: 0.0,
            rss_peak_bytes: 0,
            backlog: None,
            p50_us: None,
            p99_us: None,
            mean_us: None,
            acks: None,
            partitions: None,
            rate_asked: None,
            client: None,
            queue: None,
            sent: None,
            client_cpu_s: None,
            foreign_cpu_s: None,
            confirm_p50_us: None,
            confirm_p99_us: None,
            whole_p99_us: None,
            service_p50_us: None,
            service_p99_us: None,
            lag_p99_us: None,
            lost: None,
            out_of_order: None,
            versions: None,
            machine: self.machine.clone(),
        }
    }

    /// Appends a record and prints it.
    pub(super) fn add(&self, record: &Record) -> Result<()> {
        let path = self.folder.join(format!("{}-{}.jsonl", self.peer, today()));
        let mut file = File::options().create(true).append(true).open(path)?;
        writeln!(file, "{}", serde_json::to_string(record)?)?;
        let mut line = format!("{:<9} {:<28} ", record.kind, record.subject);
        match (&record.acks, record.partitions) {
            (None, None) if record.queue.is_some() => line.push_str(&format!(
                "{:<9} {:>4} B {} clients {}{}",
                record.queue.as_deref().unwrap_or_default(),
                record.size_bytes,
                record.clients,
                record.client.as_deref().unwrap_or_default(),
                record
                    .rate_asked
                    .map_or_else(String::new, |rate| format!("{rate}/s asked")),
            )),
            (None, None) => line.push_str(&format!(
                "{:>3} B {} clients {} topics",
                record.size_bytes, record.clients, record.topics
            )),
            (acks, partitions) => line.push_str(&format!(
                "{:>4} B acks={} {} partitions {}",
                record.size_bytes,
                acks.as_deref().unwrap_or("-"),
                partitions.unwrap_or(1),
                record.client.as_deref().unwrap_or(""),
            )),
        }
        line.push_str(&format!(
            "  {:>10.0}/s  {:>7.3} us CPU  {:>5} MB",
            record.rate(),
            record.cpu_us(),
            record.rss_peak_bytes >> 20,
        ));
        if let (Some(p50), Some(p99)) = (record.p50_us, record.p99_us) {
            line.push_str(&format!("  p50 {p50:.0} us  p99 {p99:.0} us"));
        }
        println!("{line}");
        Ok(())
    }

    /// All records of this peer, oldest first.
    pub(super) fn all(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for path in self.files(".jsonl")? {
            let text = std::fs::read_to_string(&path)?;
            for line in text.lines() {
                let record = serde_json::from_str(line);
                records.push(record.with_context(|| path.display().to_string())?);
            }
        }
        Ok(records)
    }

    /// The names of the files that hold them, as links.
    pub(super) fn links(&self) -> Result<String> {
        Ok(links(&self.files(".jsonl")?))
    }

    /// Where all of them are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The name of a page that `cloverleaf bench` writes today.
    pub(super) fn page(&self, what: &str) -> String {
        format!("{}-{}-{what}.html", self.peer, today())
    }

    /// The names of all such pages, as links.
    pub(super) fn page_links(&self) -> Result<String> {
        Ok(links(&self.files(".html")?))
    }

    fn files(&self, end: &str) -> Result<Vec<PathBuf>> {
        let start = format!("{}-", self.peer);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&start) && name.ends_with(end) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

fn links(files: &[PathBuf]) -> String {
    let names = files.iter().filter_map(|path| path.file_name());
    let links = names.map(|name| format!("[{0}]({0})", name.to_string_lossy()));
    links.collect::<Vec<_>>().join(", ")
}
