//! The meter of a connection: counts what each read requests and costs, and reports it to
//! telemetry.

use cloverleaf_telemetry::{Probe, Topics};

use crate::{Now, Received};

/// The extra cost of a request that takes the broker's locks or appends to the log: it equals
/// parsing and copying this many bytes.
const CALL_COST_BYTES: usize = 1024;

/// How many such calls one [`Session::receive`](crate::Session::receive) may make. After that the
/// session stops, so that other connections get a turn.
const CALLS_MAX: usize = 256;

/// The counts of one connection, which it reports to its probe.
///
/// A session starts a read with [`Meter::begin`], counts, and returns what [`Meter::end`] returns.
#[derive(Debug)]
pub struct Meter {
    /// This connection's probe.
    pub probe: Probe,
    /// Publish requests of this read.
    pub published: Published,
    /// Requests of this read that need an answer and publish nothing.
    pub others: u64,
    calls: usize,
    /// When the first byte of the present incomplete request arrived, in microseconds.
    partial_since_us: Option<u64>,
    answers_unsent: u64,
}

/// Totals of publish requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Published {
    /// The number of requests.
    pub requests: u64,
    /// How many of these need no answer.
    pub silent: u64,
    /// The number of their messages.
    pub messages: u64,
    /// Bytes of their messages.
    pub bytes: u64,
    /// The topics of the messages.
    pub topics: Topics,
}

impl Meter {
    /// The meter of a new connection.
    pub fn new(probe: Probe) -> Meter {
        Meter {
            probe,
            published: Published::default(),
            others: 0,
            calls: 0,
            partial_since_us: None,
            answers_unsent: 0,
        }
    }

    /// Starts a read with a fresh budget: broker calls made by polls since the last read do not
    /// count.
    #[inline]
    pub fn begin(&mut self) {
        self.calls = 0;
    }

    /// Counts calls of the broker, which add to the cost of this read.
    #[inline]
    pub fn called(&mut self, times: usize) {
        self.calls += times;
    }

    /// Whether the budget of broker calls is used up, so that the session must stop and get the
    /// rest again.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.calls >= CALLS_MAX
    }

    /// Whether the first request of this read started in an earlier read.
    #[inline]
    pub fn began_earlier(&self) -> bool {
        self.partial_since_us.is_some()
    }

    /// Ends a read of `shown` bytes and reports it to telemetry. `consumed` bytes were consumed;
    /// the rest needs `needed` bytes to be complete.
    #[inline]
    pub fn end(&mut self, consumed: usize, shown: usize, needed: usize, now: Now) -> Received {
        if self.published.requests > 0 || self.others > 0 {
            self.tell_requests(now);
        }
        if consumed > 0 {
            self.partial_since_us = None;
        }
        if needed > 0 && consumed < shown {
            self.ended_inside_frame(now);
        }
        Received {
            consumed_bytes: consumed,
            needed_bytes: needed,
            cost_bytes: consumed + self.calls * CALL_COST_BYTES,
        }
    }

    #[inline(never)]
    fn tell_requests(&mut self, now: Now) {
        let first_us = self.partial_since_us.unwrap_or(now.us);
        let published = &self.published;
        if published.requests > 0 {
            self.probe.publishes(
                (published.requests, published.silent),
                (published.messages, published.bytes),
                &published.topics,
                first_us,
                now.us,
            );
            self.published = Published::default();
        }
        let others = std::mem::take(&mut self.others);
        self.probe.requests(others, 0, 0, first_us, now.us);
    }

    /// Counts answers that the next write sends.
    #[inline]
    pub fn answered(&mut self, requests: u64) {
        self.answers_unsent += requests;
    }

    /// See [`Session::read`](crate::Session::read).
    #[inline]
    pub fn read(&mut self, bytes: usize, now: Now) {
        self.probe.read(bytes, now.us);
    }

    /// See [`Session::read_ended_inside_frame`](crate::Session::read_ended_inside_frame).
    #[inline]
    pub fn ended_inside_frame(&mut self, now: Now) {
        self.partial_since_us.get_or_insert(now.us);
        self.probe.read_ended_inside_frame();
    }

    /// See [`Session::wrote`](crate::Session::wrote).
    #[inline]
    pub fn wrote(&mut self, bytes: usize, now: Now) {
        self.probe.wrote(bytes);
        let answers = std::mem::take(&mut self.answers_unsent);
        self.probe.answered(answers, now.us);
    }
}

impl Published {
    /// Counts a request that needs an answer, and its messages.
    #[inline]
    pub fn add(&mut self, messages: u64, bytes: usize) {
        self.requests += 1;
        self.messages += messages;
        self.bytes += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use cloverleaf_telemetry::{Protocol, Registry};

    use super::*;

    fn meter() -> Meter {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000));
        Meter::new(Registry::new().open(Protocol::Nsq, peer, 0))
    }

    fn at(us: u64) -> Now {
        Now { us, unix_us: us }
    }

    #[test]
    fn a_read_costs_its_bytes_and_its_calls_and_a_poll_none_of_it() {
        let mut meter = meter();
        meter.called(5);
        meter.begin();
        meter.called(2);
        let received = meter.end(30, 40, 0, at(1));
        assert_eq!(received.cost_bytes, 30 + 2 * CALL_COST_BYTES);
        meter.begin();
        meter.called(CALLS_MAX - 1);
        assert!(!meter.is_spent());
        meter.called(1);
        assert!(meter.is_spent());
        meter.begin();
        assert!(!meter.is_spent());
    }

    #[test]
    fn a_request_begins_with_the_first_byte_that_was_left() {
        let mut meter = meter();
        // The rest is passed in again because the session stopped, not because bytes are missing.
        meter.end(0, 10, 0, at(1));
        assert!(!meter.began_earlier());
        meter.end(0, 10, 20, at(2));
        meter.ended_inside_frame(at(3));
        assert!(meter.began_earlier());
        meter.published.add(1, 7);
        meter.others = 2;
        meter.end(20, 20, 0, at(9));
        assert!(!meter.began_earlier());
        let seen = meter.probe.snapshot(|_| None);
        assert_eq!(seen.histograms.request_receive_us.max(), 7);
        let counters = seen.counters;
        let told = (counters.requests, counters.publishes, counters.messages_in);
        assert_eq!(told, (3, 1, 1));
        assert_eq!((counters.published_bytes, counters.partial_reads), (7, 2));
        meter.end(20, 20, 0, at(10));
        assert_eq!(
            meter.probe.snapshot(|_| None).counters.requests,
            3,
            "reported once"
        );
    }

    #[test]
    fn answers_go_out_with_the_next_write_and_silent_requests_have_none() {
        let mut meter = meter();
        meter.published.add(1, 1);
        meter.published.add(1, 1);
        meter.published.silent = 1;
        meter.end(2, 2, 0, at(1));
        let in_flight = |meter: &Meter| meter.probe.snapshot(|_| None).gauges.requests_in_flight;
        assert_eq!(in_flight(&meter), 1);
        meter.answered(1);
        assert_eq!(in_flight(&meter), 1);
        meter.wrote(4, at(2));
        assert_eq!(in_flight(&meter), 0);
        meter.wrote(4, at(3));
        assert_eq!(meter.probe.snapshot(|_| None).counters.responses, 1);
    }
}
