//! Counters of the log. All are totals since the start, except where a field says otherwise.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A snapshot of the log's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMetrics {
    /// Batches appended.
    pub batches: u64,
    /// Bytes of batches written.
    pub written_bytes: u64,
    /// Vectored writes of batches.
    pub writes: u64,
    /// Writes on the caller's thread that were so slow that the log entered slow mode.
    pub slow_writes: u64,
    /// `fdatasync`, folder syncs and `syncfs` calls.
    pub syncs: u64,
    /// `syncfs` calls among them.
    pub fs_syncs: u64,
    /// Group commits that completed waiting appends.
    pub groups: u64,
    /// Appends that a sync completed.
    pub group_waiters: u64,
    /// Maximum number of appends that one group commit completed.
    pub group_waiters_max: u64,
    /// Bytes accepted and not written yet, at the moment.
    pub unwritten_bytes: u64,
    /// Estimated bytes written and not synced yet, at the moment.
    pub unsynced_bytes: u64,
    /// Bytes in the tail cache at the moment.
    pub tail_bytes: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Failed syncs.
    pub sync_errors: u64,
    /// Appends refused because the disk is full.
    pub storage_full: u64,
    /// Reads that had to go to the disk.
    pub cold_reads: u64,
    /// Reads whose batches are sent directly from the file.
    pub stored_reads: u64,
    /// Corrupt regions that were found and skipped.
    pub corrupt_regions: u64,
    /// Offsets in corrupt regions, in missing files and after the end of truncated files. This is
    /// the number of lost messages, or more where compaction had removed some of them before.
    pub lost_messages: u64,
    /// Bytes of torn tails that recovery has cut off.
    pub truncated_bytes: u64,
    /// Segments scanned by recovery because they were not sealed.
    pub scanned_segments: u64,
    /// Reads that the disk does not answer, at the moment.
    pub stalled_reads: u64,
}

/// The live counters. Writers are few and batches are large, so shared atomics are cheap enough.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) batches: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) slow_writes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) fs_syncs: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) group_waiters: AtomicU64,
    pub(crate) group_waiters_max: AtomicU64,
    pub(crate) unwritten_bytes: AtomicU64,
    pub(crate) unsynced_bytes: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) sync_errors: AtomicU64,
    pub(crate) storage_full: AtomicU64,
    pub(crate) cold_reads: AtomicU64,
    pub(crate) stored_reads: AtomicU64,
    pub(crate) corrupt_regions: AtomicU64,
    pub(crate) lost_messages: AtomicU64,
    pub(crate) truncated_bytes: AtomicU64,
    pub(crate) scanned_segments: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

/// Subtracts from a gauge. Returns its value before.
pub(crate) fn subtract(gauge: &AtomicU64, amount: u64) -> u64 {
    gauge.fetch_sub(amount, Relaxed)
}

impl Counters {
    pub(crate) fn snapshot(&self, tail_bytes: u64, stalled_reads: u64) -> LogMetrics {
        LogMetrics {
            batches: self.batches.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            slow_writes: self.slow_writes.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            fs_syncs: self.fs_syncs.load(Relaxed),
            groups: self.groups.load(Relaxed),
            group_waiters: self.group_waiters.load(Relaxed),
            group_waiters_max: self.group_waiters_max.load(Relaxed),
            unwritten_bytes: self.unwritten_bytes.load(Relaxed),
            unsynced_bytes: self.unsynced_bytes.load(Relaxed),
            tail_bytes,
            write_errors: self.write_errors.load(Relaxed),
            sync_errors: self.sync_errors.load(Relaxed),
            storage_full: self.storage_full.load(Relaxed),
            cold_reads: self.cold_reads.load(Relaxed),
            stored_reads: self.stored_reads.load(Relaxed),
            corrupt_regions: self.corrupt_regions.load(Relaxed),
            truncated_bytes: self.truncated_bytes.load(Relaxed),
            lost_messages: self.lost_messages.load(Relaxed),
            scanned_segments: self.scanned_segments.load(Relaxed),
            stalled_reads,
        }
    }
}
