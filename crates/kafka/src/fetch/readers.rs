//! The partitions that each connection reads at present: to tell which one a lag belongs to. A
//! client joins its group on one connection and fetches on another, and says on neither which one
//! the other is.
//!
//! A connection says it once a second at most, so that a fetch costs no more for it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

use super::part::Part;

/// How often a connection says it.
const INTERVAL_US: u64 = 1_000_000;

/// Partitions of a connection that are told.
const PARTITIONS_MAX: usize = 1024;

/// A partition that a connection reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The topic's id.
    pub topic: Uuid,
    /// The partition.
    pub partition: u32,
    /// The offset that it has asked for last.
    pub offset: u64,
}

/// The partitions that all connections read.
#[derive(Debug, Default)]
pub struct Readers {
    table: Mutex<HashMap<u64, Arc<[Reading]>>>,
}

impl Readers {
    /// The connections, by the numbers that telemetry gave them, with what each reads.
    pub fn list(&self) -> Vec<(u64, Arc<[Reading]>)> {
        let table = self.table.lock();
        table.iter().map(|(id, all)| (*id, all.clone())).collect()
    }
}

/// One connection's entry in the table. Removed when this is dropped.
#[derive(Debug)]
pub(super) struct Reader {
    readers: Arc<Readers>,
    connection: u64,
    due_us: u64,
}

impl Reader {
    /// A connection that has said nothing yet.
    pub(super) fn new(readers: &Arc<Readers>, connection: u64) -> Reader {
        Reader {
            readers: readers.clone(),
            connection,
            due_us: 0,
        }
    }

    /// Whether it is to say it again.
    #[inline]
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.due_us
    }

    /// It reads these now.
    pub(super) fn tell(&mut self, parts: &[Part], now_us: u64) {
        self.due_us = now_us.saturating_add(INTERVAL_US);
        let reading = |part: &Part| {
            Some(Reading {
                topic: part.topic.topic()?.id(),
                partition: u32::try_from(part.index).ok()?,
                offset: u64::try_from(part.wanted.offset).ok()?,
            })
        };
        let all: Arc<[Reading]> = parts
            .iter()
            .filter_map(reading)
            .take(PARTITIONS_MAX)
            .collect();
        self.readers.table.lock().insert(self.connection, all);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.table.lock().remove(&self.connection);
    }
}
