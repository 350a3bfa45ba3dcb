//! A broker that speaks echo beside the product's protocols, over real sockets.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use cloverleaf_broker::ManualClock;
use cloverleaf_doctor::Query;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{ADDRESS, REGISTRATION};
use crate::config::Config;
use crate::config::value::ListenAddress;
use crate::fronts::{REGISTRATIONS, Registration};
use crate::half_received::HeldMemory;
use crate::server::{Server, real_disk};
use crate::test_context::{PATIENCE, until};

const MIB: usize = 1 << 20;

struct Broker {
    server: Server,
    clock: Arc<ManualClock>,
    _folder: TempDir,
}

impl Broker {
    fn start(change: impl FnOnce(&mut Config)) -> Broker {
        let folder = tempfile::tempdir().unwrap();
        let any_port = || ListenAddress("127.0.0.1:0".to_owned());
        let mut config = Config::default();
        config.general.data_dir = folder.path().join("data");
        config.general.admin_address = any_port();
        config.general.disk_free_bytes_min.0 = 0;
        config.general.cores = 1;
        config.nsq.tcp_address = any_port();
        config.nsq.http_address = any_port();
        config.nsq.https_address = any_port();
        config.nsq.lookup_http_address = any_port();
        config.kafka.address = any_port();
        config.amqp.address = any_port();
        change(&mut config);
        // If the product gets a front for this tag, echo replaces it here.
        let others = REGISTRATIONS.iter().copied();
        let others = others.filter(|it| it.protocol != REGISTRATION.protocol);
        let all: Vec<&'static Registration> = others.chain([&REGISTRATION]).collect();
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        Broker {
            server: Server::start_speaking(&all, real_disk, config, clock.clone(), None).unwrap(),
            clock,
            _folder: folder,
        }
    }

    fn address(&self, option: &str) -> SocketAddr {
        self.server.addresses().of(option).unwrap()
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address(ADDRESS)).await.unwrap()
    }

    /// Gets a page of the admin interface.
    async fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address("admin_address"))
            .await
            .unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        timeout(PATIENCE, reading).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        body.to_owned()
    }
}

/// A frame with a body of `bytes` bytes.
fn frame(bytes: usize) -> Vec<u8> {
    let body = (0..bytes).map(|at| at as u8);
    u32::to_be_bytes(bytes as u32)
        .into_iter()
        .chain(body)
        .collect()
}

/// Reads as many bytes as expected, and compares them.
async fn expect(client: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    let reading = client.read_exact(&mut bytes);
    timeout(PATIENCE, reading).await.unwrap().unwrap();
    assert!(bytes == expected, "other bytes came back");
}

async fn goes_round(client: &mut TcpStream, bytes: usize) {
    let frame = frame(bytes);
    client.write_all(&frame).await.unwrap();
    expect(client, &frame).await;
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(test);
}

/// The names of a page's metrics that have a value for this protocol.
fn metrics_of(page: &str, protocol: &str) -> BTreeSet<String> {
    let label = format!("{{protocol=\"{protocol}\"");
    let lines = page.lines();
    let names = lines.filter_map(|line| Some(line.split_once(&label)?.0.to_owned()));
    names.collect()
}

#[test]
fn an_echo_is_seen_as_every_other_protocol_is() {
    let broker = Broker::start(|_| {});
    run(async {
        let mut echo = broker.connect().await;
        let mut kafka = TcpStream::connect(broker.address("kafka.address"))
            .await
            .unwrap();
        for round in 0..3 {
            goes_round(&mut echo, round * 100_000).await;
        }
        // An ApiVersions request, so that the Kafka connection is counted too.
        let request = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff";
        kafka.write_all(request).await.unwrap();
        kafka.read_exact(&mut [0; 4]).await.unwrap();
        let connections = broker.page("/debug/connections").await;
        let connections: serde_json::Value = serde_json::from_str(&connections).unwrap();
        let all = connections["connections"].as_array().unwrap();
        assert_eq!(all.len(), 2, "the admin interface's own is none");
        let seen = all.iter().find(|it| it["protocol"] == "nats").unwrap();
        assert_eq!(seen["peer"], echo.local_addr().unwrap().to_string());
        assert_eq!(seen["counters"]["requests"], 3);
        assert_eq!(seen["counters"]["bytes_in"], 3 * 4 + 300_000);
        // The last response has come, but may not have been counted yet.
        assert!(seen["counters"]["responses"].as_u64() >= Some(2));
        let metrics = broker.page("/metrics").await;
        assert!(metrics.contains("cloverleaf_connections{protocol=\"nats\"} 1\n"));
        assert!(metrics.contains("cloverleaf_requests_total{protocol=\"nats\"} 3\n"));
        assert_eq!(metrics_of(&metrics, "nats"), metrics_of(&metrics, "kafka"));
        assert!(metrics.contains("cloverleaf_echo_fronts 1\n"));
        assert_eq!(broker.page("/api/echo").await, "\"echo\"");
    });
}

#[test]
fn the_doctor_checks_echo_connections_and_has_no_findings() {
    let broker = Broker::start(|_| {});
    run(async {
        let mut clients = [broker.connect().await, broker.connect().await];
        for _ in 0..30 {
            for client in &mut clients {
                goes_round(client, 1000).await;
            }
            broker.clock.advance(1000);
            broker.server.check();
        }
        let report = broker.server.doctor(&Query::default());
        assert_eq!((report.connections, report.connections_opened), (2, 2));
        assert_eq!(report.findings, []);
        let told = broker.page("/api/doctor").await;
        assert_eq!(told, serde_json::to_string(&report).unwrap());
        assert!(broker.page("/api/doctor/clients").await.contains("nats"));
    });
}

#[test]
fn half_a_frame_is_charged_to_the_protocols_own_memory() {
    let broker = Broker::start(|config| {
        config.general.half_received_bytes_max.0 = 8 * MIB as u64;
    });
    let memory = &broker.server.context().half_received;
    let nsq = REGISTRATIONS.first().unwrap().protocol;
    let hold = || HeldMemory::new(Arc::clone(memory), nsq, [127, 0, 0, 1].into());
    let (mut other, mut next) = (hold(), hold());
    let cx = Context::from_waker(Waker::noop());
    // One connection holds more than the common memory, and one waits for some.
    other.charge(MIB, 8 * MIB, 8 * MIB, false, &cx, 0);
    assert!(
        next.poll_grow(MIB, MIB, &cx, 0).is_ready(),
        "exceeds the budget"
    );
    let mut last = hold();
    assert!(last.poll_grow(MIB, MIB, &cx, 0).is_pending());
    let held = memory.bytes();
    run(async {
        let (whole, half) = (frame(400_000), 300_000);
        let mut clients = [broker.connect().await, broker.connect().await];
        for (client, count) in clients.iter_mut().zip(1..) {
            client.write_all(&whole[..half]).await.unwrap();
            until(|| memory.bytes() >= held + count * half as u64).await;
        }
        assert_eq!(memory.waiting(), 1, "none of the two");
        // The second connection does not have to wait for the first.
        for client in clients.iter_mut().rev() {
            client.write_all(&whole[half..]).await.unwrap();
            expect(client, &whole).await;
        }
        until(|| memory.bytes() == held).await;
    });
}

#[test]
fn a_shutdown_ends_echo_connections_after_their_answers() {
    let broker = Broker::start(|_| {});
    run(async {
        let mut idle = broker.connect().await;
        let mut inside = broker.connect().await;
        goes_round(&mut idle, 5).await;
        let half = [&frame(3)[..], b"\0\0"].concat();
        inside.write_all(&half).await.unwrap();
        expect(&mut inside, &frame(3)).await;
        let ended = spawn_blocking(move || broker.server.shutdown());
        for mut client in [idle, inside] {
            let reading = client.read_u8();
            let error = timeout(PATIENCE, reading).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        }
        timeout(PATIENCE, ended).await.unwrap().unwrap();
    });
}
