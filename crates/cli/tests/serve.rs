//! The binary itself: its output, its end, and the commands against it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{BINARY, Broker, serve};

#[test]
fn serve_prints_its_addresses_and_ends_well_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(&folder.path().join("data"));
    assert!(broker.lines.len() <= 9, "{:?}", broker.lines);
    let text = broker.lines.join("\n");
    for part in ["127.0.0.1:", "/data", "durability  protocol"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(broker.terminate());
}

#[test]
fn serve_ends_well_on_sighup() {
    let folder = tempfile::tempdir().unwrap();
    // The test's shell may ignore this signal, which programs inherit.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(BINARY);
    let mut broker = Broker::start_as(command, folder.path());
    assert!(broker.end_by("-HUP").success());
}

#[test]
fn a_second_signal_ends_the_broker_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(folder.path());
    // An incomplete request delays the shutdown.
    let mut stream = TcpStream::connect(broker.nsq_http()).unwrap();
    stream
        .write_all(
            b"POST /pub?topic=t HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\
              expect: 100-continue\r\n\r\n",
        )
        .unwrap();
    // The broker has read the head, and waits for the body.
    let mut answer = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 100 "), "{answer:?}");
    stream.write_all(b"x").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while broker.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "no end in time");
        broker.signal("-TERM");
    }
    assert_eq!(broker.child.wait().unwrap().code(), Some(130));
}

#[test]
fn tail_shows_pages_of_large_binary_messages() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path());
    const BYTES: usize = 1 << 20;
    for _ in 0..7 {
        let mut stream = TcpStream::connect(broker.nsq_http()).unwrap();
        let head = "POST /pub?topic=large HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
        write!(stream, "{head}content-length: {BYTES}\r\n\r\n").unwrap();
        stream.write_all(&vec![0xff; BYTES]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let output = broker.run(&["tail", "large"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(output.stdout.len(), 7 * (BYTES + 1));
}

#[test]
fn a_second_broker_names_the_first_and_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path());
    let mut second = serve(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    second
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(second.wait().unwrap().code(), Some(1), "{text}");
    assert!(text.contains(&broker.child.id().to_string()), "{text}");
}

#[test]
fn a_folder_without_its_journal_is_refused_without_repair() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(folder.path());
    broker.ok(&["topic", "create", "orders"]);
    let mut stream = TcpStream::connect(broker.nsq_http()).unwrap();
    let head = "POST /pub?topic=orders HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: 5\r\n\r\nhello").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(broker.terminate());
    for path in ["state.0", "state.1"] {
        std::fs::remove_file(folder.path().join(path)).unwrap();
    }
    let refused = serve(folder.path())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(
        text.contains("--repair") && text.contains("1 topics"),
        "{text}"
    );
    let mut command = Command::new(BINARY);
    command.args(["serve", "--help"]);
    let help = command.output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("--repair"));
    let broker = Broker::start_with(folder.path(), &["--repair"]);
    assert_eq!(broker.ok(&["tail", "orders"]).trim(), "hello");
}

#[test]
fn topics_and_subscriptions_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path());
    broker.ok(&["topic", "create", "orders"]);
    broker.ok(&["topic", "create", "tmp#ephemeral"]);
    let list = broker.ok(&["topic", "list"]);
    assert!(
        list.starts_with("TOPIC") && list.contains("orders"),
        "{list}"
    );
    assert!(
        broker
            .ok(&["topic", "describe", "tmp#ephemeral"])
            .contains("ephemeral")
    );
    broker.ok(&[
        "subscription",
        "create",
        "orders",
        "billing",
        "--attempts-max",
        "5",
    ]);
    broker.ok(&["subscription", "pause", "orders", "billing"]);
    let text = broker.ok(&["subscription", "describe", "orders", "billing"]);
    assert!(
        text.contains("at most 5") && text.contains("paused"),
        "{text}"
    );
    broker.ok(&["subscription", "unpause", "orders", "billing"]);
    broker.ok(&["subscription", "empty", "orders", "billing"]);
    assert!(broker.ok(&["subscription", "list"]).contains("billing"));
    assert_eq!(broker.ok(&["tail", "orders"]), "");
    broker.ok(&["subscription", "delete", "orders", "billing"]);
    let kept = |topic| {
        let text = broker.ok(&["topic", "describe", topic]);
        let lines = text.lines().filter_map(|line| line.split_once("  "));
        let wanted = lines.filter(|(name, _)| matches!(*name, "kept" | "settings"));
        let told: Vec<_> = wanted.map(|(_, told)| told.trim().to_owned()).collect();
        told.join(" | ")
    };
    assert_eq!(kept("orders"), "for 7d");
    broker.ok(&["topic", "alter", "orders", "--retention", "forever"]);
    assert_eq!(kept("orders"), "for ever | retention.ms=-1");
    broker.ok(&["topic", "alter", "orders", "--retention", "consumed"]);
    let consumed = "until all subscriptions and groups have consumed it";
    assert_eq!(kept("orders"), consumed);
    let bytes = [
        "--config",
        "retention.bytes=1048576",
        "--config",
        "segment.ms=9000",
    ];
    broker.ok(&[
        &["topic", "alter", "orders", "--retention", "90m"],
        &bytes[..],
    ]
    .concat());
    assert_eq!(
        kept("orders"),
        "for 90m, up to 1.0 MiB a partition | \
         retention.bytes=1048576, retention.ms=5400000, segment.ms=9000"
    );
    let back = ["retention.bytes", "retention.ms", "segment.ms"].map(|it| ["--delete-config", it]);
    broker.ok(&[&["topic", "alter", "orders"], &back.concat()[..]].concat());
    assert_eq!(kept("orders"), "for 7d");
    let prices = [
        "topic",
        "create",
        "prices",
        "--config",
        "cleanup.policy=compact",
    ];
    broker.ok(&prices);
    let newest = "the newest message of each key, for ever | cleanup.policy=compact";
    assert_eq!(kept("prices"), newest);
    for (wrong, why) in [
        (
            ["alter", "orders", "--retention", "soon"],
            "`soon` is not a duration",
        ),
        (["alter", "orders", "--config", "no.such=1"], "no.such"),
        (["alter", "prices", "--retention", "consumed"], "compacted"),
        (
            ["create", "late", "--retention", "1x"],
            "`1x` is not a duration",
        ),
    ] {
        let output = broker.run(&[&["topic"], &wrong[..]].concat());
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(why), "{told}");
    }
    assert!(!broker.ok(&["topic", "list"]).contains("late"));
    broker.ok(&["topic", "delete", "orders"]);
    let output = broker.run(&["topic", "describe", "orders"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no topic orders"));
}

#[test]
fn wrong_configuration_is_explained() {
    let output = Command::new(BINARY)
        .args(["serve", "--durability", "disc"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("`disc` is not one of: protocol, disk, kernel"),
        "{text}"
    );
    let remote = ["serve", "--nsq-tcp-address", "0.0.0.0:4150"];
    let output = Command::new(BINARY).args(remote).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("--allow-anonymous-remote"), "{text}");
}

#[test]
fn without_a_broker_commands_say_so() {
    let output = Command::new(BINARY)
        .args(["topic", "list", "--admin", "127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("no broker answers at 127.0.0.1:1"), "{text}");
}
