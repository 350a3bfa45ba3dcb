//! The doctor and Kafka's groups: raw members with more connections than one.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::kafka_support::{Broker, Client, Fields, JOIN_GROUP, OFFSET_COMMIT, start, string};
use cloverleaf_doctor::{Query, Rule};

const SYNC_GROUP: i16 = 14;

/// Two looks at the partitions are eight seconds apart, and the first comes when the broker is as
/// old.
const PATIENCE: Duration = Duration::from_secs(60);

/// `orders` as a consumer's metadata: version, topics, no user data.
const METADATA: &[u8] = b"\0\0\0\0\0\x01\0\x06orders\xff\xff\xff\xff";

/// Partition 0 of `orders` as an assignment.
const ASSIGNMENT: &[u8] = b"\0\0\0\0\0\x01\0\x06orders\0\0\0\x01\0\0\0\0\xff\xff\xff\xff";

struct Member {
    client: Client<TcpStream>,
    id: String,
    generation: i32,
    is_leader: bool,
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn send_join(client: &mut Client<TcpStream>) {
    let mut body = Vec::new();
    string(&mut body, "billing");
    body.extend_from_slice(&120_000i32.to_be_bytes());
    string(&mut body, "");
    string(&mut body, "consumer");
    body.extend_from_slice(&1i32.to_be_bytes());
    string(&mut body, "range");
    bytes(&mut body, METADATA);
    let request = client.request(JOIN_GROUP, 0, &body);
    client.send(&request);
}

fn joined(mut client: Client<TcpStream>) -> Member {
    let answer = client.answer();
    let mut fields = Fields(&answer);
    assert_eq!(fields.i16(), 0);
    let generation = fields.i32();
    let _protocol = fields.string();
    let (leader, id) = (fields.string(), fields.string());
    Member {
        client,
        generation,
        is_leader: leader == id,
        id,
    }
}

/// Two members of the group `billing`, of which the first has the topic's only partition.
fn group(broker: &Broker) -> [Member; 2] {
    let mut clients = [broker.client(), broker.client()];
    clients.iter_mut().for_each(send_join);
    let mut members = clients.map(joined);
    members.sort_by_key(|member| !member.is_leader);
    let owner = members[0].id.clone();
    for member in &mut members {
        let mut body = Vec::new();
        string(&mut body, "billing");
        body.extend_from_slice(&member.generation.to_be_bytes());
        string(&mut body, &member.id);
        body.extend_from_slice(&i32::from(member.is_leader).to_be_bytes());
        if member.is_leader {
            string(&mut body, &owner);
            bytes(&mut body, ASSIGNMENT);
        }
        let request = member.client.request(SYNC_GROUP, 0, &body);
        member.client.send(&request);
    }
    for member in &mut members {
        assert_eq!(Fields(&member.client.answer()).i16(), 0);
    }
    members
}

/// Lets time pass on a connection on which nothing comes.
fn pause(client: &Client<TcpStream>, time: Duration) {
    client.stream.set_read_timeout(Some(time)).unwrap();
    let error = client.stream.peek(&mut [0]).unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

impl Member {
    fn commit(&mut self, offset: i64) {
        let mut body = Vec::new();
        string(&mut body, "billing");
        body.extend_from_slice(&self.generation.to_be_bytes());
        string(&mut body, &self.id);
        body.extend_from_slice(&(-1i64).to_be_bytes());
        body.extend_from_slice(&1i32.to_be_bytes());
        string(&mut body, "orders");
        body.extend_from_slice(&1i32.to_be_bytes());
        body.extend_from_slice(&0i32.to_be_bytes());
        body.extend_from_slice(&offset.to_be_bytes());
        body.extend_from_slice(&(-1i16).to_be_bytes());
        let answer = self.client.ask(OFFSET_COMMIT, 2, &body);
        assert_eq!(answer[answer.len() - 2..], [0, 0]);
    }
}

#[test]
fn a_group_with_fewer_partitions_than_members_is_found() {
    let broker = start(|config| {
        config.kafka.initial_rebalance_delay = Duration::from_secs(1);
    });
    let mut producer = broker.client();
    producer.make_topic("orders");
    let [mut owner, _idle] = group(&broker);
    let mut fetcher = broker.client();
    let bodies = vec![&b"an order"[..]; 20];
    let deadline = Instant::now() + PATIENCE;
    let (mut published, mut done) = (0i64, 0i64);
    let report = loop {
        // Twenty come, and five are done.
        producer.produce("orders", 1, &bodies);
        published += 20;
        fetcher.fetch("orders", done, 1 << 10);
        done += 5;
        owner.commit(done);
        let report = broker.server.doctor(&Query::default());
        if !report.findings.is_empty() {
            break report;
        }
        assert!(Instant::now() < deadline, "nothing is found: {report:?}");
        // Its work takes now longer, now less long: it is no timer.
        let work_ms = 30 + published as u64 % 70;
        pause(&fetcher, Duration::from_millis(work_ms));
    };
    assert!(done < published);
    let [finding] = &report.findings[..] else {
        panic!("one finding is expected: {report:?}");
    };
    assert_eq!(finding.rule, Rule::Partitions, "{finding:#?}");
    let place = (finding.topic.as_deref(), finding.subscription.as_deref());
    assert_eq!(place, (Some("orders"), Some("billing")));
    assert_eq!(finding.client.client_id, "raw");
    let fact = |name: &str| finding.evidence.iter().find(|fact| fact.name == name);
    assert_eq!(fact("partitions").map(|fact| fact.value), Some(1.0));
    assert!(fact("partitions").is_some_and(|fact| fact.text.contains("2 consumers")));
    // Two workers instead of one.
    let gain = finding.prediction.gain;
    assert!((1.9..=2.1).contains(&gain), "{gain}");
}
