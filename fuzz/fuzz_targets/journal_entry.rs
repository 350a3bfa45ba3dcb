//! One entry of the state journal, as the broker reads it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = cloverleaf_broker::is_entry(data);
});
