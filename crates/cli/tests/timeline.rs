//! `cloverleaf timeline`, run as a user runs it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::support::Broker;
use serde_json::Value;

/// A consumer that holds one message, and the producer that has published it.
fn hold_one(broker: &Broker) -> TcpStream {
    let mut socket = TcpStream::connect(broker.nsq_tcp()).unwrap();
    socket
        .write_all(b"  V2SUB orders billing\nRDY 5\n")
        .unwrap();
    let mut frame = [0; 10];
    socket.read_exact(&mut frame).unwrap();
    assert_eq!(&frame[8..], b"OK");
    let mut producer = TcpStream::connect(broker.nsq_tcp()).unwrap();
    producer
        .write_all(b"  V2PUB orders\n\0\0\0\x04body")
        .unwrap();
    producer.read_exact(&mut frame).unwrap();
    assert_eq!(&frame[8..], b"OK");
    let mut head = [0; 4];
    socket.read_exact(&mut head).unwrap();
    let mut message = vec![0; u32::from_be_bytes(head) as usize];
    socket.read_exact(&mut message).unwrap();
    socket
}

#[test]
fn a_picture_and_a_page_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Broker::start(&folder.path().join("data"));
    let consumer = hold_one(&broker);
    let args = |more: &[&str]| {
        let args = [&["timeline", "--topic", "orders", "--last", "20s"], more].concat();
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run = |broker: &Broker, more: &[&str]| {
        let args = args(more);
        broker.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, begins) in [("t.svg", "<svg"), ("t.html", "<!DOCTYPE html>")] {
        let output = run(&broker, &["--out", &at(name)]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && said.contains("2 lanes, 2 bars"),
            "{said}"
        );
        let text = std::fs::read_to_string(at(name)).unwrap();
        assert!(text.starts_with(begins));
        for part in [
            "orders",
            "billing",
            "in flight for",
            "credit 5",
            "Producers",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let output = run(&broker, &["--json", "--subscription", "billing"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let hold = &answer["topics"][0]["subscriptions"][0]["consumers"][0]["holds"][0];
    assert_eq!(
        (&hold["outcome"], &hold["count"]),
        (&"held".into(), &1.into())
    );
    for (more, what) in [
        (&["--out", "t.png"][..], ".svg or .html"),
        (&["--out", &at("none/t.svg")], "cannot write"),
        (
            &["--out", &at("u.svg"), "--subscription", "none"],
            "no subscription",
        ),
        (&[], "--out"),
    ] {
        let output = run(&broker, more);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(what), "{said}");
    }
    assert!(!Path::new(&at("u.svg")).exists());
    drop(consumer);
    assert!(broker.terminate());
    let output = run(&broker, &["--out", &at("u.svg")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("no broker answers"),
        "{said}"
    );
}
