//! An index file.
#![no_main]

use cloverleaf_log::{INDEX_ENTRY_BYTES, decode_index, decode_index_item};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((base, rest)) = data.split_first_chunk::<8>() else {
        return;
    };
    let base = u64::from_le_bytes(*base);
    let contents = decode_index(base, rest);
    assert!(contents.entries.len() <= rest.len() / INDEX_ENTRY_BYTES);
    assert!(contents.entries.is_sorted_by_key(|entry| entry.position));
    let _ = decode_index_item(base, rest);
});
