//! Damage of the state journal's files. The broker's tests show the effect of lost entries.

use std::io::IoSlice;

use crate::common::manual;
use cloverleaf_log::{FaultyDisk, Log, OpenError, OpenMode, Recovery, SimDisk};

fn open(disk: &SimDisk) -> (Log, Recovery) {
    Log::open(disk.mount(), manual()).unwrap()
}

/// A journal with ten entries, after a kill.
fn ten_entries() -> SimDisk {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    for number in 0..10 {
        log.journal().append(&[&[number; 50]]).unwrap();
    }
    log.sync_all().unwrap();
    disk.kill();
    disk
}

fn names(disk: &SimDisk) -> Vec<String> {
    let entries = disk.mount().list("").unwrap().into_iter();
    entries.map(|entry| entry.name).collect()
}

#[test]
fn a_full_disk_leaves_a_damaged_journal_unchanged() {
    let disk = ten_entries();
    disk.corrupt("state.0", 1_300, b"#");
    let faulty = FaultyDisk::new(disk.mount());
    faulty.set(|faults| faults.free_bytes = Some(4_000));
    let refused = Log::open(faulty, manual());
    let Err(OpenError::Io { failure, .. }) = refused else {
        panic!("it opens, or says something else");
    };
    assert!(
        failure.to_string().contains("cannot write state.0"),
        "{failure}"
    );
    disk.kill();
    let (_, recovery) = open(&disk);
    assert_eq!((recovery.journal.len(), recovery.lost_entries), (9, 1));
    assert!(names(&disk).contains(&"state.0.damaged-1".to_owned()));
}

#[test]
fn a_header_with_one_unwritten_copy_is_not_damage() {
    let disk = ten_entries();
    disk.corrupt("state.0", 512, &[0; 512]);
    let (_, recovery) = open(&disk);
    assert_eq!((recovery.journal.len(), recovery.lost_entries), (10, 0));
    assert!(!names(&disk).contains(&"state.0.damaged-1".to_owned()));
    disk.kill();
    // The missing copy was restored, so the other one is not needed.
    disk.corrupt("state.0", 0, &[0; 512]);
    assert_eq!(open(&disk).1.journal.len(), 10);
    disk.kill();
    disk.corrupt("state.0", 0, &[1; 512]);
    assert_eq!(open(&disk).1.journal.len(), 10);
    assert!(names(&disk).contains(&"state.0.damaged-1".to_owned()));
}

#[test]
fn after_a_clean_stop_missing_entries_are_counted() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    for number in 0..10 {
        log.journal().append(&[&[number; 50]]).unwrap();
    }
    log.close();
    disk.kill();
    // Overwrites the last three entries.
    let len = 10 * (24 + 50);
    let mount = disk.mount();
    let file = mount.open("state.0", OpenMode::Existing).unwrap();
    let first = 1_024 + 33 + len - 3 * 74;
    let zeros = [0; 3 * 74];
    file.write_all_at(&[IoSlice::new(&zeros)], first).unwrap();
    disk.kill();
    let (_, recovery) = open(&disk);
    assert_eq!((recovery.journal.len(), recovery.lost_entries), (7, 3));
    let report = recovery.report.join("\n");
    assert!(
        report.contains("its last 3 entries are missing"),
        "{report}"
    );
}

#[test]
fn a_superseded_file_is_not_taken_for_the_current_one() {
    let disk = ten_entries();
    let (log, _) = open(&disk);
    let snapshot = (0..5).map(|number| vec![number; 50]);
    log.journal().snapshot(&mut snapshot.into_iter()).unwrap();
    log.journal().append(&[b"more"]).unwrap();
    log.sync_all().unwrap();
    disk.kill();
    disk.mount().remove_file("state.1").unwrap();
    let (_, recovery) = open(&disk);
    assert!(recovery.lost_entries > 0);
    let report = recovery.report.join("\n");
    assert!(
        report.contains("what came after state.0 is lost"),
        "{report}"
    );
}
