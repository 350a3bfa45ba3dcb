//! `cloverleaf bench` and a broker that is connected and no longer answers.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cloverleaf_bench::{
    Acks, Amount, Arrivals, BrokerPlace, Kind, PayloadKind, Plan, Stop, Target, Url, connect,
};

use crate::support::{BINARY, Broker};

/// How long a silent broker is waited for. Users wait for longer, because a broker may come back.
const SILENCE: Duration = Duration::from_millis(200);

/// Messages that the broker has answered before it falls silent.
const PRODUCED_MIN: u64 = 100;

/// Measures, and lets the broker sleep as soon as it has answered some messages.
fn falls_silent(protocol: &str, options: &str, kind: Kind, arrivals: Arrivals) {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path());
    let address = broker.address(protocol);
    let text = format!("{protocol}://{address}{options}");
    let url: Url = text.parse().unwrap();
    let client = connect(&url).unwrap();
    let target = Target {
        connect: &*client,
        label: "it".to_owned(),
        url: url.to_string(),
        place: BrokerPlace::Elsewhere,
        keeps_topic: true,
    };
    let plan = Plan {
        run: 7,
        topic: "silent".to_owned(),
        producers: 2,
        consumers: 2,
        size_bytes: 200,
        payload: PayloadKind::Random,
        // Longer than any machine takes until the broker is silent.
        amount: Amount::Seconds(3_600.0),
        warm_up_s: 0.0,
        arrivals,
        batch_messages: 10,
        in_flight: 100,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 5,
    };
    let (mut produced, mut is_asleep, stop) = (0, false, Stop::default());
    let outcome = target.measure(kind, &plan, &stop, |progress| {
        produced += progress.produced.messages;
        if produced > PRODUCED_MIN && !is_asleep {
            is_asleep = true;
            broker.signal("-STOP");
            stop.give_up_after(SILENCE);
        }
    });
    let outcome = outcome.unwrap();
    let what = format!("{text} {kind:?} {arrivals:?}");
    assert!(is_asleep, "{what}: something was measured");
    let cut = outcome.cut.clone().expect(&what);
    assert!(cut.starts_with(&url.to_string()), "{what}: {cut}");
    assert!(
        cut.contains("answered nothing for 30 seconds"),
        "{what}: {cut}"
    );
    assert!(!outcome.is_good(), "{what}");
    let produced = outcome.produced.unwrap();
    assert!(produced.messages > PRODUCED_MIN, "{what}");
    assert!(produced.errors > 0, "{what}: some were not answered");
    let lost = outcome.findings.map_or(0, |findings| findings.lost);
    assert_eq!(lost, 0, "{what}: nobody knows whether it is lost");
}

#[test]
fn a_measurement_of_a_broker_that_falls_silent_ends() {
    let open = Arrivals::Constant { rate: 1_000.0 };
    thread::scope(|scope| {
        for (protocol, options) in [
            ("nsq", ""),
            ("kafka", ""),
            ("kafka", "?client=raw"),
            ("amqp", ""),
            ("amqp", "?client=raw"),
        ] {
            scope.spawn(move || falls_silent(protocol, options, Kind::Produce, open));
            let closed = Arrivals::Closed;
            scope.spawn(move || falls_silent(protocol, options, Kind::EndToEnd, closed));
        }
    });
}

#[test]
fn an_interrupt_ends_a_measurement_that_a_peer_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (published, has_published) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, published) = (stream.unwrap(), published.clone());
            thread::spawn(move || {
                // The answer to IDENTIFY.
                stream.write_all(b"\0\0\0\x06\0\0\0\0OK").unwrap();
                let (mut bytes, mut all) = ([0; 4096], Vec::new());
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    all.extend_from_slice(&bytes[..read]);
                    if all.windows(4).any(|it| it == b"PUB ") {
                        // The test may have seen one already.
                        let _ = published.send(());
                        all.clear();
                    }
                }
            });
        }
    });
    let url = format!("--url=nsq://{address}?http=127.0.0.1:1");
    let child = Command::new(BINARY)
        .args(["bench", "producer", "--duration=10m", "--warm-up=0", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    has_published.recv().unwrap();
    let pid = child.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no answer came"), "{said}");
}
