//! Ten thousand queues: created within seconds, small in memory, and without a file each.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cloverleaf_broker::{
    Broker, BrokerOptions, ManualClock, StartAt, SubscriptionOptions, TopicOptions,
};
use cloverleaf_log::{BatchBuilder, Durability, Log, LogOptions, RealDisk};

const QUEUES: usize = 10_000;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// CPU time of this process, all threads: the load of other programs does not count.
fn cpu_time() -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The numbers after the program's name, which is in parentheses.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let numbers = rest.split_whitespace().skip(11).take(2);
    let ticks: u64 = numbers.map(|it| it.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

fn open(folder: &tempfile::TempDir) -> (Log, Broker) {
    let options = LogOptions {
        disk_free_bytes_min: 0,
        ..LogOptions::default()
    };
    let disk = RealDisk::open(folder.path()).unwrap();
    let (log, recovery) = Log::open(disk, options).unwrap();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let broker = Broker::open(log.clone(), recovery, BrokerOptions::default(), clock).unwrap();
    (log, broker)
}

/// Runs a test in a process of its own, so that other tests do not count in its memory and CPU
/// time. Returns whether this is that process.
fn has_process_of_its_own(test: &str) -> bool {
    const ALONE: &str = "CLOVERLEAF_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{text}{errors}");
    assert!(output.status.success() && text.contains("1 passed"));
    false
}

/// The number of topics with a folder.
fn folders(folder: &tempfile::TempDir) -> usize {
    std::fs::read_dir(folder.path().join("topics")).map_or(0, Iterator::count)
}

#[test]
fn ten_thousand_queues_are_made_in_seconds_and_are_small() {
    let test = "many_topics::ten_thousand_queues_are_made_in_seconds_and_are_small";
    if !has_process_of_its_own(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (log, broker) = open(&folder);
    let before = resident_bytes();
    let started = cpu_time();
    let mut queues = Vec::new();
    for number in 0..QUEUES {
        let topic = broker
            .topic_or_create(&format!("queue-{number}"), TopicOptions::default)
            .unwrap();
        let options = || SubscriptionOptions {
            start: StartAt::Earliest,
            message_ttl_ms: Some(60_000),
            dead_letter: Some("$dead".to_owned()),
            expires: true,
            ..SubscriptionOptions::default()
        };
        queues.push(topic.subscription_or_create("queue", options).unwrap());
        if number % 100 == 0 {
            broker.tick();
        }
    }
    broker.tick();
    let took = cpu_time() - started;
    let grown = resident_bytes().saturating_sub(before);
    println!(
        "{QUEUES} queues: {took:?} of CPU time, {} KiB more",
        grown >> 10
    );
    // Three seconds apply to an optimized build.
    let took_max = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 3 });
    assert!(took < took_max, "{took:?}");
    assert!(grown < 100 << 20, "{grown} bytes");
    assert_eq!(folders(&folder), 0);
    let published = queues[5_000].topic().unwrap().publish(
        {
            let mut builder = BatchBuilder::with_capacity(64, 1_700_000_000_000);
            builder.push(None, Some(b"first"), &[]);
            builder.finish()
        },
        Durability::Kernel,
    );
    let published = published.unwrap();
    // If the disk is slow, a thread of the log does the write.
    while !published.is_ready() {
        std::thread::yield_now();
    }
    assert_eq!(queues[5_000].counts().depth, 1);
    drop(queues);
    broker.close();
    log.close();
    assert_eq!(folders(&folder), 1);

    let started = cpu_time();
    let (log, broker) = open(&folder);
    let took = cpu_time() - started;
    println!("opened again: {took:?}");
    assert_eq!(broker.topics().len(), QUEUES);
    assert!(took < took_max, "{took:?}");
    broker.close();
    log.close();
}
