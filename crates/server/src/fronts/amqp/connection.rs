//! An AMQP connection: the session that the driver runs, with TLS from the first byte or without.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use cloverleaf_amqp::{Session, SessionParts};
use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;

use super::AmqpFront;
use crate::connection::{self, Link};
use crate::connection_io::Io;
use crate::fronts::Visitor;
use crate::repeats::{Repeats, tell_closed};

/// How long a peer that does not ask for heartbeats may take none of its output: as long as
/// RabbitMQ lets a write take.
const WRITE_TIMEOUT_US: u64 = 30_000_000;

/// Serves a connection from its first byte to its end.
pub(super) async fn serve(front: Arc<AmqpFront>, visitor: Visitor) {
    let (stream, peer) = (visitor.stream, visitor.peer);
    let context = Arc::clone(&visitor.core.server);
    let now = connection::now(&context);
    let probe = context.registry.open(Protocol::Amqp, peer, now.us);
    probe.attach_socket(stream.as_raw_fd());
    let parts = SessionParts {
        host: Arc::clone(&front.host),
        options: Arc::clone(&front.options),
        probe,
        peer,
    };
    let session = Session::new(parts, now);
    let tls = front.tls.clone().filter(|_| visitor.is_tls);
    let link = AmqpLink {
        front,
        is_tls: visitor.is_tls,
    };
    let mut io = Io::new(stream, peer, Protocol::Amqp, &context);
    if let Some(config) = tls
        && let Err(error) = io.upgrade(|layers| layers.add_tls(config))
    {
        tell_closed(link.noise(), peer, &error);
        return;
    }
    connection::serve(session, link, io, peer, context).await;
}

struct AmqpLink {
    front: Arc<AmqpFront>,
    is_tls: bool,
}

impl Link for AmqpLink {
    type Session = Session;

    /// As RabbitMQ (`ssl_handshake_timeout`).
    const HANDSHAKE_TIMEOUT_US: u64 = 5_000_000;

    fn write_timeout_us(&self, session: &Session) -> Option<u64> {
        session.write_timeout_us().or(Some(WRITE_TIMEOUT_US))
    }

    fn peer_closes_first(&self, session: &Session) -> bool {
        session.said_goodbye()
    }

    fn take_failed_login(&self, session: &mut Session) -> bool {
        session.take_failed_login()
    }

    fn noise(&self) -> &Mutex<Repeats> {
        match self.is_tls {
            true => &self.front.tls_noise,
            false => &self.front.noise,
        }
    }
}
