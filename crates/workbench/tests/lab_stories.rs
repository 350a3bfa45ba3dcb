//! `cloverleaf lab STORY`: mistakes with real client libraries, and the effect of the doctor's
//! advice.

use std::process::{Command, Output};

use crate::network_support::{IN_PROGRAM, is_forbidden};
use crate::support::BINARY;
use serde_json::{Value, json};

fn lab(args: &[&str]) -> Output {
    let mut program = Command::new(BINARY);
    program.arg("lab").args(args).output().unwrap()
}

#[test]
fn clients_that_do_nothing_wrong_are_watched() {
    if is_forbidden(IN_PROGRAM) {
        return;
    }
    let output = lab(&["healthy", "--rtt-by=kernel", "--time=2s", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let all: Value = serde_json::from_slice(&output.stdout).expect(&errors);
    // Too short for a finding, but long enough for each client to fail.
    assert_eq!(all[0]["problems"], json!([]), "{all:#}");
    assert!(all[0]["watched_s"].as_f64().unwrap() >= 2.0, "{all:#}");
}

/// The Python libraries are the user's to install. These tests have none.
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
