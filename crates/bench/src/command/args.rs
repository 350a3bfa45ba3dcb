//! Arguments that several sub-commands share.

use std::path::PathBuf;

use clap::Args;

use cloverleaf_telemetry::Protocol;

use super::distance::{FleetArgs, LinkArgs};
use super::values::{self, ArrivalsArg, PayloadArg};
use crate::clients::CLIENTS;
use crate::plan::Acks;
use crate::url::{Url, protocol_values};

/// Whom to measure.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Broker")]
pub struct TargetArgs {
    /// The broker: nsq://host:4150, kafka://host:9092, amqp://user:password@host:5672/vhost, or
    /// embedded:nsq, embedded:kafka, embedded:amqp for a Cloverleaf in this program.
    /// NAME=nsq://… gives it a name in tables [default: embedded]
    #[arg(long = "url", value_name = "URL")]
    pub urls: Vec<Url>,
    /// The protocol to speak with the embedded broker [default: nsq]
    #[arg(long, value_parser = protocol_values(), value_name = "PROTOCOL", conflicts_with = "urls")]
    pub protocol: Option<Protocol>,
    /// The topic, or the queue. It stays; without this each measurement makes one and removes it
    #[arg(long, value_name = "NAME")]
    pub topic: Option<String>,
    /// Partitions of the topic; Kafka has some [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub partitions: Option<u32>,
    /// The broker's process, to measure its CPU time and memory [default: who listens there, if
    /// it is on this machine]
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub broker_pid: Vec<u32>,
    /// How far away it is.
    #[command(flatten)]
    pub link: LinkArgs,
    /// Who measures.
    #[command(flatten)]
    pub fleet: FleetArgs,
}

impl TargetArgs {
    /// The brokers to be measured: one at least.
    pub fn urls(&self) -> Vec<Url> {
        if self.urls.is_empty() {
            vec![Url::embedded(self.protocol.unwrap_or(CLIENTS[0].protocol))]
        } else {
            self.urls.clone()
        }
    }

    /// Whether the kernel may have to make the distance.
    pub(super) fn may_be_kernel(&self) -> bool {
        let has_workers = !self.fleet.workers.is_empty();
        let link = &self.link;
        link.may_be_kernel(&link.link(), &self.urls(), has_workers)
    }
}

/// What messages are like, and how many.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Messages")]
pub struct MessageArgs {
    /// Bytes of a message; several are measured one after the other: 128,512,1024,5120
    /// [default: 128]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = values::size)]
    pub message_size: Vec<usize>,
    /// What is in them: random (incompressible), compressible (log lines) or file:PATH
    #[arg(long, value_name = "KIND", default_value = "random", value_parser = values::payload)]
    pub payload: Option<PayloadArg>,
    /// So many different keys; without this messages have none. Kafka's messages can have some
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub keys: Option<u64>,
    /// Measure so many messages, of all connections together: 500000, 500k, 1M
    #[arg(long, value_name = "N", value_parser = values::count, conflicts_with = "duration")]
    pub count: Option<u64>,
    /// Measure for so long: 10s, 500ms, 2m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    pub duration: Option<f64>,
    /// Send for so long before that, and do not count it [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    pub warm_up: Option<f64>,
}

/// How messages are sent and taken.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Clients")]
pub struct ClientArgs {
    /// Connections on each side, each with a thread
    #[arg(
        long, short = 'c', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub concurrency: u32,
    /// Connections that publish [default: --concurrency]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub producers: Option<u32>,
    /// Connections that consume [default: --concurrency]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub consumers: Option<u32>,
    /// Most messages in one request [default: 200; 1 for latency]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: Option<u32>,
    /// Most messages of a connection that are not acknowledged: 1 is synchronous, 0 is no limit.
    /// For a consumer: that it holds [default: 1000]
    #[arg(long, value_name = "N")]
    pub in_flight: Option<u32>,
    /// What a producer waits for: none; one, the broker; all, the safest that the protocol has
    #[arg(long, value_name = "WHOM", default_value = "one", value_parser = values::acks)]
    pub acks: Option<Acks>,
}

/// When messages are sent.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Load")]
pub struct PaceArgs {
    /// Send so many messages per second, of all connections together, whatever the broker does
    /// (open loop): 1000, 100k [default: as fast as --in-flight lets (closed loop); 1000 for
    /// latency]
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub rate: Option<f64>,
    /// How they arrive: constant, poisson, burst:SIZE, or ramp:FROM-TO, which needs no --rate
    /// [default: constant]
    #[arg(long, value_name = "HOW", value_parser = values::arrivals)]
    pub arrivals: Option<ArrivalsArg>,
    /// Measure so often; figures are medians then [default: 1; 3 for compare]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: Option<u32>,
    /// Seed of everything that is random: the same one gives the same load
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// What is done with the figures.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write everything as JSON into this file, or instead of the table if none is named
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write a page with charts (HTML, one file)
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Show nothing while it is measured
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// One kind of load on one or several brokers.
#[derive(Debug, Clone, Default, Args)]
pub struct LoadArgs {
    /// Whom to measure.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What messages are like, and how many.
    #[command(flatten)]
    pub messages: MessageArgs,
    /// How they are sent and taken.
    #[command(flatten)]
    pub clients: ClientArgs,
    /// When they are sent.
    #[command(flatten)]
    pub pace: PaceArgs,
    /// What is done with the figures.
    #[command(flatten)]
    pub output: OutputArgs,
}
