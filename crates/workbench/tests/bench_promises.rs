//! The durability class in the titles of `cloverleaf bench` is the one that the broker promises.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use cloverleaf_bench::{
    Acks, Amount, Arrivals, BrokerPlace, Kind, PayloadKind, Plan, Promise, Stop, Target, Url,
    connect,
};
use serde_json::Value;

use crate::support::{BINARY, Broker};

fn plan(topic: &str, acks: Acks) -> Plan {
    Plan {
        run: 7,
        topic: topic.to_owned(),
        producers: 1,
        consumers: 1,
        size_bytes: 100,
        payload: PayloadKind::Random,
        amount: Amount::Messages(20),
        warm_up_s: 0.0,
        arrivals: Arrivals::Closed,
        batch_messages: 1,
        in_flight: 10,
        acks,
        partitions: 1,
        keys: 0,
        seed: 5,
    }
}

/// A broker in this durability mode.
fn broker(mode: &str) -> (Broker, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    (Broker::with(&data, &[("durability", mode)]), folder)
}

/// The class in the title of a producer of this kind.
fn class(url: &str, topic: &str, acks: Acks) -> Promise {
    let url: Url = url.parse().unwrap();
    let client = connect(&url).unwrap();
    let target = Target {
        connect: &*client,
        label: url.name(),
        url: url.to_string(),
        place: BrokerPlace::of(&url.addresses().unwrap()),
        keeps_topic: false,
    };
    let plan = plan(topic, acks);
    let outcome = target.measure(Kind::Produce, &plan, &Stop::default(), |_| {});
    let outcome = outcome.unwrap();
    assert!(outcome.is_good(), "{url} {:?}", outcome.cut);
    outcome.subject.promise
}

#[test]
fn a_class_is_that_of_the_brokers_mode() {
    for (mode, one, all) in [
        ("protocol", Promise::Kernel, Promise::Disk),
        ("kernel", Promise::Kernel, Promise::Kernel),
        ("disk", Promise::Disk, Promise::Disk),
    ] {
        let (broker, _folder) = broker(mode);
        let kafka = format!("kafka://{}", broker.address("kafka"));
        let amqp = format!("amqp://{}", broker.address("amqp"));
        for url in [&kafka, &amqp, &format!("{kafka}?client=raw")] {
            assert_eq!(class(url, "t", Acks::One), one, "{mode} {url}");
            assert_eq!(class(url, "t", Acks::All), all, "{mode} {url}");
            assert_eq!(class(url, "t", Acks::None), Promise::None, "{mode} {url}");
        }
        // The URL's setting counts more than the plan's.
        let by_url = |acks: &str| class(&format!("{kafka}?acks={acks}"), "t", Acks::One);
        assert_eq!((by_url("0"), by_url("all")), (Promise::None, all), "{mode}");
        let nsq = broker.nsq();
        assert_eq!(class(&nsq, "t2", Acks::All), one, "{mode} {nsq}");
        assert_eq!(class(&nsq, "t2#ephemeral", Acks::All), Promise::Memory);
        // A topic that is set to be synced is synced in every mode.
        let synced = format!("{kafka}?topic.flush.messages=1");
        assert_eq!(class(&synced, "synced", Acks::One), Promise::Disk, "{mode}");
    }
}

#[test]
fn a_queue_that_was_there_is_not_taken_for_another() {
    let (broker, _folder) = broker("protocol");
    let there = broker.address("amqp");
    for (name, is_durable) in [("durable", true), ("one", false), ("all", false)] {
        declare(there, name, is_durable);
    }
    let url = format!("amqp://{there}");
    assert_eq!(class(&url, "durable", Acks::All), Promise::Disk);
    assert_eq!(class(&url, "all", Acks::All), Promise::Configured);
    assert_eq!(class(&url, "one", Acks::One), Promise::Kernel);
}

/// Declares a queue on a connection of its own, which is closed afterwards.
fn declare(address: &str, name: &str, is_durable: bool) {
    let short = |text: &str| {
        let size = u8::try_from(text.len()).unwrap();
        [&[size], text.as_bytes()].concat()
    };
    let login = b"\0guest\0guest";
    let start_ok = [
        // No properties of the client.
        &[0; 4],
        &short("PLAIN")[..],
        &u32::try_from(login.len()).unwrap().to_be_bytes(),
        login,
        &short("en_US"),
    ];
    // Frames of 4,096 bytes, no heartbeats.
    let tune_ok = [0, 8, 0, 0, 16, 0, 0, 0];
    let open = [&short("/")[..], &[0, 0]].concat();
    let durable = [u8::from(is_durable) << 1];
    let declare = [&[0, 0], &short(name)[..], &durable, &[0; 4]].concat();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
    hear(&mut stream, [10, 10]);
    say(&mut stream, 0, [10, 11], &start_ok.concat());
    hear(&mut stream, [10, 30]);
    say(&mut stream, 0, [10, 31], &tune_ok);
    say(&mut stream, 0, [10, 40], &open);
    hear(&mut stream, [10, 41]);
    say(&mut stream, 1, [20, 10], &[0]);
    hear(&mut stream, [20, 11]);
    say(&mut stream, 1, [50, 10], &declare);
    hear(&mut stream, [50, 11]);
}

/// Sends the method with this class id and method id.
fn say(stream: &mut TcpStream, channel: u8, [class, method]: [u8; 2], arguments: &[u8]) {
    let payload = [&[0, class, 0, method], arguments].concat();
    let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let frame = [&[1, 0, channel], &size[..], &payload, b"\xce"].concat();
    stream.write_all(&frame).unwrap();
}

/// Waits for a method.
fn hear(stream: &mut TcpStream, [class, method]: [u8; 2]) {
    let mut head = [0; 7];
    stream.read_exact(&mut head).unwrap();
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut payload = vec![0; size as usize + 1];
    stream.read_exact(&mut payload).unwrap();
    assert_eq!(payload[..4], [0, class, 0, method]);
}

/// The title of a producer, and its only run.
fn titled(url: &str, more: &[&str]) -> (String, Value) {
    let run = |format: &str| {
        let args = [
            "bench",
            "producer",
            "--count=20",
            "--warm-up=0",
            format,
            url,
        ];
        let output = Command::new(BINARY).args(args).args(more).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{url} {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = run("--quiet");
    let mut report: Value = serde_json::from_str(&run("--json")).unwrap();
    let title = table.lines().next().unwrap().to_owned();
    (title, report["rows"][0]["runs"][0].take())
}

#[test]
fn titles_of_embedded_brokers_know_what_their_urls_say() {
    for (url, acks, expected) in [
        ("embedded:kafka?acks=0", "one", "no acks"),
        ("embedded:kafka?acks=all", "one", "disk"),
        ("embedded:kafka?durability=kernel", "all", "kernel"),
        ("embedded:amqp?durability=kernel", "all", "kernel"),
        ("embedded:amqp?durability=disk", "one", "disk"),
        ("embedded:nsq?durability=disk", "one", "disk"),
        ("embedded:nsq", "all", "kernel"),
    ] {
        let (title, run) = titled(&format!("--url={url}"), &["--acks", acks]);
        let expected_title = format!("Publishing · durability: {expected}");
        assert_eq!(title, expected_title, "{url}");
        assert_eq!(run["durability"], expected, "{url}");
        assert_eq!(run["durability_is_claimed"], false, "{url}");
    }
}

#[test]
fn what_a_user_claims_is_marked_and_needs_answers() {
    let (broker, _folder) = broker("protocol");
    let there = broker.address("amqp");
    let url = format!("--url=amqp://{there}?durability=disk");
    let (title, run) = titled(&url, &["--acks=one"]);
    assert_eq!(title, "Publishing · durability: disk (claimed)");
    assert_eq!(run["durability_is_claimed"], true);
    let (title, _) = titled(&url, &["--acks=none"]);
    assert_eq!(title, "Publishing · durability: no acks");
}
