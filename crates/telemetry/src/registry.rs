//! The list of all open connections' probes, and the totals of the closed ones.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::exchanges::ExchangesSnapshot;
use crate::lane::{LANES_BYTES_MAX, LaneMemory};
use crate::probe::{Probe, Recorder};
use crate::snapshot::{ClosedConnection, Histograms, ProtocolTotals, Snapshot};
use crate::{Counters, Identity, Protocol, TcpInfo};

/// How many closed connections are remembered: enough to see a client that reconnects for every
/// message. They take some 200 KB, and never more than 3 MB: texts of an identity are bounded, and
/// each keeps one histogram, of at most 8 KB.
const CLOSED_MAX: usize = 256;

/// How many closed connections keep their exchanges for the timeline, which then shows clients that
/// connect, publish and disconnect.
const CLOSED_LANES_MAX: usize = 64;

#[derive(Debug, Default)]
struct ClosedTotals {
    opened: u64,
    counters: Counters,
    histograms: Histograms,
}

#[derive(Debug, Default)]
struct RegistryState {
    next_id: u64,
    open: BTreeMap<u64, Arc<Recorder>>,
    folded: [ClosedTotals; Protocol::ALL.len()],
    /// Immutable behind an `Arc`, so that a snapshot need not copy the connections under the lock.
    closed: VecDeque<Arc<ClosedConnection>>,
    /// Closed connections with exchanges, oldest first.
    closed_lanes: VecDeque<Arc<Recorder>>,
}

/// All probes of a broker. Cheap to clone; clones share the same list.
///
/// Its lock is taken when a connection opens or closes and for a snapshot, never for a request.
#[derive(Debug, Clone)]
pub struct Registry {
    state: Arc<Mutex<RegistryState>>,
    lanes: Arc<LaneMemory>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            lanes: LaneMemory::new(LANES_BYTES_MAX),
        }
    }
}

/// A connection that is open, or was closed recently.
#[derive(Debug, Clone)]
pub struct KnownConnection {
    /// Number of the connection.
    pub id: u64,
    /// The protocol that it speaks.
    pub protocol: Protocol,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// The identity that the client gave itself.
    pub identity: Identity,
    /// Whether it is still open.
    pub is_open: bool,
}

impl KnownConnection {
    fn open(recorder: &Recorder, is_open: bool) -> Self {
        Self {
            id: recorder.id(),
            protocol: recorder.protocol(),
            peer: recorder.peer(),
            identity: recorder.identity(),
            is_open,
        }
    }
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
        let lanes = self.lanes.clone();
        let recorder = Arc::new(Recorder::new(id, protocol, peer, now_us, lanes));
        state.folded[protocol.index()].opened += 1;
        state.open.insert(id, Arc::clone(&recorder));
        Probe::new(recorder, self.clone())
    }

    /// How many connections are open.
    pub fn open_count(&self) -> usize {
        self.state.lock().open.len()
    }

    /// The memory budget of all lanes. The broker's subscriptions, which record for the timeline
    /// too, share it.
    pub fn lanes(&self) -> &Arc<LaneMemory> {
        &self.lanes
    }

    /// The latest requests and answers of connections that are open or were closed recently, from
    /// `since_us` on. Connections without any are left out.
    pub fn exchanges(&self, since_us: u64) -> Vec<(KnownConnection, ExchangesSnapshot)> {
        let (open, closed): (Vec<_>, Vec<_>) = {
            let state = self.state.lock();
            let open = state.open.values().cloned().collect();
            (open, state.closed_lanes.iter().cloned().collect())
        };
        let closed = closed.into_iter().map(|recorder| (recorder, false));
        let all = closed.chain(open.into_iter().map(|recorder| (recorder, true)));
        let seen = all.map(|(recorder, is_open)| {
            let seen = recorder.exchanges().snapshot(since_us);
            (recorder, is_open, seen)
        });
        seen.filter(|(_, _, seen)| !seen.exchanges.is_empty())
            .map(|(recorder, is_open, seen)| (KnownConnection::open(&recorder, is_open), seen))
            .collect()
    }

    /// The open and recently closed connections whose number `is_wanted` accepts.
    pub fn connections(&self, is_wanted: impl Fn(u64) -> bool) -> Vec<KnownConnection> {
        let state = self.state.lock();
        let closed = state.closed.iter().filter(|it| is_wanted(it.id));
        let closed = closed.map(|it| KnownConnection {
            id: it.id,
            protocol: it.protocol,
            peer: it.peer,
            identity: it.identity.clone(),
            is_open: false,
        });
        let open = state.open.values().filter(|it| is_wanted(it.id()));
        let open = open.map(|it| KnownConnection::open(it, true));
        closed.chain(open).collect()
    }

    /// Drops the exchanges of connections that have had none since `before_us`.
    pub fn forget_exchanges(&self, before_us: u64) {
        let recorders: Vec<_> = {
            let state = self.state.lock();
            let closed = state.closed_lanes.iter();
            state.open.values().chain(closed).cloned().collect()
        };
        for recorder in &recorders {
            recorder.exchanges().forget_older(before_us);
        }
        let mut state = self.state.lock();
        state.closed_lanes.retain(|it| it.exchanges().has_any());
    }

    pub(crate) fn close(&self, recorder: &Arc<Recorder>) {
        let last = recorder.snapshot(|_| None);
        let has_lane = recorder.exchanges().has_any();
        let record_age_us = &last.histograms.record_age_us;
        let closed = Arc::new(ClosedConnection {
            id: last.id,
            protocol: last.protocol,
            peer: last.peer,
            identity: last.identity,
            opened_us: last.opened_us,
            last_active_us: last.last_active_us,
            counters: last.counters,
            is_inside_request: recorder.is_inside_request(),
            young_rtt_us: recorder.young_rtt_us(),
            request_gap_us: last.histograms.request_gap_us.clone(),
            receiving_us: last.histograms.request_receive_us.saturated_sum(),
            record_ages: record_age_us.count(),
            record_ages_us: record_age_us.saturated_sum(),
        });
        let mut state = self.state.lock();
        if has_lane {
            if state.closed_lanes.len() == CLOSED_LANES_MAX {
                state.closed_lanes.pop_front();
            }
            state.closed_lanes.push_back(Arc::clone(recorder));
        }
        state.open.remove(&recorder.id());
        let folded = &mut state.folded[last.protocol.index()];
        folded.counters.merge(&last.counters);
        folded.histograms.merge(&last.histograms);
        if state.closed.len() == CLOSED_MAX {
            state.closed.pop_front();
        }
        state.closed.push_back(closed);
    }

    /// A copy of everything. `tcp_info` fetches the kernel's view of a connection by its file
    /// descriptor; return `None` to leave it out.
    pub fn snapshot(&self, now_us: u64, tcp_info: impl Fn(i32) -> Option<TcpInfo>) -> Snapshot {
        // The recorders are copied out under the lock, so that a connection that closes meanwhile
        // is counted once: either it was still listed, or its totals were folded already.
        let (recorders, mut totals, closed): (Vec<_>, _, Vec<_>) = {
            let state = self.state.lock();
            let recorders = state.open.values().cloned().collect();
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
            let closed = state.closed.iter().cloned().collect();
            (recorders, totals, closed)
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
            closed: closed.iter().map(|it| it.as_ref().clone()).collect(),
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
        second.acked_many(1, 50);
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
    fn the_round_trip_of_a_young_connection_is_known_when_it_is_closed() {
        let registry = Registry::new();
        registry
            .open(Protocol::Http, peer(1), 5)
            .round_trip_at_accept(700);
        drop(registry.open(Protocol::Nsq, peer(2), 6));
        let closed = registry.snapshot(20, |_| None).closed;
        let rtts_us: Vec<u32> = closed.iter().map(|it| it.young_rtt_us).collect();
        assert_eq!(rtts_us, [700, 0]);
    }

    #[test]
    fn a_connection_that_ends_within_a_request_is_recognised() {
        let registry = Registry::new();
        let close = |is_whole: bool| {
            let probe = registry.open(Protocol::Kafka, peer(1), 5);
            probe.read(100, 7);
            probe.read_ended_inside_frame();
            if is_whole {
                probe.request(3, 90, 7, 8);
            }
            // A read of 0 bytes: the end of the stream.
            probe.read(0, 9);
            drop(probe);
            let closed = registry.snapshot(20, |_| None).closed;
            closed.last().unwrap().is_inside_request
        };
        assert!(close(false));
        assert!(!close(true));
        drop(registry.open(Protocol::Kafka, peer(1), 5));
        let closed = registry.snapshot(20, |_| None).closed;
        assert!(!closed.last().unwrap().is_inside_request);
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
