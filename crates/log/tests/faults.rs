//! Failing writes and syncs, full and read-only disks, bit rot, lost indexes.

use std::sync::Arc;

use crate::common::{batch_of, cut, manual, offsets, open, put, read_all, topic};
use cloverleaf_log::{
    AppendError, Durability, FaultyDisk, INDEX_ENTRY_BYTES, Log, LogOptions, OpenError, OpenMode,
    PartitionOptions, Read, SimDisk,
};

const SMALL: PartitionOptions = PartitionOptions {
    segment_bytes: 200_000,
    segment_ms: None,
};

fn faulty() -> (SimDisk, Arc<FaultyDisk>, Log) {
    let sim = SimDisk::new();
    let disk = FaultyDisk::new(sim.mount());
    let (log, _) = Log::open(disk.clone(), manual()).unwrap();
    log.step();
    (sim, disk, log)
}

#[test]
fn a_failed_write_fails_its_append_and_later_ones_go_to_a_new_segment() {
    for torn_bytes in [0, 30, 80, 10_000] {
        let (sim, disk, log) = faulty();
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        put(&partition, batch_of(&["a"]));
        disk.set(|faults| {
            faults.write_after = Some(0);
            faults.torn_bytes = torn_bytes;
        });
        let failed = partition.append(batch_of(&["lost"]), Durability::Kernel);
        assert!(matches!(failed, Err(AppendError::Failed(_))), "{failed:?}");
        assert_eq!(partition.written_end(), 1);
        let next = partition
            .append(batch_of(&["b"]), Durability::Disk)
            .unwrap();
        assert_eq!(
            next.base, 2,
            "the failed append's offset is not assigned again"
        );
        log.step();
        next.wait().unwrap();
        assert_eq!(offsets(&read_all(&partition)), [0, 2]);
        assert_eq!(log.metrics().write_errors, 1);
        drop((partition, log));
        sim.power_loss(3);
        let (log, _) = open(&sim);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        assert_eq!(offsets(&read_all(&partition)), [0, 2]);
    }
}

#[test]
fn a_failed_sync_fails_all_waiters_and_poisons_the_segment() {
    let (_, disk, log) = faulty();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let other = log.partition(topic(2), 0, SMALL).unwrap();
    let first = partition
        .append(batch_of(&["a"]), Durability::Disk)
        .unwrap();
    let second = partition
        .append(batch_of(&["b"]), Durability::Disk)
        .unwrap();
    let elsewhere = other.append(batch_of(&["c"]), Durability::Disk).unwrap();
    disk.set(|faults| {
        faults.only = topic(1).to_string();
        faults.sync_after = Some(0);
    });
    log.step_commit();
    assert!(matches!(first.wait(), Err(AppendError::Failed(_))));
    assert!(matches!(second.wait(), Err(AppendError::Failed(_))));
    elsewhere.wait().unwrap();
    // Visible batches stay visible, and later ones go to another file.
    assert_eq!(offsets(&read_all(&partition)), [0, 1]);
    let third = partition
        .append(batch_of(&["d"]), Durability::Disk)
        .unwrap();
    log.step();
    third.wait().unwrap();
    assert_eq!(offsets(&read_all(&partition)), [0, 1, 2]);
    assert_eq!(partition.segments().len(), 2);
    assert_eq!(log.metrics().sync_errors, 1);
}

#[test]
fn after_a_failed_background_sync_appends_go_to_a_new_segment() {
    let (_, disk, log) = faulty();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["a"]));
    disk.set(|faults| {
        faults.only = ".log".to_owned();
        faults.sync_after = Some(0);
    });
    log.step();
    assert_eq!(log.metrics().sync_errors, 1);
    let next = partition
        .append(batch_of(&["b"]), Durability::Disk)
        .unwrap();
    log.step();
    next.wait().unwrap();
    assert_eq!(partition.segments().len(), 2);
}

#[test]
fn a_failed_file_system_sync_fails_all() {
    let (_, disk, log) = faulty();
    let mut waiting = Vec::new();
    for number in 0..20 {
        let partition = log.partition(topic(1), number, SMALL).unwrap();
        waiting.push(
            partition
                .append(batch_of(&["a"]), Durability::Disk)
                .unwrap(),
        );
    }
    disk.set(|faults| faults.sync_after = Some(0));
    log.step_commit();
    for appended in waiting {
        assert!(matches!(appended.wait(), Err(AppendError::Failed(_))));
    }
    assert_eq!(log.metrics().fs_syncs, 1);
}

#[test]
fn a_full_disk_refuses_appends_until_space_is_free() {
    let (_, disk, log) = faulty();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["a"]));
    disk.set(|faults| faults.free_bytes = Some(0));
    let text = "x".repeat(50_000);
    let mut refused = 0;
    for _ in 0..5 {
        if let Err(error) = partition.append_internal(batch_of(&[&text]), Durability::Kernel) {
            assert!(matches!(error, AppendError::StorageFull { .. }), "{error}");
            refused += 1;
        }
    }
    assert_eq!(refused, 4, "only the reserved space is used");
    disk.set(|faults| faults.free_bytes = None);
    partition
        .append_internal(batch_of(&[&text]), Durability::Kernel)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(read_all(&partition).len(), 3);
    assert_eq!(partition.segments().len(), 1, "nothing is poisoned");
}

#[test]
fn on_a_full_disk_all_but_the_newest_segment_can_be_dropped() {
    let (_, disk, log) = faulty();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for _ in 0..3 {
        put(&partition, batch_of(&["a"]));
        partition.seal_active();
    }
    log.step();
    let bases: Vec<_> = partition
        .segments()
        .iter()
        .map(|segment| segment.base)
        .collect();
    disk.set(|faults| faults.free_bytes = Some(0));
    assert!(partition.drop_segments(&bases).unwrap() > 0);
    assert_eq!(partition.start_offset(), 2);
    assert!(partition.drop_segments(&bases).is_err());
    disk.set(|faults| faults.free_bytes = None);
    assert!(partition.drop_segments(&bases).unwrap() > 0);
    assert_eq!(partition.start_offset(), 3);
}

#[test]
fn only_the_broker_may_use_the_reserve() {
    let sim = SimDisk::new();
    let disk = FaultyDisk::new(sim.mount());
    disk.set(|faults| faults.free_bytes = Some(3_000_000));
    let options = LogOptions {
        disk_free_bytes_min: 2_000_000,
        ..manual()
    };
    let (log, _) = Log::open(disk.clone(), options).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let text = "x".repeat(100_000);
    let mut accepted = 0;
    let refused = loop {
        match partition.append(batch_of(&[&text]), Durability::Kernel) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::StorageFull { free_bytes } if free_bytes <= 2_000_000));
    assert!((5..=11).contains(&accepted), "{accepted}");
    partition
        .append_internal(batch_of(&[&text]), Durability::Kernel)
        .unwrap()
        .wait()
        .unwrap();
    // The journal still works, because its space was reserved at the start.
    disk.set(|faults| faults.free_bytes = Some(0));
    log.journal().append(&[b"cursor"]).unwrap();
    while !log.journal().should_snapshot() {
        log.journal().append(&[&[7; 100]]).unwrap();
    }
    log.journal()
        .snapshot(&mut [b"cursor".to_vec()].into_iter())
        .unwrap();
    log.journal().append(&[b"more"]).unwrap();
}

#[test]
fn a_failed_journal_refuses_entries_until_a_snapshot() {
    let (sim, disk, log) = faulty();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    log.journal().append(&[b"one"]).unwrap();
    let position = log.journal().append(&[b"two"]).unwrap();
    let waiting = log.journal().wait_synced(position);
    disk.set(|faults| {
        faults.only = "state.".to_owned();
        faults.sync_after = Some(0);
    });
    let message = partition
        .append(batch_of(&["a"]), Durability::Disk)
        .unwrap();
    log.step_commit();
    assert!(waiting.wait().is_err());
    assert!(message.wait().is_err(), "its topic may not be durable");
    assert!(log.journal().append(&[b"three"]).is_err());
    assert!(log.journal().should_snapshot() && log.journal().failure().is_some());
    assert!(
        partition
            .append(batch_of(&["b"]), Durability::Disk)
            .is_err()
    );
    log.journal()
        .snapshot(&mut [b"all".to_vec()].into_iter())
        .unwrap();
    log.journal().append(&[b"four"]).unwrap();
    let message = partition
        .append(batch_of(&["c"]), Durability::Disk)
        .unwrap();
    log.step_commit();
    message.wait().unwrap();
    drop((partition, log));
    sim.power_loss(9);
    let (_, recovery) = open(&sim);
    assert_eq!(recovery.journal, [b"all".to_vec(), b"four".to_vec()]);
}

#[test]
fn a_snapshot_that_fails_at_any_step_loses_nothing() {
    for syncs in 0..3 {
        let (sim, disk, log) = faulty();
        let position = log.journal().append(&[b"one"]).unwrap();
        let waiting = log.journal().wait_synced(position);
        log.step_commit();
        waiting.wait().unwrap();
        disk.set(|faults| faults.sync_after = Some(syncs));
        let outcome = log.journal().snapshot(&mut [b"ONE".to_vec()].into_iter());
        assert_eq!(outcome.is_ok(), syncs == 2);
        disk.set(|faults| faults.sync_after = None);
        log.journal()
            .snapshot(&mut [b"one".to_vec(), b"two".to_vec()].into_iter())
            .unwrap();
        let position = log.journal().append(&[b"three"]).unwrap();
        let waiting = log.journal().wait_synced(position);
        log.step_commit();
        waiting.wait().unwrap();
        drop(log);
        sim.power_loss(syncs);
        let (_, recovery) = open(&sim);
        assert_eq!(recovery.journal.len(), 3);
    }
}

#[test]
fn an_index_entry_on_the_disk_says_that_the_log_before_it_is_synced() {
    let (sim, disk, log) = faulty();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let fill = || {
        (0..50).for_each(|_| put(&partition, batch_of(&[&"x".repeat(1_000)])));
    };
    let entries = || {
        let index = sim.mount().open(&path("index"), OpenMode::Existing);
        index.map_or(0, |file| file.len().unwrap() as usize / INDEX_ENTRY_BYTES)
    };
    fill();
    assert_eq!(entries(), 0, "nothing is synced yet");
    log.step();
    assert_eq!(entries(), 1);
    fill();
    disk.set(|faults| {
        faults.only = ".log".to_owned();
        faults.sync_after = Some(0);
    });
    log.step();
    assert_eq!(entries(), 1, "the sync has failed");
}

/// Fills a partition with 100 batches of 1 kB and seals it.
fn sealed_log(sim: &SimDisk) {
    let (log, _) = open(sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for _ in 0..100 {
        put(&partition, batch_of(&[&"x".repeat(1_000)]));
    }
    partition.seal_active();
    log.close();
}

fn path(ending: &str) -> String {
    format!("topics/{}/0/{:020}.{ending}", topic(1), 0)
}

#[test]
fn a_corrupt_middle_is_reported_once_and_the_rest_stays_readable() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    sim.corrupt(&path("log"), 5_000, &[0xee; 10]);
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for _ in 0..2 {
        let found = offsets(&read_all(&partition));
        assert_eq!(found[..4], [0, 1, 2, 3]);
        assert_eq!(found[4], 5, "continues at the next batch");
        assert_eq!(found.last(), Some(&99));
        assert_eq!(log.metrics().corrupt_regions, 1);
    }
    let Read::Batches(batches) = partition.read(4, 1) else {
        panic!("not read")
    };
    assert_eq!(batches[0].base_offset(), 5);
}

#[test]
fn a_truncated_file_loses_only_its_end_and_blocks_no_reader() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["behind"]));
    partition.seal_active();
    let other = log.partition(topic(2), 0, SMALL).unwrap();
    for _ in 0..10 {
        put(&other, batch_of(&["another topic"]));
    }
    other.seal_active();
    log.close();
    drop((partition, other, log));
    let len = batch_of(&[&"x".repeat(1_000)]).bytes().len() as u64;
    // In the middle of a batch, between two batches, after a header, and at the beginning.
    for (bytes, whole) in [(5 * len + 500, 5), (4 * len, 4), (3 * len + 61, 3), (0, 0)] {
        cut(&sim, &path("log"), bytes);
        let (log, _) = open(&sim);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        let expected: Vec<u64> = (0..whole).chain([100]).collect();
        for _ in 0..2 {
            assert_eq!(offsets(&read_all(&partition)), expected, "cut to {bytes}");
        }
        assert_eq!(log.metrics().corrupt_regions, 1, "cut to {bytes}");
        // A reader that begins in the lost part continues after it.
        for from in [whole + 1, 50, 99] {
            let (answer, outcomes) = std::sync::mpsc::channel();
            let Read::Cold(cold) = partition.read(from, 1 << 20) else {
                panic!("not cold")
            };
            cold.on_ready(Box::new(move |outcome| answer.send(outcome).unwrap()));
            // One turn for each of the two files.
            log.step();
            log.step();
            assert_eq!(offsets(&outcomes.try_recv().unwrap().unwrap()), [100]);
        }
        assert_eq!(log.metrics().corrupt_regions, 1, "cut to {bytes}");
        let other = log.partition(topic(2), 0, SMALL).unwrap();
        assert_eq!(read_all(&other).len(), 10);
        log.close();
    }
}

#[test]
fn a_missing_file_is_reported_once_and_skipped() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["behind"]));
    sim.mount().remove_file(&path("log")).unwrap();
    for _ in 0..2 {
        assert_eq!(offsets(&read_all(&partition)), [100]);
        assert_eq!(log.metrics().corrupt_regions, 1);
    }
}

#[test]
fn a_long_damaged_region_does_not_block_other_reads() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    let (log, _) = open(&sim);
    let damaged = log
        .partition(topic(2), 0, PartitionOptions::default())
        .unwrap();
    let large = "x".repeat(1 << 20);
    for _ in 0..24 {
        put(&damaged, batch_of(&[&large]));
    }
    let bytes = damaged.size_bytes();
    damaged.seal_active();
    log.close();
    drop((damaged, log));
    let file = format!("topics/{}/0/{:020}.log", topic(2), 0);
    let batch = bytes / 24;
    sim.corrupt(&file, batch, &vec![0; (bytes - 2 * batch) as usize]);
    let (log, _) = open(&sim);
    let [damaged, whole] = [2, 1].map(|number| log.partition(topic(number), 0, SMALL).unwrap());
    let [first, second] = [(damaged, 1), (whole, 0)].map(|(partition, from)| {
        let (answer, outcomes) = std::sync::mpsc::channel();
        let Read::Cold(cold) = partition.read(from, 1) else {
            panic!("not cold")
        };
        cold.on_ready(Box::new(move |outcome| answer.send(outcome).unwrap()));
        outcomes
    });
    log.step();
    assert_eq!(offsets(&second.try_recv().unwrap().unwrap()), [0]);
    assert!(first.try_recv().is_err(), "one turn is enough");
    log.step();
    assert_eq!(offsets(&first.try_recv().unwrap().unwrap()), [23]);
    assert_eq!(log.metrics().cold_reads, 2);
    assert_eq!(log.metrics().corrupt_regions, 1, "reported as one");
}

#[test]
fn a_read_error_is_skipped_like_corruption() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    let disk = FaultyDisk::new(sim.mount());
    let (log, _) = Log::open(disk.clone(), manual()).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    disk.set(|faults| {
        faults.only = ".log".to_owned();
        faults.broken_reads = true;
    });
    let Read::Cold(cold) = partition.read(0, 10_000) else {
        panic!("not cold")
    };
    assert!(cold.run().unwrap().is_empty());
    assert!(log.metrics().corrupt_regions > 0);
}

#[test]
fn a_lost_index_is_rebuilt() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    let (log, _) = open(&sim);
    assert_eq!(
        log.metrics().scanned_segments,
        0,
        "a sealed segment is not scanned"
    );
    log.close();
    sim.mount().remove_file(&path("index")).unwrap();
    let (log, recovery) = open(&sim);
    assert_eq!(recovery.partitions[0].next_offset, 100);
    assert_eq!(log.metrics().scanned_segments, 1);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(read_all(&partition).len(), 100);
    log.close();
    drop((partition, log));
    // An invalid index counts as a missing one.
    sim.corrupt(&path("index"), 0, &[9; 40]);
    let (_, recovery) = open(&sim);
    assert_eq!(recovery.partitions[0].next_offset, 100);
}

#[test]
fn a_lost_index_and_a_corrupt_middle_lose_only_what_is_corrupt() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["behind"]));
    log.close();
    drop((partition, log));
    sim.mount().remove_file(&path("index")).unwrap();
    let len = batch_of(&[&"x".repeat(1_000)]).bytes().len() as u64;
    // In a body, in a length field, and in a base offset, which no checksum covers.
    sim.corrupt(&path("log"), 5 * len + 500, &[0xee; 10]);
    sim.corrupt(&path("log"), 50 * len + 8, &[0xee; 4]);
    sim.corrupt(&path("log"), 70 * len, &[0, 0, 0, 0xee]);
    let expected: Vec<u64> = (0..101)
        .filter(|offset| ![5, 50, 70].contains(offset))
        .collect();
    for scanned in [2, 1] {
        let (log, recovery) = open(&sim);
        assert_eq!(recovery.partitions[0].next_offset, 101);
        assert_eq!(recovery.partitions[0].truncated_bytes, 0);
        let lines = recovery.report.iter();
        let gaps = lines.filter(|line| line.contains("corrupt region")).count();
        assert_eq!(gaps, if scanned == 2 { 3 } else { 0 });
        assert_eq!(log.metrics().scanned_segments, scanned);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        assert_eq!(offsets(&read_all(&partition)), expected);
        log.close();
    }
}

#[test]
fn a_torn_tail_is_cut_off_and_reported() {
    let sim = SimDisk::new();
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for text in ["a", "b", "c"] {
        put(&partition, batch_of(&[text]));
    }
    drop((partition, log));
    sim.kill();
    let len = batch_of(&["a"]).bytes().len() as u64;
    sim.corrupt(&path("log"), 2 * len + 30, &[0xff]);
    let (log, recovery) = open(&sim);
    assert_eq!(recovery.partitions[0].next_offset, 2);
    // The batch's last byte is a zero, which looks like the reserved space after it.
    assert_eq!(recovery.partitions[0].truncated_bytes, len - 1);
    assert!(
        recovery
            .report
            .iter()
            .any(|line| line.contains("torn tail")),
        "{recovery:?}"
    );
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!(offsets(&read_all(&partition)), [0, 1]);
}

#[test]
fn a_read_only_folder_and_a_second_broker_are_refused_with_reasons() {
    let sim = SimDisk::new();
    let disk = FaultyDisk::new(sim.mount());
    disk.set(|faults| faults.read_only = true);
    let refused = Log::open(disk, manual()).unwrap_err();
    assert!(matches!(refused, OpenError::NotWritable { .. }));
    assert!(refused.to_string().contains("(simulated)"), "{refused}");
    let (_log, _) = open(&sim);
    let refused = Log::open(sim.mount(), manual()).unwrap_err();
    let OpenError::Locked { holder, .. } = refused else {
        panic!("{refused}")
    };
    assert!(
        holder.contains(&format!("pid {} since 20", std::process::id())),
        "{holder}"
    );
}

#[test]
fn unknown_names_in_the_folder_are_ignored() {
    let sim = SimDisk::new();
    sealed_log(&sim);
    let mount = sim.mount();
    mount.create_dir_all("topics/lost+found").unwrap();
    mount
        .create_dir_all(&format!("topics/{}/x", topic(1)))
        .unwrap();
    for name in ["notes.log", "1.index", "00000000000000000077.index"] {
        let file = format!("topics/{}/0/{name}", topic(1));
        mount.open(&file, OpenMode::CreateNew).unwrap();
    }
    let (_log, recovery) = open(&sim);
    assert_eq!(recovery.partitions.len(), 1);
    assert!(
        recovery
            .report
            .iter()
            .any(|line| line.contains("lost+found"))
    );
}
