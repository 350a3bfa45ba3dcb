//! Decoding of pushed client metrics: the few protobuf messages of OpenTelemetry that have named
//! numbers.
//!
//! ```text
//! MetricsData      1: ResourceMetrics*
//! ResourceMetrics  2: ScopeMetrics*
//! ScopeMetrics     2: Metric*
//! Metric           1: name   5: Gauge   7: Sum
//! Gauge, Sum       1: NumberDataPoint*
//! NumberDataPoint  4: double (64 bits)   6: sfixed64   7: KeyValue*
//! KeyValue         1: key   2: AnyValue { 1: string   3: int64 }
//! ```
//!
//! All other fields are skipped. Only values that are returned allocate memory; the nesting depth
//! is that of the table above.
//!
//! Source: `opentelemetry/proto/metrics/v1/metrics.proto`; KIP-714 for the names.

/// A value of a client's metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricValue {
    /// Its name in KIP-714 without `org.apache.kafka.`, for example `producer.request.latency.avg`.
    /// Times are in milliseconds.
    pub name: String,
    /// The broker that the value is about, if the client has a value for each broker.
    pub node: Option<String>,
    /// The value.
    pub value: f64,
}

/// The prefix of every metric name.
pub(super) const PREFIX: &str = "org.apache.kafka.";

/// Maximum number of values that are taken from one push.
const FIGURES_MAX: usize = 256;

/// Maximum length of a name or a node in bytes; a longer one is ignored.
const TEXT_BYTES_MAX: usize = 128;

/// The bytes are not valid protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the metrics are no OTLP")]
pub(super) struct NotOtlp;

/// A field's content.
#[derive(Clone, Copy)]
enum FieldValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

/// The fields of one message.
struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    fn varint(&mut self) -> Result<u64, NotOtlp> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(NotOtlp)?;
            self.rest = rest;
            if shift == 63 && *byte > 1 {
                return Err(NotOtlp);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(NotOtlp)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], NotOtlp> {
        let count = usize::try_from(count).map_err(|_| NotOtlp)?;
        let (head, rest) = self.rest.split_at_checked(count).ok_or(NotOtlp)?;
        self.rest = rest;
        Ok(head)
    }

    /// The next field: its number and content.
    fn next(&mut self) -> Result<Option<(u64, FieldValue<'a>)>, NotOtlp> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => FieldValue::Varint(self.varint()?),
            1 => {
                let (bytes, rest) = self.rest.split_first_chunk().ok_or(NotOtlp)?;
                self.rest = rest;
                FieldValue::Fixed64(u64::from_le_bytes(*bytes))
            }
            2 => {
                let count = self.varint()?;
                FieldValue::Bytes(self.take(count)?)
            }
            5 => {
                self.take(4)?;
                FieldValue::Fixed32
            }
            _ => return Err(NotOtlp),
        };
        Ok(Some((key >> 3, value)))
    }
}

/// Passes each field of a message to `field`.
fn each<'a>(
    message: &'a [u8],
    mut field: impl FnMut(u64, FieldValue<'a>) -> Result<(), NotOtlp>,
) -> Result<(), NotOtlp> {
    let mut fields = FieldReader { rest: message };
    while let Some((number, value)) = fields.next()? {
        field(number, value)?;
    }
    Ok(())
}

/// The values in a push whose names pass `wants`.
pub(super) fn figures(
    message: &[u8],
    wants: impl Fn(&str) -> bool,
) -> Result<Vec<MetricValue>, NotOtlp> {
    let mut figures = Vec::new();
    each(message, |number, resource| match (number, resource) {
        (1, FieldValue::Bytes(resource)) => each(resource, |number, scope| match (number, scope) {
            (2, FieldValue::Bytes(scope)) => each(scope, |number, metric| match (number, metric) {
                (2, FieldValue::Bytes(metric)) => read_metric(metric, &wants, &mut figures),
                _ => Ok(()),
            }),
            _ => Ok(()),
        }),
        _ => Ok(()),
    })?;
    Ok(figures)
}

fn read_metric(
    metric: &[u8],
    wants: &impl Fn(&str) -> bool,
    figures: &mut Vec<MetricValue>,
) -> Result<(), NotOtlp> {
    // The fields may be in any order, so the name is read first.
    let mut name = None;
    each(metric, |number, value| {
        if let (1, FieldValue::Bytes(text)) = (number, value) {
            name = std::str::from_utf8(text).ok();
        }
        Ok(())
    })?;
    let name = name.and_then(|name| name.strip_prefix(PREFIX));
    let Some(name) = name.filter(|name| name.len() <= TEXT_BYTES_MAX && wants(name)) else {
        return Ok(());
    };
    each(metric, |number, value| match (number, value) {
        (5 | 7, FieldValue::Bytes(points)) => each(points, |number, value| match (number, value) {
            (1, FieldValue::Bytes(point)) => read_point(point, name, figures),
            _ => Ok(()),
        }),
        _ => Ok(()),
    })
}

fn read_point(point: &[u8], name: &str, figures: &mut Vec<MetricValue>) -> Result<(), NotOtlp> {
    let (mut value, mut node) = (None, None);
    each(point, |number, field| {
        match (number, field) {
            (4, FieldValue::Fixed64(bits)) => value = Some(f64::from_bits(bits)),
            (6, FieldValue::Fixed64(bits)) => value = Some(bits.cast_signed() as f64),
            (7, FieldValue::Bytes(attribute)) => node = read_node(attribute)?.or(node.take()),
            _ => {}
        }
        Ok(())
    })?;
    let value = value.filter(|value| value.is_finite());
    if let Some(value) = value
        && figures.len() < FIGURES_MAX
    {
        figures.push(MetricValue {
            name: name.to_owned(),
            node,
            value,
        });
    }
    Ok(())
}

/// The broker that a data point is about: a number from librdkafka, a string from the Java client.
fn read_node(attribute: &[u8]) -> Result<Option<String>, NotOtlp> {
    let (mut is_node, mut node) = (false, None);
    each(attribute, |number, field| {
        match (number, field) {
            (1, FieldValue::Bytes(key)) => {
                is_node = matches!(key, b"node_id" | b"node.id" | b"node-id");
            }
            (2, FieldValue::Bytes(value)) => each(value, |number, value| {
                match (number, value) {
                    (1, FieldValue::Bytes(text)) if text.len() <= TEXT_BYTES_MAX => {
                        node = std::str::from_utf8(text).ok().map(str::to_owned);
                    }
                    (3, FieldValue::Varint(number)) => {
                        node = Some(number.cast_signed().to_string())
                    }
                    _ => {}
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(node.filter(|_| is_node))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, content.len() as u8];
        out.extend_from_slice(content);
        out
    }

    fn fixed(number: u8, bits: u64) -> Vec<u8> {
        let mut out = vec![number << 3 | 1];
        out.extend_from_slice(&bits.to_le_bytes());
        out
    }

    fn metric(name: &str, kind: u8, point: &[u8]) -> Vec<u8> {
        let metric = [field(1, name.as_bytes()), field(kind, &field(1, point))].concat();
        field(1, &field(2, &field(2, &metric)))
    }

    #[test]
    fn gauges_and_sums_are_read_with_their_node() {
        let node = [field(1, b"node_id"), field(2, &[3 << 3, 7])].concat();
        let gauge = [fixed(4, 1.5f64.to_bits()), field(7, &node)].concat();
        let message = [
            metric("org.apache.kafka.producer.request.latency.avg", 5, &gauge),
            metric(
                "org.apache.kafka.producer.connection.creation.total",
                7,
                &fixed(6, 3),
            ),
            metric("org.apache.kafka.producer.other", 5, &gauge),
            metric("jvm.heap", 5, &gauge),
        ]
        .concat();
        let figures = figures(&message, |name| !name.contains("other")).unwrap();
        let expected = [
            ("producer.request.latency.avg", Some("7"), 1.5),
            ("producer.connection.creation.total", None, 3.0),
        ];
        assert_eq!(figures.len(), expected.len());
        for (figure, (name, node, value)) in figures.iter().zip(expected) {
            assert_eq!((figure.name.as_str(), figure.node.as_deref()), (name, node));
            assert!((figure.value - value).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn a_length_beyond_the_message_is_refused() {
        let huge = [
            0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ];
        assert_eq!(figures(&huge, |_| true), Err(NotOtlp));
        assert_eq!(figures(&[0x0a], |_| true), Err(NotOtlp));
        assert_eq!(figures(&[], |_| true), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(figures) = figures(&bytes, |_| true) {
                prop_assert!(figures.len() <= FIGURES_MAX);
            }
        }
    }
}
