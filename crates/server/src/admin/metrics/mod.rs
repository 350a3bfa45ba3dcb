//! The page `/metrics`: connections, log, topics and subscriptions.

mod doctor;

use std::cmp::Reverse;

use cloverleaf_telemetry::MetricKind::{Counter, Gauge};
use cloverleaf_telemetry::{MetricKind, MetricText, render};

use crate::context::ServerContext;
use crate::tcp_info::tcp_info;

/// The whole page. Its length is bounded: single connections, topics and subscriptions are listed
/// up to `metrics_series_max`, those with the most traffic or the largest backlog first.
pub(crate) fn page(context: &ServerContext) -> String {
    let series_max = context.config.general.metrics_series_max as usize;
    let mut text = MetricText::new();
    broker(&mut text, context);
    render(
        &mut text,
        &context.registry.snapshot(context.now_us(), tcp_info),
        series_max,
    );
    log(&mut text, context);
    topics(&mut text, context, series_max);
    for front in &context.fronts {
        front.metrics(&mut text, context);
    }
    doctor::add(&mut text, context);
    text.finish()
}

fn broker(text: &mut MetricText, context: &ServerContext) {
    let name = "cloverleaf_info";
    text.metric(name, Gauge, "Version and durability mode of the broker.");
    let durability = context.config.general.durability.to_string();
    let version = env!("CARGO_PKG_VERSION");
    text.sample(
        name,
        &[("version", version), ("durability", &durability)],
        1.0,
    );
    let help = "When the broker started, in seconds since the Unix epoch.";
    let started_s = context.started_ms as f64 / 1000.0;
    text.single("cloverleaf_start_time_seconds", Gauge, help, started_s);
    let half = &context.half_received;
    let lines: [(&str, MetricKind, &str, u64); 3] = [
        (
            "bytes",
            Gauge,
            "Memory reserved for requests that have come in part.",
            half.bytes(),
        ),
        (
            "waiting",
            Gauge,
            "Connections not read from until there is such memory.",
            half.waiting() as u64,
        ),
        (
            "closed_total",
            Counter,
            "Connections closed because the rest of a request did not come.",
            half.closed(),
        ),
    ];
    for (name, kind, help, value) in lines {
        let name = format!("cloverleaf_half_received_{name}");
        text.single(&name, kind, help, value as f64);
    }
}

fn log(text: &mut MetricText, context: &ServerContext) {
    let log = context.log.metrics();
    let lines: [(&str, MetricKind, &str, u64); 22] = [
        ("batches_total", Counter, "Batches appended.", log.batches),
        (
            "written_bytes_total",
            Counter,
            "Bytes handed to the kernel.",
            log.written_bytes,
        ),
        ("writes_total", Counter, "Vectored writes.", log.writes),
        (
            "slow_writes_total",
            Counter,
            "Writes that took long.",
            log.slow_writes,
        ),
        (
            "syncs_total",
            Counter,
            "Syncs of files, folders, file systems.",
            log.syncs,
        ),
        (
            "fs_syncs_total",
            Counter,
            "Syncs of the file system among them.",
            log.fs_syncs,
        ),
        ("groups_total", Counter, "Group commits.", log.groups),
        (
            "group_waiters_total",
            Counter,
            "Appends that group commits completed.",
            log.group_waiters,
        ),
        (
            "group_waiters_max",
            Gauge,
            "Most appends in one group commit.",
            log.group_waiters_max,
        ),
        (
            "unwritten_bytes",
            Gauge,
            "Bytes accepted, not yet written.",
            log.unwritten_bytes,
        ),
        (
            "unsynced_bytes",
            Gauge,
            "Bytes written, not yet synced, about.",
            log.unsynced_bytes,
        ),
        (
            "tail_bytes",
            Gauge,
            "Bytes of newest messages in memory.",
            log.tail_bytes,
        ),
        (
            "write_errors_total",
            Counter,
            "Failed writes.",
            log.write_errors,
        ),
        (
            "sync_errors_total",
            Counter,
            "Failed syncs.",
            log.sync_errors,
        ),
        (
            "storage_full_total",
            Counter,
            "Appends refused for want of disk room.",
            log.storage_full,
        ),
        (
            "cold_reads_total",
            Counter,
            "Reads that went to the disk.",
            log.cold_reads,
        ),
        (
            "stored_reads_total",
            Counter,
            "Reads whose batches are sent from their file, without a copy.",
            log.stored_reads,
        ),
        (
            "corrupt_regions_total",
            Counter,
            "Corrupt regions jumped over.",
            log.corrupt_regions,
        ),
        (
            "lost_messages_total",
            Counter,
            "Messages lost in corrupt regions, and with files that are gone or end too early.",
            log.lost_messages,
        ),
        (
            "stalled_reads",
            Gauge,
            "Reads that the disk has not answered for ten seconds.",
            log.stalled_reads,
        ),
        (
            "truncated_bytes_total",
            Counter,
            "Torn bytes cut off at start.",
            log.truncated_bytes,
        ),
        (
            "scanned_segments_total",
            Counter,
            "Segments scanned at start.",
            log.scanned_segments,
        ),
    ];
    for (name, kind, help, value) in lines {
        text.single(&format!("cloverleaf_log_{name}"), kind, help, value as f64);
    }
}

struct TopicSeries {
    name: String,
    messages: u64,
    bytes: u64,
    stored_bytes: u64,
}

/// Name, kind, help and value of a topic's metric.
type TopicMetric = (
    &'static str,
    MetricKind,
    &'static str,
    fn(&TopicSeries) -> u64,
);

/// One subscription: topic, name, and its values in the order of [`SUBSCRIPTION_METRICS`].
struct SubscriptionSeries {
    topic: String,
    name: String,
    values: [u64; 8],
}

const SUBSCRIPTION_METRICS: [(&str, MetricKind, &str); 8] = [
    ("depth", Gauge, "Messages that wait for a consumer."),
    ("in_flight", Gauge, "Messages that consumers hold."),
    ("delayed", Gauge, "Messages that wait for a delay to pass."),
    ("consumers", Gauge, "Consumers."),
    (
        "delivered_total",
        Counter,
        "Messages delivered, again counted.",
    ),
    (
        "requeued_total",
        Counter,
        "Messages given back by consumers.",
    ),
    (
        "timed_out_total",
        Counter,
        "Messages whose consumer did not answer in time.",
    ),
    (
        "dead_lettered_total",
        Counter,
        "Messages that failed too often.",
    ),
];

fn topics(text: &mut MetricText, context: &ServerContext, series_max: usize) {
    let mut topics = Vec::new();
    let mut subscriptions = Vec::new();
    for topic in context.broker.topics() {
        topics.push(TopicSeries {
            name: topic.name().to_owned(),
            messages: topic.message_count(),
            bytes: topic.bytes_count(),
            stored_bytes: topic.stored_bytes(),
        });
        for subscription in topic.subscriptions().iter() {
            let stats = subscription.stats();
            subscriptions.push(SubscriptionSeries {
                topic: topic.name().to_owned(),
                name: subscription.name().to_owned(),
                values: [
                    stats.depth,
                    stats.in_flight,
                    stats.delayed,
                    stats.consumers.len() as u64,
                    stats.delivered,
                    stats.requeued,
                    stats.timed_out,
                    stats.dead_lettered,
                ],
            });
        }
    }
    text.single("cloverleaf_topics", Gauge, "Topics.", topics.len() as f64);
    let count = subscriptions.len() as f64;
    text.single("cloverleaf_subscriptions", Gauge, "Subscriptions.", count);
    topics.sort_by_key(|topic| Reverse(topic.bytes));
    topics.truncate(series_max);
    let metrics: [TopicMetric; 3] = [
        ("messages_total", Counter, "Messages published.", |topic| {
            topic.messages
        }),
        (
            "bytes_total",
            Counter,
            "Bytes of messages published.",
            |topic| topic.bytes,
        ),
        ("stored_bytes", Gauge, "Bytes stored.", |topic| {
            topic.stored_bytes
        }),
    ];
    for (name, kind, help, value) in metrics {
        let name = format!("cloverleaf_topic_{name}");
        text.metric(&name, kind, help);
        for topic in &topics {
            text.sample(&name, &[("topic", &topic.name)], value(topic) as f64);
        }
    }
    subscriptions
        .sort_by_key(|subscription| Reverse((subscription.values[0], subscription.values[4])));
    subscriptions.truncate(series_max);
    for (index, (name, kind, help)) in SUBSCRIPTION_METRICS.into_iter().enumerate() {
        let name = format!("cloverleaf_subscription_{name}");
        text.metric(&name, kind, help);
        for series in &subscriptions {
            let labels = [
                ("topic", series.topic.as_str()),
                ("subscription", &series.name),
            ];
            text.sample(&name, &labels, series.values[index] as f64);
        }
    }
}
