//! Who is measured.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::Bench;
use crate::broker::{Broker, Kind, Options, free_addresses};
use crate::process::{Process, Usage};
use crate::wait;

/// A broker with the settings that make it comparable, or the floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Ours,
    OursDisk,
    /// As NSQ's own bench.sh starts it.
    NsqdMemory,
    /// All through its disk queue.
    NsqdFile,
    /// And synced after each message.
    NsqdSync,
    Floor,
}

impl Subject {
    /// In this order in each run, so that what drifts meets all of them.
    pub(super) const ALL: [Self; 6] = [
        Self::Ours,
        Self::NsqdMemory,
        Self::Floor,
        Self::NsqdFile,
        Self::OursDisk,
        Self::NsqdSync,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursDisk => "ours, durability=disk",
            Self::NsqdMemory => "nsqd, memory queue of 1 M",
            Self::NsqdFile => "nsqd, mem-queue-size=0",
            Self::NsqdSync => "nsqd, and sync-every=1",
            Self::Floor => "floor",
        }
    }

    /// What its answer to a producer promises.
    pub(super) fn durability(self) -> &'static str {
        match self {
            Self::Ours | Self::NsqdFile | Self::Floor => "kernel",
            Self::OursDisk | Self::NsqdSync => "disk",
            Self::NsqdMemory => "memory",
        }
    }

    /// Starts it with a new data folder.
    pub(super) fn start(self, bench: &Bench, folder: &Path) -> Result<Running> {
        if self == Self::Floor {
            return start_floor(folder, None);
        }
        let kind = match self {
            Self::Ours | Self::OursDisk => Kind::Cloverleaf,
            _ => Kind::Nsqd,
        };
        let binary = match kind {
            Kind::Cloverleaf => bench.binary.clone(),
            Kind::Nsqd | Kind::Kafka | Kind::RabbitMq => bench.clients.nsq_program("nsqd"),
        };
        let mut options = Options::new(kind, &binary, &folder.join("data"))?;
        match self {
            Self::OursDisk => options.durability = Some("disk"),
            Self::NsqdMemory => options.more.push("--mem-queue-size=1000000".to_owned()),
            Self::NsqdFile => options.more.push("--mem-queue-size=0".to_owned()),
            Self::NsqdSync => {
                options.more = vec!["--mem-queue-size=0".to_owned(), "--sync-every=1".to_owned()];
            }
            Self::Ours | Self::Floor => {}
        }
        Ok(Running::Broker(Box::new(options.start()?)))
    }
}

/// A started subject. Dropped, it is killed, as bench.sh does with nsqd.
pub(super) enum Running {
    Broker(Box<Broker>),
    Floor(Process, SocketAddr),
}

impl Running {
    pub(super) fn tcp(&self) -> SocketAddr {
        match self {
            Self::Broker(broker) => broker.tcp(),
            Self::Floor(_, address) => *address,
        }
    }

    pub(super) fn kafka(&self) -> SocketAddr {
        match self {
            Self::Broker(broker) => broker.kafka(),
            Self::Floor(_, address) => *address,
        }
    }

    pub(super) fn pid(&mut self) -> u32 {
        match self {
            Self::Broker(broker) => broker.process().pid(),
            Self::Floor(process, _) => process.pid(),
        }
    }

    pub(super) fn usage(&mut self) -> Result<Usage> {
        match self {
            Self::Broker(broker) => broker.process().usage(),
            Self::Floor(process, _) => process.usage(),
        }
    }

    /// `None` for the floor, which has no topics.
    pub(super) fn broker(&self) -> Option<&Broker> {
        match self {
            Self::Broker(broker) => Some(broker),
            Self::Floor(..) => None,
        }
    }
}

/// Starts the floor for NSQ, or for Kafka with so many partitions per topic.
pub(super) fn start_floor(folder: &Path, kafka: Option<u32>) -> Result<Running> {
    let [address] = free_addresses()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("floor").arg(format!("--address={address}"));
    command.arg(format!("--data={}", folder.join("data").display()));
    if let Some(partitions) = kafka {
        command.arg(format!("--kafka={partitions}"));
    }
    let process = Process::start(&mut command, &folder.join("floor.out"))?;
    wait::until("the floor serves", Duration::from_secs(10), || {
        Ok(TcpStream::connect(address).is_ok())
    })?;
    Ok(Running::Floor(process, address))
}
