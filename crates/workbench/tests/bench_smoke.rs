//! Every sub-command of `cloverleaf bench` with every protocol: its table, its JSON and its page.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::{BINARY, Broker};
use serde_json::Value;

const PROTOCOLS: [&str; 3] = ["nsq", "kafka", "amqp"];

/// Few messages in several requests: with one request all come at one moment, which is no rate.
const SMALL: [&str; 4] = [
    "--batch-size=10",
    "--in-flight=50",
    "--warm-up=0",
    "--quiet",
];

/// Everything that one call has printed and written.
struct Output {
    table: String,
    json: Value,
    page: String,
}

impl Output {
    /// The output of a call that succeeds.
    fn of(args: &[&str]) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let (json, page) = (folder.path().join("all.json"), folder.path().join("a.html"));
        let output = Command::new(BINARY)
            .arg("bench")
            .args(args)
            .arg(format!("--json={}", json.display()))
            .arg(format!("--report={}", page.display()))
            .args(SMALL)
            .output()
            .unwrap();
        let table = String::from_utf8_lossy(&output.stdout).replace('\u{a0}', " ");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {table} {errors}");
        let it = Output {
            table,
            json: serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap(),
            page: std::fs::read_to_string(page).unwrap(),
        };
        it.check(args);
        it
    }

    /// Checks what holds for each measurement.
    fn check(&self, args: &[&str]) {
        let Output { table, json, page } = self;
        assert_eq!(json["is_good"], true, "{args:?}: {json:#}");
        assert!(page.starts_with("<!DOCTYPE html>"), "{args:?}");
        assert!(page.trim_end().ends_with("</html>"), "{args:?}");
        assert!(page.contains("<svg"), "{args:?}: a page has charts");
        let title = json["title"].as_str().unwrap();
        assert!(table.contains(title), "{args:?}: {title} in\n{table}");
        assert!(page.contains(title), "{args:?}: {title} in the page");
        assert!(!self.rows().is_empty(), "{args:?}: {json:#}");
        for row in self.rows() {
            let label = row["label"].as_str().unwrap();
            assert!(table.contains(label), "{args:?}: {label} in\n{table}");
            assert!(page.contains(label), "{args:?}: {label} in the page");
            assert!(
                row["messages_per_s"].as_f64().unwrap() > 0.0,
                "{args:?}: {row:#}"
            );
            for run in row["runs"].as_array().unwrap() {
                assert_eq!(run["cut"], Value::Null, "{args:?}: {run:#}");
                assert!(run["usage"]["wall_s"].as_f64().unwrap() > 0.0, "{run:#}");
                assert!(
                    run["usage"]["broker_cpu_s"].is_number(),
                    "{args:?}: {run:#}"
                );
                assert!(
                    !run["versions"].as_object().unwrap().is_empty(),
                    "{args:?}: {run:#}"
                );
            }
        }
    }

    fn rows(&self) -> &[Value] {
        self.json["rows"].as_array().unwrap()
    }

    /// The first run of each row.
    fn runs(&self) -> impl Iterator<Item = &Value> {
        self.rows().iter().map(|row| &row["runs"][0])
    }

    fn notes(&self) -> String {
        self.json["notes"].to_string()
    }

    /// The values of the settings that differ between rows.
    fn values(&self, name: &str) -> Vec<f64> {
        let values = self
            .rows()
            .iter()
            .filter_map(|row| row["variations"][name].as_f64());
        values.collect()
    }
}

fn messages(run: &Value, side: &str) -> u64 {
    run[side]["messages"].as_u64().unwrap_or(0)
}

#[test]
fn each_end_is_measured_with_each_protocol() {
    for protocol in PROTOCOLS {
        let protocol = format!("--protocol={protocol}");
        let load = ["--count=400", "--message-size=100,300", "--concurrency=2"];
        for (command, title, kind, (produced, consumed)) in [
            ("producer", "Publishing", "produce", (400, 0)),
            ("consumer", "Consuming", "consume", (0, 400)),
            (
                "end-to-end",
                "Publishing and consuming",
                "end-to-end",
                (400, 400),
            ),
            ("latency", "Latency", "end-to-end", (400, 400)),
        ] {
            let mut args = vec![command, &protocol];
            args.extend(load);
            if command == "latency" {
                args.push("--rate=4k");
            }
            let output = Output::of(&args);
            assert_eq!(output.json["title"], title);
            let varied = output.values("message size, bytes");
            assert_eq!(varied, [100.0, 300.0], "{args:?}");
            for run in output.runs() {
                let sides = (messages(run, "produced"), messages(run, "consumed"));
                assert_eq!(
                    (&run["kind"], sides),
                    (&kind.into(), (produced, consumed)),
                    "{args:?}"
                );
                assert_eq!(run["durability"], "kernel", "{args:?}");
                let versions = run["versions"].as_object().unwrap();
                assert!(versions.len() > 1, "client and broker: {args:?}: {run:#}");
                let side = if kind == "produce" {
                    "produced"
                } else {
                    "consumed"
                };
                let p50 = &run[side]["response_us"]["p50"];
                // The age of messages that were put in before is no latency.
                assert_eq!(p50.is_number(), kind != "consume", "{args:?}: {run:#}");
            }
            assert!(
                output.table.contains("durability: kernel"),
                "{}",
                output.table
            );
            assert!(
                output
                    .notes()
                    .contains("The embedded broker's memory is not shown"),
                "{}",
                output.notes()
            );
        }
    }
}

#[test]
fn acknowledgements_promise_what_the_protocol_has() {
    for (protocol, promise) in [("nsq", "kernel"), ("kafka", "disk"), ("amqp", "disk")] {
        let protocol = format!("--protocol={protocol}");
        let args = ["producer", &protocol, "--acks=all", "--count=200"];
        let output = Output::of(&args);
        let run = output.runs().next().unwrap();
        assert_eq!(run["durability"], promise, "{args:?}");
    }
}

#[test]
fn a_distance_is_felt_with_each_protocol() {
    for protocol in PROTOCOLS {
        let protocol = format!("--protocol={protocol}");
        let load = ["--rtt=20ms", "--count=20", "--rate=500"];
        let output = Output::of(&[&["latency", protocol.as_str()][..], &load].concat());
        let run = output.runs().next().unwrap();
        let p50 = run["consumed"]["response_us"]["p50"].as_f64().unwrap();
        // Half a round trip to the broker, and half of one to the consumer.
        assert!(p50 >= 19_000.0, "{protocol}: {p50}");
        assert!(
            output.notes().contains("round trip 20ms"),
            "{}",
            output.notes()
        );
    }
}

#[test]
fn messages_come_as_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("payload");
    std::fs::write(&file, "what a user has\n".repeat(50)).unwrap();
    let file = format!("--payload=file:{}", file.display());
    for args in [
        &[
            "--arrivals=burst:20",
            "--rate=2k",
            "--count=400",
            "--payload=compressible",
        ][..],
        &["--arrivals=ramp:500-3k", "--duration=400ms", &file],
        &["--arrivals=poisson", "--rate=2k", "--count=400", "--seed=9"],
    ] {
        let all = [&["end-to-end"], args].concat();
        let output = Output::of(&all);
        let run = output.runs().next().unwrap();
        assert_eq!(
            messages(run, "produced"),
            messages(run, "consumed"),
            "{args:?}"
        );
        assert!(messages(run, "consumed") >= 300, "{args:?}: {run:#}");
    }
}

#[test]
fn protocols_stand_side_by_side() {
    let output = Output::of(&[
        "compare",
        "--what=producer,consumer,end-to-end,latency",
        "--count=300",
        "--runs=1",
    ]);
    assert_eq!(output.rows().len(), 4 * PROTOCOLS.len());
    let labels: BTreeSet<_> = output
        .rows()
        .iter()
        .map(|row| row["label"].as_str())
        .collect();
    assert_eq!(labels.len(), PROTOCOLS.len());
    for part in [
        "Producer",
        "Consumer",
        "End to end",
        "× is the ratio to the first",
    ] {
        assert!(output.table.contains(part), "{part} in {}", output.table);
    }
}

#[test]
fn other_processes_are_compared_with_their_memory() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path());
    let (tcp, http, pid) = (
        broker.address("nsq"),
        broker.address("nsq-http"),
        broker.child.id(),
    );
    let url = |name: &str| format!("--url={name}=nsq://{tcp}?http={http}&pid={pid}");
    let load = ["--what=producer", "--count=2000", "--runs=1"];
    let (one, two) = (url("one, x=0"), url("two"));
    let output = Output::of(&[&["compare", one.as_str(), &two][..], &load].concat());
    assert_eq!(output.rows()[0]["label"], "one, x=0");
    for run in output.runs() {
        assert!(
            run["usage"]["broker_rss_bytes"].as_u64().unwrap() > 1 << 20,
            "{run:#}"
        );
    }
    assert!(
        !output.notes().contains("memory is not shown"),
        "{}",
        output.notes()
    );
}

#[test]
fn something_grows_with_each_protocol() {
    for protocol in PROTOCOLS {
        let argument = format!("--protocol={protocol}");
        let grows: &[(&str, &str, &str)] = match protocol {
            // Creating and removing topics takes time.
            "kafka" => &[
                ("partitions", "--values=1,3", "partitions"),
                ("backlog", "--values=200,500", "backlog, messages"),
            ],
            _ => &[
                ("connections", "--values=1,3", "connections"),
                ("message-size", "--values=100,2000", "message size, bytes"),
                ("backlog", "--values=200,500", "backlog, messages"),
            ],
        };
        for (over, values, name) in grows {
            let over = format!("--over={over}");
            let mut args = vec!["sweep", &argument, &over, values];
            if *name != "backlog, messages" {
                args.push("--count=300");
            }
            let output = Output::of(&args);
            let shown: Vec<String> = output.values(name).iter().map(f64::to_string).collect();
            assert_eq!(format!("--values={}", shown.join(",")), *values, "{args:?}");
        }
    }
}

#[test]
fn a_knee_is_looked_for() {
    let output = Output::of(&[
        "sweep",
        "--start=500",
        "--limit=1k",
        "--duration=100ms",
        "--runs=1",
    ]);
    assert_eq!(output.values("share of the knee, %"), [50.0, 75.0, 90.0]);
    assert!(output.values("asked rate, messages/s").contains(&500.0));
    assert!(output.notes().contains("knee"), "{}", output.notes());
}

#[test]
fn what_a_protocol_does_not_have_is_refused_or_noted() {
    for (args, part) in [
        (
            &["producer", "--partitions=4"][..],
            "NSQ has no partitions, so --partitions 4 would change nothing",
        ),
        (
            &["end-to-end", "--protocol=amqp", "--keys=10"],
            "AMQP has no keys, so --keys 10 would change nothing",
        ),
        (
            &[
                "compare",
                "--url=nsq://127.0.0.1:1",
                "--url=nsq://127.0.0.1:2",
                "--keys=10",
            ],
            "NSQ has no keys",
        ),
        (
            &["sweep", "--over=partitions"],
            "NSQ has no partitions, so --over partitions",
        ),
    ] {
        let output = Command::new(BINARY)
            .arg("bench")
            .args(args)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(part),
            "{args:?}: {errors}"
        );
    }
    let output = Output::of(&[
        "compare",
        "--what=producer",
        "--partitions=3",
        "--keys=10",
        "--count=200",
        "--runs=1",
    ]);
    for note in [
        "embedded:nsq: NSQ has no partitions, so --partitions 3 does not concern it.",
        "embedded:amqp: AMQP has no keys, so --keys 10 does not concern it.",
    ] {
        assert!(
            output.notes().contains(note),
            "{note} in {}",
            output.notes()
        );
        assert!(
            output.table.contains(note) && output.page.contains(note),
            "{note}"
        );
    }
    assert!(
        !output.notes().contains("embedded:kafka"),
        "{}",
        output.notes()
    );
    for run in output.runs() {
        let settings = &run["settings"];
        let expected = if run["url"] == "embedded:kafka" {
            (3, 10)
        } else {
            (1, 0)
        };
        let found = (&settings["partitions"], &settings["keys"]);
        assert_eq!(found, (&expected.0.into(), &expected.1.into()), "{run:#}");
    }
}

/// Killed when the test ends.
struct Sink(Child);

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_sink_answers_and_does_nothing_else() {
    let mut command = Command::new(BINARY);
    command.args(["bench", "sink", "--listen=127.0.0.1:0"]);
    let mut sink = Sink(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    let mut out = BufReader::new(sink.0.stdout.as_mut().unwrap());
    out.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("sink ").expect("its first line");
    // The sink has no topics, and no API that could remove one.
    let url = format!("--url=nsq://{address}");
    let output = Output::of(&["producer", &url, "--count=5000"]);
    assert_eq!(messages(output.runs().next().unwrap(), "produced"), 5_000);
    let pid = sink.0.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(
        sink.0.wait().unwrap().success(),
        "it ends when it is told to"
    );
}
