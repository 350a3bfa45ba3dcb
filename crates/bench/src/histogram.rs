//! Times as an HDR histogram: three digits, from a microsecond to an hour.

use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

/// The smallest time that is distinguished, in nanoseconds.
const LOW_NS: u64 = 1_000;
/// The longest time that is counted as itself, in nanoseconds; longer ones count as this.
const HIGH_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// A distribution of times in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    state: State,
}

type Inner = hdrhistogram::Histogram<u64>;

#[derive(Debug, Clone, Default)]
enum State {
    /// No times were counted, and no memory is allocated.
    #[default]
    Empty,
    Open(Box<Inner>),
    /// As [`Histogram::to_bytes`] wrote it.
    Packed(Box<[u8]>),
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Histogram {
        Histogram::default()
    }

    /// Counts a time.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.inner().saturating_record(ns);
    }

    /// Counts a time `count` times.
    #[inline]
    pub fn record_n(&mut self, ns: u64, count: u64) {
        self.inner().saturating_record_n(ns, count);
    }

    #[inline]
    fn inner(&mut self) -> &mut Inner {
        if !matches!(self.state, State::Open(_)) {
            self.open();
        }
        match &mut self.state {
            State::Open(inner) => inner,
            State::Empty | State::Packed(_) => unreachable!("it was opened"),
        }
    }

    #[cold]
    fn open(&mut self) {
        let inner = match &self.state {
            State::Packed(bytes) => unpacked(bytes),
            State::Empty | State::Open(_) => None,
        };
        self.state = State::Open(Box::new(inner.unwrap_or_else(empty)));
    }

    /// Compresses the histogram until it is changed again. Reading it costs more CPU time then.
    pub fn pack(&mut self) {
        if matches!(self.state, State::Open(_)) {
            self.state = if self.is_empty() {
                State::Empty
            } else {
                State::Packed(self.to_bytes().into_boxed_slice())
            };
        }
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Histogram) {
        // The bounds are the same, so nothing can lie outside.
        let _ = other.look(|other| self.inner().add(other));
    }

    /// Calls `with` with the decoded histogram, if it is not empty.
    fn look<R>(&self, with: impl FnOnce(&Inner) -> R) -> Option<R> {
        match &self.state {
            State::Empty => None,
            State::Open(inner) => Some(with(inner)),
            State::Packed(bytes) => unpacked(bytes).as_ref().map(with),
        }
    }

    /// How many times were counted.
    pub fn len(&self) -> u64 {
        self.look(Inner::len).unwrap_or(0)
    }

    /// Whether no times were counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The time in nanoseconds at or below which this share (0 to 1) of the times lies; 0 without
    /// times.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.look(|inner| {
            if inner.is_empty() {
                0
            } else {
                inner.value_at_quantile(quantile)
            }
        })
        .unwrap_or(0)
    }

    /// The longest time in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.look(Inner::max).unwrap_or(0)
    }

    /// The shortest time in nanoseconds; 0 without times.
    pub fn min_ns(&self) -> u64 {
        self.look(|inner| if inner.is_empty() { 0 } else { inner.min() })
            .unwrap_or(0)
    }

    /// The mean in nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        self.look(Inner::mean).unwrap_or(0.0)
    }

    /// HdrHistogram's own encoding (V2), to be added up elsewhere.
    pub fn to_bytes(&self) -> Vec<u8> {
        if let State::Packed(bytes) = &self.state {
            return bytes.to_vec();
        }
        let mut bytes = Vec::new();
        let mut write = |inner: &Inner| {
            // Writing to a vector cannot fail.
            let _ = V2Serializer::new().serialize(inner, &mut bytes);
        };
        match &self.state {
            State::Open(inner) => write(inner),
            State::Empty | State::Packed(_) => write(&empty()),
        }
        bytes
    }

    /// Reads the bytes that [`Histogram::to_bytes`] wrote; `None` if they are not from there.
    pub fn from_bytes(bytes: &[u8]) -> Option<Histogram> {
        let inner = unpacked(bytes)?;
        let state = State::Open(Box::new(inner));
        Some(Histogram { state })
    }
}

#[expect(
    clippy::expect_used,
    reason = "the bounds are constants that are valid"
)]
fn empty() -> Inner {
    Inner::new_with_bounds(LOW_NS, HIGH_NS, DIGITS).expect("the bounds are valid")
}

fn unpacked(mut bytes: &[u8]) -> Option<Inner> {
    let read: Inner = Deserializer::new().deserialize(&mut bytes).ok()?;
    // Counts are copied into a histogram with our bounds.
    let mut inner = empty();
    inner.add(read).ok()?;
    Some(inner)
}

impl Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let read = is_ours(&bytes).then(|| Histogram::from_bytes(&bytes));
        let invalid = || serde::de::Error::custom("not an HDR histogram");
        read.flatten().ok_or_else(invalid)
    }
}

/// Whether the head is as [`Histogram::to_bytes`] writes it. With another head, the library would
/// allocate as much memory as the bounds and the length in it ask for.
///
/// ```text
/// cookie u32 | bytes of counts u32 | 0 u32 | digits u32 | low u64 | high u64 | 1.0 f64 | counts
/// ```
fn is_ours(bytes: &[u8]) -> bool {
    const HEAD_BYTES: usize = 40;
    let Some((head, counts)) = bytes.split_at_checked(HEAD_BYTES) else {
        return false;
    };
    let length = u32::try_from(counts.len()).unwrap_or(u32::MAX);
    let ours = [
        &length.to_be_bytes()[..],
        &[0; 4],
        &u32::from(DIGITS).to_be_bytes(),
        &LOW_NS.to_be_bytes(),
        &HIGH_NS.to_be_bytes(),
        &1f64.to_be_bytes(),
    ];
    head[4..] == ours.concat()
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

    #[test]
    fn what_is_packed_is_the_same_and_goes_on() {
        let mut packed = Histogram::new();
        packed.pack();
        assert_eq!(
            (packed.len(), packed.quantile_ns(0.5), packed.min_ns()),
            (0, 0, 0)
        );
        let mut open = Histogram::new();
        for n in 1..=500 {
            packed.record(n * 7_000);
            open.record(n * 7_000);
            packed.pack();
        }
        assert!(packed.to_bytes().len() < 4_000);
        assert_eq!(packed.to_bytes(), open.to_bytes());
        assert_eq!(packed.quantile_ns(0.9), open.quantile_ns(0.9));
        assert_eq!(
            (packed.max_ns(), packed.min_ns()),
            (open.max_ns(), open.min_ns())
        );
        open.add(&packed);
        open.add(&Histogram::new());
        assert_eq!(open.len(), 1_000);
    }

    #[test]
    fn what_is_read_cannot_ask_for_memory() {
        let mut one = Histogram::new();
        one.record(5_000_000);
        let bytes = one.to_bytes();
        let read = |bytes: &[u8]| {
            let text = serde_json::to_string(bytes).unwrap();
            serde_json::from_str::<Histogram>(&text)
        };
        assert_eq!(read(&bytes).unwrap().len(), 1);
        // A length of gigabytes, five digits, other bounds.
        for (at, byte) in [(4, 0x7f), (15, 5), (16, 0), (24, 0x7f)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert_eq!(read(&wrong).is_ok(), wrong == bytes, "byte {at}");
        }
        assert!(read(&bytes[..30]).is_err());
    }
}
