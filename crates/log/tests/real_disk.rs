//! The log on a real file system, with its threads.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{batch_of, offsets, put, read_all, text_at, topic};
use cloverleaf_log::{
    AppendError, Durability, Log, LogOptions, OpenError, PartitionOptions, RealDisk, Recovery,
};

fn options() -> LogOptions {
    LogOptions {
        disk_free_bytes_min: 0,
        ..LogOptions::default()
    }
}

fn open(folder: &tempfile::TempDir, options: LogOptions) -> (Log, Recovery) {
    Log::open(RealDisk::open(folder.path()).unwrap(), options).unwrap()
}

#[test]
fn appends_of_many_threads_are_all_there_in_order() {
    for inline_writes in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let options = LogOptions {
            inline_writes,
            tail_bytes_max: 100_000,
            ..options()
        };
        let (log, _) = open(&folder, options.clone());
        let small = PartitionOptions {
            segment_bytes: 300_000,
            segment_ms: None,
        };
        let partition = log.partition(topic(1), 0, small.clone()).unwrap();
        let heard = Arc::new(AtomicU64::new(0));
        let listener = heard.clone();
        partition.on_written(Box::new(move |end| {
            listener.fetch_max(end, Ordering::SeqCst);
        }));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let partition = partition.clone();
                scope.spawn(move || {
                    let classes = [Durability::None, Durability::Kernel, Durability::Disk];
                    for number in 0..200 {
                        let text = format!("{thread} {number} {}", "x".repeat(900));
                        let class = classes[(number + thread) % 3];
                        partition
                            .append(batch_of(&[&text]), class)
                            .unwrap()
                            .wait()
                            .unwrap();
                    }
                });
            }
        });
        let last = partition
            .append(batch_of(&["end"]), Durability::Disk)
            .unwrap();
        last.wait().unwrap();
        assert_eq!(partition.synced_end(), 801);
        let check = |partition: &Arc<cloverleaf_log::PartitionLog>| {
            let batches = read_all(partition);
            assert_eq!(offsets(&batches), (0..801).collect::<Vec<_>>());
            let mut next = [0; 4];
            for batch in &batches[..800] {
                let text = text_at(batch, batch.base_offset());
                let numbers: Vec<usize> = text
                    .split(' ')
                    .take(2)
                    .map(|word| word.parse().unwrap())
                    .collect();
                assert_eq!(numbers[1], next[numbers[0]], "order of one publisher");
                next[numbers[0]] += 1;
            }
        };
        check(&partition);
        log.close();
        assert_eq!(heard.load(Ordering::SeqCst), 801);
        drop((partition, log));
        let (log, recovery) = open(&folder, options);
        assert!(recovery.was_closed_cleanly);
        assert_eq!(recovery.partitions[0].truncated_bytes, 0);
        let partition = log.partition(topic(1), 0, small).unwrap();
        check(&partition);
    }
}

#[test]
fn group_commit_completes_many_partitions_together() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = open(&folder, options());
    let mut waiting = Vec::new();
    for number in 0..40 {
        let partition = log
            .partition(topic(number), 0, PartitionOptions::default())
            .unwrap();
        for _ in 0..5 {
            waiting.push(
                partition
                    .append(batch_of(&["a"]), Durability::Disk)
                    .unwrap(),
            );
        }
    }
    waiting
        .into_iter()
        .for_each(|appended| appended.wait().unwrap());
    let metrics = log.metrics();
    assert_eq!(metrics.group_waiters, 200);
    assert!(metrics.groups < 200, "{metrics:?}");
}

#[test]
fn more_partitions_than_open_files_work() {
    let folder = tempfile::tempdir().unwrap();
    let few = LogOptions {
        open_files_max: 8,
        tail_bytes_max: 0,
        ..options()
    };
    let (log, _) = open(&folder, few.clone());
    let partition = |log: &Log, number| {
        log.partition(topic(1), number, PartitionOptions::default())
            .unwrap()
    };
    for _ in 0..2 {
        for number in 0..60 {
            let appended = partition(&log, number).append(batch_of(&["a"]), Durability::Disk);
            appended.unwrap().wait().unwrap();
        }
    }
    let open_files = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| target.starts_with(folder.path()))
        .count();
    assert!(open_files < 30, "{open_files}");
    log.close();
    let (log, _) = open(&folder, few);
    for number in 0..60 {
        assert_eq!(offsets(&read_all(&partition(&log, number))), [0, 1]);
    }
}

#[test]
fn files_are_readable_only_by_the_broker() {
    fn look(folder: &std::path::Path, seen: &mut usize) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode();
            let path = entry.path();
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode & 0o777, expected, "{}: {mode:o}", path.display());
            *seen += 1;
            if path.is_dir() {
                look(&path, seen);
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path().join("new/data")).unwrap();
    let (log, _) = Log::open(disk, options()).unwrap();
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    for durability in [Durability::Kernel, Durability::Disk] {
        let appended = partition.append(batch_of(&["secret"]), durability);
        appended.unwrap().wait().unwrap();
    }
    partition.seal_active();
    put(&partition, batch_of(&["next"]));
    log.close();
    let mut seen = 0;
    look(folder.path(), &mut seen);
    // Two folders, the journal's two files, the lock, the folders of topics, topic and partition,
    // segments, indexes.
    assert!(seen >= 11, "only {seen}");
}

#[test]
fn a_second_broker_gets_the_holder_of_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = open(&folder, options());
    let refused = Log::open(RealDisk::open(folder.path()).unwrap(), options()).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, OpenError::Locked { .. }));
    assert!(
        text.contains(&format!("pid {} since", std::process::id())),
        "{text}"
    );
    assert!(
        text.contains(&folder.path().display().to_string()),
        "{text}"
    );
    drop(log);
    let (_log, recovery) = open(&folder, options());
    assert!(!recovery.was_closed_cleanly);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // A file in place of the folder, so that the test works for the superuser, too.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = RealDisk::open(file.join("data")).unwrap_err().to_string();
    assert!(refused.contains("file/data"), "{refused}");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o555)).unwrap();
    let is_superuser = std::fs::write(data.join("probe"), "").is_ok();
    if !is_superuser {
        let refused = Log::open(RealDisk::open(&data).unwrap(), options()).unwrap_err();
        assert!(
            matches!(refused, OpenError::NotWritable { .. }),
            "{refused}"
        );
        assert!(
            refused.to_string().contains(&data.display().to_string()),
            "{refused}"
        );
    }
}

#[test]
fn space_is_reserved_in_small_steps_and_released_by_the_seal() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = open(&folder, options());
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    put(&partition, batch_of(&["a"]));
    let path = folder
        .path()
        .join(format!("topics/{}/0/{:020}.log", topic(1), 0));
    let size = || std::fs::metadata(&path).unwrap().len();
    assert_eq!(size(), 64 << 10);
    let text = "x".repeat(70_000);
    put(&partition, batch_of(&[&text]));
    assert_eq!(size(), 128 << 10);
    partition.seal_active();
    log.close();
    assert!(size() < 71_000, "{}", size());
    assert!(matches!(
        partition.append(batch_of(&["b"]), Durability::Kernel),
        Err(AppendError::Closed)
    ));
}

/// Environment variable with the folder in which a second process of this test opens its log.
const PANICS_IN: &str = "CLOVERLEAF_TEST_PANICS_IN";

#[test]
fn a_panic_in_a_thread_of_the_log_ends_the_process() {
    if let Some(folder) = std::env::var_os(PANICS_IN) {
        let options = LogOptions {
            inline_writes: false,
            ..options()
        };
        let (log, _) = Log::open(RealDisk::open(folder).unwrap(), options).unwrap();
        let partition = log
            .partition(topic(1), 0, PartitionOptions::default())
            .unwrap();
        partition.on_written(Box::new(|_| panic!("on purpose")));
        let appended = partition.append(batch_of(&["a"]), Durability::Disk);
        let _ = appended.unwrap().wait();
        loop {
            std::thread::park();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "real_disk::a_panic_in_a_thread_of_the_log_ends_the_process",
            "--exact",
        ])
        .arg("--nocapture")
        .env(PANICS_IN, folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("thread log-opener has panicked"), "{text}");
    let (log, _) = open(&folder, options());
    let partition = log
        .partition(topic(1), 0, PartitionOptions::default())
        .unwrap();
    assert_eq!(offsets(&read_all(&partition)), [0]);
}
