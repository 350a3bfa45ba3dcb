//! Clocks that are set back, and look-ups of records by timestamps in any order, in memory and on
//! disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use crate::common::{Random, manual, put, topic};
use cloverleaf_log::{
    AppendError, Batch, BatchBuilder, Codec, Durability, FaultyDisk, Log, LogClock, LogOptions,
    Offset, PartitionLog, PartitionOptions, Read, SimDisk,
};

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
const START_MS: i64 = 1_700_000_000_000;

/// A log whose clock returns the value of `clock`.
fn open_at(disk: &SimDisk, clock: &Arc<AtomicI64>) -> (Log, Arc<PartitionLog>) {
    let clock = clock.clone();
    let options = LogOptions {
        clock: LogClock::new(move || clock.load(SeqCst)),
        ..manual()
    };
    let (log, _) = Log::open(disk.mount(), options).unwrap();
    let partition = log.partition(topic(1), 0, PartitionOptions::default());
    (log, partition.unwrap())
}

/// A batch of one record of producer 7.
fn batch(sequence: i32, value: &[u8]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(100, START_MS).with_producer(7, 0, sequence);
    builder.push(None, Some(value), &[]);
    builder.finish()
}

#[test]
fn producers_are_known_while_a_clock_is_set_back_and_corrected() {
    // With a snapshot of the producers, and with a walk over the log.
    for has_snapshot in [true, false] {
        // A clean stop writes a snapshot if the walk would be long.
        let value = vec![b'v'; if has_snapshot { 2 << 20 } else { 1 }];
        let batch = |sequence| batch(sequence, &value);
        let is_duplicate = |partition: &Arc<PartitionLog>, sequence| {
            let appended = partition.append(batch(sequence), Durability::Kernel);
            appended.unwrap().is_duplicate
        };
        let disk = SimDisk::new();
        let clock = Arc::new(AtomicI64::new(START_MS));
        let restart = |log: Log, partition: Arc<PartitionLog>, now_ms: i64| {
            if has_snapshot {
                log.close();
            }
            drop((partition, log));
            disk.kill();
            clock.store(now_ms, SeqCst);
            open_at(&disk, &clock)
        };
        let (log, partition) = open_at(&disk, &clock);
        put(&partition, batch(0));

        let (log, partition) = restart(log, partition, START_MS - 10 * DAY_MS);
        partition.forget_silent_producers(START_MS - 10 * DAY_MS);
        assert!(is_duplicate(&partition, 0), "{has_snapshot}");
        let gap = partition.append(batch(5), Durability::Kernel);
        assert!(matches!(gap, Err(AppendError::OutOfOrderSequence { .. })));
        put(&partition, batch(1));
        // The clock is corrected while the log is open, ...
        clock.store(START_MS + HOUR_MS, SeqCst);
        if has_snapshot {
            partition.forget_silent_producers(START_MS + HOUR_MS);
            assert!(is_duplicate(&partition, 1));
        }
        clock.store(START_MS - 10 * DAY_MS, SeqCst);
        // ... or between two runs.
        let (log, partition) = restart(log, partition, START_MS + 2 * HOUR_MS);
        assert!(is_duplicate(&partition, 0), "{has_snapshot}");
        assert!(is_duplicate(&partition, 1), "{has_snapshot}");
        put(&partition, batch(2));
        let seen_ms = START_MS + 2 * HOUR_MS;
        clock.store(seen_ms + DAY_MS - 1, SeqCst);
        partition.forget_silent_producers(seen_ms + DAY_MS - 1);
        assert_eq!(partition.producers().len(), 1);
        clock.store(seen_ms + DAY_MS, SeqCst);
        assert!(partition.producers().is_empty());
        assert!(!is_duplicate(&partition, 2), "a day later it is forgotten");
        drop((partition, log));
    }
}

/// Offset and timestamp of each record that was appended, in order.
type Model = Vec<(Offset, i64)>;

/// Appends batches whose timestamps go forward and back, over several segments and many index
/// entries.
fn fill(partition: &Arc<PartitionLog>, random: &mut Random, codecs: &[Codec]) -> Model {
    let mut model = Model::new();
    let mut now_ms = START_MS;
    for _ in 0..240 {
        now_ms += match random.below(8) {
            0 => -(random.below(DAY_MS as u64) as i64),
            _ => random.below(HOUR_MS as u64) as i64,
        };
        let codec = codecs[random.below(codecs.len() as u64) as usize];
        let mut builder = BatchBuilder::with_capacity(16 << 10, now_ms);
        let records = 1 + random.below(4) as usize;
        let base = model.last().map_or(0, |(offset, _)| offset + 1);
        // Random bytes cannot be compressed, so the batches stay large.
        let value: Vec<u8> = (0..4 << 10).map(|_| random.next() as u8).collect();
        let appended = codec == Codec::None && random.below(2) == 0;
        for number in 0..records {
            let at_ms = if appended {
                now_ms
            } else {
                now_ms + random.below(5_000) as i64 - 2_500
            };
            builder.push_at(at_ms, None, Some(&value), &[]);
            model.push((base + number as Offset, at_ms));
        }
        let batch = builder.finish().compress(codec).unwrap();
        put(
            partition,
            if appended {
                batch.stamp_append_time(now_ms)
            } else {
                batch
            },
        );
    }
    model
}

/// Compares look-ups with a walk over all appended records from offset `start` on.
#[track_caller]
fn compare(partition: &Arc<PartitionLog>, model: &Model, start: Offset, random: &mut Random) {
    let visible = || model.iter().copied().filter(|(offset, _)| *offset >= start);
    let newest_ms = visible().map(|(_, its_ms)| its_ms).max().unwrap();
    let mut asked = vec![0, newest_ms, newest_ms + 1, i64::MAX, i64::MIN];
    for _ in 0..60 {
        let (_, near_ms) = model[random.below(model.len() as u64) as usize];
        asked.extend([near_ms - 1, near_ms, near_ms + 1]);
    }
    for asked_ms in asked {
        let expected = visible().find(|(_, its_ms)| *its_ms >= asked_ms);
        let found = partition.offset_for_timestamp(asked_ms).unwrap();
        assert_eq!(found, expected, "since {asked_ms}");
    }
    let expected = visible().find(|(_, its_ms)| *its_ms == newest_ms);
    assert_eq!(partition.max_timestamp().unwrap(), expected);
}

#[test]
fn decreasing_timestamps_are_found_in_memory_and_on_disk() {
    let all = [
        Codec::None,
        Codec::Gzip,
        Codec::Snappy,
        Codec::Lz4,
        Codec::Zstd,
    ];
    for (seed, codecs) in [(1, &all[..1]), (2, &all[..]), (3, &all[1..])] {
        let random = &mut Random(seed);
        let disk = SimDisk::new();
        let small = PartitionOptions {
            segment_bytes: 200 << 10,
            ..PartitionOptions::default()
        };
        let (log, _) = Log::open(disk.mount(), manual()).unwrap();
        let partition = log.partition(topic(1), 0, small.clone()).unwrap();
        let model = fill(&partition, random, codecs);
        assert!(partition.segments().len() > 3);
        compare(&partition, &model, 0, random);
        log.close();
        drop((partition, log));

        // No batch is in the tail cache or in the page cache.
        let faulty = FaultyDisk::new(disk.mount());
        faulty.set(|faults| faults.uncached = true);
        let (log, _) = Log::open(faulty, manual()).unwrap();
        let partition = log.partition(topic(1), 0, small).unwrap();
        assert!(matches!(partition.read(0, 1), Read::Cold(_)));
        compare(&partition, &model, 0, random);
        for start in [7, model.len() as Offset / 2] {
            partition.truncate_before(start).unwrap();
            compare(&partition, &model, start, random);
        }
    }
}
