//! Raised offsets: the next record gets a higher offset, and the written end stays until it is
//! written.

use crate::common::{SMALL, batch_of, fresh, manual, offsets, open, put, read_all, topic};
use cloverleaf_log::{Durability, Log, LogOptions, OpenMode, SimDisk};

#[test]
fn a_raise_moves_no_end_and_begins_a_segment() {
    let (_, log, partition) = fresh();
    partition.raise_next_offset(10);
    let ends = || (partition.written_end(), partition.synced_end());
    assert_eq!((ends(), partition.next_offset()), ((0, 0), 10));
    put(&partition, batch_of(&["a"]));
    assert_eq!(partition.skip_hole(0), 10);
    partition.raise_next_offset(100);
    partition.raise_next_offset(110);
    assert_eq!((ends().0, partition.next_offset()), (11, 110));
    assert_eq!(partition.start_offset(), 10);
    log.step();
    assert_eq!(ends(), (11, 11));
    assert_eq!((partition.skip_hole(11), partition.skip_hole(60)), (11, 11));
    assert_eq!(
        (partition.skip_hole(110), partition.skip_hole(111)),
        (11, 111)
    );
    put(&partition, batch_of(&["b"]));
    assert_eq!(partition.holes(), vec![11..110; 1]);
    assert_eq!(
        (partition.skip_hole(11), partition.skip_hole(60)),
        (110, 110)
    );
    assert_eq!((partition.lag_from(0), partition.lag_from(60)), (2, 1));
    let ends: Vec<_> = partition
        .segments()
        .iter()
        .map(|segment| (segment.base, segment.end))
        .collect();
    assert_eq!(ends, [(10, 11), (110, 111)]);
}

#[test]
fn the_start_is_never_above_pending_records() {
    let disk = SimDisk::new();
    let options = LogOptions {
        inline_writes: false,
        ..manual()
    };
    let (log, _) = Log::open(disk.mount(), options).unwrap();
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let appended = partition
        .append(batch_of(&["a"]), Durability::Kernel)
        .unwrap();
    assert_eq!(partition.start_offset(), 0);
    partition.raise_next_offset(50);
    partition.truncate_before(50).unwrap();
    assert_eq!((partition.start_offset(), partition.written_end()), (0, 0));
    assert_eq!(partition.written_and_unwritten(), (0, 1));
    log.step_commit();
    assert!(appended.is_ready());
    assert_eq!((partition.start_offset(), partition.written_end()), (0, 1));
    assert_eq!(offsets(&read_all(&partition)), [0]);
    // The hole does not count as unwritten.
    assert_eq!(partition.written_and_unwritten(), (1, 0));
    let next = partition.append(batch_of(&["b"]), Durability::Kernel);
    assert_eq!(partition.written_and_unwritten(), (1, 1));
    log.step_commit();
    assert!(next.unwrap().is_ready());
    assert_eq!(partition.written_and_unwritten(), (51, 0));
}

/// In whatever way the earlier messages were dropped, and after any kind of start.
#[test]
fn readers_reach_the_end_before_a_raise() {
    let (disk, mut log, mut partition) = fresh();
    for next in [2, 1_000] {
        partition.raise_next_offset(next);
        put(&partition, batch_of(&["a"]));
        let end = next + 1;
        partition.raise_next_offset(next + 500);
        for drops in [false, true, true] {
            if drops {
                partition.seal_active();
                log.step();
                let bases: Vec<_> = partition.segments().iter().map(|it| it.base).collect();
                partition.drop_segments(&bases).unwrap();
                assert_eq!(partition.start_offset(), end);
            }
            assert_eq!(partition.written_end(), end);
            log.close();
            disk.kill();
            (log, _) = open(&disk);
            partition = log.partition(topic(1), 0, SMALL).unwrap();
            assert_eq!(partition.written_end(), end);
            partition.raise_next_offset(next + 500);
        }
    }
    put(&partition, batch_of(&["b"]));
    for _ in 0..2 {
        log.step();
        let ends = (partition.start_offset(), partition.written_end());
        assert_eq!(ends, (1_500, 1_501));
        assert_eq!(offsets(&read_all(&partition)), [1_500]);
        log.close();
        disk.kill();
        (log, _) = open(&disk);
        partition = log.partition(topic(1), 0, SMALL).unwrap();
    }
}

/// A power loss may keep the name of a new segment and lose its batches.
#[test]
fn an_empty_segment_does_not_move_the_written_end() {
    let (disk, log, partition) = fresh();
    put(&partition, batch_of(&["a"]));
    log.sync_all().unwrap();
    partition.raise_next_offset(100);
    put(&partition, batch_of(&["b"]));
    let path = "topics/00000000-0000-0000-0000-000000000001/0/00000000000000000100.log";
    drop((log, partition));
    disk.kill();
    let file = disk.mount().open(path, OpenMode::Existing).unwrap();
    file.set_len(0).unwrap();
    drop(file);
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    assert_eq!((partition.written_end(), partition.next_offset()), (1, 100));
    put(&partition, batch_of(&["c"]));
    assert_eq!(offsets(&read_all(&partition)), [0, 100]);
}
