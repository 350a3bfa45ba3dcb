//! The snapshot of a partition's idempotent producers.
#![no_main]

use cloverleaf_log::{decode_producers, encode_producers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = decode_producers(data);
    // With its checksum made right, so that what lies behind it is reached.
    let mut bytes = b"clvprod2".to_vec();
    bytes.extend_from_slice(data);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    if let Some(snapshot) = decode_producers(&bytes) {
        assert_eq!(encode_producers(&snapshot), bytes);
    }
});
