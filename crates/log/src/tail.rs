//! The bound of the tail cache: recently written batches, shared with their readers.
//!
//! The batches themselves lie in their partitions, in order of offset. Here is the order in which
//! they came, over all partitions, so that the oldest go first and an idle partition does not keep
//! its memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::batch::Offset;
use crate::partition::PartitionLog;

/// Counts the bytes of the tail cache and knows whose turn it is to go.
pub(crate) struct Tail {
    bytes_max: u64,
    bytes: AtomicU64,
    order: Mutex<VecDeque<(Arc<PartitionLog>, Offset)>>,
}

impl Tail {
    pub(crate) fn new(bytes_max: u64) -> Tail {
        Tail {
            bytes_max,
            bytes: AtomicU64::new(0),
            order: Mutex::default(),
        }
    }

    /// Bytes in the cache.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Notes batches of one write of a partition, up to offset `end`, and evicts others for them.
    /// Call it with no lock of a partition held.
    pub(crate) fn admit(&self, partition: &Arc<PartitionLog>, end: Offset, bytes: u64) {
        let total = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let mut order = self.order.lock();
        order.push_back((partition.clone(), end));
        if total <= self.bytes_max {
            return;
        }
        while self.bytes.load(Relaxed) > self.bytes_max {
            let Some((oldest, end)) = order.pop_front() else {
                break;
            };
            // The partition's lock is taken without ours: a writer may want both.
            drop(order);
            oldest.evict_tail(end);
            order = self.order.lock();
        }
    }

    /// Notes that a partition gave up this many bytes.
    pub(crate) fn discharge(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Forgets everything at the end: the partitions hold the log, and this list holds them.
    pub(crate) fn clear(&self) {
        self.order.lock().clear();
    }
}
