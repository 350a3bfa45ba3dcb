//! AMQP's part of the page `/metrics`. What its queues hold is among the subscriptions.

use cloverleaf_telemetry::MetricKind::Gauge;
use cloverleaf_telemetry::MetricText;

use crate::context::ServerContext;

/// Adds it.
pub(crate) fn add(text: &mut MetricText, context: &ServerContext) {
    let host = &context.amqp_host;
    let lines: [(&str, &str, u64); 4] = [
        ("queues", "Queues.", host.queues().len() as u64),
        ("exchanges", "Exchanges.", host.exchanges().len() as u64),
        ("bindings", "Bindings.", host.bindings().len() as u64),
        (
            "content_bytes",
            "Memory for messages of open transactions, and for those that come mixed with others.",
            context.amqp.contents.bytes(),
        ),
    ];
    for (name, help, value) in lines {
        text.single(
            &format!("cloverleaf_amqp_{name}"),
            Gauge,
            help,
            value as f64,
        );
    }
}
