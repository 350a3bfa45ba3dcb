//! The timeline over real sockets: each protocol's activity appears at its time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::kafka_support::Client;
use crate::nsq_support::{Broker, PATIENCE, eventually, exchange, start, start_driven};
use cloverleaf_server::TimelineQuery;
use cloverleaf_server::timeline_types::{
    ExchangeKind, HoldLane, HoldOutcome, Timeline, TopicTimeline,
};
use cloverleaf_telemetry::{ConnectionSnapshot, Protocol};

/// The duration of a job in these tests.
const JOB: Duration = Duration::from_millis(300);

fn ask(broker: &Broker, topics: &[&str]) -> Timeline {
    let query = TimelineQuery {
        topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
        ..TimelineQuery::default()
    };
    broker.server.timeline(&query).unwrap()
}

fn one(broker: &Broker, topic: &str) -> TopicTimeline {
    ask(broker, &[topic]).topics.remove(0)
}

struct Nsq(TcpStream);

impl Nsq {
    fn connect(broker: &Broker, name: &str) -> Nsq {
        let stream =
            TcpStream::connect(broker.server.addresses().of("nsq.tcp_address").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Nsq(stream);
        let identity = format!("{{\"client_id\":\"{name}\",\"user_agent\":\"go-nsq/1.1.0\"}}");
        let size = (identity.len() as u32).to_be_bytes();
        let hello = [b"  V2IDENTIFY\n", &size[..], identity.as_bytes()].concat();
        client.0.write_all(&hello).unwrap();
        client.frame();
        client
    }

    fn frame(&mut self) -> Vec<u8> {
        let mut head = [0; 8];
        self.0.read_exact(&mut head).unwrap();
        let size = u32::from_be_bytes(head[..4].try_into().unwrap());
        let mut body = vec![0; size as usize - 4];
        self.0.read_exact(&mut body).unwrap();
        body
    }

    fn subscribe(&mut self, topic: &str, channel: &str, ready: u32) {
        let text = format!("SUB {topic} {channel}\nRDY {ready}\n");
        self.0.write_all(text.as_bytes()).unwrap();
        assert_eq!(self.frame(), b"OK");
    }

    fn publish(&mut self, topic: &str, body: &[u8]) {
        let size = (body.len() as u32).to_be_bytes();
        let command = [format!("PUB {topic}\n").as_bytes(), &size, body].concat();
        self.0.write_all(&command).unwrap();
        assert_eq!(self.frame(), b"OK");
    }

    /// The id of the next message.
    fn message(&mut self) -> Vec<u8> {
        self.frame()[10..26].to_vec()
    }

    fn say(&mut self, command: &str, id: &[u8], rest: &str) {
        let line = [command.as_bytes(), b" ", id, rest.as_bytes(), b"\n"].concat();
        self.0.write_all(&line).unwrap();
    }
}

fn lane<'t>(topic: &'t TopicTimeline, client: &str) -> &'t HoldLane {
    let mut lanes = topic.subscriptions[0].consumers.iter();
    lanes.find(|lane| lane.owner.client_id == client).unwrap()
}

/// Two queues: one consumer has all jobs and does them one by one, another one gets none.
#[test]
fn a_hoarder_is_seen_in_both_queues() {
    let (broker, mut time) = start_driven(|_| {});
    let mut hoarder = Nsq::connect(&broker, "hoarder");
    hoarder.subscribe("external", "jobs", 50);
    let mut producer = Nsq::connect(&broker, "shop");
    for _ in 0..3 {
        producer.publish("external", b"job");
    }
    let ids: Vec<_> = (0..3).map(|_| hoarder.message()).collect();
    let mut idle = Nsq::connect(&broker, "idle");
    idle.subscribe("external", "jobs", 50);
    let mut second = Nsq::connect(&broker, "second");
    second.subscribe("internal", "jobs", 1);
    let mut passed = Nsq::connect(&broker, "hoarder-out");
    for (done, id) in (1..).zip(&ids) {
        time.pass(JOB);
        passed.publish("internal", b"child");
        hoarder.say("FIN", id, "");
        eventually("the FIN has come", || {
            let topic = one(&broker, "external");
            let held = lane(&topic, "hoarder").holds.iter();
            held.filter(|it| it.outcome == HoldOutcome::Acked).count() == done
        });
    }
    let child = second.message();
    let timeline = ask(&broker, &["external", "internal"]);
    let [external, internal] = &timeline.topics[..] else {
        panic!("{timeline:?}");
    };

    let hoarded = lane(external, "hoarder");
    assert_eq!(
        (hoarded.window, hoarded.owner.library.as_str()),
        (50, "go-nsq 1.1.0")
    );
    assert_eq!(lane(external, "idle").holds, []);
    let job_us = JOB.as_micros() as u64;
    for (place, hold) in (1u64..).zip(&hoarded.holds) {
        let held_us = hold.ended_us - hold.delivered_us;
        assert_eq!(held_us, place * job_us, "{hoarded:#?}");
        assert_eq!((hold.count, hold.attempts), (1, 1));
    }
    let firsts: Vec<_> = hoarded.holds.iter().map(|hold| hold.first).collect();
    assert_eq!(firsts, [0, 1, 2]);
    for pair in hoarded.holds.windows(2) {
        // They were in flight together, and ended one job apart.
        assert!(pair[1].delivered_us < pair[0].ended_us);
        assert_eq!(pair[1].ended_us - pair[0].ended_us, job_us);
    }

    let producer = &external.producers[0];
    assert_eq!(
        (external.producers.len(), &*producer.owner.client_id),
        (1, "shop")
    );
    assert_eq!(producer.exchanges.len(), 3);
    for exchange in &producer.exchanges {
        let answered_us = exchange.answered_us.unwrap();
        assert!(exchange.requested_us <= exchange.received_us);
        assert!(exchange.received_us <= answered_us);
        assert_eq!(
            (exchange.messages, exchange.kind),
            (1, ExchangeKind::Publish)
        );
    }
    // By either clock, no message is delivered before it was published.
    let asked = producer.exchanges.iter().map(|it| it.requested_us);
    assert!(
        asked
            .zip(&hoarded.holds)
            .all(|(at, hold)| at <= hold.delivered_us)
    );

    // In the other topic, there is a gap of one job between the publishes, and a wait in the queue.
    let out = &internal.producers[0].exchanges;
    assert_eq!(out[1].requested_us - out[0].answered_us.unwrap(), job_us);
    second.say("FIN", &child, "");
    second.message();
    let topic = one(&broker, "internal");
    let held = lane(&topic, "second").holds.iter();
    let waited = held.map(|it| it.delivered_us - it.waiting_since_us.unwrap());
    // The last message came when the first job ended, and was delivered when the last one did.
    assert_eq!(waited.max(), Some(job_us));
}

#[test]
fn redeliveries_wait_since_the_last_delivery_ended() {
    let (broker, mut time) = start_driven(|_| {});
    let mut client = Nsq::connect(&broker, "again");
    client.subscribe("t", "c", 1);
    client.publish_delayed(b"body");
    time.pass(Duration::from_millis(20));
    let id = client.message();
    client.say("REQ", &id, " 150");
    time.pass(Duration::from_millis(150));
    let id = client.message();
    time.pass(Duration::from_millis(20));
    drop(client);
    eventually("it is requeued", || {
        one(&broker, "t").subscriptions[0].depth == 1
    });
    let topic = one(&broker, "t");
    let lane = lane(&topic, "again");
    assert!(!lane.owner.is_open);
    let [first, second] = &lane.holds[..] else {
        panic!("{lane:#?}");
    };
    assert_eq!((first.outcome, first.attempts), (HoldOutcome::Nacked, 1));
    assert_eq!((second.outcome, second.attempts), (HoldOutcome::Left, 2));
    assert_eq!(second.waiting_since_us, Some(first.ended_us));
    assert_eq!(second.delivered_us - first.ended_us, 150_000);
    assert_eq!(id.len(), 16);
}

impl Nsq {
    /// Publishes to `t` with a delay, so that the answer comes before the message.
    fn publish_delayed(&mut self, body: &[u8]) {
        let size = (body.len() as u32).to_be_bytes();
        let command = [&b"DPUB t 20\n"[..], &size, body].concat();
        self.0.write_all(&command).unwrap();
        assert_eq!(self.frame(), b"OK");
    }
}

#[test]
fn publishes_over_http_have_a_lane_of_their_connection() {
    let (broker, mut time) = start_driven(|_| {});
    let mut stream = TcpStream::connect(broker.http()).unwrap();
    let mut ask = |target: &str, body: &str| {
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: python-requests/2.32.3\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        // Head and body in two pieces, as many libraries write them.
        stream.write_all(head.as_bytes()).unwrap();
        time.pass(JOB);
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = [0; 4096];
        let count = stream.read(&mut answer).unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 "));
        answer[9..12].to_vec()
    };
    assert_eq!(ask("/pub?topic=orders", "one"), b"200");
    assert_eq!(ask("/mpub?topic=orders", "two\nthree\nfour"), b"200");
    assert_eq!(ask("/pub?topic=+", "refused"), b"400");
    assert_eq!(ask("/topic/create?topic=other", ""), b"200");
    eventually("the last answer is known", || {
        http(&broker)[0].counters.responses == 4
    });
    let connections = http(&broker);
    let [connection] = &connections[..] else {
        panic!("{connections:#?}");
    };
    let (identity, counters) = (&connection.identity, &connection.counters);
    assert_eq!(
        (identity.library.as_str(), identity.version.as_str()),
        ("python-requests", "2.32.3")
    );
    assert_eq!((counters.requests, counters.publishes), (4, 2));
    assert_eq!((counters.messages_in, counters.errors), (4, 1));
    assert_eq!(counters.published_bytes, 3 + 14);
    let topic = one(&broker, "orders");
    let [producer] = &topic.producers[..] else {
        panic!("{topic:#?}");
    };
    assert_eq!(producer.owner.library, "python-requests 2.32.3");
    let job_us = JOB.as_micros() as u64;
    let messages: Vec<_> = producer.exchanges.iter().map(|it| it.messages).collect();
    assert_eq!(messages, [1, 3]);
    for exchange in &producer.exchanges {
        let received_us = exchange.received_us - exchange.requested_us;
        assert_eq!(received_us, job_us, "{exchange:#?}");
        assert!(exchange.answered_us >= Some(exchange.received_us));
    }
    // The doctor does not watch connections to the admin interface.
    let admin = broker.server.addresses().of("admin_address").unwrap();
    assert_eq!(
        crate::nsq_support::request(admin, "GET", "/healthz", b"").status,
        200
    );
    let totals = broker
        .server
        .context()
        .registry
        .snapshot(1, |_| None)
        .totals;
    let mut of_http = totals.iter().filter(|it| it.protocol == Protocol::Http);
    assert_eq!(of_http.next().unwrap().connections_opened, 1);
    drop(stream);
    eventually("it is closed", || http(&broker).is_empty());
}

/// The connections over HTTP.
fn http(broker: &Broker) -> Vec<ConnectionSnapshot> {
    let snapshot = broker.server.context().registry.snapshot(1, |_| None);
    let mut connections = snapshot.connections;
    connections.retain(|it| it.protocol == Protocol::Http);
    connections
}

#[test]
fn a_request_with_expect_100_begins_with_its_body() {
    let (broker, mut time) = start_driven(|_| {});
    let mut stream = TcpStream::connect(broker.http()).unwrap();
    let head = "POST /pub?topic=orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\
                Expect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 100 "));
    time.pass(JOB);
    stream.write_all(b"one").unwrap();
    let count = stream.read(&mut answer).unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 200 "));
    eventually("its answer is known", || {
        let topic = one(&broker, "orders");
        topic.producers[0].exchanges[0].answered_us.is_some()
    });
    let topic = one(&broker, "orders");
    let exchange = &topic.producers[0].exchanges[0];
    assert_eq!(exchange.received_us, exchange.requested_us, "{exchange:#?}");
}

#[test]
fn a_kafka_reader_shows_requests_answers_and_commits() {
    let broker = start(|_| {});
    let address = broker.server.addresses().of("kafka.address").unwrap();
    let mut client = Client::new(crate::kafka_support::connect(address));
    client.make_topic("orders");
    client.produce("orders", 1, &[b"a", b"b", b"c"]);
    let (error, _) = client.fetch("orders", 0, 1 << 20);
    assert_eq!(error, 0);
    commit(&mut client, "billing", "orders", 3);
    let topic = one(&broker, "orders");
    let [producer] = &topic.producers[..] else {
        panic!("{topic:#?}");
    };
    assert_eq!(producer.exchanges[0].messages, 3);
    let [reader] = &topic.readers[..] else {
        panic!("{topic:#?}");
    };
    assert_eq!(reader.group.as_deref(), Some("billing"));
    let [fetch, commit] = &reader.exchanges[..] else {
        panic!("{reader:#?}");
    };
    assert_eq!(
        (fetch.kind, fetch.messages, fetch.offset),
        (ExchangeKind::Fetch, 3, 0)
    );
    assert!(fetch.answered_us.unwrap() >= fetch.requested_us);
    assert_eq!((commit.kind, commit.offset), (ExchangeKind::Commit, 3));
    assert!(commit.requested_us >= fetch.requested_us);
    // With a group in the query, only readers of that group are shown.
    let query = |name: &str| TimelineQuery {
        topics: vec!["orders".to_owned()],
        subscriptions: vec![name.to_owned()],
        last: None,
    };
    let asked = broker.server.timeline(&query("billing")).unwrap();
    assert_eq!(asked.topics[0].readers.len(), 1);
    assert!(broker.server.timeline(&query("shipping")).is_err());
}

/// OffsetCommit version 2 from a client that is not a member.
fn commit(client: &mut Client<TcpStream>, group: &str, topic: &str, offset: i64) {
    let mut body = Vec::new();
    crate::kafka_support::string(&mut body, group);
    body.extend((-1i32).to_be_bytes());
    crate::kafka_support::string(&mut body, "");
    body.extend((-1i64).to_be_bytes());
    body.extend(1i32.to_be_bytes());
    crate::kafka_support::string(&mut body, topic);
    body.extend(1i32.to_be_bytes());
    body.extend(0i32.to_be_bytes());
    body.extend(offset.to_be_bytes());
    crate::kafka_support::string(&mut body, "");
    let answer = client.ask(8, 2, &body);
    assert_eq!(&answer[answer.len() - 2..], [0, 0], "{answer:?}");
}

#[test]
fn the_admin_interface_answers_and_explains_errors() {
    let broker = start(|_| {});
    Nsq::connect(&broker, "shop").publish("orders", b"body");
    let admin = broker.server.addresses().of("admin_address").unwrap();
    let get = |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        exchange(admin, &[head.as_bytes()])
    };
    let answer = get("/api/timeline?topic=orders&last=2.5");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let timeline: Timeline = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(timeline.until_us - timeline.from_us, 2_500_000);
    // Its connection is closed, and still shown.
    assert_eq!(timeline.topics[0].producers.len(), 1);
    for (path, status, what) in [
        ("/api/timeline", 400, "topic"),
        ("/api/timeline?topic=none", 404, "none"),
        ("/api/timeline?topic=orders&subscription=none", 404, "none"),
        ("/api/timeline?topic=orders&last=never", 400, "seconds"),
        ("/api/timeline?topic=orders&last=-1", 400, "seconds"),
        ("/api/timeline?topic=orders&lats=1", 400, "lats"),
    ] {
        let answer = get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.contains(what), "{path}: {}", answer.body);
    }
    let answer = get("/api/timeline?topic=orders&last=86400");
    let timeline: Timeline = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(timeline.until_us - timeline.from_us, 900_000_000);
    assert!(
        timeline.notes[0].contains("15 minutes"),
        "{:?}",
        timeline.notes
    );
}
