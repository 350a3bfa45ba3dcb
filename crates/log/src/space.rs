//! Checks the reserve of free disk space without a system call per append.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::disk::Disk;

/// Milliseconds for which a measurement of the free space is valid.
const MEASUREMENT_VALID_MS: u64 = 100;

/// Minimum milliseconds between two log lines, so that a disk at the edge of its reserve is not
/// filled by log lines.
const LINE_INTERVAL_MS: u64 = 10_000;

/// The last measured free space, and the bytes that may be written before the next measurement.
pub(crate) struct FreeSpace {
    reserve_bytes: u64,
    started: Instant,
    /// Milliseconds after `started` at which the measurement expires.
    valid_until_ms: AtomicU64,
    /// Bytes that may be written before the free space is measured again.
    budget_bytes: AtomicI64,
    free_bytes: AtomicU64,
    full: AtomicBool,
    logged: LoggedDiskState,
}

/// The state that the last log line has reported.
#[derive(Default)]
struct LoggedDiskState {
    is_full: AtomicBool,
    /// Milliseconds after the start from which on the next line may be logged.
    next_ms: AtomicU64,
}

impl LoggedDiskState {
    /// Whether a line is due, because the state has changed since the last line.
    fn is_due(&self, is_full: bool, now_ms: u64) -> bool {
        if self.is_full.load(Relaxed) == is_full || now_ms < self.next_ms.load(Relaxed) {
            return false;
        }
        // Several threads may have measured at once: only one of them logs.
        let logged = self
            .is_full
            .compare_exchange(!is_full, is_full, Relaxed, Relaxed);
        if logged.is_ok() {
            self.next_ms.store(now_ms + LINE_INTERVAL_MS, Relaxed);
        }
        logged.is_ok()
    }
}

impl FreeSpace {
    pub(crate) fn new(reserve_bytes: u64) -> FreeSpace {
        FreeSpace {
            reserve_bytes,
            started: Instant::now(),
            valid_until_ms: AtomicU64::new(0),
            budget_bytes: AtomicI64::new(0),
            free_bytes: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
            logged: LoggedDiskState::default(),
        }
    }

    /// Whether `bytes` more bytes may be written. If not, the error is the number of free bytes.
    pub(crate) fn admit(&self, disk: &dyn Disk, now: Instant, bytes: u64) -> Result<(), u64> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let now_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        let left = self.budget_bytes.fetch_sub(bytes as i64, Relaxed) - bytes as i64;
        if left < 0 || now_ms >= self.valid_until_ms.load(Relaxed) {
            self.measure(disk, now_ms);
        }
        if self.full.load(Relaxed) {
            Err(self.free_bytes.load(Relaxed))
        } else {
            Ok(())
        }
    }

    fn measure(&self, disk: &dyn Disk, now_ms: u64) {
        // If the free space is unknown, a full disk is noticed by the write itself.
        let free = disk.free_bytes().unwrap_or(u64::MAX);
        let above = free.saturating_sub(self.reserve_bytes);
        self.free_bytes.store(free, Relaxed);
        self.full.store(above == 0, Relaxed);
        self.budget_bytes
            .store(i64::try_from(above / 2).unwrap_or(i64::MAX), Relaxed);
        self.valid_until_ms
            .store(now_ms + MEASUREMENT_VALID_MS, Relaxed);
        self.log_change(free, above == 0, now_ms);
    }

    /// Logs when the disk becomes full and when it is not full any more, once each.
    fn log_change(&self, free_bytes: u64, is_full: bool, now_ms: u64) {
        if !self.logged.is_due(is_full, now_ms) {
            return;
        }
        let reserve_bytes = self.reserve_bytes;
        if is_full {
            tracing::error!(
                free_bytes,
                reserve_bytes,
                "the disk is full up to the reserve: nothing more is taken from producers"
            )
        } else {
            tracing::info!(
                free_bytes,
                reserve_bytes,
                "there is room on the disk again: producers are served"
            )
        }
    }

    /// Free bytes above the reserve at the last measurement.
    pub(crate) fn above_reserve(&self) -> u64 {
        self.free_bytes
            .load(Relaxed)
            .saturating_sub(self.reserve_bytes)
    }

    /// Free bytes at the last measurement.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_logged_once_when_it_begins_and_once_when_it_ends() {
        let logged = LoggedDiskState::default();
        let later = LINE_INTERVAL_MS;
        assert!(!logged.is_due(false, 0), "it was never full");
        assert!(logged.is_due(true, 5));
        assert!(!logged.is_due(true, 5 + 2 * later));
        assert!(logged.is_due(false, 5 + 3 * later));
        assert!(!logged.is_due(false, 5 + 9 * later));
    }

    #[test]
    fn a_disk_at_the_edge_of_its_reserve_is_logged_rarely() {
        let logged = LoggedDiskState::default();
        let mut lines = Vec::new();
        for now_ms in (0..=3 * LINE_INTERVAL_MS).step_by(100) {
            let is_full = now_ms / 100 % 2 == 0;
            if logged.is_due(is_full, now_ms) {
                lines.push((now_ms, is_full));
            }
        }
        let expected = [(0, true), (10_100, false), (20_200, true)];
        assert_eq!(lines, expected);
    }
}
