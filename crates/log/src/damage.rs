//! The damaged regions of a segment that readers have found: each is told once, and stepped over.
//!
//! A region begins where a batch should and none is. Behind it the next batch is searched whose
//! checksum holds, or, where the disk does not answer, the next boundary that the index knows. The
//! result is remembered, so that it is searched once and not by each reader.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset};
use crate::disk::{DiskFile, read_full};
use crate::metrics::count;
use crate::segment::Segment;
use crate::segment::index::boundary_after;
use crate::segment::scan::find_batch;
use crate::shared::Shared;

/// Bytes that are searched at once: what cannot be read within it is given up.
const SEARCH_BYTES: u64 = 64 << 10;

/// The damaged regions of a segment, by where they begin.
pub(crate) type Damages = BTreeMap<u64, Damage>;

/// The known extent of a damaged region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It reaches at least up to here; somebody goes on searching.
    AtLeast(u64),
    /// Readers go on here: with a batch, or at the segment's end.
    UpTo(u64),
}

/// The fault that a reader has found where a batch should begin.
pub(crate) enum Fault {
    /// Bytes that are no batch, for this reason.
    NoBatch(String),
    /// The disk cannot read it.
    Unreadable(std::io::Error),
    /// The file ends here, before the segment does.
    Ends,
}

/// Steps over a damaged region that begins at `position`: where readers go on, or `None` when they
/// have to come again because `turn` is over, the bytes that may be looked at. `after` is the
/// offset behind the last batch before the region, if that is known.
pub(crate) fn step_over(
    shared: &Shared,
    segment: &Segment,
    file: &dyn DiskFile,
    position: u64,
    after: Option<Offset>,
    fault: &Fault,
    turn: &mut u64,
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
        Fault::Ends => Some((segment.len(), Some(segment.end()))),
        Fault::Unreadable(_) => {
            let boundary = segment.with_index(|entries| boundary_after(entries, position));
            let next = boundary.flatten().unwrap_or(segment.len());
            Some((next, offset_at(segment, file, next)))
        }
        Fault::NoBatch(_) => {
            let mut searched = searched;
            loop {
                let left = segment.len().saturating_sub(searched);
                if left == 0 {
                    break Some((segment.len(), Some(segment.end())));
                }
                if *turn == 0 {
                    segment.note_damage(position, Damage::AtLeast(searched));
                    break None;
                }
                let until = searched + left.min(SEARCH_BYTES);
                *turn = turn.saturating_sub(until - searched);
                let starts = searched + 1..until + 1;
                match find_batch(file, starts, offsets.clone(), bytes_max) {
                    Ok(Some((next, offset))) => break Some((next, Some(offset))),
                    // A part that cannot be read holds no batch for any reader.
                    Ok(None) | Err(_) => searched = until,
                }
            }
        }
    };
    let (next, offset) = found?;
    // One that ends too early is found by each reader where that one would go on.
    let is_new = next < segment.len() || segment.behind_damage(next - 1).is_none();
    segment.note_damage(position, Damage::UpTo(next));
    segment.distrust_from(position);
    if is_new {
        let loss = Loss {
            file: segment.log_path(),
            position,
            bytes: next.saturating_sub(position),
            reason: match fault {
                Fault::NoBatch(reason) => reason.clone(),
                Fault::Unreadable(error) => error.to_string(),
                Fault::Ends => ENDS_EARLY.to_owned(),
            },
            offsets: after.zip(offset).map(|(from, to)| from..to),
        };
        loss.tell(shared);
    }
    Some(next)
}

/// The offset of the batch at a position, if one is there that can be read.
fn offset_at(segment: &Segment, file: &dyn DiskFile, position: u64) -> Option<Offset> {
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

/// A loss of bytes in a file.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) file: String,
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    pub(crate) reason: String,
    /// The messages in it, if that is known.
    pub(crate) offsets: Option<Range<Offset>>,
}

/// A reason for a loss: the file is shorter than what was written to it.
pub(crate) const ENDS_EARLY: &str = "the file ends too early";
/// A reason for a loss: there is no file.
pub(crate) const IS_GONE: &str = "the file is gone";

impl Loss {
    /// Counts it, and says it in the log. Each loss once.
    pub(crate) fn tell(&self, shared: &Shared) {
        count(&shared.counters.corrupt_regions, 1);
        let Loss {
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
