//! The activity of an HTTP connection, and its time limits: idle connections must not use up the
//! allowed number of connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How long the head of a request may take. For the first request, the TLS handshake is included.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// How long a connection may wait for its next request, or for the client to take bytes of an
/// answer: longer than the usual interval of a monitoring system, so that it can keep its
/// connection.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How often a connection checks its limits, which is also their precision.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestPhase {
    /// The client connects, or is sending the head of a request.
    Head,
    /// A request is being answered. The handler has time limits of its own.
    Request,
    /// An answer is being sent, or the connection waits for a request.
    Idle,
}

/// The state of one HTTP connection.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    phase: Mutex<(RequestPhase, Instant)>,
    closed: Notify,
}

impl ConnectionActivity {
    fn new() -> Self {
        Self {
            phase: Mutex::new((RequestPhase::Head, Instant::now())),
            closed: Notify::new(),
        }
    }

    /// Bytes came from the client.
    pub(crate) fn received(&self) {
        let mut phase = self.phase.lock();
        if phase.0 == RequestPhase::Idle {
            *phase = (RequestPhase::Head, Instant::now());
        }
    }

    /// The client took bytes of an answer.
    pub(crate) fn sent(&self) {
        let mut phase = self.phase.lock();
        if phase.0 == RequestPhase::Idle {
            phase.1 = Instant::now();
        }
    }

    /// The head of a request is complete.
    pub(crate) fn request_begins(&self) {
        *self.phase.lock() = (RequestPhase::Request, Instant::now());
    }

    /// The answer is complete and only has to be sent.
    pub(crate) fn request_ends(&self) {
        *self.phase.lock() = (RequestPhase::Idle, Instant::now());
    }

    /// Since when the connection waits for its client; `None` while a request is answered.
    fn waiting_since(&self) -> Option<Instant> {
        let (phase, since) = *self.phase.lock();
        (phase != RequestPhase::Request).then_some(since)
    }

    fn is_expired(&self, now: Instant) -> bool {
        let (phase, since) = *self.phase.lock();
        let limit = match phase {
            RequestPhase::Head => HEAD_MAX,
            RequestPhase::Idle => IDLE_MAX,
            RequestPhase::Request => return false,
        };
        now.duration_since(since) >= limit
    }

    /// Ready when the connection has to be closed: it took too long, or was replaced by a new one.
    pub(crate) async fn expired(&self) {
        let too_long = async {
            while !self.is_expired(Instant::now()) {
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = too_long => {}
            () = self.closed.notified() => {}
        }
    }
}

/// The open connections of one HTTP address, whose number is limited.
#[derive(Debug)]
pub(crate) struct HttpConnections {
    connections_max: usize,
    open: Mutex<HashMap<u64, Arc<ConnectionActivity>>>,
}

/// Whether a new connection is accepted.
#[derive(Debug)]
pub(crate) enum Admission {
    /// There are fewer connections than allowed.
    Free(AdmittedConnection),
    /// It replaces the connection that waited longest, which is closed.
    ReplacesOther(AdmittedConnection),
    /// All connections are busy.
    Refused,
}

impl HttpConnections {
    pub(crate) fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self {
            connections_max,
            open: Mutex::default(),
        })
    }

    /// Admits a new connection, if possible; `id` must be new.
    pub(crate) fn admit(self: &Arc<Self>, id: u64) -> Admission {
        let activity = Arc::new(ConnectionActivity::new());
        let mut open = self.open.lock();
        let full = open.len() >= self.connections_max;
        if full {
            let waiting = open
                .iter()
                .filter_map(|(id, activity)| Some((activity.waiting_since()?, *id)));
            let Some((_, longest)) = waiting.min() else {
                return Admission::Refused;
            };
            if let Some(other) = open.remove(&longest) {
                other.closed.notify_one();
            }
        }
        open.insert(id, Arc::clone(&activity));
        let admitted = AdmittedConnection {
            connections: Arc::clone(self),
            id,
            activity,
        };
        if full {
            Admission::ReplacesOther(admitted)
        } else {
            Admission::Free(admitted)
        }
    }
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct AdmittedConnection {
    connections: Arc<HttpConnections>,
    id: u64,
    activity: Arc<ConnectionActivity>,
}

impl AdmittedConnection {
    /// The connection's activity.
    pub(crate) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }
}

impl Drop for AdmittedConnection {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(admission: Admission) -> (bool, AdmittedConnection) {
        match admission {
            Admission::Free(place) => (false, place),
            Admission::ReplacesOther(place) => (true, place),
            Admission::Refused => panic!("refused"),
        }
    }

    #[test]
    fn the_connection_idle_longest_is_replaced() {
        let connections = HttpConnections::new(2);
        let (_, first) = place(connections.admit(1));
        let (_, second) = place(connections.admit(2));
        first.activity.request_begins();
        first.activity.request_ends();
        let (instead, third) = place(connections.admit(3));
        assert!(instead);
        let open = |id| connections.open.lock().contains_key(&id);
        assert_eq!([open(1), open(2), open(3)], [true, false, true]);
        drop(second);
        first.activity.request_begins();
        third.activity.request_begins();
        assert!(matches!(connections.admit(4), Admission::Refused));
        drop(third);
        assert!(!place(connections.admit(5)).0);
    }

    #[test]
    fn heads_and_pauses_have_limits_and_requests_have_none_here() {
        let activity = ConnectionActivity::new();
        let expired = |limit: Duration| activity.is_expired(Instant::now() + limit);
        assert!(expired(HEAD_MAX), "nothing was sent");
        activity.request_begins();
        assert!(!expired(IDLE_MAX));
        activity.request_ends();
        assert!(!expired(HEAD_MAX) && expired(IDLE_MAX));
        activity.received();
        assert!(expired(HEAD_MAX), "a head that is not completed");
    }
}
