#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;

fn table(producers_max: usize) -> Producers {
    Producers::new(producers_max, 1_000, ProducersTotal::new(usize::MAX))
}

fn fields(epoch: i16, first_sequence: i32, records: u32) -> ProducerFields {
    ProducerFields {
        producer_id: 7,
        epoch,
        first_sequence,
        records,
        timestamp_ms: 1,
    }
}

/// Compares the verdicts of [`Producers::check`] on these batches, one after the other. A new batch
/// is added to the table.
fn check(batches: &[(i16, i32, u32)], expected: &str) {
    let mut producers = table(10);
    let mut next = 100;
    let mut verdicts = Vec::new();
    for (epoch, sequence, records) in batches {
        let fields = fields(*epoch, *sequence, *records);
        verdicts.push(match producers.check(&fields, 0) {
            Ok(SequenceVerdict::New) => {
                producers.add(&fields, next, next, 0);
                next += u64::from(*records);
                "new".to_owned()
            }
            Ok(SequenceVerdict::Duplicate(same)) => format!("at {}", same.base),
            Err(AppendError::OutOfOrderSequence { expected, .. }) => format!("not {expected}"),
            Err(AppendError::ProducerFenced { current_epoch, .. }) => {
                format!("fenced by {current_epoch}")
            }
            Err(AppendError::DuplicateSequence { .. }) => "long ago".to_owned(),
            Err(error) => panic!("{error}"),
        });
    }
    assert_eq!(verdicts.join(", "), expected);
}

#[test]
fn sequences_must_continue() {
    check(&[(0, 0, 3), (0, 3, 1), (0, 5, 1)], "new, new, not 4");
    check(&[(0, 40, 3), (0, 43, 1)], "new, new");
    check(&[(0, 0, 3), (0, 1, 2), (0, 0, 4)], "new, not 3, not 3");
    check(&[(0, -1, 1), (-1, 0, 1)], "not 0, fenced by 0");
}

#[test]
fn sequence_numbers_wrap_around() {
    let max = i32::MAX;
    check(&[(0, max - 1, 2), (0, 0, 1)], "new, new");
    check(&[(0, max, 3), (0, 2, 1), (0, max, 3)], "new, new, at 100");
    check(&[(0, max, 1), (0, max, 1), (0, 1, 1)], "new, at 100, not 0");
}

#[test]
fn a_new_epoch_begins_at_zero_and_fences_the_old_one() {
    check(&[(0, 5, 1), (1, 6, 1), (1, 0, 1)], "new, not 0, new");
    check(&[(3, 0, 1), (4, 0, 1), (3, 1, 1)], "new, new, fenced by 4");
    check(&[(0, 0, 1), (1, 0, 1), (1, 0, 1)], "new, new, at 101");
}

#[test]
fn five_batches_are_remembered() {
    let mut batches: Vec<_> = (0..8).map(|number| (0, number * 2, 2)).collect();
    batches.extend([(0, 14, 2), (0, 6, 2), (0, 0, 2), (0, 15, 1), (0, 18, 1)]);
    let news = "new, new, new, new, new, new, new, new";
    check(
        &batches,
        &format!("{news}, at 114, at 106, long ago, not 16, not 16"),
    );
    // With fewer batches in the table, none was forgotten.
    check(&[(0, 10, 1), (0, 3, 1)], "new, not 11");
}

#[test]
fn unwritten_batches_can_be_undone() {
    let mut producers = table(10);
    for number in 0..5 {
        producers.add(&fields(0, number, 1), number as u64, number as u64, 0);
    }
    // Ten more batches in a new epoch, none of them written.
    for number in 0..10 {
        producers.add(&fields(1, number, 1), 5 + number as u64, 5, 0);
    }
    producers.undo_append(7, 5);
    let again = producers.check(&fields(0, 0, 1), 0).unwrap();
    assert!(matches!(again, SequenceVerdict::Duplicate(batch) if batch.base == 0));
    assert_eq!(
        producers.check(&fields(0, 5, 1), 0).unwrap(),
        SequenceVerdict::New
    );
    producers.undo_append(7, 0);
    assert!(producers.is_empty());
}

#[test]
fn retries_of_lost_batches_are_accepted() {
    let mut producers = table(10);
    producers.recover(&fields(0, 2, 1), 100, 0);
    producers.recover(&fields(0, 6, 1), 103, 0);
    for (sequence, records) in [(1, 2), (2, 2), (3, 4), (5, 2), (8, 1)] {
        let overlapping = fields(0, sequence, records);
        assert!(producers.check(&overlapping, 0).is_err(), "{sequence}");
    }
    for (sequence, base) in [(0, 104), (4, 105), (3, 106), (5, 107), (1, 108)] {
        let lost = fields(0, sequence, 1);
        assert_eq!(
            producers.check(&lost, 0).unwrap(),
            SequenceVerdict::New,
            "{sequence}"
        );
        producers.add(&lost, base, 0, 0);
        let again = producers.check(&lost, 0).unwrap();
        assert!(matches!(again, SequenceVerdict::Duplicate(batch) if batch.base == base));
    }
    assert_eq!(
        producers.check(&fields(0, 7, 1), 0).unwrap(),
        SequenceVerdict::New
    );
    let sequences = producers.map[&7]
        .batches
        .iter()
        .map(|batch| batch.first_sequence);
    assert!(sequences.eq(0..7));
}

#[test]
fn all_tables_together_are_bounded() {
    let total = ProducersTotal::new(100);
    let mut tables: Vec<Producers> = (0..10)
        .map(|_| Producers::new(256, 1_000, total.clone()))
        .collect();
    for number in 0..5_000 {
        let fields = ProducerFields {
            producer_id: i64::from(number),
            ..fields(0, 0, 1)
        };
        // Each table has producers that are not needed any more when it is full.
        let table = &mut tables[9 - number as usize / 500];
        table.add(&fields, 2, 2, 1_200);
        assert_eq!(
            table.check(&fields, 1_200).unwrap(),
            SequenceVerdict::Duplicate(fields.with_base(2))
        );
    }
    let known: usize = tables.iter().map(|table| table.map.len()).sum();
    assert_eq!(known, total.count.load(Relaxed));
    // The first table filled the total limit; each of the others keeps [`PRODUCERS_KEPT_MIN`].
    for (number, table) in tables.iter().enumerate() {
        let most = if number == 9 { 100 } else { PRODUCERS_KEPT_MIN };
        let known = table.map.len();
        assert!(
            (most - most / EVICTED_ONE_IN..=most).contains(&known),
            "{known}"
        );
    }
    tables[9].expire(5_000);
    assert!(tables[9].is_empty());
    tables[8].clear();
    assert!(tables[8].is_empty());
    tables.truncate(9);
    let known: usize = tables.iter().map(|table| table.map.len()).sum();
    assert_eq!(known, total.count.load(Relaxed));
}

#[test]
fn silent_producers_and_the_least_recently_used_are_forgotten() {
    let mut producers = table(16);
    producers.add(&fields(5, 9, 1), 0, 0, 100);
    assert!(producers.check(&fields(5, 11, 1), 1_099).is_err());
    assert_eq!(
        producers.check(&fields(4, 11, 1), 1_100).unwrap(),
        SequenceVerdict::New
    );
    producers.add(&fields(4, 11, 1), 1, 1, 1_100);
    assert_eq!(producers.producer_infos(1_100)[0].epoch, 4);
    for producer_id in 100..150 {
        let fields = ProducerFields {
            producer_id,
            ..fields(0, 0, 1)
        };
        producers.add(&fields, 2, 2, 1_200);
        assert!(producers.map.len() <= 16);
    }
    assert!(!producers.map.contains_key(&7) && producers.map.contains_key(&140));
    producers.expire(2_200);
    assert!(producers.is_empty());
}
