//! Idempotent producers through the log's public interface.

use crate::common::{batch_of, manual, offsets, open, put, read_all, topic};
use cloverleaf_log::{
    AppendError, Batch, BatchBuilder, Durability, FaultyDisk, Log, LogOptions, PartitionOptions,
    SimDisk,
};

/// A batch of producer 7, epoch 0.
fn batch(sequence: i32, records: usize) -> Batch {
    let mut builder = BatchBuilder::with_capacity(100, 1).with_producer(7, 0, sequence);
    for number in 0..records {
        let text = format!("{}", sequence + number as i32);
        builder.push(None, Some(text.as_bytes()), &[]);
    }
    builder.finish()
}

#[test]
fn a_duplicate_gets_the_offsets_of_the_stored_batch() {
    let (log, _) = open(&SimDisk::new());
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    put(&partition, batch(0, 3));
    put(&partition, batch(3, 2));
    let again = partition.append(batch(0, 3), Durability::Kernel).unwrap();
    assert!(again.is_duplicate && again.is_ready());
    assert_eq!((again.base, again.end), (0, 3));
    let gap = partition.append(batch(6, 1), Durability::Kernel);
    assert!(matches!(
        gap,
        Err(AppendError::OutOfOrderSequence {
            producer_id: 7,
            expected: 5,
            found: 6
        })
    ));
    assert_eq!(offsets(&read_all(&partition)), [0, 1, 2, 3, 4]);
    let known = partition.producers();
    assert_eq!((known[0].producer_id, known[0].last_sequence), (7, 4));
}

#[test]
fn a_duplicate_waits_for_the_durability_it_asks_for() {
    let (log, _) = open(&SimDisk::new());
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    put(&partition, batch(0, 1));
    let disk = partition.append(batch(0, 1), Durability::Disk).unwrap();
    let kernel = partition.append(batch(0, 1), Durability::Kernel).unwrap();
    assert!(!disk.is_ready() && kernel.is_ready());
    log.step_commit();
    disk.wait().unwrap();
    let disk = partition.append(batch(0, 1), Durability::Disk).unwrap();
    assert!(disk.is_ready());
}

#[test]
fn a_duplicate_of_an_unwritten_batch_waits_for_its_write() {
    let options = LogOptions {
        inline_writes: false,
        ..manual()
    };
    let (log, _) = Log::open(SimDisk::new().mount(), options).unwrap();
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    let first = partition.append(batch(0, 1), Durability::Kernel).unwrap();
    let second = partition.append(batch(1, 1), Durability::Kernel).unwrap();
    let kernel = partition.append(batch(0, 1), Durability::Kernel).unwrap();
    let disk = partition.append(batch(0, 1), Durability::Disk).unwrap();
    let none = partition.append(batch(0, 1), Durability::None).unwrap();
    assert!(!kernel.is_ready() && !disk.is_ready() && none.is_ready());
    assert!(kernel.is_duplicate && disk.is_duplicate && none.is_duplicate);
    log.step_commit();
    for answered in [first, second, kernel, disk] {
        answered.wait().unwrap();
    }
    assert_eq!(offsets(&read_all(&partition)), [0, 1]);
}

#[test]
fn a_retry_after_a_failed_write_is_stored() {
    let disk = FaultyDisk::new(SimDisk::new().mount());
    for inline_writes in [true, false] {
        let options = LogOptions {
            inline_writes,
            ..manual()
        };
        let (log, _) = Log::open(disk.clone(), options).unwrap();
        let id = topic(u128::from(inline_writes));
        let partition = log.partition(id, 0, PartitionOptions::default()).unwrap();
        let stored = partition.append(batch(0, 2), Durability::Kernel).unwrap();
        log.step_commit();
        stored.wait().unwrap();
        disk.set(|faults| {
            faults.only = ".log".to_owned();
            faults.write_after = Some(0);
        });
        let failed = partition.append(batch(2, 1), Durability::Kernel);
        let same = (!inline_writes).then(|| partition.append(batch(2, 1), Durability::Disk));
        log.step_commit();
        let failed = failed.and_then(cloverleaf_log::Appended::wait);
        assert!(matches!(failed, Err(AppendError::Failed(_))), "{failed:?}");
        if let Some(same) = same {
            assert!(same.unwrap().wait().is_err());
        }
        let gap = partition.append(batch(3, 1), Durability::Kernel);
        assert!(matches!(
            gap,
            Err(AppendError::OutOfOrderSequence { expected: 2, .. })
        ));
        let again = partition.append(batch(2, 1), Durability::Disk).unwrap();
        assert!(!again.is_duplicate);
        log.step_commit();
        again.wait().unwrap();
        let first = partition.append(batch(0, 2), Durability::Kernel).unwrap();
        assert!(first.is_duplicate && first.base == 0);
        assert_eq!(read_all(&partition).len(), 2);
        log.close();
    }
}

#[test]
fn a_duplicate_of_a_batch_whose_sync_failed_fails() {
    let disk = FaultyDisk::new(SimDisk::new().mount());
    let (log, _) = Log::open(disk.clone(), manual()).unwrap();
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    let first = partition.append(batch(0, 1), Durability::Disk).unwrap();
    disk.set(|faults| {
        faults.only = ".log".to_owned();
        faults.sync_after = Some(0);
    });
    log.step_commit();
    assert!(first.wait().is_err());
    let again = partition.append(batch(0, 1), Durability::Disk);
    assert!(matches!(again, Err(AppendError::Failed(_))), "{again:?}");
    let kernel = partition.append(batch(0, 1), Durability::Kernel).unwrap();
    assert!(kernel.is_duplicate && kernel.is_ready());
}

/// The segment of the batch was dropped, and an older segment still exists.
#[test]
fn a_duplicate_of_a_dropped_batch_is_ready_at_once() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let options = PartitionOptions::default;
    let partition = log.partition(topic(1), 0, options()).unwrap();
    put(&partition, batch_of(&["pinned"]));
    partition.seal_active();
    put(&partition, batch(0, 3));
    partition.seal_active();
    log.step();
    partition.drop_segments(&[1]).unwrap();
    for _ in 0..2 {
        disk.kill();
        let (log, _) = open(&disk);
        let partition = log.partition(topic(1), 0, options()).unwrap();
        assert_eq!((partition.written_end(), partition.next_offset()), (1, 4));
        assert_eq!((partition.skip_hole(4), partition.skip_hole(2)), (1, 1));
        for class in [Durability::Kernel, Durability::Disk] {
            let again = partition.append(batch(0, 3), class).unwrap();
            assert!(again.is_duplicate && again.is_ready(), "{class:?}");
            assert_eq!((again.base, again.end), (1, 4));
        }
    }
}

/// The offsets of the lost batch are not assigned again, and a retry of it is accepted.
#[test]
fn a_retry_of_a_batch_lost_to_damage_is_stored() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    for next in [batch(0, 3), batch(3, 2)] {
        put(&partition, next);
        partition.seal_active();
        log.step();
    }
    log.close();
    drop((log, partition));
    disk.kill();
    let path = format!("topics/{}/0/{:020}.log", topic(1), 3);
    disk.mount().remove_file(&path).unwrap();
    let (log, _) = open(&disk);
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    assert_eq!(partition.next_offset(), 5);
    let again = partition.append(batch(3, 2), Durability::Kernel).unwrap();
    assert!(!again.is_duplicate);
    assert_eq!(offsets(&read_all(&partition)), [0, 1, 2, 5, 6]);
}

/// The batch's header is valid, and its records are corrupt.
#[test]
fn a_retry_of_a_corrupt_batch_is_stored() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    for sequence in 0..3 {
        put(&partition, batch(sequence, 1));
    }
    let len = partition.size_bytes() / 3;
    drop((log, partition));
    disk.kill();
    let path = format!("topics/{}/0/{:020}.log", topic(1), 0);
    disk.corrupt(&path, 2 * len - 3, b"#");
    let (log, _) = open(&disk);
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    for (sequence, is_duplicate) in [(0, true), (1, false), (2, true)] {
        let again = partition.append(batch(sequence, 1), Durability::Kernel);
        assert_eq!(again.unwrap().is_duplicate, is_duplicate, "{sequence}");
    }
    assert_eq!(offsets(&read_all(&partition)), [0, 2, 3]);
}
