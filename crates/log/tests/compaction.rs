//! Compaction through the log's public interface: which records are kept and which are removed.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{manual, open, put, read_all, topic};
use cloverleaf_log::{
    Batch, BatchBuilder, Codec, CompactionOptions, Durability, FaultyDisk, Log, LogError, OpenMode,
    PartitionLog, PartitionOptions, Read, SimDisk,
};

pub(crate) const SMALL: PartitionOptions = PartitionOptions {
    segment_bytes: 1_000,
    segment_ms: None,
};

pub(crate) fn options(now_ms: i64) -> CompactionOptions {
    CompactionOptions {
        now_ms,
        delete_retention_ms: 1_000,
        ..CompactionOptions::default()
    }
}

/// A record per word: `key=value`, `key=` for a tombstone, `value` for a record without a key.
pub(crate) fn batch(words: &str) -> BatchBuilder {
    let mut builder = BatchBuilder::with_capacity(200, 1);
    for word in words.split(' ') {
        match word.split_once('=') {
            Some((key, "")) => builder.push(Some(key.as_bytes()), None, &[]),
            Some((key, value)) => builder.push(Some(key.as_bytes()), Some(value.as_bytes()), &[]),
            None => builder.push(None, Some(word.as_bytes()), &[]),
        }
    }
    builder
}

pub(crate) fn show(partition: &Arc<PartitionLog>) -> String {
    let mut words = Vec::new();
    for batch in read_all(partition) {
        let batch = batch.inflate(4 << 20).unwrap();
        let mut cursor = batch.records();
        while let Some((offset, record)) = cursor.next_record().unwrap() {
            let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or(b"").to_vec());
            let equals = if record.key.is_some() { "=" } else { "" };
            let (key, value) = (text(record.key).unwrap(), text(record.value).unwrap());
            words.push(format!("{offset}:{key}{equals}{value}"));
        }
    }
    words.join(" ")
}

/// Seals the active segment and begins new ones, so that all records before can be compacted.
pub(crate) fn seal(log: &Log, partition: &Arc<PartitionLog>) {
    partition.seal_active();
    put(partition, batch("end=end").finish());
    partition.seal_active();
    put(partition, batch("active").finish());
    log.step();
}

pub(crate) fn compact_all(partition: &Arc<PartitionLog>, options: &CompactionOptions) -> u64 {
    let mut removed = 0;
    loop {
        let done = partition.compact(options).unwrap();
        removed += done.records_removed;
        if done.is_done {
            return removed;
        }
    }
}

#[test]
fn the_newest_record_of_each_key_stays_at_its_offset() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch("a=1 b=1 c=1").finish());
    put(&partition, batch("a=2 d=1 nokey").finish());
    partition.seal_active();
    put(&partition, batch("c=2 a=3").finish());
    seal(&log, &partition);
    let before = partition.compaction_status();
    assert_eq!((before.clean_bytes, before.dirty_from_ms), (0, Some(1)));
    let done = partition.compact(&options(0)).unwrap();
    assert!(done.is_done && done.bytes_freed > 0);
    assert_eq!((done.records_removed, done.records_without_key), (3, 1));
    let expected = "1:b=1 4:d=1 5:nokey 6:c=2 7:a=3 8:end=end 9:active";
    assert_eq!(show(&partition), expected);
    let after = partition.compaction_status();
    assert!(after.clean_bytes > 0 && after.dirty_bytes == 0);
    // The small segments were merged into one.
    assert_eq!(partition.segments().len(), 2);
    assert!(partition.compact(&options(0)).unwrap().is_done);
    drop((partition, log));
    disk.kill();
    let (log, recovery) = open(&disk);
    assert_eq!(recovery.report.len(), 1, "{:?}", recovery.report);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(show(&partition), expected);
    assert_eq!(partition.compaction_status(), after);
}

/// After a restart no reader's position is remembered: a reader scans to the segment's end and
/// finds no record from its offset on.
#[test]
fn an_offset_whose_records_were_removed_up_to_the_segments_end_is_no_damage() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch("a=1").finish());
    put(&partition, batch("b=1 c=1").finish());
    partition.seal_active();
    // So large that it is not merged with the segment before it.
    let large = format!("b={} c=2", "x".repeat(900));
    put(&partition, batch(&large).finish());
    seal(&log, &partition);
    assert_eq!(compact_all(&partition, &options(0)), 2);
    let expected = show(&partition);
    drop((partition, log));
    disk.kill();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for removed in [1, 2] {
        let found = partition.read_waiting(removed, 4_000).unwrap();
        assert_eq!(found[0].base_offset(), 3);
    }
    assert_eq!(log.metrics().corrupt_regions, 0);
    assert_eq!(show(&partition), expected);
    // A segment with damage would keep its tombstones: compaction still rewrites this one.
    put(&partition, batch("a=2").finish());
    seal(&log, &partition);
    assert_eq!(compact_all(&partition, &options(0)), 2);
}

#[test]
fn compressed_batches_stay_compressed() {
    let (log, _) = open(&SimDisk::new());
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let codecs = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
    for codec in codecs {
        let built = batch("a=1 b=1 only=").finish();
        put(&partition, built.compress(codec).unwrap());
    }
    put(&partition, batch("b=2").finish());
    seal(&log, &partition);
    // A batch that inflates to more than the limit is kept as it is.
    let tight = CompactionOptions {
        inflated_bytes_max: 64,
        ..options(0)
    };
    let done = partition.compact(&tight).unwrap();
    assert_eq!((done.batches_skipped, done.records_removed), (4, 0));
    put(
        &partition,
        batch("c=1 only=x").finish().compress(Codec::Lz4).unwrap(),
    );
    put(
        &partition,
        batch("a=9 b=9").finish().compress(Codec::Zstd).unwrap(),
    );
    seal(&log, &partition);
    assert_eq!(compact_all(&partition, &options(0)), 4 * 3 + 1 + 1);
    let batches = read_all(&partition);
    let codecs: Vec<Codec> = batches.iter().map(Batch::codec).collect();
    let plain = Codec::None;
    assert_eq!(codecs, [plain, Codec::Lz4, Codec::Zstd, plain, plain]);
}

#[test]
fn tombstones_are_removed_after_their_delete_horizon() {
    let (log, _) = open(&SimDisk::new());
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch("a=1 b=1").finish());
    put(&partition, batch("a= c=1").finish());
    seal(&log, &partition);
    compact_all(&partition, &options(5_000));
    let expected = "1:b=1 2:a= 3:c=1 4:end=end 5:active";
    assert_eq!(show(&partition), expected);
    assert_eq!(partition.compaction_status().horizon_ms, Some(6_000));
    assert!(partition.compact(&options(5_999)).unwrap().is_done);
    assert_eq!(show(&partition), expected);
    assert_eq!(compact_all(&partition, &options(6_000)), 1);
    assert_eq!(show(&partition), "1:b=1 3:c=1 4:end=end 5:active");
    assert_eq!(partition.compaction_status().horizon_ms, None);
}

#[test]
fn tombstones_stay_while_an_older_batch_cannot_be_cleaned() {
    for is_corrupt in [false, true] {
        let disk = SimDisk::new();
        let (log, _) = open(&disk);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        let first = batch("a=1 b=1").finish();
        if is_corrupt {
            put(&partition, first);
            put(&partition, batch("c=1").finish());
        } else {
            put(&partition, first.compress(Codec::Zstd).unwrap());
        }
        partition.seal_active();
        put(&partition, batch("a=").finish());
        seal(&log, &partition);
        if is_corrupt {
            // The second batch cannot be read, so its segment is not rewritten.
            let path = format!("topics/{}/0/{:020}.log", topic(1), 0);
            let file = disk.mount().open(&path, OpenMode::Existing).unwrap();
            let end = file.len().unwrap();
            file.write_all_at(&[IoSlice::new(&[0xff])], end - 3)
                .unwrap();
        }
        // Each segment is rewritten alone.
        partition.set_options(&PartitionOptions {
            segment_bytes: 1,
            ..SMALL
        });
        let tight = |now_ms| CompactionOptions {
            inflated_bytes_max: 64,
            ..options(now_ms)
        };
        compact_all(&partition, &tight(5_000));
        assert_eq!(partition.compaction_status().horizon_ms, Some(6_000));
        compact_all(&partition, &tight(6_000));
        let text = show(&partition);
        assert!(text.contains("0:a=1") && text.contains(":a= "), "{text}");
        assert_eq!(partition.compaction_status().horizon_ms, None);
        // Once the older record can be removed, the tombstone is removed, too.
        if !is_corrupt {
            put(&partition, batch("a=").finish());
            seal(&log, &partition);
            compact_all(&partition, &options(7_000));
            compact_all(&partition, &options(9_000));
            let text = show(&partition);
            assert!(!text.contains("a="), "{text}");
        }
    }
}

#[test]
fn young_records_are_left_alone() {
    let (log, _) = open(&SimDisk::new());
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch("a=1 a=2").finish());
    seal(&log, &partition);
    let lagging = |now_ms| CompactionOptions {
        min_lag_ms: 100,
        ..options(now_ms)
    };
    assert!(partition.compact(&lagging(100)).unwrap().is_done);
    assert_eq!(show(&partition), "0:a=1 1:a=2 2:end=end 3:active");
    compact_all(&partition, &lagging(101));
    assert_eq!(show(&partition), "1:a=2 2:end=end 3:active");
}

#[test]
fn a_small_map_takes_several_passes_and_a_stop_ends_a_call() {
    let (log, _) = open(&SimDisk::new());
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for round in 0..4 {
        for key in 0..30 {
            put(&partition, batch(&format!("k{key}={round}")).finish());
        }
    }
    seal(&log, &partition);
    let tiny = CompactionOptions {
        map_bytes_max: 10 * 72,
        work_bytes_max: 1,
        ..options(0)
    };
    tiny.stop.store(true, Ordering::Relaxed);
    let stopped = partition.compact(&tiny).unwrap();
    assert!(!stopped.is_done && stopped.records_removed == 0);
    tiny.stop.store(false, Ordering::Relaxed);
    assert_eq!(compact_all(&partition, &tiny), 90);
    let newest: Vec<String> = (0..30)
        .map(|key| format!("{}:k{key}=3", 90 + key))
        .collect();
    assert_eq!(
        show(&partition),
        newest.join(" ") + " 120:end=end 121:active"
    );
}

#[test]
fn the_last_batch_of_a_producer_stays_without_its_records() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch("a=1").with_producer(7, 0, 0).finish());
    put(&partition, batch("a=2 a=3").with_producer(7, 0, 1).finish());
    put(&partition, batch("a=4").finish());
    seal(&log, &partition);
    compact_all(&partition, &options(0));
    let batches = read_all(&partition);
    assert_eq!((batches[0].base_offset(), batches[0].end_offset()), (1, 3));
    assert_eq!((batches[0].count(), batches[0].base_sequence()), (0, 1));
    drop((partition, log, batches));
    disk.kill();
    // The producer's sequence numbers are known even without the snapshot.
    let mount = disk.mount();
    mount
        .remove_file(&format!("topics/{}/0/producers", topic(1)))
        .unwrap();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(partition.producers()[0].last_sequence, 2);
    let again = batch("a=2 a=3").with_producer(7, 0, 1).finish();
    let again = partition.append(again, Durability::Kernel).unwrap();
    assert!(again.is_duplicate && again.base == 1);
}

#[test]
fn readers_of_replaced_segments_continue() {
    let disk = SimDisk::new();
    let options_of_log = cloverleaf_log::LogOptions {
        tail_bytes_max: 0,
        ..manual()
    };
    let faulty = FaultyDisk::new(disk.mount());
    let (log, _) = Log::open(faulty.clone(), options_of_log).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for round in 0..40 {
        put(&partition, batch(&format!("a={round} b{round}=1")).finish());
    }
    seal(&log, &partition);
    faulty.set(|faults| faults.uncached = true);
    let Read::Cold(cold) = partition.read(2, 1_000) else {
        panic!("not cold")
    };
    faulty.set(|faults| faults.uncached = false);
    compact_all(&partition, &options(0));
    let batches = cold.run().unwrap();
    assert!(batches[0].end_offset() > 2);
    let text = show(&partition);
    assert!(text.contains("3:b1=1") && text.contains("78:a=39") && !text.contains("a=38"));
}

#[test]
fn a_failure_loses_nothing_and_the_next_call_continues() {
    for (only, syncs) in [
        (".log.clean", 0),
        (".index.clean", 0),
        ("/0", 0),
        ("/0", 1),
        ("/0", 2),
    ] {
        let disk = SimDisk::new();
        let faulty = FaultyDisk::new(disk.mount());
        let (log, _) = Log::open(faulty.clone(), manual()).unwrap();
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        put(&partition, batch("a=1 b=1").finish());
        partition.seal_active();
        put(&partition, batch("a=2").finish());
        seal(&log, &partition);
        faulty.set(|faults| {
            faults.only = only.to_owned();
            faults.sync_after = Some(syncs);
        });
        let failed = partition.compact(&options(0));
        assert!(
            matches!(failed, Err(LogError::Io(_))),
            "{only} {syncs}: {failed:?}"
        );
        let text = show(&partition);
        assert!(
            text.ends_with("1:b=1 2:a=2 3:end=end 4:active"),
            "{only} {syncs}: {text}"
        );
        compact_all(&partition, &options(0));
        assert_eq!(show(&partition), "1:b=1 2:a=2 3:end=end 4:active");
        drop((partition, log));
        disk.kill();
        let (log, _) = open(&disk);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        let text = show(&partition);
        assert!(
            text.ends_with("1:b=1 2:a=2 3:end=end 4:active"),
            "{only} {syncs}: {text}"
        );
    }
}

#[test]
fn unreadable_batches_are_not_compacted_away() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch("a=1 b=1").finish());
    put(&partition, batch("c=1").finish());
    partition.seal_active();
    put(&partition, batch("a=2").finish());
    seal(&log, &partition);
    let path = format!("topics/{}/0/{:020}.log", topic(1), 0);
    disk.corrupt(&path, 70, &[0xff]);
    compact_all(&partition, &options(0));
    let file = disk.mount().open(&path, OpenMode::Existing).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, 70).unwrap();
    assert_eq!(byte, [0xff]);
}
