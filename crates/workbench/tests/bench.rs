//! `cloverleaf bench` as a user runs it.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{BINARY, Broker};
use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("bench").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    // A no-break space stands between a number and its unit.
    String::from_utf8_lossy(bytes).replace('\u{a0}', " ")
}

/// The only run of the only row, of a call that ends with status 0.
fn measured(args: &[&str]) -> Value {
    let args = [args, &["--json"]].concat();
    let output = bench(&args);
    let errors = text(&output.stderr);
    assert!(
        output.status.success(),
        "{args:?}: {errors} {}",
        text(&output.stdout)
    );
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["is_good"], true, "{report:#}");
    assert!(report["conditions"]["cores"].as_u64().unwrap() > 0);
    report["rows"][0]["runs"][0].take()
}

fn messages(run: &Value, side: &str) -> u64 {
    run[side]["messages"].as_u64().unwrap_or(0)
}

#[test]
fn a_producer_is_measured_against_the_embedded_broker() {
    // Enough messages for measurable costs on a fast machine, too.
    let run = measured(&["producer", "--count=2M", "--warm-up=0", "--concurrency=2"]);
    assert_eq!(
        (messages(&run, "produced"), messages(&run, "consumed")),
        (2_000_000, 0)
    );
    assert_eq!(run["durability"], "kernel");
    assert_eq!(run["url"], "embedded:nsq");
    let times = &run["produced"]["response_us"];
    assert!(times["p50"].as_f64().unwrap() > 0.0, "{times}");
    assert!(times["p99.99"].as_f64() >= times["p99"].as_f64(), "{times}");
    assert!(run["broker_cpu_us_per_message"].is_number(), "{run}");
}

#[test]
fn a_consumer_is_measured_against_the_embedded_broker() {
    let run = measured(&["consumer", "--count=3000", "--warm-up=0"]);
    assert_eq!(messages(&run, "consumed"), 3_000);
    assert_eq!(
        (&run["produced"], &run["findings"]["lost"]),
        (&Value::Null, &0.into())
    );
}

#[test]
fn both_ends_are_measured_against_the_embedded_broker() {
    let run = measured(&[
        "end-to-end",
        "--count=3000",
        "--warm-up=100ms",
        "--acks=all",
    ]);
    assert_eq!(
        (messages(&run, "produced"), messages(&run, "consumed")),
        (3_000, 3_000)
    );
}

#[test]
fn latency_is_measured_against_the_embedded_broker() {
    let args = [
        "latency",
        "--rate=5k",
        "--count=2000",
        "--warm-up=0",
        "--arrivals=poisson",
    ];
    let run = measured(&args);
    assert_eq!(messages(&run, "consumed"), 2_000);
    // All messages, but for those that a broker on a slow machine could not take.
    let lags = &run["produced"]["generator_lag_us"]["count"];
    assert!((1..=2_000).contains(&lags.as_u64().unwrap()), "{lags}");
}

#[test]
fn the_table_names_durability_clocks_and_sizes() {
    let output = bench(&[
        "end-to-end",
        "--count=500",
        "--warm-up=0",
        "--message-size=64,256",
        "--runs=2",
        "--rate=5k",
        "--url=ours=embedded:nsq?durability=disk",
    ]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table} {}", text(&output.stderr));
    for part in [
        "Publishing and consuming · durability: disk",
        "ours",
        "message size, bytes",
        "256",
        "least … most",
        "acknowledged, response time",
        "delivered, service time",
        "p99.99",
        "open loop, 5,000/s evenly",
        "cores",
    ] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
}

#[test]
fn a_broker_in_another_process_is_measured_and_left_clean() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(&folder.path().join("data"));
    let url = format!("--url={}", broker.nsq());
    let run = measured(&[
        "end-to-end",
        &url,
        "--count=3000",
        "--warm-up=0",
        "--consumers=3",
    ]);
    assert_eq!(messages(&run, "consumed"), 3_000);
    assert_eq!(run["durability"], "kernel", "the broker says it");
    assert!(
        run["usage"]["broker_rss_bytes"].as_u64().unwrap() > 1 << 20,
        "{run}"
    );
    assert!(!broker.get("/stats").contains("cloverleaf-bench"));
    measured(&[
        "producer",
        &url,
        "--count=100",
        "--warm-up=0",
        "--topic=mine",
    ]);
    assert!(
        broker.get("/stats").contains("mine"),
        "a user's topic stays"
    );
}

/// A measurement that would take minutes, once its first messages have come.
fn begun(broker: &Broker) -> Child {
    let url = format!("--url={}", broker.nsq());
    let mut child = Command::new(BINARY)
        .args([
            "bench",
            "end-to-end",
            &url,
            "--duration=10m",
            "--warm-up=0",
            "--rate=2k",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_messages(broker) {
        if Instant::now() >= deadline {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("nothing came: {}", text(&output.stderr));
        }
    }
    child
}

/// Whether anything was published to the broker's topics.
fn has_messages(broker: &Broker) -> bool {
    let answer = broker.get("/stats?format=json");
    let mut counts = answer.split("\"message_count\":").skip(1);
    counts.any(|rest| !rest.starts_with('0'))
}

#[test]
fn a_broker_that_dies_in_the_middle_is_told_and_what_was_measured_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(&folder.path().join("data"));
    let child = begun(&broker);
    broker.end_by("-KILL");
    let output = child.wait_with_output().unwrap();
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("CUT SHORT: nsq://127.0.0.1:"), "{table}");
    assert!(table.contains("delivered, response time"), "{table}");
    assert!(!table.contains("LOST"), "{table}");
}

#[test]
fn an_interrupt_prints_what_was_measured_until_then() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(&folder.path().join("data"));
    let child = begun(&broker);
    let pid = child.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("it was stopped before its time"), "{table}");
    assert!(table.contains("delivered, response time"), "{table}");
}

#[test]
fn brokers_stand_side_by_side_and_one_that_fails_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("compare.html");
    let page_arg = format!("--report={}", page.display());
    let args = [
        "compare",
        "--url=ours=embedded:nsq",
        "--url=safe=embedded:nsq?durability=disk",
        "--what=producer,consumer",
        "--message-size=64,256",
        "--count=500",
        "--warm-up=0",
        "--runs=2",
        &page_arg,
    ];
    let output = bench(&args);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table} {}", text(&output.stderr));
    for part in [
        "ours, safe · durability differs: kernel, disk",
        "Producer · 256 bytes",
        "Consumer · 64 bytes",
        "service p50",
        "×",
        "0 · 0 · 0",
    ] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
    let page = text(&std::fs::read(&page).unwrap());
    for part in [
        "<!DOCTYPE html>",
        "durability: disk",
        "Producer by message size",
        "</html>",
    ] {
        assert!(page.contains(part), "{part} is missing in the page");
    }
    let args = [
        "compare",
        "--url=gone=nsq://127.0.0.1:1",
        "--url=ours=embedded:nsq",
        "--what=producer",
        "--count=500",
        "--warm-up=0",
    ];
    let output = bench(&args);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(
        table.contains("FAILED: gone: cannot connect to nsq://127.0.0.1:1"),
        "{table}"
    );
    assert!(
        table.contains("3 runs"),
        "ours was measured all the same: {table}"
    );
}

#[test]
fn a_load_grows() {
    let output = bench(&[
        "sweep",
        "--over=connections",
        "--values=1,2,3",
        "--count=600",
        "--warm-up=0",
    ]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table} {}", text(&output.stderr));
    assert!(
        table.contains("Growth with connections: embedded:nsq"),
        "{table}"
    );
    let output = bench(&[
        "sweep",
        "--start=500",
        "--limit=1k",
        "--duration=300ms",
        "--warm-up=0",
        "--runs=1",
    ]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table} {}", text(&output.stderr));
    // The load that this machine bears is not known.
    let is_said = table.contains("no knee up to 1,000/s") || table.contains("the knee is at");
    assert!(is_said && table.contains("share of the knee, %"), "{table}");
}

#[test]
fn what_cannot_be_measured_is_said_in_a_sentence() {
    for (args, part) in [
        (
            vec!["producer", "--url=nsq://127.0.0.1:1"],
            "cannot connect to nsq://127.0.0.1:1",
        ),
        (
            vec!["producer", "--url=nats://127.0.0.1"],
            "NATS cannot be measured yet",
        ),
        (vec!["latency", "--acks=none"], "there is no --acks none"),
        (vec!["producer", "--arrivals=burst:5"], "needs a rate"),
        (vec!["producer", "--message-size=10"], "too small"),
        (
            vec!["producer", "--url=embedded:nsq?durability=x"],
            "none of protocol, kernel, disk",
        ),
    ] {
        let output = bench(&args);
        let errors = text(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(part),
            "{args:?}: {errors}"
        );
    }
}
