//! The creation of a partition's first file, which takes far longer than the write of a batch.

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{batch_of, put, topic};
use cloverleaf_log::{Durability, FaultyDisk, Log, LogOptions, PartitionOptions, SimDisk};

/// Reached only if the test fails.
const HANG: Duration = Duration::from_secs(120);

#[test]
fn creating_a_first_file_blocks_neither_appends_nor_other_partitions() {
    for inline_writes in [true, false] {
        let disk = FaultyDisk::new(SimDisk::new().mount());
        let options = LogOptions {
            inline_writes,
            ..LogOptions::default()
        };
        let (log, _) = Log::open(disk.clone(), options).unwrap();
        let partition = |number| {
            let partition = log.partition(topic(number), 0, PartitionOptions::default());
            partition.unwrap()
        };
        let (old, new) = (partition(1), partition(2));
        put(&old, batch_of(&["a"]));
        disk.set(|faults| faults.hanging_creates = Some(topic(2).to_string()));
        let (done, is_done) = channel();
        let appending = std::thread::spawn(move || {
            let appended = new.append(batch_of(&["b"]), Durability::Kernel).unwrap();
            put(&old, batch_of(&["c"]));
            done.send(appended).unwrap();
        });
        let appended = is_done.recv_timeout(HANG);
        let appended = appended.expect("creating the new file blocks other appends");
        disk.set(|faults| faults.hanging_creates = None);
        appended.wait().unwrap();
        appending.join().unwrap();
        log.close();
    }
}
