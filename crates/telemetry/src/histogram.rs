//! A histogram over all of `u64` with a bounded relative error and fixed memory.
//!
//! ```text
//! value      0 1 … 7 | 8 … 15      | 16 … 31       | …  | 2^63 … 2^64−1
//! bucket     0 1 … 7 | 8 … 15      | 16 … 23       |    | 488 … 495
//! width      1       | 1           | 2             |    | 2^60
//! ```
//!
//! Values below 8 have a bucket each; above, every octave has eight buckets of equal width, so a
//! bucket is never wider than an eighth of its lower bound. The buckets are allocated in chunks
//! of 64 (eight octaves) when first hit: an unused histogram costs its header only, and one
//! whose values lie together costs one or two chunks of 512 bytes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// log2 of the number of buckets per octave. Three: quantiles err by at most 12.5 %, half of that
/// with the middle of the bucket, which distinguishes 1 ms from 1.2 ms and is enough for advice.
const SUB_BITS: u32 = 3;
const SUB: u64 = 1 << SUB_BITS;
/// Buckets in use: eight exact ones and eight for each octave from 2^3 to 2^63.
const BUCKETS: usize = (SUB + (64 - SUB_BITS as u64) * SUB) as usize;
const CHUNK: usize = 64;
const CHUNKS: usize = BUCKETS.div_ceil(CHUNK);

type Chunk = [AtomicU64; CHUNK];

/// Counts values by magnitude. One thread records, any thread takes snapshots.
///
/// Recording from two threads at once is memory-safe but may lose counts: the increment is a
/// load and a store, not an atomic addition, because that is what makes it cheap.
#[derive(Debug, Default)]
pub struct Histogram {
    chunks: [OnceLock<Box<Chunk>>; CHUNKS],
    sum: AtomicU64,
    max: AtomicU64,
}

impl Histogram {
    /// An empty histogram. Allocates nothing.
    pub const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts the same value `count` times.
    #[inline]
    pub fn record_many(&self, value: u64, count: u64) {
        let bucket = bucket_of(value);
        match self.chunks[bucket / CHUNK].get() {
            Some(chunk) => self.count(&chunk[bucket % CHUNK], value, count),
            None => self.record_first(bucket, value, count),
        }
    }

    #[inline]
    fn count(&self, cell: &AtomicU64, value: u64, count: u64) {
        cell.store(cell.load(Relaxed).wrapping_add(count), Relaxed);
        let sum = self
            .sum
            .load(Relaxed)
            .wrapping_add(value.wrapping_mul(count));
        self.sum.store(sum, Relaxed);
        if value > self.max.load(Relaxed) {
            self.max.store(value, Relaxed);
        }
    }

    /// Records the first value of a chunk. It does the whole recording, so that the caller has no
    /// work left, and no values to keep, after this call.
    #[cold]
    #[inline(never)]
    fn record_first(&self, bucket: usize, value: u64, count: u64) {
        let empty = || Box::new([const { AtomicU64::new(0) }; CHUNK]);
        let chunk = self.chunks[bucket / CHUNK].get_or_init(empty);
        self.count(&chunk[bucket % CHUNK], value, count);
    }

    /// A copy of the counts. It is not atomic: of a value recorded meanwhile, count, sum and
    /// maximum may be included or not, each independently.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let mut buckets = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk.get() else { continue };
            for (offset, cell) in chunk.iter().enumerate() {
                let count = cell.load(Relaxed);
                if count > 0 {
                    buckets.push(((index * CHUNK + offset) as u16, count));
                }
            }
        }
        HistogramSnapshot {
            buckets,
            sum: self.sum.load(Relaxed),
            max: self.max.load(Relaxed),
        }
    }
}

/// The counts of a [`Histogram`] as plain data: only the buckets that are not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// (bucket, count), ascending by bucket.
    buckets: Vec<(u16, u64)>,
    sum: u64,
    max: u64,
}

impl HistogramSnapshot {
    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Sum of all values; wraps around after 2^64.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Sum of all values; [`u64::MAX`] where it may have wrapped around.
    pub fn saturated_sum(&self) -> u64 {
        let is_sane = self.max.checked_mul(self.count()).is_some();
        if is_sane { self.sum } else { u64::MAX }
    }

    /// The largest value, exactly; 0 when empty.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// True when nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Arithmetic mean, exactly; 0 when empty.
    pub fn mean(&self) -> f64 {
        let count = self.count();
        if count == 0 {
            0.0
        } else {
            self.sum as f64 / count as f64
        }
    }

    /// The value below or at which the fraction `q` (0 to 1) of all values lies: the middle of
    /// its bucket, at most a sixteenth off; 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let count = self.count();
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for &(bucket, in_bucket) in &self.buckets {
            seen += in_bucket;
            if seen >= rank {
                let (low, high) = bounds_of(usize::from(bucket));
                return (low + (high - low) / 2).min(self.max);
            }
        }
        self.max
    }

    /// How many values are at most `value`. Exact when `value` is 2^k − 1, else rounded down to
    /// whole buckets.
    pub fn count_at_most(&self, value: u64) -> u64 {
        let whole = self
            .buckets
            .iter()
            .take_while(|(b, _)| bounds_of(usize::from(*b)).1 <= value);
        whole.map(|(_, count)| count).sum()
    }

    /// The counts by bucket, ascending, of the buckets that are not empty.
    /// [`HistogramSnapshot::from_buckets`] builds the snapshot again from these counts, the sum and
    /// the maximum.
    pub fn buckets(&self) -> &[(u16, u64)] {
        &self.buckets
    }

    /// Builds a snapshot from counts by bucket.
    ///
    /// `None` if the buckets are not ascending, or one does not exist.
    pub fn from_buckets(buckets: Vec<(u16, u64)>, sum: u64, max: u64) -> Option<Self> {
        let ascending = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let known = |(bucket, _): &(u16, u64)| usize::from(*bucket) < BUCKETS;
        (ascending && buckets.iter().all(known)).then_some(Self { buckets, sum, max })
    }

    /// How many values lie in buckets whose middle is between `low` and `high`, both included.
    pub fn count_between(&self, low: u64, high: u64) -> u64 {
        let middles = self.middles();
        let within = middles.filter(|(middle, _)| (low..=high).contains(middle));
        within.map(|(_, count)| count).sum()
    }

    /// The sum of the values in buckets whose middle is more than `low`: each counts as the middle
    /// of its bucket, at most a sixteenth off.
    pub fn sum_above(&self, low: u64) -> f64 {
        let above = self.middles().filter(|(middle, _)| *middle > low);
        above
            .map(|(middle, count)| middle as f64 * count as f64)
            .sum()
    }

    /// The middles of buckets, and how many values are in each.
    fn middles(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter().map(|(bucket, count)| {
            let (first, last) = bounds_of(usize::from(*bucket));
            (first + (last - first) / 2, *count)
        })
    }

    /// Adds the same value `count` times.
    pub(crate) fn add(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        let bucket = bucket_of(value) as u16;
        match self.buckets.binary_search_by_key(&bucket, |(it, _)| *it) {
            Ok(at) => self.buckets[at].1 += count,
            Err(at) => self.buckets.insert(at, (bucket, count)),
        }
        self.sum = self.sum.wrapping_add(value.wrapping_mul(count));
        self.max = self.max.max(value);
    }

    /// Adds the counts of another snapshot to this one.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        let mut merged = Vec::with_capacity(self.buckets.len() + other.buckets.len());
        let (mut left, mut right) = (self.buckets.iter().peekable(), other.buckets.iter());
        let mut next_right = right.next();
        while let Some(&(bucket, count)) = next_right {
            match left.peek() {
                Some(&&(b, c)) if b < bucket => {
                    merged.push((b, c));
                    left.next();
                }
                Some(&&(b, c)) if b == bucket => {
                    merged.push((b, c + count));
                    left.next();
                    next_right = right.next();
                }
                _ => {
                    merged.push((bucket, count));
                    next_right = right.next();
                }
            }
        }
        merged.extend(left);
        self.buckets = merged;
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

#[inline]
fn bucket_of(value: u64) -> usize {
    // How many low bits do not matter: those after the four leading ones. Below 2 * SUB there are
    // none.
    let shift = u64::BITS - SUB_BITS - 1 - (value | SUB).leading_zeros();
    // From 8 on, the leading bit is still in `value >> shift` and adds 8: the eight exact buckets.
    ((u64::from(shift) << SUB_BITS) + (value >> shift)) as usize
}

/// Smallest and largest value of a bucket.
fn bounds_of(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    if bucket < SUB {
        return (bucket, bucket);
    }
    let shift = (bucket / SUB - 1) as u32;
    let low = (SUB + bucket % SUB) << shift;
    (low, low + ((1u64 << shift) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> HistogramSnapshot {
        let histogram = Histogram::new();
        values.iter().for_each(|&value| histogram.record(value));
        histogram.snapshot()
    }

    #[test]
    fn buckets_tile_the_whole_range() {
        let mut next = 0u64;
        for bucket in 0..BUCKETS {
            let (low, high) = bounds_of(bucket);
            assert_eq!(low, next, "bucket {bucket}");
            assert_eq!((bucket_of(low), bucket_of(high)), (bucket, bucket));
            next = high.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends at u64::MAX");
    }

    #[test]
    fn empty_histogram_has_no_values_and_no_chunks() {
        let snapshot = Histogram::new().snapshot();
        assert!(snapshot.is_empty());
        assert_eq!(
            (snapshot.quantile(0.5), snapshot.count(), snapshot.max()),
            (0, 0, 0)
        );
        assert!(size_of::<Histogram>() <= 144);
    }

    proptest! {
        #[test]
        fn quantile_errs_by_at_most_a_sixteenth(
            mut values in prop::collection::vec(0u64..1 << 40, 1..200), q in 0.0f64..=1.0,
        ) {
            let snapshot = of(&values);
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).max(1);
            let exact = values[rank - 1];
            let error = snapshot.quantile(q).abs_diff(exact);
            prop_assert!(error <= exact / 16 + 1, "exact {exact}, error {error}");
        }

        #[test]
        fn merge_equals_recording_everything_in_one(
            left in prop::collection::vec(any::<u64>(), 0..100),
            right in prop::collection::vec(any::<u64>(), 0..100),
        ) {
            let mut merged = of(&left);
            merged.merge(&of(&right));
            let all: Vec<u64> = left.iter().chain(&right).copied().collect();
            prop_assert_eq!(merged, of(&all));
        }

        #[test]
        fn counts_below_powers_of_two_are_exact(
            values in prop::collection::vec(any::<u64>(), 0..100), bits in 0u32..64,
        ) {
            let limit = (1u64 << bits) - 1;
            let exact = values.iter().filter(|value| **value <= limit).count() as u64;
            prop_assert_eq!(of(&values).count_at_most(limit), exact);
        }
    }

    #[test]
    fn a_snapshot_is_put_together_from_its_buckets() {
        let whole = of(&[3, 500, 501, 70_000]);
        let (sum, max) = (whole.sum(), whole.max());
        let again = HistogramSnapshot::from_buckets(whole.buckets().to_vec(), sum, max);
        assert_eq!(again, Some(whole.clone()));
        assert_eq!(whole.count_between(400, 600), 2);
        assert_eq!(whole.count_between(4, 400), 0);
        let wrong = [vec![(5, 1), (5, 1)], vec![(u16::MAX, 1)]];
        for buckets in wrong {
            assert_eq!(HistogramSnapshot::from_buckets(buckets, 0, 0), None);
        }
    }

    #[test]
    fn a_sum_that_wrapped_around_is_no_small_one() {
        let known = of(&[u64::MAX / 2, u64::MAX / 2, 12]);
        assert_eq!((known.sum(), known.saturated_sum()), (10, u64::MAX));
        assert_eq!(of(&[5, 7]).saturated_sum(), 12);
        assert_eq!(of(&[]).saturated_sum(), 0);
    }

    #[test]
    fn many_equals_one_by_one() {
        let (many, single) = (Histogram::new(), Histogram::new());
        many.record_many(300, 5);
        (0..5).for_each(|_| single.record(300));
        assert_eq!(many.snapshot(), single.snapshot());
        assert_eq!(many.snapshot().mean(), 300.0);
    }
}
