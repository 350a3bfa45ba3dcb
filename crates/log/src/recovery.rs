//! Recovery: opens the files of an earlier run, whether it was stopped, was killed or lost power.
//!
//! Of a sealed segment, only the footer of its index and the size of its log file are read. The
//! other segments are scanned from their last index entry, because all bytes before it were synced.
//! Valid batches after a corrupt region are kept. Bytes after the last valid batch are a torn tail:
//! they are cut off and logged. If a file is missing, or shorter than its index says, the lost
//! messages are reported, and their offsets are not assigned again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use uuid::Uuid;

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset};
use crate::damage::{Damage, DataLoss, REASON_MISSING, REASON_TRUNCATED};
use crate::disk::{Disk, DiskFile, OpenMode, read_full};
use crate::error::IoFailure;
use crate::housekeeping::Chore;
use crate::metrics::count;
use crate::partition::writer::SegmentWriter;
use crate::partition::{PartitionLog, RecoveredState, partition_dir, topic_dir};
use crate::producers::recovery::recover_producers;
use crate::producers::snapshot::read_snapshot;
use crate::segment::files::{find_segments, remove_segment};
use crate::segment::index::{INDEX_ENTRY_BYTES, IndexEntry, IndexItem, decode_index_item};
use crate::segment::scan::{OFFSET_GAP_MAX, TailBytes, find_batch, scan};
use crate::segment::{Segment, SegmentStage, SegmentState, create_index, read_index};
use crate::shared::Shared;
use crate::topic_files::{self, RecoveredTopic, TOPIC_NAME};

/// Maximum number of corrupt regions in one segment that are skipped; at the next one the segment
/// is truncated. Finding the end of a region may scan the rest of the file, and without a limit a
/// file full of forged batch headers would repeat that scan endlessly.
const CORRUPT_REGIONS_MAX: usize = 1_000;

/// The result of recovery.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Entries of the state journal, oldest first.
    pub journal: Vec<Vec<u8>>,
    /// Lower bound of the number of journal entries that were lost to damage. Each start reports it
    /// until the next snapshot.
    pub lost_entries: u32,
    /// Whether a file of the state journal has an earlier format: no snapshot was written since the
    /// upgrade.
    pub is_upgraded: bool,
    /// Topics that have a folder.
    pub topics: Vec<RecoveredTopic>,
    /// Partitions that have files.
    pub partitions: Vec<RecoveredPartition>,
    /// Lines of the start report, for the operator.
    pub report: Vec<String>,
    /// Whether the last run ended with `Log::close`.
    pub was_closed_cleanly: bool,
    /// The disk's [`crate::Disk::boot_id`].
    pub boot_id: String,
}

/// A partition that recovery has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredPartition {
    /// UUID of the topic.
    pub topic: Uuid,
    /// Number of the partition within the topic.
    pub partition: u32,
    /// Offset of the first record.
    pub start_offset: Offset,
    /// Offset that the next record will get, unless it is raised.
    pub next_offset: Offset,
    /// Bytes of batches.
    pub bytes: u64,
    /// Bytes of torn tails that were cut off.
    pub truncated_bytes: u64,
    /// The newest segment's end is damaged although no power was lost. So messages after the last
    /// one found may be missing, and their offsets were assigned.
    pub end_in_doubt: bool,
}

/// Opens all partitions below the folder `topics` and adds them to the log. `same_boot`: the
/// machine was not restarted since the last run, so no write of that run is lost.
pub(crate) fn recover_partitions(
    shared: &Arc<Shared>,
    recovery: &mut Recovery,
    same_boot: bool,
) -> Result<(), IoFailure> {
    for (topic, number) in find_partitions(&*shared.disk, recovery)? {
        let found = recover_partition(shared, topic, number, recovery, same_boot);
        let (state, truncated_bytes, end_in_doubt) = found?;
        let raise_to = state.raise_to;
        let partition = PartitionLog::new(shared.clone(), topic, number, state);
        partition.raise_next_offset(raise_to);
        queue_unfinished(shared, &partition);
        recovery.partitions.push(RecoveredPartition {
            topic,
            partition: number,
            start_offset: partition.start_offset(),
            next_offset: partition.next_offset(),
            bytes: partition.size_bytes(),
            truncated_bytes,
            end_in_doubt,
        });
        shared.partitions.write().insert((topic, number), partition);
    }
    Ok(())
}

/// Queues the work that the last run did not finish for the housekeeper.
fn queue_unfinished(shared: &Shared, partition: &Arc<PartitionLog>) {
    let mut state = partition.state.lock();
    for segment in &state.segments {
        count(
            &shared.counters.unsynced_bytes,
            segment.len() - segment.synced(),
        );
        if segment.stage() == SegmentStage::Rolled {
            let chore = Chore::Seal(partition.clone(), segment.clone());
            let _ = shared.queues.chores.push(chore);
        }
    }
    if state.segments.iter().any(|segment| segment.is_dirty()) {
        let _ = state.syncs.note_dirty();
        let _ = shared.queues.chores.push(Chore::Dirty(partition.clone()));
    }
}

pub(crate) fn find_partitions(
    disk: &dyn Disk,
    recovery: &mut Recovery,
) -> Result<BTreeSet<(Uuid, u32)>, IoFailure> {
    let list = |path: &str| {
        disk.list(path)
            .map_err(|error| IoFailure::new("list", path, &error))
    };
    let mut found = BTreeSet::new();
    let mut folders = list("topics")?;
    folders.sort_by(|one, other| one.name.cmp(&other.name));
    for entry in folders {
        let Ok(topic) = Uuid::try_parse(&entry.name) else {
            recovery
                .report
                .push(format!("topics/{} is not ours, left alone", entry.name));
            continue;
        };
        let (mut has_partitions, mut description) = (false, None);
        for inside in list(&topic_dir(topic))? {
            if let Ok(number) = inside.name.parse() {
                found.insert((topic, number));
                has_partitions = true;
            } else if inside.name == TOPIC_NAME {
                let read = topic_files::read(disk, topic);
                let path = topic_files::topic_file(topic);
                description = read.map_err(|error| IoFailure::new("read", &path, &error))?;
                if description.is_none() {
                    tracing::error!(%path, "damaged: it does not say which topic this is");
                    let line = format!("{path} is damaged: it does not say which topic this is");
                    recovery.report.push(line);
                }
            }
        }
        recovery.topics.push(RecoveredTopic {
            topic,
            description,
            has_partitions,
        });
    }
    Ok(found)
}

fn recover_partition(
    shared: &Shared,
    topic: Uuid,
    number: u32,
    recovery: &mut Recovery,
    same_boot: bool,
) -> Result<(RecoveredState, u64, bool), IoFailure> {
    let dir = partition_dir(topic, number);
    let bases = find_segments(shared, &dir, &mut recovery.report)?;
    if bases.is_empty() {
        // Not an error: the crash may have come before the first segment was created.
        tracing::warn!(folder = %dir, "the folder of a partition has no messages");
    }
    let mut state = RecoveredState::empty(shared);
    state.writer.has_dir = true;
    // After a kill these names exist but may not be durable.
    let names = [topic_dir(topic), topic_files::topic_file(topic)];
    state.unsynced_dirs = vec![dir.to_string(), "topics".to_owned()];
    state.unsynced_dirs.extend(names);
    let mut truncated = 0;
    let mut end_in_doubt = false;
    let mut sealed_end = 0;
    // Exclusive upper bound of the offsets that are lost or may be. New records get this offset or
    // a higher one.
    let mut lost_end = 0;
    let (mut orphans, mut gaps) = (Vec::new(), Vec::new());
    let mut next_bases = bases.keys().skip(1);
    for (base, has_log) in &bases {
        let next_base = next_bases.next().copied();
        if *base < sealed_end {
            // Compaction has merged this segment into the one before.
            remove_segment(&*shared.disk, &dir, *base)?;
            continue;
        }
        let is_last = next_base.is_none();
        // After a kill the end of the newest segment is unknown: its index need not cover the last
        // batches.
        let after_kill = is_last && same_boot && !recovery.was_closed_cleanly;
        if !has_log {
            end_in_doubt = after_kill;
            let loss = missing_segment_loss(shared, &dir, *base, end_in_doubt);
            state.losses.extend(loss);
            if same_boot || recovery.was_closed_cleanly {
                // The file's name proves that all offsets below `base` were assigned.
                lost_end = *base;
            }
            orphans.push(*base);
            continue;
        }
        let found = recover_segment(shared, &dir, *base, next_base, same_boot)?;
        for (lost, bytes) in found.gaps {
            recovery.report.push(format!(
                "{dir}/{base:020}.log: corrupt region of {bytes} bytes left out at offset {}",
                lost.start
            ));
            gaps.push(lost);
        }
        if found.truncated_bytes > 0 {
            recovery.report.push(format!(
                "{dir}/{base:020}.log: torn tail of {} bytes cut off at offset {}",
                found.truncated_bytes, found.state.end
            ));
        }
        truncated += found.truncated_bytes;
        // A kill always leaves reserved space after the last batch of the newest segment. Without
        // it, the file is damaged.
        if after_kill {
            end_in_doubt = found.truncated_bytes > 0 || found.may_be_truncated;
        }
        if end_in_doubt && found.truncated_bytes == 0 && found.loss.is_none() {
            state.losses.push(DataLoss {
                file: format!("{dir}/{base:020}.log"),
                position: found.state.len,
                bytes: 0,
                reason: "no reserved space at the end, as if the file were cut short".to_owned(),
                offsets: None,
            });
        }
        state.next_offset = state.next_offset.max(found.state.end);
        let stage = found.state.stage;
        if stage == SegmentStage::Sealed {
            sealed_end = found.state.end;
        }
        let segment = Segment::new(*base, dir.clone(), found.state);
        if let Some(loss) = found.loss {
            if stage == SegmentStage::Sealed {
                // Notes the damage, so that readers do not report it again.
                segment.note_damage(loss.position, Damage::UpTo(segment.len()));
            }
            state.losses.push(loss);
        }
        if segment.len() == 0 && !is_last {
            remove_segment(&*shared.disk, &dir, *base)?;
            continue;
        }
        if stage == SegmentStage::Active {
            state.writer = SegmentWriter {
                active: Some(segment.clone()),
                position: segment.len(),
                reserved: found.file_len,
                // The file may have been a prepared one. If it was not, padding does no harm.
                pads_blocks: true,
                has_dir: true,
            };
        }
        state.segments.push(segment);
    }
    let found_end = state.next_offset;
    let ends = state.losses.iter().flat_map(|loss| &loss.offsets);
    lost_end = ends.fold(lost_end, |end, offsets| end.max(offsets.end));
    if let Err(failure) = begin_above(shared, &mut state, &dir, lost_end) {
        // The index files without a segment stay: they tell the next start that these offsets were
        // assigned.
        tracing::warn!(%failure, "cannot create a segment above the lost offsets");
        state.raise_to = lost_end;
        orphans.clear();
    }
    // The segment that was just begun may have taken over one of these index files.
    let begun = state.writer.active.as_ref().map(|segment| segment.base);
    orphans.retain(|base| Some(*base) != begun);
    for base in orphans {
        remove_segment(&*shared.disk, &dir, base)?;
    }
    let snapshot = read_snapshot(&*shared.disk, &dir, shared.options.clock.now_ms());
    gaps.push(found_end..Offset::MAX);
    recover_producers(shared, &mut state, &gaps, snapshot)?;
    Ok((state, truncated, end_in_doubt))
}

/// If messages at the end are lost, begins a segment with a base offset above theirs, so that later
/// starts know, too, that the lost offsets were assigned.
fn begin_above(
    shared: &Shared,
    state: &mut RecoveredState,
    dir: &Arc<str>,
    lost_end: Offset,
) -> Result<(), IoFailure> {
    if lost_end <= state.next_offset {
        return Ok(());
    }
    let fresh = SegmentState::fresh(lost_end, shared.options.clock.now_ms());
    let segment = Segment::new(lost_end, dir.clone(), fresh);
    let path = segment.log_path();
    let fail = |error| IoFailure::new("create", &path, &error);
    let file = shared.disk.open(&path, OpenMode::OpenOrCreate);
    let file = file.map_err(fail)?;
    // Reserves space as the writer does: without it, the next start would take the end for damaged.
    file.set_len(BATCH_HEADER_BYTES as u64).map_err(fail)?;
    segment.set_file(shared, file);
    create_index(shared, &segment.index_path());
    shared.disk.sync_dir(dir).map_err(fail)?;
    if let Some(before) = state.writer.active.take() {
        before.set_stage(SegmentStage::Rolled);
    }
    state.writer = SegmentWriter {
        active: Some(segment.clone()),
        has_dir: true,
        ..SegmentWriter::default()
    };
    state.segments.push(segment);
    state.next_offset = lost_end;
    Ok(())
}

/// The loss of a segment of which only the index file exists. If the index has no entry, the
/// segment was empty and nothing is lost, unless `end_in_doubt`: then the segment may have had
/// messages that were not indexed yet.
fn missing_segment_loss(
    shared: &Shared,
    dir: &str,
    base: Offset,
    end_in_doubt: bool,
) -> Option<DataLoss> {
    let index = read_index(shared, &format!("{dir}/{base:020}.index"), base);
    let end = index.footer.or(index.entries.last().copied());
    if end.is_none() && !end_in_doubt {
        return None;
    }
    Some(DataLoss {
        file: format!("{dir}/{base:020}.log"),
        position: 0,
        bytes: end.map_or(0, |end| end.position),
        reason: REASON_MISSING.to_owned(),
        offsets: end.map(|end| base..end.offset),
    })
}

/// The bytes that a truncated file has lost: it ends at `position`, before the position of the
/// index entry `last_indexed`. `from` is the offset after the last message that is left.
fn truncation_loss(path: &str, position: u64, from: Offset, last_indexed: IndexEntry) -> DataLoss {
    DataLoss {
        file: path.to_owned(),
        position,
        bytes: last_indexed.position - position,
        reason: REASON_TRUNCATED.to_owned(),
        offsets: Some(from..last_indexed.offset),
    }
}

struct RecoveredSegment {
    state: SegmentState,
    file_len: u64,
    truncated_bytes: u64,
    /// Corrupt regions between batches: the range of offsets that may be lost, and the length in
    /// bytes.
    gaps: Vec<(Range<Offset>, u64)>,
    /// The bytes that the index covers and that the file does not have.
    loss: Option<DataLoss>,
    /// Whether the file may have been truncated: no reserved space follows the last batch, and no
    /// index entry confirms that the file ends there.
    may_be_truncated: bool,
}

/// Opens one segment. `next_base` is the base offset of the next one; `None` for the last.
fn recover_segment(
    shared: &Shared,
    dir: &str,
    base: Offset,
    next_base: Option<Offset>,
    same_boot: bool,
) -> Result<RecoveredSegment, IoFailure> {
    let index_path = format!("{dir}/{base:020}.index");
    let path = format!("{dir}/{base:020}.log");
    if let Some((footer, has_producers)) = read_footer(&*shared.disk, &index_path, base) {
        let state = SegmentState {
            end: footer.offset,
            len: footer.position,
            synced: footer.position,
            max_timestamp_ms: footer.max_timestamp_ms,
            first_timestamp_ms: i64::MAX,
            begun_ms: i64::MIN,
            stage: SegmentStage::Sealed,
            has_producers,
            entries: None,
        };
        return Ok(RecoveredSegment {
            state,
            file_len: footer.position,
            truncated_bytes: 0,
            gaps: Vec::new(),
            loss: check_length(shared, &path, base, footer),
            may_be_truncated: false,
        });
    }
    count(&shared.counters.scanned_segments, 1);
    let fail = |operation: &'static str| {
        let path = &path;
        move |error: std::io::Error| IoFailure::new(operation, path, &error)
    };
    let file = shared
        .disk
        .open(&path, OpenMode::Existing)
        .map_err(fail("open"))?;
    let mut file_len = file.len().map_err(fail("read"))?;
    let index = read_index(shared, &index_path, base);
    let (mut entries, mut has_producers) = (index.entries, index.has_producers);
    let last_indexed = entries.last().copied();
    entries.retain(|entry| entry.position <= file_len);
    let flushed = entries.len();
    let start = entries.last().copied().unwrap_or(segment_start(base));
    let bytes_max = shared.options.batch_bytes_max;
    let below = next_base.unwrap_or(Offset::MAX);
    let tail_bytes = match next_base {
        None => TailBytes::Reserved,
        Some(_) => TailBytes::Unknown,
    };
    let mut found = scan(&*file, start, below, bytes_max, tail_bytes).map_err(fail("read"))?;
    entries.append(&mut found.entries);
    has_producers |= found.has_producers;
    // If valid batches follow the invalid bytes, these are a corrupt region, not a torn tail. The
    // first batch after the region gets an index entry, which lets readers skip the region.
    let mut gaps = Vec::new();
    let content_end = found.position + found.torn_bytes;
    while found.torn_bytes > 0 && gaps.len() < CORRUPT_REGIONS_MAX {
        let starts = found.position + 1..content_end;
        let offsets = found.end..below.min(found.end.saturating_add(OFFSET_GAP_MAX));
        let next = find_batch(&*file, starts, offsets, bytes_max);
        let Some((position, offset)) = next.map_err(fail("read"))? else {
            break;
        };
        let bytes = position - found.position;
        tracing::error!(
            file = %path,
            offset = found.end,
            position = found.position,
            bytes,
            "corrupt region in the log left out"
        );
        gaps.push((found.end..offset, bytes));
        let next = IndexEntry {
            offset,
            position,
            max_timestamp_ms: found.max_timestamp_ms,
        };
        entries.push(next);
        let tail_bytes = TailBytes::ZerosFrom(content_end);
        found = scan(&*file, next, below, bytes_max, tail_bytes).map_err(fail("read"))?;
        entries.append(&mut found.entries);
        has_producers |= found.has_producers;
    }
    let mut synced = start.position;
    if found.torn_bytes > 0 {
        tracing::warn!(
            file = %path,
            offset = found.end,
            position = found.position,
            dropped_bytes = found.torn_bytes,
            "torn tail of the log cut off"
        );
        count(&shared.counters.truncated_bytes, found.torn_bytes);
    }
    // Writers append without gaps, so a write that a kill has interrupted begins at `position`.
    // Zeros there mean that the rest is reserved space, which need not be cut off. A power loss may
    // have kept later blocks and lost earlier ones, so after a restart of the machine the unread
    // rest is cut off, too.
    if found.torn_bytes > 0 || (found.unread_bytes > 0 && !same_boot) {
        // The truncation must be durable before the next append: otherwise the bytes that it
        // removes could reappear after new batches.
        file.set_len(found.position).map_err(fail("cut"))?;
        file.sync_data().map_err(fail("sync"))?;
        if let Ok(index) = shared.disk.open(&index_path, OpenMode::Existing) {
            let len = (flushed * INDEX_ENTRY_BYTES) as u64;
            index.set_len(len).map_err(fail("cut the index of"))?;
        }
        file_len = found.position;
        synced = found.position;
    }
    let has_reserved = file_len >= found.position + BATCH_HEADER_BYTES as u64;
    let mut may_be_truncated = !has_reserved
        && last_indexed.is_none_or(|last_indexed| last_indexed.position != found.position);
    if next_base.is_none() {
        if !has_reserved {
            // Reserves the space that is missing, so that the next start does not report the same
            // damage again.
            let reserved = found.position + BATCH_HEADER_BYTES as u64;
            file.set_len(reserved).map_err(fail("extend"))?;
        }
        let is_begun = !create_index(shared, &index_path);
        // An empty file without an index is no damage: a kill came before the writer had reserved
        // space and created the index.
        may_be_truncated &= is_begun || file_len > 0;
    }
    let last_indexed = last_indexed.filter(|last_indexed| {
        last_indexed.position > found.position && last_indexed.offset > found.end
    });
    let loss = last_indexed
        .map(|last_indexed| truncation_loss(&path, found.position, found.end, last_indexed));
    let state = SegmentState {
        end: found.end,
        len: found.position,
        synced,
        max_timestamp_ms: found.max_timestamp_ms,
        first_timestamp_ms: first_timestamp(&*file, found.position).map_err(fail("read"))?,
        begun_ms: i64::MIN,
        stage: match next_base {
            None => SegmentStage::Active,
            Some(_) => SegmentStage::Rolled,
        },
        has_producers,
        entries: Some((entries, flushed)),
    };
    Ok(RecoveredSegment {
        state,
        file_len,
        truncated_bytes: found.torn_bytes,
        gaps,
        loss,
        may_be_truncated,
    })
}

/// The start of a segment, as an index entry.
fn segment_start(base: Offset) -> IndexEntry {
    IndexEntry {
        offset: base,
        position: 0,
        max_timestamp_ms: i64::MIN,
    }
}

/// The loss, if the file of a sealed segment is shorter than its footer says. A file that cannot be
/// opened is reported by the first read.
fn check_length(shared: &Shared, path: &str, base: Offset, footer: IndexEntry) -> Option<DataLoss> {
    let file = shared.disk.open(path, OpenMode::Existing).ok()?;
    let file_len = file.len().ok().filter(|len| *len < footer.position)?;
    let index = read_index(shared, &path.replace(".log", ".index"), base);
    let before = index.entries.partition_point(|it| it.position <= file_len);
    let start = index.entries[..before].last().copied();
    let start = start.unwrap_or(segment_start(base));
    let bytes_max = shared.options.batch_bytes_max;
    let found = scan(&*file, start, footer.offset, bytes_max, TailBytes::Unknown);
    let (position, end) = found.map_or((start.position, start.offset), |it| (it.position, it.end));
    Some(truncation_loss(path, position, end, footer))
}

/// The highest timestamp of the first batch of a segment with `len` bytes of batches.
fn first_timestamp(file: &dyn DiskFile, len: u64) -> std::io::Result<i64> {
    let mut header = [0; BATCH_HEADER_BYTES];
    if len < BATCH_HEADER_BYTES as u64 || read_full(file, &mut header, 0)? < header.len() {
        return Ok(i64::MAX);
    }
    Ok(Batch::peek_max_timestamp(&header))
}

/// The footer of a sealed segment (the last item of its index), and whether the segment may contain
/// batches of idempotent producers.
fn read_footer(disk: &dyn Disk, path: &str, base: Offset) -> Option<(IndexEntry, bool)> {
    let file = disk.open(path, OpenMode::Existing).ok()?;
    let position = file.len().ok()?.checked_sub(INDEX_ENTRY_BYTES as u64)?;
    let mut bytes = [0; INDEX_ENTRY_BYTES];
    read_full(&*file, &mut bytes, position).ok()?;
    match decode_index_item(base, &bytes)? {
        (IndexItem::Footer(footer), has_producers) if position % INDEX_ENTRY_BYTES as u64 == 0 => {
            Some((footer, has_producers))
        }
        _ => None,
    }
}
