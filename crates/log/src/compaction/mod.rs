//! Compaction: of the records with one key the newest stays.
//!
//! A *pass* has two halves, as in Kafka's log cleaner. First the keys of what is *dirty* (sealed
//! since the last pass) go into a bounded map, key to newest offset; if the map fills up, the pass
//! covers only what it has seen, and the next pass goes on from there. Then all sealed segments up
//! to there are rewritten without the records that the map supersedes, small neighbours merged.
//! Each call does a bounded part of a pass.
//!
//! The active segment and the newest sealed one are left alone: the newest segment's end says which
//! offsets were given away. Offsets, batches' envelopes and the last batch of each idempotent
//! producer stay (that one without records, if need be). `compaction/filter.rs` says what is kept,
//! `compaction/files.rs` how the files change.

pub(crate) mod files;
pub(crate) mod filter;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::batch::{Batch, Codec, Offset};
use crate::compaction::files::{CleanWriter, Standing};
use crate::compaction::filter::{Filter, KeptRecords, OffsetMap, Seen, is_walkable, pack};
use crate::error::{IoFailure, LogError, ReadError};
use crate::partition::PartitionLog;
use crate::reader::wait_for_small;
use crate::segment::{Segment, Stage};

/// Recompressing with another codec may grow a batch up to this size, not beyond: readers take a
/// batch whole, and by default no more than this at once.
const GROWN_BYTES_MAX: usize = 1 << 20;

/// How a partition is compacted, and how much of it in one call.
#[derive(Clone, Debug)]
pub struct CompactionOptions {
    /// Milliseconds since 1970.
    pub now_ms: i64,
    /// A tombstone stays this many milliseconds after compaction has first seen it (Kafka's
    /// `delete.retention.ms`).
    pub delete_retention_ms: u64,
    /// Records younger than this many milliseconds, and all behind them, are left alone (Kafka's
    /// `min.compaction.lag.ms`).
    pub min_lag_ms: u64,
    /// Memory for the keys of one pass, in bytes; it is held until the pass is done.
    pub map_bytes_max: usize,
    /// A compressed batch that is larger than this when it is inflated, in bytes, stays as it is.
    pub inflated_bytes_max: usize,
    /// The codec of the batches in segments that are written anew; `None`: each keeps its own. A
    /// batch that would become large by it stays as it is.
    pub codec: Option<Codec>,
    /// A call ends once it has read this many bytes of segments to rewrite, but not before it has
    /// rewritten one run (segments that are merged into one).
    pub work_bytes_max: u64,
    /// Set it to end a call early; what it has begun is done again by the next one.
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
    /// Bytes of batches that are gone.
    pub bytes_freed: u64,
    /// Records that are gone.
    pub records_removed: u64,
    /// Records without a key that were seen among the new ones; they stay.
    pub records_without_key: u64,
    /// Batches that stay because they cannot be inflated.
    pub batches_skipped: u64,
    /// Whether there is nothing left to do at the moment.
    pub is_done: bool,
    /// Whether the next call goes on with a pass, whose keys are held in memory until then.
    pub holds_pass: bool,
}

/// How much of a partition compaction has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStatus {
    /// Bytes of segments in which no key has two records.
    pub clean_bytes: u64,
    /// Bytes of sealed segments that are to be compacted.
    pub dirty_bytes: u64,
    /// Highest timestamp in the first segment that is to be compacted, if there is one, in
    /// milliseconds since 1970.
    pub dirty_from_ms: Option<i64>,
    /// When the first tombstone in the clean part may go, in milliseconds since 1970.
    pub horizon_ms: Option<i64>,
}

/// The compaction state of a partition.
#[derive(Default)]
pub(crate) struct Compaction {
    /// `None` until it was read from the disk.
    standing: Option<Standing>,
    pass: Option<Pass>,
}

/// A pass under way.
struct Pass {
    map: OffsetMap,
    /// Where it began: records before were in the map of an earlier pass.
    from: Offset,
    /// Segments before this offset are done.
    done_to: Offset,
    /// The earliest horizon of tombstones that are left.
    horizon_ms: Option<i64>,
    /// Something before `done_to` could not be read and may hold older records of any key: no
    /// tombstone behind it may go.
    has_left: bool,
}

/// Why a call ends before its work is done.
enum Break {
    /// By whoever called.
    Stopped,
    /// The log is being closed, though this partition may not be yet.
    Closed,
    Failed(IoFailure),
}

impl From<ReadError> for Break {
    fn from(error: ReadError) -> Break {
        match error {
            ReadError::Failed(failure) => Break::Failed(failure),
            ReadError::Closed => Break::Closed,
        }
    }
}

impl From<IoFailure> for Break {
    fn from(failure: IoFailure) -> Break {
        Break::Failed(failure)
    }
}

impl PartitionLog {
    /// Does a part of a pass of compaction; call it again until it says that it is done. Blocks on
    /// the disk for as long as [`CompactionOptions::work_bytes_max`] takes.
    ///
    /// # Errors
    /// A file could not be read, written or renamed. Nothing is lost, and the next call begins a
    /// new pass. [`LogError::Closed`]: the log or the topic was closed meanwhile.
    pub fn compact(self: &Arc<Self>, options: &CompactionOptions) -> Result<Compacted, LogError> {
        let mut compaction = self.compaction.lock();
        if !self.is_closed() {
            // A replacement that was left unfinished holds `.clean` files, whose names this call
            // uses again.
            self.finish_replacement(&mut self.files_lock.lock())?;
        }
        let mut done = Compacted::default();
        match self.run_compaction(&mut compaction, options, &mut done) {
            Ok(()) => Ok(done),
            Err(Break::Stopped) => Ok(done),
            Err(Break::Closed) => Err(LogError::Closed),
            Err(Break::Failed(failure)) => {
                compaction.pass = None;
                if self.is_closed() {
                    return Err(LogError::Closed);
                }
                Err(failure.into())
            }
        }
    }

    /// How much there is to compact, for whoever decides whether it is worth it. Waits for a call
    /// of [`PartitionLog::compact`] that is under way.
    /// If the disk does not say how far compaction has come, reports that nothing is due.
    pub fn compaction_status(self: &Arc<Self>) -> CompactionStatus {
        let Ok(standing) = self.compaction.lock().standing(self) else {
            return CompactionStatus::default();
        };
        let mut status = CompactionStatus {
            horizon_ms: standing.horizon_ms,
            ..CompactionStatus::default()
        };
        for segment in self.cleanable() {
            if segment.end() <= standing.clean_end {
                status.clean_bytes += segment.len();
            } else {
                status.dirty_bytes += segment.len();
                let from_ms = || segment.max_timestamp_ms();
                status.dirty_from_ms.get_or_insert_with(from_ms);
            }
        }
        status
    }

    /// Gives up the pass that calls of [`PartitionLog::compact`] have left unfinished, and the
    /// memory that it holds. Its finished part stays done. Waits as
    /// [`PartitionLog::compaction_status`] does.
    pub fn abandon_compaction(&self) {
        self.compaction.lock().pass = None;
    }

    /// Waits until no call of [`PartitionLog::compact`] is at work. The partition is closed.
    pub(crate) fn wait_for_compaction(&self) {
        drop(self.compaction.lock());
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    fn check_stop(&self, options: &CompactionOptions) -> Result<(), Break> {
        if self.is_closed() {
            return Err(Break::Closed);
        }
        if options.stop.load(Ordering::Relaxed) {
            return Err(Break::Stopped);
        }
        Ok(())
    }

    /// The sealed segments from the oldest on, without the newest segment.
    fn cleanable(&self) -> Vec<Arc<Segment>> {
        let state = self.state.lock();
        let but_newest = state.segments.len().saturating_sub(1);
        let segments = state.segments[..but_newest].iter();
        let sealed = segments.take_while(|segment| segment.stage() == Stage::Sealed);
        sealed.cloned().collect()
    }

    fn run_compaction(
        self: &Arc<Self>,
        compaction: &mut Compaction,
        options: &CompactionOptions,
        done: &mut Compacted,
    ) -> Result<(), Break> {
        let standing = compaction.standing(self)?;
        if compaction.pass.is_none() {
            compaction.pass = self.begin_pass(standing, options)?;
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
                done.holds_pass = true;
                return Ok(());
            }
            work += run.iter().map(|segment| segment.len()).sum::<u64>();
            let end = last.end();
            self.clean_run(pass, &run, options, done)?;
            pass.done_to = end;
        }
        let reached = Standing {
            clean_end: pass.map.end,
            horizon_ms: pass.horizon_ms,
        };
        compaction.pass = None;
        compaction.standing = Some(reached);
        reached.save(&self.shared, &self.dir)?;
        done.is_done = self.dirty(reached, options).is_empty();
        Ok(())
    }

    /// Segments with records that no pass has seen, and that are old enough.
    fn dirty(&self, standing: Standing, options: &CompactionOptions) -> Vec<Arc<Segment>> {
        let lag_ms = i64::try_from(options.min_lag_ms).unwrap_or(i64::MAX);
        let newest_ms = options.now_ms.saturating_sub(lag_ms);
        let is_old = |segment: &Arc<Segment>| {
            options.min_lag_ms == 0 || segment.max_timestamp_ms() <= newest_ms
        };
        let segments = self.cleanable().into_iter();
        let dirty = segments.skip_while(|segment| segment.end() <= standing.clean_end);
        dirty.take_while(is_old).collect()
    }

    /// Collects the keys of what is dirty; `None` when there is nothing to do.
    fn begin_pass(
        self: &Arc<Self>,
        standing: Standing,
        options: &CompactionOptions,
    ) -> Result<Option<Pass>, Break> {
        let dirty = self.dirty(standing, options);
        let is_due = standing.horizon_ms.is_some_and(|due| due <= options.now_ms);
        if dirty.is_empty() && !is_due {
            return Ok(None);
        }
        let mut map = OffsetMap::new(options.map_bytes_max, standing.clean_end);
        'segments: for segment in &dirty {
            let mut from = segment.base.max(standing.clean_end);
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
                    // An unreadable batch is left as it is, and says nothing of other records.
                    if let Ok(inflated) = batch.inflate(options.inflated_bytes_max) {
                        let _ = map.add(&inflated);
                    }
                    from = batch.end_offset();
                    map.end = from;
                }
            }
            map.end = segment.end();
        }
        Ok(Some(Pass {
            map,
            from: standing.clean_end,
            done_to: 0,
            horizon_ms: None,
            has_left: false,
        }))
    }

    /// The next run: segments that are merged into one, as many as fit into it.
    fn next_run(&self, pass: &Pass) -> Vec<Arc<Segment>> {
        let limit = self.segment_bytes();
        let mut bytes = 0;
        let segments = self.cleanable().into_iter();
        segments
            .filter(|segment| segment.base >= pass.done_to && segment.base < pass.map.end)
            .take_while(|segment| {
                let first = bytes == 0;
                bytes += segment.len();
                first || bytes <= limit
            })
            .collect()
    }

    /// Writes a run of segments anew, if that changes anything.
    fn clean_run(
        self: &Arc<Self>,
        pass: &mut Pass,
        run: &[Arc<Segment>],
        options: &CompactionOptions,
        done: &mut Compacted,
    ) -> Result<(), Break> {
        let Some(first) = run.first() else {
            return Ok(());
        };
        let before: u64 = run.iter().map(|segment| segment.len()).sum();
        self.check_room(before)?;
        for segment in run {
            self.load_index(segment)?;
        }
        let mut writer = CleanWriter::create(&self.shared, first)?;
        let mut cleaner = Cleaner {
            pass,
            options,
            last_of_producer: self.last_of_producers(),
            seen: Seen::default(),
            without_key: 0,
            skipped: 0,
            is_changed: run.len() > 1,
        };
        let outcome = self.copy_run(run, &mut writer, &mut cleaner);
        let Cleaner {
            seen,
            without_key,
            skipped,
            is_changed,
            ..
        } = cleaner;
        // A batch that cannot be read today must not be given up for ever.
        let is_corrupt = run.iter().any(|segment| !segment.damages.lock().is_empty());
        if outcome.is_err() || is_corrupt || !is_changed {
            writer.discard(&self.shared);
        }
        outcome?;
        let horizons = [pass.horizon_ms, seen.horizon_ms];
        pass.horizon_ms = horizons.into_iter().flatten().min();
        done.records_without_key += without_key;
        done.batches_skipped += skipped;
        pass.has_left |= is_corrupt || skipped > 0;
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
                Err(LogError::Closed) => return Err(Break::Closed),
            }
        } else if !self.replace_segments(run, writer)? {
            return Ok(());
        }
        done.records_removed += seen.removed;
        done.bytes_freed += before.saturating_sub(after);
        Ok(())
    }

    fn copy_run(
        self: &Arc<Self>,
        run: &[Arc<Segment>],
        writer: &mut CleanWriter,
        cleaner: &mut Cleaner<'_>,
    ) -> Result<(), Break> {
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

    /// Checks that the disk has room for the old files and the new one together, without its
    /// reserve.
    fn check_room(&self, bytes: u64) -> Result<(), IoFailure> {
        let reserve = self.shared.options.disk_free_bytes_min;
        let free = self.shared.disk.free_bytes().unwrap_or(u64::MAX);
        if free < reserve.saturating_add(bytes) {
            let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(IoFailure::new("compact", &self.dir, &error));
        }
        Ok(())
    }

    /// Base offsets of the last batch of each idempotent producer.
    fn last_of_producers(&self) -> HashMap<i64, Offset> {
        let state = self.state.lock();
        let last = state.producers.iter();
        last.filter_map(|(id, producer)| Some((id, producer.batches.back()?.base)))
            .collect()
    }
}

impl Compaction {
    fn standing(&mut self, partition: &PartitionLog) -> Result<Standing, ReadError> {
        if let Some(standing) = self.standing {
            return Ok(standing);
        }
        let (disk, dir) = (partition.shared.disk.clone(), partition.dir.clone());
        let load = move || Standing::load(&*disk, &dir);
        let found = wait_for_small(&partition.shared, Standing::path(&partition.dir), load)?;
        Ok(*self.standing.insert(found))
    }
}

/// Cleans the batches of a run.
struct Cleaner<'a> {
    pass: &'a Pass,
    options: &'a CompactionOptions,
    last_of_producer: HashMap<i64, Offset>,
    seen: Seen,
    without_key: u64,
    skipped: u64,
    is_changed: bool,
}

impl Cleaner<'_> {
    /// Cleans a batch, and returns the rest of it.
    fn clean(&mut self, batch: Batch) -> Option<Batch> {
        if batch.is_control() {
            return Some(batch);
        }
        let last = self.last_of_producer.get(&batch.producer_id());
        let keeps_empty = last == Some(&batch.base_offset());
        if batch.count() == 0 {
            self.is_changed |= !keeps_empty;
            return keeps_empty.then_some(batch);
        }
        let filter = Filter {
            map: &self.pass.map,
            now_ms: self.options.now_ms,
            delete_retention_ms: self.options.delete_retention_ms,
            drops_tombstones: !self.pass.has_left && self.skipped == 0,
        };
        let mut seen = self.seen;
        seen.without_key = 0;
        let inflated = batch.inflate(self.options.inflated_bytes_max).ok();
        let filtered = inflated.and_then(|inflated| {
            let kept = filter.apply(&inflated, &mut seen).ok()?;
            Some((inflated, kept))
        });
        let Some((inflated, kept)) = filtered else {
            self.skipped += 1;
            return Some(batch);
        };
        if batch.base_offset() >= self.pass.from {
            self.without_key += seen.without_key;
        }
        let (kept, is_whole) = match kept {
            KeptRecords::All => (inflated, true),
            KeptRecords::Some(kept) => (kept, false),
        };
        let own = batch.codec();
        let wanted = self.options.codec.unwrap_or(own);
        if is_whole && wanted == own {
            self.seen = seen;
            return Some(batch);
        }
        invariant!(
            is_whole
                || (is_walkable(&kept)
                    && kept.base_offset() == batch.base_offset()
                    && kept.end_offset() == batch.end_offset()),
            "compaction keeps the envelope of a batch"
        );
        let mut packed = pack(kept.clone(), wanted, keeps_empty);
        let bytes_max = batch.bytes().len().max(GROWN_BYTES_MAX);
        let is_large = |packed: &Batch| packed.bytes().len() > bytes_max;
        if wanted != own && matches!(&packed, Ok(Some(packed)) if is_large(packed)) {
            if is_whole {
                self.seen = seen;
                return Some(batch);
            }
            packed = pack(kept, own, keeps_empty);
        }
        match packed {
            Ok(packed) => {
                self.seen = seen;
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
