//! A batch from a network or a disk, with length, magic and checksum made right so that the bytes
//! reach what lies behind those checks.
#![no_main]

use bytes::Bytes;
use cloverleaf_log::{BATCH_HEADER_BYTES, Batch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Batch::parse(Bytes::copy_from_slice(data));
    let _ = Batch::parse_stored(Bytes::copy_from_slice(data));
    if data.len() < BATCH_HEADER_BYTES {
        return;
    }
    let mut bytes = data.to_vec();
    let length = (bytes.len() - 12) as u32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    for parsed in [
        Batch::parse(bytes.clone().into()),
        Batch::parse_stored(bytes.into()),
    ] {
        let Ok(batch) = parsed else { continue };
        assert!(batch.end_offset() > batch.base_offset());
        assert_eq!(
            Batch::peek_len(batch.bytes()).ok(),
            Some(batch.bytes().len())
        );
        let _ = batch.validate_records();
    }
});
