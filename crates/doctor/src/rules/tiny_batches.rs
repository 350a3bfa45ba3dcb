//! tiny-batches: many requests back to back, with next to nothing in each. No client waits, but
//! most of the work on both sides is for the requests and not for the messages.

use crate::advice::{Picture, Side};
use crate::finding::{Confidence, Fact, Prediction};
use crate::rules::{GAIN_MIN, Patient, Rule, Sign, Variables};
use crate::units::{bytes, counted, number};

/// Below this it is not worth anybody's while.
const REQUESTS_PER_SECOND_MIN: f64 = 2_000.0;

/// A request with more than this, messages or bytes of them, is a batch, if a small one.
const MESSAGES_MAX: f64 = 2.0;
const REQUEST_BYTES_MAX: f64 = 1024.0;

/// Requests in a row for each pause: the client sends what it has, and does not wait.
const IN_A_ROW_MIN: f64 = 4.0;

/// A request costs as much of the broker's CPU time as so many messages of 200 bytes, and to be
/// woken by what comes after a pause as so many: `docs/doctor/tiny-batches.md` has the figures.
const REQUEST_COST: f64 = 9.0;
const WAKE_COST: f64 = 200.0;

/// A broker whose next request comes so soon has not slept.
const PAUSE_US_MIN: u64 = 1_000;

/// How long is advised to collect, and how large batches may then be: twice what comes meanwhile,
/// Java's default of batch.size at least, and librdkafka's, of a million, at most.
const LINGER_MS: f64 = 10.0;
const BATCH_ROOM: f64 = 2.0;
const BATCH_BYTES_MIN: f64 = 16_384.0;
const BATCH_BYTES_MAX: f64 = 1_000_000.0;

pub(crate) fn see(patient: &Patient<'_>) -> Option<Sign> {
    let flow = &patient.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    let requests = patient.short.per_second(counters.publishes);
    let messages = counters.messages_in as f64 / counters.publishes.max(1) as f64;
    let request_bytes = counters.published_bytes as f64 / counters.publishes.max(1) as f64;
    let gaps = &histograms.request_gap_us;
    let in_a_row = counters.publishes as f64 / gaps.count().max(1) as f64;
    if !patient.protocol.traits().has_batches
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
    // Where there is no pause with batches, there was none without.
    let after_pause = batch.max(per_pause);
    let cost = |messages: f64, per_pause: f64| {
        1.0 + REQUEST_COST / messages + WAKE_COST / per_pause.max(messages)
    };
    let (now, after) = (cost(messages, per_pause), cost(batch, after_pause));
    let arithmetic = format!(
        "a request costs the broker as much as {REQUEST_COST} messages, and to wake it as much as \
         {WAKE_COST}: with {} each, {} between pauses, {:.1} per message; with {} each \
         {:.1}",
        counted(messages, "message", "messages"),
        number(per_pause),
        now,
        number(batch),
        after
    );
    let prediction = Prediction::of_cost(now, after, arithmetic);
    if prediction.gain < GAIN_MIN {
        return None;
    }
    let evidence = vec![
        Fact::new(
            "requests_per_second",
            requests,
            format!(
                "{} requests/s, {} in a row",
                number(requests),
                number(in_a_row)
            ),
        ),
        Fact::new(
            "messages_per_request",
            messages,
            format!(
                "{} per request, {} of them together",
                counted(messages, "message", "messages"),
                bytes(request_bytes)
            ),
        ),
    ];
    Some(Sign {
        picture: Picture::Usual,
        rule: Rule::TinyBatches,
        side: Side::Producer,
        confidence: Confidence::Medium,
        cause: "The producer sends each message in a request of its own, one right after the \
                other."
            .to_owned(),
        evidence,
        window_us: patient.short.span_us,
        prediction,
        unseen: vec!["whether the program can make messages faster than it does now".to_owned()],
        variables: Variables::from([
            ("linger_ms", LINGER_MS),
            ("batch_messages", batch.ceil()),
            (
                "batch_bytes",
                (message_bytes * batch * BATCH_ROOM).clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX),
            ),
        ]),
        place: None,
    })
}
