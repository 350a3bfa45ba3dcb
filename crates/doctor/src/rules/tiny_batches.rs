//! tiny-batches: many requests back to back, with next to nothing in each. Nobody waits, but most
//! of the work on both sides is for the requests and not for the messages.

use cloverleaf_telemetry::Protocol;

use crate::advice::Side;
use crate::finding::{Confidence, Fact, Measure, Prediction};
use crate::rules::{GAIN_MIN, Patient, Rule, Sign, Variables};
use crate::units::{bytes, number};

/// Below this it is not worth anybody's while.
const REQUESTS_PER_SECOND_MIN: f64 = 2_000.0;

const MESSAGES_MAX: f64 = 2.0;
const REQUEST_BYTES_MAX: f64 = 1024.0;

/// Requests in a row for each pause: the client sends what it has, and does not wait.
const IN_A_ROW_MIN: f64 = 4.0;

/// A request costs as much as so many messages of 200 bytes do:
/// `docs/decisions/004-the-probe-is-always-on.md` has 11,297 instructions for a message alone in
/// its request, and 1,802 for one of two hundred.
const REQUEST_COST: f64 = 5.0;

/// Messages per request that are advised.
const MESSAGES_ADVISED: f64 = 100.0;

pub(crate) fn see(patient: &Patient<'_>) -> Option<Sign> {
    let flow = &patient.short.flow;
    let (counters, histograms) = (&flow.counters, &flow.histograms);
    let requests = patient.short.per_second(counters.publishes);
    let messages = counters.messages_in as f64 / counters.publishes.max(1) as f64;
    let request_bytes = counters.published_bytes as f64 / counters.publishes.max(1) as f64;
    let pauses = histograms.request_gap_us.count().max(1);
    let in_a_row = counters.publishes as f64 / pauses as f64;
    // AMQP has one message per publish.
    let has_batches = matches!(patient.protocol, Protocol::Kafka | Protocol::Nsq);
    if !has_batches
        || requests < REQUESTS_PER_SECOND_MIN
        || messages > MESSAGES_MAX
        || request_bytes > REQUEST_BYTES_MAX
        || in_a_row < IN_A_ROW_MIN
    {
        return None;
    }
    let cost = |messages: f64| REQUEST_COST / messages + 1.0;
    let gain = cost(messages) / cost(MESSAGES_ADVISED);
    let rate = requests * messages;
    let arithmetic = format!(
        "a request costs the broker as much as {REQUEST_COST} messages: with {} messages each \
         {:.2} per message, with {MESSAGES_ADVISED} each {:.2}",
        number(messages),
        cost(messages),
        cost(MESSAGES_ADVISED)
    );
    let measure = Measure::ConnectionMessagesPerSecond;
    let prediction = Prediction::of_rate(measure, rate, rate * gain, arithmetic);
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
                "{} messages per request, {} of them together",
                number(messages),
                bytes(request_bytes)
            ),
        ),
    ];
    let message_bytes = request_bytes / messages.max(1.0);
    Some(Sign {
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
            ("linger_ms", 5.0),
            ("batch_messages", MESSAGES_ADVISED),
            (
                "batch_bytes",
                (message_bytes * MESSAGES_ADVISED).clamp(16_384.0, 1_000_000.0),
            ),
        ]),
        place: None,
    })
}
