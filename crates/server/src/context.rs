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

/// The addresses that are listened on, with the ports that port 0 became, by the options that say
/// where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses(pub(crate) Vec<(&'static str, SocketAddr)>);

impl Addresses {
    /// Of the option with this name, as `kafka.tls_address`. `None`: not listening.
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
    /// The configuration, as it is in force.
    pub config: Config,
    /// The probes of all connections.
    pub registry: Registry,
    /// The protocols that it speaks.
    pub(crate) fronts: Vec<Arc<dyn Front>>,
    /// Where the broker listens.
    pub addresses: Addresses,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Memory for what connections have received in part.
    pub(crate) half_received: Arc<HalfReceived>,
    pub(crate) failed_logins: FailedLogins,
    /// Places to verify passwords in that take long.
    pub(crate) verifications: Arc<Semaphore>,
    pub(crate) health: Health,
    /// The doctor with its findings about the clients.
    pub(crate) doctor: SharedDoctor,
    pub(crate) clock: Arc<dyn Clock>,
    /// When it started, by its clock.
    pub(crate) started_us: u64,
    /// Connections that sleep while a clock that is driven stands still.
    pub(crate) sleepers: Arc<Sleepers>,
    pub(crate) draining: watch::Sender<bool>,
}

/// Tasks that wait for the next move of a clock that is driven.
#[derive(Default)]
pub(crate) struct Sleepers(Mutex<Vec<Waker>>);

impl Sleepers {
    /// Wakes them whenever this clock is moved.
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
    /// Microseconds on the monotonic clock of the probes; never 0.
    pub fn now_us(&self) -> u64 {
        let since_us = self.clock.now_us().saturating_sub(self.started_us);
        since_us.saturating_add(1)
    }

    /// Turns true when the broker shuts down: finish what is pending, flush, close.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Ready when the broker shuts down. For `select!`: unlike the receiver's own wait it holds
    /// no lock across the other branches.
    pub async fn drained(&self) {
        // The sender lives in the context, so the wait cannot fail.
        let _ = self.draining().wait_for(|draining| *draining).await;
    }

    /// Whether the broker shuts down.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

/// State that the connections of one core share; stays on its thread.
pub struct CoreContext {
    /// The broker that the core belongs to.
    pub server: Arc<ServerContext>,
    /// Number of the core, from 0.
    pub core: usize,
}
