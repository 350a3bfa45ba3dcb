//! Echo: a protocol of tests, to show that one more costs what the page says ("How to add a
//! protocol" in `ARCHITECTURE.md`), and that all that is asked of protocols is asked of it.

mod connection;
mod tests;

use std::sync::{Arc, LazyLock};

use axum::routing::get;
use axum::{Json, Router};
use cloverleaf_telemetry::{MetricKind, MetricText, Protocol};
use parking_lot::Mutex;

use super::{AdminPart, Door, DoorKind, Front, LocalFuture, Registration, Visitor};
use crate::config::Config;
use crate::config::value::ListenAddress;
use crate::context::ServerContext;
use crate::repeats::Repeats;

/// The name under which its address is found.
const ADDRESS: &str = "echo.address";

/// A section of the options would be seen in the product.
static LOOPBACK: LazyLock<ListenAddress> = LazyLock::new(|| ListenAddress("127.0.0.1:0".into()));

static REGISTRATION: Registration = Registration {
    // The list of tags is the product's: this one is in it, and no front has it yet.
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
    /// Connections that ended in an error.
    noise: Mutex<Repeats>,
}

impl Front for EchoFront {
    fn serve(self: Arc<Self>, visitor: Visitor) -> LocalFuture {
        Box::pin(connection::serve(self, visitor))
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
