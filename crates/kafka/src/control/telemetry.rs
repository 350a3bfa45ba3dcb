//! GetTelemetrySubscriptions and PushTelemetry (KIP-714): clients push metrics that only they can
//! measure, such as how long messages wait before they are sent.

use std::io::Read;

use flate2::read::GzDecoder;
use kafka_protocol::messages::{GetTelemetrySubscriptionsResponse, PushTelemetryResponse};
use uuid::Uuid;

use crate::answer::{Answer, body, later};
use crate::error_code::ErrorCode;
use crate::wire::Malformed;

use super::client_metrics::PushedMetrics;
use super::names::text;
use super::otlp::{self, MetricValue, PREFIX};
use super::{ConnectionPeer, ControlCall};

/// Prefixes of the names of the requested metrics, without [`PREFIX`]: the standard metrics of
/// KIP-714, and others that librdkafka and the Java client send.
const REQUESTED_METRICS: &[&str] = &[
    "producer.batch.size.avg",
    "producer.connection.creation.",
    "producer.node.request.latency.",
    "producer.produce.throttle.time.",
    "producer.record.queue.time.",
    "producer.records.per.request.avg",
    "producer.request.latency.",
    "producer.requests.in.flight",
    "consumer.connection.creation.",
    "consumer.coordinator.commit.latency.",
    "consumer.coordinator.rebalance.latency.",
    "consumer.fetch.manager.fetch.latency.",
    "consumer.node.request.latency.",
    "consumer.poll.idle.ratio.",
];

/// The subscription id. It has to change whenever [`REQUESTED_METRICS`] does, so that clients fetch
/// the subscription again.
const SUBSCRIPTION_ID: i32 = 1;

/// Maximum size of a push after decompression, in bytes.
const INFLATED_BYTES_MAX: usize = 1 << 20;

/// The accepted compression types. Every client may send uncompressed data. Other codecs are not
/// worth a library, for some kilobytes a minute.
const UNCOMPRESSED: i8 = 0;
const GZIP: i8 = 1;

/// The push interval of clients from which no metrics are requested, in milliseconds (Kafka's
/// default).
const IDLE_INTERVAL_MS: i32 = 300_000;

pub(super) fn get_subscriptions(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let instance = call.body.uuid()?;
    call.body.skip_tagged()?;
    let options = &call.context.options;
    let interval_ms = i32::try_from(options.client_metrics_interval_ms).unwrap_or(i32::MAX);
    let instance = match instance.is_nil() {
        true if is_librdkafka(call.peer) => Uuid::nil(),
        true => Uuid::new_v4(),
        false => instance,
    };
    let mut response = GetTelemetrySubscriptionsResponse::default()
        .with_client_instance_id(instance)
        .with_subscription_id(SUBSCRIPTION_ID)
        .with_accepted_compression_types(vec![GZIP])
        .with_push_interval_ms(IDLE_INTERVAL_MS)
        .with_telemetry_max_bytes(bytes_max(&call));
    if interval_ms > 0 {
        let wanted = REQUESTED_METRICS
            .iter()
            .map(|name| text(&format!("{PREFIX}{name}")));
        response = response
            .with_push_interval_ms(interval_ms)
            .with_requested_metrics(wanted.collect());
    }
    Ok(Answer::Ready(body(&response, call.version)))
}

/// Whether the client is librdkafka, to which the broker assigns no client instance id. librdkafka
/// logs each change of its id, which is nil at first, so an assigned id makes every program print a
/// line that it does not print with a Kafka without telemetry. librdkafka works with the nil id,
/// and the broker uses the connection's id in its place. Other clients, such as the Java client,
/// fail without an id.
fn is_librdkafka(peer: &ConnectionPeer) -> bool {
    let software = peer.software.as_ref();
    software.is_some_and(|(name, version)| {
        // Bindings of librdkafka report their own name; most add librdkafka's version to theirs.
        name.contains("rdkafka")
            || version.contains("rdkafka")
            || name.starts_with("confluent-kafka-")
    })
}

fn bytes_max(call: &ControlCall<'_>) -> i32 {
    i32::try_from(call.context.options.client_metrics_bytes_max).unwrap_or(i32::MAX)
}

/// A client's push of metrics.
struct MetricsPush<'a> {
    instance: Uuid,
    subscription_id: i32,
    is_last: bool,
    codec: i8,
    metrics: &'a [u8],
}

pub(super) fn push(mut call: ControlCall<'_>) -> Result<Answer, Malformed> {
    let reader = &mut call.body;
    let instance = match reader.uuid()? {
        nil if nil.is_nil() && is_librdkafka(call.peer) => {
            Uuid::from_u128(u128::from(call.probe.id()) + 1)
        }
        instance => instance,
    };
    let push = MetricsPush {
        instance,
        subscription_id: reader.i32()?,
        is_last: reader.bool()?,
        codec: reader.i8()?,
        metrics: reader.bytes()?,
    };
    reader.skip_tagged()?;
    let version = call.version;
    let answer = move |code: ErrorCode| {
        let response = PushTelemetryResponse::default().with_error_code(code.code());
        body(&response, version)
    };
    if let Err(code) = check(&call, &push) {
        return Ok(Answer::Ready(answer(code)));
    }
    let client = PushedMetrics {
        instance: push.instance,
        client_id: call.client_id.map(str::to_owned),
        software: call.peer.software.clone(),
        remote: call.peer.remote,
        received_us: call.now.us,
        is_last: push.is_last,
        figures: Vec::new(),
    };
    let (context, metrics) = (call.context.clone(), push.metrics.to_vec());
    // Decompression takes too long for a thread that serves connections.
    Ok(later(call.context, move || {
        match read(push.codec, &metrics) {
            Ok(figures) => {
                let client = PushedMetrics { figures, ..client };
                context.client_metrics.put(client);
                answer(ErrorCode::None)
            }
            Err(code) => answer(code),
        }
    }))
}

/// Validates a push by the rules of Kafka's `ClientMetricsManager`.
fn check(call: &ControlCall<'_>, push: &MetricsPush<'_>) -> Result<(), ErrorCode> {
    let known = &call.context.client_metrics;
    if push.instance.is_nil() {
        return Err(ErrorCode::InvalidRequest);
    }
    if push.subscription_id != SUBSCRIPTION_ID {
        return Err(ErrorCode::UnknownSubscriptionId);
    }
    if let Some((received_us, was_last)) = known.last(push.instance) {
        if was_last {
            return Err(ErrorCode::InvalidRequest);
        }
        // A push may come half an interval early: clients add a jitter to the delay before their
        // first one.
        let interval_us = u64::from(call.context.options.client_metrics_interval_ms) * 1_000;
        if !push.is_last && call.now.us < received_us.saturating_add(interval_us / 2) {
            return Err(ErrorCode::ThrottlingQuotaExceeded);
        }
    }
    if push.metrics.len() > call.context.options.client_metrics_bytes_max {
        return Err(ErrorCode::TelemetryTooLarge);
    }
    Ok(())
}

fn read(codec: i8, metrics: &[u8]) -> Result<Vec<MetricValue>, ErrorCode> {
    let wants = |name: &str| {
        REQUESTED_METRICS
            .iter()
            .any(|wanted| name.starts_with(wanted))
    };
    let read = |plain: &[u8]| otlp::figures(plain, wants).map_err(|_| ErrorCode::InvalidRecord);
    match codec {
        UNCOMPRESSED => read(metrics),
        // A terminating push may be empty, whatever its codec.
        GZIP if metrics.is_empty() => Ok(Vec::new()),
        GZIP => {
            let mut plain = Vec::new();
            let limit = INFLATED_BYTES_MAX as u64 + 1;
            let inflated = GzDecoder::new(metrics).take(limit).read_to_end(&mut plain);
            inflated.map_err(|_| ErrorCode::InvalidRecord)?;
            if plain.len() > INFLATED_BYTES_MAX {
                return Err(ErrorCode::TelemetryTooLarge);
            }
            read(&plain)
        }
        _ => Err(ErrorCode::UnsupportedCompressionType),
    }
}
