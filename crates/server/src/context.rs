//! State that every connection and every HTTP handler can reach.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use cloverleaf_broker::{Broker, Clock};
use cloverleaf_log::Log;
use cloverleaf_telemetry::Registry;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::config::Config;
use crate::doctor::SharedDoctor;
use crate::failed_logins::FailedLogins;
use crate::fronts::Front;
use crate::half_received::HalfReceived;
use crate::health::Health;

/// The addresses that the broker listens on, each with the name of its option. Port 0 is replaced
/// by the port that the system chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses(pub(crate) Vec<(&'static str, SocketAddr)>);

impl Addresses {
    /// The address of the option with this name, such as `kafka.tls_address`; `None`: it does not
    /// listen there.
    pub fn of(&self, option: &str) -> Option<SocketAddr> {
        let found = self.0.iter().find(|(name, _)| *name == option);
        found.map(|(_, address)| *address)
    }
}

/// One running broker. Shared by all threads.
pub struct ServerContext {
    /// The delivery engine.
    pub broker: Broker,
    /// The log below it, for its metrics and its state of health.
    pub log: Log,
    /// The configuration in force, with adjusted limits and without passwords.
    pub config: Config,
    /// The probes of all connections.
    pub registry: Registry,
    /// The protocols that it speaks.
    pub(crate) fronts: Vec<Arc<dyn Front>>,
    /// The addresses that the broker listens on.
    pub addresses: Addresses,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// The memory budget for half received commands.
    pub(crate) half_received: Arc<HalfReceived>,
    pub(crate) failed_logins: FailedLogins,
    /// Permits to verify passwords whose verification takes long.
    pub(crate) verifications: Arc<Semaphore>,
    pub(crate) health: Health,
    /// The doctor with its findings about the clients.
    pub(crate) doctor: SharedDoctor,
    pub(crate) clock: Arc<dyn Clock>,
    /// When it started, by `clock`, in microseconds.
    pub(crate) started_us: u64,
    /// The waiting tasks of connections, if `clock` is driven by a test.
    pub(crate) sleepers: Arc<Sleepers>,
    pub(crate) draining: watch::Sender<bool>,
}

/// Tasks that wait for the next move of a driven clock.
#[derive(Default)]
pub(crate) struct Sleepers(Mutex<Vec<Waker>>);

impl Sleepers {
    /// Wakes its tasks whenever this clock is moved.
    pub(crate) fn of(clock: &dyn Clock) -> Arc<Sleepers> {
        let sleepers = Arc::<Sleepers>::default();
        let woken = Arc::clone(&sleepers);
        clock.on_move(Box::new(move || {
            let all = std::mem::take(&mut *woken.0.lock());
            all.into_iter().for_each(Waker::wake);
        }));
        sleepers
    }

    pub(crate) fn push(&self, cx: &Context<'_>) {
        self.0.lock().push(cx.waker().clone());
    }
}

impl ServerContext {
    /// Microseconds since the start, plus one: the monotonic clock of the probes, which is never 0.
    pub fn now_us(&self) -> u64 {
        let since_us = self.clock.now_us().saturating_sub(self.started_us);
        since_us.saturating_add(1)
    }

    /// Becomes true when the broker shuts down: then finish pending work, flush, close.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Ready when the broker shuts down. For `select!`: unlike the receiver's own wait, it holds no
    /// lock while the other branches run.
    pub async fn drained(&self) {
        // It cannot fail: the sender is in the context.
        let _ = self.draining().wait_for(|draining| *draining).await;
    }

    /// Whether the broker shuts down.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

/// State that the connections of one core share, on the core's own thread.
pub struct CoreContext {
    /// The broker that the core belongs to.
    pub server: Arc<ServerContext>,
    /// Number of the core, from 0.
    pub core: usize,
}
