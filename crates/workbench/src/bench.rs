//! `cloverleaf bench`: the command line of the bench crate, with a broker in this process where no
//! other is named.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, thread};

use cloverleaf_bench::command::{
    BenchCommand, EmbedOptions, EmbeddedBroker, EmbeddedDoor, Session,
};
use cloverleaf_bench::{GENERATOR_THREADS, Protocol, allow_networks};

use crate::embedded::{Embedded, there};
use crate::stop;

/// The options for the addresses of a broker's listeners.
const ADDRESSES: [&str; 6] = [
    "admin-address",
    "nsq-tcp-address",
    "nsq-http-address",
    "nsq-lookup-http-address",
    "kafka-address",
    "amqp-address",
];

/// The settings for the listener of each protocol, and for the HTTP API beside it.
const DOORS: [(Protocol, &str, Option<&str>); 3] = [
    (Protocol::Nsq, "nsq.tcp_address", Some("nsq.http_address")),
    (Protocol::Kafka, "kafka.address", None),
    (Protocol::Amqp, "amqp.address", None),
];

/// Runs the command. Messages that are lost or out of order, and a measurement that is cut short,
/// make the exit status a failure.
pub(crate) fn run(command: &BenchCommand) -> anyhow::Result<ExitCode> {
    if command.wants_networks() {
        // A refusal is not reported here: the command reports it if it needs a network.
        let _ = allow_networks();
    }
    let stop = stop::by_signals()?;
    let words: Vec<String> = std::env::args().collect();
    // The thread's name makes its CPU time count as the load generator's, not as the broker's.
    thread::scope(|scope| {
        let work = || {
            let mut session = Session::new(&start, stop, words);
            command.run(&mut session)
        };
        let thread = thread::Builder::new().name(format!("{GENERATOR_THREADS}main"));
        match thread.spawn_scoped(scope, work)?.join() {
            Ok(result) => Ok(if result? {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn start(options: &EmbedOptions) -> Result<EmbeddedBroker, String> {
    begin(options).map_err(|error| format!("{error:#}"))
}

fn begin(options: &EmbedOptions) -> anyhow::Result<EmbeddedBroker> {
    let mut flags: BTreeMap<String, Vec<String>> = ADDRESSES
        .iter()
        .map(|option| ((*option).to_owned(), vec!["127.0.0.1:0".to_owned()]))
        .collect();
    if let Some(mode) = &options.durability {
        flags.insert("durability".to_owned(), vec![mode.clone()]);
    }
    flags.insert("quick-ack".to_owned(), vec![options.quick_ack.to_string()]);
    let broker = Embedded::start("bench", flags, None)?;
    let addresses = broker.server()?.addresses();
    let mut doors = BTreeMap::new();
    for (protocol, address, http) in DOORS {
        let door = EmbeddedDoor {
            address: there(addresses.of(address))?,
            http: http.map(|http| there(addresses.of(http))).transpose()?,
        };
        doors.insert(protocol, door);
    }
    Ok(EmbeddedBroker {
        doors,
        remark: in_memory(broker.folder()),
        guard: Box::new(broker),
    })
}

/// A sentence for the report if the folder's file system is in memory.
fn in_memory(folder: &Path) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let within = mounts.filter(|(place, _)| folder.starts_with(place));
    let (_, kind) = within.max_by_key(|(place, _)| place.len())?;
    matches!(kind, "tmpfs" | "ramfs").then(|| {
        format!(
            "The embedded broker's folder {} lies in memory ({kind}), where a sync costs nothing: \
             set TMPDIR to a folder on a disk.",
            folder.display()
        )
    })
}
