//! RabbitMQ's PerfTest.

use std::path::Path;

use anyhow::Result;

use super::program::{Figures, Load, Program, behind};
use super::{Args, Subject};
use crate::broker::{Broker, Kind};
use crate::install::Clients;
use crate::install::rabbitmq::versions;
use crate::kafka_server::java;

/// The heap that it may use, and its numbers with points and in UTF-8 wherever it runs.
const JVM_OPTIONS: &[&str] = &[
    "-Xmx1G",
    "-Duser.language=en",
    "-Duser.country=US",
    "-Dstdout.encoding=UTF-8",
    "-Dfile.encoding=UTF-8",
];
/// Confirms that stand out at most, and messages that a consumer holds.
const SAFELY: &[&str] = &["--flag", "persistent", "--confirm", "500", "--qos", "200"];

pub(super) fn subjects(clients: &Clients, args: &Args, ours: &Path) -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    // Only ours asked for: there may be no RabbitMQ.
    if args.only != ["ours"] {
        for debian in &args.rabbitmq {
            let folder = clients.rabbitmq(debian)?;
            let (version, erlang) = versions(&folder)?;
            subjects.push(Subject {
                name: format!("RabbitMQ {version}, OTP {erlang}"),
                kind: Kind::RabbitMq,
                binary: folder,
                flags: &[],
                // It syncs for quorum queues only.
                durability: |queue| match queue {
                    "quorum" => "disk",
                    "classic" => "kernel",
                    _ => "none",
                },
            });
        }
    }
    subjects.push(Subject {
        name: String::from("ours"),
        kind: Kind::Cloverleaf,
        binary: ours.to_owned(),
        flags: &[],
        durability: |queue| if queue == "transient" { "none" } else { "disk" },
    });
    Ok(subjects)
}

/// Publishes and consumes at the same time.
pub(super) fn perf_test(clients: &Clients, broker: &Broker, load: &Load) -> Result<Program> {
    let jars = clients.perf_test_jars()?;
    let mut command = java(&jars, JVM_OPTIONS, "com.rabbitmq.perf.PerfTest");
    let uri = format!("amqp://guest:guest@{}/%2f", broker.amqp());
    command.args(["--uri", &uri, "--queue", &load.topic]);
    let parties = load.clients.to_string();
    command.args(["--producers", &parties, "--consumers", &parties]);
    command.args(["--size", &load.size_bytes.to_string()]);
    command.args(["--time", &load.seconds.to_string()]);
    if let Some(rate) = load.rate {
        // It is told the rate of one producer.
        let each = (rate / load.clients.max(1)).max(1);
        command.args(["--rate", &each.to_string()]);
    }
    // A queue that lasts, whatever its kind.
    command.args(["--auto-delete", "false"]);
    match load.setting.as_str() {
        "transient" => command.arg("--autoack"),
        "quorum" => command.args(SAFELY).arg("--quorum-queue"),
        _ => command.args(SAFELY),
    };
    Ok(Program {
        name: "PerfTest",
        command,
        read,
    })
}

/// Counts what was received from `id: X, time 1.000 s, sent: 1 msg/s, ..., received: 1 msg/s, ...`,
/// a line for each second, and reads the latencies of the whole run from
/// `id: X, consumer latency min/median/75th/95th/99th 1/2/3/4/5 µs`.
fn read(text: &str) -> Option<Figures> {
    let (mut seconds, mut messages) = (0.0, 0.0);
    for line in text.lines().filter(|line| line.contains(", time ")) {
        let end: f64 = behind(line, ", time ")?;
        messages += behind::<f64>(line, " received: ")? * (end - seconds);
        seconds = end;
    }
    let (_, latencies) = text.rsplit_once(" consumer latency min/median/75th/95th/99th ")?;
    let latencies = latencies.split([' ', '\n']).next()?;
    let mut latencies = latencies.split('/').skip(1).map(str::parse);
    Some(Figures {
        messages: messages.round() as u64,
        seconds,
        p50_us: latencies.next()?.ok(),
        p99_us: latencies.nth(2)?.ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_test_prints_is_read() {
        let text = "id: test-1, starting producer #0\n\
                    id: test-1, time 1.000 s, sent: 5 msg/s, received: 0 msg/s, \
                    min/median/75th/95th/99th consumer latency: 0/0/0/0/0 µs\n\
                    id: test-1, time 3.000 s, sent: 17961 msg/s, confirmed: 9 msg/s, nacked: 0 \
                    msg/s, received: 12486 msg/s, min/median/75th/95th/99th consumer latency: \
                    619/185989/227933/257770/267822 µs, confirm latency: 1/2/3/4/5 µs\n\
                    test stopped (Reached time limit)\n\
                    id: test-1, receiving rate avg: 7738 msg/s\n\
                    id: test-1, consumer latency min/median/75th/95th/99th 24/22483/3/4/353827 µs\n\
                    id: test-1, confirm latency min/median/75th/95th/99th 6/7/8/9/10 µs\n";
        let figures = Figures {
            messages: 24_972,
            seconds: 3.0,
            p50_us: Some(22_483.0),
            p99_us: Some(353_827.0),
        };
        assert_eq!(read(text), Some(figures));
        assert_eq!(read("Exception"), None);
    }
}
