//! too-many-in-flight: so many requests are in flight that they queue behind each other until the
//! client times out. More of them do not raise the rate.
//!
//! Deep pipelines alone are no fault. They become one when a client gives up waiting: it closes the
//! connection with unanswered requests, or it gets errors. The queue may be in one of these places:
//!
//! ```text
//! program --- library ===  link  === broker
//!                 |---------------------|      records are old, and requests are cut off when
//!                                              their client times out and reconnects
//!                         |-------------|      the round trip is long (`link_queue`)
//!                                     |-|      requests wait long for their answers
//! ```

use cloverleaf_telemetry::Protocol;

use crate::Client;
use crate::finding::Measure;
use crate::rules::given_up::GivenUpTotals;
use crate::rules::{
    ClosedConnections, ConnectionView, EVENTS_MIN, LONG_US, Sign, link_queue, worthwhile,
};
use crate::templates::TEMPLATES;

/// Minimum mean of requests in flight.
const IN_FLIGHT_MIN: f64 = 50.0;

/// Minimum time that a request waits, in microseconds.
const SERVICE_US_MIN: f64 = 100_000.0;

/// Minimum ratio of the requests in flight to those that the rate needs.
const EXCESS_MIN: f64 = 4.0;

/// Minimum requests that were given up or refused in a minute.
const TROUBLE_MIN: u64 = 3;

/// Margin for irregularities, above rate × latency.
const ROOM: f64 = 2.0;

/// Maximum time since a connection was given up, in microseconds.
const RECENT_US: u64 = 16_000_000;

/// Messages on connections that are given up are younger than this many times the interval between
/// two such connections, because both come from the client's timeout. They may also be as old as
/// the longest interval or life of a connection: a first connection may live on while its queue
/// grows old, and later ones, which find all messages old, are closed sooner.
const PATIENCE_MAX: f64 = 2.0;

/// They are also older than this share of the interval. A client that is killed repeatedly has full
/// queues too, but its messages are no older than usual.
const PATIENCE_MIN: f64 = 0.25;

/// Minimum share of the time in which a request is being received, if requests queue for the link.
const RECEIVING_SHARE_MIN: f64 = 0.5;

/// Margin above rate × latency if a library limits messages rather than requests: it may send all
/// of them in one batch, and the link is idle until the answer.
const BATCHES_ROOM: f64 = 4.0;

/// Maximum share of requests that come after waiting for an answer.
const WAITED_SHARE_MAX: f64 = 0.5;

/// Libraries linger for about this time before they send, in microseconds.
const COLLECT_US: f64 = 10_000.0;

/// The sign of a connection whose client has recently abandoned `abandoned` requests without
/// waiting for the answers.
pub(crate) fn see(view: &ConnectionView<'_>, abandoned: u64) -> Option<Sign> {
    see_in_broker(view, abandoned).or_else(|| link_queue::see(view))
}

fn see_in_broker(view: &ConnectionView<'_>, abandoned: u64) -> Option<Sign> {
    let services = &view.short.flow.histograms.service_us;
    let rtt_us = view.rtt_us().unwrap_or_default();
    let publishes = view.short.flow.counters.publishes;
    let service_us = services.mean();
    let messages = view.short.flow.counters.messages_in as f64 / publishes.max(1) as f64;
    let rate = view.short.per_second(publishes);
    let in_flight = rate * service_us / 1e6;
    if services.count() < EVENTS_MIN / 2
        || publishes < EVENTS_MIN
        || service_us < SERVICE_US_MIN
        || in_flight < IN_FLIGHT_MIN
    {
        return None;
    }
    let window = view.history.window(view.now_us, LONG_US);
    let trouble = abandoned + window.flow.counters.errors;
    if trouble < TROUBLE_MIN {
        return None;
    }
    // The time of a request without others before it.
    let alone_us = rtt_us + window.flow.histograms.service_us.quantile(0.01) as f64;
    let needed = (rate * alone_us / 1e6 * ROOM).ceil().max(1.0);
    if in_flight < EXCESS_MIN * needed {
        return None;
    }
    let after_us = (needed * 1e6 / rate).max(alone_us);
    let prediction = worthwhile(Measure::LatencyUs, service_us + rtt_us, after_us)?;
    let numbers = [
        ("in_flight", in_flight),
        ("service_us", service_us),
        ("abandoned", trouble as f64),
        ("rate", rate),
        ("needed", needed),
        ("alone_us", alone_us),
    ];
    let template = &TEMPLATES.too_many_in_broker;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers);
    Some(sign.advise([
        ("in_flight", needed),
        ("messages", (needed * messages).ceil()),
    ]))
}

/// The signs of clients that give up connections with messages still in flight.
pub(crate) fn see_given_up(closed: &ClosedConnections, now_us: u64) -> Vec<(Client, Sign)> {
    let seen = closed
        .given_up(now_us)
        .filter_map(|(client, gave_up, rtt_us)| {
            let sign = sign_of(client.protocol, &gave_up, f64::from(rtt_us))?;
            Some((client.clone(), sign))
        });
    seen.collect()
}

fn sign_of(protocol: Protocol, gave_up: &GivenUpTotals, rtt_us: f64) -> Option<Sign> {
    // Requests of each connection's handshake wait for answers too, but have no messages.
    let greeting = gave_up.requests.saturating_sub(gave_up.publishes);
    let waited = gave_up.waited.saturating_sub(greeting);
    if gave_up.connections < TROUBLE_MIN
        || gave_up.ago_us > RECENT_US
        || rtt_us == 0.0
        // With one request at a time, none waits for another.
        || waited as f64 > WAITED_SHARE_MAX * gave_up.publishes as f64
    {
        return None;
    }
    if link_queue::knows(protocol) {
        link_queue::see_given_up(gave_up)
    } else {
        sign_of_ages(gave_up, rtt_us)
    }
}

/// A sign by the ages of records.
fn sign_of_ages(gave_up: &GivenUpTotals, rtt_us: f64) -> Option<Sign> {
    let age_us = gave_up.record_age_us;
    let in_flight = gave_up.rate * age_us / 1e6;
    let (requests, messages) = (gave_up.publishes as f64, gave_up.messages as f64);
    if gave_up.record_ages < TROUBLE_MIN
        || age_us < SERVICE_US_MIN
        || in_flight < IN_FLIGHT_MIN
        // A link that is not full has no queue, whatever the ages of records are.
        || gave_up.receiving_share < RECEIVING_SHARE_MIN
        // Old records that are sent late, and those of a wrong clock, are older than any client's
        // timeout.
        || age_us > (PATIENCE_MAX * gave_up.every_us).max(gave_up.longest_us as f64)
        || age_us < PATIENCE_MIN * gave_up.every_us
    {
        return None;
    }
    let alone_us = rtt_us + COLLECT_US;
    let needed = (gave_up.rate * alone_us / 1e6 * BATCHES_ROOM)
        .ceil()
        .max(1.0);
    if in_flight < EXCESS_MIN * needed {
        return None;
    }
    let after_us = needed * 1e6 / gave_up.rate + rtt_us;
    let prediction = worthwhile(Measure::LatencyUs, age_us, after_us)?;
    let numbers = [
        ("given_up", gave_up.connections as f64),
        ("every_us", gave_up.every_us),
        ("record_age_us", age_us),
        ("messages_in_flight", in_flight),
        ("rate", gave_up.rate),
        ("needed", needed),
        ("rtt_us", rtt_us),
    ];
    let sign = Sign::new(&TEMPLATES.too_many_given_up, prediction, LONG_US, numbers);
    let requests = (needed * requests / messages).ceil().max(1.0);
    Some(sign.advise([("in_flight", requests), ("messages", needed)]))
}
