//! The state of AMQP and Kafka clients at the kill of an older broker: today's broker restores it.
//!
//! The release build of commit 457260f, the last one before topics had a namespace, wrote the
//! folder `busy-2-hosts.pack` within three seconds. A program with pika 1.4 declared exchanges,
//! queues and bindings and published persistent messages with confirms; its consumer had seven
//! messages of `work` unacknowledged when the broker was killed (two were acknowledged, two
//! rejected). A program with confluent-kafka 2.16 had four kinds of groups: with a member, with a
//! static member, without members any more, and with offsets that an admin tool had set. Both
//! published to `busy.amqp` and `busy.kafka` until the kill, and the second program committed the
//! offset up to which it knew `busy.kafka` to be stored.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cloverleaf_broker::ManualClock;
use cloverleaf_log::{Disk, RealDisk};
use cloverleaf_server::{Config, Server};
use serde_json::Value;

use crate::kafka_support::{Client, Fields, connect, string};
use crate::nsq_support::request;
use crate::pack::unpack;
use crate::support::{config, eventually};
use crate::{amqp_support as amqp, kafka_support as kafka};

/// Some seconds after the kill, in milliseconds since the Unix epoch.
const STARTED_MS: u64 = 1_795_548_040_000;
const HOUR: Duration = Duration::from_secs(3600);
const OFFSET_FETCH: i16 = 9;

struct Broker {
    server: Server,
    clock: Arc<ManualClock>,
}

impl Broker {
    fn start(config: Config) -> Broker {
        let clock = Arc::new(ManualClock::new(STARTED_MS));
        let server = Server::start_with(config, clock.clone(), None).unwrap();
        Broker { server, clock }
    }

    fn amqp(&self) -> amqp::Client<TcpStream> {
        let socket = connect(self.server.addresses().of("amqp.address").unwrap());
        let mut client = amqp::Client::login(socket, "guest", "guest");
        client.open();
        client
    }

    fn kafka(&self) -> Client<TcpStream> {
        Client::new(connect(
            self.server.addresses().of("kafka.address").unwrap(),
        ))
    }

    fn admin(&self, target: &str) -> Vec<Value> {
        let address = self.server.addresses().of("admin_address").unwrap();
        let answer = request(address, "GET", target, b"");
        assert_eq!(answer.status, 200, "{target}");
        serde_json::from_str(&answer.body).unwrap()
    }

    /// A line for each item that the admin interface lists, with these fields of it.
    fn lines(&self, target: &str, fields: &[&str]) -> Vec<String> {
        let line = |thing: &Value| {
            let field = |name: &&str| match &thing[*name] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            fields.iter().map(field).collect::<Vec<_>>().join(" ")
        };
        self.admin(target).iter().map(line).collect()
    }
}

/// A group's committed offsets and metadata for a topic's partitions from 0 on.
fn committed<S: Read + Write>(
    client: &mut Client<S>,
    group: &str,
    topic: &str,
    partitions: i32,
) -> Vec<(i64, String)> {
    let mut body = Vec::new();
    string(&mut body, group);
    body.extend_from_slice(&1i32.to_be_bytes());
    string(&mut body, topic);
    body.extend_from_slice(&partitions.to_be_bytes());
    (0..partitions).for_each(|partition| body.extend_from_slice(&partition.to_be_bytes()));
    let answer = client.ask(OFFSET_FETCH, 1, &body);
    let mut fields = Fields(&answer);
    assert_eq!((fields.i32(), fields.string().as_str()), (1, topic));
    assert_eq!(fields.i32(), partitions);
    let one = |partition| {
        assert_eq!(fields.i32(), partition);
        let committed = (fields.i64(), fields.string());
        assert_eq!(fields.i16(), 0);
        committed
    };
    (0..partitions).map(one).collect()
}

const QUEUES: [&str; 8] = [
    r"busy.amqp classic {} 329",
    r"dead classic {} 2",
    r"kind classic {} 1",
    concat!(
        r#"one quorum {"x-delivery-limit":3,"x-queue-type":"quorum","#,
        r#""x-single-active-consumer":true} 7"#
    ),
    r"strays classic {} 1",
    r"tomorrow classic {} 1",
    r#"urgent classic {"x-max-priority":3} 6"#,
    concat!(
        r#"work classic {"x-dead-letter-exchange":"graves","x-dead-letter-routing-key":"dead","#,
        r#""x-max-length":1000,"x-message-ttl":3600000} 7"#
    ),
];

const EXCHANGES: [&str; 7] = [
    "all fanout false {}",
    "graves direct false {}",
    "kinds headers false {}",
    r#"later x-delayed-message false {"x-delayed-type":"topic"}"#,
    r#"orders direct false {"alternate-exchange":"spare"}"#,
    "prices topic false {}",
    "spare fanout true {}",
];

const BINDINGS: [&str; 8] = [
    "all queue one one {}",
    "graves queue dead dead {}",
    r#"kinds queue kind kind {"colour":"red","size":3,"x-match":"all"}"#,
    "later queue tomorrow a.* {}",
    "orders queue work new {}",
    "prices exchange all # {}",
    "prices queue urgent eur.* {}",
    "spare queue strays strays {}",
];

/// The groups: name, state, number of members, topics.
const GROUPS: [&str; 5] = [
    r#"busy Empty 0 ["busy.kafka"]"#,
    r#"fixed Stable 1 ["events"]"#,
    r#"former Empty 0 ["events"]"#,
    r#"readers Stable 1 ["events"]"#,
    r#"tool Empty 0 ["events"]"#,
];

fn check_definitions(broker: &Broker) {
    let fields = ["name", "type", "arguments", "ready"];
    assert_eq!(broker.lines("/api/amqp/queues", &fields), QUEUES);
    let fields = ["name", "type", "internal", "arguments"];
    let mut exchanges = broker.lines("/api/amqp/exchanges", &fields);
    exchanges.retain(|line| !line.starts_with("amq.") && !line.starts_with(' '));
    assert_eq!(exchanges, EXCHANGES);
    let fields = [
        "source",
        "destination_type",
        "destination",
        "routing_key",
        "arguments",
    ];
    let mut bindings = broker.lines("/api/amqp/bindings", &fields);
    bindings.sort();
    assert_eq!(bindings, BINDINGS);
    let fields = ["name", "state", "members", "topics"];
    assert_eq!(broker.lines("/api/groups", &fields), GROUPS);
}

fn check_offsets(client: &mut Client<TcpStream>) {
    const NONE: i64 = -1;
    let mut offsets = |group: &str, topic: &str, partitions| {
        let committed = committed(client, group, topic, partitions);
        let committed = committed.into_iter();
        committed.map(|(offset, _)| offset).collect::<Vec<_>>()
    };
    assert_eq!(offsets("readers", "events", 3), [4, 10, 7]);
    assert_eq!(offsets("fixed", "events", 3), [1, NONE, NONE]);
    assert_eq!(offsets("former", "events", 3), [NONE, NONE, 3]);
    assert_eq!(offsets("tool", "events", 3), [NONE, 5, NONE]);
    assert_eq!(offsets("busy", "busy.kafka", 1), [785]);
    let noted = &committed(client, "readers", "events", 2)[1];
    // librdkafka's text includes its terminating zero byte.
    assert_eq!(noted.1.trim_end_matches('\0'), "half way");
}

/// All messages of a queue, in order.
fn drain(client: &mut amqp::Client<TcpStream>, queue: &str) -> Vec<String> {
    let bodies = std::iter::from_fn(|| client.get(queue));
    bodies
        .map(|body| String::from_utf8(body).unwrap())
        .collect()
}

#[test]
fn todays_broker_restores_the_state_of_a_killed_older_broker() {
    check(|folder| RealDisk::open(folder).unwrap().boot_id());
}

/// The boot id of the lock file is another one, so the start has to assume that the disk has lost
/// data.
#[test]
fn todays_broker_restores_it_after_a_reboot_too() {
    check(|_| "another".to_owned());
}

/// `boot` returns the boot id to write into the lock file.
fn check(boot: fn(&Path) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    let data_dir = config.general.data_dir.as_path();
    unpack("../broker/tests/folders/busy-2-hosts.pack", data_dir);
    let lock = fs::read_to_string(data_dir.join("lock")).unwrap();
    let (holder, _) = lock.split_once("boot ").unwrap();
    let lock = format!("{holder}boot {}", boot(data_dir));
    fs::write(data_dir.join("lock"), lock).unwrap();
    // The second start follows an orderly shutdown.
    for _ in 0..2 {
        let broker = Broker::start(config.clone());
        check_definitions(&broker);
        check_offsets(&mut broker.kafka());
        broker.server.shutdown();
    }

    let broker = Broker::start(config);
    let (mut client, mut reader) = (broker.amqp(), broker.kafka());
    let by_priority = [
        "price-3", "price-5", "price-1", "price-2", "price-0", "price-4",
    ];
    assert_eq!(drain(&mut client, "urgent"), by_priority);
    assert_eq!(drain(&mut client, "dead"), ["order-2", "order-3"]);
    assert_eq!(drain(&mut client, "strays"), ["stray"]);
    assert_eq!(drain(&mut client, "kind"), ["red"]);
    assert_eq!(drain(&mut client, "tomorrow"), ["now"]);
    // The killed consumer had this message unacknowledged.
    assert_eq!(client.get("work").unwrap(), b"order-4");
    assert_eq!(drain(&mut client, "busy.amqp").len(), 329);
    let (error, stored) = reader.fetch("busy.kafka", 784, 1 << 20);
    assert_eq!((error, kafka::holds(&stored, b"784")), (0, true));

    // Delayed messages come, and expired ones are dead-lettered.
    broker.clock.advance(HOUR.as_millis() as u64);
    let queues = || broker.lines("/api/amqp/queues", &["name", "ready"]);
    eventually("delays pass", || {
        let queues = queues();
        let has = |line: &str| queues.iter().any(|it| it == line);
        has("tomorrow 1") && has("work 0") && has("dead 6")
    });
    let mut client = broker.amqp();
    assert_eq!(drain(&mut client, "tomorrow"), ["in an hour"]);
    let mut dead = drain(&mut client, "dead");
    dead.sort();
    let expected = [
        "order-10", "order-5", "order-6", "order-7", "order-8", "order-9",
    ];
    assert_eq!(dead, expected);
    // The members have been silent for that long; the groups' committed offsets stay.
    eventually("members go", || {
        let groups = broker.lines("/api/groups", &["name", "state"]);
        groups.iter().all(|group| group.ends_with(" Empty"))
    });
    check_offsets(&mut broker.kafka());
    broker.clock.advance(HOUR.as_millis() as u64);
    eventually("the last delay passes", || {
        queues().iter().any(|it| it == "tomorrow 1")
    });
    let mut client = broker.amqp();
    assert_eq!(drain(&mut client, "tomorrow"), ["in two hours"]);
    broker.server.shutdown();
}
