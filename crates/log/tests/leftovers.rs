//! Leftovers of failing disks and crashes: batches of producers that are dropped next to a poisoned
//! segment, evicted producers, files that compaction could not remove, reserved space after the
//! last batch.

use std::io::IoSlice;
use std::sync::Arc;

use crate::common::{batch_of, manual, offsets, open, put, read_all, text_at, topic};
use cloverleaf_log::{
    AppendError, Batch, BatchBuilder, CompactionOptions, Durability, FaultyDisk, Log, LogOptions,
    OpenMode, PartitionLog, PartitionOptions, SimDisk,
};

const DIR: &str = "topics/00000000-0000-0000-0000-000000000001/0";

fn partition_of(log: &Log) -> Arc<PartitionLog> {
    log.partition(topic(1), 0, PartitionOptions::default())
        .unwrap()
}

/// A batch of one record of this producer.
fn batch(producer: i64, sequence: i32) -> Batch {
    let mut builder = BatchBuilder::with_capacity(100, 1).with_producer(producer, 0, sequence);
    builder.push(None, Some(format!("{producer}:{sequence}").as_bytes()), &[]);
    builder.finish()
}

fn texts(partition: &Arc<PartitionLog>) -> Vec<String> {
    read_all(partition)
        .iter()
        .map(|batch| text_at(batch, batch.base_offset()))
        .collect()
}

#[test]
fn duplicates_of_batches_dropped_beside_a_poisoned_segment_are_recognized() {
    let sim = SimDisk::new();
    let disk = FaultyDisk::new(sim.mount());
    let (log, _) = Log::open(disk.clone(), manual()).unwrap();
    let partition = partition_of(&log);
    put(&partition, batch(7, 0));
    put(&partition, batch(7, 1));
    partition.seal_active();
    log.step();
    let doubtful = partition.append(batch(7, 2), Durability::Disk).unwrap();
    disk.set(|faults| {
        faults.only = "00002.log".to_owned();
        faults.sync_after = Some(0);
    });
    log.step_commit();
    assert!(doubtful.wait().is_err());
    put(&partition, batch(7, 3));
    partition.seal_active();
    put(&partition, batch(7, 4));
    log.step();
    let bases = |partition: &Arc<PartitionLog>| -> Vec<u64> {
        let segments = partition.segments();
        segments.iter().map(|segment| segment.base).collect()
    };
    assert_eq!(bases(&partition), [0, 2, 3, 4]);
    // The segment after the poisoned one stays, because no snapshot may cover its batches yet.
    partition.drop_segments(&[0, 3]).unwrap();
    assert_eq!(bases(&partition), [2, 3, 4]);
    drop((partition, log));
    sim.kill();
    let (log, _) = open(&sim);
    let partition = partition_of(&log);
    for (sequence, base) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)] {
        let again = partition.append(batch(7, sequence), Durability::Kernel);
        let again = again.unwrap_or_else(|error| panic!("{sequence}: {error}"));
        assert!(again.is_duplicate, "{sequence} is stored twice");
        assert_eq!(again.base, base);
    }
    assert_eq!(texts(&partition), ["7:2", "7:3", "7:4"]);
    // No segment is poisoned after the restart.
    partition.seal_active();
    log.step();
    partition.drop_segments(&[2, 3]).unwrap();
    assert_eq!(bases(&partition), [4]);
}

#[test]
fn dropping_a_poisoned_segment_lets_later_ones_be_dropped() {
    let sim = SimDisk::new();
    let disk = FaultyDisk::new(sim.mount());
    let (log, _) = Log::open(disk.clone(), manual()).unwrap();
    let partition = partition_of(&log);
    put(&partition, batch(7, 0));
    partition.seal_active();
    log.step();
    let doubtful = partition.append(batch(7, 1), Durability::Disk).unwrap();
    disk.set(|faults| {
        faults.only = "00001.log".to_owned();
        faults.sync_after = Some(0);
    });
    log.step_commit();
    assert!(doubtful.wait().is_err());
    put(&partition, batch(7, 2));
    partition.seal_active();
    put(&partition, batch(7, 3));
    log.step();
    partition.drop_segments(&[0, 1, 2]).unwrap();
    drop((partition, log));
    sim.kill();
    let (log, _) = open(&sim);
    let partition = partition_of(&log);
    for sequence in 0..4 {
        let again = partition.append(batch(7, sequence), Durability::Kernel);
        assert!(again.unwrap().is_duplicate, "{sequence} is stored twice");
    }
    assert_eq!(texts(&partition), ["7:3"]);
}

#[test]
fn retries_of_an_evicted_producer_are_not_taken_for_lost_batches() {
    let sim = SimDisk::new();
    let options = LogOptions {
        producers_max: 2,
        ..manual()
    };
    let (log, _) = Log::open(sim.mount(), options.clone()).unwrap();
    let partition = partition_of(&log);
    put(&partition, batch(7, 0));
    put(&partition, batch(7, 1));
    for producer in 10..15 {
        put(&partition, batch(producer, 0));
    }
    // The snapshot does not contain producer 7 any more.
    partition.seal_active();
    log.step();
    put(&partition, batch(7, 2));
    let refused = |partition: &Arc<PartitionLog>| {
        let late = partition.append(batch(7, 0), Durability::Kernel);
        assert!(
            matches!(late, Err(AppendError::OutOfOrderSequence { .. })),
            "{late:?}"
        );
    };
    refused(&partition);
    drop((partition, log));
    sim.kill();
    let (log, _) = Log::open(sim.mount(), options).unwrap();
    let partition = partition_of(&log);
    refused(&partition);
    put(&partition, batch(7, 3));
}

#[test]
fn after_a_damaged_snapshot_retries_are_not_taken_for_lost_batches() {
    let sim = SimDisk::new();
    let (log, _) = open(&sim);
    let partition = partition_of(&log);
    put(&partition, batch(7, 0));
    partition.seal_active();
    put(&partition, batch(7, 1));
    log.step();
    partition.drop_segments(&[0]).unwrap();
    drop((partition, log));
    sim.kill();
    let path = format!("{DIR}/producers");
    let file = sim.mount().open(&path, OpenMode::Existing).unwrap();
    file.write_all_at(&[IoSlice::new(b"damage")], 9).unwrap();
    let (log, _) = open(&sim);
    let partition = partition_of(&log);
    assert!(partition.append(batch(7, 0), Durability::Kernel).is_err());
    assert_eq!(texts(&partition), ["7:1"]);
}

fn keyed(key: &str, value: &str) -> Batch {
    let mut builder = BatchBuilder::with_capacity(100, 1);
    builder.push(Some(key.as_bytes()), Some(value.as_bytes()), &[]);
    builder.finish()
}

/// A partition of seven segments, the first six sealed, that was compacted once. The sync with this
/// number (from 0) failed. Also returns whether the compaction has failed.
fn compacted_with_a_failing_sync(sim: &SimDisk, fails_at: u64) -> (Log, Arc<PartitionLog>, bool) {
    let disk = FaultyDisk::new(sim.mount());
    let (log, _) = Log::open(disk.clone(), manual()).unwrap();
    let partition = partition_of(&log);
    for number in 0..4 {
        put(&partition, keyed("same", &format!("old {number}")));
        put(&partition, keyed(&format!("other {number}"), "stays"));
        partition.seal_active();
    }
    put(&partition, keyed("same", "new"));
    partition.seal_active();
    put(&partition, keyed("last", "sealed"));
    partition.seal_active();
    put(&partition, keyed("active", "active"));
    log.step();
    disk.set(|faults| faults.sync_after = Some(fails_at));
    let has_failed = partition.compact(&CompactionOptions::default()).is_err();
    disk.set(|faults| faults.sync_after = None);
    (log, partition, has_failed)
}

/// Each sync in turn fails while compaction replaces several segments with one. Segments that are
/// dropped afterwards must not reappear from leftover files.
#[test]
fn files_that_compaction_could_not_remove_do_not_bring_records_back() {
    let mut failures = 0;
    for fails_at in 0..40 {
        let sim = SimDisk::new();
        let (log, partition, has_failed) = compacted_with_a_failing_sync(&sim, fails_at);
        failures += u32::from(has_failed);
        let before = offsets(&read_all(&partition));
        // Only the active segment stays.
        let newest = [10];
        assert!(before.ends_with(&newest), "{fails_at}: {before:?}");
        let segments = partition.segments();
        let dropped: Vec<u64> = segments.iter().map(|segment| segment.base).collect();
        partition
            .drop_segments(&dropped[..dropped.len() - 1])
            .unwrap();
        assert_eq!(offsets(&read_all(&partition)), newest, "{fails_at}");
        drop((partition, log));
        sim.kill();
        let (log, _) = open(&sim);
        let found = offsets(&read_all(&partition_of(&log)));
        assert_eq!(found, newest, "{fails_at}: dropped records have reappeared");
    }
    assert!(failures >= 3, "{failures} syncs failed");
}

/// Failed syncs do not stop compaction permanently, and the newest value of no key is lost.
#[test]
fn compaction_continues_after_a_failed_sync() {
    let options = CompactionOptions::default();
    let mut failures = 0;
    for fails_at in 0..40 {
        let sim = SimDisk::new();
        let (log, partition, has_failed) = compacted_with_a_failing_sync(&sim, fails_at);
        failures += u32::from(has_failed);
        for _ in 0..4 {
            partition.compact(&options).unwrap();
        }
        let kept = [1, 3, 5, 7, 8, 9, 10];
        assert_eq!(offsets(&read_all(&partition)), kept, "{fails_at}");
        drop((partition, log));
        sim.power_loss(fails_at);
        let (log, _) = open(&sim);
        let found = offsets(&read_all(&partition_of(&log)));
        // The active segment may be lost, because it was not synced.
        assert!(found.starts_with(&kept[..6]), "{fails_at}: {found:?}");
        assert!(kept.starts_with(&found), "{fails_at}: {found:?}");
    }
    assert!(failures >= 3, "{failures} syncs failed");
}

fn log_file_len(sim: &SimDisk) -> u64 {
    let path = format!("{DIR}/{:020}.log", 0);
    let file = sim.mount().open(&path, OpenMode::Existing).unwrap();
    file.len().unwrap()
}

/// Bytes of reserved space that a start leaves after the last batch when it cuts off the rest.
const RESERVED_AFTER_CUT_BYTES: u64 = cloverleaf_log::BATCH_HEADER_BYTES as u64;

/// Makes a partition with two batches and reserved space after them. Returns the position after the
/// batches.
fn with_reserved_space(sim: &SimDisk) -> u64 {
    let (log, _) = open(sim);
    let partition = partition_of(&log);
    for text in ["one", "two"] {
        let stored = partition
            .append(batch_of(&[text]), Durability::Disk)
            .unwrap();
        log.step();
        stored.wait().unwrap();
    }
    let end = partition.segments()[0].bytes;
    drop((partition, log));
    sim.kill();
    let path = format!("{DIR}/{:020}.log", 0);
    let file = sim.mount().open(&path, OpenMode::Existing).unwrap();
    file.allocate(1 << 20).unwrap();
    end
}

#[test]
fn after_a_kill_reserved_space_is_kept() {
    let sim = SimDisk::new();
    with_reserved_space(&sim);
    let (log, recovery) = open(&sim);
    assert_eq!(recovery.partitions[0].truncated_bytes, 0);
    assert!(recovery.report.iter().all(|line| !line.contains("torn")));
    let partition = partition_of(&log);
    put(&partition, batch_of(&["three"]));
    assert_eq!(offsets(&read_all(&partition)), [0, 1, 2]);
    assert_eq!(log_file_len(&sim), 1 << 20);
}

#[test]
fn after_a_clean_stop_reserved_space_is_kept_until_a_power_loss() {
    let sim = SimDisk::new();
    let end = with_reserved_space(&sim);
    let (log, _) = open(&sim);
    log.close();
    drop(log);
    let path = format!("{DIR}/{:020}.log", 0);
    let file = sim.mount().open(&path, OpenMode::Existing).unwrap();
    file.allocate(1 << 20).unwrap();
    file.sync_data().unwrap();
    let (log, recovery) = open(&sim);
    assert!(recovery.was_closed_cleanly);
    assert_eq!(offsets(&read_all(&partition_of(&log))), [0, 1]);
    assert_eq!(log_file_len(&sim), 1 << 20);
    log.close();
    drop(log);
    sim.power_loss(1);
    let (log, _) = open(&sim);
    assert_eq!(offsets(&read_all(&partition_of(&log))), [0, 1]);
    assert_eq!(log_file_len(&sim), end + RESERVED_AFTER_CUT_BYTES);
}

/// Bytes that a power loss has left far after the last whole batch are not read, and do not
/// reappear when later batches reach them.
#[test]
fn after_a_power_loss_bytes_after_a_hole_are_cut_off() {
    let sim = SimDisk::new();
    let end = with_reserved_space(&sim);
    let path = format!("{DIR}/{:020}.log", 0);
    let file = sim.mount().open(&path, OpenMode::Existing).unwrap();
    let mut stale = batch_of(&["stale"]).bytes().to_vec();
    stale[..8].copy_from_slice(&5u64.to_be_bytes());
    file.write_all_at(&[IoSlice::new(&stale)], end + 9_000)
        .unwrap();
    sim.mount().sync_fs().unwrap();
    sim.power_loss(1);
    let (log, _) = open(&sim);
    let partition = partition_of(&log);
    assert_eq!(offsets(&read_all(&partition)), [0, 1]);
    assert_eq!(log_file_len(&sim), end + RESERVED_AFTER_CUT_BYTES);
}
