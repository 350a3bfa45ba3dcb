//! A real broker on a simulated disk, and requests to it without sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use bytes::Bytes;
use cloverleaf_broker::{Broker, BrokerOptions, Realm, SystemClock};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_nsq::definitions::channel_options;
use cloverleaf_nsq::http::Response;
use cloverleaf_nsq::http::config::{LogLevel, RuntimeOptions};
use cloverleaf_nsq::http::nsqd::{BodyError, Node, NsqdHttp, ProcessServices, RequestHead};
use cloverleaf_nsq::lookup::http::LookupHttp;
use cloverleaf_nsq::options::SessionOptions;
use cloverleaf_nsq::stats::MemoryStats;
use cloverleaf_nsq::stats::clients::Clients;
use serde_json::Value;

/// The process around the interface, controlled by the test.
#[derive(Default)]
pub struct World {
    pub now_ns: AtomicU64,
    pub is_exiting: AtomicBool,
    pub trouble: Mutex<Option<String>>,
}

impl ProcessServices for World {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn health(&self) -> Result<(), String> {
        self.trouble.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn is_exiting(&self) -> bool {
        self.is_exiting.load(Ordering::Relaxed)
    }

    fn memory(&self) -> MemoryStats {
        MemoryStats {
            heap_in_use_bytes: 42,
            ..MemoryStats::default()
        }
    }
}

pub struct Nsqd {
    log: Log,
    pub broker: Broker,
    pub clients: Arc<Clients>,
    pub runtime: Arc<RuntimeOptions>,
    pub world: Arc<World>,
    pub nsqd: NsqdHttp,
    pub lookupd: LookupHttp,
}

pub fn node() -> Node {
    Node {
        broadcast_address: "broker.test".into(),
        hostname: "box".into(),
        tcp_port: 4150,
        http_port: 4151,
        topology_zone: "z".into(),
        topology_region: "r".into(),
        start_ns: 1_700_000_000_000_000_000,
    }
}

/// A broker with small limits: messages of 100 bytes, bodies of 1,000.
pub fn start() -> Nsqd {
    let options = LogOptions {
        disk_free_bytes_min: 0,
        ..LogOptions::default()
    };
    let (log, recovery) = Log::open(SimDisk::new().mount(), options).unwrap();
    let clock = Arc::new(SystemClock::default());
    let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock).unwrap();
    let clients = Clients::new();
    let runtime = Arc::new(RuntimeOptions::new(Vec::new(), LogLevel::Info));
    let world = Arc::new(World::default());
    world
        .now_ns
        .store(node().start_ns + 1_000_000_000, Ordering::Relaxed);
    let limits = SessionOptions {
        msg_bytes_max: 100,
        body_bytes_max: 1_000,
        ..SessionOptions::default()
    };
    let policy = Arc::new(|_: &str, channel: &str| channel_options(channel));
    let nsqd = NsqdHttp {
        realm: Realm::unrestricted(broker.clone()),
        clients: Arc::clone(&clients),
        options: Arc::new(limits),
        channel_policy: policy.clone(),
        node: node(),
        runtime: Arc::clone(&runtime),
        fixed_options: vec![("max_msg_size", Value::from(100))],
        services: world.clone(),
    };
    let lookupd = LookupHttp::new(
        Realm::unrestricted(broker.clone()),
        policy,
        node(),
        "127.0.0.1:4150".into(),
    );
    Nsqd {
        log,
        broker,
        clients,
        runtime,
        world,
        nsqd,
        lookupd,
    }
}

impl Drop for Nsqd {
    fn drop(&mut self) {
        self.broker.close();
        self.log.close();
    }
}

impl Nsqd {
    /// A request to nsqd's interface.
    pub fn call(&self, method: &str, target: &str, body: &[u8]) -> Response {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let content_length = Some(body.len() as u64);
        let head = RequestHead {
            method,
            path,
            query,
            content_length,
        };
        let pending = match self.nsqd.begin(head) {
            Ok(pending) => pending,
            Err(response) => return response,
        };
        assert!(body.len() <= pending.body_bytes_max);
        block_on(self.nsqd.finish(pending, Ok(Bytes::copy_from_slice(body))))
    }

    /// A request without `Content-Length`, whose body fails with this error.
    pub fn call_with_bad_body(&self, method: &str, target: &str, error: BodyError) -> Response {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let head = RequestHead {
            method,
            path,
            query,
            content_length: None,
        };
        block_on(self.nsqd.finish(self.nsqd.begin(head).unwrap(), Err(error)))
    }

    /// A request to nsqlookupd's interface.
    pub fn lookup(&self, method: &str, target: &str) -> Response {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let head = RequestHead {
            method,
            path,
            query,
            content_length: None,
        };
        self.lookupd
            .answer(head, self.world.now_ns.load(Ordering::Relaxed))
    }

    pub fn post(&self, target: &str, body: &[u8]) -> (u16, String) {
        seen(self.call("POST", target, body))
    }

    pub fn get(&self, target: &str) -> (u16, String) {
        seen(self.call("GET", target, b""))
    }

    pub fn stats(&self, query: &str) -> Value {
        let (status, body) = self.get(&format!("/stats?format=json{query}"));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// Status and body.
pub fn seen(response: Response) -> (u16, String) {
    (
        response.status,
        String::from_utf8(response.body.to_vec()).unwrap(),
    )
}

/// An error response as the client sees it.
pub fn error(status: u16, message: &str) -> (u16, String) {
    (status, format!(r#"{{"message":"{message}"}}"#))
}

pub fn ok(body: &str) -> (u16, String) {
    (200, body.to_owned())
}

/// Unparks the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
