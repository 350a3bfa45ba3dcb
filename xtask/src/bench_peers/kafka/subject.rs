//! Who is measured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::super::compare::Candidate;
use super::super::subject::{Running, start_floor};
use super::super::{Args, Bench};
use crate::broker::{Kind, Options};
use crate::process::Usage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Ours,
    Kafka,
    Floor,
}

impl Subject {
    /// In this order in each turn.
    pub(super) const ALL: [Self; 3] = [Self::Ours, Self::Kafka, Self::Floor];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Kafka => "Apache Kafka 4.3.1",
            Self::Floor => "floor",
        }
    }

    /// A name for a folder.
    pub(super) fn short(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Kafka => "kafka",
            Self::Floor => "floor",
        }
    }

    /// What its answer to a producer promises.
    pub(super) fn durability(self, acks: &str) -> &'static str {
        match self {
            Self::Ours | Self::Floor if acks == "all" => "disk",
            Self::Ours | Self::Floor | Self::Kafka => "kernel",
        }
    }

    /// How to start it, if it is a broker.
    pub(super) fn options(self, bench: &Bench, folder: &Path) -> Result<Options> {
        let (kind, binary) = match self {
            Self::Kafka => (Kind::Kafka, bench.clients.kafka_jars()?),
            Self::Ours | Self::Floor => (Kind::Cloverleaf, bench.binary.clone()),
        };
        let mut options = Options::new(kind, &binary, &folder.join("data"))?;
        let tls = bench.client_tests.join("tls");
        options.tls = Some((tls.join("server.pem"), tls.join("server.key")));
        Ok(options)
    }
}

/// A subject that runs.
pub(super) struct Started {
    subject: Subject,
    /// `None` only while the floor is started anew.
    running: Option<Running>,
    folder: PathBuf,
    partitions: u32,
}

impl Started {
    pub(super) fn new(subject: Subject, bench: &Bench, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let running = match subject {
            Subject::Floor => start_floor(folder, Some(1))?,
            Subject::Ours | Subject::Kafka => {
                Running::Broker(Box::new(subject.options(bench, folder)?.start()?))
            }
        };
        Ok(Self {
            subject,
            running: Some(running),
            folder: folder.to_path_buf(),
            partitions: 1,
        })
    }

    pub(super) fn subject(&self) -> Subject {
        self.subject
    }

    fn running(&self) -> &Running {
        self.running
            .as_ref()
            .unwrap_or_else(|| unreachable!("it is started"))
    }

    pub(super) fn kafka(&self) -> SocketAddr {
        self.running().kafka()
    }

    pub(super) fn kafka_tls(&self) -> SocketAddr {
        match self.running().broker() {
            Some(broker) => broker.kafka_tls(),
            None => self.kafka(),
        }
    }

    pub(super) fn usage(&mut self) -> Result<Usage> {
        let running = self.running.as_mut();
        running.context("it is not started")?.usage()
    }

    /// The floor starts with an empty folder each time: it deletes nothing.
    pub(super) fn set_partitions(&mut self, _: &Bench, partitions: u32) -> Result<()> {
        self.partitions = partitions;
        if self.subject == Subject::Floor {
            self.running = None;
            std::fs::remove_dir_all(&self.folder)?;
            std::fs::create_dir_all(&self.folder)?;
            self.running = Some(start_floor(&self.folder, Some(partitions))?);
        }
        Ok(())
    }
}

/// Kafka and us, running, to be measured by `cloverleaf bench`.
pub(crate) fn candidates(bench: &Bench, args: &Args, folder: &Path) -> Result<Vec<Candidate>> {
    let names = Subject::ALL.map(Subject::name);
    let mut candidates = Vec::new();
    // The first one is what the others are compared to.
    for subject in [Subject::Kafka, Subject::Ours] {
        if !args.includes_name(subject.name(), &names) {
            continue;
        }
        let mut started = Started::new(subject, bench, &folder.join(subject.short()))?;
        let running = started.running.as_mut();
        let pid = running.context("it is not started")?.pid();
        candidates.push(Candidate {
            name: subject.name().to_owned(),
            url: format!("kafka://{}?client=librdkafka", started.kafka()),
            pid,
            _running: Box::new(started),
        });
    }
    Ok(candidates)
}
