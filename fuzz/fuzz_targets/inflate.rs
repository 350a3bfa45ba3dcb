//! Compressed records behind a good batch header: inflating stays within its bounds, and what
//! comes out can be walked and compressed again.
#![no_main]

use cloverleaf_log::{BATCH_HEADER_BYTES, Batch};
use libfuzzer_sys::fuzz_target;

/// Most bytes that may come out.
const BYTES_MAX: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let [codec, count, payload @ ..] = data else {
        return;
    };
    let count = u32::from(*count) + 1;
    let mut bytes = vec![0; BATCH_HEADER_BYTES];
    bytes.extend_from_slice(payload);
    let length = (bytes.len() - 12) as u32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    bytes[22] = 1 + codec % 4;
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    let Ok(batch) = Batch::parse(bytes.into()) else {
        return;
    };
    let Ok(inflated) = batch.inflate(BYTES_MAX) else {
        return;
    };
    assert!(inflated.bytes().len() <= BYTES_MAX);
    assert!(inflated.validate_records().is_ok());
    let Ok(again) = inflated.compress(batch.codec()) else {
        return;
    };
    match again.inflate(BYTES_MAX) {
        Ok(same) => assert_eq!(same.bytes(), inflated.bytes()),
        Err(error) => panic!("cannot read what was written: {error}"),
    }
});
