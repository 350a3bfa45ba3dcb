//! The doctor and Kafka's groups: members that have more than one connection each.

use std::net::TcpStream;
use std::time::Duration;

use crate::kafka_support::{
    Broker, Client, Fields, JOIN_GROUP, OFFSET_COMMIT, start_driven, string,
};
use crate::support::Time;
use cloverleaf_doctor::{Query, Rule};

const SYNC_GROUP: i16 = 14;

/// Subscription to `orders` as a consumer's metadata: version, topics, no user data.
const METADATA: &[u8] = b"\0\0\0\0\0\x01\0\x06orders\xff\xff\xff\xff";

/// Partition 0 of `orders` as an assignment.
const ASSIGNMENT: &[u8] = b"\0\0\0\0\0\x01\0\x06orders\0\0\0\x01\0\0\0\0\xff\xff\xff\xff";

/// How long a group waits for more members.
const REBALANCE_DELAY: Duration = Duration::from_secs(1);

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
fn group(broker: &Broker, time: &mut Time) -> [Member; 2] {
    let mut clients = [broker.client(), broker.client()];
    for client in &mut clients {
        // After its answer, the connection is known to be accepted: [`Time`] waits only for
        // accepted connections.
        client.api_versions();
        send_join(client);
    }
    // The delay starts again when the second member joins.
    time.pass(REBALANCE_DELAY);
    time.pass(REBALANCE_DELAY);
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
    let (broker, mut time) = start_driven(|config| {
        config.kafka.initial_rebalance_delay = REBALANCE_DELAY;
    });
    let mut producer = broker.client();
    producer.make_topic("orders");
    let [mut owner, _idle] = group(&broker, &mut time);
    let mut fetcher = broker.client();
    let bodies = vec![&b"an order"[..]; 20];
    let (mut published, mut done) = (0i64, 0i64);
    let mut since_look_ms = 0;
    let report = loop {
        // Twenty messages come, and five are processed.
        producer.produce("orders", 1, &bodies);
        published += 20;
        fetcher.fetch("orders", done, 1 << 10);
        done += 5;
        owner.commit(done);
        // The time of each job varies: a regular one would look like a timer's.
        let work_ms = 30 + published as u64 % 70;
        time.pass(Duration::from_millis(work_ms));
        since_look_ms += work_ms;
        if since_look_ms >= 1_000 {
            since_look_ms = 0;
            broker.server.check();
            let report = broker.server.doctor(&Query::default());
            if !report.findings.is_empty() {
                break report;
            }
            // The doctor needs two looks at the partitions, eight seconds apart; a minute is more
            // than enough.
            assert!(report.watched_us < 60_000_000, "no finding: {report:?}");
        }
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
