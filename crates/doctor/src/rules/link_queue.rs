//! too-many-in-flight, on the link: a publisher's requests queue before its uplink, and the
//! kernel's round trip shows for how long.
//!
//! ```text
//! client ──┤ request request request ack-of-our-answer ├── uplink ──► broker
//!          └──────────── round trip of our answers ───────────────┘
//! ```
//!
//! The client's TCP acknowledgements of our answers queue behind its own data. So the round trip
//! that the kernel measures with our answers includes the time in the queue, and the minimum round
//! trip is the time without a queue. This holds for every protocol; Kafka's records have
//! timestamps, which show more.
//!
//! A program may use a deep pipeline on purpose. So a sign requires clients that give connections
//! up, or a whole minute without any short round trip, which is reported with low severity.

use cloverleaf_telemetry::Protocol;

use crate::finding::{Bound, Measure};
use crate::rules::given_up::{GivenUpTotals, RoundTrips};
use crate::rules::{ConnectionView, LONG_US, Sign, worthwhile};
use crate::templates::TEMPLATES;

/// Minimum mean of requests on the link, if connections are given up, and if not.
const IN_FLIGHT_MIN: f64 = 50.0;
const IN_FLIGHT_CALM_MIN: f64 = 100.0;

/// Minimum ratio of the requests on the link to those that the rate needs.
const EXCESS_MIN: f64 = 4.0;

/// Margin above rate × round trip, and the additional time for sending, in microseconds: scheduling
/// of threads, turns on a Wi-Fi channel.
const ROOM: f64 = 2.0;
const SENDING_US: f64 = 10_000.0;

/// A round trip that jitter and delayed acknowledgements do not explain: at least this many times
/// the minimum, and at least this long in microseconds. `CALM`: if no connection is given up.
const GIVEN_UP_TIMES: f64 = 5.0;
const GIVEN_UP_US: f64 = 100_000.0;
const CALM_TIMES: f64 = 10.0;
const CALM_US: f64 = 250_000.0;

/// Minimum share of slow connections among those that were given up.
const SLOW_SHARE_MIN: f64 = 0.75;

/// Minimum connections that were given up and whose round trip is known.
const WAYS_MIN: usize = 3;

/// Minimum share of the time in which a request is being received: a client that sends less has not
/// caused the queue. The share is lower for connections that are given up, because it includes
/// their handshakes.
const RECEIVING_SHARE_MIN: f64 = 0.8;
const RECEIVING_SHARE_GIVEN_UP_MIN: f64 = 0.5;

/// Whether clients of this protocol send many small requests that can queue. Kafka's send few, with
/// many messages each.
pub(super) fn knows(protocol: Protocol) -> bool {
    protocol.traits().has_many_requests
}

/// A publisher that keeps its link's queue long for a minute.
pub(super) fn see(view: &ConnectionView<'_>) -> Option<Sign> {
    let least_us = view.rtt_us()?;
    let rtt_us = f64::from(view.history.rtt_of_a_minute_us()?);
    if !knows(view.protocol) || rtt_us < CALM_US || rtt_us < CALM_TIMES * least_us {
        return None;
    }
    let window = view.history.window(view.now_us, LONG_US);
    let counters = &window.flow.counters;
    let receiving_us = window.flow.histograms.request_receive_us.sum() as f64;
    let share = receiving_us / window.span_us as f64;
    // A client without confirms does not know what is in flight. If more bytes go to the client
    // than come from it, the queue may be in that direction.
    if share < RECEIVING_SHARE_MIN
        || counters.requests_silent > 0
        || counters.bytes_out > counters.bytes_in
    {
        return None;
    }
    let queue = LinkQueue {
        rate: window.per_second(counters.publishes),
        messages: counters.messages_in as f64 / counters.publishes.max(1) as f64,
        rtt_us,
        least_us,
    };
    if queue.in_flight() < IN_FLIGHT_CALM_MIN {
        return None;
    }
    let mut sign = queue.sign(window.span_us)?.with("receiving_share", share);
    sign.prediction.may_be_meant = true;
    Some(sign)
}

/// Clients that give up connections while their requests wait before the link.
pub(super) fn see_given_up(gave_up: &GivenUpTotals) -> Option<Sign> {
    let ways = &gave_up.ways;
    let is_slow = |way: &&RoundTrips| {
        let longest_us = f64::from(way.longest_us);
        longest_us >= GIVEN_UP_US && longest_us >= GIVEN_UP_TIMES * f64::from(way.least_us)
    };
    let slow = ways.iter().filter(is_slow).count() as f64;
    // A queue that exists when a connection begins was caused by another client.
    if ways.len() < WAYS_MIN
        || slow < SLOW_SHARE_MIN * ways.len() as f64
        || gave_up.receiving_share < RECEIVING_SHARE_GIVEN_UP_MIN
    {
        return None;
    }
    let mean_us = |of: fn(&RoundTrips) -> u32| {
        ways.iter().map(|way| f64::from(of(way))).sum::<f64>() / ways.len() as f64
    };
    let messages = gave_up.messages as f64 / gave_up.publishes.max(1) as f64;
    let queue = LinkQueue {
        rate: gave_up.rate / messages.max(1.0),
        messages,
        rtt_us: mean_us(|way| way.longest_us),
        least_us: mean_us(|way| way.least_us),
    };
    let sign = queue.sign(LONG_US)?.when("gives_up", true);
    let given_up = sign.with("given_up", gave_up.connections as f64);
    Some(given_up.with("every_us", gave_up.every_us))
}

/// A queue before a link. Times in microseconds, requests per second.
struct LinkQueue {
    rate: f64,
    /// Bytes of a request.
    messages: f64,
    rtt_us: f64,
    least_us: f64,
}

impl LinkQueue {
    /// Requests in flight, by Little's law.
    fn in_flight(&self) -> f64 {
        self.rate * self.rtt_us / 1e6
    }

    fn sign(&self, window_us: u64) -> Option<Sign> {
        let in_flight = self.in_flight();
        let alone_us = self.least_us + SENDING_US;
        let needed = (self.rate * alone_us / 1e6 * ROOM).ceil().max(1.0);
        if in_flight < IN_FLIGHT_MIN || in_flight < EXCESS_MIN * needed {
            return None;
        }
        let after_us = (needed * 1e6 / self.rate).max(alone_us);
        // Another client that shares the link may have caused the queue.
        let prediction = worthwhile(Measure::LatencyUs, self.rtt_us, after_us)?;
        let numbers = [
            ("rtt_us", self.rtt_us),
            ("least_us", self.least_us),
            ("in_flight", in_flight),
            ("rate", self.rate),
            ("needed", needed),
        ];
        let template = &TEMPLATES.too_many_on_link;
        let sign = Sign::new(
            template,
            prediction.bounded(Bound::AtMost),
            window_us,
            numbers,
        );
        Some(sign.advise([
            ("in_flight", needed),
            ("messages", (needed * self.messages).ceil()),
        ]))
    }
}
