//! The doctor and a Kafka client that connects again for each message, with a client ID that has
//! control characters.

use std::net::TcpStream;
use std::time::Duration;

use crate::kafka_support::{
    Broker, METADATA, PRODUCE, connect, produce_body, start_driven, string,
};
use crate::support::Time;
use cloverleaf_doctor::{Detail, Query, Report, Rule, findings_text, one_line};

const NAME: &str = "\u{1b}]0;gotcha\u{7}\u{1b}[2J\u{9b}31m\r\nfake line\u{202e}\u{2066}";

fn ask(stream: &mut TcpStream, key: i16, version: i16, body: &[u8]) {
    use std::io::{Read, Write};

    let mut request = Vec::new();
    request.extend_from_slice(&key.to_be_bytes());
    request.extend_from_slice(&version.to_be_bytes());
    request.extend_from_slice(&7i32.to_be_bytes());
    string(&mut request, &format!("{NAME}{}", "x".repeat(30_000)));
    request.extend_from_slice(body);
    let size = (request.len() as i32).to_be_bytes();
    stream.write_all(&[&size[..], &request].concat()).unwrap();
    let mut size = [0; 4];
    stream.read_exact(&mut size).unwrap();
    let mut answer = vec![0; i32::from_be_bytes(size) as usize];
    stream.read_exact(&mut answer).unwrap();
}

/// A connection for one message, from a program that takes 20 ms for it.
fn publish(broker: &Broker, time: &mut Time) {
    let mut stream = connect(broker.address());
    ask(&mut stream, METADATA, 1, &0i32.to_be_bytes());
    time.pass(Duration::from_millis(20));
    ask(&mut stream, PRODUCE, 3, &produce_body("orders", 1, &[b"x"]));
}

#[test]
fn a_hostile_client_id_is_escaped_everywhere() {
    let (broker, mut time) = start_driven(|_| ());
    broker.client().make_topic("orders");
    let report = loop {
        for _ in 0..50 {
            publish(&broker, &mut time);
        }
        time.settle();
        broker.server.check();
        let report = broker.server.doctor(&Query::default());
        if !report.findings.is_empty() {
            break report;
        }
        assert!(report.watched_us < 60_000_000, "no finding: {report:?}");
    };
    let [finding] = &report.findings[..] else {
        panic!("one finding is expected: {report:?}");
    };
    assert_eq!(finding.rule, Rule::Churn);
    assert!(finding.client.client_id.starts_with("\u{1b}]0;gotcha"));
    assert!(finding.client.client_id.len() <= 128, "names are cut off");
    let is_bad =
        |it: char| (it.is_control() && it != '\n') || ['\u{202e}', '\u{2066}'].contains(&it);
    let text = findings_text(&report, 80, false, Detail::Full);
    assert!(!text.contains(is_bad), "{text:?}");
    assert!(
        text.lines().all(|line| !line.starts_with("fake line")),
        "{text}"
    );
    let line = one_line(finding);
    assert!(!line.contains(is_bad) && !line.contains('\n'), "{line:?}");
    // Programs get the name unchanged.
    let answer = broker.admin("/api/doctor?client=gotcha");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let told: Report = serde_json::from_str(body).unwrap();
    assert_eq!(told.findings[0].client, finding.client);
}
