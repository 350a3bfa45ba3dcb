//! A Kafka connection: the session that the driver runs, with TLS from the first byte or without.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use cloverleaf_kafka::control::Peer;
use cloverleaf_kafka::{Session, SessionParts};
use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::net::TcpStream;

use crate::connection::{self, Link};
use crate::connection_io::Io;
use crate::context::{CoreContext, ServerContext};
use crate::repeats::{Repeats, tell_closed};

/// Serves a connection from its first byte to its end.
pub(crate) async fn serve(stream: TcpStream, peer: SocketAddr, core: Rc<CoreContext>) {
    serve_as(stream, peer, core, None).await;
}

/// Serves a connection over TLS from its first byte to its end.
pub(crate) async fn serve_tls(stream: TcpStream, peer: SocketAddr, core: Rc<CoreContext>) {
    // Nothing listens for TLS without it.
    let Some(config) = core.server.kafka_tls.clone() else {
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
    let parts = SessionParts {
        context: Arc::clone(&context.kafka),
        peer: Peer {
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
        idle_timeout_us: u64::try_from(idle_timeout.as_micros()).unwrap_or(u64::MAX),
        is_tls: tls.is_some(),
    };
    let mut io = Io::new(stream, peer, Protocol::Kafka, &context);
    if let Some(config) = tls
        && let Err(error) = io.upgrade(|layers| layers.add_tls(config))
    {
        tell_closed(link.noise(&context), peer, &error);
        return;
    }
    connection::serve(session, link, io, peer, context).await;
}

struct KafkaLink {
    idle_timeout_us: u64,
    is_tls: bool,
}

impl Link for KafkaLink {
    type Session = Session;

    /// As long as Kafka's clients wait for it (`socket.connection.setup.timeout.max.ms`).
    const HANDSHAKE_TIMEOUT_US: u64 = 30_000_000;

    fn write_timeout_us(&self, _session: &Session) -> Option<u64> {
        Some(self.idle_timeout_us)
    }

    fn idle_timeout_us(&self) -> Option<u64> {
        Some(self.idle_timeout_us)
    }

    fn noise<'a>(&self, context: &'a ServerContext) -> &'a Mutex<Repeats> {
        match self.is_tls {
            true => &context.noise.kafka_tls,
            false => &context.noise.kafka,
        }
    }
}
