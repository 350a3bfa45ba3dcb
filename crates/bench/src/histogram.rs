//! Times as an HDR histogram: three digits, from a microsecond to an hour.

use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

/// The smallest time that is told from others, in nanoseconds.
const LOW_NS: u64 = 1_000;
/// The longest time that is counted as itself, in nanoseconds; longer ones count as this.
const HIGH_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// A distribution of times in nanoseconds.
#[derive(Debug, Clone)]
pub struct Histogram {
    inner: hdrhistogram::Histogram<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty one.
    #[expect(
        clippy::expect_used,
        reason = "the bounds are constants that are valid"
    )]
    pub fn new() -> Histogram {
        let inner = hdrhistogram::Histogram::new_with_bounds(LOW_NS, HIGH_NS, DIGITS);
        Histogram {
            inner: inner.expect("the bounds are valid"),
        }
    }

    /// Counts a time.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.inner.saturating_record(ns);
    }

    /// Counts a time so often.
    #[inline]
    pub fn record_n(&mut self, ns: u64, count: u64) {
        self.inner.saturating_record_n(ns, count);
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Histogram) {
        // The bounds are the same, so nothing can lie outside.
        let _ = self.inner.add(&other.inner);
    }

    /// How many times were counted.
    pub fn len(&self) -> u64 {
        self.inner.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// The time below or at which this share lies, 0 to 1; in nanoseconds. 0 if there is none.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        match self.is_empty() {
            true => 0,
            false => self.inner.value_at_quantile(quantile),
        }
    }

    /// The longest time in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.inner.max()
    }

    /// The shortest time in nanoseconds; 0 if there is none.
    pub fn min_ns(&self) -> u64 {
        match self.is_empty() {
            true => 0,
            false => self.inner.min(),
        }
    }

    /// The mean in nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        self.inner.mean()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.inner.reset();
    }

    /// HdrHistogram's own encoding (V2), to be added up elsewhere.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A vector takes everything.
        let _ = V2Serializer::new().serialize(&self.inner, &mut bytes);
        bytes
    }

    /// What [`Histogram::to_bytes`] wrote; `None` if it did not.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Histogram> {
        let inner: hdrhistogram::Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes).ok()?;
        let mut histogram = Histogram::new();
        // Whatever bounds it had.
        histogram.inner.add(inner).ok()?;
        Some(histogram)
    }
}

impl Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let invalid = || serde::de::Error::custom("not an HDR histogram");
        Histogram::from_bytes(&bytes).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_sent_elsewhere_is_the_same() {
        let mut one = Histogram::new();
        (1..=1_000).for_each(|n| one.record(n * 10_000));
        one.record(u64::MAX);
        let mut two = Histogram::from_bytes(&one.to_bytes()).unwrap();
        two.add(&one);
        assert_eq!(two.len(), 2_002);
        assert_eq!(two.quantile_ns(0.5), one.quantile_ns(0.5));
        assert!((4_990_000..5_020_000).contains(&one.quantile_ns(0.5)));
        assert!(one.max_ns() >= HIGH_NS);
        assert!(Histogram::from_bytes(b"nothing").is_none());
    }
}
