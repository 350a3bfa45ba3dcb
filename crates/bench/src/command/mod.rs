//! `cloverleaf bench …`: arguments, what is measured for them, and what is printed.

mod args;
mod compare;
mod distance;
mod embed;
#[cfg(test)]
mod fake;
mod fit;
mod knee;
mod live;
mod opened;
mod output;
mod plans;
mod session;
mod story;
mod sweep;
mod values;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};

pub use args::{ClientArgs, LoadArgs, MessageArgs, OutputArgs, PaceArgs, TargetArgs};
pub use compare::{CompareArgs, What};
pub use distance::{FleetArgs, LinkArgs, RttBy, duration};
pub use embed::{Embed, EmbedOptions, EmbeddedBroker, EmbeddedDoor};
pub use live::LiveLine;
pub use opened::Opened;
pub use plans::{Defaults, LATENCY, SIZE_BYTES, THROUGHPUT, Variant};
pub use session::{Session, Task};
pub use story::StoryArgs;
pub use sweep::{Over, SweepArgs};
pub use values::{ArrivalsArg, PayloadArg};
pub use worker::WorkerArgs;

use crate::driver::DriverError;
use crate::fleet::FleetError;
use crate::nsq::Sink;
use crate::outcome::{Kind, Report};

/// What `cloverleaf bench` can do.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Measure publishing
    #[command(after_help = PRODUCER_EXAMPLES)]
    Producer(LoadArgs),
    /// Measure consuming: fill a topic, then empty it
    #[command(after_help = CONSUMER_EXAMPLES)]
    Consumer(LoadArgs),
    /// Measure publishing and consuming at the same time
    #[command(after_help = END_TO_END_EXAMPLES)]
    EndToEnd(LoadArgs),
    /// Measure how long messages take at a rate that the broker bears easily
    #[command(after_help = LATENCY_EXAMPLES)]
    Latency(LoadArgs),
    /// Measure several brokers under the same load, in turns, side by side
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Raise the load until latency bends upwards, or let something else grow
    #[command(after_help = SWEEP_EXAMPLES)]
    Sweep(SweepArgs),
    /// Play the experiment of one of the texts that this broker began with, beside its own figures
    #[command(after_help = STORY_EXAMPLES)]
    Story(StoryArgs),
    /// Generate load for a coordinator on another machine
    #[command(after_help = WORKER_EXAMPLES)]
    Worker(WorkerArgs),
    /// Answer NSQ's publishes and do nothing else, to measure the generator itself
    #[command(hide = true)]
    Sink(SinkArgs),
}

/// Where to answer.
#[derive(Debug, Clone, Args)]
pub struct SinkArgs {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4150")]
    pub listen: SocketAddr,
}

const PRODUCER_EXAMPLES: &str = "\
Examples:
  cloverleaf bench producer                    an embedded broker, 10 seconds
  cloverleaf bench producer --url nsq://127.0.0.1:4150 --message-size 128,512,1024,5120
  cloverleaf bench producer --protocol kafka --concurrency 4 --count 500000
  cloverleaf bench producer --in-flight 1      each message waits for the one before
  cloverleaf bench producer --rate 50k --arrivals poisson    whatever the broker does";

const CONSUMER_EXAMPLES: &str = "\
Examples:
  cloverleaf bench consumer --count 500000 --concurrency 4 --batch-size 500
  cloverleaf bench consumer --url nsq://127.0.0.1:4150 --in-flight 2500";

const END_TO_END_EXAMPLES: &str = "\
Examples:
  cloverleaf bench end-to-end                  loss and order are checked, too
  cloverleaf bench end-to-end --producers 3 --consumers 24 --message-size 100
  cloverleaf bench end-to-end --rate 100k --duration 1m --json result.json";

const LATENCY_EXAMPLES: &str = "\
Latency is counted from the time at which a message was to be sent (response) and from the time at
which it was sent (service). The first is what a user feels when the broker stands still.

Examples:
  cloverleaf bench latency                     1,000 messages per second for 10 seconds
  cloverleaf bench latency --rate 20k --arrivals burst:50 --runs 5
  cloverleaf bench latency --url amqp://guest:guest@127.0.0.1 --acks all";

const COMPARE_EXAMPLES: &str = "\
Each round begins with another broker. A broker that fails is shown with the reason, and the others
go on.

Examples:
  cloverleaf bench compare                     the embedded broker by each of its protocols
  cloverleaf bench compare --url nsqd=nsq://127.0.0.1:4150 --url kafka=kafka://127.0.0.1:9092 \\
      --url ours=embedded:kafka --message-size 128,1024,5120 --runs 5 --report compare.html
  cloverleaf bench compare --what latency --rate 20k --url nsq://one --url nsq://two";

const SWEEP_EXAMPLES: &str = "\
The knee is the lowest rate at which the p99 of the response time is more than ten times that of the
low load, and more than a millisecond, or at which less than 98 % of the rate is done. Then latency
is measured at 50, 75 and 90 % of it.

Examples:
  cloverleaf bench sweep --url nsq://127.0.0.1:4150 --message-size 1024
  cloverleaf bench sweep --what end-to-end --report knee.html
  cloverleaf bench sweep --over connections --values 1,2,4,8,16,32
  cloverleaf bench sweep --over backlog --url amqp://guest:guest@127.0.0.1";

const STORY_EXAMPLES: &str = "\
  000  producers over a distance: synchronous, in flight, connections, partitions
  001  a producer that waits 40 ms for nothing: Nagle's algorithm and delayed acknowledgements
  002  throughput and latency of four message sizes
  003  a pipeline whose processors are idle while messages wait
  004  publishers and subscribers at the same time, 24 on each channel

Examples:
  cloverleaf bench story 000                   half a minute, embedded brokers, 10 ms away
  cloverleaf bench story 000 --rtt 50ms --url kafka://127.0.0.1:9092
  cloverleaf bench story 004 --full            as long as the seed's";

const WORKER_EXAMPLES: &str = "\
Examples:
  CLOVERLEAF_BENCH_TOKEN=secret cloverleaf bench worker --listen 0.0.0.0:4190   on one, two, three
  CLOVERLEAF_BENCH_TOKEN=secret cloverleaf bench end-to-end --url nsq://broker:4150 \\
      --workers one,two,three --producers 9 --consumers 72       anywhere";

/// How often the sink looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Why nothing could be measured, in a sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The broker or its client.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The arguments.
    #[error("{0}")]
    Settings(String),
    /// A file.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error, in the system's words.
        source: std::io::Error,
    },
    /// The embedded broker.
    #[error("the embedded broker does not start: {0}")]
    Embedded(String),
    /// Other machines.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

impl BenchError {
    /// The arguments are wrong.
    pub fn settings(text: &str) -> BenchError {
        BenchError::Settings(text.to_owned())
    }

    /// A file cannot be read or written.
    pub fn file((path, source): (PathBuf, std::io::Error)) -> BenchError {
        BenchError::File { path, source }
    }
}

impl BenchCommand {
    /// Whether it may want networks of the kernel's: then
    /// [`allow_networks`](crate::allow_networks) has to be called before there are threads.
    pub fn wants_networks(&self) -> bool {
        match self {
            BenchCommand::Producer(load)
            | BenchCommand::Consumer(load)
            | BenchCommand::EndToEnd(load)
            | BenchCommand::Latency(load) => load.target.may_be_kernel(),
            BenchCommand::Compare(args) => args.load.target.may_be_kernel(),
            BenchCommand::Sweep(args) => args.load.target.may_be_kernel(),
            BenchCommand::Story(args) => args.may_be_kernel(),
            BenchCommand::Worker(_) | BenchCommand::Sink(_) => false,
        }
    }

    /// Measures and prints. `false`: something was lost, out of order or cut short.
    ///
    /// # Errors
    /// Nothing could be measured, or the figures cannot be written.
    pub fn run(&self, session: &mut Session<'_>) -> Result<bool, BenchError> {
        match self {
            BenchCommand::Producer(load) => {
                measure(session, load, "Publishing", Kind::Produce, &THROUGHPUT)
            }
            BenchCommand::Consumer(load) => {
                measure(session, load, "Consuming", Kind::Consume, &THROUGHPUT)
            }
            BenchCommand::EndToEnd(load) => {
                let title = "Publishing and consuming";
                measure(session, load, title, Kind::EndToEnd, &THROUGHPUT)
            }
            BenchCommand::Latency(load) => {
                measure(session, load, "Latency", Kind::EndToEnd, &LATENCY)
            }
            BenchCommand::Compare(args) => compare::run(session, args),
            BenchCommand::Sweep(args) => sweep::run(session, args),
            BenchCommand::Story(args) => args.run(session),
            BenchCommand::Worker(args) => args.run(session),
            BenchCommand::Sink(args) => {
                let failed = |error| BenchError::file((args.listen.to_string().into(), error));
                let sink = Sink::bind(args.listen).map_err(failed)?;
                println!("sink {}", sink.address().map_err(failed)?);
                let listening = thread::spawn(move || sink.run());
                while !session.stop().is_set() && !listening.is_finished() {
                    thread::park_timeout(LOOK);
                }
                // One that is told to end need not wait for its connections.
                match listening.is_finished().then(|| listening.join()) {
                    Some(Ok(ended)) => ended.map(|()| true).map_err(failed),
                    _ => Ok(true),
                }
            }
        }
    }
}

/// One kind of load on one broker or more, one row for each broker and message size.
fn measure(
    session: &mut Session<'_>,
    load: &LoadArgs,
    title: &str,
    kind: Kind,
    defaults: &Defaults,
) -> Result<bool, BenchError> {
    let variants = load.plans(defaults)?;
    let strangers = load.strangers(&load.target.urls())?;
    let opened = session.open_all(&load.target)?;
    let tasks: Vec<Task<'_>> = opened
        .iter()
        .flat_map(|opened| {
            variants.iter().map(move |(variations, plan)| Task {
                opened,
                kind,
                variations: variations.clone(),
                plan: plan.clone(),
            })
        })
        .collect();
    let mut report: Report = session.report(title);
    report.notes.extend(strangers);
    session.measure_all(
        &tasks,
        load.pace.runs.unwrap_or(1),
        &load.output,
        &mut report,
    )?;
    load.output.finish(&report)
}
