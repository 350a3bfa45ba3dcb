//! AMQP's part of the page `/metrics`. Its queues' messages are counted among the subscriptions.

use cloverleaf_amqp::SessionOptions;
use cloverleaf_amqp::host::VirtualHost;
use cloverleaf_telemetry::MetricKind::Gauge;
use cloverleaf_telemetry::MetricText;

/// Appends the part.
pub(super) fn add(text: &mut MetricText, host: &VirtualHost, options: &SessionOptions) {
    let lines: [(&str, &str, u64); 4] = [
        ("queues", "Queues.", host.queues().len() as u64),
        ("exchanges", "Exchanges.", host.exchanges().len() as u64),
        ("bindings", "Bindings.", host.bindings().len() as u64),
        (
            "content_bytes",
            "Memory for messages of open transactions, and for those that come mixed with others.",
            options.contents.bytes(),
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
