//! Echo: a protocol for tests. It shows that one more protocol costs no more than "How to add a
//! protocol" in `ARCHITECTURE.md` says, and that everything that asks all protocols asks this one
//! too.

mod connection;
mod tests;

use std::sync::{Arc, LazyLock};

use axum::routing::get;
use axum::{Json, Router};
use cloverleaf_telemetry::{MetricKind, MetricText, Protocol};
use parking_lot::Mutex;

use super::{AcceptedConnection, AdminPart, Door, DoorKind, Front, LocalFuture, Registration};
use crate::config::Config;
use crate::config::value::ListenAddress;
use crate::context::ServerContext;
use crate::log_throttle::LogThrottle;

/// The name under which its address is looked up.
const ADDRESS: &str = "echo.address";

/// A fixed address: an option of its own would appear in the product.
static LOOPBACK: LazyLock<ListenAddress> = LazyLock::new(|| ListenAddress("127.0.0.1:0".into()));

static REGISTRATION: Registration = Registration {
    // The list of tags is the product's. This tag is in the list, and has no front yet.
    protocol: Protocol::Nats,
    doors,
    tls: |_| Ok(None),
    open: |_| Ok(Arc::new(EchoFront::default())),
    forget_secrets: |_| {},
};

fn doors(_config: &Config) -> Vec<Door<'_>> {
    vec![Door::new(ADDRESS, &LOOPBACK, DoorKind::Plain)]
}

/// State that all echo connections share.
#[derive(Default)]
struct EchoFront {
    /// Throttles the log's lines about connections that ended in an error.
    closed_throttle: Mutex<LogThrottle>,
}

impl Front for EchoFront {
    fn serve(self: Arc<Self>, accepted: AcceptedConnection) -> LocalFuture {
        Box::pin(connection::serve(self, accepted))
    }

    fn admin(self: Arc<Self>, _context: &Arc<ServerContext>) -> AdminPart {
        AdminPart {
            router: Router::new().route("/api/echo", get(async || Json("echo"))),
            paths: &["/api/echo"],
        }
    }

    fn metrics(&self, text: &mut MetricText, _context: &ServerContext) {
        text.single(
            "cloverleaf_echo_fronts",
            MetricKind::Gauge,
            "It is open.",
            1.0,
        );
    }
}
