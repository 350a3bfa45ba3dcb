//! The probe of one connection: it records what the session reports.

mod exchanges;
mod requests;

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::about::About;
use crate::counters::{Cell, CounterCells};
use crate::exchanges::Exchanges;
use crate::histogram::{Histogram, HistogramSnapshot};
use crate::lane::{ENABLED, LaneMemory};
use crate::registry::Registry;
use crate::rounds::Rounds;
use crate::snapshot::{ConnectionSnapshot, Gauges, Histograms};
use crate::{Identity, Protocol, TcpInfo};

/// The session's end of a connection's telemetry.
///
/// Dereferences to the [`Recorder`], which has the recording methods. Dropping the probe closes
/// it: its counters are folded into the registry's totals. Drop it before the socket, because
/// the registry may ask the kernel about the socket for as long as the probe lives.
#[derive(Debug)]
pub struct Probe {
    recorder: Arc<Recorder>,
    registry: Registry,
}

impl Probe {
    pub(crate) fn new(recorder: Arc<Recorder>, registry: Registry) -> Self {
        Self { recorder, registry }
    }
}

impl Deref for Probe {
    type Target = Recorder;

    #[inline]
    fn deref(&self) -> &Recorder {
        &self.recorder
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.recorder.about.lock().detach();
        self.registry.close(&self.recorder);
    }
}

/// The numbers of one connection. Written by the connection's own thread, read by any.
///
/// Every `*_us` argument is a time of the caller's monotonic clock in microseconds; all calls on
/// one recorder must use the same clock.
#[derive(Debug)]
pub struct Recorder {
    id: u64,
    protocol: Protocol,
    peer: SocketAddr,
    opened_us: u64,
    about: Mutex<About>,
    pub(crate) counters: CounterCells,
    last_active_us: Cell,
    pub(crate) last_answer_us: Cell,
    pub(crate) rounds: Rounds,
    last_ack_us: Cell,
    /// How long the client took for its first acknowledgement, in microseconds, after the latest
    /// delivery that found nothing in flight. 32 bits, because there are many connections.
    first_ack_us: AtomicU32,
    no_credit_since_us: Cell,
    holding_since_us: Cell,
    /// How many answers are still to come up to and including that of the request whose service
    /// time is being measured; 0: none is being measured.
    pub(crate) timed_answers: Cell,
    pub(crate) timed_since_us: Cell,
    /// When a read last ended inside a frame: the number of the incomplete request, which is the
    /// count of complete requests at that time, plus 1. 0: no read has ended inside a frame.
    inside_after: Cell,
    pub(crate) requests_in_flight: Cell,
    pub(crate) requests_in_flight_max: Cell,
    credit_granted: Cell,
    credit_used: Cell,
    pub(crate) request_gap_us: Histogram,
    pub(crate) request_receive_us: Histogram,
    pub(crate) service_us: Histogram,
    record_age_us: Histogram,
    /// Requests of which the first and the last byte came in the same read.
    pub(crate) requests_whole: Cell,
    /// Publishing requests with one message each; the others are in `request_messages`.
    pub(crate) requests_of_one: Cell,
    pub(crate) request_messages: Histogram,
    pub(crate) split_request_bytes: Histogram,
    ack_latency_us: Histogram,
    ack_gap_us: Histogram,
    /// Allocated with its first value: few connections have any.
    overdue_ack_us: OnceLock<Box<Histogram>>,
    /// The latest requests and answers, for the timeline.
    pub(crate) exchanges: Exchanges,
    /// The number of the answer that ends the oldest unanswered exchange; 0: none is unanswered.
    pub(crate) awaited_answer: Cell,
    /// Since when a fetch of the client has been waiting for messages; 0: none is waiting.
    pub(crate) fetching_since_us: Cell,
}

impl Recorder {
    pub(crate) fn new(
        id: u64,
        protocol: Protocol,
        peer: SocketAddr,
        now_us: u64,
        memory: Arc<LaneMemory>,
    ) -> Self {
        let recorder = Self {
            id,
            protocol,
            peer,
            opened_us: now_us,
            about: Mutex::default(),
            counters: CounterCells::default(),
            last_active_us: Cell::default(),
            last_answer_us: Cell::default(),
            rounds: Rounds::default(),
            last_ack_us: Cell::default(),
            first_ack_us: AtomicU32::new(0),
            no_credit_since_us: Cell::default(),
            holding_since_us: Cell::default(),
            timed_answers: Cell::default(),
            timed_since_us: Cell::default(),
            inside_after: Cell::default(),
            requests_in_flight: Cell::default(),
            requests_in_flight_max: Cell::default(),
            credit_granted: Cell::default(),
            credit_used: Cell::default(),
            request_gap_us: Histogram::new(),
            request_receive_us: Histogram::new(),
            service_us: Histogram::new(),
            record_age_us: Histogram::new(),
            requests_whole: Cell::default(),
            requests_of_one: Cell::default(),
            request_messages: Histogram::new(),
            split_request_bytes: Histogram::new(),
            ack_latency_us: Histogram::new(),
            ack_gap_us: Histogram::new(),
            overdue_ack_us: OnceLock::new(),
            exchanges: Exchanges::new(memory),
            awaited_answer: Cell::default(),
            fetching_since_us: Cell::default(),
        };
        recorder.last_active_us.set(now_us);
        recorder
    }

    /// Number of this connection; unique for the life of the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The protocol that the connection speaks.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Address of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sets the client's identity, once it has introduced itself. Long texts are cut off.
    pub fn identify(&self, identity: Identity) {
        self.about.lock().identity = identity.shortened();
    }

    /// Sets the connection's file descriptor, so that its `TCP_INFO` can be fetched.
    pub fn attach_socket(&self, descriptor: i32) {
        self.about.lock().attach(descriptor);
    }

    /// Records the kernel's round-trip time right after accept, because a short-lived connection is
    /// often closed before the next snapshot. The registry keeps it after the connection is closed.
    pub fn round_trip_at_accept(&self, rtt_us: u32) {
        self.about.lock().young_rtt_us = rtt_us;
    }

    pub(crate) fn young_rtt_us(&self) -> u32 {
        self.about.lock().young_rtt_us
    }

    /// One socket read returned `bytes` bytes.
    #[inline]
    pub fn read(&self, bytes: usize, now_us: u64) {
        if ENABLED {
            self.counters.bytes_in.add(bytes as u64);
            self.counters.reads.add(1);
            self.last_active_us.set(now_us);
        }
    }

    /// A socket read ended inside a frame: the rest of a request is still on its way.
    #[inline]
    pub fn read_ended_inside_frame(&self) {
        if ENABLED {
            self.counters.partial_reads.add(1);
            self.inside_after.set(self.counters.requests.get() + 1);
        }
    }

    /// Whether a request has arrived only in part.
    pub(crate) fn is_inside_request(&self) -> bool {
        self.inside_after.get() == self.counters.requests.get() + 1
    }

    /// Bytes passed to the kernel for this client.
    #[inline]
    pub fn wrote(&self, bytes: usize) {
        if ENABLED {
            self.counters.bytes_out.add(bytes as u64);
        }
    }

    /// The age of a socket read's first published record: its arrival minus its timestamp; negative
    /// if the timestamp lies in the future.
    #[inline]
    pub fn record_age(&self, age_us: i64) {
        if !ENABLED {
            return;
        }
        match u64::try_from(age_us) {
            Ok(age_us) => {
                if !self.rounds.is_passing() {
                    self.note_age(age_us);
                }
            }
            Err(_) => self.counters.records_ahead.add(1),
        }
    }

    /// `count` record batches arrived. `spans_us`: the sum over them of the time between the
    /// timestamps of a batch's first and last record.
    #[inline]
    pub fn batches(&self, count: u64, spans_us: u64) {
        if ENABLED {
            self.counters.batches_in.add(count);
            self.counters.batch_spans_us.add(spans_us);
        }
    }

    /// A sample of the published bytes was compressed, to estimate the ratio that compression would
    /// give.
    pub fn sampled(&self, bytes: u64, compressed: u64) {
        if ENABLED {
            self.counters.sampled_bytes.add(bytes);
            self.counters.sampled_bytes_compressed.add(compressed);
        }
    }

    #[inline(never)]
    fn note_age(&self, age_us: u64) {
        self.record_age_us.record_many(age_us, self.rounds.weight());
    }

    /// The client opened a channel within its connection.
    pub fn channel_opened(&self) {
        if ENABLED {
            self.counters.channels_opened.add(1);
        }
    }

    /// Messages were delivered through a subscription; `again` of them not for the first time.
    #[inline]
    pub fn delivered(&self, messages: u64, again: u64) {
        if ENABLED {
            self.counters.deliveries.add(messages);
            self.counters.messages_out.add(messages);
            self.counters.redeliveries.add(again);
        }
    }

    /// Messages were read by offset, without a subscription.
    #[inline]
    pub fn fetched(&self, messages: u64) {
        if ENABLED {
            self.counters.messages_out.add(messages);
        }
    }

    /// `count` messages were acknowledged at once, this long after the delivery of the newest;
    /// [`Recorder::acks`] counts them once per socket read. Messages that are acknowledged one by
    /// one cost less with [`AckLatencies`](crate::AckLatencies).
    #[inline]
    pub fn acked_many(&self, count: u64, latency_us: u64) {
        if ENABLED {
            self.ack_latency_us.record_many(latency_us, count);
        }
    }

    /// The acknowledgements of one socket read: how many came in the order of delivery, and how
    /// many came after that of a newer message.
    #[inline(never)]
    pub fn acks(&self, in_order: u64, out_of_order: u64, now_us: u64) {
        if !ENABLED || in_order + out_of_order == 0 {
            return;
        }
        self.counters.acks.add(in_order + out_of_order);
        self.counters.acks_in_order.add(in_order);
        self.counters.acks_out_of_order.add(out_of_order);
        let last_us = self.last_ack_us.get();
        self.last_ack_us.set(now_us);
        let holding_us = self.holding_since_us.get();
        if holding_us > 0 && holding_us >= last_us {
            let first_us = now_us.saturating_sub(holding_us).max(1);
            let first_us = u32::try_from(first_us).unwrap_or(u32::MAX);
            self.first_ack_us.store(first_us, Relaxed);
        }
        if last_us > 0 {
            self.ack_gap_us.record(now_us.saturating_sub(last_us));
        }
    }

    /// An acknowledgement named a message that is no longer in flight on this connection.
    #[inline]
    pub fn late_ack(&self) {
        if ENABLED {
            self.counters.acks_late.add(1);
        }
    }

    /// An acknowledgement came after the lease had timed out. `held_us`: the time from the delivery
    /// to the acknowledgement, which shows how long the client's work really takes.
    pub fn overdue_ack(&self, held_us: u64) {
        if ENABLED {
            let histogram = self.overdue_ack_us.get_or_init(Box::default);
            histogram.record(held_us);
        }
    }

    /// The client requeued or rejected messages.
    #[inline]
    pub fn nacked(&self, messages: u64) {
        if ENABLED {
            self.counters.nacks.add(messages);
        }
    }

    /// Leases of messages in flight on this connection timed out.
    #[inline]
    pub fn timed_out(&self, messages: u64) {
        if ENABLED {
            self.counters.timeouts.add(messages);
        }
    }

    /// An error was answered.
    #[inline]
    pub fn error(&self) {
        if ENABLED {
            self.counters.errors.add(1);
        }
    }

    /// How many messages the client is willing to have in flight (RDY, prefetch, …).
    #[inline]
    pub fn credit_granted(&self, messages: u64) {
        if ENABLED {
            self.credit_granted.set(messages);
        }
    }

    /// How many messages the client has in flight now.
    #[inline]
    pub fn credit_used(&self, messages: u64, now_us: u64) {
        if !ENABLED {
            return;
        }
        self.credit_used.set(messages);
        let since_us = self.holding_since_us.get();
        if messages > 0 && since_us == 0 {
            self.holding_since_us.set(now_us.max(1));
        } else if messages == 0 && since_us > 0 {
            self.counters
                .holding_us
                .add(now_us.saturating_sub(since_us));
            self.holding_since_us.set(0);
        }
    }

    /// From now on messages wait and the client has no credit left. Repeating it is harmless.
    #[inline]
    pub fn no_credit_begins(&self, now_us: u64) {
        if ENABLED && self.no_credit_since_us.get() == 0 {
            self.no_credit_since_us.set(now_us.max(1));
        }
    }

    /// The client has credit again, or no message waits any more. Harmless without
    /// [`Recorder::no_credit_begins`].
    #[inline]
    pub fn no_credit_ends(&self, now_us: u64) {
        if ENABLED {
            let since_us = self.no_credit_since_us.get();
            if since_us > 0 {
                self.counters
                    .no_credit_us
                    .add(now_us.saturating_sub(since_us));
                self.no_credit_since_us.set(0);
            }
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.about.lock().identity.clone()
    }

    /// A copy of everything. `tcp_info` fetches the kernel's view of the socket by its descriptor,
    /// which is not closed, and so not reused by another connection, during the call.
    pub fn snapshot(&self, tcp_info: impl FnOnce(i32) -> Option<TcpInfo>) -> ConnectionSnapshot {
        let (identity, tcp) = {
            let about = self.about.lock();
            (about.identity.clone(), about.ask(tcp_info))
        };
        let mut request_receive_us = self.request_receive_us.snapshot();
        request_receive_us.add(0, self.requests_whole.get());
        let mut request_messages = self.request_messages.snapshot();
        request_messages.add(1, self.requests_of_one.get());
        ConnectionSnapshot {
            id: self.id,
            protocol: self.protocol,
            peer: self.peer,
            identity,
            opened_us: self.opened_us,
            last_active_us: self.last_active_us.get(),
            counters: self.counters.snapshot(),
            gauges: Gauges {
                requests_in_flight: self.requests_in_flight.get(),
                requests_in_flight_max: self.requests_in_flight_max.get(),
                credit_granted: self.credit_granted.get(),
                credit_used: self.credit_used.get(),
                no_credit_since_us: self.no_credit_since_us.get(),
                holding_since_us: self.holding_since_us.get(),
                first_ack_us: self.first_ack_us.load(Relaxed).into(),
            },
            histograms: Histograms {
                request_gap_us: self.request_gap_us.snapshot(),
                request_receive_us,
                service_us: self.service_us.snapshot(),
                record_age_us: self.record_age_us.snapshot(),
                request_messages,
                split_request_bytes: self.split_request_bytes.snapshot(),
                ack_latency_us: self.ack_latency_us.snapshot(),
                ack_gap_us: self.ack_gap_us.snapshot(),
                overdue_ack_us: match self.overdue_ack_us.get() {
                    Some(histogram) => histogram.snapshot(),
                    None => HistogramSnapshot::default(),
                },
            },
            tcp,
        }
    }
}

#[cfg(all(test, feature = "probe"))]
mod tests;
