//! The damaged regions of a segment: each is reported once, and skipped by all readers.
//!
//! A region begins at a position at which a batch is expected and is not found. It ends at the next
//! batch with a valid checksum or, if the disk cannot read the bytes, at the next batch boundary in
//! the index. The end is remembered, so that only the first reader searches for it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset};
use crate::disk::{DiskFile, read_full};
use crate::metrics::count;
use crate::segment::Segment;
use crate::segment::index::boundary_after;
use crate::segment::scan::find_batch;
use crate::shared::Shared;

/// Bytes of one step of a search. A step with an unreadable block is skipped as a whole.
const SEARCH_STEP_BYTES: u64 = 64 << 10;

/// The damaged regions of a segment, by their first position.
pub(crate) type Damages = BTreeMap<u64, Damage>;

/// The known extent of a damaged region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The region extends at least to this position; the search is not finished.
    AtLeast(u64),
    /// The region ends at this position, with a valid batch or the segment's end.
    UpTo(u64),
}

/// The fault at a position at which a batch is expected.
pub(crate) enum ReadFault {
    /// The bytes are no valid batch, for this reason.
    NoBatch(String),
    /// The disk cannot read the bytes.
    Unreadable(std::io::Error),
    /// The file ends before the segment does.
    FileEnds,
}

/// Finds the end of the damaged region that begins at `position`, and reports the region. Returns
/// the position after it; `None` if the bytes that may be scanned in this turn (`budget_bytes`) are
/// used up, so that the reader must call again. `after` is the end offset of the last batch before
/// the region, if it is known.
pub(crate) fn skip_damage(
    shared: &Shared,
    segment: &Segment,
    file: &dyn DiskFile,
    position: u64,
    after: Option<Offset>,
    fault: &ReadFault,
    budget_bytes: &mut u64,
) -> Option<u64> {
    let known = segment.damages.lock().get(&position).copied();
    let searched = match known {
        Some(Damage::UpTo(next)) => return Some(next),
        Some(Damage::AtLeast(searched)) => searched,
        None => position,
    };
    let offsets = after.unwrap_or(segment.base)..segment.end();
    let bytes_max = shared.options.batch_bytes_max;
    let found = match fault {
        ReadFault::FileEnds => Some((segment.len(), Some(segment.end()))),
        ReadFault::Unreadable(_) => {
            let boundary = segment.with_index(|entries| boundary_after(entries, position));
            let next = boundary.flatten().unwrap_or(segment.len());
            Some((next, base_offset_at(segment, file, next)))
        }
        ReadFault::NoBatch(_) => {
            let mut searched = searched;
            loop {
                let left = segment.len().saturating_sub(searched);
                if left == 0 {
                    break Some((segment.len(), Some(segment.end())));
                }
                if *budget_bytes == 0 {
                    segment.note_damage(position, Damage::AtLeast(searched));
                    break None;
                }
                let until = searched + left.min(SEARCH_STEP_BYTES);
                *budget_bytes = budget_bytes.saturating_sub(until - searched);
                let starts = searched + 1..until + 1;
                match find_batch(file, starts, offsets.clone(), bytes_max) {
                    Ok(Some((next, offset))) => break Some((next, Some(offset))),
                    // A part that cannot be read is skipped, as if it had no batch.
                    Ok(None) | Err(_) => searched = until,
                }
            }
        }
    };
    let (next, offset) = found?;
    // In a truncated file each reader meets the missing bytes at another position. They are
    // reported only once.
    let is_new = next < segment.len() || segment.end_of_damage(next - 1).is_none();
    segment.note_damage(position, Damage::UpTo(next));
    segment.note_unchecked_from(position);
    if is_new {
        let loss = DataLoss {
            file: segment.log_path(),
            position,
            bytes: next.saturating_sub(position),
            reason: match fault {
                ReadFault::NoBatch(reason) => reason.clone(),
                ReadFault::Unreadable(error) => error.to_string(),
                ReadFault::FileEnds => REASON_TRUNCATED.to_owned(),
            },
            offsets: after.zip(offset).map(|(from, to)| from..to),
        };
        loss.report(shared);
    }
    Some(next)
}

/// The base offset of the batch at a position; `None` if it cannot be read.
fn base_offset_at(segment: &Segment, file: &dyn DiskFile, position: u64) -> Option<Offset> {
    if position == segment.len() {
        return Some(segment.end());
    }
    let mut header = [0; BATCH_HEADER_BYTES];
    let count = read_full(file, &mut header, position).ok()?;
    let is_batch = count == header.len() && Batch::peek_len(&header).is_ok();
    let offset = is_batch.then(|| Batch::peek_base_offset(&header))?;
    (segment.base..segment.end())
        .contains(&offset)
        .then_some(offset)
}

/// Bytes of a segment file that are lost.
#[derive(Clone, Debug)]
pub(crate) struct DataLoss {
    pub(crate) file: String,
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) reason: String,
    /// The offsets of the lost messages, if they are known.
    pub(crate) offsets: Option<Range<Offset>>,
}

/// A [`DataLoss::reason`]: the file is shorter than the data that was written to it.
pub(crate) const REASON_TRUNCATED: &str = "the file ends too early";
/// A [`DataLoss::reason`]: the file does not exist.
pub(crate) const REASON_MISSING: &str = "the file is gone";

impl DataLoss {
    /// Counts the loss and logs it. Call it once for each loss.
    pub(crate) fn report(&self, shared: &Shared) {
        count(&shared.counters.corrupt_regions, 1);
        let DataLoss {
            file,
            position,
            bytes,
            reason,
            offsets,
        } = self;
        let Some(Range { start, end }) = offsets else {
            tracing::error!(
                %file, position, bytes, %reason,
                "corrupt region in the log: messages may be lost"
            );
            return;
        };
        let messages = end.saturating_sub(*start);
        count(&shared.counters.lost_messages, messages);
        tracing::error!(
            %file, position, bytes, %reason, messages, from = start, to = end,
            "corrupt region in the log: the messages with offsets from..to are lost"
        );
    }
}
