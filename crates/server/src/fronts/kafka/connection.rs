//! A Kafka connection: the session that the driver runs, with TLS from the first byte or without.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use cloverleaf_kafka::control::ConnectionPeer;
use cloverleaf_kafka::{Session, SessionParts};
use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;

use super::KafkaFront;
use crate::connection::io::ConnectionIo;
use crate::connection::{self, Link};
use crate::fronts::AcceptedConnection;
use crate::log_throttle::{LogThrottle, log_closed};

/// Serves a connection from its first byte to its end.
pub(super) async fn serve(front: Arc<KafkaFront>, accepted: AcceptedConnection) {
    let (stream, peer) = (accepted.stream, accepted.peer);
    let context = Arc::clone(&accepted.core.server);
    let local = match stream.local_addr() {
        Ok(local) => local,
        Err(error) => {
            tracing::debug!(%peer, %error, "connection ended");
            return;
        }
    };
    let now = connection::now(&context);
    let probe = context.registry.open(Protocol::Kafka, peer, now.us);
    probe.attach_socket(stream.as_raw_fd());
    let tls = front.tls.clone().filter(|_| accepted.is_tls);
    let parts = SessionParts {
        context: Arc::clone(&front.kafka),
        peer: ConnectionPeer {
            remote: peer,
            local,
            tls: tls.is_some(),
            software: None,
        },
        probe,
    };
    let session = Session::new(parts, now);
    let idle_timeout = context.config.kafka.idle_timeout;
    let link = KafkaLink {
        front,
        idle_timeout_us: u64::try_from(idle_timeout.as_micros()).unwrap_or(u64::MAX),
        is_tls: accepted.is_tls,
    };
    let mut io = ConnectionIo::new(stream, peer, Protocol::Kafka, &context);
    if let Some(config) = tls
        && let Err(error) = io.upgrade(|layers| layers.add_tls(config))
    {
        log_closed(link.closed_throttle(), peer, &error);
        return;
    }
    connection::serve(session, link, io, peer, context).await;
}

struct KafkaLink {
    front: Arc<KafkaFront>,
    idle_timeout_us: u64,
    is_tls: bool,
}

impl Link for KafkaLink {
    type Session = Session;

    /// The time that Kafka's clients wait for it (`socket.connection.setup.timeout.max.ms`).
    const HANDSHAKE_TIMEOUT_US: u64 = 30_000_000;

    fn write_timeout_us(&self, _session: &Session) -> Option<u64> {
        Some(self.idle_timeout_us)
    }

    fn idle_timeout_us(&self) -> Option<u64> {
        Some(self.idle_timeout_us)
    }

    fn closed_throttle(&self) -> &Mutex<LogThrottle> {
        if self.is_tls {
            &self.front.tls_closed_throttle
        } else {
            &self.front.closed_throttle
        }
    }
}
