//! Rebuilds the table of idempotent producers at the start, from the snapshot and the headers of
//! the batches after it. Reads neither batches that the snapshot covers nor segments without
//! idempotent batches.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset};
use crate::disk::read_full;
use crate::error::IoFailure;
use crate::partition::RecoveredState;
use crate::producers::ProducerFields;
use crate::producers::snapshot::ProducerSnapshot;
use crate::segment::Segment;
use crate::segment::index::{boundary_after, position_before};
use crate::shared::Shared;

/// Bytes of one read. The bodies of batches that extend beyond it are skipped, not read.
const WINDOW_BYTES: u64 = 64 << 10;

/// Fills the table of a partition whose segments are recovered. `gaps`: ranges of offsets whose
/// batches are lost.
pub(crate) fn recover_producers(
    shared: &Shared,
    state: &mut RecoveredState,
    gaps: &[Range<Offset>],
    snapshot: Option<ProducerSnapshot>,
) -> Result<(), IoFailure> {
    let now_ms = shared.options.clock.now_ms();
    let snapshot = snapshot.unwrap_or_default();
    let is_there = |base: Offset| !gaps.iter().any(|gap| gap.contains(&base));
    state.producers.evicted_ms = snapshot.evicted_ms;
    for mut producer in snapshot.producers {
        // All batches in a snapshot were synced before it was written. A batch that is missing all
        // the same was lost to disk damage, so a retry of it must be accepted.
        producer.earlier_were_lost |= producer
            .batches
            .first()
            .is_some_and(|it| !is_there(it.base));
        producer.batches.retain(|batch| is_there(batch.base));
        if !producer.batches.is_empty() {
            state.producers.insert(producer);
        }
    }
    state.producers.expire(now_ms);
    state.raise_to = state.raise_to.max(snapshot.covered);
    for segment in &state.segments {
        if segment.has_producers() && segment.end() > snapshot.covered {
            let walked = walk_headers(shared, segment, snapshot.covered, |fields, base| {
                // Only headers are read and no checksums are verified, so batches in damaged
                // regions are ignored.
                if is_there(base) {
                    state.producers.recover(fields, base, now_ms);
                }
            })?;
            state.producers.note_written(walked);
        }
    }
    Ok(())
}

/// Walks the headers of a segment's batches from offset `from` on. Returns the number of bytes
/// walked.
fn walk_headers(
    shared: &Shared,
    segment: &Arc<Segment>,
    from: Offset,
    mut note: impl FnMut(&ProducerFields, Offset),
) -> Result<u64, IoFailure> {
    segment.load_index(shared);
    let begin = segment.with_index(|entries| position_before(entries, from));
    let begin = begin.unwrap_or(0);
    let file = segment.file(shared)?;
    let mut position = begin;
    let mut window = vec![0; WINDOW_BYTES as usize];
    while position < segment.len() {
        let wanted = WINDOW_BYTES.min(segment.len() - position) as usize;
        let read = read_full(&*file, &mut window[..wanted], position);
        let count = read.map_err(|error| IoFailure::new("read", &segment.log_path(), &error))?;
        let walked = walk_window(&window[..count], segment, |fields, base| {
            if base >= from {
                note(fields, base);
            }
        });
        position += walked;
        if walked == 0 {
            // A corrupt region: continue at the next index entry.
            let next = segment.with_index(|entries| boundary_after(entries, position));
            match next.flatten() {
                Some(next) => position = next,
                None => break,
            }
        }
    }
    Ok(segment.len() - begin)
}

/// Walks the batches that begin in a window. Returns the position of the next batch, which may be
/// after the window; 0 if the first bytes are no batch of this segment.
fn walk_window(
    window: &[u8],
    segment: &Segment,
    mut note: impl FnMut(&ProducerFields, Offset),
) -> u64 {
    let mut at = 0;
    while let Some(header) = window.get(at..at + BATCH_HEADER_BYTES) {
        let Ok(len) = Batch::peek_len(header) else {
            break;
        };
        let base = Batch::peek_base_offset(header);
        if base < segment.base || base >= segment.end() {
            break;
        }
        if let Some(fields) = ProducerFields::peek(header) {
            note(&fields, base);
        }
        at += len;
        if at >= window.len() {
            break;
        }
    }
    at as u64
}
