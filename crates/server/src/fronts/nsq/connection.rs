//! An NSQ connection: the session that the driver runs, and NSQ's additions: upgrades to TLS,
//! Snappy and Deflate in the middle of a connection, and requests to the auth service.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::Context;

use cloverleaf_broker::Realm;
use cloverleaf_nsq::authorization::Authorizations;
use cloverleaf_nsq::identify::Compression;
use cloverleaf_nsq::stats::clients::ClientTls;
use cloverleaf_nsq::{DriverTask, Session, SessionParts};
use cloverleaf_session::Now;
use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;

use super::NsqFront;
use super::auth::{AuthRequest, ask};
use super::auth_name::common_name;
use crate::connection::io::{ConnectionIo, Progress};
use crate::connection::{self, Awaited, CloseReason, Link, take_answer};
use crate::context::ServerContext;
use crate::fronts::AcceptedConnection;
use crate::log_throttle::LogThrottle;
use crate::transport::Layers;

/// Serves a connection from its first byte to its end.
pub(super) async fn serve(front: Arc<NsqFront>, accepted: AcceptedConnection) {
    let (stream, peer) = (accepted.stream, accepted.peer);
    let context = Arc::clone(&accepted.core.server);
    let now = connection::now(&context);
    let connected_s = i64::try_from(now.unix_us / 1_000_000).unwrap_or(i64::MAX);
    let client = front.clients.connect(peer.to_string(), connected_s);
    let probe = context.registry.open(Protocol::Nsq, peer, now.us);
    probe.attach_socket(stream.as_raw_fd());
    let parts = SessionParts {
        realm: Realm::unrestricted(context.broker.clone()),
        options: Arc::clone(&front.options),
        channel_policy: Arc::clone(&front.channel_policy),
        client,
        probe,
    };
    let link = NsqLink {
        front,
        peer,
        context: Arc::clone(&context),
        auth: None,
    };
    let io = ConnectionIo::new(stream, peer, Protocol::Nsq, &context);
    connection::serve(Session::new(parts, now), link, io, peer, context).await;
}

struct NsqLink {
    front: Arc<NsqFront>,
    peer: SocketAddr,
    context: Arc<ServerContext>,
    auth: Awaited<Option<Authorizations>>,
}

impl Link for NsqLink {
    type Session = Session;

    /// The default of nsqd.
    const HANDSHAKE_TIMEOUT_US: u64 = 5_000_000;

    fn write_timeout_us(&self, session: &Session) -> Option<u64> {
        session.write_timeout_us()
    }

    fn take_failed_login(&self, session: &mut Session) -> bool {
        session.take_failed_login()
    }

    fn closed_throttle(&self) -> &Mutex<LogThrottle> {
        &self.front.closed_throttle
    }

    #[inline]
    fn poll(&mut self, session: &mut Session, cx: &mut Context<'_>, now: Now) {
        if let Some(answer) = take_answer(&mut self.auth, cx) {
            session.authorized(answer, now);
        }
    }

    fn on_handshake_done(&mut self, session: &mut Session, layers: Option<&Layers>) {
        let facts = layers.and_then(Layers::tls_facts);
        session.tls_negotiated(facts.unwrap_or_default());
    }

    #[inline]
    fn when_idle(
        &mut self,
        session: &mut Session,
        io: &mut ConnectionIo,
        _now: Now,
    ) -> Result<Progress, CloseReason> {
        match session.take_driver_task() {
            Some(request) => self.serve_request(request, session, io),
            None => Ok(Progress::None),
        }
    }
}

impl NsqLink {
    /// Does the work that the session asks of its driver.
    fn serve_request(
        &mut self,
        request: DriverTask,
        session: &mut Session,
        io: &mut ConnectionIo,
    ) -> Result<Progress, CloseReason> {
        match request {
            DriverTask::Tls => {
                let Some(config) = &self.front.tls else {
                    // Never offered without a configuration, see `SessionOptions::tls`.
                    return Err(CloseReason::NoHandshake);
                };
                io.upgrade(|layers| layers.add_tls(Arc::clone(config)))?;
                session.upgraded_to_tls(ClientTls::default());
            }
            DriverTask::Compress(compression) => {
                io.upgrade(|layers| {
                    layers.add_compression(compression);
                    Ok(())
                })?;
                session.upgraded_to(compression);
                let name = match compression {
                    Compression::Snappy => "snappy",
                    Compression::Deflate(_) => "deflate",
                };
                tracing::debug!(peer = %self.peer, name, "connection is compressed");
            }
            DriverTask::Authorize(secret) => self.authorize(secret, io),
        }
        Ok(Progress::Bytes(0))
    }

    fn authorize(&mut self, secret: String, io: &ConnectionIo) {
        let layers = io.layers();
        let certificate = layers.and_then(Layers::client_certificate);
        let question = AuthRequest {
            remote_ip: self.peer.ip(),
            tls: layers.is_some_and(Layers::has_tls),
            common_name: certificate.map(common_name).unwrap_or_default(),
            secret,
        };
        let (front, context) = (Arc::clone(&self.front), Arc::clone(&self.context));
        self.auth = Some(Box::pin(ask(front, context, question, self.peer)));
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
