//! The doctor of a real broker: its findings about real connections, and where they are shown.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::nsq_support::{Answer, Broker, PATIENCE, eventually, exchange, start, start_driven};
use crate::support::Time;
use cloverleaf_doctor::{KnownClients, Query, Report, Rule};

/// A consumer that works on one message at a time.
struct Worker {
    stream: TcpStream,
    /// Ids of the messages that it has not finished.
    messages: VecDeque<Vec<u8>>,
}

impl Worker {
    fn start(broker: &Broker, identify: &str, ready: u32) -> Worker {
        let address = broker.server.addresses().of("nsq.tcp_address").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let size = u32::try_from(identify.len()).unwrap().to_be_bytes();
        let hello = [b"  V2IDENTIFY\n", &size[..], identify.as_bytes()].concat();
        stream.write_all(&hello).unwrap();
        write!(stream, "SUB jobs work\nRDY {ready}\n").unwrap();
        Worker {
            stream,
            messages: VecDeque::new(),
        }
    }

    /// Receives messages until it has `count` of them.
    fn receive(&mut self, count: usize) {
        while self.messages.len() < count {
            let mut size = [0; 4];
            self.stream.read_exact(&mut size).unwrap();
            let mut frame = vec![0; u32::from_be_bytes(size) as usize];
            self.stream.read_exact(&mut frame).unwrap();
            if frame[3] == 2 {
                self.messages.push_back(frame[14..30].to_vec());
            }
        }
    }

    /// Finishes the oldest message.
    fn finish(&mut self) {
        let id = self.messages.pop_front().expect("no finding");
        let command = [b"FIN ", &id[..], b"\n"].concat();
        self.stream.write_all(&command).unwrap();
    }
}

fn publish(broker: &Broker, count: usize) {
    let bodies = vec!["job"; count].join("\n");
    let answer = broker.post("/mpub?topic=jobs", bodies.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn admin(broker: &Broker, target: &str) -> Answer {
    let address = broker.server.addresses().of("admin_address").unwrap();
    let head = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    exchange(address, &[head.as_bytes()])
}

fn hoarder() -> &'static str {
    r#"{"client_id":"billing","user_agent":"go-nsq/1.1.0"}"#
}

/// One worker has taken 400 messages; another one has connected, and gets none.
fn play_hoarding(broker: &Broker, identify: &str) -> (Worker, Worker) {
    assert_eq!(broker.post("/topic/create?topic=jobs", b"").status, 200);
    assert_eq!(
        broker
            .post("/channel/create?topic=jobs&channel=work", b"")
            .status,
        200
    );
    let mut hoarder = Worker::start(broker, identify, 400);
    publish(broker, 400);
    hoarder.receive(400);
    let idle = Worker::start(
        broker,
        r#"{"client_id":"idle","user_agent":"pynsq/0.9.1"}"#,
        10,
    );
    (hoarder, idle)
}

/// Works on one message after the other, until there is a finding or no message is left.
fn work_until_found(broker: &Broker, time: &mut Time, hoarder: &mut Worker) -> Report {
    // An observation before any work, for the doctor to compare with.
    broker.server.check();
    let mut random = 1u64;
    for done in 1u64.. {
        // The time of each job is random: a regular one would look like a timer's.
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        time.pass(Duration::from_millis(40 + (random >> 33) % 20));
        hoarder.finish();
        time.settle();
        if done % 20 == 0 {
            broker.server.check();
            let report = broker.server.doctor(&Query::default());
            if !report.findings.is_empty() {
                return report;
            }
        }
    }
    unreachable!("the messages come to an end")
}

#[test]
fn a_hoarding_consumer_is_found_and_shown_everywhere() {
    let (broker, mut time) = start_driven(|_| ());
    let (mut hoarder, _idle) = play_hoarding(&broker, hoarder());
    let report = work_until_found(&broker, &mut time, &mut hoarder);
    let [finding] = &report.findings[..] else {
        panic!("one finding is expected: {report:?}");
    };
    assert_eq!(finding.rule, Rule::Hoarding);
    assert_eq!(
        (
            finding.client.library.as_str(),
            finding.client.version.as_str()
        ),
        ("go-nsq", "1.1.0")
    );
    assert_eq!(finding.client.client_id, "billing");
    assert_eq!(finding.topic.as_deref(), Some("jobs"));
    assert_eq!(finding.subscription.as_deref(), Some("work"));
    assert!(
        finding
            .changes
            .iter()
            .any(|change| change.setting.contains("MaxInFlight")),
        "{:?}",
        finding.changes
    );
    // These two, and the connection by which the test waits for the broker.
    assert_eq!(report.connections, 3);

    let told: Report = serde_json::from_str(&admin(&broker, "/api/doctor").body).unwrap();
    assert_eq!(told.findings[0].id, finding.id);
    let of_others = admin(&broker, "/api/doctor?client=pynsq&since=60");
    let of_others: Report = serde_json::from_str(&of_others.body).unwrap();
    assert_eq!(of_others.findings, []);
    let metrics = admin(&broker, "/metrics").body;
    for line in [
        "cloverleaf_doctor_findings{rule=\"hoarding\"} 1",
        "cloverleaf_doctor_findings_total{rule=\"hoarding\"} 1",
        "cloverleaf_doctor_findings{rule=\"nagle\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is missing in\n{metrics}");
    }
}

const OWN: &str = r#"
family = "own"
name = "our worker"
protocol = "nsq"

[[client]]
id = "own"
name = "our worker"
library = "our-worker"
source = "our own repository"

[[advice]]
rule = "hoarding"
setting = "WORKERS"
kind = "setting"
value = "{credit}"
say = "Take no more than it works on."
cost = "Nothing."
sources = ["https://example.org/worker"]
"#;

#[test]
fn own_advice_is_given_and_invalid_advice_prevents_the_start() {
    let advice = tempfile::tempdir().unwrap();
    std::fs::write(advice.path().join("own.toml"), OWN).unwrap();
    let (broker, mut time) = start_driven(|config| {
        config.general.doctor_advice_dir = Some(advice.path().to_owned());
    });
    let identify = r#"{"client_id":"billing","user_agent":"our-worker/3.1"}"#;
    let (mut hoarder, _idle) = play_hoarding(&broker, identify);
    let report = work_until_found(&broker, &mut time, &mut hoarder);
    let changes = &report.findings[0].changes;
    let settings = changes.iter().map(|change| change.setting.as_str());
    assert_eq!(settings.collect::<Vec<_>>(), ["WORKERS"]);
    assert_eq!(changes[0].value.as_deref(), Some("1"));

    std::fs::write(advice.path().join("own.toml"), "family = 7").unwrap();
    let mut config = cloverleaf_server::Config::default();
    config.general.data_dir = advice.path().join("data");
    config.general.doctor_advice_dir = Some(advice.path().to_owned());
    let error = cloverleaf_server::Server::start(config).err().unwrap();
    assert!(error.to_string().contains("own.toml"), "{error}");
}

#[test]
fn invalid_queries_are_refused() {
    let broker = start(|_| ());
    for query in ["?since=soon", "?since=-1", "?sinse=3"] {
        let answer = admin(&broker, &format!("/api/doctor{query}"));
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        assert!(answer.body.starts_with(r#"{"error":"#), "{}", answer.body);
    }
    let long = "x".repeat(2000);
    assert_eq!(
        admin(&broker, &format!("/api/doctor?client={long}")).status,
        400
    );
    let report: Report = serde_json::from_str(&admin(&broker, "/api/doctor").body).unwrap();
    assert_eq!(report.findings, []);
}

#[test]
fn each_client_has_its_advice_before_any_finding() {
    let broker = start(|_| ());
    assert_eq!(broker.post("/topic/create?topic=jobs", b"").status, 200);
    let _worker = Worker::start(&broker, hoarder(), 1);
    let known = || {
        let answer = admin(&broker, "/api/doctor/clients?client=billing");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str::<KnownClients>(&answer.body).unwrap()
    };
    eventually("the client is known", || known().clients.len() == 1);
    let client = &known().clients[0];
    assert_eq!(client.client.library, "go-nsq");
    assert_eq!(client.client.version, "1.1.0");
    let hoarding = client.advice.iter().find(|it| it.rule == Rule::Hoarding);
    assert_eq!(
        hoarding.unwrap().changes[0].setting,
        "AddConcurrentHandlers"
    );
    let none = admin(&broker, "/api/doctor/clients?client=nobody");
    assert_eq!(none.body, r#"{"clients":[],"more":0}"#);
    for query in [
        "?since=1".to_owned(),
        format!("?client={}", "x".repeat(2000)),
    ] {
        let answer = admin(&broker, &format!("/api/doctor/clients{query}"));
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
}
