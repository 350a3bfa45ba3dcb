//! The admin interface of a real broker, over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::support::{PATIENCE, eventually};
use cloverleaf_log::{BatchBuilder, Durability};
use cloverleaf_server::admin_types::{Bytes, MessagePage, SubscriptionDetails, TopicDetails};
use cloverleaf_server::config_value::ListenAddress;
use cloverleaf_server::{Config, Server, StartError};

fn config(folder: &Path) -> Config {
    let mut config = Config::default();
    let any_port = ListenAddress("127.0.0.1:0".to_owned());
    config.general.data_dir = folder.to_owned();
    config.general.disk_free_bytes_min.0 = 0;
    config.general.admin_address = any_port.clone();
    config.nsq.tcp_address = any_port.clone();
    config.nsq.http_address = any_port.clone();
    config.kafka.address = any_port.clone();
    config.amqp.address = any_port.clone();
    config.nsq.lookup_http_address = any_port;
    config
}

fn start() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(config(folder.path())).unwrap();
    (folder, server)
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

fn ask(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

fn admin(server: &Server, method: &str, path: &str, body: &str) -> Answer {
    ask(
        server.addresses().of("admin_address").unwrap(),
        method,
        path,
        "",
        body,
    )
}

fn publish(server: &Server, topic: &str, bodies: &[&[u8]]) {
    let topic = server.context().broker.topic(topic).unwrap();
    let mut batch = BatchBuilder::with_capacity(1024, 1_700_000_000_000);
    for body in bodies {
        batch.push(None, Some(body), &[(b"trace", Some(b"7"))]);
    }
    let published = topic.publish(batch.finish(), Durability::Kernel).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(published).unwrap();
}

#[test]
fn topics_and_subscriptions_are_made_shown_changed_and_deleted() {
    let (_folder, server) = start();
    let made = admin(
        &server,
        "POST",
        "/api/topics",
        r#"{"name":"orders","partitions":2}"#,
    );
    assert_eq!(made.status, 201, "{}", made.body);
    let again = admin(&server, "POST", "/api/topics", r#"{"name":"orders"}"#);
    assert_eq!(
        (again.status, again.body.contains("exists already")),
        (409, true)
    );
    let made = admin(
        &server,
        "POST",
        "/api/topics/orders/subscriptions",
        r#"{"name":"billing","attempts_max":4,"dead_letter_topic":"lost"}"#,
    );
    assert_eq!(made.status, 201, "{}", made.body);
    let path = "/api/topics/orders/subscriptions/billing";
    let paused: SubscriptionDetails = admin(&server, "POST", &format!("{path}/pause"), "").json();
    assert!(paused.paused);
    assert_eq!(
        (paused.attempts_max, paused.dead_letter_topic.as_deref()),
        (4, Some("lost"))
    );
    publish(&server, "orders", &[b"a", b"b", b"c"]);
    let topic: TopicDetails = admin(&server, "GET", "/api/topics/orders", "").json();
    assert_eq!(topic.summary.partitions, 2);
    let week = cloverleaf_broker::Retention {
        ms: Some(7 * 24 * 3_600_000),
        consumed: false,
        ..topic.retention.clone()
    };
    assert_eq!((&topic.retention, topic.config.len()), (&week, 0));
    let alter = |body| admin(&server, "PATCH", "/api/topics/orders", body);
    let twice = alter(r#"{"retention":"1h","config":{"retention.ms":"5"}}"#);
    assert_eq!((twice.status, twice.body.contains("twice")), (400, true));
    let altered: TopicDetails = alter(r#"{"config":{"segment.ms":"5"}}"#).json();
    assert_eq!(altered.config["segment.ms"], "5");
    let altered: TopicDetails = alter(r#"{"config":{"segment.ms":null}}"#).json();
    assert_eq!((altered.retention, altered.config.len()), (week, 0));
    assert_eq!(
        topic
            .partition_details
            .iter()
            .map(|p| p.end_offset)
            .sum::<u64>(),
        3
    );
    assert_eq!(topic.subscription_details[0].depth, 3);
    admin(&server, "POST", &format!("{path}/empty"), "");
    let open: SubscriptionDetails = admin(&server, "POST", &format!("{path}/unpause"), "").json();
    assert_eq!((open.paused, open.depth), (false, 0));
    assert_eq!(
        admin(&server, "POST", &format!("{path}/eat"), "").status,
        404
    );
    assert_eq!(admin(&server, "DELETE", path, "").status, 204);
    assert_eq!(admin(&server, "GET", path, "").status, 404);
    assert_eq!(
        admin(&server, "DELETE", "/api/topics/orders", "").status,
        204
    );
    let gone = admin(&server, "GET", "/api/topics/orders", "");
    assert_eq!(
        (gone.status, gone.body.contains("no topic orders")),
        (404, true)
    );
    assert_eq!(admin(&server, "GET", "/api/topics", "").body, "[]");
}

#[test]
fn messages_are_read_by_offset_and_followed() {
    let (_folder, server) = start();
    admin(&server, "POST", "/api/topics", r#"{"name":"t"}"#);
    let read = |query: &str| -> MessagePage {
        admin(
            &server,
            "GET",
            &format!("/api/topics/t/messages?{query}"),
            "",
        )
        .json()
    };
    assert_eq!(read("").messages, []);
    publish(&server, "t", &[b"one", b"two"]);
    publish(&server, "t", &[&[0xff, 0x00]]);
    let all = read("");
    assert_eq!(all.next_offset, 3);
    assert_eq!(all.messages[1].value, Some(Bytes::Text("two".into())));
    assert_eq!(
        all.messages[1].headers,
        [("trace".into(), Some(Bytes::Text("7".into())))]
    );
    assert_eq!(all.messages[2].value, Some(Bytes::Hex("ff00".into())));
    let one = read("from=1&count=1");
    assert_eq!(
        (one.messages[0].offset, one.messages.len(), one.next_offset),
        (1, 1, 2)
    );
    assert_eq!(read("from=latest").messages.len(), 0);
    let wrong = admin(&server, "GET", "/api/topics/t/messages?from=yesterday", "");
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    assert_eq!(
        admin(&server, "GET", "/api/topics/t/messages?partition=1", "").status,
        404
    );
    std::thread::scope(|scope| {
        // A long poll may end without a message: then the follower asks again.
        let follow = |query: &'static str| {
            let mut pages = std::iter::repeat_with(move || read(query).messages);
            scope.spawn(move || pages.find(|it| !it.is_empty()).unwrap())
        };
        let follower = follow("from=latest&wait_ms=30000");
        // The follower may ask for "latest" only after the message was published, so also ask by
        // offset.
        let by_offset = follow("from=3&wait_ms=30000");
        eventually("the follower has a message", || {
            publish(&server, "t", &[b"later"]);
            follower.is_finished()
        });
        assert_eq!(by_offset.join().unwrap()[0].offset, 3);
        follower.join().unwrap();
    });
}

#[test]
fn metrics_and_health_are_there() {
    let (_folder, server) = start();
    admin(&server, "POST", "/api/topics", r#"{"name":"t"}"#);
    admin(
        &server,
        "POST",
        "/api/topics/t/subscriptions",
        r#"{"name":"s"}"#,
    );
    publish(&server, "t", &[b"x"]);
    let page = admin(&server, "GET", "/metrics", "");
    assert!(
        page.head
            .contains("content-type: text/plain; version=0.0.4"),
        "{}",
        page.head
    );
    for line in [
        "cloverleaf_topic_messages_total{topic=\"t\"} 1\n",
        "cloverleaf_subscription_depth{topic=\"t\",subscription=\"s\"} 1\n",
        "# TYPE cloverleaf_log_syncs_total counter\n",
        "cloverleaf_info{version=",
    ] {
        assert!(
            page.body.contains(line),
            "{line} is missing in\n{}",
            page.body
        );
    }
    let health = admin(&server, "GET", "/healthz", "");
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let snapshot = admin(&server, "GET", "/debug/connections", "");
    let _: cloverleaf_telemetry::Snapshot = snapshot.json();
}

#[test]
fn a_full_disk_is_unhealthy() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.general.disk_free_bytes_min.0 = u64::MAX;
    let server = Server::start(config).unwrap();
    let health = admin(&server, "GET", "/healthz", "");
    assert_eq!(
        (health.status, health.body.contains("the disk is full")),
        (503, true)
    );
}

#[test]
fn requests_of_web_pages_are_refused() {
    let (_folder, server) = start();
    let address = server.addresses().of("admin_address").unwrap();
    let foreign = "origin: https://example.com\r\n";
    let body = r#"{"name":"t"}"#;
    assert_eq!(
        ask(address, "POST", "/api/topics", foreign, body).status,
        403
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /api/topics HTTP/1.0\r\nhost: evil.example:80\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 403"), "{answer}");
    assert_eq!(admin(&server, "GET", "/nothing", "").status, 404);
    let named = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nhost: broker.example\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(named("/debug/connections"), "403");
    assert_eq!(named("/metrics"), "200");
    assert_eq!(named("/healthz"), "200");
}

#[test]
fn idle_connections_block_no_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.general.http_connections_max = 3;
    let server = Server::start(config).unwrap();
    let address = server.addresses().of("admin_address").unwrap();
    let mut idle: Vec<TcpStream> = (0..8)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    assert_eq!(admin(&server, "GET", "/healthz", "").status, 200);
    let closed = idle[0].read(&mut [0]);
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[test]
fn unusable_names_are_refused() {
    let (_folder, server) = start();
    let create = |path: &str, name: &str| {
        let body = serde_json::json!({ "name": name }).to_string();
        admin(&server, "POST", path, &body)
    };
    for name in ["", "a\nb", "\u{7f}", &"n".repeat(256)] {
        let answer = create("/api/topics", name);
        assert_eq!(answer.status, 400, "{name:?}");
        assert!(answer.body.contains("the name of a topic cannot"));
    }
    assert_eq!(create("/api/topics", &"n".repeat(255)).status, 201);
    create("/api/topics", "t");
    let subscription = create("/api/topics/t/subscriptions", "");
    assert_eq!(subscription.status, 400);
}

#[test]
fn options_that_cannot_work_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.nsq.client_timeout = Duration::ZERO;
    let error = Server::start(config).err().unwrap();
    assert!(matches!(error, StartError::OutOfRange(_)), "{error}");
}

#[test]
fn definitions_and_messages_survive_a_restart() {
    let (folder, server) = start();
    admin(&server, "POST", "/api/topics", r#"{"name":"t"}"#);
    admin(
        &server,
        "POST",
        "/api/topics/t/subscriptions",
        r#"{"name":"s"}"#,
    );
    publish(&server, "t", &[b"kept"]);
    server.shutdown();
    let server = Server::start(config(folder.path())).unwrap();
    let topic: TopicDetails = admin(&server, "GET", "/api/topics/t", "").json();
    assert_eq!(topic.subscription_details[0].depth, 1);
    let page: MessagePage = admin(&server, "GET", "/api/topics/t/messages", "").json();
    assert_eq!(page.messages[0].value, Some(Bytes::Text("kept".into())));
}

#[test]
fn a_second_broker_on_the_folder_names_the_first() {
    let (folder, _server) = start();
    let Err(error) = Server::start(config(folder.path())) else {
        panic!("it has started")
    };
    let text = error.to_string();
    assert!(text.contains("in use by another broker"), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
}

#[test]
fn anonymous_remote_clients_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.nsq.tcp_address.0 = "0.0.0.0:0".to_owned();
    let Err(error) = Server::start(config.clone()) else {
        panic!("it has started")
    };
    assert!(matches!(error, StartError::AnonymousRemote(_)), "{error}");
    config.general.allow_anonymous_remote = true;
    Server::start(config).unwrap().shutdown();
}

#[test]
fn an_address_in_use_is_named_and_the_folder_is_free_again() {
    let (_other_folder, other) = start();
    let folder = tempfile::tempdir().unwrap();
    let mut taken = config(folder.path());
    taken.nsq.http_address.0 = other.addresses().of("admin_address").unwrap().to_string();
    let Err(error) = Server::start(taken) else {
        panic!("it has started")
    };
    assert!(error.to_string().contains("(nsq.http_address)"), "{error}");
    Server::start(config(folder.path())).unwrap().shutdown();
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.general.connections_max = 1;
    let server = Server::start(config).unwrap();
    let address = server.addresses().of("nsq.tcp_address").unwrap();
    let first = TcpStream::connect(address).unwrap();
    let mut second = TcpStream::connect(address).unwrap();
    assert_eq!(
        second.read(&mut [0; 1]).unwrap_or(0),
        0,
        "closed without a byte"
    );
    drop(first);
    eventually("a connection is free again", || {
        let mut third = TcpStream::connect(address).unwrap();
        third.set_read_timeout(Some(PATIENCE)).unwrap();
        // A connection that is served gets an answer; a refused one is closed.
        let hello = b"  V2PUB t\n\0\0\0\x01x";
        third.write_all(hello).is_ok() && third.read_exact(&mut [0; 10]).is_ok()
    });
}
