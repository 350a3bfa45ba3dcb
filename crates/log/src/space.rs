//! The reserve of free disk space, checked without a system call per append.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::disk::Disk;

/// A measured amount of free space is believed for this long.
const BELIEF_MS: u64 = 100;

/// Remembers how much space is free and how much was written since.
pub(crate) struct Space {
    reserve_bytes: u64,
    started: Instant,
    /// Milliseconds after `started` when the belief ends.
    believed_until_ms: AtomicU64,
    /// Bytes that may be written before the free space is looked at again.
    budget_bytes: AtomicI64,
    free_bytes: AtomicU64,
    full: AtomicBool,
}

impl Space {
    pub(crate) fn new(reserve_bytes: u64) -> Space {
        Space {
            reserve_bytes,
            started: Instant::now(),
            believed_until_ms: AtomicU64::new(0),
            budget_bytes: AtomicI64::new(0),
            free_bytes: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
        }
    }

    /// Says whether `bytes` more may be written; otherwise how many bytes are free.
    pub(crate) fn admit(&self, disk: &dyn Disk, now: Instant, bytes: u64) -> Result<(), u64> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let now_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        let left = self.budget_bytes.fetch_sub(bytes as i64, Relaxed) - bytes as i64;
        if left < 0 || now_ms >= self.believed_until_ms.load(Relaxed) {
            self.measure(disk, now_ms);
        }
        if self.full.load(Relaxed) {
            Err(self.free_bytes.load(Relaxed))
        } else {
            Ok(())
        }
    }

    fn measure(&self, disk: &dyn Disk, now_ms: u64) {
        // A file system that cannot say how full it is will say so when it is written to.
        let free = disk.free_bytes().unwrap_or(u64::MAX);
        let above = free.saturating_sub(self.reserve_bytes);
        self.free_bytes.store(free, Relaxed);
        self.full.store(above == 0, Relaxed);
        self.budget_bytes
            .store(i64::try_from(above / 2).unwrap_or(i64::MAX), Relaxed);
        self.believed_until_ms.store(now_ms + BELIEF_MS, Relaxed);
    }

    /// Bytes above the reserve when it was last measured.
    pub(crate) fn above_reserve(&self) -> u64 {
        self.free_bytes
            .load(Relaxed)
            .saturating_sub(self.reserve_bytes)
    }

    /// Bytes that were free when it was last measured.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Relaxed)
    }
}
