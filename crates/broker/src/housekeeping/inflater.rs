//! Inflates compressed batches for delivery: each once, with limits, and on a thread of its own
//! when it may take long.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cloverleaf_log::{Batch, InflateError, Offset};
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

/// A batch of at most this many bytes when inflated is inflated on the caller's thread: that takes
/// a few milliseconds at most. Tried only with batches whose compressed size is at most a quarter
/// of this.
pub(crate) const QUICK_BYTES_MAX: usize = 1 << 20;

/// Identifies a batch: topic, partition and base offset.
pub(crate) type BatchName = (Uuid, u32, Offset);

type InflateJob = Box<dyn FnOnce() + Send>;

/// Inflates batches and caches some, because the subscriptions of a topic need the same ones.
pub(crate) struct Inflater {
    batch_bytes_max: usize,
    cache_bytes_max: usize,
    cache: Mutex<InflatedCache>,
    jobs: Mutex<InflateJobs>,
    changed: Condvar,
    unreadable: AtomicU64,
}

#[derive(Default)]
struct InflatedCache {
    batches: HashMap<BatchName, Batch>,
    /// Oldest first.
    order: VecDeque<BatchName>,
    bytes: usize,
}

#[derive(Default)]
struct InflateJobs {
    waiting: VecDeque<InflateJob>,
    closed: bool,
}

impl Inflater {
    pub(crate) fn new(batch_bytes_max: usize, cache_bytes_max: usize) -> Self {
        Self {
            batch_bytes_max,
            cache_bytes_max,
            cache: Mutex::default(),
            jobs: Mutex::default(),
            changed: Condvar::new(),
            unreadable: AtomicU64::new(0),
        }
    }

    /// Batches that could not be inflated since the process started; their messages were skipped.
    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// The largest inflated batch, in bytes.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        self.batch_bytes_max
    }

    /// The inflated batch, if it is cached or quickly done. `None`: call [`Self::inflate`] on a
    /// thread that may take long.
    pub(crate) fn inflate_if_quick(&self, name: BatchName, batch: &Batch) -> Option<Batch> {
        if let Some(known) = self.cache.lock().batches.get(&name) {
            return Some(known.clone());
        }
        if batch.bytes().len() > QUICK_BYTES_MAX / 4 {
            return None;
        }
        let bytes_max = self.batch_bytes_max.min(QUICK_BYTES_MAX);
        match batch.inflate(bytes_max) {
            Err(InflateError::TooLarge { .. }) if bytes_max < self.batch_bytes_max => None,
            outcome => Some(self.remember(name, batch, outcome)),
        }
    }

    /// The inflated batch. One that cannot be inflated is logged once, counted, and returned
    /// without records.
    pub(crate) fn inflate(&self, name: BatchName, batch: &Batch) -> Batch {
        if let Some(known) = self.cache.lock().batches.get(&name) {
            return known.clone();
        }
        self.remember(name, batch, batch.inflate(self.batch_bytes_max))
    }

    fn remember(
        &self,
        name: BatchName,
        batch: &Batch,
        outcome: Result<Batch, InflateError>,
    ) -> Batch {
        let inflated = outcome.unwrap_or_else(|error| {
            let (topic, partition, offset) = name;
            let messages = batch.count();
            tracing::error!(%topic, partition, offset, messages, %error,
                "a compressed batch cannot be read: subscriptions skip its messages");
            self.unreadable.fetch_add(1, Ordering::Relaxed);
            batch.without_records()
        });
        let bytes = inflated.bytes().len();
        let mut cache = self.cache.lock();
        if bytes <= self.cache_bytes_max && !cache.batches.contains_key(&name) {
            cache.bytes += bytes;
            cache.batches.insert(name, inflated.clone());
            cache.order.push_back(name);
            while cache.bytes > self.cache_bytes_max {
                let Some(oldest) = cache.order.pop_front() else {
                    break;
                };
                if let Some(gone) = cache.batches.remove(&oldest) {
                    cache.bytes -= gone.bytes().len();
                }
            }
        }
        inflated
    }

    /// Queues a job that inflates a batch. Each reader of a subscription queues at most one.
    pub(crate) fn queue(&self, job: InflateJob) {
        let mut jobs = self.jobs.lock();
        if !jobs.closed {
            jobs.waiting.push_back(job);
            self.changed.notify_one();
        }
    }

    /// Runs the queued jobs on the caller's thread.
    pub(crate) fn run_queued(&self) {
        let waiting = std::mem::take(&mut self.jobs.lock().waiting);
        waiting.into_iter().for_each(|job| job());
    }

    /// Runs queued jobs until [`Self::close`], on a thread of its own.
    pub(crate) fn run(&self) {
        loop {
            let job = {
                let mut jobs = self.jobs.lock();
                while jobs.waiting.is_empty() && !jobs.closed {
                    self.changed.wait(&mut jobs);
                }
                if jobs.closed {
                    return;
                }
                jobs.waiting.pop_front()
            };
            if let Some(job) = job {
                job();
            }
        }
    }

    /// Ends [`Self::run`] and drops the queued jobs.
    pub(crate) fn close(&self) {
        let mut jobs = self.jobs.lock();
        jobs.closed = true;
        let dropped = std::mem::take(&mut jobs.waiting);
        self.changed.notify_all();
        drop(jobs);
        drop(dropped);
    }
}

/// Whether the threads "inflater" and "upkeep" run. If not, the housekeeping thread does their work
/// in its ticks.
#[derive(Debug, Default)]
pub(crate) struct BackgroundThreads(AtomicBool);

impl BackgroundThreads {
    pub(crate) fn set(&self, has_background_threads: bool) {
        self.0.store(has_background_threads, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use cloverleaf_log::{BatchBuilder, Codec};

    use super::*;

    fn compressed(bytes: usize) -> Batch {
        let mut builder = BatchBuilder::with_capacity(bytes, 0);
        builder.push(None, Some(&vec![7; bytes]), &[]);
        builder.finish().compress(Codec::Zstd).unwrap()
    }

    #[test]
    fn the_cache_is_bounded() {
        let inflater = Inflater::new(1 << 20, 10_000);
        let batch = compressed(4_000);
        for offset in 0..50 {
            let inflated = inflater.inflate_if_quick((Uuid::nil(), 0, offset), &batch);
            assert!(!inflated.unwrap().is_compressed());
        }
        let cache = inflater.cache.lock();
        assert_eq!(cache.batches.len(), 2);
        assert_eq!(cache.order.len(), 2);
        assert!(cache.bytes <= 10_000);
    }

    #[test]
    fn a_large_batch_is_not_inflated_at_once() {
        let inflater = Inflater::new(8 << 20, 10_000);
        let (large, bomb) = (compressed(4 << 20), compressed(16 << 20));
        let name = (Uuid::nil(), 0, 0);
        assert!(inflater.inflate_if_quick(name, &large).is_none());
        assert_eq!(inflater.inflate(name, &large).count(), 1);
        assert_eq!(inflater.unreadable(), 0);
        assert_eq!(inflater.inflate(name, &bomb).count(), 0);
        assert_eq!(inflater.unreadable(), 1);
    }
}
