//! A disk that writes whole batches to the wrong place, or loses writes without an error: each
//! batch is valid, but in the wrong place. Also flipped bits that no checksum covers.

use std::sync::Arc;

use crate::common::{Random, batch_of, open, put, read_all, text_at, topic};
use cloverleaf_log::{Batch, Log, Offset, OpenMode, PartitionLog, PartitionOptions, Read, SimDisk};

const SMALL: PartitionOptions = PartitionOptions {
    segment_bytes: 60_000,
    segment_ms: None,
};
const BATCHES: u64 = 150;

/// Writes batches of two records in three segments, the last one active. Returns the length of a
/// batch in bytes.
fn write(sim: &SimDisk, in_order: bool) -> usize {
    let (log, _) = open(sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let mut len = 0;
    for number in 0..BATCHES {
        let batch = batch_of(&[&format!("{number:04} {}", "x".repeat(900)), "second"]);
        len = batch.bytes().len();
        put(&partition, batch);
    }
    log.step();
    if in_order {
        log.close();
    }
    drop((partition, log));
    sim.kill();
    len
}

fn reopen(sim: &SimDisk) -> (Log, Arc<PartitionLog>) {
    let (log, _) = open(sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    (log, partition)
}

/// The file and the position of each batch.
fn places(partition: &PartitionLog, len: usize) -> Vec<(String, u64)> {
    let segments = partition.segments();
    let file = |base: Offset| format!("topics/{}/0/{base:020}.log", topic(1));
    let place = |offset: Offset| {
        let segment = segments.iter().rfind(|segment| segment.base <= offset);
        let base = segment.unwrap().base;
        (file(base), (offset - base) / 2 * len as u64)
    };
    (0..BATCHES).map(|number| place(number * 2)).collect()
}

fn bytes_at(sim: &SimDisk, (file, at): &(String, u64), len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let file = sim.mount().open(file, OpenMode::Existing).unwrap();
    assert_eq!(file.read_at(&mut bytes, *at).unwrap(), len);
    bytes
}

/// Checks that reads return the right batches in order, and that only batch `hit` is missing.
fn check(sim: &SimDisk, hit: u64, what: &str) {
    let (log, partition) = reopen(sim);
    let right = |batch: &Batch| {
        let number = batch.base_offset() / 2;
        let text = text_at(batch, batch.base_offset());
        assert!(text.starts_with(&format!("{number:04} ")), "{what}: {text}");
        number
    };
    let expected: Vec<u64> = (0..BATCHES).filter(|number| *number != hit).collect();
    for _ in 0..2 {
        let found: Vec<u64> = read_all(&partition).iter().map(right).collect();
        assert_eq!(found, expected, "{what}");
        let counted = log.metrics();
        let reported = (counted.corrupt_regions, counted.truncated_bytes);
        assert!(
            reported.0 == 1 || reported.1 > 0,
            "{what}: reported {reported:?}"
        );
    }
    // Small reads from each offset, with the hints and damages that earlier reads have left.
    for from in 0..BATCHES {
        let batches = match partition.read(from * 2, 1) {
            Read::Batches(batches) => batches,
            Read::Cold(cold) => cold.run().unwrap(),
            Read::End => continue,
        };
        let next = expected.iter().find(|number| **number >= from);
        assert_eq!(
            batches.first().map(right).as_ref(),
            next,
            "{what} from {from}"
        );
    }
}

#[test]
fn a_misplaced_batch_is_damage_and_the_others_are_kept() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let sim = SimDisk::new();
        let len = write(&sim, seed % 2 == 0);
        let (log, partition) = reopen(&sim);
        let places = places(&partition, len);
        drop((partition, log));
        sim.kill();
        let (hit, from) = (random.below(BATCHES), random.below(BATCHES));
        if hit == from {
            continue;
        }
        let bytes = bytes_at(&sim, &places[from as usize], len);
        let (file, at) = &places[hit as usize];
        sim.corrupt(file, *at, &bytes);
        check(
            &sim,
            hit,
            &format!("seed {seed}: {from} in the place of {hit}"),
        );
    }
}

#[test]
fn a_flipped_bit_of_a_base_offset_loses_only_its_batch() {
    for bit in 0..64 {
        let sim = SimDisk::new();
        let len = write(&sim, true);
        let (log, partition) = reopen(&sim);
        let places = places(&partition, len);
        drop((partition, log));
        sim.kill();
        let hit = 7 + bit;
        let (file, at) = &places[hit as usize];
        let mut bytes = bytes_at(&sim, &places[hit as usize], 8);
        bytes[7 - bit as usize / 8] ^= 1 << (bit % 8);
        sim.corrupt(file, *at, &bytes);
        check(&sim, hit, &format!("bit {bit}"));
    }
}
