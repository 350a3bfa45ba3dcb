//! A disk that does not answer a read: others go on, and so does the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::{batch_of, open, put, topic};
use cloverleaf_log::{
    Batch, FaultyDisk, Log, LogClock, LogOptions, PartitionOptions, Read, ReadError, SimDisk,
};

/// Only a fault needs so long.
const HANG: Duration = Duration::from_secs(120);

/// Begins a read of topic `number` on the log's own thread.
fn read_cold(log: &Log, number: u128) -> Receiver<Result<Vec<Batch>, ReadError>> {
    let partition = log.partition(topic(number), 0, PartitionOptions::default());
    let Read::Cold(cold) = partition.unwrap().read(0, 1 << 20) else {
        panic!("not cold")
    };
    let (answer, told) = channel();
    cold.on_ready(Box::new(move |outcome| drop(answer.send(outcome))));
    told
}

#[test]
fn a_read_that_hangs_holds_up_no_other_topic_and_no_end() {
    let sim = SimDisk::new();
    let (log, _) = open(&sim);
    for number in [1, 2] {
        let partition = log.partition(topic(number), 0, PartitionOptions::default());
        put(&partition.unwrap(), batch_of(&["a"]));
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
    let hangs = read_cold(&log, 1);
    while log.stalled_reads().is_empty() {
        now_ms.fetch_add(10_000, SeqCst);
        std::thread::yield_now();
    }
    assert_eq!(log.metrics().stalled_reads, 1);
    let other = read_cold(&log, 2);
    let told = other.recv_timeout(HANG).expect("nobody reads any more");
    assert_eq!(told.unwrap().len(), 1);
    let (closed, is_closed) = channel();
    let closing = std::thread::spawn(move || {
        log.close();
        closed.send(()).unwrap();
    });
    is_closed
        .recv_timeout(HANG)
        .expect("the end waits for the disk");
    closing.join().unwrap();
    disk.set(|faults| faults.hanging_reads = None);
    // Whoever wanted it is not called any more.
    assert!(hangs.recv_timeout(HANG).is_err());
}
