//! Finds the end of a segment that was not sealed.

use std::io;
use std::ops::Range;

use bytes::BytesMut;

use crate::batch::{BATCH_HEADER_BYTES, Batch, Offset};
use crate::disk::{BLOCK_BYTES, DiskFile, read_full};
use crate::partition::read::is_misplaced;
use crate::segment::index::{INDEX_INTERVAL_BYTES, IndexEntry};

/// Bytes of one read; more for a larger batch.
const WINDOW_BYTES: usize = 1 << 20;

/// Bytes of the first read, which is smaller because most segments have only reserved space after
/// the last index entry.
const FIRST_WINDOW_BYTES: usize = 64 << 10;

/// With this many zero bytes in place of the next batch, the rest counts as reserved space, see
/// [`TailBytes::Reserved`]: the kernel keeps or loses whole blocks, and a batch header is never all
/// zeros.
const ZEROS_CHECKED_BYTES: u64 = BLOCK_BYTES;

/// The read budget of a search, as a multiple of the bytes that it searches. Verifying candidate
/// batches uses it up, and the search then ends, so that a file full of forged batch headers cannot
/// delay the start.
const SEARCH_READS_MAX: u64 = 4;

/// Maximum gap in the offsets within a segment that was never compacted: failed appends leave only
/// small holes there, because larger ones are between segments. A batch farther ahead is invalid
/// (no checksum covers its base offset).
pub(crate) const OFFSET_GAP_MAX: u64 = 1 << 24;

/// A block of zeros to compare reserved space with.
static ZEROS: [u8; 4096] = [0; 4096];

/// The result of a scan.
pub(crate) struct SegmentScan {
    /// Position after the last valid batch.
    pub(crate) position: u64,
    /// Offset after the last record.
    pub(crate) end: Offset,
    pub(crate) max_timestamp_ms: i64,
    /// Whether there were batches of idempotent producers.
    pub(crate) has_producers: bool,
    /// Index entries for the batches that were scanned.
    pub(crate) entries: Vec<IndexEntry>,
    /// Length of the torn tail: the bytes from `position` to the last one that is not zero.
    pub(crate) torn_bytes: u64,
    /// Bytes after `position` that count as reserved space although they were not read.
    pub(crate) unread_bytes: u64,
}

/// The bytes that may follow the last valid batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailBytes {
    /// Any bytes: all of them are read.
    Unknown,
    /// Reserved space, if they begin with zeros: then the rest is not read. The zeros of a prepared
    /// segment are written to the disk, so reading them in thousands of partitions would delay the
    /// start.
    Reserved,
    /// Any bytes up to this position, only zeros after it.
    ZerosFrom(u64),
}

/// Reads valid batches from a known boundary on. The scan ends at the first bytes that are no valid
/// batch, at a batch whose base offset is below the end of the batch before (left over from an
/// earlier use of the file), or at a batch whose end offset is higher than `below`, the base offset
/// of the next segment.
pub(crate) fn scan(
    file: &dyn DiskFile,
    from: IndexEntry,
    below: Offset,
    batch_bytes_max: u64,
    tail_bytes: TailBytes,
) -> io::Result<SegmentScan> {
    let file_len = file.len()?;
    let mut scan = SegmentScan {
        position: from.position,
        end: from.offset,
        max_timestamp_ms: from.max_timestamp_ms,
        has_producers: false,
        entries: Vec::new(),
        torn_bytes: 0,
        unread_bytes: 0,
    };
    let mut last_entry = from.position;
    let mut window_bytes = FIRST_WINDOW_BYTES;
    'windows: loop {
        let left = file_len.saturating_sub(scan.position);
        let mut window = BytesMut::zeroed(window_bytes.min(left as usize));
        let got = read_full(file, &mut window, scan.position)?;
        window.truncate(got);
        let window = window.freeze();
        let mut at = 0;
        loop {
            let rest = &window[at..];
            let wanted = match Batch::peek_len(rest) {
                Ok(len) => len,
                Err(_) if rest.len() < BATCH_HEADER_BYTES => BATCH_HEADER_BYTES,
                Err(_) => break 'windows,
            };
            if wanted > rest.len() {
                let left = file_len.saturating_sub(scan.position);
                if wanted as u64 > left || wanted as u64 > batch_bytes_max {
                    break 'windows;
                }
                window_bytes = wanted.max(WINDOW_BYTES);
                continue 'windows;
            }
            // `Offset::MAX` means the last segment, which was never compacted.
            let last = match below {
                Offset::MAX => scan.end.saturating_add(OFFSET_GAP_MAX),
                _ => below,
            };
            let bases = scan.end..last;
            let next = rest.get(wanted..wanted + BATCH_HEADER_BYTES);
            match Batch::parse_stored(window.slice(at..at + wanted)) {
                Ok(batch)
                    if bases.contains(&batch.base_offset())
                        && batch.end_offset() <= below
                        && !is_misplaced(&batch, scan.end, next) =>
                {
                    if scan.position - last_entry >= INDEX_INTERVAL_BYTES {
                        last_entry = scan.position;
                        scan.entries.push(IndexEntry {
                            offset: batch.base_offset(),
                            position: scan.position,
                            max_timestamp_ms: scan.max_timestamp_ms,
                        });
                    }
                    at += wanted;
                    scan.position += wanted as u64;
                    scan.end = batch.end_offset();
                    scan.has_producers |= batch.producer_id() >= 0;
                    scan.max_timestamp_ms = scan.max_timestamp_ms.max(batch.max_timestamp_ms());
                }
                _ => break 'windows,
            }
        }
    }
    if let TailBytes::ZerosFrom(end) = tail_bytes {
        scan.torn_bytes = end.saturating_sub(scan.position);
        return Ok(scan);
    }
    let checked_end = scan.position.saturating_add(ZEROS_CHECKED_BYTES);
    if tail_bytes == TailBytes::Reserved
        && checked_end < file_len
        && torn_bytes(file, scan.position, checked_end)? == 0
    {
        scan.unread_bytes = file_len - scan.position;
        return Ok(scan);
    }
    scan.torn_bytes = torn_bytes(file, scan.position, file_len)?;
    Ok(scan)
}

/// Searches for the first valid batch that begins at a position in `starts` and whose offsets are
/// within `offsets`. Returns its position and base offset.
///
/// The payload of a message may contain a valid batch, which is then taken for a stored one. That
/// is harmless: the producer of the message could have published those records as well.
pub(crate) fn find_batch(
    file: &dyn DiskFile,
    starts: Range<u64>,
    offsets: Range<Offset>,
    batch_bytes_max: u64,
) -> io::Result<Option<(u64, Offset)>> {
    let file_len = file.len()?;
    // A header that begins at the end of the range extends beyond it.
    let last_header = BATCH_HEADER_BYTES as u64 - 1;
    let end = file_len.min(starts.end.saturating_add(last_header));
    let bytes = end.saturating_sub(starts.start);
    let mut left_to_read = bytes
        .saturating_mul(SEARCH_READS_MAX)
        .saturating_add(batch_bytes_max);
    let mut window = vec![0; WINDOW_BYTES.min(bytes as usize)];
    let mut start = starts.start;
    loop {
        let wanted = window.len().min(end.saturating_sub(start) as usize);
        let count = read_full(file, &mut window[..wanted], start)?;
        for (at, header) in window[..count].windows(BATCH_HEADER_BYTES).enumerate() {
            let Ok(len) = Batch::peek_len(header) else {
                continue;
            };
            let position = start + at as u64;
            let fits = len as u64 <= batch_bytes_max.min(file_len - position);
            if !fits || !offsets.contains(&Batch::peek_base_offset(header)) {
                continue;
            }
            let Some(left) = left_to_read.checked_sub(len as u64) else {
                return Ok(None);
            };
            left_to_read = left;
            let mut bytes = BytesMut::zeroed(len);
            let got = read_full(file, &mut bytes, position)?;
            bytes.truncate(got);
            if let Ok(batch) = Batch::parse_stored(bytes.freeze())
                && batch.end_offset() <= offsets.end
            {
                return Ok(Some((position, batch.base_offset())));
            }
        }
        if count < window.len() || count < BATCH_HEADER_BYTES {
            return Ok(None);
        }
        start += (count - BATCH_HEADER_BYTES + 1) as u64;
    }
}

/// Distance from `position` to the end of the last byte that is not zero.
fn torn_bytes(file: &dyn DiskFile, position: u64, file_len: u64) -> io::Result<u64> {
    let mut last = 0;
    let mut at = position;
    let mut window = vec![0; WINDOW_BYTES.min(file_len.saturating_sub(position) as usize)];
    while at < file_len {
        let wanted = (window.len() as u64).min(file_len - at) as usize;
        let count = read_full(file, &mut window[..wanted], at)?;
        if count == 0 {
            break;
        }
        for (block, bytes) in window[..count].chunks(ZEROS.len()).enumerate() {
            // Compares whole blocks first, because nearly all are zeros.
            if bytes != &ZEROS[..bytes.len()]
                && let Some(index) = bytes.iter().rposition(|byte| *byte != 0)
            {
                last = at + (block * ZEROS.len() + index) as u64 + 1 - position;
            }
        }
        at += count as u64;
    }
    Ok(last)
}
