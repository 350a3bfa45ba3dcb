//! Compaction: keeps the newest record of each key.
//!
//! A *pass* has two halves, as in Kafka's log cleaner. First, the keys of the *dirty* segments
//! (those sealed since the last pass) go into a bounded map from key to newest offset. If the map
//! fills up, the pass covers only the records in the map, and the next pass continues after them.
//! Then all sealed segments up to that point are rewritten without the records that the map
//! supersedes, and small neighbours are merged. Each call does a bounded part of a pass.
//!
//! The active segment is not compacted, nor is the newest one if none is active: its end offset
//! proves which offsets were assigned. Records keep their offsets, batches keep their headers, and
//! the last batch of each idempotent producer is kept even if it has no records left.
//! `compaction/filter.rs` decides which records are kept, `compaction/files.rs` replaces the files.

pub(crate) mod files;
pub(crate) mod filter;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::batch::{Batch, Codec, Offset};
use crate::compaction::files::{CleanWriter, CompactionCheckpoint};
use crate::compaction::filter::{
    FilterCounts, KeptRecords, OffsetMap, RecordFilter, compress_kept, is_walkable,
};
use crate::error::{IoFailure, LogError, ReadError};
use crate::partition::PartitionLog;
use crate::reader::wait_for_small;
use crate::segment::{Segment, SegmentStage};

/// A batch may grow up to this many bytes when it is recompressed with another codec: readers fetch
/// a batch whole, and by default at most this many bytes at once.
const RECOMPRESSED_BYTES_MAX: usize = 1 << 20;

/// Options of one call of [`PartitionLog::compact`].
#[derive(Clone, Debug)]
pub struct CompactionOptions {
    /// The current time, in milliseconds since 1970.
    pub now_ms: i64,
    /// A tombstone is kept for this many milliseconds after the pass that first finds it (Kafka's
    /// `delete.retention.ms`).
    pub delete_retention_ms: u64,
    /// Segments with records younger than this many milliseconds, and all later segments, are not
    /// compacted (Kafka's `min.compaction.lag.ms`).
    pub min_lag_ms: u64,
    /// Maximum memory for the keys of one pass, in bytes. It is freed when the pass is done.
    pub map_bytes_max: usize,
    /// A compressed batch that inflates to more bytes than this is kept as it is.
    pub inflated_bytes_max: usize,
    /// The codec of the batches in rewritten segments; `None`: each batch keeps its own. A batch
    /// that would grow too much keeps its own codec.
    pub codec: Option<Codec>,
    /// A call ends once it has processed this many bytes of segments, but not before it has
    /// finished one run (neighbouring segments that are merged into one).
    pub work_bytes_max: u64,
    /// Set it to end a call early. The next call repeats the run that was not finished.
    pub stop: Arc<AtomicBool>,
}

impl Default for CompactionOptions {
    fn default() -> CompactionOptions {
        CompactionOptions {
            now_ms: 0,
            delete_retention_ms: 24 * 3_600_000,
            min_lag_ms: 0,
            map_bytes_max: 16 << 20,
            inflated_bytes_max: 64 << 20,
            codec: None,
            work_bytes_max: 256 << 20,
            stop: Arc::default(),
        }
    }
}

/// The result of a call of [`PartitionLog::compact`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of batches that were removed.
    pub bytes_freed: u64,
    /// Number of records that were removed.
    pub records_removed: u64,
    /// Number of records without a key in the segments that were dirty. They are kept.
    pub records_without_key: u64,
    /// Number of batches that were kept as they are because they cannot be inflated or filtered.
    pub batches_skipped: u64,
    /// Whether nothing is left to compact at the moment.
    pub is_done: bool,
    /// Whether a pass is unfinished: the next call continues it, and its keys stay in memory until
    /// then.
    pub has_unfinished_pass: bool,
}

/// The clean and the dirty part of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStatus {
    /// Bytes of segments that were compacted: among them no key has two records.
    pub clean_bytes: u64,
    /// Bytes of sealed segments that were not compacted yet.
    pub dirty_bytes: u64,
    /// Highest timestamp in the first dirty segment, in milliseconds since 1970; `None` if there is
    /// none.
    pub dirty_from_ms: Option<i64>,
    /// The earliest delete horizon of a tombstone in the clean part, in milliseconds since 1970;
    /// `None` if there is none.
    pub horizon_ms: Option<i64>,
}

/// The compaction state of a partition.
#[derive(Default)]
pub(crate) struct CompactionState {
    /// `None` until it is read from the disk.
    checkpoint: Option<CompactionCheckpoint>,
    pass: Option<CompactionPass>,
}

/// An unfinished pass.
struct CompactionPass {
    map: OffsetMap,
    /// The pass began here: earlier passes have covered the records before this offset.
    from: Offset,
    /// This pass is done with the segments before this offset.
    done_to: Offset,
    /// The earliest delete horizon of the tombstones that this pass has kept, in milliseconds since
    /// 1970.
    horizon_ms: Option<i64>,
    /// Some batch before `done_to` could not be read and may contain older records of any key. So
    /// this pass removes no tombstone after it.
    has_unreadable: bool,
}

/// The reason why a call ends early.
enum EarlyEnd {
    /// The caller has set [`CompactionOptions::stop`].
    Stopped,
    /// The partition is closed, or the log is being closed.
    Closed,
    Failed(IoFailure),
}

impl From<ReadError> for EarlyEnd {
    fn from(error: ReadError) -> EarlyEnd {
        match error {
            ReadError::Failed(failure) => EarlyEnd::Failed(failure),
            ReadError::Closed => EarlyEnd::Closed,
        }
    }
}

impl From<IoFailure> for EarlyEnd {
    fn from(failure: IoFailure) -> EarlyEnd {
        EarlyEnd::Failed(failure)
    }
}

impl PartitionLog {
    /// Does a part of a compaction pass. Call it again until [`Compacted::is_done`]. Blocks on the
    /// disk, to process about [`CompactionOptions::work_bytes_max`].
    ///
    /// # Errors
    /// A file could not be read, written or renamed. Nothing is lost, and the next call begins a
    /// new pass. [`LogError::Closed`]: the log or the topic was closed meanwhile.
    pub fn compact(self: &Arc<Self>, options: &CompactionOptions) -> Result<Compacted, LogError> {
        let mut compaction = self.compaction.lock();
        if !self.is_closed() {
            // An unfinished replacement still has `.clean` files, and this call creates files with
            // the same names.
            self.finish_replacement(&mut self.unfinished_replacement.lock())?;
        }
        let mut done = Compacted::default();
        match self.run_compaction(&mut compaction, options, &mut done) {
            Ok(()) => Ok(done),
            Err(EarlyEnd::Stopped) => Ok(done),
            Err(EarlyEnd::Closed) => Err(LogError::Closed),
            Err(EarlyEnd::Failed(failure)) => {
                compaction.pass = None;
                if self.is_closed() {
                    return Err(LogError::Closed);
                }
                Err(failure.into())
            }
        }
    }

    /// The clean and dirty bytes, from which the caller decides whether to compact. Waits while a
    /// call of [`PartitionLog::compact`] runs. If the checkpoint cannot be read, reports that
    /// nothing is dirty.
    pub fn compaction_status(self: &Arc<Self>) -> CompactionStatus {
        let Ok(checkpoint) = self.compaction.lock().checkpoint(self) else {
            return CompactionStatus::default();
        };
        let mut status = CompactionStatus {
            horizon_ms: checkpoint.horizon_ms,
            ..CompactionStatus::default()
        };
        for segment in self.compactable_segments() {
            if segment.end() <= checkpoint.clean_end {
                status.clean_bytes += segment.len();
            } else {
                status.dirty_bytes += segment.len();
                let from_ms = || segment.max_timestamp_ms();
                status.dirty_from_ms.get_or_insert_with(from_ms);
            }
        }
        status
    }

    /// Drops the unfinished pass and frees its memory. Segments that it has rewritten stay
    /// rewritten. Waits while a call of [`PartitionLog::compact`] runs.
    pub fn abandon_compaction(&self) {
        self.compaction.lock().pass = None;
    }

    /// Waits until no call of [`PartitionLog::compact`] runs. Precondition: the partition is
    /// closed, so that none begins.
    pub(crate) fn wait_for_compaction(&self) {
        drop(self.compaction.lock());
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    fn check_stop(&self, options: &CompactionOptions) -> Result<(), EarlyEnd> {
        if self.is_closed() {
            return Err(EarlyEnd::Closed);
        }
        if options.stop.load(Ordering::Relaxed) {
            return Err(EarlyEnd::Stopped);
        }
        Ok(())
    }

    /// The sealed segments from the oldest on, without the newest segment.
    fn compactable_segments(&self) -> Vec<Arc<Segment>> {
        let state = self.state.lock();
        let but_newest = state.segments.len().saturating_sub(1);
        let segments = state.segments[..but_newest].iter();
        let sealed = segments.take_while(|segment| segment.stage() == SegmentStage::Sealed);
        sealed.cloned().collect()
    }

    fn run_compaction(
        self: &Arc<Self>,
        compaction: &mut CompactionState,
        options: &CompactionOptions,
        done: &mut Compacted,
    ) -> Result<(), EarlyEnd> {
        let checkpoint = compaction.checkpoint(self)?;
        if compaction.pass.is_none() {
            compaction.pass = self.begin_pass(checkpoint, options)?;
        }
        let Some(pass) = &mut compaction.pass else {
            done.is_done = true;
            return Ok(());
        };
        let mut work = 0;
        loop {
            self.check_stop(options)?;
            let run = self.next_run(pass);
            let Some(last) = run.last() else {
                break;
            };
            if work >= options.work_bytes_max {
                done.has_unfinished_pass = true;
                return Ok(());
            }
            work += run.iter().map(|segment| segment.len()).sum::<u64>();
            let end = last.end();
            self.clean_run(pass, &run, options, done)?;
            pass.done_to = end;
        }
        let checkpoint = CompactionCheckpoint {
            clean_end: pass.map.end,
            horizon_ms: pass.horizon_ms,
        };
        compaction.pass = None;
        compaction.checkpoint = Some(checkpoint);
        checkpoint.save(&self.shared, &self.dir)?;
        done.is_done = self.dirty_segments(checkpoint, options).is_empty();
        Ok(())
    }

    /// The segments that no pass has covered and that are older than `min_lag_ms`.
    fn dirty_segments(
        &self,
        checkpoint: CompactionCheckpoint,
        options: &CompactionOptions,
    ) -> Vec<Arc<Segment>> {
        let lag_ms = i64::try_from(options.min_lag_ms).unwrap_or(i64::MAX);
        let newest_ms = options.now_ms.saturating_sub(lag_ms);
        let is_old = |segment: &Arc<Segment>| {
            options.min_lag_ms == 0 || segment.max_timestamp_ms() <= newest_ms
        };
        let segments = self.compactable_segments().into_iter();
        let dirty_segments = segments.skip_while(|segment| segment.end() <= checkpoint.clean_end);
        dirty_segments.take_while(is_old).collect()
    }

    /// Collects the keys of the dirty segments; `None` if there is nothing to do.
    fn begin_pass(
        self: &Arc<Self>,
        checkpoint: CompactionCheckpoint,
        options: &CompactionOptions,
    ) -> Result<Option<CompactionPass>, EarlyEnd> {
        let dirty_segments = self.dirty_segments(checkpoint, options);
        let is_due = checkpoint
            .horizon_ms
            .is_some_and(|due| due <= options.now_ms);
        if dirty_segments.is_empty() && !is_due {
            return Ok(None);
        }
        let mut map = OffsetMap::new(options.map_bytes_max, checkpoint.clean_end);
        'segments: for segment in &dirty_segments {
            let mut from = segment.base.max(checkpoint.clean_end);
            loop {
                self.check_stop(options)?;
                let batches = self.read_segment_waiting(segment, from)?;
                if batches.is_empty() {
                    break;
                }
                for batch in batches {
                    if map.is_full_for(&batch) {
                        break 'segments;
                    }
                    // A batch that cannot be inflated is kept as it is, and supersedes no other
                    // record.
                    if let Ok(inflated) = batch.inflate(options.inflated_bytes_max) {
                        let _ = map.add(&inflated);
                    }
                    from = batch.end_offset();
                    map.end = from;
                }
            }
            map.end = segment.end();
        }
        Ok(Some(CompactionPass {
            map,
            from: checkpoint.clean_end,
            done_to: 0,
            horizon_ms: None,
            has_unreadable: false,
        }))
    }

    /// The next run: neighbouring segments that together fit into one.
    fn next_run(&self, pass: &CompactionPass) -> Vec<Arc<Segment>> {
        let limit = self.segment_bytes();
        let mut bytes = 0;
        let segments = self.compactable_segments().into_iter();
        segments
            .filter(|segment| segment.base >= pass.done_to && segment.base < pass.map.end)
            .take_while(|segment| {
                let first = bytes == 0;
                bytes += segment.len();
                first || bytes <= limit
            })
            .collect()
    }

    /// Rewrites a run of segments, if that changes anything.
    fn clean_run(
        self: &Arc<Self>,
        pass: &mut CompactionPass,
        run: &[Arc<Segment>],
        options: &CompactionOptions,
        done: &mut Compacted,
    ) -> Result<(), EarlyEnd> {
        let Some(first) = run.first() else {
            return Ok(());
        };
        let before: u64 = run.iter().map(|segment| segment.len()).sum();
        self.check_free_space(before)?;
        for segment in run {
            self.load_index(segment)?;
        }
        let mut writer = CleanWriter::create(&self.shared, first)?;
        let mut cleaner = BatchCleaner {
            pass,
            options,
            last_batch_of_producer: self.last_batches_of_producers(),
            counts: FilterCounts::default(),
            without_key: 0,
            skipped: 0,
            is_changed: run.len() > 1,
        };
        let outcome = self.copy_run(run, &mut writer, &mut cleaner);
        let BatchCleaner {
            counts,
            without_key,
            skipped,
            is_changed,
            ..
        } = cleaner;
        // A batch that cannot be read now may be readable later. A rewrite of its segment would
        // lose it.
        let is_corrupt = run.iter().any(|segment| !segment.damages.lock().is_empty());
        if outcome.is_err() || is_corrupt || !is_changed {
            writer.discard(&self.shared);
        }
        outcome?;
        let horizons = [pass.horizon_ms, counts.horizon_ms];
        pass.horizon_ms = horizons.into_iter().flatten().min();
        done.records_without_key += without_key;
        done.batches_skipped += skipped;
        pass.has_unreadable |= is_corrupt || skipped > 0;
        if is_corrupt || !is_changed {
            return Ok(());
        }
        let after = writer.len;
        if after == 0 {
            writer.discard(&self.shared);
            let bases: Vec<Offset> = run.iter().map(|segment| segment.base).collect();
            match self.drop_segments(&bases) {
                Ok(_) => {}
                Err(LogError::Io(failure)) => return Err(failure.into()),
                Err(LogError::Closed) => return Err(EarlyEnd::Closed),
            }
        } else if !self.replace_segments(run, writer)? {
            return Ok(());
        }
        done.records_removed += counts.removed;
        done.bytes_freed += before.saturating_sub(after);
        Ok(())
    }

    fn copy_run(
        self: &Arc<Self>,
        run: &[Arc<Segment>],
        writer: &mut CleanWriter,
        cleaner: &mut BatchCleaner<'_>,
    ) -> Result<(), EarlyEnd> {
        for segment in run {
            let mut from = segment.base;
            loop {
                self.check_stop(cleaner.options)?;
                let batches = self.read_segment_waiting(segment, from)?;
                if batches.is_empty() {
                    break;
                }
                for batch in batches {
                    from = batch.end_offset();
                    if let Some(kept) = cleaner.clean(batch) {
                        writer.push(&kept)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that the disk has free space for the new file in addition to the old ones, without
    /// using its reserve.
    fn check_free_space(&self, bytes: u64) -> Result<(), IoFailure> {
        let reserve = self.shared.options.disk_free_bytes_min;
        let free = self.shared.disk.free_bytes().unwrap_or(u64::MAX);
        if free < reserve.saturating_add(bytes) {
            let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(IoFailure::new("compact", &self.dir, &error));
        }
        Ok(())
    }

    /// The base offset of the last batch of each idempotent producer.
    fn last_batches_of_producers(&self) -> HashMap<i64, Offset> {
        let state = self.state.lock();
        let last = state.producers.iter();
        last.filter_map(|(id, producer)| Some((id, producer.batches.back()?.base)))
            .collect()
    }
}

impl CompactionState {
    fn checkpoint(&mut self, partition: &PartitionLog) -> Result<CompactionCheckpoint, ReadError> {
        if let Some(checkpoint) = self.checkpoint {
            return Ok(checkpoint);
        }
        let (disk, dir) = (partition.shared.disk.clone(), partition.dir.clone());
        let load = move || CompactionCheckpoint::load(&*disk, &dir);
        let found = wait_for_small(
            &partition.shared,
            CompactionCheckpoint::path(&partition.dir),
            load,
        )?;
        Ok(*self.checkpoint.insert(found))
    }
}

/// Cleans the batches of a run.
struct BatchCleaner<'a> {
    pass: &'a CompactionPass,
    options: &'a CompactionOptions,
    last_batch_of_producer: HashMap<i64, Offset>,
    counts: FilterCounts,
    without_key: u64,
    skipped: u64,
    is_changed: bool,
}

impl BatchCleaner<'_> {
    /// Removes superseded records from a batch. Returns the batch to keep, if any.
    fn clean(&mut self, batch: Batch) -> Option<Batch> {
        if batch.is_control() {
            return Some(batch);
        }
        let last = self.last_batch_of_producer.get(&batch.producer_id());
        let keeps_empty = last == Some(&batch.base_offset());
        if batch.count() == 0 {
            self.is_changed |= !keeps_empty;
            return keeps_empty.then_some(batch);
        }
        let filter = RecordFilter {
            map: &self.pass.map,
            now_ms: self.options.now_ms,
            delete_retention_ms: self.options.delete_retention_ms,
            drops_tombstones: !self.pass.has_unreadable && self.skipped == 0,
        };
        let mut counts = self.counts;
        counts.without_key = 0;
        let inflated = batch.inflate(self.options.inflated_bytes_max).ok();
        let filtered = inflated.and_then(|inflated| {
            let kept = filter.apply(&inflated, &mut counts).ok()?;
            Some((inflated, kept))
        });
        let Some((inflated, kept)) = filtered else {
            self.skipped += 1;
            return Some(batch);
        };
        if batch.base_offset() >= self.pass.from {
            self.without_key += counts.without_key;
        }
        let (kept, is_whole) = match kept {
            KeptRecords::All => (inflated, true),
            KeptRecords::Some(kept) => (kept, false),
        };
        let own = batch.codec();
        let wanted = self.options.codec.unwrap_or(own);
        if is_whole && wanted == own {
            self.counts = counts;
            return Some(batch);
        }
        invariant!(
            is_whole
                || (is_walkable(&kept)
                    && kept.base_offset() == batch.base_offset()
                    && kept.end_offset() == batch.end_offset()),
            "compaction has changed the offsets of a batch"
        );
        let mut packed = compress_kept(kept.clone(), wanted, keeps_empty);
        let bytes_max = batch.bytes().len().max(RECOMPRESSED_BYTES_MAX);
        let is_large = |packed: &Batch| packed.bytes().len() > bytes_max;
        if wanted != own && matches!(&packed, Ok(Some(packed)) if is_large(packed)) {
            if is_whole {
                self.counts = counts;
                return Some(batch);
            }
            packed = compress_kept(kept, own, keeps_empty);
        }
        match packed {
            Ok(packed) => {
                self.counts = counts;
                self.is_changed = true;
                packed
            }
            Err(_) => {
                self.skipped += 1;
                Some(batch)
            }
        }
    }
}
