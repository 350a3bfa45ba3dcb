//! Drives one session over one socket: reads, writes, waits. The session decides everything else. A
//! protocol that needs more than a session, such as NSQ's upgrades, has it in its [`Link`].
//!
//! A connection owns a buffer only for a half received command, or for output that the peer has not
//! taken. All other reads and writes use buffers that the connections of a core share, so that an
//! idle connection costs a few kilobytes.

pub(crate) mod io;
mod output;

use std::cell::RefCell;
use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cloverleaf_session::{Now, Session};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::connection::io::{ConnectionIo, ConnectionScratch, Progress, TransportError};
use crate::context::ServerContext;
use crate::log_throttle::{LogThrottle, log_closed};
use crate::transport::{LayerError, Layers};

/// Bytes that one connection reads and writes before it lets others of its core have a turn.
const TURN_BYTES: usize = 256 * 1024;

/// How long we go on reading after the last frame: if unread input were left, the kernel would
/// reset the connection, and the peer could lose that frame.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long we wait for the peer to close the socket, if its protocol makes the peer close first.
const PEER_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

thread_local! {
    /// The buffers that all connections of a core share.
    static SCRATCH: RefCell<ConnectionScratch> = RefCell::new(ConnectionScratch::default());
}

/// The part of a protocol that the driver needs for one connection, in addition to the session.
pub(crate) trait Link {
    /// The protocol's session.
    type Session: Session;

    /// How long a TLS handshake may take.
    const HANDSHAKE_TIMEOUT_US: u64;

    /// A write that makes no progress for this long ends the connection, in microseconds.
    fn write_timeout_us(&self, session: &Self::Session) -> Option<u64>;

    /// A connection ends after this long without a byte in either direction, in microseconds.
    fn idle_timeout_us(&self) -> Option<u64> {
        None
    }

    /// Polls the futures that the link awaits for the session (for example an auth service's
    /// answer) and hands it their results. Called in each step.
    fn poll(&mut self, _session: &mut Self::Session, _cx: &mut Context<'_>, _now: Now) {}

    /// The log throttle for connections that ended in an error: one log line represents many.
    fn closed_throttle(&self) -> &Mutex<LogThrottle>;

    /// Whether the session has ended in a way in which the peer closes the socket first.
    fn peer_closes_first(&self, _session: &Self::Session) -> bool {
        false
    }

    /// Whether a wrong password has come since this was asked last.
    fn take_failed_login(&self, _session: &mut Self::Session) -> bool {
        false
    }

    /// Called once when the TLS handshake has finished.
    fn on_handshake_done(&mut self, _session: &mut Self::Session, _layers: Option<&Layers>) {}

    /// Called when all output is sent and no byte moves, for work that the session cannot do
    /// itself.
    fn when_idle(
        &mut self,
        _session: &mut Self::Session,
        _io: &mut ConnectionIo,
        _now: Now,
    ) -> Result<Progress, CloseReason> {
        Ok(Progress::None)
    }
}

/// An answer that a link waits for.
pub(crate) type Awaited<T> = Option<Pin<Box<dyn Future<Output = T>>>>;

/// Takes an answer once it is there; until then the waker is registered.
#[inline]
pub(crate) fn take_answer<T>(awaited: &mut Awaited<T>, cx: &mut Context<'_>) -> Option<T> {
    let Poll::Ready(answer) = awaited.as_mut()?.as_mut().poll(cx) else {
        return None;
    };
    *awaited = None;
    Some(answer)
}

/// Serves a connection from its first byte to its end.
pub(crate) async fn serve<L: Link>(
    session: L::Session,
    link: L,
    io: ConnectionIo,
    peer: SocketAddr,
    context: Arc<ServerContext>,
) {
    let mut connection = Connection::new(session, link, io, peer, context);
    let reason = poll_fn(|cx| connection.poll_turn(cx)).await;
    connection.end(reason).await;
}

/// How a connection came to its end.
#[derive(Debug)]
pub(crate) enum CloseReason {
    /// The session has ended and its last output is sent.
    Finished,
    /// The socket failed, mostly because the peer has closed it.
    SocketFailed(std::io::Error),
    /// A layer failed.
    Layer(LayerError),
    /// The peer did not take our output within the write timeout.
    WriteTimeout,
    /// The TLS handshake did not finish in time.
    NoHandshake,
    /// No byte moved in either direction for the idle timeout.
    IdleTimeout,
    /// A large command was half received, and its rest did not arrive in time, or other connections
    /// needed its memory.
    HalfReceived,
}

impl From<TransportError> for CloseReason {
    fn from(broken: TransportError) -> CloseReason {
        match broken {
            TransportError::Socket(error) => CloseReason::SocketFailed(error),
            TransportError::Layer(error) => CloseReason::Layer(error),
        }
    }
}

impl From<LayerError> for CloseReason {
    fn from(error: LayerError) -> CloseReason {
        CloseReason::Layer(error)
    }
}

struct Connection<L: Link> {
    // Dropped before the socket, because its probe refers to the socket.
    session: L::Session,
    io: ConnectionIo,
    link: L,
    peer: SocketAddr,
    context: Arc<ServerContext>,
    /// Resolves when the broker shuts down.
    drain_signal: Option<Pin<Box<dyn Future<Output = ()>>>>,
    sleep: Option<Pin<Box<Sleep>>>,
    sleep_due_us: u64,
    handshake_since_us: Option<u64>,
    /// Until when nothing is read or sent, because of a wrong password.
    silent_until_us: Option<u64>,
    /// When a byte moved last.
    active_us: u64,
    /// When the idle timeout is checked next.
    idle_check_us: u64,
}

impl<L: Link> Connection<L> {
    fn new(
        session: L::Session,
        link: L,
        io: ConnectionIo,
        peer: SocketAddr,
        context: Arc<ServerContext>,
    ) -> Connection<L> {
        let mut receiver = context.draining();
        let draining = Box::pin(async move {
            // An error means that the context is gone, which is an end too.
            let _ = receiver.wait_for(|draining| *draining).await;
        });
        let now = now(&context);
        Connection {
            idle_check_us: deadline_us(now.us, link.idle_timeout_us()),
            handshake_since_us: io.is_handshaking().then_some(now.us),
            silent_until_us: None,
            session,
            io,
            link,
            peer,
            context,
            drain_signal: Some(draining),
            sleep: None,
            sleep_due_us: u64::MAX,
            active_us: now.us,
        }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        SCRATCH.with_borrow_mut(|scratch| self.turn(scratch, cx))
    }

    /// Reads, executes and writes until nothing moves or the turn's bytes are used up.
    fn turn(&mut self, scratch: &mut ConnectionScratch, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if self
            .drain_signal
            .as_mut()
            .is_some_and(|it| it.as_mut().poll(cx).is_ready())
        {
            self.drain_signal = None;
            self.silent_until_us = None;
            self.session.drain();
        }
        let mut bytes_left = TURN_BYTES;
        loop {
            let now = now(&self.context);
            let moved = match self.step(scratch, cx, now) {
                Ok(moved) => moved,
                Err(reason) => return Poll::Ready(reason),
            };
            if self.io.is_flushed() && self.session.is_ended() {
                return Poll::Ready(CloseReason::Finished);
            }
            if self.session.wants_turn() {
                return yield_turn(cx);
            }
            let Progress::Bytes(bytes) = moved else {
                if let Some(reason) = self.exceeded_limit(now) {
                    return Poll::Ready(reason);
                }
                if self.sleep_until_due(cx, now).is_ready() {
                    continue;
                }
                return Poll::Pending;
            };
            bytes_left = bytes_left.saturating_sub(bytes);
            if bytes_left == 0 {
                return yield_turn(cx);
            }
        }
    }

    fn step(
        &mut self,
        scratch: &mut ConnectionScratch,
        cx: &mut Context<'_>,
        now: Now,
    ) -> Result<Progress, CloseReason> {
        if let Some(until_us) = self.silent_until_us {
            if now.us < until_us {
                return Ok(Progress::None);
            }
            self.silent_until_us = None;
        }
        self.link.poll(&mut self.session, cx, now);
        let wanted_input = self.session.wants_input();
        let read = self.io.read(&mut self.session, scratch, cx, now)?;
        if self.handshake_since_us.is_some() && !self.io.is_handshaking() {
            self.handshake_since_us = None;
            self.link
                .on_handshake_done(&mut self.session, self.io.layers());
        }
        if self.link.take_failed_login(&mut self.session) && self.drain_signal.is_some() {
            let wait_us = self.context.failed_logins.count(self.peer.ip(), now.us);
            self.silent_until_us = Some(now.us + wait_us);
            return Ok(Progress::None);
        }
        let written = self.io.write(&mut self.session, scratch, cx, now)?;
        let mut moved = read.and(written);
        if !wanted_input && self.session.wants_input() {
            // Input was not wanted when this step read, so no waker is registered for bytes that
            // came since.
            moved = moved.and(Progress::Bytes(0));
        }
        if moved != Progress::None {
            self.active_us = now.us;
        } else if self.io.is_flushed() {
            moved = self.link.when_idle(&mut self.session, &mut self.io, now)?;
            if self.io.is_handshaking() {
                self.handshake_since_us.get_or_insert(now.us);
            }
        }
        Ok(moved)
    }

    /// The time at which the connection has to be polled although nothing moves.
    fn due_us(&self) -> u64 {
        if let Some(until_us) = self.silent_until_us {
            return until_us;
        }
        // A session with unsent output is not asked for more, so its own deadlines do not count
        // then.
        let mut due_us = if self.io.is_flushed() {
            self.session.next_due_us()
        } else {
            u64::MAX
        };
        due_us = due_us.min(self.idle_check_us);
        if let Some(since_us) = self.handshake_since_us {
            due_us = due_us.min(since_us + L::HANDSHAKE_TIMEOUT_US);
        }
        if let Some(write_deadline_us) = self.write_deadline_us() {
            due_us = due_us.min(write_deadline_us);
        }
        if let Some(rest_us) = self.io.rest_due_us() {
            due_us = due_us.min(rest_us);
        }
        due_us
    }

    /// When the connection ends because the peer does not take its output.
    fn write_deadline_us(&self) -> Option<u64> {
        let timeout_us = self.link.write_timeout_us(&self.session)?;
        Some(self.io.unsent_since_us()? + timeout_us)
    }

    /// The reason to end the connection now, if one of its time limits has passed.
    fn exceeded_limit(&mut self, now: Now) -> Option<CloseReason> {
        if let Some(since_us) = self.handshake_since_us
            && now.us >= since_us + L::HANDSHAKE_TIMEOUT_US
        {
            return Some(CloseReason::NoHandshake);
        }
        if self
            .write_deadline_us()
            .is_some_and(|due_us| now.us >= due_us)
        {
            return Some(CloseReason::WriteTimeout);
        }
        if self.io.is_rest_overdue(now) {
            return Some(CloseReason::HalfReceived);
        }
        if now.us >= self.idle_check_us {
            // The check is rare, so that a busy connection does not reset its timer all the time.
            self.idle_check_us = deadline_us(self.active_us, self.link.idle_timeout_us());
            return (now.us >= self.idle_check_us).then_some(CloseReason::IdleTimeout);
        }
        None
    }

    /// Ready when the due time has come; until then the waker is registered.
    fn sleep_until_due(&mut self, cx: &mut Context<'_>, now: Now) -> Poll<()> {
        let due_us = self.due_us();
        if due_us == u64::MAX {
            self.sleep = None;
            self.sleep_due_us = due_us;
            return Poll::Pending;
        }
        if self.context.clock.is_driven() {
            self.context.sleepers.push(cx);
            // The driven clock may have advanced before this sleeper was registered.
            return if self.context.now_us() >= due_us {
                Poll::Ready(())
            } else {
                Poll::Pending
            };
        }
        let timer = match &mut self.sleep {
            Some(timer) => timer,
            None => self.sleep.insert(Box::pin(sleep(Duration::ZERO))),
        };
        if self.sleep_due_us != due_us {
            // The timer works in milliseconds; a little late is better than a turn too early.
            let wait = Duration::from_micros(due_us.saturating_sub(now.us) + 1);
            timer.as_mut().reset(Instant::now() + wait);
            self.sleep_due_us = due_us;
        }
        timer
            .as_mut()
            .poll(cx)
            .map(|()| self.sleep_due_us = u64::MAX)
    }

    /// Logs why the connection ended, if that is worth a line, and closes it.
    async fn end(self, reason: CloseReason) {
        let Connection {
            mut session,
            mut io,
            peer,
            link,
            context,
            ..
        } = self;
        let close = |error: &dyn Display| log_closed(link.closed_throttle(), peer, error);
        let failure = session.take_failure();
        let peer_closes_first = link.peer_closes_first(&session);
        // Messages in flight to this client are requeued now, not after a slow farewell.
        drop(session);
        io.drop_input();
        match &reason {
            CloseReason::Finished => match &failure {
                Some(error) => close(error),
                None => tracing::debug!(%peer, "connection ended"),
            },
            CloseReason::SocketFailed(error) => tracing::debug!(%peer, %error, "connection ended"),
            CloseReason::IdleTimeout => {
                tracing::debug!(%peer, "connection ended: nothing was said for long")
            }
            CloseReason::Layer(error) => close(error),
            CloseReason::WriteTimeout => close(&"it takes no output"),
            CloseReason::NoHandshake => close(&"no TLS handshake"),
            CloseReason::HalfReceived => {
                context.half_received.count_closed();
                close(&"it began a large request and did not send the rest in time");
            }
        }
        if peer_closes_first && matches!(reason, CloseReason::Finished) {
            let mut receiver = context.draining();
            tokio::select! {
                _ = timeout(PEER_CLOSE_TIMEOUT, io.linger()) => {}
                // A broker that shuts down does not wait for the peer.
                _ = receiver.wait_for(|draining| *draining) => {}
            }
        }
        io.send_close_notify();
        if matches!(reason, CloseReason::Finished | CloseReason::Layer(_)) {
            io.shutdown().await;
            let _ = timeout(LINGER_TIMEOUT, io.linger()).await;
        }
    }
}

/// Ends a turn with work left: other connections go first, also those whose sockets became ready in
/// the meantime. Waking the task directly would give it up to 61 more turns, because tokio polls
/// for I/O only at every 61st task poll.
fn yield_turn<T>(cx: &mut Context<'_>) -> Poll<T> {
    match pin!(tokio::task::yield_now()).poll(cx) {
        Poll::Pending => {}
        // `yield_now` is always pending at its first poll.
        Poll::Ready(()) => cx.waker().wake_by_ref(),
    }
    Poll::Pending
}

/// The time `timeout_us` after `us`; without a timeout, never.
fn deadline_us(us: u64, timeout_us: Option<u64>) -> u64 {
    timeout_us.map_or(u64::MAX, |timeout_us| us.saturating_add(timeout_us))
}

pub(crate) fn now(context: &ServerContext) -> Now {
    Now {
        us: context.now_us(),
        unix_us: context.clock.unix_us(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use tokio::io::AsyncReadExt as _;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::spawn_local;

    use super::*;

    #[test]
    fn a_yielding_task_lets_the_core_poll_its_sockets() {
        const TURNS: u32 = 500;
        const WRITTEN_AT: u32 = 10;
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().build_local(LocalOptions::default());
        let read_at = runtime.unwrap().block_on(async {
            let (mut peer, socket) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let mut socket = tokio::net::UnixStream::from_std(socket).unwrap();
            let turns = Rc::new(Cell::new(0));
            let seen = Rc::clone(&turns);
            let reader = spawn_local(async move {
                socket.read_exact(&mut [0]).await.unwrap();
                seen.get()
            });
            let busy = spawn_local(poll_fn(move |cx| {
                turns.set(turns.get() + 1);
                if turns.get() == WRITTEN_AT {
                    peer.write_all(b"x").unwrap();
                }
                match turns.get() {
                    TURNS => Poll::Ready(()),
                    _ => yield_turn(cx),
                }
            }));
            busy.await.unwrap();
            reader.await.unwrap()
        });
        assert!((WRITTEN_AT..WRITTEN_AT + 3).contains(&read_at), "{read_at}");
    }
}
