//! `cloverleaf lab run`: a program of the user's beside a broker at a distance.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::network_support::{IN_PROGRAM, is_forbidden};
use crate::support::BINARY;
use serde_json::Value;

/// It waits for each answer.
const PRODUCER: [&str; 9] = [
    BINARY,
    "bench",
    "producer",
    "--url=nsq://127.0.0.1:4150",
    "--in-flight=1",
    "--batch-size=1",
    "--duration=24s",
    "--warm-up=0",
    "--quiet",
];

/// What is found of the producer: a second time if nothing was, because rates are measured, on a
/// machine that may be busy.
fn found(args: &[&str]) -> Output {
    let args = [&["--rtt=20ms", "--rtt-by=kernel"], args].concat();
    let output = run(&args, &PRODUCER);
    match output.status.code() {
        Some(0) => run(&args, &PRODUCER),
        _ => output,
    }
}

fn run(args: &[&str], command: &[&str]) -> Output {
    let mut program = Command::new(BINARY);
    program.args(["lab", "run"]).args(args).arg("--");
    program.args(command).output().unwrap()
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"))
}

#[test]
fn a_program_finds_the_broker_in_its_environment() {
    // Each of them answers somebody who says nothing, or asks for nothing.
    let script = "set -eu; \
         for name in KAFKA AMQP NSQD NSQD_HTTP NSQLOOKUPD ADMIN_ADDRESS; do \
             eval address=\\$CLOVERLEAF_$name; \
             bash -c \"exec 3<>/dev/tcp/${address%:*}/${address#*:}\"; \
         done; \
         echo $CLOVERLEAF_AMQP_URL";
    let output = run(&[], &["bash", "-c", script]);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert!(text.contains("amqp://guest:guest@127.0.0.1:"), "{text}");
    assert!(text.contains("No findings"), "{text}");
    assert!(errors.contains("too short for most findings"), "{errors}");
}

#[test]
fn what_the_program_prints_is_not_mixed_with_json() {
    let output = run(&["--json"], &["echo", "not json"]);
    let report = json(&output);
    assert_eq!(report["run"]["exit_code"], 0, "{report:#}");
    assert_eq!(report["findings"], Value::Array(Vec::new()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not json"));
}

#[test]
fn a_program_that_fails_is_told_from_one_that_is_slow() {
    let output = run(&["--json"], &["sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(json(&output)["run"]["exit_code"], 7);
    for args in [&["--set=nothing=1"][..], &["--set=quick-ack"]] {
        assert_eq!(run(args, &["true"]).status.code(), Some(2));
    }
    let output = run(&[], &["a program that is not there"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("cannot be run"), "{errors}");
}

#[test]
fn a_program_that_goes_on_is_told_to_end_with_all_that_it_started() {
    let begun = Instant::now();
    let output = run(
        &["--time=1s", "--json"],
        &["sh", "-c", "sleep 1000 & sleep 1000"],
    );
    let report = json(&output);
    assert_eq!(report["run"]["is_told"], true, "{report:#}");
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert!(begun.elapsed() < Duration::from_secs(100));
}

#[test]
fn a_program_at_a_distance_has_a_loopback_of_its_own() {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let script = "address=${CLOVERLEAF_KAFKA}; test \"$address\" = 127.0.0.1:9092 && \
         exec bash -c \"exec 3<>/dev/tcp/127.0.0.1/9092; ! exec 4<>/dev/tcp/127.0.0.1/9999\"";
    let output = run(
        &["--rtt=20ms", "--rtt-by=kernel", "--json"],
        &["bash", "-c", script],
    );
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let rtt_us = report["run"]["rtt_us"].as_u64().unwrap();
    assert!((20_000..40_000).contains(&rtt_us), "{report:#}");
}

#[test]
fn the_doctor_tells_of_a_program_that_waits_for_each_answer() {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let output = found(&["--json"]);
    let report = json(&output);
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{report:#}");
    assert_eq!(findings[0]["rule"], "sync-produce", "{report:#}");
    assert_eq!(output.status.code(), Some(1), "{report:#}");
}

#[test]
fn what_the_doctor_tells_fits_a_screen() {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let output = found(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, finding) = text.split_once("SYNC-PRODUCE  ").expect("a finding");
    assert!(finding.lines().count() <= 16, "{text}");
    assert!(
        finding.contains("More: cloverleaf lab run --details;"),
        "{text}"
    );
}

#[test]
fn behind_a_proxy_it_says_what_it_cannot_see() {
    let script = "test -z \"${CLOVERLEAF_NSQLOOKUPD:-}\"";
    let output = run(
        &["--rtt=5ms", "--rtt-by=proxy", "--json"],
        &["sh", "-c", script],
    );
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let distance = report["run"]["distance"].as_str().unwrap();
    assert!(distance.contains("TCP does not see"), "{distance}");
}
