//! Passwords and tokens of `cloverleaf bench` are in nothing that it prints or writes.

use std::process::{Command, Output};

use crate::support::{BINARY, Broker};
use serde_json::Value;

const PASSWORD: &str = "t0ps3cret";

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("bench").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn no_output_has_a_password_or_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let user = format!("me:{PASSWORD}");
    let broker = Broker::with(&folder.path().join("data"), &[("amqp-user", &user)]);
    let amqp = format!("amqp://me:{PASSWORD}@{}?prefetch=7", broker.address("amqp"));
    let page = folder.path().join("page.html");
    let json = folder.path().join("figures.json");
    let output = bench(&[
        "producer",
        "--count=20",
        "--warm-up=0",
        "--url",
        &amqp,
        &format!("--url=a={amqp}"),
        &format!("--token={PASSWORD}"),
        "--report",
        page.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    let written = [page, json].map(|path| std::fs::read_to_string(path).unwrap());
    let printed = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
    assert!(output.status.success(), "{printed:?}");
    for shown in written.iter().chain(&printed) {
        assert!(!shown.contains(PASSWORD), "{shown}");
    }
    let figures: Value = serde_json::from_str(&written[1]).unwrap();
    let command = figures["command"].to_string();
    assert!(command.contains("me:***@"), "{command}");
    assert!(command.contains("--token=***"), "{command}");
    // The options of a URL are conditions of the measurement, so they are printed.
    assert!(written[0].contains("?prefetch=7"), "{}", written[0]);
    assert!(printed[0].contains("?prefetch=7"), "{}", printed[0]);
    let url = figures["rows"][0]["runs"][0]["url"].as_str().unwrap();
    assert!(
        url.starts_with("amqp://me@") && url.ends_with("?prefetch=7"),
        "{url}"
    );
}

#[test]
fn errors_do_not_repeat_a_password() {
    let nobody = "127.0.0.1:1";
    let urls = [
        format!("amqp://me:{PASSWORD}@{nobody}"),
        format!("nsq://me:{PASSWORD}@{nobody}"),
        format!("kafka://me:{PASSWORD}@{nobody}"),
        format!("kafka://{nobody}?sasl.password={PASSWORD}&no.such.option=1"),
        format!("kafka://{nobody}?ssl.key.password={PASSWORD}"),
        format!("amqp://me:{PASSWORD}"),
        format!("amqp://me:{PASSWORD}@{nobody}:x"),
        format!("amqp:me:{PASSWORD}@{nobody}"),
    ];
    for url in &urls {
        let args = [format!("--url={url}"), "--count=1".to_owned(), url.clone()];
        for args in [&args[..2], &args[1..]] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let output = bench(&[&["producer"], &args[..]].concat());
            assert!(!output.status.success(), "{url}");
            let told = text(&output.stderr);
            assert!(!told.is_empty() && !told.contains(PASSWORD), "{told}");
        }
    }
}
