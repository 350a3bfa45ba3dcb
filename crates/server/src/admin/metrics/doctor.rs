//! The doctor's part of the page `/metrics`: how many findings each rule has.

use cloverleaf_doctor::RuleCount;
use cloverleaf_telemetry::MetricKind::{Counter, Gauge};
use cloverleaf_telemetry::{MetricKind, MetricText};

use crate::context::ServerContext;

/// Name, kind, help and value of a metric.
type Metric = (
    &'static str,
    MetricKind,
    &'static str,
    fn(&RuleCount) -> u64,
);

const METRICS: [Metric; 2] = [
    (
        "cloverleaf_doctor_findings",
        Gauge,
        "Clients that a rule of the doctor finds slow at present.",
        |count| count.active,
    ),
    (
        "cloverleaf_doctor_findings_total",
        Counter,
        "Findings that have appeared.",
        |count| count.appeared,
    ),
];

/// Appends it. Every rule has a value from the start, so that an alert can be set on each.
pub(crate) fn add(text: &mut MetricText, context: &ServerContext) {
    let counts = context.doctor.counts();
    for (name, kind, help, value) in METRICS {
        text.metric(name, kind, help);
        for count in &counts {
            text.sample(name, &[("rule", count.rule.name())], value(count) as f64);
        }
    }
}
