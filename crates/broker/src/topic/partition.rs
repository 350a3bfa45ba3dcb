//! A partition of a topic. Only this file knows the type of the log behind it.
//!
//! Readers by offset (Kafka's Fetch, the admin pages) use the public methods. Changes (appends,
//! raised ends, retention, compaction) are private to the broker: other crates go through
//! [`Topic`](crate::Topic), which notifies its subscriptions.

use std::ops::Range;
use std::sync::{Arc, Weak};

use cloverleaf_log::{
    AppendError, Appended, Batch, Compacted, CompactionOptions, CompactionStatus, Durability, Log,
    LogError, Offset, PartitionLog, PartitionOptions, ProducerInfo, Read, ReadError, StoredBatches,
    WrittenListener,
};
use uuid::Uuid;

/// One partition of a topic; a clone is the same partition.
#[derive(Clone, Debug)]
pub struct Partition {
    log: Arc<PartitionLog>,
}

/// The status of a partition, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionStatus {
    /// As [`Partition::start_offset`].
    pub start_offset: Offset,
    /// As [`Partition::written_end`].
    pub written_end: Offset,
    /// Everything below this offset is synced, except records in a segment whose sync has failed.
    pub synced_end: Offset,
    /// Bytes of its batches on disk.
    pub stored_bytes: u64,
    /// The number of its segment files.
    pub segments: usize,
}

/// Two handles are equal if they refer to the same partition, opened by the same broker.
impl PartialEq for Partition {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.log, &other.log)
    }
}

impl Eq for Partition {}

/// Where the partition begins and ends.
impl Partition {
    /// Offset of the first record that the log still has, or [`Self::written_end`] if it has none.
    /// Takes the partition's lock.
    pub fn start_offset(&self) -> Offset {
        self.log.start_offset()
    }

    /// The offset after the last record that readers may see.
    pub fn written_end(&self) -> Offset {
        self.log.written_end()
    }

    /// The offset of the next record. After a power loss it is above [`Self::written_end`], and the
    /// offsets between stay empty forever.
    pub fn next_offset(&self) -> Offset {
        self.log.next_offset()
    }

    /// The offset after the last accepted record. Records up to there become readable once they are
    /// written.
    pub(crate) fn accepted_end(&self) -> Offset {
        self.log.accepted_end()
    }

    /// [`Self::written_end`], and the number of accepted records that are not written yet.
    pub(crate) fn written_and_unwritten(&self) -> (Offset, u64) {
        self.log.written_and_unwritten()
    }

    /// Ranges of offsets without records, which stay empty forever: the result of a power loss or
    /// of a lost segment.
    pub(crate) fn holes(&self) -> Vec<Range<Offset>> {
        self.log.holes()
    }

    /// Ranges of offsets without readable records, which subscriptions must step over: those before
    /// the start offset, and holes.
    pub(crate) fn gone(&self) -> Vec<Range<Offset>> {
        let before = 0..self.log.start_offset();
        let all = std::iter::once(before).chain(self.holes());
        all.filter(|gone| !gone.is_empty()).collect()
    }

    /// Moves a reader's offset out of a hole, so that its lag does not count the hole: to the first
    /// record after the hole, or to the end if there is none. Other offsets are unchanged.
    pub fn skip_hole(&self, offset: Offset) -> Offset {
        self.log.skip_hole(offset)
    }

    /// A reader's lag at `from`: how many offsets follow, without holes.
    pub fn lag_from(&self, from: Offset) -> u64 {
        self.log.lag_from(from)
    }

    /// Bytes of its batches on disk.
    pub fn stored_bytes(&self) -> u64 {
        self.log.size_bytes()
    }

    /// Its status in one value, for display.
    pub fn status(&self) -> PartitionStatus {
        let segments = self.log.segments();
        PartitionStatus {
            start_offset: self.log.start_offset(),
            written_end: self.log.written_end(),
            synced_end: self.log.synced_end(),
            stored_bytes: segments.iter().map(|it| it.bytes).sum(),
            segments: segments.len(),
        }
    }

    /// The id of its topic.
    pub(crate) fn topic(&self) -> Uuid {
        self.log.topic()
    }

    /// Its number within the topic.
    pub fn number(&self) -> u32 {
        self.log.number()
    }
}

/// Reads.
impl Partition {
    /// Reads from `from` on: as many whole batches as fit `bytes_max`, but at least one if there is
    /// one. Never waits for the disk.
    pub fn read(&self, from: Offset, bytes_max: usize) -> Read {
        self.log.read(from, bytes_max)
    }

    /// As [`Self::read`], but waits for the disk. An empty result means the end.
    ///
    /// # Errors
    /// A file could not be read, or the log was closed.
    pub(crate) fn read_waiting(
        &self,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Batch>, ReadError> {
        self.log.read_waiting(from, bytes_max)
    }

    /// Whether a read at `from` is served from shared memory, without a copy.
    pub fn is_in_memory(&self, from: Offset) -> bool {
        self.log.is_in_memory(from)
    }

    /// As many whole batches from `from` on as fit `bytes_max` and can be sent straight from their
    /// file. `None`: the caller must use [`Self::read`]. Never waits for the disk.
    pub fn read_stored(&self, from: Offset, bytes_max: usize) -> Option<StoredBatches> {
        self.log.read_stored(from, bytes_max)
    }

    /// Offset and timestamp of the first record at or after `timestamp_ms`, milliseconds since
    /// 1970. Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be opened or read.
    pub fn offset_for_timestamp(
        &self,
        timestamp_ms: i64,
    ) -> Result<Option<(Offset, i64)>, ReadError> {
        self.log.offset_for_timestamp(timestamp_ms)
    }

    /// Offset and timestamp of the first record with the highest timestamp; `None` if there is no
    /// record. Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be opened or read.
    pub fn max_timestamp(&self) -> Result<Option<(Offset, i64)>, ReadError> {
        self.log.max_timestamp()
    }

    /// The state of its idempotent producers, in order of their ids.
    pub fn producers(&self) -> Vec<ProducerInfo> {
        self.log.producers()
    }

    /// The range of offsets of each of its segments, oldest first.
    pub(crate) fn ranges(&self) -> Vec<Range<Offset>> {
        let segments = self.log.segments().into_iter();
        segments.map(|it| it.base..it.end).collect()
    }
}

/// Writes, for the broker only.
impl Partition {
    /// Opens a partition of a topic. A partition that is open already gets these options.
    ///
    /// # Errors
    /// The log is closed.
    pub(crate) fn open(
        log: &Log,
        topic: Uuid,
        number: u32,
        options: PartitionOptions,
    ) -> Result<Self, LogError> {
        let log = log.partition(topic, number, options)?;
        Ok(Self { log })
    }

    /// Appends a batch. The result resolves when the batch is as durable as `class` says.
    ///
    /// # Errors
    /// As [`PartitionLog::append`].
    pub(crate) fn append(&self, batch: Batch, class: Durability) -> Result<Appended, AppendError> {
        self.log.append(batch, class)
    }

    /// As [`Self::append`], but may use the disk's reserve.
    ///
    /// # Errors
    /// As [`PartitionLog::append`].
    pub(crate) fn append_internal(
        &self,
        batch: Batch,
        class: Durability,
    ) -> Result<Appended, AppendError> {
        self.log.append_internal(batch, class)
    }

    /// Sets the listener that is called when batches become readable. Only the first call counts.
    pub(crate) fn on_written(&self, listener: WrittenListener) {
        self.log.on_written(listener);
    }

    /// Ensures that no record gets an offset below `at_least`.
    pub(crate) fn raise_next_offset(&self, at_least: Offset) {
        self.log.raise_next_offset(at_least);
    }
}

/// Removal of records, for the broker only.
impl Partition {
    /// Raises the start offset to `offset`, and deletes the segments wholly below it. Returns the
    /// bytes freed. The log does not persist the start offset: the caller writes it to the journal.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be removed.
    pub(crate) fn truncate_before(&self, offset: Offset) -> Result<u64, LogError> {
        self.log.truncate_before(offset)
    }

    /// Deletes segments that exceed the age or size limit. Returns the bytes freed. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// As [`PartitionLog::retain`].
    pub(crate) fn retain(
        &self,
        older_than_ms: Option<i64>,
        bytes_max: Option<u64>,
    ) -> Result<u64, LogError> {
        self.log.retain(older_than_ms, bytes_max)
    }

    /// Deletes segments that everyone has consumed, as `covers` reports. Returns the bytes freed.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// As [`PartitionLog::drop_covered`].
    pub(crate) fn drop_covered(
        &self,
        kept_since_ms: Option<i64>,
        covers: impl FnMut(Range<Offset>) -> bool,
    ) -> Result<u64, LogError> {
        self.log.drop_covered(kept_since_ms, covers)
    }

    /// Does what is due without an append, at `now_ms` (milliseconds since 1970): rolls a segment
    /// that is old enough and forgets producers that have been idle for long.
    pub(crate) fn age(&self, now_ms: i64) {
        self.log.roll_aged(now_ms);
        self.log.forget_silent_producers(now_ms);
    }

    /// How much there is to compact.
    pub(crate) fn compaction_status(&self) -> CompactionStatus {
        self.log.compaction_status()
    }

    /// Does one step of a compaction pass. Blocks on the disk.
    ///
    /// # Errors
    /// As [`PartitionLog::compact`].
    pub(crate) fn compact(&self, options: &CompactionOptions) -> Result<Compacted, LogError> {
        self.log.compact(options)
    }

    /// Abandons an unfinished compaction pass and frees its memory.
    pub(crate) fn abandon_compaction(&self) {
        self.log.abandon_compaction();
    }

    pub(crate) fn downgrade(&self) -> WeakPartition {
        WeakPartition(Arc::downgrade(&self.log))
    }
}

/// A weak handle to a partition: it does not keep the partition open.
#[derive(Debug)]
pub(crate) struct WeakPartition(Weak<PartitionLog>);

impl WeakPartition {
    pub(crate) fn upgrade(&self) -> Option<Partition> {
        let log = self.0.upgrade()?;
        Some(Partition { log })
    }
}
