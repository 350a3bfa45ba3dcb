//! One segment of a partition: a file of consecutive batches, and its sparse index.
//!
//! The file `<base offset, 20 digits>.log` contains only batches. While it is active, reserved
//! space follows the batches and reads as zeros, so the file's length does not say where the
//! batches end. The end is in the footer of the index, or is found by checksums.

pub(crate) mod eviction;
pub(crate) mod files;
pub(crate) mod index;
pub(crate) mod scan;

use std::io::{ErrorKind, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::batch::{Batch, Offset};
use crate::damage::{Damage, Damages, DataLoss, REASON_MISSING};
use crate::disk::{DiskFile, OpenMode, read_full};
use crate::error::IoFailure;
use crate::segment::index::{
    INDEX_ENTRY_BYTES, INDEX_INTERVAL_BYTES, IndexContents, IndexEntry, IndexItem, decode_index,
    encode_index_item, position_before,
};
use crate::shared::Shared;

/// The stage of a segment's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentStage {
    /// Takes appends.
    Active,
    /// Takes no more appends; its index has no footer yet.
    Rolled,
    /// Synced, with a footer.
    Sealed,
}

/// A description of a segment, for other crates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Base offset, which identifies the segment.
    pub base: Offset,
    /// Offset after the last record.
    pub end: Offset,
    /// Bytes of the batches.
    pub bytes: u64,
    /// Highest timestamp of the records, in milliseconds since 1970; `i64::MIN` if there are none.
    pub max_timestamp_ms: i64,
    /// Whether it takes appends.
    pub is_active: bool,
    /// Whether it may be dropped. A segment that is neither active nor sealed is about to be
    /// sealed.
    pub is_droppable: bool,
}

/// A segment of a partition.
pub(crate) struct Segment {
    pub(crate) base: Offset,
    dir: Arc<str>,
    end: AtomicU64,
    len: AtomicU64,
    synced: AtomicU64,
    /// Bytes, from the start of the file, whose batches this process has written or has found
    /// valid.
    checked: AtomicU64,
    max_timestamp_ms: AtomicI64,
    /// Highest timestamp of the first batch, in milliseconds since 1970; `i64::MAX` while there is
    /// none.
    first_timestamp_ms: AtomicI64,
    /// When this process has created the segment, in milliseconds since 1970; `i64::MIN` if an
    /// earlier one has.
    begun_ms: i64,
    stage: AtomicU8,
    /// Whether it may contain batches of idempotent producers.
    has_producers: AtomicBool,
    /// The failure of a sync. After it the segment takes no more appends, and a later sync that
    /// succeeds proves nothing.
    poisoned: OnceLock<IoFailure>,
    file: Mutex<Option<Arc<dyn DiskFile>>>,
    file_used: AtomicBool,
    /// Whether compaction has given the names of this segment's files to another one. For readers
    /// that still use this one, the file stays open and the index stays in memory, because neither
    /// can be opened again.
    pinned: AtomicBool,
    index: Mutex<SegmentIndex>,
    /// Locked during a sync of this file: the kernel reports a failed sync only once, so a second
    /// caller must wait and see that the segment is poisoned.
    pub(crate) sync_lock: Mutex<()>,
    /// The damaged regions that readers have found.
    pub(crate) damages: Mutex<Damages>,
    /// Offset and file position at which recent sequential readers will continue.
    hints: Mutex<[(Offset, u64); 4]>,
}

#[derive(Default)]
struct SegmentIndex {
    /// `None`: not in memory.
    entries: Option<Vec<IndexEntry>>,
    /// Number of entries, from the first, that are in the index file.
    flushed: usize,
    /// Position of the newest entry.
    last_position: u64,
    used: bool,
}

/// The state of a segment as recovery found it.
pub(crate) struct SegmentState {
    pub(crate) end: Offset,
    pub(crate) len: u64,
    /// Bytes that are known to be synced.
    pub(crate) synced: u64,
    pub(crate) max_timestamp_ms: i64,
    /// Highest timestamp of the first batch, in milliseconds since 1970; `i64::MAX` for a segment
    /// that is empty or sealed.
    pub(crate) first_timestamp_ms: i64,
    /// When this process has created the segment, in milliseconds since 1970; `i64::MIN` if an
    /// earlier one has.
    pub(crate) begun_ms: i64,
    pub(crate) stage: SegmentStage,
    /// Whether it may contain batches of idempotent producers.
    pub(crate) has_producers: bool,
    /// The index entries, and the number of them that are in the index file; `None`: not in memory.
    pub(crate) entries: Option<(Vec<IndexEntry>, usize)>,
}

impl SegmentState {
    /// The state of a segment that is created at `begun_ms`, in milliseconds since 1970.
    pub(crate) fn fresh(base: Offset, begun_ms: i64) -> SegmentState {
        SegmentState {
            end: base,
            len: 0,
            synced: 0,
            max_timestamp_ms: i64::MIN,
            first_timestamp_ms: i64::MAX,
            begun_ms,
            stage: SegmentStage::Active,
            has_producers: false,
            entries: Some((Vec::new(), 0)),
        }
    }
}

impl Segment {
    pub(crate) fn new(base: Offset, dir: Arc<str>, state: SegmentState) -> Arc<Segment> {
        let mut index = SegmentIndex::default();
        if let Some((entries, flushed)) = state.entries {
            index.last_position = entries.last().map_or(0, |entry| entry.position);
            index.flushed = flushed;
            index.entries = Some(entries);
        }
        Arc::new(Segment {
            base,
            dir,
            end: AtomicU64::new(state.end),
            len: AtomicU64::new(state.len),
            synced: AtomicU64::new(state.synced),
            checked: AtomicU64::new(0),
            max_timestamp_ms: AtomicI64::new(state.max_timestamp_ms),
            first_timestamp_ms: AtomicI64::new(state.first_timestamp_ms),
            begun_ms: state.begun_ms,
            stage: AtomicU8::new(state.stage as u8),
            has_producers: AtomicBool::new(state.has_producers),
            poisoned: OnceLock::new(),
            file: Mutex::new(None),
            file_used: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            index: Mutex::new(index),
            sync_lock: Mutex::new(()),
            damages: Mutex::default(),
            hints: Mutex::new([(Offset::MAX, 0); 4]),
        })
    }

    pub(crate) fn log_path(&self) -> String {
        format!("{}/{:020}.log", self.dir, self.base)
    }

    pub(crate) fn index_path(&self) -> String {
        format!("{}/{:020}.index", self.dir, self.base)
    }

    /// Offset after the last record.
    pub(crate) fn end(&self) -> Offset {
        self.end.load(Ordering::Acquire)
    }

    /// Bytes of batches.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Bytes that are known to be durable.
    pub(crate) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    pub(crate) fn max_timestamp_ms(&self) -> i64 {
        self.max_timestamp_ms.load(Ordering::Acquire)
    }

    /// Highest timestamp of the first batch, in milliseconds since 1970; `i64::MAX` if it is not
    /// known.
    pub(crate) fn first_timestamp_ms(&self) -> i64 {
        self.first_timestamp_ms.load(Ordering::Acquire)
    }

    /// When this process has created the segment, in milliseconds since 1970; `i64::MIN` if an
    /// earlier one has.
    pub(crate) fn begun_ms(&self) -> i64 {
        self.begun_ms
    }

    pub(crate) fn stage(&self) -> SegmentStage {
        match self.stage.load(Ordering::Acquire) {
            0 => SegmentStage::Active,
            1 => SegmentStage::Rolled,
            _ => SegmentStage::Sealed,
        }
    }

    pub(crate) fn set_stage(&self, stage: SegmentStage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// Whether it may contain batches of idempotent producers.
    pub(crate) fn has_producers(&self) -> bool {
        self.has_producers.load(Ordering::Acquire)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get().is_some()
    }

    /// The failure of a sync, if there was one.
    pub(crate) fn failure(&self) -> Option<&IoFailure> {
        self.poisoned.get()
    }

    /// Notes that a sync of this file has failed.
    pub(crate) fn poison(&self, failure: &IoFailure) {
        let _ = self.poisoned.set(failure.clone());
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.synced() < self.len() && !self.is_poisoned()
    }

    /// Notes that the first `len` bytes are synced. Returns the number of bytes that were not
    /// synced before.
    pub(crate) fn note_synced(&self, len: u64) -> u64 {
        invariant!(
            len <= self.len(),
            "more of a segment is synced than is written"
        );
        len.saturating_sub(self.synced.fetch_max(len, Ordering::AcqRel))
    }

    pub(crate) fn info(&self) -> SegmentInfo {
        SegmentInfo {
            base: self.base,
            end: self.end(),
            bytes: self.len(),
            max_timestamp_ms: self.max_timestamp_ms(),
            is_active: self.stage() == SegmentStage::Active,
            is_droppable: self.is_droppable(),
        }
    }

    /// Whether retention may drop it: it is sealed, or cannot be sealed because a sync has failed.
    pub(crate) fn is_droppable(&self) -> bool {
        match self.stage() {
            SegmentStage::Active => false,
            SegmentStage::Rolled => self.is_poisoned(),
            SegmentStage::Sealed => true,
        }
    }

    /// The open file. Opens it again if it was closed to bound the number of open files.
    pub(crate) fn file(self: &Arc<Self>, shared: &Shared) -> Result<Arc<dyn DiskFile>, IoFailure> {
        let mut slot = self.file.lock();
        self.file_used.store(true, Ordering::Relaxed);
        if let Some(file) = &*slot {
            return Ok(file.clone());
        }
        let path = self.log_path();
        let opened = shared.disk.open(&path, OpenMode::Existing);
        let file = opened.map_err(|error| IoFailure::new("open", &path, &error))?;
        *slot = Some(file.clone());
        drop(slot);
        shared.open_files.admit(self, 1, Segment::close_file);
        Ok(file)
    }

    /// Takes over a file that was just created.
    pub(crate) fn set_file(self: &Arc<Self>, shared: &Shared, file: Arc<dyn DiskFile>) {
        *self.file.lock() = Some(file);
        self.file_used.store(true, Ordering::Relaxed);
        shared.open_files.admit(self, 1, Segment::close_file);
    }

    /// Closes the file to free its descriptor; returns whether it did. A file that was used since
    /// the last call stays open, and so does one with unsynced bytes, because the kernel reports a
    /// failed write-back only to descriptors that were open when it failed.
    fn close_file(&self) -> bool {
        let must_stay = self.is_dirty() || self.pinned.load(Ordering::Acquire);
        if must_stay || self.file_used.swap(false, Ordering::Relaxed) {
            return false;
        }
        // The thread that has the lock is opening or using the file.
        let Some(mut slot) = self.file.try_lock() else {
            return false;
        };
        if self.pinned.load(Ordering::Acquire) {
            return false;
        }
        *slot = None;
        true
    }

    /// Notes a batch that was written at `position`.
    pub(crate) fn note_written(&self, batch: &Batch, position: u64) {
        invariant!(
            position == self.len(),
            "a batch was not written at the end of the one before"
        );
        let mut index = self.index.lock();
        if position - index.last_position >= INDEX_INTERVAL_BYTES {
            let max_timestamp_ms = self.max_timestamp_ms();
            let entry = IndexEntry {
                offset: batch.base_offset(),
                position,
                max_timestamp_ms,
            };
            index.entries.get_or_insert_default().push(entry);
            index.last_position = position;
        }
        drop(index);
        if batch.producer_id() >= 0 {
            self.has_producers.store(true, Ordering::Release);
        }
        if position == 0 {
            self.first_timestamp_ms
                .store(batch.max_timestamp_ms(), Ordering::Release);
        }
        self.max_timestamp_ms
            .fetch_max(batch.max_timestamp_ms(), Ordering::AcqRel);
        self.end.store(batch.end_offset(), Ordering::Release);
        let len = position + batch.bytes().len() as u64;
        self.len.store(len, Ordering::Release);
        self.note_checked(position, len);
    }

    /// Notes that the batches in the bytes `position..end` are valid.
    pub(crate) fn note_checked(&self, position: u64, end: u64) {
        // `checked` is a single watermark, so it moves only if all bytes before `position` are
        // checked.
        if position <= self.checked.load(Ordering::Acquire) {
            self.checked.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Notes that the bytes from `position` on must be verified again.
    pub(crate) fn note_unchecked_from(&self, position: u64) {
        self.checked.fetch_min(position, Ordering::AcqRel);
    }

    /// Bytes, from the start of the file, whose batches are known to be valid.
    pub(crate) fn checked_bytes(&self) -> u64 {
        self.checked.load(Ordering::Acquire)
    }

    /// The position from which to search for an offset; `None` if the index must be read from the
    /// disk.
    pub(crate) fn position_of(&self, offset: Offset) -> Option<u64> {
        let by_index = || self.with_index(|entries| position_before(entries, offset));
        self.hint(offset).or_else(by_index)
    }

    /// Runs `work` on the index entries if they are in memory.
    pub(crate) fn with_index<T>(&self, work: impl FnOnce(&[IndexEntry]) -> T) -> Option<T> {
        let mut index = self.index.lock();
        index.used = true;
        index.entries.as_deref().map(work)
    }

    /// Loads the index of a sealed segment into memory.
    pub(crate) fn load_index(self: &Arc<Self>, shared: &Shared) {
        if self.with_index(|_| ()).is_some() {
            return;
        }
        let contents = read_index(shared, &self.index_path(), self.base);
        let len = self.len();
        let mut entries = contents.entries;
        entries.retain(|entry| entry.position <= len);
        let mut index = self.index.lock();
        if index.entries.is_none() {
            index.flushed = entries.len();
            index.last_position = entries.last().map_or(0, |entry| entry.position);
            index.entries = Some(entries);
            drop(index);
            self.admit_index(shared);
        }
    }

    /// Adds the index of a sealed segment to those that may be evicted from memory.
    pub(crate) fn admit_index(self: &Arc<Self>, shared: &Shared) {
        let entries = self.with_index(<[IndexEntry]>::len).unwrap_or(0);
        let weight = (entries * size_of::<IndexEntry>()) as u64 + 64;
        shared.indexes.admit(self, weight, Segment::drop_index);
    }

    fn drop_index(&self) -> bool {
        let Some(mut index) = self.index.try_lock() else {
            return false;
        };
        let must_stay = self.stage() != SegmentStage::Sealed || self.pinned.load(Ordering::Acquire);
        if must_stay || std::mem::take(&mut index.used) {
            return false;
        }
        index.entries = None;
        true
    }

    /// Keeps the file open and the index in memory from now on, because compaction gives their
    /// names to another segment.
    pub(crate) fn pin(self: &Arc<Self>, shared: &Shared) -> Result<(), IoFailure> {
        self.pinned.store(true, Ordering::Release);
        self.load_index(shared);
        self.file(shared).map(drop)
    }

    /// Appends to the index file the entries up to the synced position of the log, and then the
    /// item for `final_item`. Syncs the index file only for a footer. Returns whether anything was
    /// written.
    pub(crate) fn flush_index(
        &self,
        shared: &Shared,
        final_item: FinalIndexItem,
    ) -> Result<bool, IoFailure> {
        let mut index = self.index.lock();
        let synced = self.synced();
        let end = IndexEntry {
            offset: self.end(),
            position: self.len(),
            max_timestamp_ms: self.max_timestamp_ms(),
        };
        if final_item == FinalIndexItem::End
            && synced >= end.position
            && end.position > index.last_position
        {
            index.entries.get_or_insert_default().push(end);
            index.last_position = end.position;
        }
        let flushed = index.flushed;
        let entries = index.entries.as_deref().unwrap_or_default();
        let due = entries
            .partition_point(|entry| entry.position <= synced)
            .max(flushed);
        // Read after the length, so that the flag takes account of all batches within the length.
        let has_producers = self.has_producers();
        let mut bytes = Vec::with_capacity((due - flushed + 1) * INDEX_ENTRY_BYTES);
        for entry in entries.get(flushed..due).unwrap_or_default() {
            let item = IndexItem::Entry(*entry);
            bytes.extend_from_slice(&encode_index_item(self.base, item, has_producers));
        }
        if final_item == FinalIndexItem::Footer {
            let item = IndexItem::Footer(end);
            bytes.extend_from_slice(&encode_index_item(self.base, item, has_producers));
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        let path = self.index_path();
        let fail = |error| IoFailure::new("write to", &path, &error);
        let file = shared
            .disk
            .open(&path, OpenMode::OpenOrCreate)
            .map_err(fail)?;
        let position = (flushed * INDEX_ENTRY_BYTES) as u64;
        file.write_all_at(&[IoSlice::new(&bytes)], position)
            .map_err(fail)?;
        if final_item == FinalIndexItem::Footer {
            file.set_len(position + bytes.len() as u64).map_err(fail)?;
            file.sync_data().map_err(fail)?;
        }
        index.flushed = due;
        Ok(true)
    }

    /// The position of this offset, if a recent reader has left a hint.
    pub(crate) fn hint(&self, offset: Offset) -> Option<u64> {
        let hints = self.hints.lock();
        hints
            .iter()
            .find(|(at, _)| *at == offset)
            .map(|(_, position)| *position)
    }

    /// Remembers the position of `offset` for the next read of a sequential reader.
    pub(crate) fn set_hint(&self, offset: Offset, position: u64) {
        let mut hints = self.hints.lock();
        hints.rotate_right(1);
        hints[0] = (offset, position);
    }

    /// The position after the damaged region at `position`, if it is known.
    pub(crate) fn end_of_damage(&self, position: u64) -> Option<u64> {
        match self.damages.lock().range(..=position).next_back() {
            Some((_, Damage::UpTo(next))) if *next > position => Some(*next),
            _ => None,
        }
    }

    /// Reports, once, that the segment's file is missing.
    pub(crate) fn report_missing(&self, shared: &Shared) {
        let whole = Damage::UpTo(self.len());
        if self.damages.lock().insert(0, whole) != Some(whole) {
            let loss = DataLoss {
                file: self.log_path(),
                position: 0,
                bytes: self.len(),
                reason: REASON_MISSING.to_owned(),
                offsets: Some(self.base..self.end()),
            };
            loss.report(shared);
        }
    }

    /// Notes a damaged region that begins at `position`.
    pub(crate) fn note_damage(&self, position: u64, damage: Damage) {
        self.damages.lock().insert(position, damage);
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Segment({})", self.log_path())
    }
}

/// The last item that [`Segment::flush_index`] writes, in addition to the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinalIndexItem {
    /// No item.
    None,
    /// An entry at the end of the batches, so that the next start has nothing to scan.
    End,
    /// The footer: the segment is sealed.
    Footer,
}

/// Creates an empty index file if there is none. Returns whether it created one. If the segment's
/// log file is lost, the index file is the evidence that there was a segment. Nothing else needs it
/// before its first entry, so a failure is only logged.
pub(crate) fn create_index(shared: &Shared, path: &str) -> bool {
    match shared.disk.open(path, OpenMode::CreateNew) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => {
            tracing::warn!(file = %path, %error, "no index file; its first entry will create it");
            false
        }
    }
}

/// Reads an index file. A missing or unreadable file counts as empty.
pub(crate) fn read_index(shared: &Shared, path: &str, base: Offset) -> IndexContents {
    let Ok(file) = shared.disk.open(path, OpenMode::Existing) else {
        return IndexContents::default();
    };
    let len = file.len().unwrap_or(0).min(INDEX_FILE_BYTES_MAX);
    let mut bytes = vec![0; len as usize];
    match read_full(&*file, &mut bytes, 0) {
        Ok(count) => decode_index(base, &bytes[..count]),
        Err(_) => IndexContents::default(),
    }
}

/// Maximum bytes of an index file that are read: enough for a segment of 64 GiB.
const INDEX_FILE_BYTES_MAX: u64 = 64 << 20;
