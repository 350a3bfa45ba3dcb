//! Prometheus text format 0.0.4.
//!
//! ```text
//! # HELP name text        (\ and newline escaped)
//! # TYPE name counter|gauge|histogram
//! name{label="value"} 12  (\, " and newline escaped in the value)
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::{ConnectionSnapshot, HistogramSnapshot, Snapshot};

/// Bucket bounds of a rendered histogram are 2^k − 1 for k up to this: 134 seconds, 134 MB.
const BOUND_BITS_MAX: u32 = 27;

/// Longer label values are cut off: clients choose their names, and each series repeats them. Names
/// of topics and subscriptions are shorter, so cutting never makes two series equal.
const LABEL_BYTES_MAX: usize = 256;

/// The type of a metric, for its TYPE line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only ever grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets, sum and count.
    Histogram,
}

impl MetricKind {
    fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// Builds the text of `/metrics`. The format requires that all series of a metric stand together:
/// first [`MetricText::metric`], then its samples.
#[derive(Debug, Default)]
pub struct MetricText {
    text: String,
}

impl MetricText {
    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a metric: its HELP and TYPE lines.
    pub fn metric(&mut self, name: &str, kind: MetricKind, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail, so the results are dropped here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {}", kind.name());
    }

    /// Adds one sample of the metric begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        let mut separator = '{';
        for (label, value) in labels {
            let _ = write!(self.text, "{separator}{label}=\"");
            let value = &value[..value.floor_char_boundary(LABEL_BYTES_MAX)];
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
            separator = ',';
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// A metric with one sample and no labels.
    pub fn single(&mut self, name: &str, kind: MetricKind, help: &str, value: f64) {
        self.metric(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds the samples of one histogram; its values are divided by `divisor` to get
    /// the metric's unit.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        histogram: &HistogramSnapshot,
        divisor: f64,
    ) {
        let bucket = format!("{name}_bucket");
        let mut sample = |bound: &str, count: u64| {
            let mut with_bound: Vec<(&str, &str)> = labels.to_vec();
            with_bound.push(("le", bound));
            self.sample(&bucket, &with_bound, count as f64);
        };
        for bits in 1..=BOUND_BITS_MAX {
            let bound = (1u64 << bits) - 1;
            sample(
                &(bound as f64 / divisor).to_string(),
                histogram.count_at_most(bound),
            );
        }
        sample("+Inf", histogram.count());
        self.sample(
            &format!("{name}_sum"),
            labels,
            histogram.sum() as f64 / divisor,
        );
        self.sample(&format!("{name}_count"), labels, histogram.count() as f64);
    }

    /// The finished page.
    pub fn finish(self) -> String {
        self.text
    }
}

/// Renders a snapshot: totals per protocol always, and series per connection for the
/// `connections_max` connections that transferred the most bytes, so that the page stays bounded.
pub fn render(text: &mut MetricText, snapshot: &Snapshot, connections_max: usize) {
    totals(text, snapshot);
    connections(text, snapshot, connections_max);
}

fn totals(text: &mut MetricText, snapshot: &Snapshot) {
    let name = "cloverleaf_connections_opened_total";
    text.metric(name, MetricKind::Counter, "Connections opened.");
    for total in &snapshot.totals {
        let labels = [("protocol", total.protocol.name())];
        text.sample(name, &labels, total.connections_opened as f64);
    }
    let name = "cloverleaf_connections";
    text.metric(name, MetricKind::Gauge, "Connections open now.");
    for total in &snapshot.totals {
        let labels = [("protocol", total.protocol.name())];
        text.sample(name, &labels, total.connections_open as f64);
    }
    let mut families: BTreeMap<&str, Vec<(&str, &str, f64)>> = BTreeMap::new();
    for total in &snapshot.totals {
        for (name, help, value) in total.counters.each() {
            let series = families.entry(name).or_default();
            series.push((total.protocol.name(), help, value as f64));
        }
    }
    for (counter, series) in families {
        let (name, divisor) = counter_name("cloverleaf", counter);
        text.metric(
            &name,
            MetricKind::Counter,
            series.first().map_or("", |first| first.1),
        );
        for (protocol, _, value) in series {
            text.sample(&name, &[("protocol", protocol)], value / divisor);
        }
    }
    let mut families: BTreeMap<&str, Vec<(&str, &str, &HistogramSnapshot)>> = BTreeMap::new();
    for total in &snapshot.totals {
        for (name, help, values) in total.histograms.each() {
            families
                .entry(name)
                .or_default()
                .push((total.protocol.name(), help, values));
        }
    }
    for (histogram, series) in families {
        let (name, divisor) = unit_of("cloverleaf", histogram);
        let help = series.first().map_or("", |first| first.1);
        text.metric(&name, MetricKind::Histogram, &in_seconds(help, divisor));
        for (protocol, _, values) in series {
            text.histogram(&name, &[("protocol", protocol)], values, divisor);
        }
    }
}

fn connections(text: &mut MetricText, snapshot: &Snapshot, connections_max: usize) {
    let mut shown: Vec<&ConnectionSnapshot> = snapshot.connections.iter().collect();
    shown.sort_by_key(|c| {
        (
            std::cmp::Reverse(c.counters.bytes_in + c.counters.bytes_out),
            c.id,
        )
    });
    shown.truncate(connections_max);
    let Some(first) = shown.first() else { return };
    let labels: Vec<[String; 4]> = shown
        .iter()
        .map(|c| {
            let client = format!("{}/{}", c.identity.library, c.identity.version);
            let client = client.trim_matches('/').to_owned();
            [
                c.id.to_string(),
                c.peer.to_string(),
                c.protocol.name().to_owned(),
                client,
            ]
        })
        .collect();
    let with_names = |labels: &[String; 4]| {
        let names = ["connection", "peer", "protocol", "client"];
        std::array::from_fn::<(&'static str, String), 4, _>(|i| (names[i], labels[i].clone()))
    };
    let mut family = |name: &str, kind, help: &str, value: &dyn Fn(&ConnectionSnapshot) -> f64| {
        text.metric(name, kind, help);
        for (connection, labels) in shown.iter().zip(&labels) {
            let labels = with_names(labels);
            let labels = labels
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            text.sample(name, &labels, value(connection));
        }
    };
    for (index, (counter, help, _)) in first.counters.each().enumerate() {
        let (name, divisor) = counter_name("cloverleaf_connection", counter);
        family(
            &name,
            MetricKind::Counter,
            &in_seconds(help, divisor),
            &|connection| {
                connection
                    .counters
                    .each()
                    .nth(index)
                    .map_or(0.0, |(_, _, value)| value as f64 / divisor)
            },
        );
    }
    family(
        "cloverleaf_connection_requests_in_flight",
        MetricKind::Gauge,
        "Requests received and not answered yet.",
        &|connection| connection.gauges.requests_in_flight as f64,
    );
    family(
        "cloverleaf_connection_credit_granted",
        MetricKind::Gauge,
        "Messages that the client is willing to have in flight.",
        &|connection| connection.gauges.credit_granted as f64,
    );
    family(
        "cloverleaf_connection_credit_used",
        MetricKind::Gauge,
        "Messages that the client has in flight.",
        &|connection| connection.gauges.credit_used as f64,
    );
    family(
        "cloverleaf_connection_rtt_seconds",
        MetricKind::Gauge,
        "The kernel's smoothed round-trip time; 0 when unknown.",
        &|connection| {
            connection
                .tcp
                .map_or(0.0, |tcp| f64::from(tcp.rtt_us) / 1e6)
        },
    );
}

/// Metric name and divisor of a counter: Prometheus requires seconds and the suffix `_total`.
fn counter_name(prefix: &str, counter: &str) -> (String, f64) {
    let (name, divisor) = unit_of(prefix, counter);
    (name + "_total", divisor)
}

fn unit_of(prefix: &str, name: &str) -> (String, f64) {
    match name.strip_suffix("_us") {
        Some(stem) => (format!("{prefix}_{stem}_seconds"), 1e6),
        None => (format!("{prefix}_{name}"), 1.0),
    }
}

fn in_seconds(help: &str, divisor: f64) -> String {
    if divisor == 1.0 {
        help.to_owned()
    } else {
        help.replace("Microseconds", "Seconds")
    }
}

#[cfg(all(test, feature = "probe"))]
mod tests {
    use super::*;
    use crate::{Identity, Protocol, Registry};
    use std::net::SocketAddr;

    fn page(connections_max: usize) -> String {
        let registry = Registry::new();
        let probes: Vec<_> = (1..=3u16)
            .map(|port| {
                let peer = SocketAddr::from(([127, 0, 0, 1], port));
                let probe = registry.open(Protocol::Nsq, peer, 1);
                probe.read(100 * usize::from(port), 2);
                probe
            })
            .collect();
        probes[2].identify(Identity {
            library: "my\"lib\\\n".into(),
            ..Identity::default()
        });
        probes[0].acked_many(1, 3);
        let mut text = MetricText::new();
        render(&mut text, &registry.snapshot(3, |_| None), connections_max);
        text.finish()
    }

    #[test]
    fn totals_have_help_and_type_and_values() {
        let page = page(0);
        assert!(page.contains("# HELP cloverleaf_bytes_in_total Bytes read from clients.\n"));
        assert!(page.contains("# TYPE cloverleaf_bytes_in_total counter\n"));
        assert!(
            page.contains("cloverleaf_bytes_in_total{protocol=\"nsq\"} 600\n"),
            "{page}"
        );
        assert!(!page.contains("cloverleaf_connection_"), "{page}");
    }

    #[test]
    fn histograms_are_cumulative_and_in_seconds() {
        let page = page(0);
        let name = "cloverleaf_ack_latency_seconds";
        assert!(page.contains(&format!("# TYPE {name} histogram\n")));
        let line = |le: &str, count: u32| {
            format!("{name}_bucket{{protocol=\"nsq\",le=\"{le}\"}} {count}\n")
        };
        assert!(page.contains(&line("0.000001", 0)), "{page}");
        assert!(page.contains(&line("0.000003", 1)), "{page}");
        assert!(page.contains(&line("+Inf", 1)), "{page}");
        assert!(
            page.contains(&format!("{name}_sum{{protocol=\"nsq\"}} 0.000003\n")),
            "{page}"
        );
        assert!(
            page.contains(&format!("{name}_count{{protocol=\"nsq\"}} 1\n")),
            "{page}"
        );
    }

    #[test]
    fn connections_are_bounded_and_labels_escaped() {
        let page = page(2);
        let name = "cloverleaf_connection_bytes_in_total";
        assert_eq!(page.matches(&format!("{name}{{")).count(), 2, "{page}");
        assert!(page.contains(r#"client="my\"lib\\\n""#), "{page}");
        assert!(
            !page.contains("127.0.0.1:1\""),
            "the quietest connection is left out: {page}"
        );
    }

    #[test]
    fn long_labels_are_cut_off_between_characters() {
        let mut text = MetricText::new();
        text.sample("a", &[("b", &format!("x{}", "ä".repeat(1000)))], 1.0);
        let expect = format!("a{{b=\"x{}\"}} 1\n", "ä".repeat(127));
        assert_eq!(text.finish(), expect);
    }

    #[test]
    fn every_sample_belongs_to_the_metric_before_it() {
        let mut current = String::new();
        let mut seen = std::collections::HashSet::new();
        for line in page(5).lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().unwrap_or_default().to_owned();
                assert!(seen.insert(current.clone()), "{current} twice");
            } else if !line.starts_with('#') {
                assert!(line.starts_with(&current), "{line} is not of {current}");
            }
        }
    }
}
