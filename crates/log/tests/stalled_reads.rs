//! A disk that does not answer a read: other reads continue, and the log can be closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::common::{batch_of, open, put, topic};
use cloverleaf_log::{
    Batch, BatchBuilder, CompactionOptions, FaultyDisk, Log, LogClock, LogOptions, PartitionLog,
    PartitionOptions, Read, ReadError, SimDisk,
};

/// Reached only if the test fails.
const HANG: Duration = Duration::from_secs(120);

/// Each batch gets a segment of its own.
const SMALL: PartitionOptions = PartitionOptions {
    segment_bytes: 1,
    segment_ms: None,
};

/// A log with two topics that are not in memory. The disk answers only for the second one.
struct World {
    log: Log,
    disk: Arc<FaultyDisk>,
    now_ms: Arc<AtomicI64>,
}

impl World {
    fn new() -> World {
        let sim = SimDisk::new();
        let (log, _) = open(&sim);
        for number in [1, 2] {
            let partition = log.partition(topic(number), 0, SMALL).unwrap();
            for _ in 0..4 {
                let mut builder = BatchBuilder::with_capacity(64, 1);
                builder.push(Some(b"key"), Some(b"value"), &[]);
                put(&partition, builder.finish());
            }
            put(&partition, batch_of(&["a"]));
        }
        log.close();
        drop(log);
        let disk = FaultyDisk::new(sim.mount());
        let now_ms = Arc::new(AtomicI64::new(1_000_000));
        let clock = now_ms.clone();
        let options = LogOptions {
            clock: LogClock::new(move || clock.load(SeqCst)),
            ..LogOptions::default()
        };
        let (log, _) = Log::open(disk.clone(), options).unwrap();
        disk.set(|faults| {
            faults.uncached = true;
            faults.hanging_reads = Some(topic(1).to_string());
        });
        World { log, disk, now_ms }
    }

    fn partition(&self, number: u128) -> Arc<PartitionLog> {
        self.log.partition(topic(number), 0, SMALL).unwrap()
    }

    /// The outcome that a waiter gets while the test's clock advances.
    fn later<T: Send>(&self, outcomes: &Receiver<T>) -> T {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    self.now_ms.fetch_add(10_000, SeqCst);
                    drop(self.log.stalled_reads());
                    thread::yield_now();
                }
            });
            let outcomes = outcomes.recv_timeout(HANG);
            is_over.store(true, SeqCst);
            outcomes.expect("the waiter gets an outcome")
        })
    }

    /// Closes the log while the disk still does not answer.
    fn close(self) {
        let log = self.log;
        now(&beside(move || log.close()));
        self.disk.set(|faults| faults.hanging_reads = None);
    }
}

/// Runs work that may wait for the disk on a thread of its own.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (answer, outcomes) = channel();
    thread::spawn(move || drop(answer.send(work())));
    outcomes
}

fn now<T>(outcomes: &Receiver<T>) -> T {
    outcomes.recv_timeout(HANG).expect("it waits for the disk")
}

/// Begins a read on the log's reader thread.
fn read_cold(partition: &Arc<PartitionLog>) -> Receiver<Result<Vec<Batch>, ReadError>> {
    let Read::Cold(cold) = partition.read(0, 1 << 20) else {
        panic!("not cold")
    };
    let (answer, outcomes) = channel();
    cold.on_ready(Box::new(move |outcome| drop(answer.send(outcome))));
    outcomes
}

fn is_named(error: &ReadError) -> bool {
    match error {
        ReadError::Failed(failure) => failure.path.contains(&topic(1).to_string()),
        ReadError::Closed => false,
    }
}

#[test]
fn a_hanging_read_blocks_neither_other_topics_nor_the_stop() {
    let world = World::new();
    let hangs = read_cold(&world.partition(1));
    assert!(is_named(&world.later(&hangs).unwrap_err()));
    assert_eq!(world.log.metrics().stalled_reads, 1);
    let other = now(&read_cold(&world.partition(2)));
    assert_eq!(other.unwrap().len(), 1);
    world.close();
}

#[test]
fn a_hanging_file_blocks_only_one_thread() {
    let world = World::new();
    let hang: Vec<_> = (0..50).map(|_| read_cold(&world.partition(1))).collect();
    for hangs in &hang {
        assert!(is_named(&world.later(hangs).unwrap_err()));
    }
    assert_eq!(world.log.stalled_reads().len(), 1);
    assert!(now(&read_cold(&world.partition(2))).is_ok());
    // Once the disk answers, all readers get the file again.
    world.disk.set(|faults| faults.hanging_reads = None);
    while !world.log.stalled_reads().is_empty() {
        thread::yield_now();
    }
    assert!(now(&read_cold(&world.partition(1))).is_ok());
    world.close();
}

#[test]
fn a_hanging_timestamp_lookup_blocks_no_other() {
    let world = World::new();
    let look_up = |number| {
        let partition = world.partition(number);
        beside(move || partition.offset_for_timestamp(1))
    };
    assert!(is_named(&world.later(&look_up(1)).unwrap_err()));
    assert_eq!(now(&look_up(2)).unwrap(), Some((0, 1)));
    // A second look-up fails without waiting.
    assert!(is_named(&now(&look_up(1)).unwrap_err()));
    world.close();
}

#[test]
fn a_hanging_compaction_blocks_no_other_topic() {
    let world = World::new();
    let compact = |number| {
        let partition = world.partition(number);
        beside(move || partition.compact(&CompactionOptions::default()))
    };
    let failed = world.later(&compact(1)).unwrap_err().to_string();
    assert!(failed.contains(&topic(1).to_string()), "{failed}");
    assert_eq!(now(&compact(2)).unwrap().records_removed, 3);
    world.close();
}

#[test]
fn a_stop_waits_for_no_read() {
    let world = World::new();
    let (partition, compacted) = (world.partition(1), world.partition(1));
    let look_up = beside(move || partition.offset_for_timestamp(1));
    let compaction = beside(move || compacted.compact(&CompactionOptions::default()));
    let cold = read_cold(&world.partition(1));
    world.close();
    assert!(matches!(now(&look_up), Err(ReadError::Closed)));
    assert!(now(&compaction).is_err());
    // The callback of the hanging read is not called any more.
    assert!(cold.recv_timeout(HANG).is_err());
}
