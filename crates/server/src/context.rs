//! What every connection and every HTTP handler can reach.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use cloverleaf_amqp::SessionOptions as AmqpOptions;
use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_broker::{Broker, Clock};
use cloverleaf_kafka::KafkaContext;
use cloverleaf_log::Log;
use cloverleaf_nsq::definitions::ChannelPolicy;
use cloverleaf_nsq::http_config::RuntimeOptions;
use cloverleaf_nsq::options::SessionOptions;
use cloverleaf_nsq::stats_clients::Clients;
use cloverleaf_telemetry::Registry;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::Config;
use crate::doctor::Practice;
use crate::failed_logins::FailedLogins;
use crate::fronts::nsq::auth_http::ClientTls;
use crate::half_received::HalfReceived;
use crate::health::Health;
use crate::repeats::Repeats;

/// The addresses that are listened on, with the ports that port 0 became. `None`: not listening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Admin HTTP interface.
    pub admin: Option<SocketAddr>,
    /// NSQ's TCP protocol.
    pub nsq_tcp: Option<SocketAddr>,
    /// NSQ's HTTP interface.
    pub nsq_http: Option<SocketAddr>,
    /// NSQ's HTTP interface over TLS.
    pub nsq_https: Option<SocketAddr>,
    /// NSQ's lookup interface.
    pub nsq_lookup_http: Option<SocketAddr>,
    /// Kafka.
    pub kafka: Option<SocketAddr>,
    /// Kafka over TLS.
    pub kafka_tls: Option<SocketAddr>,
    /// AMQP.
    pub amqp: Option<SocketAddr>,
    /// AMQP over TLS.
    pub amqp_tls: Option<SocketAddr>,
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
    /// Limits and defaults of NSQ sessions, from [`ServerContext::config`].
    pub nsq: Arc<SessionOptions>,
    /// How NSQ channels are made: dead letters and limits of the configuration.
    pub nsq_channel_policy: Arc<ChannelPolicy>,
    /// Connected NSQ clients, for NSQ's own statistics.
    pub nsq_clients: Arc<Clients>,
    /// What NSQ's `/config` can change at run time.
    pub nsq_runtime: Arc<RuntimeOptions>,
    /// TLS for NSQ clients, when a certificate is configured.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// What all Kafka connections share.
    pub kafka: Arc<KafkaContext>,
    /// TLS for Kafka clients, when there is an address for it.
    pub kafka_tls: Option<Arc<rustls::ServerConfig>>,
    /// Limits and users of AMQP sessions, from [`ServerContext::config`].
    pub amqp: Arc<AmqpOptions>,
    /// AMQP's exchanges and queues.
    pub amqp_host: Arc<VirtualHost>,
    /// TLS for AMQP clients, when there is an address for it.
    pub amqp_tls: Option<Arc<rustls::ServerConfig>>,
    /// Where the broker listens.
    pub addresses: Addresses,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Memory for what connections have received in part.
    pub(crate) half_received: Arc<HalfReceived>,
    pub(crate) failed_logins: FailedLogins,
    pub(crate) health: Health,
    /// What the doctor knows of the clients.
    pub(crate) practice: Practice,
    pub(crate) clock: Arc<dyn Clock>,
    /// When it started, by its clock.
    pub(crate) started_us: u64,
    /// Connections that sleep while a clock that is driven stands still.
    pub(crate) sleepers: Arc<Sleepers>,
    /// TLS towards NSQ's auth services.
    pub(crate) auth_tls: ClientTls,
    pub(crate) draining: watch::Sender<bool>,
    pub(crate) noise: Noise,
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

/// What clients can make happen as often as they like, and has a log line nevertheless.
#[derive(Default)]
pub(crate) struct Noise {
    /// NSQ connections that ended in an error.
    pub(crate) nsq: Mutex<Repeats>,
    /// Kafka connections that ended in an error.
    pub(crate) kafka: Mutex<Repeats>,
    /// Kafka connections over TLS that ended in an error.
    pub(crate) kafka_tls: Mutex<Repeats>,
    /// AMQP connections that ended in an error.
    pub(crate) amqp: Mutex<Repeats>,
    /// AMQP connections over TLS that ended in an error.
    pub(crate) amqp_tls: Mutex<Repeats>,
    /// Questions that an auth service did not answer.
    pub(crate) auth: Mutex<Repeats>,
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

/// What the connections of one core share; stays on its thread.
pub struct CoreContext {
    /// The broker that the core belongs to.
    pub server: Arc<ServerContext>,
    /// Number of the core, from 0.
    pub core: usize,
}
