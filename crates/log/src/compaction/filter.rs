//! Decides which records compaction keeps, and rebuilds their batches. Uses no file and no clock.
//!
//! A batch keeps its base offset, last offset delta and producer. Kept records are copied byte for
//! byte. When a pass first keeps a tombstone (a record without a value) of a batch, it sets the
//! batch's *delete horizon*, as Kafka does: it sets attribute bit 6, stores the time from which on
//! the tombstones may be removed in the base timestamp, and changes the records' timestamp deltas
//! accordingly. So the horizon needs no field of its own, is stored in the batch, and readers see
//! the same timestamps as before.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;

use crate::batch::record::RecordCursor;
use crate::batch::varint::{VARINT_BYTES_MAX, encoded_len, get_i32, get_i64, put, zigzag};
use crate::batch::{BATCH_HEADER_BYTES, Batch, CRC_FROM, Codec, Offset};
use crate::error::BatchError;

/// Estimated memory of a key in the map, in bytes: 24 for the entry, a load factor between 7/16 and
/// 7/8, and the old table, which exists beside the new one while the map grows.
const KEY_BYTES: usize = 72;

/// The newest offset of each key. Keys are identified by 128 bits: two independent hashes with
/// random secrets, so that keys collide neither by chance nor by an attacker's choice.
pub(crate) struct OffsetMap {
    newest: HashMap<(u64, u64), Offset, PrehashedKey>,
    secrets: [RandomState; 2],
    keys_max: usize,
    /// The keys of records below this offset are in the map.
    pub(crate) end: Offset,
}

/// A hasher for keys that are hashes already: XORs their halves.
#[derive(Clone, Copy, Default)]
struct PrehashedKey(u64);

impl BuildHasher for PrehashedKey {
    type Hasher = PrehashedKey;

    fn build_hasher(&self) -> PrehashedKey {
        PrehashedKey(0)
    }
}

impl Hasher for PrehashedKey {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 ^= value;
    }
}

impl OffsetMap {
    /// An empty map of at most `bytes_max` bytes, for the keys of records from offset `from` on.
    pub(crate) fn new(bytes_max: usize, from: Offset) -> OffsetMap {
        OffsetMap {
            newest: HashMap::default(),
            secrets: [RandomState::new(), RandomState::new()],
            keys_max: (bytes_max / KEY_BYTES).max(1),
            end: from,
        }
    }

    /// Whether the keys of this batch may not fit. An empty map takes any batch.
    pub(crate) fn is_full_for(&self, batch: &Batch) -> bool {
        !self.newest.is_empty() && self.newest.len() + batch.count() as usize > self.keys_max
    }

    /// Adds the keys of an uncompressed batch.
    pub(crate) fn add(&mut self, batch: &Batch) -> Result<(), BatchError> {
        let mut cursor = batch.records();
        while let Some((offset, record)) = cursor.next_record()? {
            if let Some(key) = record.key {
                self.newest.insert(self.hash(key), offset);
            }
        }
        Ok(())
    }

    /// Whether a record after `offset` has this key.
    fn has_newer(&self, key: &[u8], offset: Offset) -> bool {
        let newest = self.newest.get(&self.hash(key));
        newest.is_some_and(|newest| *newest > offset)
    }

    fn hash(&self, key: &[u8]) -> (u64, u64) {
        (self.secrets[0].hash_one(key), self.secrets[1].hash_one(key))
    }
}

/// Filters the records of batches.
pub(crate) struct RecordFilter<'a> {
    pub(crate) map: &'a OffsetMap,
    /// The current time, in milliseconds since 1970.
    pub(crate) now_ms: i64,
    pub(crate) delete_retention_ms: u64,
    /// Whether all earlier batches were cleaned. If not, tombstones must stay, because older
    /// records of their keys may be left.
    pub(crate) drops_tombstones: bool,
}

/// The records of a batch that are kept.
pub(crate) enum KeptRecords {
    /// All of them: the batch does not change.
    All,
    /// The records of this new batch, which may have none.
    Some(Batch),
}

/// Counts over all batches to which a filter was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterCounts {
    pub(crate) removed: u64,
    pub(crate) without_key: u64,
    /// The earliest delete horizon of the tombstones that are kept, in milliseconds since 1970.
    pub(crate) horizon_ms: Option<i64>,
}

impl RecordFilter<'_> {
    /// Filters the records of a batch that is uncompressed and not a control batch.
    pub(crate) fn apply(
        &self,
        batch: &Batch,
        counts: &mut FilterCounts,
    ) -> Result<KeptRecords, BatchError> {
        let horizon_ms = batch.delete_horizon_ms();
        let mut kept = Vec::new();
        let mut tombstones = false;
        let mut removed = 0;
        let mut cursor = batch.records();
        loop {
            let start = cursor.position() as usize;
            let Some((offset, record)) = cursor.next_record()? else {
                break;
            };
            let Some(key) = record.key else {
                counts.without_key += 1;
                kept.push((start..cursor.position() as usize, record.timestamp_ms));
                continue;
            };
            let is_mapped = offset < self.map.end;
            let is_tombstone = record.value.is_none();
            let is_due = is_tombstone && horizon_ms.is_some_and(|due| due <= self.now_ms);
            let is_due = is_due && self.drops_tombstones;
            if is_mapped && (is_due || self.map.has_newer(key, offset)) {
                removed += 1;
                continue;
            }
            tombstones |= is_tombstone;
            kept.push((start..cursor.position() as usize, record.timestamp_ms));
        }
        counts.removed += removed;
        let mut fresh_horizon = None;
        if tombstones && batch.end_offset() <= self.map.end {
            let retention_ms = i64::try_from(self.delete_retention_ms).unwrap_or(i64::MAX);
            let due = horizon_ms.unwrap_or(self.now_ms.saturating_add(retention_ms));
            fresh_horizon = horizon_ms.is_none().then_some(due);
            // A tombstone whose horizon has passed but which must stay (`drops_tombstones` is
            // false) does not count, because otherwise a new pass would be due at once. It is
            // removed by a later pass that runs for another reason.
            if fresh_horizon.is_some() || due > self.now_ms {
                counts.horizon_ms = Some(counts.horizon_ms.map_or(due, |other| other.min(due)));
            }
        }
        if removed == 0 && fresh_horizon.is_none() {
            return Ok(KeptRecords::All);
        }
        rebuild(batch, &kept, fresh_horizon).map(KeptRecords::Some)
    }
}

impl Batch {
    /// The time from which on compaction may remove the batch's tombstones, in milliseconds since
    /// 1970; `None` until compaction has set it.
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        (self.attributes() & HORIZON_BIT != 0).then(|| self.base_timestamp_ms())
    }
}

/// Attribute bit 6.
const HORIZON_BIT: u16 = 0x40;

/// The same batch with only these records (byte range and timestamp of each), uncompressed.
fn rebuild(
    batch: &Batch,
    kept: &[(std::ops::Range<usize>, i64)],
    horizon_ms: Option<i64>,
) -> Result<Batch, BatchError> {
    let old = batch.bytes();
    let bytes: usize = kept.iter().map(|(range, _)| range.len()).sum();
    let varint_bytes = kept.len() * VARINT_BYTES_MAX;
    let mut out = Vec::with_capacity(BATCH_HEADER_BYTES + bytes + varint_bytes);
    out.extend_from_slice(&old[..BATCH_HEADER_BYTES]);
    for (range, timestamp_ms) in kept {
        match horizon_ms {
            None => out.extend_from_slice(&old[range.clone()]),
            Some(horizon_ms) => {
                let delta = timestamp_ms.wrapping_sub(horizon_ms);
                let malformed = BatchError::Record {
                    position: range.start as u32,
                };
                copy_with_delta(&old[range.clone()], delta, &mut out).ok_or(malformed)?;
            }
        }
    }
    let length = (out.len() - 12) as u32;
    out[8..12].copy_from_slice(&length.to_be_bytes());
    if let Some(horizon_ms) = horizon_ms {
        let attributes = batch.attributes() | HORIZON_BIT;
        out[21..23].copy_from_slice(&attributes.to_be_bytes());
        out[27..35].copy_from_slice(&horizon_ms.to_be_bytes());
    }
    // With `LogAppendTime`, all records have the header's maximum timestamp, so it stays. An empty
    // batch keeps its maximum, too.
    let newest = kept.iter().map(|(_, timestamp_ms)| *timestamp_ms).max();
    if let (Some(newest), false) = (newest, batch.has_append_time()) {
        out[35..43].copy_from_slice(&newest.to_be_bytes());
    }
    out[57..61].copy_from_slice(&(kept.len() as u32).to_be_bytes());
    let crc = crc32c::crc32c(&out[CRC_FROM..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    // Validates the new batch in the same way as a read does.
    Batch::parse_stored(Bytes::from(out))
}

/// Copies a record with another timestamp delta.
fn copy_with_delta(record: &[u8], delta: i64, out: &mut Vec<u8>) -> Option<()> {
    let mut at = 0;
    let length = get_i32(record, &mut at)?;
    let attributes = *record.get(at)?;
    at += 1;
    let before = at;
    get_i64(record, &mut at)?;
    let rest = &record[at..];
    let length = i64::from(length) - (at - before) as i64 + encoded_len(zigzag(delta)) as i64;
    let mut head = [0; 2 * VARINT_BYTES_MAX + 1];
    let mut end = put(&mut head, 0, zigzag(length));
    head[end] = attributes;
    end = put(&mut head, end + 1, zigzag(delta));
    out.extend_from_slice(&head[..end]);
    out.extend_from_slice(rest);
    Some(())
}

/// Compresses a filtered batch; `None` if it has no record left, unless `keeps_empty`.
pub(crate) fn compress_kept(
    kept: Batch,
    codec: Codec,
    keeps_empty: bool,
) -> std::io::Result<Option<Batch>> {
    if kept.count() == 0 {
        return Ok(keeps_empty.then_some(kept));
    }
    kept.compress(codec).map(Some)
}

/// Whether a cursor can walk all records of a batch; asserted before a batch is written.
pub(crate) fn is_walkable(batch: &Batch) -> bool {
    let mut cursor = RecordCursor::at(batch, BATCH_HEADER_BYTES as u32);
    let mut count = 0;
    while let Ok(Some(_)) = cursor.skip_record() {
        count += 1;
    }
    count == batch.count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::batch::builder::BatchBuilder;

    /// A batch with this base offset and a record per word; `-` marks a tombstone, `_` a record
    /// without a key.
    fn batch(base: Offset, keys: &str) -> Batch {
        let mut builder = BatchBuilder::with_capacity(100, 1_000).with_producer(9, 1, 5);
        for (number, word) in keys.split(' ').enumerate() {
            let timestamp_ms = 1_000 + number as i64;
            match word.strip_prefix('-') {
                Some(key) => builder.push_at(timestamp_ms, Some(key.as_bytes()), None, &[]),
                None if word == "_" => builder.push_at(timestamp_ms, None, Some(b"v"), &[]),
                None => builder.push_at(timestamp_ms, Some(word.as_bytes()), Some(b"v"), &[]),
            }
        }
        builder.finish().into_unassigned().assign_offsets(base)
    }

    fn show(batch: &Batch) -> String {
        assert!(is_walkable(batch));
        let mut cursor = batch.records();
        let mut words = Vec::new();
        while let Some((offset, record)) = cursor.next_record().unwrap() {
            let key = record.key.map_or("_".into(), String::from_utf8_lossy);
            let sign = if record.value.is_none() { "-" } else { "" };
            let time = record.timestamp_ms;
            words.push(format!("{offset}:{sign}{key}@{time}"));
        }
        words.join(" ")
    }

    fn check(keys: [&str; 2], now_ms: i64, expected: [&str; 2]) -> (Vec<Batch>, FilterCounts) {
        let batches = [batch(10, keys[0]), batch(20, keys[1])];
        let mut map = OffsetMap::new(10_000, 0);
        batches.iter().for_each(|batch| map.add(batch).unwrap());
        map.end = 30;
        let filter = RecordFilter {
            map: &map,
            now_ms,
            delete_retention_ms: 500,
            drops_tombstones: true,
        };
        let mut counts = FilterCounts::default();
        let mut all = Vec::new();
        for (batch, expected) in batches.iter().zip(expected) {
            let left = match filter.apply(batch, &mut counts).unwrap() {
                KeptRecords::All => batch.clone(),
                KeptRecords::Some(left) => left,
            };
            assert_eq!(show(&left), expected);
            assert_eq!(left.base_offset(), batch.base_offset());
            assert_eq!(left.end_offset(), batch.end_offset());
            assert_eq!((left.producer_id(), left.base_sequence()), (9, 5));
            all.push(left);
        }
        (all, counts)
    }

    #[test]
    fn the_newest_of_each_key_stays() {
        let expected = ["11:b@1001", "20:a@1000 21:c@1001"];
        let (batches, counts) = check(["a b c", "a c"], 0, expected);
        assert_eq!((batches[0].count(), counts.removed), (1, 2));
        assert_eq!(batches[0].max_timestamp_ms(), 1_001);
        let (batches, _) = check(["a b", "a b"], 0, ["", "20:a@1000 21:b@1001"]);
        assert_eq!(
            (batches[0].count(), batches[0].max_timestamp_ms()),
            (0, 1_001)
        );
    }

    #[test]
    fn records_without_a_key_stay_and_are_counted() {
        let expected = ["11:_@1001", "20:_@1000 21:a@1001"];
        let (_, counts) = check(["a _", "_ a"], 0, expected);
        assert_eq!(counts.without_key, 2);
    }

    #[test]
    fn tombstones_are_removed_once_their_horizon_has_passed() {
        let (batches, counts) = check(
            ["a b", "-a _"],
            5_000,
            ["11:b@1001", "20:-a@1000 21:_@1001"],
        );
        assert_eq!(counts.horizon_ms, Some(5_500));
        assert_eq!(batches[0].delete_horizon_ms(), None);
        let marked = &batches[1];
        assert_eq!(marked.delete_horizon_ms(), Some(5_500));
        let mut map = OffsetMap::new(10_000, 30);
        map.end = 30;
        for (now_ms, expected) in [(5_499, "20:-a@1000 21:_@1001"), (5_500, "21:_@1001")] {
            let filter = RecordFilter {
                map: &map,
                now_ms,
                delete_retention_ms: 500,
                drops_tombstones: true,
            };
            let left = match filter.apply(marked, &mut FilterCounts::default()).unwrap() {
                KeptRecords::All => marked.clone(),
                KeptRecords::Some(left) => left,
            };
            assert_eq!(show(&left), expected);
            assert_eq!(left.delete_horizon_ms(), Some(5_500));
        }
    }

    #[test]
    fn the_map_is_bounded_but_takes_the_first_batch() {
        let mut map = OffsetMap::new(3 * KEY_BYTES, 0);
        let large = batch(0, "a b c d e");
        assert!(!map.is_full_for(&large));
        map.add(&large).unwrap();
        assert!(map.is_full_for(&batch(5, "a")));
    }
}
