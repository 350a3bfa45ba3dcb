//! Listening sockets, and the acceptor that hands new connections to cores.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::SendError;

use crate::balance::{Balance, SAMPLE_INTERVAL};
use crate::config_value::ListenAddress;
use crate::context::ServerContext;
use crate::cores::{Accepted, Core, Handler};
use crate::repeats::Repeats;

/// Connections that wait to be accepted. The kernel caps it at `net.core.somaxconn`.
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
    /// What the system says.
    pub error: io::Error,
}

impl BindError {
    /// What to do about it, where that is known.
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

/// Binds an address; `None` when it is off.
///
/// # Errors
/// The address is taken, not ours, or does not resolve.
pub(crate) fn bind(
    address: &ListenAddress,
    option: &'static str,
) -> Result<Option<StdListener>, BindError> {
    if address.is_off() {
        return Ok(None);
    }
    bind_any(&address.0).map(Some).map_err(|error| BindError {
        address: address.to_string(),
        option,
        error,
    })
}

/// Binds the first address of a name that can be bound.
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

/// Accepts connections of all listeners until the broker drains. Dropping the cores at the end
/// tells them that no more will come.
pub(crate) async fn accept_all(
    listeners: Vec<(TcpListener, Handler)>,
    cores: Vec<Core>,
    context: Arc<ServerContext>,
) {
    let acceptor = parking_lot::Mutex::new(Acceptor {
        balance: Balance::new(cores.len()),
        cores,
        connections_max: context.config.general.connections_max as usize,
        refused: Repeats::default(),
    });
    let sampling = async {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        loop {
            interval.tick().await;
            acceptor.lock().sample();
        }
    };
    let mut accepting = Vec::new();
    for (listener, handler) in listeners {
        accepting.push(Box::pin(accept(listener, handler, &acceptor)));
    }
    let all = async {
        // Each loop ends only with the broker, so polling all of them on every wake-up is enough:
        // there are as many as protocols.
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

async fn accept(listener: TcpListener, handler: Handler, acceptor: &parking_lot::Mutex<Acceptor>) {
    let mut failed = Repeats::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "TCP_NODELAY cannot be set");
                }
                match stream.into_std() {
                    Ok(stream) => acceptor.lock().hand_over(Accepted {
                        stream,
                        peer,
                        handler,
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
    cores: Vec<Core>,
    connections_max: usize,
    refused: Repeats,
}

impl Acceptor {
    fn sample(&mut self) {
        self.balance.sample(&self.cores);
    }

    fn hand_over(&mut self, accepted: Accepted) {
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
                // All cores have ended, which was said when each was found so.
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
