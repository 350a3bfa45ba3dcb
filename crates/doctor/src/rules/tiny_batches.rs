//! tiny-batches: many requests back to back, with very few bytes each. No client waits, but most of
//! the work on both sides is spent on requests rather than messages.

use crate::finding::Measure;
use crate::rules::{ConnectionView, Sign, worthwhile};
use crate::templates::TEMPLATES;

/// Below this rate the cost does not matter.
const REQUESTS_PER_SECOND_MIN: f64 = 2_000.0;

/// Maximum messages and bytes of a tiny request. A larger request counts as a batch.
const MESSAGES_MAX: f64 = 2.0;
const REQUEST_BYTES_MAX: f64 = 1024.0;

/// Minimum requests between two pauses: the client sends what it has without waiting.
const IN_A_ROW_MIN: f64 = 4.0;

/// CPU time of the broker for a request, and for being woken up after a pause, in messages of 200
/// bytes: `docs/doctor/tiny-batches.md` has the figures.
const REQUEST_COST: f64 = 9.0;
const WAKE_COST: f64 = 200.0;

/// If the next request comes sooner than this, in microseconds, the broker has not slept.
const PAUSE_US_MIN: u64 = 1_000;

/// The advised linger. The advised maximum batch size is twice the bytes published meanwhile, at
/// least Java's default `batch.size` and at most librdkafka's, a million.
const LINGER_MS: f64 = 10.0;
const BATCH_ROOM: f64 = 2.0;
const BATCH_BYTES_MIN: f64 = 16_384.0;
const BATCH_BYTES_MAX: f64 = 1_000_000.0;

pub(crate) fn see(view: &ConnectionView<'_>) -> Option<Sign> {
    let flow = &view.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    let requests = view.short.per_second(counters.publishes);
    let messages = counters.messages_in as f64 / counters.publishes.max(1) as f64;
    let request_bytes = counters.published_bytes as f64 / counters.publishes.max(1) as f64;
    let gaps = &histograms.request_gap_us;
    let in_a_row = counters.publishes as f64 / gaps.count().max(1) as f64;
    if !view.protocol.traits().has_batches
        || requests < REQUESTS_PER_SECOND_MIN
        || messages > MESSAGES_MAX
        || request_bytes > REQUEST_BYTES_MAX
        || in_a_row < IN_A_ROW_MIN
    {
        return None;
    }
    let message_bytes = request_bytes / messages.max(1.0);
    let pauses = gaps.count() - gaps.count_between(0, PAUSE_US_MIN);
    let per_pause = counters.messages_in as f64 / pauses.max(1) as f64;
    let collected = requests * messages * LINGER_MS / 1e3;
    let batch = collected.min(BATCH_BYTES_MAX / message_bytes.max(1.0));
    // Batching does not add pauses.
    let after_pause = batch.max(per_pause);
    let cost = |messages: f64, per_pause: f64| {
        1.0 + REQUEST_COST / messages + WAKE_COST / per_pause.max(messages)
    };
    let (now, after) = (cost(messages, per_pause), cost(batch, after_pause));
    let prediction = worthwhile(Measure::Cost, now, after)?;
    let batch_bytes = message_bytes * batch * BATCH_ROOM;
    let numbers = [
        ("requests_per_second", requests),
        ("in_a_row", in_a_row),
        ("messages_per_request", messages),
        ("request_bytes", request_bytes),
        ("request_cost", REQUEST_COST),
        ("wake_cost", WAKE_COST),
        ("per_pause", per_pause),
        ("batch", batch),
    ];
    let template = &TEMPLATES.tiny_batches;
    let sign = Sign::new(template, prediction, view.short.span_us, numbers);
    Some(sign.advise([
        ("linger_ms", LINGER_MS),
        ("batch_messages", batch.ceil()),
        (
            "batch_bytes",
            batch_bytes.clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX),
        ),
    ]))
}
