//! Kafka's part of the page `/metrics`: the lag of groups, and the client metrics that clients
//! push.

use std::cmp::Reverse;

use cloverleaf_kafka::KafkaContext;
use cloverleaf_telemetry::MetricKind::Gauge;
use cloverleaf_telemetry::MetricText;

use super::admin::details;
use crate::admin::types::GroupDetails;
use crate::context::ServerContext;

/// Appends them, each kind up to `metrics_series_max` series: the groups with most lag, the clients
/// that pushed last.
pub(super) fn add(text: &mut MetricText, kafka: &KafkaContext, context: &ServerContext) {
    let series_max = context.config.general.metrics_series_max as usize;
    let groups = kafka.groups.views();
    let name = "cloverleaf_kafka_groups";
    text.single(
        name,
        Gauge,
        "Consumer groups of Kafka.",
        groups.len() as f64,
    );
    let mut groups: Vec<GroupDetails> = groups
        .into_iter()
        .map(|group| details(context, group))
        .collect();
    groups.sort_by_key(|group| Reverse(group.summary.lag));
    let name = "cloverleaf_kafka_group_members";
    text.metric(name, Gauge, "Members of a consumer group.");
    for group in groups.iter().take(series_max) {
        let labels = [
            ("group", &*group.summary.name),
            ("state", &group.summary.state),
        ];
        text.sample(name, &labels, group.summary.members as f64);
    }
    let name = "cloverleaf_kafka_group_lag";
    text.metric(name, Gauge, "Messages behind a group's committed offset.");
    let partitions = groups.iter().flat_map(|group| {
        let partitions = group.partition_details.iter();
        partitions.map(|partition| (&group.summary.name, partition))
    });
    for (group, partition) in partitions.take(series_max) {
        let number = partition.partition.to_string();
        let labels = [
            ("group", group.as_str()),
            ("topic", &partition.topic),
            ("partition", &number),
        ];
        text.sample(name, &labels, partition.lag as f64);
    }
    client_figures(text, kafka, series_max);
}

fn client_figures(text: &mut MetricText, kafka: &KafkaContext, series_max: usize) {
    let name = "cloverleaf_kafka_client_figure";
    let help = "What Kafka clients tell of themselves (KIP-714); times are in milliseconds.";
    text.metric(name, Gauge, help);
    let clients = kafka.client_metrics.list();
    let figures = clients.iter().flat_map(|client| {
        let figures = client.figures.iter();
        figures.map(move |figure| (client, figure))
    });
    for (client, figure) in figures.take(series_max) {
        let instance = client.instance.to_string();
        let labels = [
            ("instance", instance.as_str()),
            ("client", client.client_id.as_deref().unwrap_or_default()),
            ("figure", &figure.name),
            ("node", figure.node.as_deref().unwrap_or_default()),
        ];
        text.sample(name, &labels, figure.value);
    }
}
