//! An echo connection: the session that the driver runs.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use cloverleaf_echo::Session;
use parking_lot::Mutex;

use super::{EchoFront, REGISTRATION};
use crate::connection::io::ConnectionIo;
use crate::connection::{self, Link};
use crate::fronts::AcceptedConnection;
use crate::log_throttle::LogThrottle;

/// Serves a connection from its first byte to its end.
pub(super) async fn serve(front: Arc<EchoFront>, accepted: AcceptedConnection) {
    let (stream, peer) = (accepted.stream, accepted.peer);
    let context = Arc::clone(&accepted.core.server);
    let now = connection::now(&context);
    let probe = context.registry.open(REGISTRATION.protocol, peer, now.us);
    probe.attach_socket(stream.as_raw_fd());
    let io = ConnectionIo::new(stream, peer, REGISTRATION.protocol, &context);
    connection::serve(Session::new(probe), EchoLink(front), io, peer, context).await;
}

struct EchoLink(Arc<EchoFront>);

impl Link for EchoLink {
    type Session = Session;

    /// Never used: there is no TLS.
    const HANDSHAKE_TIMEOUT_US: u64 = 0;

    fn write_timeout_us(&self, _session: &Session) -> Option<u64> {
        None
    }

    fn closed_throttle(&self) -> &Mutex<LogThrottle> {
        &self.0.closed_throttle
    }
}
