//! AMQP: its connections, and the router's thread.

mod admin;
mod config;
mod connection;
mod metrics;
mod router;

use std::io;
use std::sync::Arc;

use cloverleaf_amqp::SessionOptions;
use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_broker::{Realm, Subscription};
use cloverleaf_telemetry::{MetricText, Protocol};
use parking_lot::Mutex;
use rustls::ServerConfig;

use self::router::AmqpRouter;
use super::{
    AcceptedConnection, AdminPart, Door, DoorKind, Front, FrontOpening, LocalFuture, Registration,
};
use crate::config::Config;
use crate::context::ServerContext;
use crate::log_throttle::LogThrottle;
use crate::server::StartError;
use crate::transport::tls::tls_settings;

pub(super) const REGISTRATION: Registration = Registration {
    protocol: Protocol::Amqp,
    doors,
    tls: |config| tls_settings!(config.amqp).for_listener(&config.amqp.tls_address),
    open: AmqpFront::open,
    forget_secrets: config::forget_passwords,
};

fn doors(config: &Config) -> Vec<Door<'_>> {
    let amqp = &config.amqp;
    let has_users = !amqp.user.0.is_empty();
    let doors = [
        Door::new("amqp.address", &amqp.address, DoorKind::Plain),
        Door::new("amqp.tls_address", &amqp.tls_address, DoorKind::Tls),
    ];
    let remedy = "say who may connect (amqp.user), or ";
    doors.map(|door| door.guarded_if(has_users, remedy)).into()
}

/// State that all AMQP connections share, and the router's thread.
pub(crate) struct AmqpFront {
    options: Arc<SessionOptions>,
    host: Arc<VirtualHost>,
    tls: Option<Arc<ServerConfig>>,
    router: Mutex<Option<AmqpRouter>>,
    /// Throttles the log's lines about plain connections that ended in an error.
    closed_throttle: Mutex<LogThrottle>,
    /// Throttles the log's lines about TLS connections that ended in an error.
    tls_closed_throttle: Mutex<LogThrottle>,
}

impl AmqpFront {
    fn open(opening: FrontOpening<'_>) -> Result<Arc<dyn Front>, StartError> {
        let options = config::host_options(opening.config);
        Ok(Arc::new(AmqpFront {
            options: Arc::new(config::session_options(opening.config)),
            host: VirtualHost::open_with(Realm::unrestricted(opening.broker.clone()), options)?,
            tls: opening.tls,
            router: Mutex::default(),
            closed_throttle: Mutex::default(),
            tls_closed_throttle: Mutex::default(),
        }))
    }
}

impl Front for AmqpFront {
    fn serve(self: Arc<Self>, accepted: AcceptedConnection) -> LocalFuture {
        Box::pin(connection::serve(self, accepted))
    }

    fn start(&self, context: &Arc<ServerContext>) -> io::Result<()> {
        let router = AmqpRouter::start(&self.host, context)?;
        *self.router.lock() = Some(router);
        Ok(())
    }

    fn stop(&self) {
        drop(self.router.lock().take());
    }

    fn admin(self: Arc<Self>, _context: &Arc<ServerContext>) -> AdminPart {
        admin::part(&self.host)
    }

    fn metrics(&self, text: &mut MetricText, _context: &ServerContext) {
        metrics::add(text, &self.host, &self.options);
    }

    fn hidden_queues(&self) -> Vec<(String, Arc<Subscription>)> {
        let queues = self.host.queues().into_iter();
        let hidden = queues.filter(|queue| queue.topic.options().hidden);
        let named = hidden.map(|queue| (queue.name.to_string(), Arc::clone(&queue.subscription)));
        named.collect()
    }
}
