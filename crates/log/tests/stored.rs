//! Batches that are sent from their files: which batches are, and that the bytes are right.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{batch_of, put, read_all, topic};
use cloverleaf_log::{
    Batch, Durability, Faults, FaultyDisk, Log, LogOptions, Offset, PartitionLog, PartitionOptions,
    Read, RealDisk, StoredBatches,
};
use rustix::fs::Advice;

const BATCH_TEXT_BYTES: usize = 20_000;
const SEGMENT_BYTES: u64 = 1_000_000;

struct World {
    folder: tempfile::TempDir,
    disk: Arc<FaultyDisk>,
    log: Log,
    partition: Arc<PartitionLog>,
}

impl World {
    fn new() -> World {
        // The system's temporary folder may be in memory, so another one is used.
        World::open(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn open(folder: tempfile::TempDir) -> World {
        let options = LogOptions {
            disk_free_bytes_min: 0,
            // Only the newest batches are in the tail cache.
            tail_bytes_max: 50_000,
            ..LogOptions::default()
        };
        let disk = FaultyDisk::new(RealDisk::open(folder.path()).unwrap());
        let (log, _) = Log::open(disk.clone(), options).unwrap();
        let options = PartitionOptions {
            segment_bytes: SEGMENT_BYTES,
            segment_ms: None,
        };
        let partition = log.partition(topic(1), 0, options).unwrap();
        World {
            folder,
            disk,
            log,
            partition,
        }
    }

    /// A world with `count` batches of two records and of about 40,000 bytes each.
    fn with_batches(count: u32) -> World {
        let world = World::new();
        for number in 0..count {
            let text = format!("{number:010}").repeat(BATCH_TEXT_BYTES / 10);
            put(&world.partition, batch_of(&[&text, &text]));
        }
        world
    }

    fn again(self) -> World {
        let World {
            folder,
            disk: _,
            log,
            partition,
        } = self;
        drop(partition);
        log.close();
        drop(log);
        World::open(folder)
    }

    /// The files of the segments, oldest first.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.extension().is_some_and(|e| e == "log") => found.push(path),
                    false => {}
                }
            }
        }
        found.sort();
        found
    }
}

/// The batches that a client would receive.
fn sent(stored: &StoredBatches) -> Vec<Batch> {
    let file = stored.file().as_fd().try_clone_to_owned().unwrap();
    let mut bytes = vec![0; stored.len_bytes()];
    let file = std::fs::File::from(file);
    file.read_exact_at(&mut bytes, stored.position()).unwrap();
    let mut rest = bytes::Bytes::from(bytes);
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let length = Batch::peek_len(&rest).unwrap();
        batches.push(Batch::parse_stored(rest.split_to(length)).unwrap());
    }
    batches
}

#[test]
fn ranges_are_the_batches_that_a_read_gives() {
    let world = World::with_batches(100);
    let partition = &world.partition;
    let expected = read_all(partition);
    let mut ranges = 0;
    for from in 0..200_u64 {
        for bytes_max in [90_000, 130_000, 400_000, 4_000_000] {
            let Some(stored) = partition.read_stored(from, bytes_max) else {
                let near_the_end = from >= 190;
                let segment_ends = partition.segments().iter().any(|s| {
                    // The rest of the segment is too small to be sent from the file.
                    s.end > from && s.end - from < 4
                });
                assert!(near_the_end || segment_ends, "{from} {bytes_max}");
                continue;
            };
            ranges += 1;
            let batches = sent(&stored);
            assert!(stored.len_bytes() <= bytes_max);
            assert!(batches[0].base_offset() <= from && from < batches[0].end_offset());
            assert_eq!(stored.end_offset(), batches.last().unwrap().end_offset());
            let records: u64 = batches.iter().map(|batch| u64::from(batch.count())).sum();
            assert_eq!(stored.count(), records);
            let first = expected.iter().position(|b| b.end_offset() > from).unwrap();
            for (batch, expected) in batches.iter().zip(&expected[first..]) {
                assert_eq!(batch.bytes(), expected.bytes());
            }
        }
    }
    assert!(ranges > 500, "{ranges}");
    assert_eq!(world.log.metrics().stored_reads, ranges);
}

#[test]
fn a_reader_that_continues_where_it_stopped_gets_each_batch_once() {
    let world = World::with_batches(100);
    let mut from: Offset = 0;
    let mut ranges = 0;
    while let Some(stored) = world.partition.read_stored(from, 300_000) {
        assert_eq!(sent(&stored)[0].base_offset(), from);
        from = stored.end_offset();
        ranges += 1;
    }
    // The loop ends within the first segment, whose rest is too small to be sent from the file.
    assert!(ranges >= 3 && from >= 40, "{ranges} {from}");
}

#[test]
fn small_batches_and_small_requests_are_not_sent_from_files() {
    let world = World::new();
    for number in 0..3_000 {
        put(
            &world.partition,
            batch_of(&[&format!("{number}"), &"x".repeat(200)]),
        );
    }
    assert!(
        world.partition.read_stored(0, 1 << 20).is_none(),
        "small batches"
    );
    let world = World::with_batches(20);
    assert!(
        world.partition.read_stored(0, 50_000).is_none(),
        "a small wish"
    );
    let end = world.partition.written_end();
    assert!(
        world.partition.read_stored(end, 1 << 20).is_none(),
        "nothing there"
    );
    assert!(
        world.partition.read_stored(end - 1, 1 << 20).is_none(),
        "in memory"
    );
}

#[test]
fn batches_of_an_earlier_run_are_sent_once_they_were_read() {
    let world = World::with_batches(100).again();
    assert!(world.partition.read_stored(0, 1 << 20).is_none());
    let all = read_all(&world.partition);
    assert_eq!(all.len(), 100);
    let stored = world.partition.read_stored(0, 1 << 20).unwrap();
    assert_eq!(sent(&stored)[0].bytes(), all[0].bytes());
}

#[test]
fn no_unverified_batch_after_a_corrupt_one_is_sent() {
    let world = World::with_batches(100);
    let length = read_all(&world.partition)[0].bytes().len() as u64;
    let world = world.again();
    let first = &world.files()[0];
    let file = std::fs::File::options().write(true).open(first).unwrap();
    // In the fourth batch, after its header.
    file.write_all_at(b"!", 3 * length + 100).unwrap();
    let left = read_all(&world.partition);
    assert!(left.len() < 100, "it was jumped over");
    let stored = world.partition.read_stored(0, 1 << 20).unwrap();
    assert_eq!(stored.end_offset(), 6, "three batches of two");
    assert!(world.partition.read_stored(6, 1 << 20).is_none());
    assert!(world.partition.read_stored(12, 1 << 20).is_none());
    // The next segment, another file, is sent.
    let next = world.partition.segments()[1].base;
    assert!(world.partition.read_stored(next, 1 << 20).is_some());
}

#[test]
fn batches_evicted_from_the_page_cache_are_read() {
    let world = World::with_batches(100);
    let first = std::fs::File::open(&world.files()[0]).unwrap();
    first.sync_all().unwrap();
    rustix::fs::fadvise(&first, 0, None, Advice::DontNeed).unwrap();
    assert!(world.partition.read_stored(0, 1 << 20).is_none());
    assert_eq!(read_all(&world.partition).len(), 100);
    assert!(
        world.partition.read_stored(0, 1 << 20).is_some(),
        "it is back"
    );
}

#[test]
fn evicted_batches_are_verified_again_before_they_are_sent() {
    let world = World::with_batches(100);
    assert!(world.partition.read_stored(20, 400_000).is_some());
    world.disk.set(|faults| faults.uncached = true);
    assert!(world.partition.read_stored(20, 400_000).is_none());
    world.disk.set(|faults| *faults = Faults::default());
    assert!(
        world.partition.read_stored(20, 400_000).is_none(),
        "not verified since"
    );
    assert_eq!(read_all(&world.partition).len(), 100);
    assert!(world.partition.read_stored(20, 400_000).is_some());
}

#[test]
fn a_segment_whose_sync_has_failed_is_read() {
    let world = World::with_batches(100);
    let last = world.partition.segments().last().unwrap().base;
    assert!(world.partition.read_stored(last, 1 << 20).is_some());
    world.disk.set(|faults| {
        faults.only = format!("{last:020}.log");
        faults.sync_after = Some(0);
    });
    let appended = world
        .partition
        .append(batch_of(&["late"]), Durability::Disk);
    assert!(appended.unwrap().wait().is_err());
    world.disk.set(|faults| *faults = Faults::default());
    assert!(world.partition.read_stored(last, 1 << 20).is_none());
}

#[test]
fn ranges_are_right_during_writes() {
    let world = World::with_batches(10);
    let partition = &world.partition;
    let text = |number: u64| format!("{number:010}").repeat(BATCH_TEXT_BYTES / 10);
    let count = 300;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 10..count {
                let text = text(number);
                put(partition, batch_of(&[&text, &text]));
            }
        });
        let mut seen = 0;
        let mut from = 0;
        while from < 2 * count - 60 {
            let Some(stored) = partition.read_stored(from, 1 << 20) else {
                // The rest of a segment is too small, or is not written yet.
                if let Read::Batches(batches) = partition.read(from, 1) {
                    from = batches[0].end_offset();
                }
                continue;
            };
            for batch in sent(&stored) {
                assert_eq!(batch.base_offset(), from);
                assert!(
                    crate::common::text_at(&batch, from) == text(from / 2),
                    "{from}"
                );
                from = batch.end_offset();
            }
            seen += 1;
        }
        assert!(seen > 5, "{seen}");
    });
}
