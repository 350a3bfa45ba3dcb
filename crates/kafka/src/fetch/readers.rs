//! The partitions that each connection currently fetches, so that a consumer lag can be attributed
//! to a connection. A client joins its group on one connection and fetches on another, and the
//! protocol does not link the two.
//!
//! A connection updates its entry at most once a second, so that the cost for a Fetch is
//! negligible.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

use super::partition::FetchPartition;

/// Minimum time between two updates of a connection's entry, in microseconds.
const INTERVAL_US: u64 = 1_000_000;

/// Maximum number of partitions in a connection's entry.
const PARTITIONS_MAX: usize = 1024;

/// A partition that a connection reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchedPartition {
    /// The topic's id.
    pub topic: Uuid,
    /// The partition's number.
    pub partition: u32,
    /// The offset in its last Fetch.
    pub offset: u64,
}

/// The partitions that each connection currently fetches.
#[derive(Debug, Default)]
pub struct FetchPositions {
    table: Mutex<HashMap<u64, Arc<[FetchedPartition]>>>,
}

impl FetchPositions {
    /// The telemetry ids of the connections, with the partitions that each fetches.
    pub fn list(&self) -> Vec<(u64, Arc<[FetchedPartition]>)> {
        let table = self.table.lock();
        table.iter().map(|(id, all)| (*id, all.clone())).collect()
    }
}

/// One connection's entry in the table. Removed when this is dropped.
#[derive(Debug)]
pub(super) struct ReaderEntry {
    readers: Arc<FetchPositions>,
    connection: u64,
    due_us: u64,
}

impl ReaderEntry {
    /// A connection without an entry yet.
    pub(super) fn new(readers: &Arc<FetchPositions>, connection: u64) -> ReaderEntry {
        ReaderEntry {
            readers: readers.clone(),
            connection,
            due_us: 0,
        }
    }

    /// Whether the entry is to be updated.
    #[inline]
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.due_us
    }

    /// Replaces the entry by these partitions.
    pub(super) fn update(&mut self, partitions: &[FetchPartition], now_us: u64) {
        self.due_us = now_us.saturating_add(INTERVAL_US);
        let reading = |partition: &FetchPartition| {
            Some(FetchedPartition {
                topic: partition.topic.topic()?.id(),
                partition: u32::try_from(partition.index).ok()?,
                offset: u64::try_from(partition.requested.offset).ok()?,
            })
        };
        let all: Arc<[FetchedPartition]> = partitions
            .iter()
            .filter_map(reading)
            .take(PARTITIONS_MAX)
            .collect();
        self.readers.table.lock().insert(self.connection, all);
    }
}

impl Drop for ReaderEntry {
    fn drop(&mut self) {
        self.readers.table.lock().remove(&self.connection);
    }
}
