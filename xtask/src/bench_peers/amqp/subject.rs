//! Who is measured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::super::compare::Candidate;
use super::super::{Args, Bench};
use super::Queue;
use super::programs::PREFETCH;
use crate::broker::{Broker, Kind, Options};
use crate::install::rabbitmq::versions;
use crate::process::{Usage, tree};

pub(super) const OURS: &str = "ours";

/// A broker that can be started.
#[derive(Clone)]
pub(super) struct Subject {
    name: String,
    /// The folder with a Debian; `None` is us.
    rabbitmq: Option<PathBuf>,
}

/// In this order in each turn.
pub(super) fn all(bench: &Bench, args: &Args) -> Result<Vec<Subject>> {
    let mut subjects = vec![Subject {
        name: OURS.to_owned(),
        rabbitmq: None,
    }];
    if args.only.iter().any(|name| name == OURS) && args.only.len() == 1 {
        return Ok(subjects);
    }
    let debians = match args.quick {
        true => &args.rabbitmq[..1],
        false => &args.rabbitmq[..],
    };
    for debian in debians {
        let folder = bench.clients.rabbitmq(debian)?;
        let (version, erlang) = versions(&folder)?;
        subjects.push(Subject {
            name: format!("RabbitMQ {version}, OTP {erlang}"),
            rabbitmq: Some(folder),
        });
    }
    Ok(subjects)
}

impl Subject {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_ours(&self) -> bool {
        self.rabbitmq.is_none()
    }

    /// What its answer to a publisher promises. RabbitMQ syncs for quorum queues only; a transient
    /// queue is gone after a restart, whoever has it.
    pub(super) fn durability(&self, queue: Queue, has_confirms: bool) -> &'static str {
        match queue {
            Queue::Transient if has_confirms => "memory",
            Queue::Transient => "none",
            Queue::Classic if !self.is_ours() => "kernel",
            Queue::Classic | Queue::Quorum => "disk",
        }
    }
}

/// A subject that runs. Dropped, it is killed.
pub(super) struct Started {
    subject: Subject,
    broker: Broker,
}

impl Started {
    /// With its own defaults, and an empty data folder in this one.
    pub(super) fn new(subject: &Subject, bench: &Bench, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let (kind, binary) = match &subject.rabbitmq {
            Some(debian) => (Kind::RabbitMq, debian),
            None => (Kind::Cloverleaf, &bench.binary),
        };
        let options = Options::new(kind, binary, &folder.join("data"))?;
        Ok(Self {
            subject: subject.clone(),
            broker: options.start()?,
        })
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(super) fn amqp(&self) -> SocketAddr {
        self.broker.amqp()
    }

    /// An error with its log if it has ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        let process = self.broker.process();
        match process.exit_status()? {
            None => Ok(()),
            Some(status) => bail!("{} ended ({status}):\n{}", self.subject.name, process.log()),
        }
    }

    /// Of all its processes: `beam.smp`, `erl_child_setup`, `epmd`, ...
    pub(super) fn usage(&mut self) -> Result<Usage> {
        tree::usage(self.broker.process().pid())
    }

    /// So that each measurement has a peak of its own.
    pub(super) fn forget_peak(&mut self) -> Result<()> {
        tree::forget_peaks(self.broker.process().pid())
    }
}

/// RabbitMQ and us, running, to be measured by `cloverleaf bench`.
pub(crate) fn candidates(bench: &Bench, args: &Args, folder: &Path) -> Result<Vec<Candidate>> {
    let mut all = all(bench, args)?;
    // The first one is what the others are compared to.
    all.sort_by_key(Subject::is_ours);
    let names: Vec<&str> = all.iter().map(Subject::name).collect();
    let mut candidates = Vec::new();
    for (at, subject) in all.iter().enumerate() {
        if !args.includes_name(subject.name(), &names) {
            continue;
        }
        let mut started = Started::new(subject, bench, &folder.join(at.to_string()))?;
        candidates.push(Candidate {
            name: subject.name.clone(),
            url: format!("amqp://guest:guest@{}?prefetch={PREFETCH}", started.amqp()),
            pid: started.broker.process().pid(),
            _running: Box::new(started),
        });
    }
    Ok(candidates)
}
