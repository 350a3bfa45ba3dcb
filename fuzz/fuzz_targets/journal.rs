//! The state journal: header and entries, behind damage, too.
#![no_main]

use cloverleaf_log::encode_journal_header;
use cloverleaf_log::{JournalId, decode_journal_entries, decode_journal_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = decode_journal_header(data);
    let id = JournalId {
        generation: 1,
        tag: 1,
    };
    let file = [&encode_journal_header(id), data].concat();
    for bytes in [data, &file] {
        let entries = decode_journal_entries(bytes);
        let size: usize = entries.iter().map(Vec::len).sum();
        assert!(size <= bytes.len());
    }
});
