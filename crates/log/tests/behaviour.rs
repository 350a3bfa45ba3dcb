//! The log through its public interface, on a simulated disk, in manual mode.

use crate::common::{SMALL, batch_of, fresh, manual, offsets, open, put, read_all, text_at, topic};
use bytes::Bytes;
use cloverleaf_log::{
    AppendError, Batch, BatchBuilder, Codec, Durability, FaultyDisk, Log, LogOptions, Offset,
    PartitionOptions, Read, SimDisk,
};

#[test]
fn files_appear_with_the_first_append() {
    let (disk, _log, partition) = fresh();
    let mount = disk.mount();
    assert!(mount.list("topics").unwrap().is_empty());
    let appended = partition
        .append(batch_of(&["a", "b"]), Durability::Kernel)
        .unwrap();
    assert!(appended.is_ready());
    assert_eq!((appended.base, appended.end), (0, 2));
    // The segment and its index.
    let files = mount.list(&format!("topics/{}/0", topic(1))).unwrap();
    assert_eq!(files.len(), 2);
}

#[test]
fn the_tail_is_read_from_memory_and_the_rest_from_the_file() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(
        disk.mount(),
        LogOptions {
            tail_bytes_max: 600,
            ..manual()
        },
    )
    .unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for number in 0..40 {
        let text = format!("message {number} {}", "x".repeat(100));
        put(&partition, batch_of(&[&text]));
    }
    assert!(log.metrics().tail_bytes <= 600);
    assert_eq!(offsets(&read_all(&partition)), (0..40).collect::<Vec<_>>());
    assert!(matches!(partition.read(40, 1000), Read::End));
    let Read::Batches(batches) = partition.read(17, 1) else {
        panic!("not read")
    };
    assert_eq!(batches.len(), 1);
    assert!(text_at(&batches[0], 17).starts_with("message 17 "));
    assert!(partition.segments().len() > 1);
}

#[test]
fn disk_class_is_ready_only_after_the_sync() {
    let (disk, log, partition) = fresh();
    let first = partition
        .append(batch_of(&["a"]), Durability::Disk)
        .unwrap();
    let second = partition
        .append(batch_of(&["b"]), Durability::Disk)
        .unwrap();
    assert!(!first.is_ready() && !second.is_ready());
    assert_eq!((partition.written_end(), partition.synced_end()), (2, 0));
    let before = disk.syncs();
    log.step_commit();
    assert!(first.is_ready() && second.is_ready());
    assert_eq!(partition.synced_end(), 2);
    // One file and three folders for both appends, and the journal, which counts as unsynced at the
    // start.
    assert_eq!(disk.syncs() - before, 5);
    let third = partition
        .append(batch_of(&["c"]), Durability::Disk)
        .unwrap();
    let before = disk.syncs();
    log.step_commit();
    third.wait().unwrap();
    assert_eq!(disk.syncs() - before, 1);
}

#[test]
fn without_inline_writes_the_writer_thread_writes() {
    let disk = SimDisk::new();
    let options = LogOptions {
        inline_writes: false,
        ..manual()
    };
    let (log, _) = Log::open(disk.mount(), options).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let kernel = partition
        .append(batch_of(&["a"]), Durability::Kernel)
        .unwrap();
    let none = partition
        .append(batch_of(&["b"]), Durability::None)
        .unwrap();
    assert!(!kernel.is_ready() && none.is_ready());
    assert!(matches!(partition.read(0, 1000), Read::End));
    assert!(log.unwritten_bytes() > 0);
    log.step_commit();
    assert!(kernel.is_ready());
    assert_eq!(log.metrics().writes, 1);
    assert_eq!(log.unwritten_bytes(), 0);
    assert_eq!(offsets(&read_all(&partition)), [0, 1]);
}

#[test]
fn any_sealed_segment_can_be_dropped_and_offsets_are_not_reused() {
    let (disk, log, partition) = fresh();
    let text = "x".repeat(1000);
    for _ in 0..12 {
        put(&partition, batch_of(&[&text]));
    }
    log.step();
    let segments = partition.segments();
    assert!(segments.len() == 4 && segments[1].is_droppable && !segments[3].is_droppable);
    let freed = partition.drop_segments(&[segments[1].base]).unwrap();
    assert_eq!(freed, segments[1].bytes);
    assert_eq!(
        offsets(&read_all(&partition)),
        [0, 1, 2, 6, 7, 8, 9, 10, 11]
    );
    let Read::Batches(batches) = partition.read(4, 1) else {
        panic!("not read")
    };
    assert_eq!(batches[0].base_offset(), 6);
    partition.seal_active();
    log.step();
    let all: Vec<u64> = partition
        .segments()
        .iter()
        .map(|segment| segment.base)
        .collect();
    partition.drop_segments(&all).unwrap();
    assert!(matches!(partition.read(0, 1000), Read::End));
    assert_eq!(partition.start_offset(), 12);
    drop((partition, log));
    disk.kill();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let appended = partition
        .append(batch_of(&["next"]), Durability::Kernel)
        .unwrap();
    assert_eq!(appended.base, 12);
}

#[test]
fn retention_by_time_and_bytes_takes_the_oldest() {
    let (_, log, partition) = fresh();
    for number in 0..12 {
        let mut builder = BatchBuilder::with_capacity(1100, 1000 * number);
        builder.push(None, Some(&[7; 1000]), &[]);
        put(&partition, builder.finish());
    }
    log.step();
    assert_eq!(partition.retain(Some(2_000), None).unwrap(), 0);
    assert!(partition.retain(Some(2_001), None).unwrap() > 0);
    assert_eq!(partition.start_offset(), 3);
    assert!(partition.retain(None, Some(7_000)).unwrap() > 0);
    assert_eq!(partition.start_offset(), 6);
    assert_eq!(
        partition.offset_for_timestamp(7_500).unwrap(),
        Some((8, 8_000))
    );
    assert_eq!(partition.offset_for_timestamp(0).unwrap(), Some((6, 6_000)));
    assert_eq!(partition.offset_for_timestamp(99_000).unwrap(), None);
    partition.truncate_before(10).unwrap();
    assert_eq!(partition.start_offset(), 10);
    assert_eq!(offsets(&read_all(&partition)), [10, 11]);
}

#[test]
fn retention_by_time_seals_an_old_active_segment() {
    let (_, log, partition) = fresh();
    put(&partition, batch_of(&["a"]));
    assert!(partition.segments()[0].is_active);
    assert_eq!(partition.retain(Some(1), None).unwrap(), 0);
    assert!(partition.segments()[0].is_active, "not too old");
    assert_eq!(partition.retain(Some(2), None).unwrap(), 0);
    let segment = partition.segments().remove(0);
    assert!(!segment.is_active && !segment.is_droppable);
    log.step();
    assert!(partition.retain(Some(2), None).unwrap() > 0);
    assert_eq!((partition.start_offset(), partition.next_offset()), (1, 1));
}

#[test]
fn raised_offsets_leave_a_hole() {
    let (disk, _log, partition) = fresh();
    put(&partition, batch_of(&["a"]));
    partition.raise_next_offset(100);
    partition.raise_next_offset(50);
    let appended = partition
        .append(batch_of(&["b"]), Durability::Kernel)
        .unwrap();
    assert_eq!(appended.base, 100);
    assert_eq!(offsets(&read_all(&partition)), [0, 100]);
    disk.kill();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(offsets(&read_all(&partition)), [0, 100]);
    assert_eq!(partition.next_offset(), 101);
}

#[test]
fn the_tail_cache_counts_dropped_batches_until_their_turn() {
    let disk = SimDisk::new();
    let options = LogOptions {
        tail_bytes_max: 20_000,
        ..manual()
    };
    let (log, _) = Log::open(disk.mount(), options).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let text = "x".repeat(1000);
    for _ in 0..100 {
        put(&partition, batch_of(&[&text]));
        log.step();
        partition.retain(None, Some(5_000)).unwrap();
        assert!(log.metrics().tail_bytes <= 20_000);
    }
    assert!(log.metrics().tail_bytes > 10_000);
    log.delete_topic(topic(1));
    log.step();
    assert_eq!(log.metrics().tail_bytes, 0);
}

#[test]
fn sync_all_makes_everything_durable_and_leaves_the_log_open() {
    let disk = SimDisk::new();
    let options = LogOptions {
        inline_writes: false,
        ..manual()
    };
    let (log, _) = Log::open(disk.mount(), options).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let append = |text| partition.append(batch_of(&[text]), Durability::Kernel);
    let first = append("a").unwrap();
    log.journal().append(&[b"entry"]).unwrap();
    log.sync_all().unwrap();
    assert!(first.is_ready());
    assert_eq!((partition.written_end(), partition.synced_end()), (1, 1));
    let second = append("b").unwrap();
    log.step_commit();
    assert!(second.is_ready());
    drop((partition, log));
    disk.power_loss(1);
    let (log, recovery) = open(&disk);
    assert_eq!(recovery.journal, [b"entry"]);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(offsets(&read_all(&partition))[0], 0);
    log.sync_all().unwrap();
    log.close();
    log.sync_all().unwrap();
}

#[test]
fn a_cold_read_of_a_stopped_log_is_dropped_uncalled() {
    let disk = SimDisk::new();
    let faulty = FaultyDisk::new(disk.mount());
    faulty.set(|faults| faults.uncached = true);
    let options = LogOptions {
        tail_bytes_max: 0,
        ..manual()
    };
    let (log, _) = Log::open(faulty, options).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["a"]));
    let Read::Cold(cold) = partition.read(0, 1000) else {
        panic!("not cold")
    };
    log.close();
    let (sender, receiver) = std::sync::mpsc::channel();
    cold.on_ready(Box::new(move |_| sender.send(()).unwrap()));
    let outcome = receiver.try_recv();
    assert_eq!(outcome, Err(std::sync::mpsc::TryRecvError::Disconnected));
}

#[test]
fn a_clean_stop_leaves_nothing_to_scan() {
    let disk = SimDisk::new();
    let (log, recovery) = open(&disk);
    assert!(!recovery.was_closed_cleanly);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["a", "b", "c"]));
    log.close();
    let refused = partition.append(batch_of(&["d"]), Durability::Kernel);
    assert!(matches!(refused, Err(AppendError::Closed)));
    drop((partition, log));
    let (log, recovery) = open(&disk);
    assert!(recovery.was_closed_cleanly);
    assert_eq!(recovery.partitions.len(), 1);
    assert_eq!(recovery.partitions[0].next_offset, 3);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(partition.synced_end(), 3);
    assert_eq!(offsets(&read_all(&partition)), [0, 1, 2]);
    disk.power_loss(1);
    let (_, recovery) = open(&disk);
    assert_eq!(recovery.partitions[0].next_offset, 3);
}

#[test]
fn deleted_topics_are_removed() {
    let (disk, log, partition) = fresh();
    put(&partition, batch_of(&["a"]));
    log.delete_topic(topic(1));
    log.step();
    let refused = partition.append(batch_of(&["b"]), Durability::Kernel);
    assert!(matches!(refused, Err(AppendError::Closed)));
    assert!(disk.mount().list("topics").unwrap().is_empty());
    assert_eq!(log.metrics().tail_bytes, 0);
}

#[test]
fn reads_that_need_the_disk_are_cold() {
    let (disk, log, partition) = fresh();
    for _ in 0..10 {
        put(&partition, batch_of(&["a"]));
    }
    log.close();
    drop((partition, log));
    let faulty = FaultyDisk::new(disk.mount());
    faulty.set(|faults| faults.uncached = true);
    let (log, _) = Log::open(faulty, manual()).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let Read::Cold(cold) = partition.read(3, 100_000) else {
        panic!("not cold")
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    cold.on_ready(Box::new(move |batches| {
        sender.send(batches.unwrap()).unwrap()
    }));
    assert!(receiver.try_recv().is_err());
    log.step();
    assert_eq!(
        offsets(&receiver.try_recv().unwrap()),
        (3..10).collect::<Vec<_>>()
    );
    assert_eq!(log.metrics().cold_reads, 1);
}

#[test]
fn a_batch_larger_than_a_segment_has_its_own() {
    let disk = SimDisk::new();
    let options = LogOptions {
        tail_bytes_max: 0,
        ..manual()
    };
    let (log, _) = Log::open(disk.mount(), options).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let huge = "y".repeat(300_000);
    for text in ["a", &huge, "b"] {
        put(&partition, batch_of(&[text]));
    }
    assert_eq!(partition.segments().len(), 3);
    let batches = read_all(&partition);
    assert_eq!(offsets(&batches), [0, 1, 2]);
    assert_eq!(text_at(&batches[1], 1).len(), 300_000);
    drop((partition, log));
    disk.kill();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(offsets(&read_all(&partition)), [0, 1, 2]);
}

#[test]
fn too_large_batches_are_refused_and_shared_ones_copied() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(
        disk.mount(),
        LogOptions {
            batch_bytes_max: 1000,
            ..manual()
        },
    )
    .unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let refused = partition.append(batch_of(&[&"x".repeat(1000)]), Durability::Kernel);
    assert!(matches!(
        refused,
        Err(AppendError::TooLarge {
            bytes_max: 1000,
            ..
        })
    ));
    put(&partition, batch_of(&["first"]));
    let shared = Bytes::copy_from_slice(batch_of(&["a"]).bytes());
    let batch = Batch::parse(shared.clone()).unwrap();
    put(&partition, batch);
    assert_eq!(
        shared[..8],
        [0; 8],
        "the producer's bytes stay as they were"
    );
    assert_eq!(offsets(&read_all(&partition)), [0, 1]);
}

#[test]
fn a_segment_that_is_too_old_takes_no_more_appends() {
    let (disk, log, partition) = fresh();
    let at = |timestamp_ms| {
        let mut builder = BatchBuilder::with_capacity(50, timestamp_ms);
        builder.push(None, Some(b"a"), &[]);
        builder.finish()
    };
    put(&partition, at(1_000));
    put(&partition, at(900_000));
    assert_eq!(partition.segments().len(), 1);
    partition.set_options(&PartitionOptions {
        segment_ms: Some(1_000),
        ..SMALL
    });
    put(&partition, at(900_001));
    put(&partition, at(901_001));
    assert_eq!(partition.segments().len(), 2);
    // Old timestamps do not make a new segment old: its age counts from its creation.
    partition.roll_aged(902_002);
    assert!(partition.segments()[1].is_active);
    drop((partition, log));
    disk.kill();
    let (log, _) = open(&disk);
    let aged = PartitionOptions {
        segment_ms: Some(1_000),
        ..SMALL
    };
    let partition = log.partition(topic(1), 0, aged).unwrap();
    partition.roll_aged(901_001);
    assert!(partition.segments()[1].is_active);
    partition.roll_aged(901_002);
    assert!(!partition.segments()[1].is_active);
}

#[test]
fn covered_segments_are_dropped_and_only_candidates_are_checked() {
    let (_disk, log, _) = fresh();
    let partition = log.partition(topic(1), 0, PartitionOptions::default());
    let partition = partition.unwrap();
    for number in 0..4i64 {
        let mut builder = BatchBuilder::with_capacity(50, number);
        builder.push(None, Some(b"a"), &[]);
        put(&partition, builder.finish());
        // The last segment stays active.
        if number < 3 {
            partition.seal_active();
            log.step();
        }
    }
    let sizes: Vec<u64> = partition.segments().iter().map(|it| it.bytes).collect();
    let drop_covered = |kept_since_ms, covered: &[Offset]| {
        let mut asked = Vec::new();
        let freed = partition.drop_covered(kept_since_ms, |range| {
            // Would deadlock if a lock of the log were held.
            assert_eq!(partition.written_end(), partition.next_offset());
            asked.push(range.clone());
            covered.contains(&range.start)
        });
        (freed.unwrap(), asked)
    };
    // The closure is not called for a segment that is too young, nor for the active one, which is
    // too small to be sealed.
    assert_eq!(drop_covered(Some(2), &[]), (0, vec![0..1, 1..2]));
    let all = vec![0..1, 1..2, 2..3];
    assert_eq!(drop_covered(None, &[1]), (sizes[1], all));
    assert_eq!(offsets(&read_all(&partition)), [0, 2, 3]);
    // A large active segment is sealed, and dropped by the next call.
    let large = "x".repeat(1 << 20);
    put(&partition, batch_of(&[&large]));
    assert_eq!(drop_covered(None, &[3]), (0, vec![0..1, 2..3, 3..5]));
    log.step();
    assert!(drop_covered(None, &[3]).0 > 1 << 20);
    assert_eq!(offsets(&read_all(&partition)), [0, 2]);
    assert_eq!(partition.next_offset(), 5);
}

#[test]
fn the_append_time_replaces_the_producers_timestamps() {
    let mut builder = BatchBuilder::with_capacity(50, 7);
    builder.push(None, Some(b"a"), &[]);
    let batch = builder.finish();
    let shared = batch.clone();
    let stamped = batch.stamp_append_time(1_234);
    assert!(stamped.has_append_time() && !shared.has_append_time());
    assert_eq!(stamped.max_timestamp_ms(), 1_234);
    let parsed = Batch::parse(stamped.bytes().clone()).unwrap();
    let (_, record) = parsed.records().next_record().unwrap().unwrap();
    assert_eq!(record.timestamp_ms, 1_234);
    assert_eq!(parsed.codec(), Codec::None);
    assert_eq!((parsed.producer_id(), parsed.base_sequence()), (-1, -1));
}

#[test]
fn timestamps_are_found_in_compressed_batches_too() {
    let (log, _) = open(&SimDisk::new());
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(partition.max_timestamp().unwrap(), None);
    for codec in [Codec::None, Codec::Gzip, Codec::Lz4] {
        let mut builder = BatchBuilder::with_capacity(50, 0);
        for timestamp_ms in [10, 30, 20] {
            builder.push_at(timestamp_ms, None, Some(b"a"), &[]);
        }
        put(&partition, builder.finish().compress(codec).unwrap());
    }
    let mut builder = BatchBuilder::with_capacity(50, 0);
    builder.push_at(40, None, Some(b"a"), &[]);
    builder.push_at(50, None, Some(b"a"), &[]);
    put(&partition, builder.finish().compress(Codec::Zstd).unwrap());
    let find = |timestamp_ms| partition.offset_for_timestamp(timestamp_ms).unwrap();
    assert_eq!(find(11), Some((1, 30)));
    assert_eq!(find(45), Some((10, 50)));
    assert_eq!(find(51), None);
    assert_eq!(partition.max_timestamp().unwrap(), Some((10, 50)));
    partition.truncate_before(5).unwrap();
    assert_eq!(find(0), Some((5, 20)));
    assert_eq!(find(21), Some((7, 30)));
    put(&partition, batch_of(&["a"]));
    partition.truncate_before(11).unwrap();
    assert_eq!(partition.max_timestamp().unwrap(), Some((11, 1)));
}
