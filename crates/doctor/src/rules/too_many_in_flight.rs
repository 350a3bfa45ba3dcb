//! too-many-in-flight: so many requests are on their way that they wait for each other, until the
//! client loses its patience. More of them bring nothing: the rate is what it is.
//!
//! Deep pipelines are no fault. They are one when somebody gives up waiting: a client that leaves
//! with requests that are not answered, or is answered with errors. It is seen in two places:
//!
//! ```text
//! program --- library ===  link  === broker
//!                 |---------------------|      records are old, and requests are cut off when
//!                                              their client loses patience and connects anew
//!                         |-------------|      the round trip is long (`link_queue`)
//!                                     |-|      requests wait long for their answers
//! ```

use cloverleaf_telemetry::Protocol;

use crate::Client;
use crate::finding::Measure;
use crate::rules::given_up::GaveUp;
use crate::rules::{
    ClosedConnections, ConnectionView, EVENTS_MIN, LONG_US, Sign, link_queue, worthwhile,
};
use crate::templates::TEMPLATES;

/// Requests in flight on the mean.
const IN_FLIGHT_MIN: f64 = 50.0;

/// How long a request waits at least.
const SERVICE_US_MIN: f64 = 100_000.0;

/// How many times more requests are in flight than the rate needs.
const EXCESS_MIN: f64 = 4.0;

/// Requests that were given up, or refused, in a minute.
const TROUBLE_MIN: u64 = 3;

/// The factor for what is irregular, above rate × latency.
const ROOM: f64 = 2.0;

/// How long ago a connection was given up at most.
const RECENT_US: u64 = 16_000_000;

/// Messages that are given up are younger than this many times the time from one connection that
/// is given up to the next: both come from the client's patience. Or younger than the longest of
/// these times, and of the connections' lives: a first one may have lived on while what waited grew
/// old, and later ones, which find all of it old, are cut sooner.
const PATIENCE_MAX: f64 = 2.0;

/// And older than this share of that time. A client that is killed again and again has full queues,
/// too, but messages that are as young as at any other time.
const PATIENCE_MIN: f64 = 0.25;

/// Share of the time in which a request is coming in, where they queue for the link.
const RECEIVING_SHARE_MIN: f64 = 0.5;

/// The factor above rate × latency where messages are bounded, and not requests: a library may send
/// all of them in one batch, and the link is idle until it is answered.
const BATCHES_ROOM: f64 = 4.0;

/// Share of the requests that may come after a pause for an answer.
const WAITED_SHARE_MAX: f64 = 0.5;

/// Libraries collect for about so long before they send, whatever else takes time.
const COLLECT_US: f64 = 10_000.0;

/// The sign of a connection whose client has left `abandoned` requests unanswered lately.
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
    // The time of a request that finds nobody before it.
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

/// The signs of clients that give up connections on which their messages were on their way.
pub(crate) fn see_given_up(closed: &ClosedConnections, now_us: u64) -> Vec<(Client, Sign)> {
    let seen = closed
        .given_up(now_us)
        .filter_map(|(client, gave_up, rtt_us)| {
            let sign = sign_of(client.protocol, &gave_up, f64::from(rtt_us))?;
            Some((client.clone(), sign))
        });
    seen.collect()
}

fn sign_of(protocol: Protocol, gave_up: &GaveUp, rtt_us: f64) -> Option<Sign> {
    // So does the greeting of each connection, in which there are no messages.
    let greeting = gave_up.requests.saturating_sub(gave_up.publishes);
    let waited = gave_up.waited.saturating_sub(greeting);
    if gave_up.connections < TROUBLE_MIN
        || gave_up.ago_us > RECENT_US
        || rtt_us == 0.0
        // One request at a time waits for the link and not for others of its kind.
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

/// By the times that records bear.
fn sign_of_ages(gave_up: &GaveUp, rtt_us: f64) -> Option<Sign> {
    let age_us = gave_up.record_age_us;
    let in_flight = gave_up.rate * age_us / 1e6;
    let (requests, messages) = (gave_up.publishes as f64, gave_up.messages as f64);
    if gave_up.record_ages < TROUBLE_MIN
        || age_us < SERVICE_US_MIN
        || in_flight < IN_FLIGHT_MIN
        // A link that is not full has no queue, whatever the times of the records say.
        || gave_up.receiving_share < RECEIVING_SHARE_MIN
        // Yesterday's records, and those of a clock that is wrong, are older than anybody's
        // patience with them.
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
