//! Reading batches.
//!
//! A reader names an offset. Recently written batches come from memory. Older batches are read in
//! chunks on the caller's thread while they are in the page cache. Otherwise the read is
//! [`Read::Cold`] and runs on the thread "log-reader", in turns of [`READ_TURN_BYTES`], so that the
//! scan of a long damaged file causes no head-of-line blocking for other reads. A damaged region is
//! reported once and skipped (`damage.rs`): a reader sees a gap in the offsets.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset};
use crate::damage::{ReadFault, skip_damage};
use crate::disk::{DiskFile, read_full};
use crate::error::{IoFailure, LogError, ReadError};
use crate::metrics::count;
use crate::partition::{PartitionLog, PartitionState};
use crate::reader::{ColdReader, ReadInTurns, ReadJob, ReadOutcome, wait_for};
use crate::segment::Segment;
use crate::segment::index::position_before;
use crate::shared::Shared;

/// Bytes of the smallest chunk: two index intervals, so that a chunk that begins at an index entry
/// usually reaches the wanted batch, which is within about one interval.
const CHUNK_BYTES_MIN: usize = 64 << 10;
/// Bytes of the largest chunk: bounds the memory that one small batch in a chunk keeps alive.
pub(crate) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Bytes that a cold read scans before other cold reads get their turn.
const READ_TURN_BYTES: u64 = 16 << 20;

/// The result of a read.
#[derive(Debug)]
pub enum Read {
    /// Batches in order of offset, perhaps with gaps. The first one contains the asked offset, or
    /// is the first one after it.
    Batches(Vec<Batch>),
    /// There is no record at or after the asked offset yet.
    End,
    /// The data is not in memory and must be read from the disk.
    Cold(ColdRead),
}

/// A read that has to wait for the disk.
#[derive(Debug)]
#[must_use = "a cold read happens only when it is run"]
pub struct ColdRead {
    partition: Arc<PartitionLog>,
    /// The segment to read; `None`: the one that contains `from`.
    segment: Option<Arc<Segment>>,
    from: Offset,
    bytes_max: usize,
    /// The position at which the last turn stopped; `None` before the first turn.
    resume_at: Option<ResumePoint>,
}

impl ColdRead {
    /// Runs the read on the log's reader thread (in manual mode: in the next `Log::step`) and calls
    /// `reader` there with the outcome. If the disk does not answer, the thread that notices it
    /// calls `reader` with an error. `reader` is never called on the caller's thread, because the
    /// caller may hold locks that `reader` takes. If the log was stopped, `reader` is dropped
    /// without a call.
    pub fn on_ready(self, reader: ColdReader) {
        let queues = self.partition.shared.queues.clone();
        drop(queues.reads.push(ReadJob {
            reading: Box::new(self),
            reader,
        }));
    }

    /// Runs the read on the log's reader thread (in manual mode: on this one) and waits for the
    /// outcome.
    ///
    /// # Errors
    /// A file could not be opened or read, the disk does not answer, or the log is stopped.
    pub fn run(self) -> Result<Vec<Batch>, ReadError> {
        wait_for(&self.partition.shared.clone(), self)
    }
}

impl ReadInTurns for ColdRead {
    fn target(&self) -> (Arc<str>, Offset) {
        let segment = self.segment.clone().or_else(|| {
            match self.partition.state.lock().source(self.from, 1) {
                ReadSource::Segment(segment, _) => Some(segment),
                ReadSource::Tail(_) | ReadSource::End => None,
            }
        });
        let file = segment.map_or(self.partition.dir.clone(), |it| it.log_path().into());
        (file, self.from)
    }

    fn turn(&mut self) -> Option<ReadOutcome> {
        if self.resume_at.is_none() {
            count(&self.partition.shared.counters.cold_reads, 1);
        }
        let mut turn = ReadBudget {
            mode: ReadMode::Blocking,
            left: READ_TURN_BYTES,
            resume_at: self.resume_at.take(),
        };
        let (partition, from, bytes_max) = (&self.partition, self.from, self.bytes_max);
        let found = match &self.segment {
            Some(segment) => read_segment(&partition.shared, segment, from, bytes_max, &mut turn),
            None => partition.read_with(from, bytes_max, &mut turn),
        };
        match found {
            TurnResult::Batches(batches) => Some(Ok(batches)),
            TurnResult::Failed(failure) => Some(Err(failure.into())),
            TurnResult::Nothing | TurnResult::WouldBlock => Some(Ok(Vec::new())),
            TurnResult::NextTurn(from) => {
                (self.from, self.resume_at) = (from, turn.resume_at);
                None
            }
        }
    }
}

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    CacheOnly,
    Blocking,
}

/// The limits of one turn of a read.
struct ReadBudget {
    mode: ReadMode,
    /// Bytes that the turn may still scan.
    left: u64,
    /// Before the turn: the position at which the previous turn stopped. After the turn: the
    /// position at which this one stopped.
    resume_at: Option<ResumePoint>,
}

/// A position in a segment's file at which a turn has stopped.
#[derive(Debug)]
struct ResumePoint {
    segment: Arc<Segment>,
    position: u64,
}

impl ReadBudget {
    fn new(mode: ReadMode) -> ReadBudget {
        ReadBudget {
            mode,
            left: u64::MAX,
            resume_at: None,
        }
    }

    fn stop_at(&mut self, segment: &Arc<Segment>, position: u64, from: Offset) -> TurnResult {
        self.resume_at = Some(ResumePoint {
            segment: segment.clone(),
            position,
        });
        TurnResult::NextTurn(from)
    }
}

enum TurnResult {
    Batches(Vec<Batch>),
    /// No readable batch at or after the offset in the segments that were scanned.
    Nothing,
    /// The turn has ended; the next one continues at this offset.
    NextTurn(Offset),
    WouldBlock,
    Failed(IoFailure),
}

/// The source of a read.
pub(crate) enum ReadSource {
    Tail(Vec<Batch>),
    Segment(Arc<Segment>, Offset),
    End,
}

impl PartitionLog {
    /// Reads whole batches from offset `from` on, up to `bytes_max` bytes, but at least one if
    /// there is one. Never waits for the disk.
    pub fn read(self: &Arc<Self>, from: Offset, bytes_max: usize) -> Read {
        if from >= self.written_end() {
            return Read::End;
        }
        match self.read_with(from, bytes_max, &mut ReadBudget::new(ReadMode::CacheOnly)) {
            TurnResult::Batches(batches) => Read::Batches(batches),
            TurnResult::Nothing => Read::End,
            // A failed read is repeated as a cold read, which reports the error.
            TurnResult::WouldBlock | TurnResult::Failed(_) | TurnResult::NextTurn(_) => {
                Read::Cold(self.cold_read(None, from, bytes_max))
            }
        }
    }

    /// As [`PartitionLog::read`], but waits for the disk. Returns no batch where `read` returns
    /// [`Read::End`].
    ///
    /// # Errors
    /// As [`ColdRead::run`].
    pub fn read_waiting(
        self: &Arc<Self>,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Batch>, ReadError> {
        match self.read(from, bytes_max) {
            Read::Batches(batches) => Ok(batches),
            Read::End => Ok(Vec::new()),
            Read::Cold(read) => read.run(),
        }
    }

    /// Reads batches of one segment's file from `from` on, without the tail cache, and waits for
    /// the disk. Returns no batch if the segment has none at or after `from`.
    pub(crate) fn read_segment_waiting(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        from: Offset,
    ) -> Result<Vec<Batch>, ReadError> {
        let mut turn = ReadBudget::new(ReadMode::CacheOnly);
        match read_segment(&self.shared, segment, from, CHUNK_BYTES_MAX, &mut turn) {
            TurnResult::Batches(batches) => Ok(batches),
            TurnResult::Nothing => Ok(Vec::new()),
            TurnResult::WouldBlock | TurnResult::Failed(_) | TurnResult::NextTurn(_) => {
                let segment = Some(segment.clone());
                self.cold_read(segment, from, CHUNK_BYTES_MAX).run()
            }
        }
    }

    fn cold_read(
        self: &Arc<Self>,
        segment: Option<Arc<Segment>>,
        from: Offset,
        bytes_max: usize,
    ) -> ColdRead {
        ColdRead {
            partition: self.clone(),
            segment,
            from,
            bytes_max,
            resume_at: None,
        }
    }

    /// Whether a read from offset `from` on is served from the tail cache, without a copy.
    pub fn is_in_memory(&self, from: Offset) -> bool {
        let first = self.state.lock().recent.first_base();
        first.is_some_and(|first| from >= first)
    }

    fn read_with(&self, mut from: Offset, bytes_max: usize, turn: &mut ReadBudget) -> TurnResult {
        loop {
            let source = self.state.lock().source(from, bytes_max);
            let (segment, start) = match source {
                ReadSource::Tail(batches) => return TurnResult::Batches(batches),
                ReadSource::End => return TurnResult::Nothing,
                ReadSource::Segment(segment, start) => (segment, start),
            };
            let end = segment.end();
            from = match read_segment(&self.shared, &segment, start, bytes_max, turn) {
                TurnResult::Nothing => end.max(start + 1),
                TurnResult::Failed(_) if self.was_removed(&segment) => end,
                TurnResult::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                    segment.report_missing(&self.shared);
                    end
                }
                found => return found,
            };
            if turn.mode == ReadMode::Blocking {
                // A turn reads one file only, so that a read that hangs can be reported with the
                // file's name.
                return TurnResult::NextTurn(from);
            }
        }
    }

    /// Whether the segment was dropped or replaced meanwhile.
    fn was_removed(&self, segment: &Arc<Segment>) -> bool {
        !self
            .state
            .lock()
            .segments
            .iter()
            .any(|other| Arc::ptr_eq(other, segment))
    }
}

impl PartitionState {
    pub(crate) fn source(&self, from: Offset, bytes_max: usize) -> ReadSource {
        let from = from.max(self.offsets.logical_start());
        let index = self
            .segments
            .partition_point(|segment| segment.end() <= from);
        if let Some(first) = self.recent.first_base() {
            // If retention has dropped the segment of `from`, the next record may be in the tail
            // cache.
            let next = self
                .segments
                .get(index)
                .map_or(from, |segment| from.max(segment.base));
            if next >= first {
                let batches = self.recent.read(next, bytes_max);
                return match batches.is_empty() {
                    true => ReadSource::End,
                    false => ReadSource::Tail(batches),
                };
            }
        }
        match self.segments.get(index) {
            Some(segment) => ReadSource::Segment(segment.clone(), from.max(segment.base)),
            None => ReadSource::End,
        }
    }
}

/// Reads batches of one segment; `Nothing` if it has none at or after `from`.
fn read_segment(
    shared: &Shared,
    segment: &Arc<Segment>,
    from: Offset,
    bytes_max: usize,
    turn: &mut ReadBudget,
) -> TurnResult {
    let blocks = turn.mode == ReadMode::Blocking;
    // The position is valid for this file only: compaction may have replaced the segment since the
    // last turn.
    let resume_at = turn.resume_at.take();
    let resume_at = resume_at.filter(|it| Arc::ptr_eq(&it.segment, segment));
    let known = resume_at.map(|it| it.position);
    let hint = segment.hint(from).filter(|_| known.is_none());
    let mut position = match hint.or(known).or_else(|| segment.position_of(from)) {
        Some(position) => position,
        None if !blocks => return TurnResult::WouldBlock,
        None => {
            segment.load_index(shared);
            segment
                .with_index(|entries| position_before(entries, from))
                .unwrap_or(0)
        }
    };
    let file = match segment.file(shared) {
        Ok(file) => file,
        Err(failure) => return TurnResult::Failed(failure),
    };
    let mut chunk_bytes = bytes_max.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
    // End offset of the batch before `position`, if known from this read or, by the hint, from an
    // earlier one.
    let mut after = hint.map(|_| from);
    if position == 0 {
        after = Some(segment.base);
    }
    let mut retried_at = None;
    loop {
        let left = segment.len().saturating_sub(position);
        if left == 0 {
            return TurnResult::Nothing;
        }
        if turn.left == 0 {
            return turn.stop_at(segment, position, from);
        }
        let wanted = chunk_bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
        turn.left = turn.left.saturating_sub(wanted as u64);
        let fill = |chunk: &mut [u8]| fill_chunk(&*file, position, chunk, turn.mode);
        let fault = match shared.chunks.read(wanted, fill) {
            Ok(chunk) => {
                // A writer sets the segment's end offset before its length, and the length bounds
                // the chunk. So no valid batch in the chunk ends above the segment's end offset.
                let within = segment.base..segment.end();
                let split = split_chunk(&chunk, from, &within, after, left, bytes_max);
                segment.note_checked(position, position + split.used as u64);
                position += split.used as u64;
                if let Some(last) = split.batches.last() {
                    segment.set_hint(last.end_offset(), position);
                    return TurnResult::Batches(split.batches);
                }
                after = split.after.or(after);
                let bytes_left = segment.len().saturating_sub(position);
                match split.end {
                    ChunkEnd::Invalid(reason) => ReadFault::NoBatch(reason),
                    // Compaction has removed all records from `from` to the segment's end.
                    ChunkEnd::NeedsBytes(_) if bytes_left == 0 => return TurnResult::Nothing,
                    ChunkEnd::NeedsBytes(bytes) => {
                        if bytes as u64 > bytes_left.min(shared.options.batch_bytes_max) {
                            ReadFault::NoBatch("impossible length".to_owned())
                        } else if chunk.len() == wanted {
                            // Includes the header of the following batch, which `is_misplaced`
                            // needs.
                            chunk_bytes = chunk_bytes.max(bytes + BATCH_HEADER_BYTES);
                            continue;
                        } else if blocks {
                            ReadFault::FileEnds
                        } else {
                            // The page cache has only the beginning of the chunk.
                            return TurnResult::WouldBlock;
                        }
                    }
                }
            }
            Err(_) if !blocks => return TurnResult::WouldBlock,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => ReadFault::FileEnds,
            Err(_) if chunk_bytes > CHUNK_BYTES_MIN && retried_at != Some(position) => {
                // The unreadable block may be after the next batches: try a smaller chunk.
                (chunk_bytes, retried_at) = (CHUNK_BYTES_MIN, Some(position));
                continue;
            }
            Err(error) => ReadFault::Unreadable(error),
        };
        let next = match segment.end_of_damage(position) {
            Some(next) => next,
            None if !blocks => return TurnResult::WouldBlock,
            None => {
                let left = &mut turn.left;
                match skip_damage(shared, segment, &*file, position, after, &fault, left) {
                    Some(next) => next,
                    None => return turn.stop_at(segment, position, from),
                }
            }
        };
        position = next;
    }
}

/// Fills a chunk from the file. Returns the number of bytes, at least one.
fn fill_chunk(
    file: &dyn DiskFile,
    position: u64,
    chunk: &mut [u8],
    mode: ReadMode,
) -> std::io::Result<usize> {
    let count = match mode {
        ReadMode::CacheOnly => file.read_at_nowait(chunk, position)?,
        ReadMode::Blocking => read_full(file, chunk, position)?,
    };
    match (count, mode) {
        (0, ReadMode::CacheOnly) => Err(ErrorKind::WouldBlock.into()),
        (0, ReadMode::Blocking) => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(count),
    }
}

/// The whole batches at the beginning of a chunk.
struct SplitChunk {
    /// The batches that end after the wanted offset. They share the chunk's memory.
    batches: Vec<Batch>,
    /// Bytes up to the end of the last whole batch, including batches before the wanted offset.
    used: usize,
    /// End offset of the last whole batch.
    after: Option<Offset>,
    end: ChunkEnd,
}

enum ChunkEnd {
    /// The next batch needs at least this many bytes.
    NeedsBytes(usize),
    /// The bytes at position `used` are no batch.
    Invalid(String),
}

/// Splits a chunk into batches. The segment has `left` bytes from the beginning of the chunk on. No
/// checksum covers the base offset, and a disk may write whole batches to the wrong place. So a
/// batch is also invalid if its offsets are outside `within`, if its base offset is below `after`,
/// or if it ends above the base offset of the following batch.
fn split_chunk(
    chunk: &Bytes,
    from: Offset,
    within: &Range<Offset>,
    mut after: Option<Offset>,
    left: u64,
    bytes_max: usize,
) -> SplitChunk {
    let mut batches: Vec<Batch> = Vec::new();
    let (mut used, mut taken) = (0, 0);
    let end = loop {
        let rest = &chunk[used..];
        if rest.len() < BATCH_HEADER_BYTES {
            break ChunkEnd::NeedsBytes(BATCH_HEADER_BYTES);
        }
        let len = match Batch::peek_len(rest) {
            Ok(len) => len,
            Err(error) => break ChunkEnd::Invalid(error.to_string()),
        };
        if len > rest.len() || (taken + len > bytes_max && !batches.is_empty()) {
            break ChunkEnd::NeedsBytes(len);
        }
        match Batch::parse_stored(chunk.slice(used..used + len)) {
            Ok(batch) if batch.base_offset() < within.start || batch.end_offset() > within.end => {
                break ChunkEnd::Invalid("offsets of another segment".to_owned());
            }
            Ok(batch) => {
                // A batch that does not begin where the last one ends follows a hole, as compaction
                // leaves it, or is misplaced.
                if after != Some(batch.base_offset()) {
                    let has_next = (used + len + BATCH_HEADER_BYTES) as u64 <= left;
                    let next = rest.get(len..len + BATCH_HEADER_BYTES);
                    if next.is_none() && has_next {
                        break ChunkEnd::NeedsBytes(len + BATCH_HEADER_BYTES);
                    }
                    if is_misplaced(&batch, after.unwrap_or(within.start), next) {
                        break ChunkEnd::Invalid("offsets of another batch".to_owned());
                    }
                }
                after = Some(batch.end_offset());
                if batch.end_offset() > from {
                    taken += len;
                    batches.push(batch);
                }
            }
            Err(error) => break ChunkEnd::Invalid(error.to_string()),
        }
        used += len;
    };
    SplitChunk {
        batches,
        used,
        after,
        end,
    }
}

/// Whether the offsets of a valid batch do not fit its place in the file: the batch before it ends
/// at `after`, and `next` is the header of the batch that follows, if there is one.
pub(crate) fn is_misplaced(batch: &Batch, after: Offset, next: Option<&[u8]>) -> bool {
    let next = next.filter(|header| Batch::peek_len(header).is_ok());
    batch.base_offset() < after
        || next
            .map(Batch::peek_base_offset)
            .is_some_and(|next| next < batch.end_offset() && next >= after)
}

impl From<LogError> for ReadError {
    fn from(error: LogError) -> ReadError {
        match error {
            LogError::Io(failure) => ReadError::Failed(failure),
            LogError::Closed => ReadError::Closed,
        }
    }
}
