//! one-connection, if the limit is one request: the library has one in flight, each is a full
//! batch, and the program waits for space in the next one.
//!
//! ```text
//! program  puts a batch │ waits for space ───────────────│ puts the next one │ waits
//! library               │ that batch waits for the answer to the one before │ sends it
//! broker                                       ◄── way ──┤ records are a whole round old
//! ```
//!
//! A library that batches the messages of a steady program looks similar, with as many messages in
//! each request and with first records as old. But its records were produced all along the round.
//! If the program waits for space, a batch's records are produced at once, so the timestamps of its
//! first and last record are close.

use crate::finding::{Bound, Measure};
use crate::rules::one_connection::are_full;
use crate::rules::rounds::Rounds;
use crate::rules::{ConnectionView, EVENTS_MIN, Sign, WAIT_US_MIN, worthwhile};
use crate::templates::TEMPLATES;

/// Maximum distance between the timestamps of a batch's first and last record, as a share of a
/// round.
const SPAN_SHARE_MAX: f64 = 0.25;

/// Age of first records in rounds, without the time on the network: minimum of the youngest tenth,
/// and maximum of the median. Older records have timestamps of the program's own, or are resent.
const AGE_ROUNDS: (f64, f64) = (0.5, 3.0);

/// At most half of the requests come later after an answer than a round trip plus this share of it,
/// which shows that they wait for the answer.
const THINK_SHARE_MAX: f64 = 0.35;

/// Factor by which larger batches are advised, and their maximum: brokers accept requests of 1 MiB.
const FACTOR: f64 = 16.0;
const BATCH_BYTES_MAX: f64 = 524_288.0;

pub(super) fn see(view: &ConnectionView<'_>, rounds: &Rounds) -> Option<Sign> {
    let flow = &view.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    let (cycle_us, wait_us) = (rounds.cycle_us(), rounds.wait_us());
    if counters.batches_in < EVENTS_MIN || wait_us < WAIT_US_MIN || !rounds.is_one_by_one() {
        return None;
    }
    let span_us = counters.batch_spans_us as f64 / counters.batches_in as f64;
    let ages = &histograms.record_age_us;
    let age_us = ages.quantile(0.5) as f64;
    let way_us = rounds.rtt_us / 2.0 + rounds.receive_us;
    let youngest_us = ages.quantile(0.1) as f64 - way_us;
    let gap_us = histograms.request_gap_us.quantile(0.5) as f64;
    if ages.count() < EVENTS_MIN
        || !are_full(&histograms.request_messages)
        || span_us > SPAN_SHARE_MAX * cycle_us
        || youngest_us < AGE_ROUNDS.0 * cycle_us
        || age_us - way_us > AGE_ROUNDS.1 * cycle_us
        || gap_us - rounds.rtt_us > THINK_SHARE_MAX * wait_us
        || !Rounds::is_waiting(view)
    {
        return None;
    }
    let batch_bytes = counters.published_bytes as f64 / counters.publishes as f64;
    // Configured sizes are powers of two, and full batches are a little smaller.
    let wanted = (FACTOR * batch_bytes).max(2.0) as u64;
    let wanted = (wanted.next_power_of_two() as f64).min(BATCH_BYTES_MAX);
    let times = wanted / batch_bytes;
    // The time of the client and the link grows at most in proportion to the batch; the round trip
    // does not.
    let own_us = (cycle_us - wait_us).max(0.0);
    let after_us = wait_us + times * own_us;
    let (now, after) = (rounds.rate(), rounds.rate() * times * cycle_us / after_us);
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = worthwhile(measure, now, after)?.bounded(Bound::AtLeast);
    let numbers = [
        ("messages_per_request", rounds.messages),
        ("record_age_us", age_us),
        ("batch_span_us", span_us),
        ("rtt_us", rounds.rtt_us),
        ("rounds", rounds.count as f64),
        ("batch_bytes", batch_bytes),
        ("cycle_us", cycle_us),
        ("times", times.round()),
        ("own_us", own_us),
        ("after_us", after_us),
    ];
    let template = &TEMPLATES.one_connection_full_batches;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers);
    Some(sign.advise([
        ("batch_bytes", wanted),
        ("batch_messages", (rounds.messages * times).round()),
        ("in_flight", 4.0),
        ("connections", (4.0 * view.publishers as f64).ceil()),
    ]))
}
