//! Compaction over crashes: power losses and kills at any operation.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Random, manual, open, put, read_all, topic};
use crate::compaction::{SMALL, batch, compact_all, options};
use cloverleaf_log::{
    Batch, BatchBuilder, Codec, CompactionOptions, Durability, Log, Offset, PartitionLog,
    PartitionOptions, SimDisk,
};

/// The records that must be found: for each key the newest synced value or a later one, or no
/// record after a tombstone.
#[derive(Default)]
struct Model {
    /// For each key, all values in order of offset; `None` is a tombstone.
    values: BTreeMap<String, Vec<(Offset, Option<String>)>>,
}

/// Power losses and kills at any operation of a compaction, and during the recovery after them.
#[test]
fn a_crash_at_any_step_keeps_the_newest_of_each_key() {
    let seeds = std::env::var("CLOVERLEAF_SEEDS").ok();
    let seeds = seeds.and_then(|text| text.parse().ok()).unwrap_or(300);
    let one = std::env::var("CLOVERLEAF_SEED").ok();
    let one: Option<u64> = one.and_then(|text| text.parse().ok());
    for seed in one.map_or(0..seeds, |seed| seed..seed + 1) {
        crash(seed);
    }
}

fn crash(seed: u64) {
    let mut random = Random(seed);
    let disk = SimDisk::new();
    let small = PartitionOptions {
        segment_bytes: [250, 600, 2_000][random.below(3) as usize],
        segment_ms: None,
    };
    let mut model = Model::default();
    let mut now_ms = 1_000;
    let mut kills_only = true;
    for round in 0..4 {
        let (log, _) = Log::open(disk.mount(), manual()).unwrap();
        let partition = log.partition(topic(1), 0, small.clone()).unwrap();
        model.check(seed, &partition, now_ms);
        check_each_offset(seed, &partition);
        // A power loss may keep the index of a segment that was dropped, without its log.
        if kills_only {
            assert_eq!(log.metrics().corrupt_regions, 0, "seed {seed}");
        }
        for number in 0..random.below(40) {
            let key = format!("k{}", random.below(6));
            let value = (random.below(5) > 0).then(|| format!("{round}.{number}"));
            let mut builder = BatchBuilder::with_capacity(100, now_ms);
            builder.push(
                Some(key.as_bytes()),
                value.as_deref().map(str::as_bytes),
                &[],
            );
            if random.below(3) == 0 {
                builder = builder.with_producer(5 + round, 0, number as i32);
            }
            let batch: Batch = builder.finish();
            let codec = [Codec::None, Codec::Lz4][random.below(2) as usize];
            let Ok(appended) = partition.append(batch.compress(codec).unwrap(), Durability::Disk)
            else {
                continue;
            };
            model
                .values
                .entry(key)
                .or_default()
                .push((appended.base, value));
            if random.below(6) == 0 {
                partition.seal_active();
            }
        }
        log.sync_all().unwrap();
        log.step();
        if random.below(3) > 0 {
            disk.crash_after(random.below(60));
        }
        for _ in 0..random.below(4) {
            let limited = CompactionOptions {
                map_bytes_max: [72 * 3, 1 << 20][random.below(2) as usize],
                work_bytes_max: random.below(2) * 1_000_000,
                ..options(now_ms)
            };
            if partition.compact(&limited).is_err() {
                break;
            }
            now_ms += random.below(900) as i64;
            if random.below(3) == 0 {
                log.step();
                partition.seal_active();
            }
        }
        drop((partition, log));
        let kill = random.below(2) == 0;
        kills_only &= kill;
        let end = |disk: &SimDisk, loss_seed: u64| {
            if kill {
                disk.kill()
            } else {
                disk.power_loss(loss_seed)
            }
        };
        end(&disk, random.next());
        if random.below(3) == 0 {
            // The recovery may be interrupted, too.
            disk.crash_after(random.below(10));
            let opened = Log::open(disk.mount(), manual());
            opened.into_iter().for_each(|(log, _)| log.step());
            end(&disk, random.next());
        }
    }
}

/// A reader may begin at any offset, also at one whose record compaction has removed.
fn check_each_offset(seed: u64, partition: &Arc<PartitionLog>) {
    let batches = read_all(partition);
    for from in partition.start_offset()..partition.written_end() {
        let found = partition.read_waiting(from, 4_000).unwrap();
        let expected = batches.iter().find(|batch| batch.end_offset() > from);
        let bases = [found.first(), expected].map(|it| it.map(Batch::base_offset));
        assert_eq!(bases[0], bases[1], "seed {seed}, offset {from}");
    }
}

impl Model {
    fn check(&self, seed: u64, partition: &Arc<PartitionLog>, now_ms: i64) {
        let mut found: BTreeMap<String, Vec<(Offset, Option<String>)>> = BTreeMap::new();
        for batch in read_all(partition) {
            let batch = batch.inflate(1 << 20).unwrap();
            let mut cursor = batch.records();
            while let Some((offset, record)) = cursor.next_record().unwrap() {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let key = text(record.key.unwrap());
                found
                    .entry(key)
                    .or_default()
                    .push((offset, record.value.map(text)));
            }
        }
        for (key, all) in &self.values {
            let left = found.remove(key).unwrap_or_default();
            let known = left.iter().all(|one| all.contains(one));
            assert!(known, "seed {seed}: {key} has {left:?} of {all:?}");
            let in_order = left.windows(2).all(|pair| pair[0].0 < pair[1].0);
            assert!(in_order, "seed {seed}: {key} has {left:?}");
            let newest = all.last().unwrap();
            let tombstone_gone = newest.1.is_none() && left.is_empty() && now_ms > 1_000;
            let found_newest = left.last() == Some(newest);
            assert!(
                found_newest || tombstone_gone,
                "seed {seed}: {key} has {left:?} of {all:?}"
            );
        }
        assert!(found.is_empty(), "seed {seed}: invented {found:?}");
    }
}

/// The machine crashes in each operation of a compaction in turn. Each is repeated with many seeds,
/// which choose the unsynced changes that are left.
#[test]
fn a_crash_in_each_operation_keeps_the_newest_of_each_key() {
    let mut operations = 0;
    loop {
        let mut survived = false;
        for loss_seed in 0..24 {
            survived = crash_in(operations, loss_seed);
        }
        if survived {
            break;
        }
        operations += 1;
    }
    assert!(operations > 12, "{operations}");
}

/// Returns whether the compaction was completed.
fn crash_in(operation: u64, loss_seed: u64) -> bool {
    let larger = PartitionOptions {
        segment_bytes: 2_500,
        segment_ms: None,
    };
    let disk = SimDisk::new();
    let mut model = Model::default();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for number in 0..40 {
        // Values of different lengths, so that no batch is at the former position of another one.
        let key = match number % 3 {
            0 => format!("only{number}"),
            _ => format!("k{}", number % 7),
        };
        let value = "v".repeat(number + 1);
        put(&partition, batch(&format!("{key}={value}")).finish());
        let values = model.values.entry(key).or_default();
        values.push((number as Offset, Some(value)));
        if [5, 11, 25].contains(&number) {
            partition.seal_active();
        }
    }
    log.step();
    log.sync_all().unwrap();
    assert!(partition.segments().len() > 5);
    partition.set_options(&larger);
    disk.crash_after(operation);
    let outcome = partition.compact(&options(0));
    drop((partition, log));
    match loss_seed % 4 {
        0 => disk.kill(),
        _ => disk.power_loss(loss_seed),
    }
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, larger.clone()).unwrap();
    let seed = operation * 1_000 + loss_seed;
    model.check(seed, &partition, 0);
    let ends = partition
        .segments()
        .iter()
        .map(|it| (it.base, it.end))
        .collect::<Vec<_>>();
    assert!(
        ends.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "{seed}: {ends:?}"
    );
    // Leftover files do no harm later, either.
    log.step();
    compact_all(&partition, &options(0));
    model.check(seed, &partition, 0);
    assert_eq!(log.metrics().corrupt_regions, 0, "{seed}");
    let bases: Vec<Offset> = partition
        .segments()
        .iter()
        .map(|segment| segment.base)
        .collect();
    drop((partition, log));
    disk.power_loss(loss_seed);
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, larger).unwrap();
    model.check(seed, &partition, 0);
    let again: Vec<Offset> = partition
        .segments()
        .iter()
        .map(|segment| segment.base)
        .collect();
    assert_eq!(bases, again, "{seed}");
    outcome.is_ok()
}
