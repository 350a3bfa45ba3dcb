//! A partition: the log of one, as everybody outside the log meets it. This file alone knows which
//! type that log is.
//!
//! Readers by offset (Kafka's Fetch, the admin pages) have what is public here. Changes of a
//! partition (appends, raised ends, retention, compaction) are the broker's: others ask the
//! [`Topic`](crate::Topic), which tells its subscriptions.

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

/// How a partition is, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionStatus {
    /// As [`Partition::start_offset`].
    pub start_offset: Offset,
    /// As [`Partition::written_end`].
    pub written_end: Offset,
    /// Everything before this offset that could be synced is synced.
    pub synced_end: Offset,
    /// Bytes of its batches on the disk.
    pub stored_bytes: u64,
    /// Files that hold them.
    pub segments: usize,
}

/// Two handles are equal if they are of the same partition, opened by the same broker.
impl PartialEq for Partition {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.log, &other.log)
    }
}

impl Eq for Partition {}

/// Where it begins and ends.
impl Partition {
    /// Offset of the first record that is still there, or [`Self::written_end`] if none is. Takes
    /// the partition's lock.
    pub fn start_offset(&self) -> Offset {
        self.log.start_offset()
    }

    /// Offset after the last record that readers may see.
    pub fn written_end(&self) -> Offset {
        self.log.written_end()
    }

    /// The offset that the next record will get: after a power loss above [`Self::written_end`],
    /// and nothing will ever lie between.
    pub fn next_offset(&self) -> Offset {
        self.log.next_offset()
    }

    /// Offset after the last record that was accepted: up to there readers may see it soon.
    pub(crate) fn accepted_end(&self) -> Offset {
        self.log.accepted_end()
    }

    /// [`Self::written_end`], and how many records are accepted behind it and not written yet.
    pub(crate) fn written_and_unwritten(&self) -> (Offset, u64) {
        self.log.written_and_unwritten()
    }

    /// Ranges of offsets that hold no records and never will: a power loss or a segment that went
    /// has left them.
    pub(crate) fn holes(&self) -> Vec<Range<Offset>> {
        self.log.holes()
    }

    /// Ranges of offsets that no subscription has to wait for: those before the first segment, and
    /// holes.
    pub(crate) fn gone(&self) -> Vec<Range<Offset>> {
        let before = 0..self.log.start_offset();
        let all = std::iter::once(before).chain(self.holes());
        all.filter(|gone| !gone.is_empty()).collect()
    }

    /// The same place for a reader, named so that its distance to the end counts no hole: inside a
    /// hole that is the first record behind, or the end if there is none.
    pub fn same_place(&self, offset: Offset) -> Offset {
        self.log.same_place(offset)
    }

    /// How many offsets a reader at `from` has before it, without those of holes.
    pub fn held_from(&self, from: Offset) -> u64 {
        self.log.held_from(from)
    }

    /// Bytes of its batches on the disk.
    pub fn stored_bytes(&self) -> u64 {
        self.log.size_bytes()
    }

    /// All that people want to know of it at once.
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

    /// The topic that it belongs to.
    pub(crate) fn topic(&self) -> Uuid {
        self.log.topic()
    }

    /// Its number within the topic.
    pub fn number(&self) -> u32 {
        self.log.number()
    }
}

/// The way out.
impl Partition {
    /// Reads from `from` on: at least one batch if there is one, and else as many whole batches as
    /// fit `bytes_max`. Never waits for the disk.
    pub fn read(&self, from: Offset, bytes_max: usize) -> Read {
        self.log.read(from, bytes_max)
    }

    /// As [`Self::read`], but waits for the disk; no batch means the end.
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

    /// Whether a read from here on is served from memory that is shared, and costs no copy.
    pub fn is_in_memory(&self, from: Offset) -> bool {
        self.log.is_in_memory(from)
    }

    /// As many whole batches from `from` on as fit `bytes_max` and can be sent from their file as
    /// they lie. `None`: [`Self::read`] has to look. Never waits for the disk.
    pub fn read_stored(&self, from: Offset, bytes_max: usize) -> Option<StoredBatches> {
        self.log.read_stored(from, bytes_max)
    }

    /// Offset and timestamp of the first record that is not older than `timestamp_ms`, milliseconds
    /// since 1970. Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be opened or read.
    pub fn offset_for_timestamp(
        &self,
        timestamp_ms: i64,
    ) -> Result<Option<(Offset, i64)>, ReadError> {
        self.log.offset_for_timestamp(timestamp_ms)
    }

    /// Offset and timestamp of the record with the highest timestamp, the first of them; `None`
    /// when there is no record. Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be opened or read.
    pub fn max_timestamp(&self) -> Result<Option<(Offset, i64)>, ReadError> {
        self.log.max_timestamp()
    }

    /// The idempotent producers that it knows, in order of their ids.
    pub fn producers(&self) -> Vec<ProducerInfo> {
        self.log.producers()
    }

    /// The offsets of each of its files, oldest first.
    pub(crate) fn ranges(&self) -> Vec<Range<Offset>> {
        let segments = self.log.segments().into_iter();
        segments.map(|it| it.base..it.end).collect()
    }
}

/// The way in, for the broker alone.
impl Partition {
    /// Opens a partition of a topic; one that is open already has these options from now on.
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

    /// Appends a batch: ready when it is as durable as `class` says.
    ///
    /// # Errors
    /// As [`PartitionLog::append`].
    pub(crate) fn append(&self, batch: Batch, class: Durability) -> Result<Appended, AppendError> {
        self.log.append(batch, class)
    }

    /// As [`Self::append`], but may use the reserve of the disk.
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

    /// Sets who is told when batches have become readable; only the first call counts.
    pub(crate) fn on_written(&self, listener: WrittenListener) {
        self.log.on_written(listener);
    }

    /// Makes sure that no record gets an offset below `at_least`.
    pub(crate) fn raise_next_offset(&self, at_least: Offset) {
        self.log.raise_next_offset(at_least);
    }
}

/// The removal of records, for the broker alone.
impl Partition {
    /// Readers no longer see records before `offset`, until the next start. Blocks on the disk.
    ///
    /// # Errors
    /// A file could not be removed.
    pub(crate) fn truncate_before(&self, offset: Offset) -> Result<u64, LogError> {
        self.log.truncate_before(offset)
    }

    /// Drops what is too old or too much. Returns the bytes freed. Blocks on the disk.
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

    /// Drops what `covers` says everybody has passed. Returns the bytes freed. Blocks on the disk.
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

    /// Does what comes due while nobody appends, at `now_ms` (milliseconds since 1970): ends a file
    /// that is old enough, forgets producers that were silent for long.
    pub(crate) fn age(&self, now_ms: i64) {
        self.log.roll_aged(now_ms);
        self.log.forget_silent_producers(now_ms);
    }

    /// How much there is to compact.
    pub(crate) fn compaction_status(&self) -> CompactionStatus {
        self.log.compaction_status()
    }

    /// Does a part of a pass of compaction. Blocks on the disk.
    ///
    /// # Errors
    /// As [`PartitionLog::compact`].
    pub(crate) fn compact(&self, options: &CompactionOptions) -> Result<Compacted, LogError> {
        self.log.compact(options)
    }

    /// Gives up a pass that is not done, and its memory.
    pub(crate) fn abandon_compaction(&self) {
        self.log.abandon_compaction();
    }

    pub(crate) fn downgrade(&self) -> WeakPartition {
        WeakPartition(Arc::downgrade(&self.log))
    }
}

/// A partition that may be gone, and does not stay for its sake.
#[derive(Debug)]
pub(crate) struct WeakPartition(Weak<PartitionLog>);

impl WeakPartition {
    pub(crate) fn upgrade(&self) -> Option<Partition> {
        let log = self.0.upgrade()?;
        Some(Partition { log })
    }
}
