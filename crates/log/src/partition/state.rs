//! The state that a partition's lock protects, in parts with private fields: other files of the
//! partition use the methods of a part.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::{Batch, Offset};
use crate::partition::prepared::PreparedState;
use crate::producers::Producers;
use crate::segment::{Segment, SegmentStage};

use super::sync_queue::SyncQueue;
use super::write_queue::WriteQueue;

/// The state that the partition's lock protects.
pub(crate) struct PartitionState {
    pub(crate) offsets: PartitionOffsets,
    /// The idempotent producers.
    pub(crate) producers: Producers,
    /// The batches that are to be written, and the waiters for them.
    pub(crate) writes: WriteQueue,
    /// The waiters for a sync.
    pub(crate) syncs: SyncQueue,
    /// In order of base offset; only the last one may be active.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// The newest batches, in memory.
    pub(crate) recent: RecentBatches,
    /// The file of the segment after the active one.
    pub(crate) prepared: PreparedState,
    pub(crate) unsynced_folders: UnsyncedFolders,
    pub(crate) is_closed: bool,
    /// The topic was deleted: the partition is closed, and its files are removed or being removed.
    pub(crate) is_deleted: bool,
}

impl PartitionState {
    /// The segment that appends go to.
    pub(crate) fn active(&self) -> Option<&Arc<Segment>> {
        self.segments
            .last()
            .filter(|segment| segment.stage() == SegmentStage::Active)
    }

    /// The segment that contains the record before this offset.
    pub(crate) fn segment_ending_at(&self, end: Offset) -> Option<&Arc<Segment>> {
        let matches = |segment: &&Arc<Segment>| segment.base < end && end <= segment.end();
        self.segments.iter().rev().find(matches)
    }
}

/// The next offset to assign, the last hole, and the log start offset.
pub(crate) struct PartitionOffsets {
    next: Offset,
    /// The offsets that the last raise skipped; empty if there was none.
    last_hole: Range<Offset>,
    logical_start: Offset,
}

impl PartitionOffsets {
    /// Offsets of a partition whose last record ends at `end`.
    pub(crate) fn new(end: Offset, next: Offset) -> PartitionOffsets {
        PartitionOffsets {
            next,
            last_hole: end..next,
            logical_start: 0,
        }
    }

    /// The base offset of the next batch.
    pub(crate) fn next(&self) -> Offset {
        self.next
    }

    /// Notes that a batch has got the offsets from the next one up to `end`.
    pub(crate) fn assign_up_to(&mut self, end: Offset) {
        self.next = end;
    }

    /// From now on, assigns no offset below `at_least`.
    pub(crate) fn raise(&mut self, at_least: Offset) {
        if at_least > self.next {
            if self.last_hole.end != self.next {
                self.last_hole.start = self.next;
            }
            self.last_hole.end = at_least;
            self.next = at_least;
        }
    }

    /// The offsets that the last raise skipped.
    pub(crate) fn last_hole(&self) -> Range<Offset> {
        self.last_hole.clone()
    }

    /// The log start offset that was set; older segments may still exist.
    pub(crate) fn logical_start(&self) -> Offset {
        self.logical_start
    }

    /// Raises the log start offset to `offset`; never lowers it.
    pub(crate) fn raise_start(&mut self, offset: Offset) {
        self.logical_start = self.logical_start.max(offset);
    }
}

/// The newest batches, in order of offset. Their bytes are bounded over all partitions together
/// (`tail.rs`).
#[derive(Default)]
pub(crate) struct RecentBatches(VecDeque<Batch>);

impl RecentBatches {
    pub(crate) fn push(&mut self, batch: Batch) {
        let newest = self.0.back();
        invariant!(
            newest.is_none_or(|newest| newest.end_offset() <= batch.base_offset()),
            "a batch is older than the newest one in memory"
        );
        self.0.push_back(batch);
    }

    /// Offset of the first record in memory.
    pub(crate) fn first_base(&self) -> Option<Offset> {
        self.0.front().map(Batch::base_offset)
    }

    /// Batches from offset `from` on, up to `bytes_max` bytes, but at least one if there is one.
    pub(crate) fn read(&self, from: Offset, bytes_max: usize) -> Vec<Batch> {
        let first = self.0.partition_point(|batch| batch.end_offset() <= from);
        let mut bytes = 0;
        let mut batches = Vec::new();
        for batch in self.0.range(first..) {
            bytes += batch.bytes().len();
            if bytes > bytes_max && !batches.is_empty() {
                break;
            }
            batches.push(batch.clone());
        }
        batches
    }

    /// Drops the batches up to offset `end`.
    pub(crate) fn evict(&mut self, end: Offset) {
        while let Some(batch) = self.0.front() {
            if batch.end_offset() > end {
                break;
            }
            self.0.pop_front();
        }
        if self.0.is_empty() {
            self.0.shrink_to(16);
        }
    }

    /// Drops the batches of these segments.
    pub(crate) fn forget(&mut self, segments: &[Arc<Segment>]) {
        let lies_in = |offset: Offset| {
            segments
                .iter()
                .any(|segment| segment.base <= offset && offset < segment.end())
        };
        self.0.retain(|batch| !lies_in(batch.base_offset()));
    }
}

/// Folders with names of files that are not durable yet, each with the number of its last change.
#[derive(Default)]
pub(crate) struct UnsyncedFolders {
    folders: Vec<(String, u64)>,
    /// Number of the last change; counts up.
    changes: u64,
}

impl UnsyncedFolders {
    /// Notes that a name in this folder has changed and is not durable.
    pub(crate) fn note(&mut self, folder: String) {
        self.changes += 1;
        let mut known = self.folders.iter_mut();
        match known.find(|(known, _)| *known == folder) {
            Some((_, change)) => *change = self.changes,
            None => self.folders.push((folder, self.changes)),
        }
    }

    /// The folders that a sync which begins now makes durable.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        self.folders.clone()
    }

    /// Removes folders that were synced, except those that have changed since they were listed.
    pub(crate) fn note_synced(&mut self, synced: &[(String, u64)]) {
        self.folders.retain(|folder| !synced.contains(folder));
    }
}
