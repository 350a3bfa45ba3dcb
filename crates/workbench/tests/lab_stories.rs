//! `cloverleaf lab STORY`: pathologies with real client libraries, and what the doctor's advice is
//! worth.

use std::process::{Command, Output};

use crate::network_support::{IN_PROGRAM, is_forbidden};
use crate::support::BINARY;
use serde_json::Value;

/// How far what comes may be from what was predicted.
const FACTOR_MAX: f64 = 1.5;

fn lab(args: &[&str]) -> Output {
    let mut program = Command::new(BINARY);
    program.arg("lab").args(args).output().unwrap()
}

/// Plays it, a second time if the machine had other things to do: rates are measured.
fn told(args: &[&str]) -> Value {
    let mut last = Value::Null;
    for _ in 0..2 {
        let output = lab(&[args, &["--rtt-by=kernel", "--json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        let all: Value = serde_json::from_slice(&output.stdout).expect(&errors);
        last = all[0].clone();
        let is_good = last["is_good"] == true;
        assert_eq!(output.status.code(), Some(i32::from(!is_good)), "{all:#}");
        if is_good && is_as_predicted(&last) {
            break;
        }
    }
    last
}

/// Whether what came is what the finding predicted, as the bound that it said this to be.
fn is_as_predicted(told: &Value) -> bool {
    let [predicted, after] = ["predicted", "after"].map(|it| told[it].as_f64().unwrap());
    // How many times as good as predicted: of a rate more is better, of a time less.
    let reached = match told["finding"]["prediction"]["measure"].as_str().unwrap() {
        "connection_messages_per_second" | "subscription_messages_per_second" => after / predicted,
        _ => predicted / after,
    };
    match told["bound"].as_str().unwrap() {
        "exact" => (1.0 / FACTOR_MAX..FACTOR_MAX).contains(&reached),
        "at_least" => reached >= 1.0 / FACTOR_MAX,
        "at_most" => reached < FACTOR_MAX,
        bound => panic!("{bound} is no bound"),
    }
}

/// The story finds what it is named after, and nothing else, and the change brings what was said.
fn is_found(story: &str, setting: &str) {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let told = told(&[story]);
    assert_eq!(told["is_good"], true, "{told:#}");
    assert_eq!(told["finding"]["rule"], story, "{told:#}");
    assert_eq!(told["change"]["setting"], setting, "{told:#}");
    assert!(told["found_s"].as_f64().unwrap() <= 15.0, "{told:#}");
    assert!(is_as_predicted(&told), "{told:#}");
}

#[test]
fn librdkafka_that_waits_for_each_answer() {
    is_found("sync-produce", "produce() without waiting for each message");
}

#[test]
fn librdkafka_that_waits_for_company() {
    is_found("linger", "linger.ms");
}

#[test]
fn lapin_that_hands_all_messages_to_one_worker() {
    is_found("hoarding", "for_each_concurrent");
}

#[test]
fn librdkafka_with_too_few_requests_in_flight() {
    is_found("one-connection", "producers");
}

#[test]
fn librdkafka_that_gives_up_what_queues_on_a_narrow_line() {
    is_found("too-many-in-flight", "queue.buffering.max.messages");
}

#[test]
fn librdkafka_that_sends_text_as_it_is() {
    is_found("no-compression", "compression.type");
}

#[test]
fn of_clients_that_do_nothing_wrong_nothing_is_said() {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let watch = || -> Value {
        let output = lab(&["healthy", "--rtt-by=kernel", "--time=30s", "--json"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).expect(&errors)
    };
    let mut all = watch();
    // Once more only if a client has failed by itself and nothing was found: what is found wrongly
    // is found wrongly on a busy machine, too.
    let problems = all[0]["problems"].as_array().unwrap();
    let is_own = |it: &Value| it.as_str().unwrap().starts_with("a client has failed: ");
    if !problems.is_empty() && problems.iter().all(is_own) {
        all = watch();
    }
    assert_eq!(all[0]["is_good"], true, "{all:#}");
    assert!(all[0]["watched_s"].as_f64().unwrap() >= 30.0, "{all:#}");
}

/// Their libraries are the user's: `cargo xtask test` has some, other tests none.
#[test]
fn a_story_says_which_program_it_needs() {
    for (story, package) in [("nagle", "confluent-kafka"), ("ack-deadline", "pynsq")] {
        let mut program = Command::new(BINARY);
        program.env("CLOVERLEAF_LAB_PYTHON", "false");
        let output = program.args(["lab", story]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let needs = format!("it needs a Python with {package}: false has none");
        assert!(text.contains(&needs), "{text}");
        assert_eq!(output.status.code(), Some(1), "{text}");
    }
}

#[test]
fn stories_have_names() {
    let output = lab(&["--list"]);
    let names = String::from_utf8_lossy(&output.stdout);
    assert!(names.contains("hoarding"), "{names}");
    let output = lab(&["a-story-that-is-none"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("hoarding"), "{errors}");
}

#[test]
fn without_a_real_round_trip_it_says_so() {
    let output = lab(&["window-too-small", "--rtt-by=proxy"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("TCP does not see that delay"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}
