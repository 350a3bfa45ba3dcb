//! NSQ: its connections, its HTTP interfaces, and its requests to other programs.

mod auth;
mod auth_http;
mod auth_name;
mod config;
mod connection;
mod http;
mod http_client;
mod lookup_channels;
mod lookup_http;
mod lookup_peer;
mod node;

use std::sync::Arc;

use cloverleaf_broker::SubscriptionOptions;
use cloverleaf_nsq::definitions::ChannelPolicy;
use cloverleaf_nsq::http::config::{LogLevel, RuntimeOptions};
use cloverleaf_nsq::options::SessionOptions;
use cloverleaf_nsq::stats::clients::Clients;
use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;
use rustls::ServerConfig;

use self::auth_http::ClientTls;
use super::{
    AcceptedConnection, Door, DoorKind, Front, FrontOpening, HttpDoor, LocalFuture, Registration,
    Task,
};
use crate::config::Config;
use crate::config::value::{ClientAuthPolicy, TlsRequired};
use crate::context::ServerContext;
use crate::log_throttle::LogThrottle;
use crate::server::StartError;
use crate::transport::tls::{TlsError, tls_settings};

pub(super) const REGISTRATION: Registration = Registration {
    protocol: Protocol::Nsq,
    doors,
    tls,
    open: NsqFront::open,
    forget_secrets: |_| {},
};

/// The option with the address of the TCP protocol.
const TCP: &str = "nsq.tcp_address";
/// The option with the address of nsqd's HTTP interface.
const HTTP: &str = "nsq.http_address";
/// The option with the address of nsqd's HTTP interface over TLS.
const HTTPS: &str = "nsq.https_address";
/// The option with the address of nsqlookupd's HTTP interface.
const LOOKUP_HTTP: &str = "nsq.lookup_http_address";

fn tls(config: &Config) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    match tls_settings!(config.nsq).server_config()? {
        None if config.nsq.tls_required != TlsRequired::No => {
            Err(TlsError::RequiredWithoutCertificate)
        }
        config => Ok(config),
    }
}

fn doors(config: &Config) -> Vec<Door<'_>> {
    let nsq = &config.nsq;
    let certificates = nsq.tls_client_auth_policy == ClientAuthPolicy::RequireVerify
        && nsq.tls_cert.is_some()
        && nsq.tls_required != TlsRequired::No;
    let authenticated = !nsq.auth_http_address.is_empty();
    vec![
        Door::new(TCP, &nsq.tcp_address, DoorKind::Plain).guarded_if(
            authenticated || certificates,
            "configure an auth service (nsq.auth_http_address) or clients' certificates \
             (nsq.tls_required and nsq.tls_client_auth_policy = \"require-verify\"), or ",
        ),
        Door::new(HTTP, &nsq.http_address, DoorKind::Http),
        Door::new(LOOKUP_HTTP, &nsq.lookup_http_address, DoorKind::Http),
        Door::new(HTTPS, &nsq.https_address, DoorKind::Https).guarded_if(
            certificates || nsq.tls_cert.is_none(),
            "ask for clients' certificates (nsq.tls_required and nsq.tls_client_auth_policy = \
             \"require-verify\"), or ",
        ),
    ]
}

/// State that all NSQ connections share.
pub(crate) struct NsqFront {
    /// Limits and defaults of sessions.
    options: Arc<SessionOptions>,
    /// The options of new channels: the configured dead letters and limits.
    channel_policy: Arc<ChannelPolicy>,
    /// Connected clients, for NSQ's own statistics.
    clients: Arc<Clients>,
    /// Options that `/config` can change at run time.
    runtime: Arc<RuntimeOptions>,
    tls: Option<Arc<ServerConfig>>,
    /// TLS with auth services.
    auth_tls: ClientTls,
    /// Throttles the log's lines about connections that ended in an error.
    closed_throttle: Mutex<LogThrottle>,
    /// Throttles the log's lines about auth services that did not answer.
    auth_throttle: Mutex<LogThrottle>,
}

impl NsqFront {
    fn open(opening: FrontOpening<'_>) -> Result<Arc<dyn Front>, StartError> {
        let config = opening.config;
        let level = config::log_level(config.general.log_level);
        let lookupds = config.nsq.lookupd_tcp_address.clone();
        Ok(Arc::new(NsqFront {
            options: Arc::new(config::session_options(config)),
            channel_policy: config::channel_policy(config),
            clients: Clients::new(),
            runtime: Arc::new(RuntimeOptions::new(lookupds, level)),
            tls: opening.tls,
            auth_tls: ClientTls::default(),
            closed_throttle: Mutex::default(),
            auth_throttle: Mutex::default(),
        }))
    }
}

impl Front for NsqFront {
    fn serve(self: Arc<Self>, accepted: AcceptedConnection) -> LocalFuture {
        Box::pin(connection::serve(self, accepted))
    }

    fn http(self: Arc<Self>, context: &Arc<ServerContext>) -> Vec<HttpDoor> {
        http::doors(&self, context)
    }

    fn tasks(self: Arc<Self>, context: &Arc<ServerContext>) -> Vec<Task> {
        vec![Box::pin(lookup_peer::run(self, Arc::clone(context)))]
    }

    fn subscription_options(&self, topic: &str, name: &str) -> Option<SubscriptionOptions> {
        Some((self.channel_policy)(topic, name))
    }

    fn on_log_level(&self, change: Arc<dyn Fn(tracing::Level) + Send + Sync>) {
        self.runtime.on_change(move |values| {
            change(match values.log_level {
                LogLevel::Debug => tracing::Level::DEBUG,
                LogLevel::Info => tracing::Level::INFO,
                LogLevel::Warn => tracing::Level::WARN,
                LogLevel::Error | LogLevel::Fatal => tracing::Level::ERROR,
            });
        });
    }
}
