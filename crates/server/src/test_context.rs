//! A broker for tests of connections, which are served on the test's thread, with a simulated disk.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cloverleaf_broker::{Broker, BrokerOptions, Clock as _, ManualClock};
use cloverleaf_log::{Log, LogOptions, SimDisk};
use cloverleaf_telemetry::{Protocol, Registry};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::config::Config;
use crate::context::{Addresses, CoreContext, ServerContext, Sleepers};
use crate::failed_logins::FailedLogins;
use crate::fronts::AcceptedConnection;
use crate::half_received::HalfReceived;
use crate::half_received::budget::BudgetBounds;
use crate::health::Health;
use crate::verifications;

/// Time limit of waits: only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A broker that accepts one unwritten publish at a time, and writes only when the test calls for
/// it.
pub(crate) fn context() -> Arc<ServerContext> {
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
        half_received: HalfReceived::new(
            BudgetBounds {
                bytes_max: 1 << 20,
                address_bytes_max: None,
                timeout_us: 1_000_000,
            },
            &[Protocol::Nsq, Protocol::Kafka, Protocol::Amqp],
        ),
        failed_logins: FailedLogins::default(),
        verifications: verifications::permits(),
        health: Health::default(),
        doctor: crate::doctor::SharedDoctor::new(cloverleaf_doctor::Advice::default()),
        sleepers: Sleepers::of(&*clock),
        started_us: clock.now_us(),
        clock,
        draining: watch::Sender::new(false),
        config,
    })
}

/// The client's end of a new connection, which is served on this thread.
pub(crate) async fn connect_to<F: Future<Output = ()> + 'static>(
    serve: impl FnOnce(AcceptedConnection) -> F,
    core: &Rc<CoreContext>,
) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(client, listener.accept());
    let (stream, peer) = accepted.unwrap();
    let accepted = AcceptedConnection {
        stream,
        peer,
        is_tls: false,
        core: Rc::clone(core),
    };
    spawn_local(serve(accepted));
    client.unwrap()
}

/// Lets the connections run until the condition is true.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("never true");
}

/// The only core of a broker.
pub(crate) fn core(context: &Arc<ServerContext>) -> Rc<CoreContext> {
    Rc::new(CoreContext {
        server: Arc::clone(context),
        core: 0,
    })
}

/// The bytes received from all clients.
pub(crate) fn bytes_in(context: &ServerContext) -> u64 {
    let snapshot = context.registry.snapshot(0, |_| None);
    let connections = snapshot.connections.iter();
    connections.map(|it| it.counters.bytes_in).sum()
}
