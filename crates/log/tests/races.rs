//! Races between threads that append, commit, seal, prepare, compact and read, scheduled by the
//! test in thousands of orders. Run by `cargo xtask suites races`.
//!
//! The scheduler switches threads at each lock and each wait. Races on data that only an atomic
//! protects are not found. The disk is simulated, so that each run can end with a power loss.

use std::sync::Arc;

use shuttle::thread;

use crate::common::{offsets, open, read_all, text_at, topic};
use cloverleaf_log::{
    Appended, BatchBuilder, CompactionOptions, Durability, Log, PartitionLog, PartitionOptions,
    Read, SimDisk,
};

/// Number of schedules that are tried.
const SCHEDULES: usize = 3_000;
const SMALL: PartitionOptions = PartitionOptions {
    segment_bytes: 400,
    segment_ms: None,
};

/// Appends six batches, alternating between both classes, each with a key of its own.
fn append(partition: &Arc<PartitionLog>, name: &str) -> Vec<(String, Durability, Appended)> {
    let mut appended = Vec::new();
    for number in 0..6 {
        let text = format!("{name}{number}");
        let mut builder = BatchBuilder::with_capacity(100, 1);
        builder.push(Some(text.as_bytes()), Some(text.as_bytes()), &[]);
        let class = match number % 2 {
            0 => Durability::Disk,
            _ => Durability::Kernel,
        };
        match partition.append(builder.finish(), class) {
            Ok(pending) => appended.push((text, class, pending)),
            // The machine has crashed.
            Err(_) => break,
        }
    }
    appended
}

fn run(power_fails: bool) {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    if power_fails {
        disk.crash_after(random() % 100);
    }
    let appending = ["a", "b"].map(|name| {
        let partition = partition.clone();
        thread::spawn(move || append(&partition, name))
    });
    let beside = |work: fn(&Log, &Arc<PartitionLog>)| {
        let (log, partition) = (log.clone(), partition.clone());
        thread::spawn(move || (0..3).for_each(|_| work(&log, &partition)))
    };
    let others = [
        beside(|log, _| log.step_commit()),
        beside(|log, _| log.step()),
        beside(|_, partition| partition.seal_active()),
        beside(|_, partition| {
            let _ = partition.compact(&CompactionOptions::default());
        }),
        beside(|_, partition| {
            if let Read::Batches(batches) = partition.read(0, 1 << 20) {
                assert!(offsets(&batches).is_sorted_by(|a, b| a < b));
            }
        }),
    ];
    let appended: Vec<_> = appending
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    others.into_iter().for_each(|thread| thread.join().unwrap());
    if !power_fails {
        // Only one group commit, before the housekeeper would sync batches whose waiters were
        // forgotten.
        log.step_commit();
        for (text, _, pending) in &appended {
            assert!(pending.is_ready(), "{text} is never answered");
        }
    }
    let answered: Vec<_> = appended
        .into_iter()
        .map(|(text, class, pending)| (text, class, pending.is_ready() && pending.wait().is_ok()))
        .collect();
    drop((partition, log));
    if power_fails {
        disk.power_loss(random())
    } else {
        disk.kill()
    }
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let batches = read_all(&partition);
    let found = offsets(&batches);
    assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
    let texts: Vec<String> = batches
        .iter()
        .map(|batch| text_at(batch, batch.base_offset()))
        .collect();
    for (text, class, is_answered) in &answered {
        let count = texts.iter().filter(|found| *found == text).count();
        let owed = *is_answered && (!power_fails || *class == Durability::Disk);
        assert!(count == 1 || (count == 0 && !owed), "{text}: {count}");
    }
}

fn random() -> u64 {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().r#gen()
}

#[test]
fn no_schedule_loses_acknowledged_data() {
    shuttle::check_random(|| run(false), SCHEDULES);
}

#[test]
fn no_schedule_loses_synced_data_in_a_power_loss() {
    shuttle::check_random(|| run(true), SCHEDULES);
}
