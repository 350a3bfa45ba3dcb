#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::rc::Rc;
use std::time::Duration;

use cloverleaf_broker::{Broker, BrokerOptions, Clock as _, ManualClock};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_nsq::SessionOptions;
use cloverleaf_nsq::definitions::channel_options;
use cloverleaf_nsq::http_config::{LogLevel, RuntimeOptions};
use cloverleaf_nsq::stats_clients::Clients;
use cloverleaf_telemetry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use super::*;
use crate::config::Config;
use crate::context::{Addresses, CoreContext, Sleepers};
use crate::failed_logins::FailedLogins;
use crate::half_received::HalfReceived;
use crate::half_received_room::Bounds;
use crate::health::Health;

/// How long anything may take before it counts as never.
const PATIENCE: Duration = Duration::from_secs(120);

/// A broker with room for one publish at a time, which writes only when the test says so.
fn context() -> Arc<ServerContext> {
    let log_options = LogOptions {
        manual: true,
        inline_writes: false,
        disk_free_bytes_min: 0,
        journal_bytes: 64 << 10,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(SimDisk::new().mount(), log_options).unwrap();
    let broker_options = BrokerOptions {
        unwritten_bytes_max: 1,
        ..BrokerOptions::default()
    };
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let broker = Broker::open(log.clone(), recovery, broker_options, clock.clone()).unwrap();
    let config = Config::default();
    Arc::new(ServerContext {
        broker,
        log,
        registry: Registry::new(),
        fronts: Vec::new(),
        addresses: Addresses::default(),
        started_ms: 0,
        half_received: HalfReceived::new(Bounds {
            bytes_max: 1 << 20,
            address_bytes_max: None,
            timeout_us: 1_000_000,
        }),
        failed_logins: FailedLogins::default(),
        health: Health::default(),
        practice: crate::doctor::Practice::new(cloverleaf_doctor::Advice::default()),
        sleepers: Sleepers::of(&*clock),
        started_us: clock.now_us(),
        clock,
        draining: watch::Sender::new(false),
        config,
    })
}

/// The protocol without a configuration.
fn front() -> Arc<NsqFront> {
    Arc::new(NsqFront {
        options: Arc::new(SessionOptions::default()),
        channel_policy: Arc::new(|_, channel| channel_options(channel)),
        clients: Clients::new(),
        runtime: Arc::new(RuntimeOptions::new(Vec::new(), LogLevel::Info)),
        tls: None,
        auth_tls: super::super::auth_http::ClientTls::default(),
        noise: Mutex::default(),
        auth_noise: Mutex::default(),
    })
}

/// The client's end of a connection that is served on this thread.
async fn connect(core: &Rc<CoreContext>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(client, listener.accept());
    let (stream, peer) = accepted.unwrap();
    let visitor = Visitor {
        stream,
        peer,
        is_tls: false,
        core: Rc::clone(core),
    };
    spawn_local(serve(front(), visitor));
    client.unwrap()
}

fn sized(line: &str, body: &str) -> Vec<u8> {
    let size = (body.len() as u32).to_be_bytes();
    [line.as_bytes(), &size, body.as_bytes()].concat()
}

async fn expect_oks(client: &mut TcpStream, count: usize) {
    let mut frames = vec![0; 10 * count];
    let read = client.read_exact(&mut frames);
    timeout(PATIENCE, read)
        .await
        .expect("an answer comes")
        .unwrap();
    assert_eq!(frames, b"\0\0\0\x06\0\0\0\0OK".repeat(count));
}

/// Lets the connections do what they can do by now.
async fn until(mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it comes true");
}

#[test]
fn a_publisher_that_waits_for_room_is_woken_by_the_write() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let context = context();
    let core = Rc::new(CoreContext {
        server: Arc::clone(&context),
        core: 0,
    });
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let (mut first, mut second) = (connect(&core).await, connect(&core).await);
        let hello = sized("  V2IDENTIFY\n", r#"{"heartbeat_interval":-1}"#);
        for client in [&mut first, &mut second] {
            client.write_all(&hello).await.unwrap();
            expect_oks(client, 1).await;
        }
        let bytes_in = || -> u64 {
            let snapshot = context.registry.snapshot(0, |_| None);
            snapshot
                .connections
                .iter()
                .map(|it| it.counters.bytes_in)
                .sum()
        };
        let mut received = bytes_in();
        for round in 0..3 {
            let publish = sized("PUB t\n", "x");
            first.write_all(&publish).await.unwrap();
            until(|| context.broker.room().unwritten_bytes() > 0).await;
            second.write_all(&publish).await.unwrap();
            received += 2 * publish.len() as u64;
            until(|| bytes_in() == received).await;
            let topic = context.broker.topic("t").unwrap();
            assert_eq!(topic.message_count(), 2 * round + 1, "the second waits");
            context.log.step();
            expect_oks(&mut first, 1).await;
            // Nothing but the write tells the second, which has neither heartbeats nor answers.
            until(|| topic.message_count() == 2 * round + 2).await;
            context.log.step();
            expect_oks(&mut second, 1).await;
        }
    });
}
