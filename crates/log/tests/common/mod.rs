//! Helpers for several tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use cloverleaf_log::{
    Batch, BatchBuilder, Durability, Log, LogOptions, Offset, OpenMode, PartitionLog,
    PartitionOptions, Read, Recovery, SimDisk,
};
use uuid::Uuid;

/// Options of a log in manual mode.
pub fn manual() -> LogOptions {
    LogOptions {
        manual: true,
        journal_bytes: 8 << 10,
        ..LogOptions::default()
    }
}

pub fn open(disk: &SimDisk) -> (Log, Recovery) {
    Log::open(disk.mount(), manual()).unwrap()
}

/// Options for segments of one block.
pub const SMALL: PartitionOptions = PartitionOptions {
    segment_bytes: 4096,
    segment_ms: None,
};

/// A new disk, a log on it, and a partition with small segments.
pub fn fresh() -> (SimDisk, Log, Arc<PartitionLog>) {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    (disk, log, partition)
}

pub fn topic(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

pub fn batch_of(texts: &[&str]) -> Batch {
    let mut builder =
        BatchBuilder::with_capacity(texts.iter().map(|text| text.len() + 20).sum(), 1);
    for text in texts {
        builder.push(None, Some(text.as_bytes()), &[]);
    }
    builder.finish()
}

/// Appends a batch, which is written at once.
pub fn put(partition: &Arc<PartitionLog>, batch: Batch) {
    let appended = partition.append(batch, Durability::Kernel).unwrap();
    appended.wait().unwrap();
}

/// Reads a partition from its start to its end.
pub fn read_all(partition: &Arc<PartitionLog>) -> Vec<Batch> {
    let mut from = 0;
    let mut all = Vec::new();
    loop {
        let batches = match partition.read(from, 64 << 10) {
            Read::Batches(batches) => batches,
            Read::End => return all,
            Read::Cold(cold) => cold.run().unwrap(),
        };
        match batches.last() {
            Some(last) => from = last.end_offset(),
            None => return all,
        }
        all.extend(batches);
    }
}

/// Offsets of all records.
pub fn offsets(batches: &[Batch]) -> Vec<Offset> {
    batches
        .iter()
        .flat_map(|batch| batch.base_offset()..batch.end_offset())
        .collect()
}

/// Body of the record at an offset.
pub fn text_at(batch: &Batch, offset: Offset) -> String {
    let mut cursor = batch.records();
    loop {
        let (at, record) = cursor.next_record().unwrap().unwrap();
        if at == offset {
            return String::from_utf8(record.value.unwrap().to_vec()).unwrap();
        }
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Truncates a file.
pub fn cut(sim: &SimDisk, path: &str, len: u64) {
    let file = sim.mount().open(path, OpenMode::Existing).unwrap();
    file.set_len(len).unwrap();
    file.sync_data().unwrap();
}
