//! The state journal: header, and the chain of entries.
#![no_main]

use cloverleaf_log::{decode_journal_entries, decode_journal_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = decode_journal_header(data);
    let entries = decode_journal_entries(1, data);
    let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
    assert!(bytes <= data.len());
});
