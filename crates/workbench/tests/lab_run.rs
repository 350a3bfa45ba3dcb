//! `cloverleaf lab run`: a program of the user's beside a broker at a distance.

use std::process::{Command, Output};

use crate::network_support::{IN_PROGRAM, is_forbidden};
use crate::support::BINARY;
use serde_json::Value;

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
    // Each listener accepts a connection.
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
    let output = run(
        &["--time=1s", "--json"],
        &["sh", "-c", "sleep 1000 & sleep 1000"],
    );
    let report = json(&output);
    assert_eq!(report["run"]["is_told"], true, "{report:#}");
    assert_eq!(output.status.code(), Some(0), "{report:#}");
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
    assert!(rtt_us >= 20_000, "{report:#}");
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
