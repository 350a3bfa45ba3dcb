//! Counters and histograms of a connection, packed.
//!
//! ```text
//! pack    { key: varint, as the difference to the key before; value: varint } ...
//! key     0 ..                counters, in the order of their definition
//!         COUNTERS ..         sums of the histograms
//!         COUNTERS + SUMS ..  BUCKETS_MAX for each histogram
//! ```
//!
//! Zeros are left out. A busy connection's differences over two seconds are about eighty numbers,
//! mostly small: 200 to 300 bytes instead of the 1,500 of the plain structs. That keeps a minute of
//! history of ten thousand connections small.

use cloverleaf_telemetry::{Counters, HistogramSnapshot, Histograms};

/// Keys reserved per histogram, more than it has buckets.
const BUCKETS_MAX: u64 = 512;
const SUMS: u64 = Counters::COUNT as u64;
const BUCKETS: u64 = SUMS + Histograms::COUNT as u64;

/// Upper limit of a difference between two observations. A larger one is invalid, or belongs to
/// another connection. The limit also keeps sums over all spans from overflowing.
const GAINED_MAX: u64 = 1 << 48;

/// Counters and histograms: totals, or their increase over a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) counters: Counters,
    pub(crate) histograms: Histograms,
}

/// A [`Flow`] in few bytes, immutable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pack(Box<[u8]>);

impl Pack {
    /// Packs a connection's totals.
    pub(crate) fn of(counters: &Counters, histograms: &Histograms) -> Pack {
        let mut writer = Writer::default();
        for (key, value) in counters.to_array().into_iter().enumerate() {
            writer.push(key as u64, value);
        }
        let histograms = histograms.to_array();
        for (at, histogram) in histograms.iter().enumerate() {
            writer.push(SUMS + at as u64, histogram.sum());
        }
        for (at, histogram) in histograms.iter().enumerate() {
            let base = BUCKETS + at as u64 * BUCKETS_MAX;
            for (bucket, count) in histogram.buckets() {
                writer.push(base + u64::from(*bucket), *count);
            }
        }
        writer.finish()
    }

    /// The traffic since `earlier`; `None` if any number has fallen, because these are then not the
    /// totals of the same connection.
    pub(crate) fn since(&self, earlier: &Pack) -> Option<Pack> {
        let mut writer = Writer::default();
        let mut old = earlier.entries().peekable();
        for (key, value) in self.entries() {
            let before = match old.peek() {
                Some(&(k, _)) if k < key => return None,
                Some(&(k, before)) if k == key => {
                    old.next();
                    before
                }
                _ => 0,
            };
            // Sums wrap around, counts do not.
            let is_sum = (SUMS..BUCKETS).contains(&key);
            let gained = match is_sum {
                true => value.wrapping_sub(before),
                false => value.checked_sub(before).filter(|it| *it <= GAINED_MAX)?,
            };
            writer.push(key, gained);
        }
        old.next().is_none().then(|| writer.finish())
    }

    /// The sum of these packs.
    pub(crate) fn sum<'p>(packs: impl Iterator<Item = &'p Pack>) -> Flow {
        let mut counters = [0u64; Counters::COUNT];
        let mut sums = [0u64; Histograms::COUNT];
        let mut counts: [Vec<(u16, u64)>; Histograms::COUNT] = std::array::from_fn(|_| Vec::new());
        for (key, value) in packs.flat_map(Pack::entries) {
            if key < SUMS {
                let counter = &mut counters[key as usize];
                *counter = counter.saturating_add(value);
            } else if key < BUCKETS {
                let sum = &mut sums[(key - SUMS) as usize];
                *sum = sum.wrapping_add(value);
            } else {
                let at = ((key - BUCKETS) / BUCKETS_MAX) as usize;
                let bucket = ((key - BUCKETS) % BUCKETS_MAX) as u16;
                let buckets = &mut counts[at];
                match buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
                    Ok(found) => buckets[found].1 = buckets[found].1.saturating_add(value),
                    Err(place) => buckets.insert(place, (bucket, value)),
                }
            }
        }
        let mut sums = sums.into_iter();
        let histograms = counts.map(|buckets| {
            let sum = sums.next().unwrap_or_default();
            HistogramSnapshot::from_buckets(buckets, sum, u64::MAX).unwrap_or_default()
        });
        Flow {
            counters: Counters::from_array(counters),
            histograms: Histograms::from_array(histograms),
        }
    }

    /// Whether there is no traffic.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that it has allocated.
    pub(crate) fn len_bytes(&self) -> usize {
        self.0.len()
    }

    fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut rest = &self.0[..];
        let mut key = 0;
        std::iter::from_fn(move || {
            key += read_varint(&mut rest)?;
            Some((key, read_varint(&mut rest)?))
        })
    }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    key: u64,
}

impl Writer {
    fn push(&mut self, key: u64, value: u64) {
        if value == 0 {
            return;
        }
        push_varint(&mut self.bytes, key - self.key);
        push_varint(&mut self.bytes, value);
        self.key = key;
    }

    fn finish(self) -> Pack {
        Pack(self.bytes.into_boxed_slice())
    }
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn flow(counters: &[u64], values: &[u64]) -> Flow {
        let mut array = [0; Counters::COUNT];
        for (cell, value) in array.iter_mut().zip(counters) {
            *cell = *value;
        }
        let recorded = cloverleaf_telemetry::Histogram::new();
        values.iter().for_each(|value| recorded.record(*value));
        let recorded = recorded.snapshot();
        let kept = recorded.buckets().to_vec();
        let whole = HistogramSnapshot::from_buckets(kept, recorded.sum(), u64::MAX).unwrap();
        let histograms = Histograms {
            service_us: whole.clone(),
            ack_gap_us: whole,
            ..Histograms::default()
        };
        Flow {
            counters: Counters::from_array(array),
            histograms,
        }
    }

    fn pack(flow: &Flow) -> Pack {
        Pack::of(&flow.counters, &flow.histograms)
    }

    fn same(one: &Flow, other: &Flow) -> bool {
        let all = |flow: &Flow| {
            let of = |it: &&HistogramSnapshot| (it.buckets().to_vec(), it.sum());
            flow.histograms
                .to_array()
                .iter()
                .map(of)
                .collect::<Vec<_>>()
        };
        one.counters == other.counters && all(one) == all(other)
    }

    proptest! {
        #[test]
        fn packing_keeps_everything(
            counters in prop::collection::vec(any::<u64>(), 0..30),
            values in prop::collection::vec(any::<u64>(), 0..100),
        ) {
            let flow = flow(&counters, &values);
            prop_assert!(same(&Pack::sum([pack(&flow)].iter()), &flow));
        }

        #[test]
        fn differences_add_up(
            counters in prop::collection::vec(0u64..1 << 40, 0..30),
            values in prop::collection::vec(any::<u64>(), 0..100), split in 0usize..100,
        ) {
            let half: Vec<u64> = counters.iter().map(|value| value / 3).collect();
            let (early, late) = (
                flow(&half, &values[..split.min(values.len())]),
                flow(&counters, &values),
            );
            let difference = pack(&late).since(&pack(&early)).unwrap();
            prop_assert!(same(&Pack::sum([pack(&early), difference].iter()), &late));
        }
    }

    #[test]
    fn totals_of_another_connection_are_told_from_ours() {
        let (early, late) = (flow(&[5, 9], &[7]), flow(&[6, 8], &[7, 8]));
        assert_eq!(pack(&late).since(&pack(&early)), None);
        assert_eq!(pack(&flow(&[6], &[])).since(&pack(&early)), None);
        assert!(pack(&early).since(&pack(&early)).unwrap().is_empty());
    }

    #[test]
    fn a_busy_connection_takes_few_hundred_bytes() {
        let counters: Vec<u64> = (0..20).map(|at| 900 * at).collect();
        let values: Vec<u64> = (0..400).map(|at| 10_000 + 37 * at).collect();
        let bytes = pack(&flow(&counters, &values)).len_bytes();
        assert!(bytes < 150, "{bytes}");
    }
}
