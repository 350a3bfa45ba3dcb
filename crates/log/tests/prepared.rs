//! Prepared segment files: when one is created, that it is used, how it is removed otherwise, and
//! crashes at any step.

use std::sync::Arc;

use crate::common::{batch_of, manual, open, read_all, text_at, topic};
use cloverleaf_log::{
    Disk, Durability, FaultyDisk, Log, LogOptions, OpenMode, PartitionLog, PartitionOptions,
    RealDisk, SimDisk,
};

const SEGMENT_BYTES: u64 = 10_000;
/// The segment's size, rounded up to whole blocks.
const PREPARED_BYTES: u64 = 12_288;
const OPTIONS: PartitionOptions = PartitionOptions {
    segment_bytes: SEGMENT_BYTES,
    segment_ms: None,
};
const DIR: &str = "topics/00000000-0000-0000-0000-000000000001/0";

fn text(number: u64) -> String {
    format!("{number}:").repeat(100 + number as usize % 7)
}

/// Appends texts from number `from` on in the class *disk*, until the active segment has at least
/// this many bytes. Returns the number of the next text.
fn fill(log: &Log, partition: &Arc<PartitionLog>, from: u64, bytes: u64) -> u64 {
    let mut number = from;
    while partition.segments().last().map_or(0, |it| it.bytes) < bytes {
        append(log, partition, number, Durability::Disk);
        number += 1;
    }
    number
}

fn append(log: &Log, partition: &Arc<PartitionLog>, number: u64, class: Durability) {
    let appended = partition.append(batch_of(&[&text(number)]), class).unwrap();
    log.step();
    appended.wait().unwrap();
}

/// Appends until a new segment is begun. Returns the number of the next text.
fn roll(log: &Log, partition: &Arc<PartitionLog>, from: u64) -> u64 {
    let segments = partition.segments().len();
    let mut number = from;
    while partition.segments().len() == segments {
        append(log, partition, number, Durability::Disk);
        number += 1;
    }
    number
}

fn len(disk: &dyn Disk, name: &str) -> Option<u64> {
    let file = disk.open(&format!("{DIR}/{name}"), OpenMode::Existing);
    file.ok().map(|file| file.len().unwrap())
}

fn prepared(disk: &SimDisk) -> Option<u64> {
    len(&*disk.mount(), "next.prepared")
}

fn check(partition: &Arc<PartitionLog>, numbers: u64) {
    let batches = read_all(partition);
    assert!(
        batches.len() as u64 >= numbers,
        "{} of {numbers}",
        batches.len()
    );
    for (number, batch) in batches.iter().enumerate() {
        let number = number as u64;
        assert_eq!(batch.base_offset(), number);
        assert_eq!(text_at(batch, number), text(number));
    }
}

#[test]
fn a_file_is_prepared_when_the_segment_is_half_full_and_used_for_the_next_one() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    append(&log, &partition, 0, Durability::Disk);
    assert_eq!(prepared(&disk), None);
    let mut next = fill(&log, &partition, 1, SEGMENT_BYTES / 2 + 1);
    for _ in 0..3 {
        assert_eq!(prepared(&disk), Some(PREPARED_BYTES));
        next = roll(&log, &partition, next);
        assert_eq!(prepared(&disk), None);
        let base = partition.segments().last().unwrap().base;
        let name = format!("{base:020}.log");
        assert_eq!(len(&*disk.mount(), &name), Some(PREPARED_BYTES));
        next = fill(&log, &partition, next, SEGMENT_BYTES / 2 + 1);
    }
    check(&partition, next);
    // A prepared file that was used is truncated when its segment is sealed.
    let segments = partition.segments();
    for segment in segments.iter().filter(|segment| segment.is_droppable) {
        let name = format!("{:020}.log", segment.base);
        assert_eq!(len(&*disk.mount(), &name), Some(segment.bytes));
    }
    assert!(
        segments
            .iter()
            .filter(|segment| segment.is_droppable)
            .count()
            >= 3
    );
    drop((partition, log));
    disk.kill();
    let (log, recovery) = open(&disk);
    assert_eq!(prepared(&disk), None);
    assert!(recovery.report.len() <= 1, "{:?}", recovery.report);
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    check(&partition, next);
    let next = roll(&log, &partition, next);
    check(&partition, next);
}

#[test]
fn only_appends_of_the_disk_class_prepare_a_file() {
    for (class, prepare_segments, expected) in [
        (Durability::Disk, true, Some(PREPARED_BYTES)),
        (Durability::Disk, false, None),
        (Durability::Kernel, true, None),
        (Durability::None, true, None),
    ] {
        let disk = SimDisk::new();
        let options = LogOptions {
            prepare_segments,
            ..manual()
        };
        let (log, _) = Log::open(disk.mount(), options).unwrap();
        let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
        for number in 0..25 {
            append(&log, &partition, number, class);
        }
        assert_eq!(prepared(&disk), expected, "{class:?} {prepare_segments}");
    }
}

#[test]
fn a_prepared_file_that_is_not_needed_is_removed() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    let next = fill(&log, &partition, 0, SEGMENT_BYTES / 2 + 1);
    assert!(prepared(&disk).is_some());
    // After a change of the segment size.
    partition.set_options(&PartitionOptions {
        segment_bytes: 3 * SEGMENT_BYTES,
        ..OPTIONS
    });
    log.step();
    assert_eq!(prepared(&disk), None);
    let next = fill(&log, &partition, next, SEGMENT_BYTES * 3 / 2 + 1);
    assert_eq!(prepared(&disk), Some(32_768));
    // After the log is closed, which also truncates the active segment.
    let next = roll(&log, &partition, next);
    let next = fill(&log, &partition, next, SEGMENT_BYTES * 3 / 2 + 1);
    assert_eq!(prepared(&disk), Some(32_768));
    let active = partition.segments().pop().unwrap();
    let name = format!("{:020}.log", active.base);
    assert_eq!(len(&*disk.mount(), &name), Some(32_768));
    log.close();
    assert_eq!(prepared(&disk), None);
    assert_eq!(len(&*disk.mount(), &name), Some(active.bytes));
    drop((partition, log));
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    check(&partition, next);
    let next = roll(&log, &partition, next);
    fill(&log, &partition, next, SEGMENT_BYTES / 2 + 1);
    assert!(prepared(&disk).is_some());
    // After the topic is deleted.
    log.delete_topic(topic(1));
    log.step();
    let left = disk.mount().list("topics").unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn no_file_is_prepared_on_a_failing_disk_and_a_full_one_frees_it() {
    let sim = SimDisk::new();
    let disk = FaultyDisk::new(sim.mount());
    let options = LogOptions {
        disk_free_bytes_min: 100_000,
        ..manual()
    };
    let (log, _) = Log::open(disk.clone(), options).unwrap();
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    disk.set(|faults| {
        faults.only = "next.prepared".to_owned();
        faults.sync_after = Some(0);
    });
    let next = fill(&log, &partition, 0, SEGMENT_BYTES * 3 / 4);
    assert_eq!(prepared(&sim), None);
    disk.set(|faults| faults.free_bytes = Some(280_000));
    let next = roll(&log, &partition, next);
    let next = fill(&log, &partition, next, SEGMENT_BYTES / 2 + 1);
    assert_eq!(prepared(&sim), Some(PREPARED_BYTES));
    let next = roll(&log, &partition, next);
    disk.set(|faults| faults.free_bytes = Some(200_000 + PREPARED_BYTES - 1));
    let next = fill(&log, &partition, next, SEGMENT_BYTES / 2 + 1);
    assert_eq!(prepared(&sim), None);
    disk.set(|faults| faults.free_bytes = None);
    let next = roll(&log, &partition, next);
    let next = fill(&log, &partition, next, SEGMENT_BYTES / 2 + 1);
    assert_eq!(prepared(&sim), Some(PREPARED_BYTES));
    disk.set(|faults| faults.free_bytes = Some(0));
    let mut refused = false;
    while !refused {
        // A measurement of the free space is valid for a while.
        let refusal = partition.append(batch_of(&["x"]), Durability::None);
        refused = refusal.is_err();
        std::thread::yield_now();
    }
    log.step();
    assert_eq!(prepared(&sim), None);
    assert!(partition.next_offset() >= next);
}

/// The machine crashes in each operation in turn, from before a file is created until after it is
/// used. Each is repeated with many seeds, which choose the unsynced changes that are left.
#[test]
fn a_crash_in_each_operation_loses_nothing_and_brings_nothing_back() {
    let mut operations = 0;
    let mut died_with_file = 0;
    loop {
        let mut survived = false;
        for loss_seed in 0..16 {
            survived = crash_in(operations, loss_seed, &mut died_with_file);
        }
        if survived {
            break;
        }
        operations += 1;
    }
    assert!(operations > 40, "{operations}");
    assert!(died_with_file > 20, "{died_with_file}");
}

/// Returns whether all operations were done before the crash.
fn crash_in(operation: u64, loss_seed: u64, died_with_file: &mut u64) -> bool {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    let first = fill(&log, &partition, 0, SEGMENT_BYTES / 2 - 1_000);
    disk.crash_after(operation);
    let mut acknowledged = first;
    let mut survived = true;
    for number in first..first + 22 {
        let appended = partition.append(batch_of(&[&text(number)]), Durability::Disk);
        // A prepared file is created in the step of one append and used in a later one.
        log.step();
        let answer = appended.map(|appended| appended.wait());
        if !matches!(answer, Ok(Ok(()))) {
            survived = false;
            break;
        }
        acknowledged = number + 1;
    }
    drop((partition, log));
    match loss_seed % 4 {
        0 => disk.kill(),
        _ => disk.power_loss(operation * 1_000 + loss_seed),
    }
    *died_with_file += u64::from(prepared(&disk).is_some());
    let (log, _) = open(&disk);
    assert_eq!(prepared(&disk), None);
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    check(&partition, acknowledged);
    // A batch that was not acknowledged is either complete or never reappears.
    let next = partition.next_offset();
    let next = roll(&log, &partition, next);
    let next = roll(&log, &partition, next);
    check(&partition, next);
    drop((partition, log));
    disk.power_loss(loss_seed);
    let (log, _) = open(&disk);
    check(&log.partition(topic(1), 0, OPTIONS).unwrap(), next);
    survived
}

#[test]
fn a_real_folder_creates_zeroed_files_and_stops_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path()).unwrap();
    let bytes = (3 << 20) + 4096;
    disk.create_zeroed("zeros", bytes, &|| true).unwrap();
    let read = std::fs::read(folder.path().join("zeros")).unwrap();
    assert_eq!(read.len() as u64, bytes);
    assert!(read.iter().all(|byte| *byte == 0));
    assert!(disk.create_zeroed("zeros", bytes, &|| true).is_err());
    assert!(disk.create_zeroed("more", bytes, &|| false).is_err());
}

#[test]
fn the_preparer_thread_works_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path()).unwrap();
    let options = LogOptions {
        disk_free_bytes_min: 0,
        ..LogOptions::default()
    };
    let (log, _) = Log::open(disk.clone(), options.clone()).unwrap();
    let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
    let put = |number: u64| {
        let appended = partition.append(batch_of(&[&text(number)]), Durability::Disk);
        appended.unwrap().wait().unwrap();
    };
    let mut next = 0;
    for _ in 0..5 {
        while partition.segments().last().map_or(0, |it| it.bytes) <= SEGMENT_BYTES / 2 {
            put(next);
            next += 1;
        }
        while len(&*disk, "next.prepared") != Some(PREPARED_BYTES) {
            std::thread::yield_now();
        }
        let segments = partition.segments().len();
        while partition.segments().len() == segments {
            put(next);
            next += 1;
        }
    }
    check(&partition, next);
    log.close();
    drop((partition, log));
    let (log, _) = Log::open(disk.clone(), options).unwrap();
    check(&log.partition(topic(1), 0, OPTIONS).unwrap(), next);
}

#[test]
fn a_file_that_was_exchanged_with_the_prepared_one_is_put_back() {
    // The active segment, and a sealed one.
    for back in [1, 2] {
        let disk = SimDisk::new();
        let (log, _) = open(&disk);
        let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
        let mut next = roll(&log, &partition, 0);
        next = roll(&log, &partition, next);
        next = fill(&log, &partition, next, SEGMENT_BYTES / 2 + 1);
        let segments = partition.segments();
        let base = segments[segments.len() - back].base;
        drop((partition, log));
        disk.kill();
        let log_path = format!("{DIR}/{base:020}.log");
        let prepared_path = format!("{DIR}/next.prepared");
        let mount = disk.mount();
        for (from, to) in [
            (log_path.as_str(), "aside"),
            (&prepared_path, &log_path),
            ("aside", &prepared_path),
        ] {
            mount.rename(from, to).unwrap();
        }
        for start in 0..2 {
            let (log, recovery) = open(&disk);
            let is_reported =
                |line: &String| line.contains(&log_path) && line.contains(&prepared_path);
            assert_eq!(recovery.report.iter().any(is_reported), start == 0);
            assert_eq!(prepared(&disk), None);
            let partition = log.partition(topic(1), 0, OPTIONS).unwrap();
            check(&partition, next);
            append(&log, &partition, next, Durability::Kernel);
            next += 1;
            assert_eq!(partition.next_offset(), next);
            check(&partition, next);
            drop((partition, log));
            disk.kill();
        }
    }
}
