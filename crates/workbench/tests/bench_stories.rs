//! Each story in its short form, with embedded brokers.

use std::process::Command;

use crate::network_support::{IN_PROGRAM, is_forbidden};
use crate::support::BINARY;
use serde_json::Value;

/// Plays a story and returns its JSON, after a check that the printed text has the same parts.
fn played(args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("story.json");
    let output = Command::new(BINARY)
        .args(["bench", "story"])
        .args(args)
        .arg("--quiet")
        .arg(format!("--json={}", file.display()))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {told} {errors}");
    let story: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(story["is_good"], true, "{story:#}");
    assert!(
        story["lesson"]
            .as_str()
            .unwrap()
            .starts_with("What to learn: "),
        "{story:#}"
    );
    let citations = story.to_string().matches("(line").count();
    assert!(citations > 0, "the seed's figures stand beside: {story:#}");
    let tables = story["tables"].as_array().unwrap();
    let titles = tables.iter().map(|table| table["title"].as_str().unwrap());
    for part in titles.chain(["What to learn: ", "(line", "Here: "]) {
        assert!(told.contains(part), "{part} in\n{told}");
    }
    story
}

/// The cell of a table, by the head of its column; no-break spaces are plain spaces.
fn cell(table: &Value, row: usize, column: &str) -> String {
    let columns = table["columns"].as_array().unwrap();
    let at = columns
        .iter()
        .position(|head| head.as_str().unwrap().contains(column));
    let at = at.unwrap_or_else(|| panic!("no column {column}: {table:#}"));
    table["rows"][row][at]
        .as_str()
        .unwrap()
        .replace('\u{a0}', " ")
}

fn number(text: &str) -> f64 {
    let digits: String = text
        .chars()
        .filter(|it| it.is_ascii_digit() || *it == '.')
        .collect();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("no number: {text}"))
}

#[test]
fn story_000_is_played_over_packets_where_the_machine_lets_it() {
    let story = played(&["000", "--count=50", "--rtt=2ms", "--url=embedded:nsq"]);
    let windows = &story["tables"][0];
    assert_eq!(windows["rows"].as_array().unwrap().len(), 5);
    assert_eq!(cell(windows, 4, "the seed"), "22,000/s (line 46)");
    assert_eq!(story["tables"][1]["rows"].as_array().unwrap().len(), 4);
    let notes = story["notes"].to_string();
    assert!(notes.contains("round trip 2ms"), "{story:#}");
    let is_by_kernel = notes.contains("made of packets by the kernel");
    assert_eq!(is_by_kernel, !is_forbidden(IN_PROGRAM), "{story:#}");
}

#[test]
fn story_001_has_a_broker_that_does_nothing_against_it() {
    let story = played(&["001"]);
    let table = &story["tables"][0];
    assert_eq!(table["rows"].as_array().unwrap().len(), 6, "{table:#}");
    for row in 0..6 {
        let is_without = cell(table, row, "broker").contains("quick-ack=false");
        assert_eq!(is_without, row < 3, "{table:#}");
        assert!(cell(table, row, "over 30 ms").contains(" of "), "{table:#}");
    }
    assert!(cell(table, 0, "client").starts_with("two writes, Nagle on"));
}

#[test]
fn story_002_has_four_sizes_and_the_seeds_percentiles() {
    let story = played(&["002", "--count=200", "--url=embedded:nsq"]);
    assert_eq!(story["tables"][0]["rows"].as_array().unwrap().len(), 4);
    let latency = &story["tables"][1];
    assert_eq!(
        latency["rows"].as_array().unwrap().len(),
        8,
        "ours and the seed's"
    );
    assert_eq!(cell(latency, 1, "minimum"), "676 µs");
    assert_eq!(cell(latency, 7, "p99"), "981 µs");
    assert!(number(&cell(latency, 0, "median")) > 0.0);
}

#[test]
fn story_003_processors_are_idle_unless_one_consumer_gets_all() {
    let story = played(&["003"]);
    let table = &story["tables"][0];
    let most = |row| cell(table, row, "most on one");
    let idle = |row| cell(table, row, "idle");
    // Two jobs: by default both on the same processor.
    assert_eq!(
        (most(0).as_str(), idle(0).as_str()),
        ("2", "24"),
        "{table:#}"
    );
    assert_eq!(
        (most(1).as_str(), idle(1).as_str()),
        ("1", "23"),
        "{table:#}"
    );
    // As many jobs as processors.
    assert_eq!(
        (most(3).as_str(), idle(3).as_str()),
        ("2", "12"),
        "{table:#}"
    );
    assert_eq!(
        (most(4).as_str(), idle(4).as_str()),
        ("1", "0"),
        "{table:#}"
    );
    assert_eq!(
        (most(5).as_str(), idle(5).as_str()),
        ("1", "0"),
        "{table:#}"
    );
}

#[test]
fn story_004_publishers_and_many_subscribers() {
    let story = played(&["004", "--count=2000"]);
    let table = &story["tables"][0];
    assert!(number(&cell(table, 0, "published")) > 0.0, "{table:#}");
    assert_eq!(cell(table, 0, "consumed"), "–");
    assert!(number(&cell(table, 1, "consumed")) > 0.0, "{table:#}");
    assert!(
        cell(table, 0, "the seed").starts_with("2,070,549/s"),
        "{table:#}"
    );
}

#[test]
fn a_story_says_which_brokers_it_can_be_played_with() {
    let mut command = Command::new(BINARY);
    command.args(["bench", "story", "003", "--url=nsq://127.0.0.1:1"]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        errors.contains("story 003 is played through amqp"),
        "{errors}"
    );
}
