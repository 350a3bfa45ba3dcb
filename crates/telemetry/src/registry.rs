//! The list of all open connections' probes, and the totals of the closed ones.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::probe::{Probe, Recorder};
use crate::snapshot::{ClosedConnection, Histograms, ProtocolTotals, Snapshot};
use crate::{Counters, Protocol, TcpInfo};

/// How many closed connections are remembered: enough to see a client that reconnects for every
/// message, and 100 to 200 KB, because texts of an identity are bounded.
const CLOSED_MAX: usize = 256;

#[derive(Debug, Default)]
struct Folded {
    opened: u64,
    counters: Counters,
    histograms: Histograms,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    open: BTreeMap<u64, Arc<Recorder>>,
    folded: [Folded; Protocol::ALL.len()],
    closed: VecDeque<ClosedConnection>,
}

/// All probes of a broker. Cheap to clone; clones share the same list.
///
/// Its lock is taken when a connection opens or closes and for a snapshot, never while a
/// connection is at work.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    state: Arc<Mutex<State>>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the probe of a new connection. It closes when dropped.
    pub fn open(&self, protocol: Protocol, peer: SocketAddr, now_us: u64) -> Probe {
        let mut state = self.state.lock();
        state.next_id += 1;
        let id = state.next_id;
        let recorder = Arc::new(Recorder::new(id, protocol, peer, now_us));
        state.folded[protocol.index()].opened += 1;
        state.open.insert(id, Arc::clone(&recorder));
        Probe::new(recorder, self.clone())
    }

    /// How many connections are open.
    pub fn open_count(&self) -> usize {
        self.state.lock().open.len()
    }

    pub(crate) fn close(&self, recorder: &Recorder) {
        let last = recorder.snapshot(|_| None);
        let mut state = self.state.lock();
        state.open.remove(&recorder.id());
        let folded = &mut state.folded[last.protocol.index()];
        folded.counters.merge(&last.counters);
        folded.histograms.merge(&last.histograms);
        if state.closed.len() == CLOSED_MAX {
            state.closed.pop_front();
        }
        state.closed.push_back(ClosedConnection {
            id: last.id,
            protocol: last.protocol,
            peer: last.peer,
            identity: last.identity,
            opened_us: last.opened_us,
            last_active_us: last.last_active_us,
            counters: last.counters,
        });
    }

    /// A copy of everything. `tcp_info` fetches the kernel's view of a connection by its file
    /// descriptor; return `None` to leave it out.
    pub fn snapshot(&self, now_us: u64, tcp_info: impl Fn(i32) -> Option<TcpInfo>) -> Snapshot {
        // The recorders are copied out under the lock, so that a connection that closes meanwhile
        // is counted once: either it was still listed, or its totals were folded already.
        let (recorders, mut totals, closed) = {
            let state = self.state.lock();
            let recorders: Vec<Arc<Recorder>> = state.open.values().cloned().collect();
            let totals = Protocol::ALL.map(|protocol| {
                let folded = &state.folded[protocol.index()];
                ProtocolTotals {
                    protocol,
                    connections_opened: folded.opened,
                    connections_open: 0,
                    counters: folded.counters,
                    histograms: folded.histograms.clone(),
                }
            });
            (recorders, totals, state.closed.iter().cloned().collect())
        };
        let mut connections = Vec::with_capacity(recorders.len());
        for recorder in recorders {
            let connection = recorder.snapshot(&tcp_info);
            let total = &mut totals[connection.protocol.index()];
            total.connections_open += 1;
            total.counters.merge(&connection.counters);
            total.histograms.merge(&connection.histograms);
            connections.push(connection);
        }
        let totals = totals
            .into_iter()
            .filter(|total| total.connections_opened > 0)
            .collect();
        Snapshot {
            taken_us: now_us,
            totals,
            connections,
            closed,
        }
    }
}

#[cfg(all(test, feature = "probe"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Identity;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn totals_are_the_same_before_and_after_close() {
        let registry = Registry::new();
        let first = registry.open(Protocol::Nsq, peer(1), 5);
        let second = registry.open(Protocol::Nsq, peer(2), 6);
        first.read(100, 7);
        first.request(3, 90, 7, 8);
        second.delivered(4, 1);
        second.acked(50);
        second.acks(1, 0, 60);
        let before = registry.snapshot(10, |_| None);
        assert_eq!(before.connections.len(), 2);
        assert_eq!(before.totals[0].connections_open, 2);
        drop(first);
        drop(second);
        let after = registry.snapshot(20, |_| None);
        assert_eq!(after.connections.len(), 0);
        assert_eq!(after.totals[0].connections_opened, 2);
        assert_eq!(after.totals[0].counters, before.totals[0].counters);
        assert_eq!(after.totals[0].histograms, before.totals[0].histograms);
        assert_eq!(after.closed.len(), 2);
        assert_eq!(registry.open_count(), 0);
    }

    #[test]
    fn protocols_without_a_connection_are_left_out() {
        let registry = Registry::new();
        drop(registry.open(Protocol::Http, peer(1), 1));
        let totals = registry.snapshot(2, |_| None).totals;
        assert_eq!(
            totals.iter().map(|t| t.protocol).collect::<Vec<_>>(),
            [Protocol::Http]
        );
    }

    #[test]
    fn memory_of_closed_connections_is_bounded() {
        let registry = Registry::new();
        for port in 0..1000 {
            let probe = registry.open(Protocol::Nsq, peer(port), 1);
            probe.identify(Identity {
                client_id: "x".repeat(1 << 20),
                ..Identity::default()
            });
        }
        let closed = registry.snapshot(2, |_| None).closed;
        assert_eq!(closed.len(), CLOSED_MAX);
        assert!(closed.iter().all(|it| it.identity.client_id.len() == 128));
        assert_eq!(closed.last().unwrap().peer.port(), 999);
    }

    #[test]
    fn the_kernel_is_asked_about_an_attached_socket_only() {
        let registry = Registry::new();
        let probe = registry.open(Protocol::Nsq, peer(1), 1);
        let ask = |descriptor: i32| {
            Some(TcpInfo {
                rtt_us: descriptor as u32,
                ..TcpInfo::default()
            })
        };
        assert_eq!(registry.snapshot(2, ask).connections[0].tcp, None);
        probe.attach_socket(7);
        let identity = Identity {
            library: "go-nsq".into(),
            ..Identity::default()
        };
        probe.identify(identity.clone());
        let seen = registry.snapshot(3, ask);
        assert_eq!(seen.connections[0].tcp.unwrap().rtt_us, 7);
        assert_eq!(seen.connections[0].identity, identity);
    }
}
