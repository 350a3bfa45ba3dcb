//! Measures the log without a broker, for the decisions in `docs/decisions`:
//!
//! ```text
//! cargo run --release -p cloverleaf-log --example append -- FOLDER
//! ```
//!
//! FOLDER should be on the disk to measure. The program creates a subfolder in it and removes it
//! again.
//!
//! With `-- FOLDER plain COUNT` or `-- FOLDER idempotent COUNT` it only appends COUNT batches of
//! one message each: run it under `perf stat -e instructions:u` with two counts and subtract. With
//! `-- FOLDER ahead COUNT` it appends COUNT batches in the class *disk*, one at a time, with and
//! without prepared segments.

use std::error::Error;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloverleaf_log::{
    Batch, BatchBuilder, Disk, DiskFile, Durability, Log, LogOptions, OpenMode, PartitionLog,
    PartitionOptions, Read, RealDisk,
};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MESSAGES: usize = 200;
const MESSAGE_BYTES: usize = 200;

fn batch(messages: usize) -> Batch {
    let body = [b'x'; MESSAGE_BYTES];
    let capacity = messages * (MESSAGE_BYTES + 12);
    let mut builder = BatchBuilder::with_capacity(capacity, 1_700_000_000_000);
    for _ in 0..messages {
        builder.push(None, Some(&body), &[]);
    }
    builder.finish()
}

/// Median time of `work` over `rounds` rounds; further rounds at the beginning warm up.
fn median(rounds: usize, mut work: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let began = Instant::now();
        work()?;
        if round >= rounds / 10 {
            times.push(began.elapsed());
        }
    }
    times.sort();
    Ok(times[times.len() / 2])
}

fn encode() -> Outcome<()> {
    let build = median(20_000, || {
        std::hint::black_box(batch(MESSAGES));
        Ok(())
    })?;
    println!("build a batch of {MESSAGES} x {MESSAGE_BYTES} bytes: {build:?}");
    let stored = batch(MESSAGES);
    let walk = median(20_000, || {
        let mut cursor = stored.records();
        while let Some(record) = cursor.next_record()? {
            std::hint::black_box(record);
        }
        Ok(())
    })?;
    println!("walk its records: {walk:?}");
    let parse = median(20_000, || {
        std::hint::black_box(Batch::parse(stored.bytes().clone())?);
        Ok(())
    })?;
    println!("validate it (checksum): {parse:?}");
    Ok(())
}

fn appends(log: &Log) -> Outcome<()> {
    let partition = log.partition(Uuid::new_v4(), 0, PartitionOptions::default())?;
    for class in [Durability::Kernel, Durability::None] {
        let mut times = Vec::new();
        for _ in 0..10_000 {
            let batch = batch(MESSAGES);
            let began = Instant::now();
            partition.append(batch, class)?.wait()?;
            times.push(began.elapsed());
        }
        let average = times.iter().sum::<Duration>() / times.len() as u32;
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "append it, {class:?} class: median {:?}, 99% {:?}, max {:?}, average {average:?}",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    let mut from = 0;
    let mut batches = 0;
    let began = Instant::now();
    loop {
        let read = match partition.read(from, 256 << 10) {
            Read::Batches(batches) => batches,
            Read::End => break,
            Read::Cold(cold) => cold.run()?,
        };
        let Some(last) = read.last() else { break };
        from = last.end_offset();
        batches += read.len() as u32;
    }
    println!(
        "read it back from the page cache: {:?} per batch",
        began.elapsed() / batches
    );
    println!("{:?}", log.metrics());
    Ok(())
}

/// Repeatedly appends one message to each partition and waits for all of them.
fn groups(log: &Log, partitions: u32, each: usize) -> Outcome<()> {
    let topic = Uuid::new_v4();
    let mut logs: Vec<Arc<PartitionLog>> = Vec::new();
    for number in 0..partitions {
        logs.push(log.partition(topic, number, PartitionOptions::default())?);
    }
    let before = log.metrics();
    let round = median(300, || {
        let mut waiting = Vec::new();
        for partition in &logs {
            for _ in 0..each {
                waiting.push(partition.append(batch(1), Durability::Disk)?);
            }
        }
        for appended in waiting {
            appended.wait()?;
        }
        Ok(())
    })?;
    let after = log.metrics();
    let groups = after.groups - before.groups;
    println!(
        "{partitions} partitions x {each} waiting: {round:?} per round, {:.0} messages/s, \
         {:.1} messages per group",
        f64::from(partitions) * each as f64 / round.as_secs_f64(),
        (after.group_waiters - before.group_waiters) as f64 / groups as f64,
    );
    Ok(())
}

fn sync_line(disk: &RealDisk) -> Outcome<()> {
    println!("dirty files | fdatasync each | on 8 threads | syncfs once");
    for count in [1, 2, 4, 8, 16, 64] {
        let mut files: Vec<Arc<dyn DiskFile>> = Vec::new();
        for number in 0..count {
            let file = disk.open(&format!("f{count}-{number}"), OpenMode::CreateNew)?;
            file.allocate(16 << 20)?;
            file.sync_data()?;
            files.push(file);
        }
        let mut position = 0;
        let mut dirty = || {
            position += 300;
            files
                .iter()
                .try_for_each(|file| file.write_all_at(&[IoSlice::new(&[7; 300])], position))
        };
        let each = median(100, || {
            dirty()?;
            Ok(files.iter().try_for_each(|file| file.sync_data())?)
        })?;
        let once = median(100, || {
            dirty()?;
            Ok(disk.sync_fs()?)
        })?;
        let parallel = median(100, || {
            dirty()?;
            std::thread::scope(|scope| {
                let parts = files.chunks(files.len().div_ceil(8));
                let threads: Vec<_> = parts
                    .map(|part| scope.spawn(|| part.iter().try_for_each(|file| file.sync_data())))
                    .collect();
                let mut outcomes = threads.into_iter().map(|thread| thread.join());
                outcomes.try_for_each(|outcome| {
                    outcome
                        .map_err(|_| "a thread panicked")?
                        .map_err(Box::<dyn Error>::from)
                })
            })
        })?;
        println!("{count:11} | {each:14.1?} | {parallel:12.1?} | {once:.1?}");
    }
    Ok(())
}

/// Measures opening many partitions after a kill.
fn opening(disk: &Arc<RealDisk>) -> Outcome<()> {
    let topic = Uuid::new_v4();
    for partitions in [100, 5_000] {
        let (log, _) = Log::open(disk.clone(), LogOptions::default())?;
        for number in 0..partitions {
            let partition = log.partition(topic, number, PartitionOptions::default())?;
            partition.append(batch(10), Durability::Kernel)?.wait()?;
        }
        // Without `close`, so that each segment must be scanned.
        drop(log);
        let began = Instant::now();
        let (log, recovery) = Log::open(disk.clone(), LogOptions::default())?;
        let (found, took) = (recovery.partitions.len(), began.elapsed());
        println!("open {found} partitions after a kill: {took:.1?}");
        log.delete_topic(topic);
        log.close();
    }
    let (log, _) = Log::open(disk.clone(), LogOptions::default())?;
    let partition = log.partition(topic, 0, PartitionOptions::default())?;
    while partition.size_bytes() < 2 << 30 {
        partition.append(batch(5_000), Durability::Kernel)?.wait()?;
    }
    drop((partition, log));
    let began = Instant::now();
    let (log, recovery) = Log::open(disk.clone(), LogOptions::default())?;
    let bytes: u64 = recovery.partitions.iter().map(|found| found.bytes).sum();
    println!(
        "open {} MB of log after a kill: {:.1?}",
        bytes >> 20,
        began.elapsed()
    );
    log.close();
    Ok(())
}

/// Appends in the class *disk*, alternating between with and without prepared segments.
fn ahead(disk: &Arc<RealDisk>, count: usize) -> Outcome<()> {
    let options = PartitionOptions::default();
    for messages in [1, 22, 230] {
        for prepare_segments in [false, true, false, true] {
            let log_options = LogOptions {
                prepare_segments,
                ..LogOptions::default()
            };
            let (log, _) = Log::open(disk.clone(), log_options)?;
            let topic = Uuid::new_v4();
            let partition = log.partition(topic, 0, options.clone())?;
            // Fills half of the first segment with large batches and the rest with small ones, so
            // that there is time to prepare the next segment.
            while partition.size_bytes() < options.segment_bytes / 2 {
                partition.append(batch(500), Durability::Disk)?.wait()?;
            }
            while partition.segments().len() == 1 {
                partition.append(batch(50), Durability::Disk)?.wait()?;
            }
            let (mut calls, mut answers) = (Vec::new(), Vec::new());
            let bytes = batch(messages).bytes().len();
            for _ in 0..count {
                let batch = batch(messages);
                let began = Instant::now();
                let appended = partition.append(batch, Durability::Disk)?;
                calls.push(began.elapsed());
                appended.wait()?;
                answers.push(began.elapsed());
            }
            calls.sort();
            answers.sort();
            println!(
                "{bytes} bytes, ahead {prepare_segments}: call {:?}, answer {:?}, 99% {:?}",
                calls[count / 2],
                answers[count / 2],
                answers[count * 99 / 100],
            );
            drop(partition);
            log.delete_topic(topic);
            log.close();
        }
    }
    Ok(())
}

/// Appends batches without or with a producer id.
fn only_append(log: &Log, idempotent: bool, batches: i32) -> Outcome<()> {
    let partition = log.partition(Uuid::new_v4(), 0, PartitionOptions::default())?;
    for sequence in 0..batches {
        let mut builder = BatchBuilder::with_capacity(MESSAGE_BYTES + 12, 1_700_000_000_000);
        builder.push(None, Some(&[b'x'; MESSAGE_BYTES]), &[]);
        let id = if idempotent { 7 } else { -1 };
        let batch = builder.with_producer(id, 0, sequence).finish();
        partition.append(batch, Durability::Kernel)?.wait()?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let folder = Path::new(&folder).join(format!("cloverleaf-append-{}", std::process::id()));
    let disk = RealDisk::open(&folder)?;
    let kind = std::env::args().nth(2);
    let count = std::env::args()
        .nth(3)
        .map_or(Ok(1_000), |count| count.parse());
    let outcome = (|| {
        if kind.as_deref() == Some("ahead") {
            return ahead(&disk, count? as usize);
        }
        if let Some(kind) = kind {
            let (log, _) = Log::open(disk.clone(), LogOptions::default())?;
            only_append(&log, kind == "idempotent", count?)?;
            log.close();
            return Ok(());
        }
        encode()?;
        sync_line(&disk)?;
        let (log, _) = Log::open(disk.clone(), LogOptions::default())?;
        groups(&log, 1, 1)?;
        groups(&log, 1, 64)?;
        groups(&log, 8, 1)?;
        groups(&log, 64, 1)?;
        appends(&log)?;
        log.close();
        drop(log);
        opening(&disk)
    })();
    std::fs::remove_dir_all(&folder)?;
    outcome
}
