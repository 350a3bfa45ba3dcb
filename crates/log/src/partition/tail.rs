//! The bound of the tail cache, which keeps recently written batches in memory for readers.
//!
//! The batches are in their partitions ([`RecentBatches`](super::RecentBatches)). This module has
//! the order in which they were written, over all partitions, so that the oldest are evicted first
//! and an idle partition does not keep its memory.
//!
//! Retention drops batches from a partition without updating this order: they are counted until
//! their turn comes. So the count is never below the bytes in memory, and bounds this list, too.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::batch::Offset;
use crate::partition::PartitionLog;

/// The byte count of the tail cache, and the order of eviction.
pub(crate) struct TailCache {
    bytes_max: u64,
    /// Sum of the weights in `order`; changed only while `order` is locked.
    bytes: AtomicU64,
    order: Mutex<VecDeque<TailEntry>>,
}

/// Batches of one write, evicted together.
struct TailEntry {
    partition: Weak<PartitionLog>,
    topic: Uuid,
    /// Offset after the last batch.
    end: Offset,
    weight: u64,
}

impl TailCache {
    pub(crate) fn new(bytes_max: u64) -> TailCache {
        TailCache {
            bytes_max,
            bytes: AtomicU64::new(0),
            order: Mutex::default(),
        }
    }

    /// Bytes in the cache; an upper bound.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Adds batches of one write of a partition, up to offset `end`, and evicts older batches if
    /// the cache is full. The caller must hold no partition's lock.
    pub(crate) fn admit(&self, partition: &Arc<PartitionLog>, end: Offset, weight: u64) {
        if weight == 0 {
            return;
        }
        let mut order = self.order.lock();
        order.push_back(TailEntry {
            partition: Arc::downgrade(partition),
            topic: partition.topic(),
            end,
            weight,
        });
        let mut total = self.bytes.fetch_add(weight, Relaxed) + weight;
        while total > self.bytes_max {
            let Some(oldest) = order.pop_front() else {
                break;
            };
            self.subtract(oldest.weight);
            // A partition's lock must not be taken while `order` is locked.
            drop(order);
            if let Some(partition) = oldest.partition.upgrade() {
                partition.evict_tail(oldest.end);
            }
            order = self.order.lock();
            total = self.bytes.load(Relaxed);
        }
    }

    /// Removes the entries of topics whose partitions have dropped their batches.
    pub(crate) fn forget(&self, topics: &BTreeSet<Uuid>) {
        if topics.is_empty() {
            return;
        }
        let mut order = self.order.lock();
        let mut freed = 0;
        order.retain(|entry| {
            let keep = !topics.contains(&entry.topic);
            if !keep {
                freed += entry.weight;
            }
            keep
        });
        self.subtract(freed);
    }

    /// Subtracts the weight of entries that were removed from `order`, which the caller has locked.
    fn subtract(&self, weight: u64) {
        let before = self.bytes.fetch_sub(weight, Relaxed);
        invariant!(
            before >= weight,
            "more bytes are removed from the tail cache than were in it"
        );
    }
}
