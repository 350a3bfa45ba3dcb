//! no-compression: the link is full of bytes that compress well.
//!
//! ```text
//! link     │◄──── request ────►│◄──── request ────►│     its bytes are on the way all the time
//! after    │◄ req. ►│◄ req. ►│◄ req. ►│◄ req. ►│       the same messages in fewer bytes
//! ```
//!
//! How well they compress is measured: now and then the session compresses a small sample of the
//! published bytes, only of requests that came in several reads. Messages that are compressed
//! already appear as incompressible, or are not sampled (on a compressed connection of NSQ). One of
//! three observations shows that the link is the limit:
//!
//! - a request is being received all the time;
//! - a request is being received nearly all the time, most of them directly follow the one before,
//!   and the pauses are those of a full link that sometimes loses a packet: a round trip each,
//!   until it is retransmitted;
//! - a request is being received most of the time, and the client waits for each answer and does
//!   nothing else.

use cloverleaf_telemetry::Compression;

use crate::finding::{Bound, Measure};
use crate::rules::nagle;
use crate::rules::rounds::Rounds;
use crate::rules::{ConnectionView, Sign, WAIT_US_MIN, worthwhile};
use crate::templates::TEMPLATES;

/// Minimum bytes that were sampled.
const SAMPLED_BYTES_MIN: u64 = 8 << 10;

/// Minimum ratio of compression that is worth a client's CPU time.
const RATIO_MIN: f64 = 1.5;

/// Minimum requests that ended in the window. It is low, because large requests are few.
const REQUESTS_MIN: u64 = 4;

/// Minimum share of the time in which a request is being received, if the link is full.
const FULL_SHARE_MIN: f64 = 0.95;

/// The same if packets are lost. Requests follow each other directly or after a pause. A pause is
/// longer than this share of a request's time and takes up to this many round trips; at most this
/// share of the requests come after one.
const LOSSY_SHARE_MIN: f64 = 0.75;
const PAUSE_SHARE_MIN: f64 = 0.1;
const PAUSE_ROUND_TRIPS_MAX: f64 = 1.5;
const PAUSES_MAX: f64 = 0.2;

/// The same if the next request waits for the answer, and the maximum share of the client's own
/// work.
const WAITING_SHARE_MIN: f64 = 0.5;
const THINK_SHARE_MAX: f64 = 0.25;

/// If the broker reads more at once, it was late itself and has not waited for the link.
const READ_BYTES_MAX: f64 = 64.0 * 1024.0;

/// On a faster link compressing takes about as long as sending.
const LINK_BYTES_PER_SECOND_MAX: f64 = 32e6;

/// Bytes that a client compresses in a second: with lz4 on half a core, or with Deflate, which
/// NSQ's clients have.
const COMPRESSED_PER_SECOND: f64 = 150e6;
const DEFLATED_PER_SECOND: f64 = 20e6;

/// Requests in flight that nearly every client allows. Whether this client allows more is not
/// known.
const IN_FLIGHT: f64 = 5.0;

pub(crate) fn see(view: &ConnectionView<'_>, rounds: Option<&Rounds>) -> Option<Sign> {
    let flow = &view.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    let (sampled, compressed) = (counters.sampled_bytes, counters.sampled_bytes_compressed);
    if sampled < SAMPLED_BYTES_MIN || counters.publishes < REQUESTS_MIN {
        return None;
    }
    let ratio = sampled as f64 / compressed.max(1) as f64;
    let publishes = counters.publishes as f64;
    let request_bytes = counters.published_bytes as f64 / publishes;
    let per_second = view.short.per_second(counters.published_bytes);
    let read_bytes = counters.bytes_in as f64 / counters.reads.max(1) as f64;
    if ratio < RATIO_MIN || per_second > LINK_BYTES_PER_SECOND_MAX || read_bytes > READ_BYTES_MAX {
        return None;
    }
    let cycle_us = view.short.span_us as f64 / publishes;
    let receiving_us = (histograms.request_receive_us.sum() as f64 / publishes).min(cycle_us);
    let share = receiving_us / cycle_us;
    let rtt_us = view.rtt_us().unwrap_or_default();
    // If the end of a small request comes a round trip after its beginning, it waited for an
    // acknowledgement rather than for the link. With several requests in flight, the
    // acknowledgement of another one comes sooner. (NSQ's requests are always small, but its
    // libraries turn Nagle's algorithm off.)
    let is_of_connection = view.protocol.traits().compression == Compression::Connection;
    let least_hole_us = if is_of_connection {
        nagle::RTT_SLACK.0 * rtt_us
    } else {
        0.0
    };
    let is_hole = histograms.split_request_bytes.quantile(0.9) <= nagle::REQUEST_BYTES_MAX
        && (least_hole_us..=nagle::RTT_SLACK.1 * rtt_us).contains(&receiving_us);
    if is_hole {
        return None;
    }
    let gaps = &histograms.request_gap_us;
    let pauses = gaps.count_between((PAUSE_SHARE_MIN * receiving_us) as u64, u64::MAX);
    let longest_us = gaps.quantile(1.0) as f64;
    let is_lossy = share >= LOSSY_SHARE_MIN
        && (pauses as f64) <= PAUSES_MAX * publishes
        && longest_us <= PAUSE_ROUND_TRIPS_MAX * rtt_us
        && Rounds::is_waiting(view);
    let waits = |rounds: &Rounds| {
        rounds.is_one_by_one()
            && rounds.think_us() <= THINK_SHARE_MAX * cycle_us
            && Rounds::is_waiting(view)
    };
    let is_waiting = share >= WAITING_SHARE_MIN && rounds.is_some_and(waits);
    let is_limit = share >= FULL_SHARE_MIN || is_lossy || is_waiting;
    // NSQ's requests are small, and come without a pause where the link is full.
    let is_stream = is_of_connection && share >= FULL_SHARE_MIN;
    if !is_limit || (receiving_us < WAIT_US_MIN && !is_stream) {
        return None;
    }
    let least_us = (rtt_us + histograms.service_us.mean()) / IN_FLIGHT;
    let compressed_per_second = if is_of_connection {
        DEFLATED_PER_SECOND
    } else {
        COMPRESSED_PER_SECOND
    };
    let compressing_us = request_bytes * 1e6 / compressed_per_second;
    let reckoned_us = cycle_us - receiving_us * (1.0 - 1.0 / ratio);
    let after_us = reckoned_us.max(compressing_us);
    // If a client has no more to send than the link carries, its records do not queue.
    let is_queueing = histograms.record_age_us.quantile(0.5) as f64 > 2.0 * cycle_us + rtt_us;
    // After the change, the round trip limits this many requests in flight, unless the client has
    // more.
    let bound = if after_us >= least_us && (is_waiting || is_queueing) {
        Bound::Exact
    } else {
        Bound::AtMost
    };
    let rate = view.short.per_second(counters.messages_in);
    let after = rate * cycle_us / after_us.max(1.0);
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = worthwhile(measure, rate, after)?.bounded(bound);
    let numbers = [
        ("compression_ratio", ratio),
        ("receiving_share", share),
        ("receive_us", receiving_us),
        ("cycle_us", cycle_us),
        ("after_us", after_us),
        ("sampled_bytes", sampled as f64),
        ("compressed_bytes", compressed as f64),
        ("compressed_share", 1.0 / ratio),
        ("per_second_bytes", per_second),
        ("request_bytes", request_bytes),
    ];
    let template = &TEMPLATES.no_compression;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers);
    Some(sign.when("is_of_connection", is_of_connection))
}
