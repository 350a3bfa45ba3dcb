//! The bound of the tail cache: recently written batches, shared with their readers.
//!
//! The batches themselves lie in their partitions, in order of offset. Here is the order in which
//! they came, over all partitions, so that the oldest go first and an idle partition does not keep
//! its memory.
//!
//! Retention takes batches out of a partition without asking here: they count until their turn
//! comes. So the count is never below what is in memory, and this list is bounded as the cache is.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::batch::Offset;
use crate::partition::PartitionLog;

/// Counts the bytes of the tail cache and knows whose turn it is to go.
pub(crate) struct TailCache {
    bytes_max: u64,
    /// Sum of the weights in `order`; changes only under its lock.
    bytes: AtomicU64,
    order: Mutex<VecDeque<TailEntry>>,
}

/// Batches of one write.
struct TailEntry {
    partition: Weak<PartitionLog>,
    topic: Uuid,
    /// Offset after the last of them.
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

    /// Bytes in the cache, at most.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Notes batches of one write of a partition, up to offset `end`, and evicts others for them.
    /// Call it with no lock of a partition held.
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
            self.take(oldest.weight);
            // The partition's lock is taken without ours: a writer may want both.
            drop(order);
            if let Some(partition) = oldest.partition.upgrade() {
                partition.evict_tail(oldest.end);
            }
            order = self.order.lock();
            total = self.bytes.load(Relaxed);
        }
    }

    /// Forgets topics whose partitions have given up their batches.
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
        self.take(freed);
    }

    /// Batches with this weight have left `order`, whose lock the caller holds.
    fn take(&self, weight: u64) {
        let before = self.bytes.fetch_sub(weight, Relaxed);
        invariant!(
            before >= weight,
            "more bytes leave the tail cache than were in it"
        );
    }
}
