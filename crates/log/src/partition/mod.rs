//! One partition: its segments, its newest batches in memory, and the waiters for its writes and
//! syncs.
//!
//! `append.rs` appends batches, `writer.rs` writes them to files, `group_commit.rs` syncs,
//! `read.rs` reads, `retention.rs` removes segments. The state that these share is in `state.rs`,
//! `write_queue.rs` and `sync_queue.rs`, each with private fields.

pub(crate) mod append;
pub(crate) mod appended;
pub(crate) mod chunk;
pub(crate) mod group_commit;
pub(crate) mod prepared;
pub(crate) mod read;
pub(crate) mod retention;
mod state;
pub(crate) mod stored;
mod sync_queue;
pub(crate) mod tail;
pub(crate) mod timestamps;
mod write_queue;
pub(crate) mod writer;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::batch::{Batch, Offset};
use crate::compaction::CompactionState;
use crate::compaction::files::SegmentReplacement;
use crate::damage::DataLoss;
use crate::options::PartitionOptions;
use crate::partition::prepared::PreparedState;
use crate::partition::writer::SegmentWriter;
use crate::producers::Producers;
use crate::segment::{Segment, SegmentInfo};
use crate::shared::Shared;

pub(crate) use self::state::{PartitionOffsets, PartitionState, RecentBatches, UnsyncedFolders};
use self::sync_queue::SyncQueue;
use self::write_queue::WriteQueue;
pub(crate) use self::write_queue::WriteWaiter;

/// Called with the written end when batches have become readable or could not be written.
pub type WrittenListener = Box<dyn Fn(Offset) + Send + Sync>;

/// Estimated overhead of a batch in memory, in bytes, in addition to the batch's own bytes.
const BATCH_OVERHEAD_BYTES: u64 = 128;

/// The log of one partition.
///
/// Its files and folders are created by the first append.
pub struct PartitionLog {
    pub(crate) shared: Arc<Shared>,
    topic: Uuid,
    number: u32,
    /// Folder of the partition, relative to the data folder.
    pub(crate) dir: Arc<str>,
    segment_bytes: AtomicU64,
    /// In milliseconds, as Kafka's `segment.ms`; `u64::MAX`: no limit.
    segment_ms: AtomicU64,
    /// Kept outside of the state, so that readers need not take its lock.
    written_end: AtomicU64,
    synced_end: AtomicU64,
    pub(crate) state: Mutex<PartitionState>,
    /// Used only by the thread to which the [`WriteQueue`] has granted it. Lock it before the
    /// state, never after.
    pub(crate) writer: Mutex<SegmentWriter>,
    /// Locked while the snapshot of the producers is written. Lock it before all others.
    pub(crate) snapshot_lock: Mutex<()>,
    /// Locked while segments are removed or replaced. Lock it before the state.
    pub(crate) unfinished_replacement: Mutex<Option<SegmentReplacement>>,
    /// Locked while `next.prepared` is created or removed. Lock it before the state.
    pub(crate) prepared_lock: Mutex<()>,
    /// Locked during a call of [`PartitionLog::compact`]. Lock it before all others.
    pub(crate) compaction: Mutex<CompactionState>,
    listener: OnceLock<WrittenListener>,
    /// The losses that recovery found. They are reported when the partition is first opened, so
    /// those of a topic whose deletion a crash interrupted are never reported.
    losses: Mutex<Vec<DataLoss>>,
}

impl PartitionLog {
    pub(crate) fn new(
        shared: Arc<Shared>,
        topic: Uuid,
        number: u32,
        recovered: RecoveredState,
    ) -> Arc<PartitionLog> {
        let RecoveredState {
            segments,
            next_offset,
            writer,
            unsynced_dirs,
            producers,
            raise_to: _,
            losses,
        } = recovered;
        // The written end comes from the last segment with records. An empty segment after it, with
        // a higher base, only raises the next offset.
        let full = segments
            .iter()
            .rfind(|segment| segment.end() > segment.base);
        let end = full.map_or(next_offset, |segment| segment.end());
        let synced = segments.iter().all(|segment| !segment.is_dirty());
        let synced_end = if synced { end } else { 0 };
        let mut unsynced_folders = UnsyncedFolders::default();
        unsynced_dirs
            .into_iter()
            .for_each(|dir| unsynced_folders.note(dir));
        let state = PartitionState {
            offsets: PartitionOffsets::new(end, next_offset),
            producers,
            writes: WriteQueue::default(),
            syncs: SyncQueue::default(),
            segments,
            recent: RecentBatches::default(),
            prepared: PreparedState::None,
            unsynced_folders,
            is_closed: false,
            is_deleted: false,
        };
        Arc::new(PartitionLog {
            shared,
            topic,
            number,
            dir: partition_dir(topic, number),
            segment_bytes: AtomicU64::new(PartitionOptions::default().segment_bytes),
            segment_ms: AtomicU64::new(u64::MAX),
            written_end: AtomicU64::new(end),
            synced_end: AtomicU64::new(synced_end),
            state: Mutex::new(state),
            writer: Mutex::new(writer),
            snapshot_lock: Mutex::new(()),
            unfinished_replacement: Mutex::new(None),
            prepared_lock: Mutex::new(()),
            compaction: Mutex::default(),
            listener: OnceLock::new(),
            losses: Mutex::new(losses),
        })
    }

    /// Sets options, which apply from the next append on.
    pub fn set_options(self: &Arc<Self>, options: &PartitionOptions) {
        let segment_bytes = options.segment_bytes.max(1);
        let before = self.segment_bytes.swap(segment_bytes, Ordering::Relaxed);
        if before != segment_bytes {
            self.recheck_prepared();
        }
        self.segment_ms
            .store(options.segment_ms.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Age in milliseconds from which on a segment takes no more appends; `u64::MAX`: no limit.
    pub(crate) fn segment_ms(&self) -> u64 {
        self.segment_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes.load(Ordering::Relaxed)
    }

    /// The topic that the partition belongs to.
    pub fn topic(&self) -> Uuid {
        self.topic
    }

    /// Number of the partition within its topic.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The log start offset: that of the first record that is still there, or
    /// [`PartitionLog::written_end`] if there is none. It is never above the offset that a later
    /// append gets.
    pub fn start_offset(&self) -> Offset {
        let state = self.state.lock();
        let first = state
            .segments
            .iter()
            .find(|segment| segment.end() > segment.base);
        let first = first.map_or_else(|| self.written_end(), |segment| segment.base);
        first.max(state.offsets.logical_start())
    }

    /// Offset after the last record that readers can see: all records before it were handed to the
    /// kernel. The next record may get a higher offset ([`PartitionLog::next_offset`]); the offsets
    /// between the two are never used.
    pub fn written_end(&self) -> Offset {
        self.written_end.load(Ordering::Acquire)
    }

    /// Every record below this offset is synced, except those in a segment whose sync has failed:
    /// whether those are durable is unknown, and their waiters got an error.
    pub fn synced_end(&self) -> Offset {
        self.synced_end.load(Ordering::Acquire)
    }

    /// Offset after the last record that was accepted and whose write has not failed. Records
    /// between [`PartitionLog::written_end`] and this offset are being written or will be.
    pub fn accepted_end(&self) -> Offset {
        self.state
            .lock()
            .writes
            .accepted_end()
            .max(self.written_end())
    }

    /// [`PartitionLog::written_end`], and the number of accepted records that are not written yet,
    /// both read at once. The offsets that a raise has skipped are not counted, because no record
    /// will get them.
    pub fn written_and_unwritten(&self) -> (Offset, u64) {
        let state = self.state.lock();
        let (written, accepted) = (self.written_end(), state.writes.accepted_end());
        let hole_end = Some(state.offsets.last_hole().end).filter(|end| *end <= accepted);
        let first = written.max(hole_end.unwrap_or(0));
        (written, accepted.saturating_sub(first))
    }

    /// The offset that the next record will get.
    pub fn next_offset(&self) -> Offset {
        self.state.lock().offsets.next()
    }

    /// Makes sure that no record gets an offset below `at_least`. The start calls it: durable
    /// committed offsets may be above the end of a log that lost records in a power loss, and the
    /// lost offsets must not be assigned to other records. The offsets that are skipped become a
    /// hole between two segments. [`PartitionLog::written_end`] stays where it is until the next
    /// record is written, so that readers can reach it.
    pub fn raise_next_offset(&self, at_least: Offset) {
        self.state.lock().offsets.raise(at_least);
    }

    /// The ranges of offsets without records: those between segments, and that of the last raise if
    /// it is before the first segment or after the last record. No record will ever get one of
    /// these offsets.
    pub fn holes(&self) -> Vec<Range<Offset>> {
        let state = self.state.lock();
        let first = state.segments.first().map_or(0, |segment| segment.base);
        let last_hole = state.offsets.last_hole();
        let first = last_hole.start..last_hole.end.min(first);
        let pairs = state.segments.windows(2);
        let between = pairs.map(|pair| pair[0].end()..pair[1].base);
        let last = self.written_end()..last_hole.end;
        let all = std::iter::once(first).chain(between).chain([last]);
        all.filter(|hole| !hole.is_empty()).collect()
    }

    /// Moves a reader's offset out of a hole, so that the reader's lag does not count the hole: to
    /// the first record after the hole, or to the written end if there is none. Returns all other
    /// offsets unchanged, and every offset if the partition has no segments.
    pub fn skip_hole(&self, offset: Offset) -> Offset {
        if self.state.lock().segments.is_empty() {
            return offset;
        }
        let end = self.written_end();
        // After a raise the next offset is equivalent to the written end: no record is between
        // them.
        let contains_offset = |hole: &Range<Offset>| {
            hole.contains(&offset) || (hole.start == end && hole.end == offset)
        };
        match self.holes().into_iter().find(contains_offset) {
            Some(hole) if hole.start == end => end,
            Some(hole) => hole.end,
            None => offset,
        }
    }

    /// A reader's lag at offset `from`: the number of offsets from there on that segments span.
    /// Holes between segments are not counted.
    pub fn lag_from(&self, from: Offset) -> u64 {
        let end = self.written_end();
        let state = self.state.lock();
        let from = from.max(state.offsets.logical_start());
        let within = |segment: &Arc<Segment>| {
            segment
                .end()
                .min(end)
                .saturating_sub(segment.base.max(from))
        };
        state.segments.iter().map(within).sum()
    }

    /// Sets the listener that is called when batches have become readable or could not be written.
    /// Later calls have no effect. The thread that wrote calls the listener, without a lock of the
    /// log; it may be a thread inside [`PartitionLog::append`].
    pub fn on_written(&self, listener: WrittenListener) {
        let _ = self.listener.set(listener);
    }

    /// Whether the topic was deleted, so that the partition needs no more housekeeping.
    pub(crate) fn is_deleted(&self) -> bool {
        self.state.lock().is_deleted
    }

    /// Reports the losses that recovery found, once.
    pub(crate) fn report_losses(&self) {
        for loss in std::mem::take(&mut *self.losses.lock()) {
            loss.report(&self.shared);
        }
    }

    pub(crate) fn notify_written(&self) {
        if let Some(listener) = self.listener.get() {
            listener(self.written_end());
        }
    }

    pub(crate) fn set_written_end(&self, end: Offset) {
        self.written_end.store(end, Ordering::Release);
    }

    pub(crate) fn set_synced_end(&self, end: Offset) {
        invariant!(
            end <= self.written_end(),
            "the synced end is above the written end"
        );
        self.synced_end.fetch_max(end, Ordering::AcqRel);
    }

    /// Bytes of all batches on the disk.
    pub fn size_bytes(&self) -> u64 {
        self.state
            .lock()
            .segments
            .iter()
            .map(|segment| segment.len())
            .sum()
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.state
            .lock()
            .segments
            .iter()
            .map(|segment| segment.info())
            .collect()
    }

    /// Removes batches up to offset `end` from the tail cache.
    pub(crate) fn evict_tail(&self, end: Offset) {
        self.state.lock().recent.evict(end);
    }
}

impl std::fmt::Debug for PartitionLog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "PartitionLog({}, end {})",
            self.dir,
            self.written_end()
        )
    }
}

/// The bytes that a batch counts for in the tail cache.
pub(crate) fn tail_weight(batch: &Batch) -> u64 {
    batch.bytes().len() as u64 + BATCH_OVERHEAD_BYTES
}

/// Folder of a partition, relative to the data folder.
pub(crate) fn partition_dir(topic: Uuid, number: u32) -> Arc<str> {
    format!("{}/{number}", topic_dir(topic)).into()
}

/// Folder of a topic, relative to the data folder.
pub(crate) fn topic_dir(topic: Uuid) -> String {
    format!("topics/{}", topic.hyphenated())
}

/// The state of a partition as recovery found it.
pub(crate) struct RecoveredState {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) next_offset: Offset,
    pub(crate) writer: SegmentWriter,
    pub(crate) unsynced_dirs: Vec<String>,
    pub(crate) producers: Producers,
    /// No record may get an offset below it.
    pub(crate) raise_to: Offset,
    /// Data that the files show to have existed and that is gone.
    pub(crate) losses: Vec<DataLoss>,
}

impl RecoveredState {
    /// The state of a partition without files.
    pub(crate) fn empty(shared: &Shared) -> RecoveredState {
        let options = &shared.options;
        let total = shared.producers_total.clone();
        RecoveredState {
            segments: Vec::new(),
            next_offset: 0,
            writer: SegmentWriter::default(),
            unsynced_dirs: Vec::new(),
            producers: Producers::new(options.producers_max, options.producer_expiry_ms, total),
            raise_to: 0,
            losses: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{BatchBuilder, Durability, Log, LogOptions, SimDisk};

    /// The accepted end counts batches only: neither skipped offsets nor the sealing of a segment
    /// move it.
    #[test]
    fn beginning_or_ending_a_segment_moves_no_accepted_end() {
        let options = LogOptions {
            manual: true,
            inline_writes: false,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(SimDisk::new().mount(), options).unwrap();
        let topic = Uuid::from_u128(1);
        let partition = log.partition(topic, 0, PartitionOptions::default());
        let partition = partition.unwrap();
        partition.raise_next_offset(100);
        partition.state.lock().writes.take_writer();
        assert_eq!(partition.accepted_end(), 0);
        let mut builder = BatchBuilder::with_capacity(64, 0);
        builder.push(None, Some(b"a"), &[]);
        drop(partition.append(builder.finish(), Durability::None));
        assert_eq!(partition.accepted_end(), 101);
        partition.state.lock().writes.release_writer();
        partition.write_pending();
        assert_eq!(
            (partition.accepted_end(), partition.written_end()),
            (101, 101)
        );
    }
}
