//! Drives one NSQ session over one socket: reads, writes, waits. The session decides everything
//! else.
//!
//! A connection owns a buffer only while something is stuck in it: half a command that was read,
//! or output that the peer has not taken. All reading and writing else goes through buffers that
//! the connections of a core share, so that an idle connection costs a few kilobytes.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cloverleaf_nsq::authorization::Authorizations;
use cloverleaf_nsq::identify::Compression;
use cloverleaf_nsq::stats_clients::ClientTls;
use cloverleaf_nsq::{Now, Request, Session, SessionParts};
use cloverleaf_telemetry::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::context::{CoreContext, ServerContext};
use crate::nsq_auth::{Question, ask};
use crate::nsq_auth_name::common_name;
use crate::nsq_connection_io::{Broken, Io, Progress, Scratch};
use crate::transport::{LayerError, Layers};

/// Bytes that one connection reads and writes before it lets others of its core have a turn.
const TURN_BYTES: usize = 256 * 1024;

/// How long a TLS handshake may take, as in nsqd.
const HANDSHAKE_TIMEOUT_US: u64 = 5_000_000;

/// After an error frame: how long, and for how many bytes, we go on reading so that the frame is
/// not destroyed by a reset before the peer has read it.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 256 * 1024;

thread_local! {
    /// The buffers that all connections of a core share.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Serves a connection from its first byte to its end.
pub(crate) async fn serve(stream: TcpStream, peer: SocketAddr, core: Rc<CoreContext>) {
    let context = Arc::clone(&core.server);
    let mut connection = Connection::new(stream, peer, context);
    let ending = poll_fn(|cx| connection.poll_turn(cx)).await;
    connection.end(ending).await;
}

/// How a connection came to its end.
#[derive(Debug)]
enum Ending {
    /// The session said its last word and it is written.
    Said,
    /// The socket failed, mostly because the peer went.
    Gone(std::io::Error),
    /// A layer failed.
    Layer(LayerError),
    /// The peer did not take our output in time.
    Stuck,
    /// TLS was negotiated but the handshake did not come to an end.
    NoHandshake,
}

impl From<Broken> for Ending {
    fn from(broken: Broken) -> Ending {
        match broken {
            Broken::Socket(error) => Ending::Gone(error),
            Broken::Layer(error) => Ending::Layer(error),
        }
    }
}

impl From<LayerError> for Ending {
    fn from(error: LayerError) -> Ending {
        Ending::Layer(error)
    }
}

type AuthAnswer = Pin<Box<dyn Future<Output = Option<Authorizations>>>>;

struct Connection {
    // Before the socket: its probe refers to the socket.
    session: Session,
    io: Io,
    peer: SocketAddr,
    context: Arc<ServerContext>,
    auth: Option<AuthAnswer>,
    /// Resolves when the broker shuts down.
    draining: Option<Pin<Box<dyn Future<Output = ()>>>>,
    sleep: Option<Pin<Box<Sleep>>>,
    sleep_due_us: u64,
    handshake_since_us: Option<u64>,
}

impl Connection {
    fn new(stream: TcpStream, peer: SocketAddr, context: Arc<ServerContext>) -> Connection {
        let now = now(&context);
        let connected_s = i64::try_from(now.unix_us / 1_000_000).unwrap_or(i64::MAX);
        let client = context.nsq_clients.connect(peer.to_string(), connected_s);
        let probe = context.registry.open(Protocol::Nsq, peer, now.us);
        probe.attach_socket(stream.as_raw_fd());
        let parts = SessionParts {
            broker: context.broker.clone(),
            options: Arc::clone(&context.nsq),
            channel_policy: Arc::clone(&context.nsq_channel_policy),
            client,
            probe,
        };
        let mut receiver = context.draining();
        let draining = Box::pin(async move {
            // An error means that the context is gone, which is an end too.
            let _ = receiver.wait_for(|draining| *draining).await;
        });
        Connection {
            session: Session::new(parts, now),
            io: Io::new(stream),
            peer,
            context,
            auth: None,
            draining: Some(draining),
            sleep: None,
            sleep_due_us: u64::MAX,
            handshake_since_us: None,
        }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        SCRATCH.with_borrow_mut(|scratch| self.turn(scratch, cx))
    }

    /// Reads, executes and writes until nothing moves or the turn is over.
    fn turn(&mut self, scratch: &mut Scratch, cx: &mut Context<'_>) -> Poll<Ending> {
        if self
            .draining
            .as_mut()
            .is_some_and(|it| it.as_mut().poll(cx).is_ready())
        {
            self.draining = None;
            self.session.drain();
        }
        let mut bytes_left = TURN_BYTES;
        loop {
            let now = now(&self.context);
            let moved = match self.step(scratch, cx, now) {
                Ok(moved) => moved,
                Err(ending) => return Poll::Ready(ending),
            };
            if self.io.is_flushed() && self.session.is_ended() {
                return Poll::Ready(Ending::Said);
            }
            let Progress::Bytes(bytes) = moved else {
                if self.is_overdue(now) {
                    return Poll::Ready(self.overdue());
                }
                // Else this would be the same step over and over.
                debug_assert!(self.due_us() > now.us, "what is due was not done");
                if self.sleep_until_due(cx, now).is_ready() {
                    continue;
                }
                return Poll::Pending;
            };
            bytes_left = bytes_left.saturating_sub(bytes);
            if bytes_left == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn step(
        &mut self,
        scratch: &mut Scratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, Ending> {
        self.poll_auth(cx, now);
        let wanted_input = self.session.wants_input();
        let read = self.io.read(&mut self.session, scratch, cx, now)?;
        if self.handshake_since_us.is_some() && !self.io.is_handshaking() {
            self.handshake_since_us = None;
            let facts = self.io.layers().and_then(Layers::tls_facts);
            self.session.tls_negotiated(facts.unwrap_or_default());
        }
        let written = self.io.write(&mut self.session, scratch, cx, now)?;
        let mut moved = read.and(written);
        if !wanted_input && self.session.wants_input() {
            // Nothing was read in this step, so no waker is registered for what may have come.
            moved = moved.and(Progress::Bytes(0));
        }
        if moved == Progress::None
            && self.io.is_flushed()
            && let Some(request) = self.session.take_request()
        {
            self.grant(request, now)?;
            return Ok(Progress::Bytes(0));
        }
        Ok(moved)
    }

    /// Does what the session cannot do itself.
    fn grant(&mut self, request: Request, now: Now) -> Result<(), Ending> {
        match request {
            Request::Tls => {
                let Some(config) = &self.context.tls else {
                    // Never offered without a configuration, see `SessionOptions::tls`.
                    return Err(Ending::NoHandshake);
                };
                self.io
                    .upgrade(|layers| layers.add_tls(Arc::clone(config)))?;
                self.handshake_since_us = Some(now.us);
                self.session.upgraded_to_tls(ClientTls::default());
            }
            Request::Compress(compression) => {
                self.io.upgrade(|layers| {
                    layers.add_compression(compression);
                    Ok(())
                })?;
                self.session.upgraded_to(compression);
                let name = match compression {
                    Compression::Snappy => "snappy",
                    Compression::Deflate(_) => "deflate",
                };
                tracing::debug!(peer = %self.peer, name, "connection is compressed");
            }
            Request::Authorize(secret) => {
                let layers = self.io.layers();
                let certificate = layers.and_then(Layers::client_certificate);
                let question = Question {
                    remote_ip: self.peer.ip(),
                    tls: layers.is_some_and(Layers::has_tls),
                    common_name: certificate.map(common_name).unwrap_or_default(),
                    secret,
                };
                let context = Arc::clone(&self.context);
                self.auth = Some(Box::pin(ask(context, question, self.peer)));
            }
        }
        Ok(())
    }

    fn poll_auth(&mut self, cx: &mut Context<'_>, now: Now) {
        if let Some(auth) = &mut self.auth
            && let Poll::Ready(answer) = auth.as_mut().poll(cx)
        {
            self.auth = None;
            self.session.authorized(answer, now);
        }
    }

    /// The time at which something has to happen although nothing moves.
    fn due_us(&self) -> u64 {
        // A session whose output is stuck is not asked for more: its own times do not count then.
        let mut due_us = match self.io.is_flushed() {
            true => self.session.due_us(),
            false => u64::MAX,
        };
        if let Some(since_us) = self.handshake_since_us {
            due_us = due_us.min(since_us + HANDSHAKE_TIMEOUT_US);
        }
        if let Some(stuck_us) = self.stuck_us() {
            due_us = due_us.min(stuck_us);
        }
        due_us
    }

    /// When output that the peer does not take is given up.
    fn stuck_us(&self) -> Option<u64> {
        let timeout_us = self.session.write_timeout_us()?;
        Some(self.io.unsent_since_us()? + timeout_us)
    }

    fn is_overdue(&self, now: Now) -> bool {
        let handshake = self
            .handshake_since_us
            .map(|since_us| since_us + HANDSHAKE_TIMEOUT_US);
        let earliest = [handshake, self.stuck_us()].into_iter().flatten().min();
        earliest.is_some_and(|due_us| now.us >= due_us)
    }

    fn overdue(&self) -> Ending {
        match self.handshake_since_us {
            Some(_) => Ending::NoHandshake,
            None => Ending::Stuck,
        }
    }

    /// Ready when the due time has come; else the waker will be woken then.
    fn sleep_until_due(&mut self, cx: &mut Context<'_>, now: Now) -> Poll<()> {
        let due_us = self.due_us();
        if due_us == u64::MAX {
            self.sleep = None;
            self.sleep_due_us = due_us;
            return Poll::Pending;
        }
        let timer = match &mut self.sleep {
            Some(timer) => timer,
            None => self.sleep.insert(Box::pin(sleep(Duration::ZERO))),
        };
        if self.sleep_due_us != due_us {
            // The timer works in milliseconds; a little later is better than a turn too early.
            let wait = Duration::from_micros(due_us.saturating_sub(now.us) + 1);
            timer.as_mut().reset(Instant::now() + wait);
            self.sleep_due_us = due_us;
        }
        timer
            .as_mut()
            .poll(cx)
            .map(|()| self.sleep_due_us = u64::MAX)
    }

    /// Tells the log why the connection ended, if that is worth a line, and closes it.
    async fn end(self, ending: Ending) {
        let Connection {
            mut session,
            mut io,
            peer,
            ..
        } = self;
        let failure = session.take_failure();
        // What the client held goes to others at once, not after a slow farewell.
        drop(session);
        match &ending {
            Ending::Said => match &failure {
                Some(error) => tracing::warn!(%peer, %error, "connection closed"),
                None => tracing::debug!(%peer, "connection ended"),
            },
            Ending::Gone(error) => tracing::debug!(%peer, %error, "connection ended"),
            Ending::Layer(error) => tracing::warn!(%peer, %error, "connection closed"),
            Ending::Stuck => tracing::warn!(%peer, "connection closed: it takes no output"),
            Ending::NoHandshake => tracing::warn!(%peer, "connection closed: no TLS handshake"),
        }
        io.say_goodbye();
        if matches!(ending, Ending::Said | Ending::Layer(_)) {
            let (mut stream, at_end) = io.into_stream();
            // Errors do not matter any more: the connection is at its end.
            let _ = stream.shutdown().await;
            if !at_end {
                let _ = timeout(LINGER, linger(&mut stream)).await;
            }
        }
    }
}

async fn linger(stream: &mut TcpStream) {
    // On the heap, because an array would be part of every connection's future all its life.
    let mut bytes = vec![0; 4096];
    let mut left = LINGER_BYTES;
    while let Ok(read) = stream.read(&mut bytes).await {
        if read == 0 || read >= left {
            return;
        }
        left -= read;
    }
}

fn now(context: &ServerContext) -> Now {
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Now {
        us: context.now_us(),
        unix_us: u64::try_from(unix.as_micros()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
#[path = "nsq_connection_tests.rs"]
mod tests;
