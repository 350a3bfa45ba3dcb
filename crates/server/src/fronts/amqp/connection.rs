//! An AMQP connection: the session that the driver runs, with TLS from the first byte or without.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::Context;

use cloverleaf_access::{LoginError, LoginSuccess};
use cloverleaf_amqp::{Session, SessionParts};
use cloverleaf_session::Now;
use cloverleaf_telemetry::Protocol;
use parking_lot::Mutex;

use super::AmqpFront;
use crate::connection::io::ConnectionIo;
use crate::connection::{self, Awaited, Link, take_answer};
use crate::context::ServerContext;
use crate::fronts::AcceptedConnection;
use crate::log_throttle::{LogThrottle, log_closed};
use crate::verifications::verify;

/// How long a peer without heartbeats may take none of its output: the `send_timeout` of RabbitMQ's
/// listeners, whose library ranch sets it to this.
const WRITE_TIMEOUT_US: u64 = 30_000_000;

/// Serves a connection from its first byte to its end.
pub(super) async fn serve(front: Arc<AmqpFront>, accepted: AcceptedConnection) {
    let (stream, peer) = (accepted.stream, accepted.peer);
    let context = Arc::clone(&accepted.core.server);
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
    let tls = front.tls.clone().filter(|_| accepted.is_tls);
    let link = AmqpLink {
        front,
        is_tls: accepted.is_tls,
        context: Arc::clone(&context),
        verdict: None,
    };
    let mut io = ConnectionIo::new(stream, peer, Protocol::Amqp, &context);
    if let Some(config) = tls
        && let Err(error) = io.upgrade(|layers| layers.add_tls(config))
    {
        log_closed(link.closed_throttle(), peer, &error);
        return;
    }
    connection::serve(session, link, io, peer, context).await;
}

struct AmqpLink {
    front: Arc<AmqpFront>,
    is_tls: bool,
    context: Arc<ServerContext>,
    verdict: Awaited<Result<LoginSuccess, LoginError>>,
}

impl Link for AmqpLink {
    type Session = Session;

    /// The default of RabbitMQ (`ssl_handshake_timeout`).
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

    fn closed_throttle(&self) -> &Mutex<LogThrottle> {
        if self.is_tls {
            &self.front.tls_closed_throttle
        } else {
            &self.front.closed_throttle
        }
    }

    #[inline]
    fn poll(&mut self, session: &mut Session, cx: &mut Context<'_>, _now: Now) {
        if let Some(verification) = session.take_verification() {
            let permits = Arc::clone(&self.context.verifications);
            self.verdict = Some(Box::pin(verify(permits, verification)));
        }
        if let Some(verdict) = take_answer(&mut self.verdict, cx) {
            session.logged_in(verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use cloverleaf_access::{Argon2Cost, Argon2id, User, Users};
    use cloverleaf_amqp::SessionOptions;
    use cloverleaf_amqp::host::VirtualHost;
    use cloverleaf_amqp::wire::{FRAME_END, Method, PROTOCOL_HEADER, Table, Writer, method};
    use cloverleaf_broker::Realm;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::OwnedSemaphorePermit;
    use tokio::task::LocalSet;
    use tokio::time::timeout;

    use super::*;
    use crate::test_context::{PATIENCE, bytes_in, connect_to, context, core, until};

    /// An AMQP front with these options.
    fn front(context: &ServerContext, options: SessionOptions) -> Arc<AmqpFront> {
        Arc::new(AmqpFront {
            options: Arc::new(options),
            host: VirtualHost::open(Realm::unrestricted(context.broker.clone())).unwrap(),
            tls: None,
            router: Mutex::default(),
            closed_throttle: Mutex::default(),
            tls_closed_throttle: Mutex::default(),
        })
    }

    /// The bytes that a client sends up to its login.
    fn login(user: &str) -> Vec<u8> {
        let response = format!("\0{user}\0secret");
        let start = method::ConnectionStartOk {
            client_properties: Table::default(),
            mechanism: "PLAIN",
            response: response.as_bytes(),
            locale: "en_US",
        };
        let mut payload = Vec::new();
        Method::ConnectionStartOk(start).write(&mut Writer::new(&mut payload));
        let size = (payload.len() as u32).to_be_bytes();
        let parts = [
            &PROTOCOL_HEADER[..],
            &[1, 0, 0],
            &size,
            &payload,
            &[FRAME_END],
        ];
        parts.concat()
    }

    /// Reads the next frame; returns its class and method.
    async fn next_method(client: &mut TcpStream) -> [u8; 4] {
        let mut header = [0; 7];
        let reading = async {
            client.read_exact(&mut header).await.unwrap();
            let size = u32::from_be_bytes(header[3..].try_into().unwrap());
            let mut rest = vec![0; size as usize + 1];
            client.read_exact(&mut rest).await.unwrap();
            *rest.first_chunk().unwrap()
        };
        timeout(PATIENCE, reading).await.unwrap()
    }

    /// Takes all permits to verify passwords.
    fn all_permits(context: &ServerContext) -> OwnedSemaphorePermit {
        let permits = Arc::clone(&context.verifications);
        let count = permits.available_permits() as u32;
        permits.try_acquire_many_owned(count).unwrap()
    }

    const START: [u8; 4] = [0, 10, 0, 10];
    const TUNE: [u8; 4] = [0, 10, 0, 30];

    #[test]
    fn a_slow_login_delays_no_other_client() {
        let cost = Argon2Cost {
            memory_kib: 8,
            passes: 1,
        };
        let slow = User::new("slow").with_argon2id(Argon2id::of(b"secret", cost).unwrap());
        let quick = User::new("quick").with_configured("secret");
        let context = context();
        let front = front(
            &context,
            SessionOptions {
                users: Arc::new(Users::from_iter([slow, quick])),
                ..SessionOptions::default()
            },
        );
        let serve = |accepted| serve(Arc::clone(&front), accepted);
        let core = core(&context);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, async {
            let held = all_permits(&context);
            let mut slow = connect_to(serve, &core).await;
            let bytes = login("slow");
            slow.write_all(&bytes).await.unwrap();
            assert_eq!(next_method(&mut slow).await, START);
            until(|| bytes_in(&context) == bytes.len() as u64).await;
            // The quick client is on the same thread, while the slow one has no permit to be
            // verified.
            let mut quick = connect_to(serve, &core).await;
            quick.write_all(&login("quick")).await.unwrap();
            assert_eq!(next_method(&mut quick).await, START);
            assert_eq!(next_method(&mut quick).await, TUNE);
            let nothing = slow.try_read(&mut [0]).unwrap_err();
            assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
            drop(held);
            assert_eq!(next_method(&mut slow).await, TUNE);
            // From now on its password is known, so that it needs no permit.
            let _held = all_permits(&context);
            let mut again = connect_to(serve, &core).await;
            again.write_all(&login("slow")).await.unwrap();
            assert_eq!(next_method(&mut again).await, START);
            assert_eq!(next_method(&mut again).await, TUNE);
        });
    }
}
