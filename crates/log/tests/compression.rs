//! Compressed batches: the round trip with each codec, invalid bytes, and compaction.

use bytes::Bytes;
use cloverleaf_log::{
    BATCH_HEADER_BYTES, Batch, BatchBuilder, Codec, CompactionOptions, InflateError, SimDisk,
};
use proptest::prelude::*;

use crate::common::{open, put, read_all, topic};
use crate::compaction::{SMALL, batch, compact_all, options, seal, show};

const CODECS: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
const BYTES_MAX: usize = 1 << 20;

fn build(values: &[Vec<u8>]) -> Batch {
    let mut builder = BatchBuilder::with_capacity(64, 1_000);
    for (at, value) in (0..).zip(values) {
        let key = format!("key {at}");
        let headers: [(&[u8], Option<&[u8]>); 2] = [(b"name", Some(b"value")), (b"none", None)];
        builder.push_at(1_000 + at, Some(key.as_bytes()), Some(value), &headers);
    }
    builder.finish()
}

/// The batch with these bytes in place of its records, as a faulty producer could send it.
fn with_payload(batch: &Batch, codec: Codec, payload: &[u8]) -> Batch {
    let mut bytes = batch.bytes()[..BATCH_HEADER_BYTES].to_vec();
    bytes.extend_from_slice(payload);
    let length = (bytes.len() - 12) as u32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[22] = codec as u8;
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    Batch::parse(Bytes::from(bytes)).unwrap()
}

fn records(batch: &Batch) -> &[u8] {
    &batch.bytes()[BATCH_HEADER_BYTES..]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn compressed_batches_survive_the_round_trip(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2_000), 1..60),
    ) {
        let batch = build(&values);
        for codec in CODECS {
            let compressed = batch.compress(codec).unwrap();
            prop_assert_eq!(compressed.codec(), codec);
            prop_assert_eq!(compressed.count(), batch.count());
            let parsed = Batch::parse(compressed.bytes().clone()).unwrap();
            let inflated = parsed.inflate(BYTES_MAX).unwrap();
            prop_assert_eq!(inflated.bytes(), batch.bytes());
            let too_small = parsed.inflate(batch.bytes().len() - 1).unwrap_err();
            let expected = InflateError::TooLarge { bytes_max: batch.bytes().len() - 1 };
            prop_assert_eq!(too_small, expected);
        }
    }

    #[test]
    fn broken_bytes_are_an_error(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
        at in any::<prop::sample::Index>(),
        bits in 1u8..,
        cut in any::<prop::sample::Index>(),
    ) {
        let batch = build(&values);
        for codec in CODECS {
            let mut payload = records(&batch.compress(codec).unwrap()).to_vec();
            let whole = payload.len();
            let at = at.index(whole);
            payload[at] ^= bits;
            // The result is an error, unless the codec does not notice the flipped bits.
            let _ = with_payload(&batch, codec, &payload).inflate(BYTES_MAX);
            payload[at] ^= bits;
            payload.truncate(cut.index(whole));
            let cut_off = with_payload(&batch, codec, &payload).inflate(BYTES_MAX);
            // Gzip's trailer and LZ4's end mark have no records, so without them the batch may
            // still be valid.
            if payload.len() + 8 < whole {
                prop_assert!(cut_off.is_err(), "{codec:?} {} of {whole}", payload.len());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..400)) {
        let batch = build(&[vec![1; 10]]);
        for codec in CODECS {
            let _ = with_payload(&batch, codec, &payload).inflate(BYTES_MAX);
        }
    }
}

#[test]
fn raw_snappy_can_be_inflated() {
    let batch = build(&[vec![7; 500], b"other".to_vec()]);
    let raw = snap::raw::Encoder::new()
        .compress_vec(records(&batch))
        .unwrap();
    let inflated = with_payload(&batch, Codec::Snappy, &raw).inflate(BYTES_MAX);
    assert_eq!(inflated.unwrap().bytes(), batch.bytes());
}

#[test]
fn a_decompression_bomb_is_refused() {
    let batch = build(&[vec![0; 32 << 20]]);
    for codec in CODECS {
        let bomb = batch.compress(codec).unwrap();
        assert!(bomb.bytes().len() < 2 << 20, "{codec:?}");
        let refused = bomb.inflate(BYTES_MAX).unwrap_err();
        let bytes_max = BYTES_MAX;
        assert_eq!(refused, InflateError::TooLarge { bytes_max }, "{codec:?}");
    }
    // A forged length must not cause a large allocation.
    let liar = with_payload(&batch, Codec::Snappy, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]);
    assert!(liar.inflate(usize::MAX).is_err());
}

#[test]
fn records_that_do_not_fit_the_header_are_refused() {
    let (one, two) = (build(&[vec![1]]), build(&[vec![1], vec![2]]));
    for codec in CODECS {
        let payload = records(&one.compress(codec).unwrap()).to_vec();
        let fewer = with_payload(&two, codec, &payload).inflate(BYTES_MAX);
        assert!(matches!(fewer, Err(InflateError::Records(_))), "{codec:?}");
        let payload = records(&two.compress(codec).unwrap()).to_vec();
        let more = with_payload(&one, codec, &payload).inflate(BYTES_MAX);
        assert!(matches!(more, Err(InflateError::Records(_))), "{codec:?}");
    }
}

#[test]
fn a_batch_without_records_keeps_its_place() {
    let batch = build(&[vec![1], vec![2], vec![3]]);
    let empty = batch.compress(Codec::Zstd).unwrap().without_records();
    assert_eq!((empty.count(), empty.end_offset()), (0, 3));
    assert!(matches!(empty.records().next_record(), Ok(None)));
    assert!(Batch::parse_stored(empty.bytes().clone()).is_ok());
}

#[test]
fn compaction_recompresses_unless_a_batch_would_grow_too_large() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let partition = log.partition(topic(1), 0, SMALL).unwrap();
    let (text, large) = ("text".repeat(100), "x".repeat(2 << 20));
    for (words, codec) in [
        (format!("a={text} b={text}"), Codec::None),
        (format!("c={text}"), Codec::Gzip),
        (format!("d={large}"), Codec::Lz4),
        ("b=2".to_owned(), Codec::None),
    ] {
        put(&partition, batch(&words).finish().compress(codec).unwrap());
    }
    let content = format!("0:a={text} 2:c={text} 3:d={large} 4:b=2 ");
    let (plain, own) = (Codec::None, Codec::Lz4);
    for (wanted, expected) in [
        (Some(Codec::Zstd), [Codec::Zstd; 4]),
        (None, [Codec::Zstd; 4]),
        (Some(own), [own; 4]),
        (Some(plain), [plain, plain, own, plain]),
    ] {
        // New records, so that there is a pass.
        seal(&log, &partition);
        let options = CompactionOptions {
            codec: wanted,
            ..options(0)
        };
        compact_all(&partition, &options);
        let batches = read_all(&partition);
        let codecs: Vec<Codec> = batches.iter().take(4).map(Batch::codec).collect();
        assert_eq!(codecs, expected, "{wanted:?}");
        assert!(show(&partition).starts_with(&content));
    }
}
