//! `cloverleaf bench` and a broker that is there and answers nothing any more.

use std::io::Read;
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cloverleaf_bench::{
    Acks, Amount, Arrivals, BrokerPlace, Kind, PayloadKind, Plan, Stop, Target, Url, connect,
};

use crate::support::{BINARY, Broker};

/// What is waited for an answer, the topic's removal, and a slow machine.
const BOUND: Duration = Duration::from_secs(110);

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
        // So long that a slow machine has produced some of it when the broker falls silent.
        amount: Amount::Seconds(20.0),
        warm_up_s: 0.0,
        arrivals,
        batch_messages: 10,
        in_flight: 100,
        acks: Acks::One,
        partitions: 1,
        keys: 0,
        seed: 5,
    };
    let (mut produced, mut stopped) = (0, None);
    let outcome = target.measure(kind, &plan, &Stop::default(), |progress| {
        produced += progress.produced.messages;
        if produced > PRODUCED_MIN {
            stopped.get_or_insert_with(|| {
                broker.signal("-STOP");
                Instant::now()
            });
        }
    });
    let outcome = outcome.unwrap();
    let took = stopped.expect("something was measured").elapsed();
    let what = format!("{text} {kind:?} {arrivals:?}, after {took:?}");
    assert!(took < BOUND, "{what}");
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
fn a_peer_that_never_answers_a_publish_ends_it_with_status_1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                // The answer to IDENTIFY.
                std::io::Write::write_all(&mut stream, b"\0\0\0\x06\0\0\0\0OK").unwrap();
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
            });
        }
    });
    let begun = Instant::now();
    let url = format!("nsq://{address}?http=127.0.0.1:1");
    let args = [
        "bench",
        "producer",
        "--duration=1s",
        "--warm-up=0",
        "--url",
        &url,
    ];
    let output = Command::new(BINARY).args(args).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).replace('\u{a0}', " ");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(begun.elapsed() < BOUND, "{said}");
    let expected = format!("nsq://{address} went away: it has answered nothing for 30 seconds");
    assert!(said.contains(&expected), "{said}");
}
