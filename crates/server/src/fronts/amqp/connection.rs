//! An AMQP connection: the session that the driver runs, with TLS from the first byte or without.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use cloverleaf_amqp::{Session, SessionParts};
use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::net::TcpStream;

use crate::connection::{self, Link};
use crate::connection_io::Io;
use crate::context::{CoreContext, ServerContext};
use crate::repeats::{Repeats, tell_closed};

/// How long a peer that does not ask for heartbeats may take none of its output: as long as
/// RabbitMQ lets a write take.
const WRITE_TIMEOUT_US: u64 = 30_000_000;

/// Serves a connection from its first byte to its end.
pub(crate) async fn serve(stream: TcpStream, peer: SocketAddr, core: Rc<CoreContext>) {
    serve_as(stream, peer, core, None).await;
}

/// Serves a connection over TLS from its first byte to its end.
pub(crate) async fn serve_tls(stream: TcpStream, peer: SocketAddr, core: Rc<CoreContext>) {
    // Nothing listens for TLS without it.
    let Some(config) = core.server.amqp_tls.clone() else {
        return;
    };
    serve_as(stream, peer, core, Some(config)).await;
}

async fn serve_as(
    stream: TcpStream,
    peer: SocketAddr,
    core: Rc<CoreContext>,
    tls: Option<Arc<ServerConfig>>,
) {
    let context = Arc::clone(&core.server);
    let now = connection::now(&context);
    let probe = context.registry.open(Protocol::Amqp, peer, now.us);
    probe.attach_socket(stream.as_raw_fd());
    let parts = SessionParts {
        host: Arc::clone(&context.amqp_host),
        options: Arc::clone(&context.amqp),
        probe,
        peer,
    };
    let session = Session::new(parts, now);
    let link = AmqpLink {
        is_tls: tls.is_some(),
    };
    let mut io = Io::new(stream, peer, Protocol::Amqp, &context);
    if let Some(config) = tls
        && let Err(error) = io.upgrade(|layers| layers.add_tls(config))
    {
        tell_closed(link.noise(&context), peer, &error);
        return;
    }
    connection::serve(session, link, io, peer, context).await;
}

struct AmqpLink {
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

    fn noise<'a>(&self, context: &'a ServerContext) -> &'a Mutex<Repeats> {
        match self.is_tls {
            true => &context.noise.amqp_tls,
            false => &context.noise.amqp,
        }
    }
}
