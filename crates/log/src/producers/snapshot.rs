//! The snapshot of a partition's idempotent producers, on the disk.
//!
//! The file `producers` in the partition's folder has the state of all producers up to an offset.
//! Recovery adds the batches after this offset, by walking their headers. Only the housekeeping
//! thread writes the file, each time as a new one (`producers.new`, synced, renamed), after all
//! batches that it names were synced. It does not belong to a segment, so it outlives those that
//! retention drops.
//!
//! Little-endian:
//!
//! ```text
//!  byte  0           8           16          24          28
//!       +-----------+-----------+-----------+-----------+----------------+--------+
//!       | magic     | covered   | evicted   | number of | the producers, | crc32c |
//!       | "clvprod2"| offset u64| i64 ms    | prod. u32 | in sequence    | u32    |
//!       +-----------+-----------+-----------+-----------+----------------+--------+
//!
//!  a producer, 20 bytes and its batches, oldest first:
//!       +-----------+-----------+-----------+
//!       | id        | seen i64  | batches   |
//!       | i64       | unix ms   | u32, 1..5 |   top bit: batches before these were lost
//!       +-----------+-----------+-----------+
//!  a batch, 26 bytes:
//!       +-----------+-----------+-----------+-----------+-----------+
//!       | base      | max time  | records   | first se- | epoch     |
//!       | offset u64| i64 ms    | u32       | quence i32| i16       |
//!       +-----------+-----------+-----------+-----------+-----------+
//! ```
//!
//! `evicted` is the last time at which batches of a producer that had not expired were forgotten
//! although they are still in the log, for example because a full table has evicted the producer
//! (`i64::MIN`: never). The CRC-32C covers all bytes before it. A changed layout gets another
//! magic.

use std::sync::Arc;

use crate::batch::{Offset, field};
use crate::disk::{Disk, OpenMode, read_full, replace_file};
use crate::error::IoFailure;
use crate::metrics::count;
use crate::partition::PartitionLog;
use crate::partition::group_commit::try_sync_partitions;
use crate::producers::{ProducerBatch, Producers, REMEMBERED_BATCHES};
use crate::shared::Shared;

/// Name of the file in the partition's folder.
pub(crate) const SNAPSHOT_NAME: &str = "producers";
/// Once this many bytes of idempotent batches follow the snapshot, a new one is written even if no
/// segment is sealed. This bounds the bytes that a start must walk.
pub(crate) const SNAPSHOT_BYTES: u64 = 16 << 20;
/// A clean stop writes a new snapshot if at least this many bytes of idempotent batches follow the
/// last one, so that the next start need not walk them.
pub(crate) const SNAPSHOT_BYTES_AT_CLOSE: u64 = 1 << 20;

const MAGIC: &[u8; 8] = b"clvprod2";
const HEADER_BYTES: usize = 28;
const PRODUCER_BYTES: usize = 20;
const BATCH_BYTES: usize = 26;
/// The top bit in the number of a producer's batches, see [`SnapshotProducer::earlier_were_lost`].
const EARLIER_WERE_LOST: u32 = 1 << 31;
const CRC_BYTES: usize = 4;
/// Maximum bytes of a file that is read: enough for more than a million producers.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The content of a snapshot file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerSnapshot {
    /// The snapshot covers the batches before this offset.
    pub covered: Offset,
    /// When a producer was last left out although it had batches before `covered`, in milliseconds
    /// since 1970; `None`: never.
    pub evicted_ms: Option<i64>,
    /// The producers, with unique ids.
    pub producers: Vec<SnapshotProducer>,
}

/// A producer in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotProducer {
    /// The producer's id, not negative.
    pub id: i64,
    /// When the producer's last batch came, in milliseconds since 1970.
    pub seen_ms: i64,
    /// Whether batches before these were lost, so that retries of them are accepted.
    pub earlier_were_lost: bool,
    /// The producer's last batches in order of epoch and sequence number, at least one and at most
    /// five.
    pub batches: Vec<ProducerBatch>,
}

/// Encodes a snapshot.
pub fn encode_producers(snapshot: &ProducerSnapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&snapshot.covered.to_le_bytes());
    let evicted_ms = snapshot.evicted_ms.unwrap_or(i64::MIN);
    bytes.extend_from_slice(&evicted_ms.to_le_bytes());
    bytes.extend_from_slice(&(snapshot.producers.len() as u32).to_le_bytes());
    for producer in &snapshot.producers {
        bytes.extend_from_slice(&producer.id.to_le_bytes());
        bytes.extend_from_slice(&producer.seen_ms.to_le_bytes());
        let mut count = producer.batches.len() as u32;
        if producer.earlier_were_lost {
            count |= EARLIER_WERE_LOST;
        }
        bytes.extend_from_slice(&count.to_le_bytes());
        for batch in &producer.batches {
            bytes.extend_from_slice(&batch.base.to_le_bytes());
            bytes.extend_from_slice(&batch.timestamp_ms.to_le_bytes());
            bytes.extend_from_slice(&batch.records.to_le_bytes());
            bytes.extend_from_slice(&batch.first_sequence.to_le_bytes());
            bytes.extend_from_slice(&batch.epoch.to_le_bytes());
        }
    }
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Decodes a snapshot; `None` if the bytes are invalid.
pub fn decode_producers(bytes: &[u8]) -> Option<ProducerSnapshot> {
    let content = bytes.len().checked_sub(CRC_BYTES)?;
    let (content, crc) = bytes.split_at(content);
    let header = content.get(..HEADER_BYTES)?;
    let is_ours =
        header.starts_with(MAGIC) && u32::from_le_bytes(field(crc, 0)) == crc32c::crc32c(content);
    if !is_ours {
        return None;
    }
    let covered = u64::from_le_bytes(field(header, 8));
    let evicted_ms = i64::from_le_bytes(field(header, 16));
    let count = u32::from_le_bytes(field(header, 24)) as usize;
    let mut rest = &content[HEADER_BYTES..];
    if count > rest.len() / (PRODUCER_BYTES + BATCH_BYTES) {
        return None;
    }
    let mut producers: Vec<SnapshotProducer> = Vec::with_capacity(count);
    for _ in 0..count {
        producers.push(decode_producer(&mut rest, covered)?);
    }
    let mut ids: Vec<i64> = producers.iter().map(|producer| producer.id).collect();
    ids.sort_unstable();
    let is_sound = rest.is_empty() && ids.windows(2).all(|pair| pair[0] != pair[1]);
    is_sound.then_some(ProducerSnapshot {
        covered,
        evicted_ms: Some(evicted_ms).filter(|it| *it != i64::MIN),
        producers,
    })
}

fn decode_producer(rest: &mut &[u8], covered: Offset) -> Option<SnapshotProducer> {
    let head = rest.split_off(..PRODUCER_BYTES)?;
    let id = i64::from_le_bytes(field(head, 0));
    let seen_ms = i64::from_le_bytes(field(head, 8));
    let count = u32::from_le_bytes(field(head, 16));
    let earlier_were_lost = count & EARLIER_WERE_LOST != 0;
    let count = (count & !EARLIER_WERE_LOST) as usize;
    if id < 0 || !(1..=REMEMBERED_BATCHES).contains(&count) {
        return None;
    }
    let mut batches: Vec<ProducerBatch> = Vec::with_capacity(count);
    for _ in 0..count {
        let bytes = rest.split_off(..BATCH_BYTES)?;
        let batch = ProducerBatch {
            base: u64::from_le_bytes(field(bytes, 0)),
            timestamp_ms: i64::from_le_bytes(field(bytes, 8)),
            records: u32::from_le_bytes(field(bytes, 16)),
            first_sequence: i32::from_le_bytes(field(bytes, 20)),
            epoch: i16::from_le_bytes(field(bytes, 24)),
        };
        let end = batch.base.checked_add(u64::from(batch.records))?;

        let epoch_min = batches.last().map_or(0, |last| last.epoch);
        let is_sound = batch.records > 0
            && batch.first_sequence >= 0
            && batch.epoch >= epoch_min
            && end <= covered;
        if !is_sound {
            return None;
        }
        batches.push(batch);
    }
    Some(SnapshotProducer {
        id,
        seen_ms,
        earlier_were_lost,
        batches,
    })
}

/// A snapshot of the producers up to offset `covered`. Precondition: all records before it are
/// written.
pub(crate) fn take_snapshot(producers_table: &Producers, covered: Offset) -> ProducerSnapshot {
    let known = producers_table.iter().filter_map(|(id, producer)| {
        let written = producer
            .batches
            .iter()
            .filter(|batch| batch.end() <= covered);
        let mut batches: Vec<ProducerBatch> = written.copied().collect();
        let forgotten = batches.len().saturating_sub(REMEMBERED_BATCHES);
        batches.drain(..forgotten);
        (!batches.is_empty()).then_some(SnapshotProducer {
            id,
            seen_ms: producer.seen_ms,
            earlier_were_lost: producer.earlier_were_lost && forgotten == 0,
            batches,
        })
    });
    let producers = known.collect();
    ProducerSnapshot {
        covered,
        evicted_ms: producers_table.evicted_ms,
        producers,
    }
}

/// Reads the snapshot in a partition's folder; `None` if there is none. If the file is damaged,
/// returns an empty snapshot, so that recovery walks the whole log; the producers that it may have
/// named count as evicted at `now_ms`.
pub(crate) fn read_snapshot(disk: &dyn Disk, dir: &str, now_ms: i64) -> Option<ProducerSnapshot> {
    let path = format!("{dir}/{SNAPSHOT_NAME}");
    let file = disk.open(&path, OpenMode::Existing).ok()?;
    let len = file.len().ok().filter(|len| *len <= FILE_BYTES_MAX)?;
    let mut bytes = vec![0; len as usize];
    let count = read_full(&*file, &mut bytes, 0).ok()?;
    let snapshot = decode_producers(&bytes[..count]);
    Some(snapshot.unwrap_or_else(|| {
        tracing::warn!(file = %path, "damaged; the producers are found by walking the log");
        ProducerSnapshot {
            evicted_ms: Some(now_ms),
            ..ProducerSnapshot::default()
        }
    }))
}

impl PartitionLog {
    /// Writes a snapshot before the segments with the base offsets `dropped_bases` are dropped.
    /// Returns the offset up to which the snapshot covers the producers, so that segments before it
    /// may be dropped. Blocks on the disk.
    pub(crate) fn snapshot_before_drop(
        self: &Arc<Self>,
        dropped_bases: &[Offset],
    ) -> Result<Offset, IoFailure> {
        self.write_producers(1, Some(dropped_bases))
    }

    /// Writes a snapshot if at least `bytes_min` bytes of idempotent batches follow the last one.
    /// Syncs the partition. Blocks on the disk.
    pub(crate) fn snapshot_producers(self: &Arc<Self>, bytes_min: u64) -> Result<(), IoFailure> {
        self.write_producers(bytes_min, None).map(drop)
    }

    /// A power loss may destroy batches whose sync has failed, so a snapshot must not cover them:
    /// it ends at the base offset of the first poisoned segment that is not in `dropped_bases`.
    /// Such a partial snapshot is written only before a drop.
    fn write_producers(
        self: &Arc<Self>,
        bytes_min: u64,
        dropped_bases: Option<&[Offset]>,
    ) -> Result<Offset, IoFailure> {
        let shared = &self.shared;
        let _one_at_a_time = self.snapshot_lock.lock();
        let mut state = self.state.lock();
        let due = state.producers.bytes_since_snapshot();
        if due < bytes_min.max(1) || state.is_deleted {
            return Ok(Offset::MAX);
        }
        let in_doubt = state
            .segments
            .iter()
            .filter(|it| {
                it.is_poisoned()
                    && dropped_bases.is_none_or(|dropped_bases| !dropped_bases.contains(&it.base))
            })
            .map(|it| it.base)
            .min();
        if in_doubt.is_some() && dropped_bases.is_none() {
            return Ok(0);
        }
        let now_ms = shared.options.clock.now_ms();
        state.producers.expire(now_ms);
        let written_end = self.written_end();
        let covered = in_doubt.map_or(written_end, |base| base.min(written_end));
        let mut snapshot = take_snapshot(&state.producers, covered);
        if covered < written_end {
            // The table may have forgotten older batches of producers whose newer ones are not
            // covered.
            snapshot.evicted_ms = Some(now_ms);
        } else {
            state.producers.note_snapshot();
        }
        drop(state);
        let (_, synced) = try_sync_partitions(shared, std::slice::from_ref(self));
        let outcome = synced.and_then(|()| write_snapshot(shared, &self.dir, &snapshot));
        match outcome {
            // Batches that came since then are not in the segments that are dropped.
            Ok(()) if in_doubt.is_none() => Ok(Offset::MAX),
            Ok(()) => Ok(covered),
            Err(failure) => {
                if covered == written_end {
                    self.state.lock().producers.note_written(due);
                }
                Err(failure)
            }
        }
    }

    /// As [`PartitionLog::snapshot_producers`], but only logs a failure.
    pub(crate) fn try_snapshot_producers(self: &Arc<Self>, bytes_min: u64) {
        if let Err(failure) = self.snapshot_producers(bytes_min)
            && !self.is_deleted()
        {
            tracing::warn!(%failure, "producers not written; the next start walks more of the log");
        }
    }
}

fn write_snapshot(
    shared: &Shared,
    dir: &str,
    snapshot: &ProducerSnapshot,
) -> Result<(), IoFailure> {
    let path = format!("{dir}/{SNAPSHOT_NAME}");
    count(&shared.counters.syncs, 2);
    let written = replace_file(&*shared.disk, dir, &path, &encode_producers(snapshot), 0);
    written.map_err(|error| IoFailure::new("write", &path, &error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    fn snapshot() -> impl Strategy<Value = ProducerSnapshot> {
        let batch = (1u32..100, 0..=i32::MAX, 0i16..3, any::<i64>(), 0u64..50);
        let batches = proptest::collection::vec(batch, 1..=REMEMBERED_BATCHES);
        let producers =
            proptest::collection::btree_map(0..=i64::MAX, (any::<i64>(), batches), 0..9);
        producers.prop_map(|producers| {
            let mut covered = 0;
            let place = |(id, (seen_ms, parts)): (i64, (i64, Vec<_>))| {
                let (mut at, mut newest) = (0, 0);
                let batches = parts.into_iter().map(|(records, first, epoch, time, gap)| {
                    newest = newest.max(epoch);
                    let batch = ProducerBatch {
                        base: at + gap,
                        records,
                        first_sequence: first,
                        epoch: newest,
                        timestamp_ms: time,
                    };
                    at = batch.end();
                    batch
                });
                let batches = batches.collect();
                covered = covered.max(at);
                SnapshotProducer {
                    id,
                    seen_ms,
                    earlier_were_lost: seen_ms % 2 == 0,
                    batches,
                }
            };
            let producers: Vec<_> = producers.into_iter().map(place).collect();
            ProducerSnapshot {
                covered,
                evicted_ms: (covered % 2 == 1).then_some(covered as i64),
                producers,
            }
        })
    }

    proptest! {
        #[test]
        fn snapshots_survive_the_round_trip(snapshot in snapshot()) {
            let bytes = encode_producers(&snapshot);
            prop_assert_eq!(decode_producers(&bytes), Some(snapshot));
        }

        #[test]
        fn a_changed_byte_is_detected(snapshot in snapshot(), at in any::<usize>(), by in 1u8..) {
            let mut bytes = encode_producers(&snapshot);
            let at = at % bytes.len();
            bytes[at] ^= by;
            prop_assert_eq!(decode_producers(&bytes), None);
            bytes[at] ^= by;
            bytes.truncate(at);
            prop_assert_eq!(decode_producers(&bytes), None);
        }

        #[test]
        fn arbitrary_content_never_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 12..300)
        ) {
            bytes[..8].copy_from_slice(MAGIC);
            let crc = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            if let Some(snapshot) = decode_producers(&bytes) {
                prop_assert_eq!(encode_producers(&snapshot), bytes);
            }
        }
    }
}
