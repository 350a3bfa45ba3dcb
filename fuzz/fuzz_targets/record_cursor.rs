//! Records behind a good batch header: reading and skipping agree, and neither leaves the batch.
#![no_main]

use cloverleaf_log::{BATCH_HEADER_BYTES, Batch, RecordCursor};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((count, records)) = data.split_first() else {
        return;
    };
    let count = u32::from(*count) + 1;
    let mut bytes = vec![0; BATCH_HEADER_BYTES];
    bytes.extend_from_slice(records);
    let length = (bytes.len() - 12) as u32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    let Ok(batch) = Batch::parse(bytes.into()) else {
        return;
    };
    let (mut read, mut skip) = (batch.records(), batch.records());
    while let Ok(Some((offset, record))) = read.next_record() {
        let _ = record.headers.is_well_formed();
        match skip.skip_record() {
            Ok(Some((skipped, _))) => assert_eq!(offset, skipped),
            other => panic!("read {offset}, and skipped {other:?}"),
        }
        assert_eq!(read.position(), skip.position());
        assert!(read.position() as usize <= batch.bytes().len());
        // A saved position can be resumed.
        let _ = RecordCursor::at(&batch, read.position()).skip_record();
    }
});
