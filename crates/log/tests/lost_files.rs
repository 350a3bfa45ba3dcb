//! Missing and truncated segment files, and damage in the newest one.

use crate::common::{batch_of, cut, offsets, open, put, read_all, topic};
use cloverleaf_log::{Durability, PartitionOptions, SimDisk};

const SMALL: PartitionOptions = PartitionOptions {
    segment_bytes: 200_000,
    segment_ms: None,
};

/// Makes a partition of 100 messages in five sealed segments and 10 more in the active one, and
/// closes the log cleanly.
fn closed_log(sim: &SimDisk) {
    let (log, _) = open(sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for number in 0..110 {
        put(&partition, batch_of(&[&"x".repeat(1_000)]));
        if number < 100 && number % 20 == 19 {
            partition.seal_active();
        }
    }
    log.step();
    log.close();
}

fn path_of(base: u64, ending: &str) -> String {
    format!("topics/{}/0/{base:020}.{ending}", topic(1))
}

#[test]
fn the_start_reports_missing_and_truncated_files_with_the_lost_messages() {
    let len = batch_of(&[&"x".repeat(1_000)]).bytes().len() as u64;
    // The file of a sealed segment with 20 messages, and that of the active one with 10.
    for (base, messages) in [(40, 20), (0, 20), (100, 10)] {
        for whole in [None, Some(0), Some(3), Some(9)] {
            let sim = SimDisk::new();
            closed_log(&sim);
            match whole {
                None => sim.mount().remove_file(&path_of(base, "log")).unwrap(),
                Some(whole) => cut(&sim, &path_of(base, "log"), whole * len + whole),
            }
            let lost = messages - whole.unwrap_or(0);
            for start in 0..2 {
                let (log, _) = open(&sim);
                let partition = log.partition(topic(1), 0, SMALL).unwrap();
                let counted = log.metrics();
                // The first start repairs a missing file and the active one, so the second start
                // reports no loss of these.
                let again = start == 0 || (base != 100 && whole.is_some());
                let expected = if again { (1, lost) } else { (0, 0) };
                let reported = (counted.corrupt_regions, counted.lost_messages);
                assert_eq!(reported, expected, "{base} {whole:?} start {start}");
                let dropped = base + whole.unwrap_or(0)..base + messages;
                let expected: Vec<u64> = (0..110).filter(|it| !dropped.contains(it)).collect();
                let found = offsets(&read_all(&partition));
                assert_eq!(found, expected, "{base} {whole:?}");
                assert_eq!(partition.next_offset(), 110, "no offset is assigned twice");
                assert_eq!(log.metrics().corrupt_regions, counted.corrupt_regions);
                log.close();
            }
        }
    }
}

#[test]
fn batches_after_damage_in_the_active_segment_are_kept() {
    let sim = SimDisk::new();
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    for _ in 0..30 {
        put(&partition, batch_of(&[&"x".repeat(200)]));
    }
    let len = partition.size_bytes() / 30;
    drop((partition, log));
    sim.kill();
    for at in [3, 4, 17] {
        sim.corrupt(&path_of(0, "log"), at * len + 100, &[0xee; 10]);
    }
    let expected: Vec<u64> = (0..30).filter(|it| ![3, 4, 17].contains(it)).collect();
    for _ in 0..2 {
        let (log, recovery) = open(&sim);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        assert_eq!(offsets(&read_all(&partition)), expected, "{recovery:?}");
        let next = partition.next_offset();
        assert!(next >= 30);
        drop((partition, log));
        sim.kill();
    }
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["behind"]));
    let expected: Vec<u64> = expected.into_iter().chain([30]).collect();
    assert_eq!(offsets(&read_all(&partition)), expected);
}

#[test]
fn a_truncated_newest_file_after_a_kill_puts_the_end_in_doubt() {
    let len = batch_of(&[&"x".repeat(200)]).bytes().len() as u64;
    // Truncated to nothing, between two batches, within a batch, and not at all.
    for (bytes, in_doubt) in [
        (Some(0), 1),
        (Some(3 * len), 1),
        (Some(4 * len + 7), 1),
        (None, 0),
    ] {
        let sim = SimDisk::new();
        let (log, _) = open(&sim);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        for _ in 0..30 {
            put(&partition, batch_of(&[&"x".repeat(200)]));
        }
        drop((partition, log));
        sim.kill();
        if let Some(bytes) = bytes {
            cut(&sim, &path_of(0, "log"), bytes);
        }
        let (log, recovery) = open(&sim);
        assert_eq!(
            recovery.partitions[0].end_in_doubt,
            in_doubt == 1,
            "{bytes:?}"
        );
        log.partition(topic(1), 0, SMALL).unwrap();
        let reported = log.metrics().corrupt_regions + log.metrics().truncated_bytes.min(1);
        assert_eq!(reported, in_doubt, "{bytes:?}");
    }
}

#[test]
fn a_missing_newest_file_after_a_kill_puts_the_end_in_doubt() {
    let sim = SimDisk::new();
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["a", "b"]));
    partition.seal_active();
    log.step();
    put(&partition, batch_of(&["c"]));
    log.close();
    drop((partition, log));
    // The index covers the first message of the last segment, but not the second.
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["d"]));
    drop((partition, log));
    sim.kill();
    sim.mount().remove_file(&path_of(2, "log")).unwrap();
    for in_doubt in [true, false] {
        let (log, recovery) = open(&sim);
        assert_eq!(recovery.partitions[0].end_in_doubt, in_doubt);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        assert_eq!(log.metrics().corrupt_regions, u64::from(in_doubt));
        assert_eq!(offsets(&read_all(&partition)), [0, 1]);
        drop((partition, log));
        sim.kill();
    }
}

/// The index has no entry yet, but its name shows that there was a segment.
#[test]
fn a_missing_newest_file_without_an_index_entry_puts_the_end_in_doubt() {
    for (before, raised_to) in [(1, 0), (1, 1_000), (0, 0), (0, 1_000)] {
        let sim = SimDisk::new();
        let (log, _) = open(&sim);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        for _ in 0..before {
            put(&partition, batch_of(&["a"]));
            partition.seal_active();
            log.step();
        }
        partition.raise_next_offset(raised_to);
        put(&partition, batch_of(&["b", "c"]));
        let base = before.max(raised_to);
        drop((partition, log));
        sim.kill();
        sim.mount().remove_file(&path_of(base, "log")).unwrap();
        for in_doubt in [true, false] {
            let (log, recovery) = open(&sim);
            let found = &recovery.partitions[0];
            assert_eq!(found.end_in_doubt, in_doubt, "{before} {raised_to}");
            // The owner raises the next offset far above the end, so the log needs to guarantee
            // only this.
            assert!(found.next_offset >= base, "{before} {raised_to}");
            let partition = log.partition(topic(1), 0, SMALL).unwrap();
            assert_eq!(log.metrics().corrupt_regions, u64::from(in_doubt));
            let expected: Vec<u64> = (0..before).collect();
            assert_eq!(offsets(&read_all(&partition)), expected);
            drop((partition, log));
            sim.kill();
        }
    }
}

#[test]
fn a_kill_while_a_segment_is_begun_leaves_no_doubt() {
    for (sealed, changes) in [false, true]
        .into_iter()
        .flat_map(|it| (0..20).map(move |n| (it, n)))
    {
        let sim = SimDisk::new();
        let (log, _) = open(&sim);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        if sealed {
            put(&partition, batch_of(&["a"]));
            partition.seal_active();
            log.step();
        }
        sim.crash_after(changes);
        if let Ok(appended) = partition.append(batch_of(&["b"]), Durability::Kernel) {
            let _ = appended.wait();
        }
        drop((partition, log));
        sim.kill();
        let (_, recovery) = open(&sim);
        let doubt = recovery.partitions.iter().any(|found| found.end_in_doubt);
        assert!(!doubt, "after {changes} changes");
    }
}

#[test]
fn a_newest_file_without_messages_is_not_in_doubt() {
    let sim = SimDisk::new();
    let (log, _) = open(&sim);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    put(&partition, batch_of(&["a"]));
    partition.seal_active();
    log.step();
    partition.drop_segments(&[0]).unwrap();
    drop((partition, log));
    for _ in 0..3 {
        sim.kill();
        let (log, recovery) = open(&sim);
        assert!(!recovery.partitions[0].end_in_doubt);
        log.close();
        drop(log);
        let (log, recovery) = open(&sim);
        assert!(!recovery.partitions[0].end_in_doubt);
        drop(log);
    }
}

/// A kill while the newest segment is sealed or begun does not put the end in doubt, either.
#[test]
fn a_kill_while_the_newest_segment_is_sealed_leaves_no_doubt() {
    for changes in 0..40 {
        let sim = SimDisk::new();
        let (log, _) = open(&sim);
        let partition = log.partition(topic(1), 0, SMALL).unwrap();
        put(&partition, batch_of(&["a"]));
        sim.crash_after(changes);
        partition.seal_active();
        log.step();
        drop((partition, log));
        sim.kill();
        let (_, recovery) = open(&sim);
        let found = &recovery.partitions[0];
        assert_eq!(found.next_offset, 1);
        assert!(!found.end_in_doubt, "after {changes} changes");
    }
}
