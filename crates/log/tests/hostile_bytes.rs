//! Decoders return a value or an error for any bytes and never panic. Encoded values survive the
//! round trip.

use bytes::Bytes;
use cloverleaf_log::{Batch, BatchBuilder, BatchError, RecordCursor, RecordsSummary};
use proptest::prelude::*;

type Text = Option<Vec<u8>>;
type Headers = Vec<(Vec<u8>, Text)>;

#[derive(Clone, Debug)]
struct Message {
    timestamp_ms: i64,
    key: Text,
    value: Text,
    headers: Headers,
}

fn text() -> impl Strategy<Value = Text> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200))
}

fn message() -> impl Strategy<Value = Message> {
    let name = proptest::collection::vec(any::<u8>(), 0..20);
    let headers = proptest::collection::vec((name, text()), 0..4);
    (any::<i64>(), text(), text(), headers).prop_map(|(timestamp_ms, key, value, headers)| {
        Message {
            timestamp_ms,
            key,
            value,
            headers,
        }
    })
}

fn build(base_timestamp_ms: i64, messages: &[Message]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(64, base_timestamp_ms);
    for message in messages {
        let headers: Vec<_> = message
            .headers
            .iter()
            .map(|(name, value)| (&name[..], value.as_deref()))
            .collect();
        let (key, value) = (message.key.as_deref(), message.value.as_deref());
        builder.push_at(message.timestamp_ms, key, value, &headers);
    }
    builder.finish()
}

/// The expected result of [`Batch::validate_records`], computed with a cursor; `None` for an error.
fn summary(batch: &Batch) -> Option<RecordsSummary> {
    let mut cursor = batch.records();
    let mut expected = batch.base_offset();
    let mut summary = RecordsSummary {
        earliest_ms: i64::MAX,
        latest_ms: i64::MIN,
        without_key: 0,
        body_bytes: 0,
    };
    while let Some((offset, record)) = cursor.next_record().ok()? {
        if offset != expected || !record.headers.is_well_formed() {
            return None;
        }
        expected += 1;
        summary.earliest_ms = summary.earliest_ms.min(record.timestamp_ms);
        summary.latest_ms = summary.latest_ms.max(record.timestamp_ms);
        summary.without_key += u32::from(record.key.is_none());
        summary.body_bytes += record.value.map_or(0, <[u8]>::len) as u64;
    }
    let whole = expected == batch.base_offset() + u64::from(batch.count());
    whole.then_some(summary)
}

/// Walks all records by reading and by skipping, and resumes from each position.
fn walk(batch: &Batch) {
    let (found, expected) = (batch.validate_records().ok(), summary(batch));
    assert_eq!(found.is_some(), expected.is_some());
    // With append time, the cursor's timestamps are those of the header, and the summary has those
    // of the records.
    if !batch.has_append_time() {
        assert_eq!(found, expected);
    }
    let mut cursor = batch.records();
    loop {
        let position = cursor.position();
        let mut skipping = RecordCursor::at(batch, position);
        let skipped = skipping.skip_record();
        match cursor.next_record() {
            Ok(Some((offset, record))) => {
                let (same, size) = skipped.unwrap().unwrap();
                assert_eq!(same, offset);
                assert_eq!(position + size, cursor.position());
                assert!(batch.base_offset() <= offset && offset < batch.end_offset());
                let _ = record.headers.is_well_formed();
                assert!(record.headers.count() <= batch.bytes().len());
            }
            Ok(None) | Err(_) => break,
        }
    }
}

/// Corrects the checksum, so that the code after the checksum test is reached.
fn fix_crc(bytes: &mut [u8]) {
    if bytes.len() > 21 {
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    }
}

proptest! {
    #[test]
    fn records_survive_the_round_trip(
        base in any::<i64>(),
        messages in proptest::collection::vec(message(), 1..20),
    ) {
        let batch = build(base, &messages);
        let parsed = Batch::parse(batch.bytes().clone()).unwrap();
        prop_assert_eq!(parsed.count() as usize, messages.len());
        let found = parsed.validate_records();
        prop_assert!(found.is_ok());
        prop_assert_eq!(found.ok(), summary(&parsed));
        let newest = messages.iter().map(|message| message.timestamp_ms).max();
        prop_assert_eq!(Some(parsed.max_timestamp_ms()), newest);
        let mut cursor = parsed.records();
        for (offset, message) in messages.iter().enumerate() {
            let (at, record) = cursor.next_record().unwrap().unwrap();
            prop_assert_eq!(at, offset as u64);
            prop_assert_eq!(record.timestamp_ms, message.timestamp_ms);
            prop_assert_eq!(record.key, message.key.as_deref());
            prop_assert_eq!(record.value, message.value.as_deref());
            let headers: Headers = record
                .headers
                .map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)))
                .collect();
            prop_assert_eq!(&headers, &message.headers);
        }
        prop_assert!(cursor.next_record().unwrap().is_none());
        walk(&parsed);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Batch::parse(Bytes::from(bytes.clone()));
        let _ = Batch::parse_stored(Bytes::from(bytes));
    }

    #[test]
    fn changed_bytes_are_noticed_or_harmless(
        messages in proptest::collection::vec(message(), 1..5),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        repair in any::<bool>(),
    ) {
        let batch = build(0, &messages);
        let mut bytes = batch.bytes().to_vec();
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if repair {
            fix_crc(&mut bytes);
        }
        for parsed in [
            Batch::parse(Bytes::from(bytes.clone())),
            Batch::parse_stored(Bytes::from(bytes.clone())),
        ] {
            let Ok(parsed) = parsed else { continue };
            walk(&parsed);
        }
    }

    #[test]
    fn a_cut_or_lengthened_batch_is_refused(
        messages in proptest::collection::vec(message(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = build(0, &messages).bytes().clone();
        let shorter = bytes.slice(..cut.index(bytes.len()));
        let refused = matches!(Batch::parse(shorter), Err(BatchError::Length { .. }));
        prop_assert!(refused);
        let longer = Bytes::from([&bytes[..], &[0]].concat());
        let refused = matches!(Batch::parse(longer), Err(BatchError::Length { .. }));
        prop_assert!(refused);
    }
}

#[test]
fn each_rule_has_its_error() {
    let good = {
        let mut builder = BatchBuilder::with_capacity(64, 0);
        builder.push(None, Some(b"a"), &[]);
        builder.push(None, Some(b"b"), &[]);
        builder.finish().bytes().to_vec()
    };
    let change = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        fix_crc(&mut bytes);
        Bytes::from(bytes)
    };
    assert_eq!(
        Batch::parse(change(16, 1)).unwrap_err(),
        BatchError::Magic(1)
    );
    assert_eq!(
        Batch::parse(change(22, 5)).unwrap_err(),
        BatchError::Codec(5)
    );
    let count = BatchError::Count {
        count: 1,
        last_offset_delta: 1,
    };
    assert_eq!(Batch::parse(change(60, 1)).unwrap_err(), count);
    assert!(
        Batch::parse_stored(change(60, 1)).is_ok(),
        "compaction may have removed a record"
    );
    assert!(Batch::parse_stored(change(60, 3)).is_err());
    assert!(matches!(
        Batch::parse_stored(change(0, 0xff)),
        Err(BatchError::BaseOffset(_))
    ));
    let mut torn = good.clone();
    torn[70] ^= 1;
    assert!(matches!(
        Batch::parse(Bytes::from(torn)),
        Err(BatchError::Checksum { .. })
    ));
    let compressed = Batch::parse(change(22, 4)).unwrap();
    assert_eq!(
        compressed.records().next_record().unwrap_err(),
        BatchError::Compressed
    );
    assert_eq!(compressed.validate_records(), Err(BatchError::Compressed));
    let lying = Batch::parse(change(61, 100)).unwrap();
    let malformed = BatchError::Record { position: 61 };
    assert_eq!(lying.records().next_record().unwrap_err(), malformed);
    assert_eq!(lying.validate_records().unwrap_err(), malformed);
}
