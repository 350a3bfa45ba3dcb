//! Listening sockets, and the acceptor that hands new connections to cores.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::SendError;

use crate::config::Config;
use crate::context::ServerContext;
use crate::cores::balance::{Balance, SAMPLE_INTERVAL};
use crate::cores::{CoreHandle, UnservedConnection};
use crate::fronts::{Door, DoorKind, Front, UnopenedFront};
use crate::log_throttle::LogThrottle;

/// Maximum connections that wait to be accepted. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Pause after a failed accept, which is mostly a lack of file descriptors: without a pause the
/// acceptor would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// An address that cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address} ({option}): {error}{}", self.hint())]
pub struct BindError {
    /// The address as configured.
    pub address: String,
    /// Name of the option.
    pub option: &'static str,
    /// The system's error.
    pub error: io::Error,
}

impl BindError {
    /// A remedy for the error, if there is one.
    fn hint(&self) -> String {
        if self.error.kind() != io::ErrorKind::AddrInUse {
            return String::new();
        }
        let flag = self.option.replace(['.', '_'], "-");
        format!(
            ". Another program has it, or another broker: end that one, or choose another address \
             with --{flag}"
        )
    }
}

/// The option with the address of the admin interface.
pub(crate) const ADMIN: &str = "admin_address";

/// The admin interface, which belongs to no protocol.
pub(crate) fn admin_door(config: &Config) -> Door<'_> {
    Door::new(ADMIN, &config.general.admin_address, DoorKind::Http)
}

/// A door that is open: its option, and its socket.
pub(crate) struct BoundDoor {
    pub(crate) option: &'static str,
    pub(crate) kind: DoorKind,
    pub(crate) listener: StdListener,
    /// The index of its protocol among the loaded ones; `None`: the admin interface.
    pub(crate) front: Option<usize>,
}

impl BoundDoor {
    /// The option, and the address that the socket is bound to.
    pub(crate) fn address(&self) -> io::Result<(&'static str, SocketAddr)> {
        Ok((self.option, self.listener.local_addr()?))
    }
}

/// Listens on all addresses except those that are off, and those that need the certificate of a
/// protocol that has none.
///
/// # Errors
/// An address is taken, not ours, or does not resolve.
pub(crate) fn bind_all(
    config: &Config,
    protocols: &[UnopenedFront],
) -> Result<Vec<BoundDoor>, BindError> {
    let mut doors = vec![(None, admin_door(config))];
    for (front, protocol) in protocols.iter().enumerate() {
        let own = (protocol.registration.doors)(config).into_iter();
        let own = own.filter(|door| protocol.tls.is_some() || !door.kind.needs_tls());
        doors.extend(own.map(|door| (Some(front), door)));
    }
    // If several addresses are taken, the error names one for clients before one of an HTTP
    // interface.
    doors.sort_by_key(|(_, door)| door.kind.is_http());
    let open = doors.iter().filter(|(_, door)| !door.address.is_off());
    let bound = open.map(|(front, door)| {
        let listener = bind_any(&door.address.0).map_err(|error| BindError {
            address: door.address.to_string(),
            option: door.option,
            error,
        })?;
        Ok(BoundDoor {
            option: door.option,
            kind: door.kind,
            listener,
            front: *front,
        })
    });
    bound.collect()
}

/// Binds the first of a name's addresses that can be bound.
fn bind_any(address: &str) -> io::Result<StdListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match bind_one(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_one(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A restarted broker must not wait for the old one's connections to leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A socket whose connections the cores serve.
pub(crate) struct SessionListener {
    pub(crate) listener: TcpListener,
    pub(crate) front: Arc<dyn Front>,
    /// Whether connections speak TLS from the first byte.
    pub(crate) is_tls: bool,
}

/// Accepts connections of all listeners until the broker drains. The cores are dropped at the end,
/// which tells their threads that no more connections will come.
pub(crate) async fn accept_all(
    listeners: Vec<SessionListener>,
    cores: Vec<CoreHandle>,
    context: Arc<ServerContext>,
) {
    let acceptor = parking_lot::Mutex::new(Acceptor {
        balance: Balance::new(cores.len()),
        cores,
        connections_max: context.config.general.connections_max as usize,
        refused: LogThrottle::default(),
    });
    let sampling = async {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        loop {
            interval.tick().await;
            acceptor.lock().sample();
        }
    };
    let mut accepting = Vec::new();
    for listener in listeners {
        accepting.push(Box::pin(accept(listener, &acceptor)));
    }
    let all = async {
        // Each loop ends only with the broker, so polling all of them on every wake-up is enough:
        // there are only a few per protocol.
        std::future::poll_fn(|cx| {
            for listener in &mut accepting {
                let _ = listener.as_mut().poll(cx);
            }
            std::task::Poll::<()>::Pending
        })
        .await;
    };
    tokio::select! {
        () = sampling => {}
        () = all => {}
        () = context.drained() => {}
    }
}

async fn accept(from: SessionListener, acceptor: &parking_lot::Mutex<Acceptor>) {
    let mut failed = LogThrottle::default();
    loop {
        match from.listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
                }
                match stream.into_std() {
                    Ok(stream) => acceptor.lock().hand_over(UnservedConnection {
                        stream,
                        peer,
                        front: Arc::clone(&from.front),
                        is_tls: from.is_tls,
                    }),
                    Err(error) => tracing::warn!(%peer, %error, "a connection cannot be served"),
                }
            }
            Err(error) => {
                if let Some(times) = failed.count() {
                    tracing::warn!(times, %error, "connections cannot be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Acceptor {
    balance: Balance,
    cores: Vec<CoreHandle>,
    connections_max: usize,
    refused: LogThrottle,
}

impl Acceptor {
    fn sample(&mut self) {
        self.balance.sample(&self.cores);
    }

    fn hand_over(&mut self, accepted: UnservedConnection) {
        let open: usize = self.cores.iter().map(|core| core.load.connections()).sum();
        if open >= self.connections_max {
            if let Some(refused) = self.refused.count() {
                let connections_max = self.connections_max;
                tracing::warn!(
                    refused,
                    connections_max,
                    "connections refused: too many are open"
                );
            }
            return;
        }
        let mut accepted = Some(accepted);
        while let Some(connection) = accepted.take() {
            let Some(core) = self.balance.choose(&self.cores) else {
                // All cores have ended; each end was logged when it was found.
                return;
            };
            let Some(chosen) = self.cores.get(core) else {
                return;
            };
            if let Err(SendError(back)) = chosen.sender.send(connection) {
                chosen.load.release();
                tracing::error!(core, "a core has ended and gets no more connections");
                self.balance.exclude(core);
                accepted = Some(back);
            }
        }
    }
}
